"""A lower bound on the cost of every sharding plan of a task, by linear programs: `plan_lower_bound_ms`.

Variables are the shares of each table that have each form: whole or in column shards of any width, in blocks of rows on
all devices or on a host, data-parallel. With n_l devices of lane level l, shards are spread over the levels that their
widths allow, and the devices of a level share their load evenly; as in `bounds.py`, the n_l are searched best first. A
plan gives a solution that costs no more than the plan:

- A phase of compute is a maximum of linear functions once the lane share of a device is known (`linear_costs_of`). So
  its maximum over the devices is at least the mean of any group of levels. Blocks on all devices and replicas are on
  those of each level, and none is on a device of a lower level than theirs.
- A device that has a shard takes at least what that shard alone takes, and of a table in several forms at least the
  mean of these.
- An exchange takes at least what the bytes of all its collectives together take on one link, of the mean device of a
  group of levels, or of a device of the smallest host, which receives the outputs of all others. Two cases for a link,
  below its knee or not, and one for plans that exchange nothing in the forward. Of an all-reduce and of the slower kind
  of link the knees are left out; of latencies all but one in the forward and one in the backward.
- All shards together fit the memory of their devices.

As in `bounds.py`, the solver only proposes multipliers, and the bound is the Lagrangian of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.analytical import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical_sharding import (
    GRADIENT_BYTES,
    HOST_PARTIAL_BYTES,
    OWN_LOADS,
    PARTIAL_BYTES,
    AnalyticalShardingModel,
)
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.bounds import lagrangian_ms, linprog
from shard_gym.cost_models.lane_counts import Counts, best_first
from shard_gym.cost_models.linear import Line, links_of
from shard_gym.errors import InvalidOptionError
from shard_gym.sharding.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.sharding.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.topology import Topology

FORWARD, BACKWARD, EXCHANGE, BACK = range(-4, 0)
"""The last variables: ms of both phases of compute without fixed costs, and of the exchanges forward and back."""

MAX_PROGRAMS = 300  # linear programs solved for one task; then the bound of the best counts is taken as it is


def plan_lower_bound_ms(tables: Tables, topology: Topology, model: AnalyticalShardingModel) -> float:
    """Ms that no sharding plan of the tables costs less than, found in seconds.

    Raises:
        MissingExtraError: scipy is not installed.
        InvalidOptionError: the overlap loss of the model is above 1, so its phases are no maxima of linear functions.
    """
    if model.constants.overlap_loss > 1.0:
        raise InvalidOptionError(
            f"Plans have no lower bound for an overlap loss of {model.constants.overlap_loss}; it must be at most 1."
        )
    return next(best_first(_Relaxation(tables, topology, model), MAX_PROGRAMS))[0]


class _Case(NamedTuple):
    """Plans whose busiest device sends or receives, in the forward, so many bytes on the main link."""

    line: Line  # the ms of these bytes
    exchanges: bool  # in the forward; otherwise all tables are data-parallel
    most_bytes: float


class _Relaxation:
    """The linear programs of a task, `solved` of them so far. They have V variables for shares: forms on levels."""

    def __init__(self, tables: Tables, topology: Topology, model: AnalyticalShardingModel) -> None:
        self.solved = 0
        kinds, which, parts, loads, memory = (
            np.concatenate(each) for each in zip(*_forms(tables, topology, model), strict=True)
        )
        costs = model.linear_costs_of(loads[:, OWN_LOADS])
        everywhere = np.isin(kinds, (ROW_WISE, DATA_PARALLEL))
        # A form on all devices has one variable, at its own level; others have one for each level that is as wide.
        levels = np.arange(len(costs.lane_shares))[:, None]
        self._level, form = np.nonzero((levels == costs.levels) | ((levels > costs.levels) & ~everywhere))
        self._table, self._everywhere, self._parts = which[form], everywhere[form], parts[form]
        self._replica = kinds[form] == DATA_PARALLEL
        self._outputs, self._partial, self._host_partial, self._gradient = loads[form][
            :, [OUTPUT_BYTES_SENT, PARTIAL_BYTES, HOST_PARTIAL_BYTES, GRADIENT_BYTES]
        ].T
        self._memory, self._caps = memory[form], topology.memory_cap_bytes.astype(np.float64)
        self._ms = costs.ms[..., form]  # (2, L, P, V) of a part
        self._cluster, self._devices = topology.cluster(), topology.num_devices
        self._links = links_of(self._cluster)
        self._fixed_ms = float(costs.fixed_ms.sum())
        self._latency_ms = float(self._cluster.latency_ms) if self._devices > 1 else 0.0
        split = model.num_sum_loads
        most = np.zeros((len(tables), split))
        np.maximum.at(most, which, loads[:, :split] * parts[:, None])
        worst = np.concatenate([most.sum(axis=0), loads[:, split:].max(axis=0)])
        self._high = np.full(4, float(model.costs(np.tile(worst, (self._devices, 1)), self._cluster)[1]))

    def cases(self) -> Iterator[_Case]:
        """The lines of the main link, the network card if there is one, and no exchange in the forward at all."""
        nothing = Line(0.0, 0.0)
        full, *below = self._links[-1].lines if self._links else (nothing,)
        yield _Case(full, True, np.inf)
        for line in below:
            yield _Case(line, True, self._links[-1].knee_bytes)
        if self._links:
            yield _Case(nothing, False, 0.0)

    def all_counts(self) -> Counts:
        """All numbers of devices of the levels; empty devices have the lowest."""
        levels = self._ms.shape[1]
        return Counts((0,) * levels, (self._devices,) * levels, self._devices)

    def bound_ms(self, counts: Counts, case: _Case) -> float:
        """A lower bound in ms on the plans of `case` with these numbers of devices of each lane level."""
        self.solved += 1
        from scipy.sparse import csr_array, hstack, vstack

        narrower = np.concatenate([[0], np.cumsum(counts.low)])[self._level]  # devices of lower levels, at least
        usable = np.where(self._everywhere, narrower == 0, np.array(counts.high)[self._level] > 0)
        usable &= case.exchanges | self._replica
        every = np.arange(len(usable))
        shared, limits = self._shared_rows(counts, case)
        alone, of_tables = self._alone_ms(counts), csr_array((np.ones(len(every)), (self._table, every)))
        blocks = [csr_array(shared)]
        for phase, variable in enumerate((FORWARD, BACKWARD)):
            per_table = of_tables * alone[phase]
            last = np.zeros((per_table.shape[0], 4))
            last[:, variable] = -1.0
            blocks.append(hstack([per_table, csr_array(last)]))
        rows = vstack(blocks, "csr")
        limits = np.concatenate([limits, np.zeros(rows.shape[0] - len(limits))])
        objective = np.concatenate([np.zeros(len(every)), np.ones(4)])
        whole = hstack([of_tables, csr_array((of_tables.shape[0], 4))])
        low, high = np.zeros(len(objective)), np.concatenate([usable.astype(float), self._high])
        result = linprog()(
            objective, rows, limits, whole, np.ones(whole.shape[0]), np.stack([low, high], axis=1), "highs"
        )
        if result.status == 2 and "infeasible" in result.message:
            return float("inf")
        latencies = self._latency_ms * (2.0 if case.exchanges else 1.0)
        return lagrangian_ms(result, objective, (rows, limits), self._table, (low, high), self._fixed_ms + latencies)

    def _alone_ms(self, counts: Counts) -> FloatArray:
        """(2, V) ms of forward and backward on the device that has a part, without fixed costs."""
        widest = max((level for level, low in enumerate(counts.low) if low), default=0)
        level = np.where(self._everywhere, np.maximum(self._level, widest), self._level)
        return self._ms[:, level, :, np.arange(len(level))].max(axis=2).T

    def _shared_rows(self, counts: Counts, case: _Case) -> tuple[FloatArray, FloatArray]:
        """(R, V + 4) and (R,): what groups of devices share."""
        rows: list[FloatArray] = []
        limits: list[float] = []

        def add(per_share: FloatArray, limit: float = 0.0, **of_others: float) -> None:
            last = [of_others.get(name, 0.0) for name in ("forward", "backward", "exchange", "back")]
            rows.append(np.concatenate([per_share, last]))
            limits.append(limit)

        def send(main_bytes: FloatArray, other_ms: FloatArray, **of_others: float) -> None:
            add(case.line.slope * main_bytes + other_ms, -case.line.offset, **of_others)
            if 0 < case.most_bytes < np.inf:
                add(main_bytes / case.most_bytes, 1.0)

        cluster, devices, hosts = self._cluster, self._devices, self._cluster.num_peers + 1.0
        every = np.arange(len(self._level))
        for group in counts.groups():
            most, least = counts.most(group), counts.least(group)
            spread = np.where(np.isin(self._level, group), self._parts / most, 0.0)
            share = np.where(self._everywhere, least / most, spread)
            level = np.where(self._everywhere, np.maximum(self._level, group[0]), self._level)
            ms = self._ms[:, level, :, every] * share[:, None, None]  # (V, 2, P)
            for piece in range(ms.shape[2]):
                add(ms[:, 0, piece], forward=-1.0)
                add(ms[:, 1, piece], backward=-1.0)
            room = self._caps.max() if len(group) < len(counts.low) else self._caps.mean()
            add(self._memory * share / room, 1.0)
            if not self._links:
                continue
            main = self._links[-1]
            sent, summed = (self._outputs + self._partial) * share, self._host_partial * share / hosts.max()
            if not cluster.crosses_hosts:
                send(sent * main.sent.min(), np.zeros(len(every)), exchange=-1.0)
                continue
            inside = summed * (hosts.min() - 1.0) / cluster.intra_bytes_per_ms
            send((sent + summed) * main.sent.min(), inside, exchange=-1.0)
            near = sent * ((hosts.min() - 1.0) / devices) / cluster.intra_bytes_per_ms
            add(near + inside + summed * main.sent.min() / main.bytes_per_ms, exchange=-1.0)
        near, far = (
            2.0 * self._gradient * share
            for share in (1.0 - 1.0 / hosts.min(), (devices - hosts.max()) / (devices * hosts.max()))
        )
        add(near / cluster.intra_bytes_per_ms, exchange=1.0, back=-1.0)
        if cluster.crosses_hosts:
            add(far / cluster.inter_bytes_per_ms, exchange=1.0, back=-1.0)
            for row in main.received:
                host = main.sent[row == 0]  # what its devices send of their outputs
                # Weights of its devices and a receiver with which each device's outputs count the same in the mean.
                weight = 1.0 / ((1.0 / host).sum() + 1.0 / row[row > 0].min())
                received = self._outputs * self._parts * weight + self._partial * host.min()
                reduced = 2.0 * self._gradient * host.min() / len(host) / cluster.inter_bytes_per_ms
                send(received, np.zeros(len(every)), exchange=-1.0)
                send(received, reduced, back=-1.0)
        return np.array(rows), np.array(limits)


def _forms(
    tables: Tables, topology: Topology, model: AnalyticalShardingModel
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], FloatArray, FloatArray, FloatArray]]:
    """Kind, table, parts that make a table, loads and least memory of a part, for each kind of form, in arrays of F."""
    dims, rows, devices = tables.embedding_dim, tables.num_embeddings, topology.num_devices
    every = np.arange(len(tables))
    forms = [(TABLE_WISE, every, 1, dims)]
    for width in range(4, int(dims.max()), 4):
        forms.append((COLUMN_WISE, np.flatnonzero(dims > width), 1, np.full(len(tables), width)))
    of_host = devices_of_hosts(topology)
    for kind, blocks in ((ROW_WISE, devices), (TABLE_ROW_WISE, of_host if of_host < devices else 0)):
        if blocks:
            forms.append((kind, np.flatnonzero(has_equal_blocks(rows, blocks)), blocks, dims))
    forms.append((DATA_PARALLEL, every, devices, dims))
    for kind, which, copies, widths in forms:
        if len(which):
            shards = shard_tables(tables.select(which), kind, topology, widths[which])
            last = shards.num_embeddings  # the last block has the fewest rows
            if kind in (ROW_WISE, TABLE_ROW_WISE):
                last = rows[which] - (copies - 1) * shards.num_embeddings
            memory = shards.memory_bytes * (last / shards.num_embeddings)
            parts = copies * dims[which] / widths[which]
            yield np.full(len(which), kind), which, parts, model.shard_loads(shards, kind, topology), memory
