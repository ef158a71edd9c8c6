"""A lower bound on the cost of every sharding plan of a task, by linear programs: `plan_lower_bound_ms`.

Variables are the shares of each table that have each form: whole or in column shards of any width, in blocks of rows on
all devices or on a host, data-parallel. With n_l devices of lane level l, shards are spread over the levels that their
widths allow, and the devices of a level share their load evenly; as in `placements.py`, the n_l are searched best
first. A plan gives a solution that costs no more than the plan:

- A phase of compute is a maximum of linear functions once the lane share of a device is known (`linear_costs_of`). So
  its maximum over the devices is at least the mean of any group of levels. Blocks on all devices and replicas are on
  those of each level, and none is on a device of a lower level than theirs.
- With host memory, the mean device of a group reads from its host for at least that of its mean loads (host_bounds.py).
- A device that has a shard takes at least what that shard alone takes, and of a table in several forms at least the
  mean of these.
- An exchange takes at least what the bytes of all its collectives together take on one link, of the mean device of a
  group of levels, or of a device of the smallest host, which receives the outputs of all others. Two cases for a link,
  below its knee or not, and one for plans that exchange nothing in the forward. Of an all-reduce and of the slower kind
  of link the knees are left out; of latencies all but one in the forward and one in the backward.
- An exposed exchange of indices takes at least what those of the mean device of a group take at the full bandwidth, and
  its latencies unless all tables are data-parallel.
- All shards together fit the memory of their devices.
- Constraints leave forms out, and the devices that tables are kept to are a group, too (few_devices.py).

As in `placements.py`, the solver only proposes multipliers, and the bound is the Lagrangian of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.analytical.index_exchange import latencies_ms, links_of_indices
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical.sharding import GRADIENT_BYTES, HOST_PARTIAL_BYTES, OWN_LOADS, PARTIAL_BYTES
from shard_gym.cost_models.base.host_rows import host_read_ms
from shard_gym.cost_models.base.linear import Line, links_of
from shard_gym.cost_models.bounds.few_devices import crowds_of, with_mates
from shard_gym.cost_models.bounds.host_bounds import HostCuts
from shard_gym.cost_models.bounds.lane_counts import Counts, best_first
from shard_gym.cost_models.bounds.placements import ROUNDING, lagrangian_ms, linprog
from shard_gym.hardware import Topology
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    has_equal_blocks,
)
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables

MAX_SHARES = (
    600_000  # variables of all programs solved for one task; then the bound of the best counts is taken as it is
)
MIN_PROGRAMS = 20


def plan_lower_bound_ms(
    tables: Tables, topology: Topology, model: AnalyticalShardingModel, limits: Constraints | None = None
) -> float:
    """Ms that no sharding plan of the tables, under `limits`, costs less than; takes seconds.

    Raises:
        MissingExtraError: scipy is not installed.
        InvalidOptionError: the overlap loss of the model is above 1, so its phases are no maxima of linear functions,
            or the model is of serving.
    """
    if model.exchanges != 2:
        raise InvalidOptionError(f"Plans have no lower bound under the cost model {model.name!r}; name 'analytical'.")
    if model.constants.overlap_loss > 1.0:
        raise InvalidOptionError(
            f"Plans have no lower bound for an overlap_loss of {model.constants.overlap_loss:g}; it must be at most 1."
        )
    relaxation = _Relaxation(tables, topology, model, limits)
    programs = max(MIN_PROGRAMS, MAX_SHARES // relaxation.num_shares)
    return next(best_first(relaxation, programs))[0]


OTHERS = 4  # variables behind the shares, those of `_Rows.add` without indices and the read times
_Group = tuple[tuple[int, ...], FloatArray]


class _Case(NamedTuple):
    """Plans whose busiest device sends or receives, in the forward, so many bytes on the main link."""

    line: Line  # the ms of these bytes
    exchanges: bool  # in the forward; otherwise all tables are data-parallel
    most_bytes: float


class _Relaxation:
    """The linear programs of a task, `solved` of them so far. They have V variables for shares: forms on levels."""

    def __init__(
        self, tables: Tables, topology: Topology, model: AnalyticalShardingModel, limits: Constraints | None
    ) -> None:
        self.solved = 0
        kinds, which, parts, loads, memory = (
            np.concatenate(each) for each in zip(*_forms(tables, topology, model, limits), strict=True)
        )
        named = model.least(loads)[:, model.first_load :]
        costs = model.linear_costs_of(named[:, [*OWN_LOADS, *range(OWN_LOADS[-1] + 1, named.shape[1])]])
        costs = with_mates(costs, which, limits)
        everywhere = np.isin(kinds, (ROW_WISE, DATA_PARALLEL))
        # A form on all devices has one variable, at its own level; others have one for each level that is as wide.
        levels = np.arange(len(costs.lane_shares))[:, None]
        self._level, form = np.nonzero((levels == costs.levels) | ((levels > costs.levels) & ~everywhere))
        self.num_shares = len(form)
        self._table, self._everywhere, self._parts = which[form], everywhere[form], parts[form]
        self._crowds = [each.tables[self._table] * self._parts / each.devices for each in crowds_of(limits)]
        self._replica = kinds[form] == DATA_PARALLEL
        self._outputs, self._partial, self._host_partial, self._gradient = named[form][
            :, [OUTPUT_BYTES_SENT, PARTIAL_BYTES, HOST_PARTIAL_BYTES, GRADIENT_BYTES]
        ].T
        self._indices = loads[form, 0] if model.first_load else None
        self._far = self._host_partial * (model.sent_bytes / model.summed_bytes)  # in the all-to-all across hosts
        self._memory, self._caps = memory[form], topology.memory_cap_bytes.astype(np.float64)
        self._ms = costs.ms[..., form]  # (2, L, P, V) of a part
        self._host = None if costs.host is None else replace(costs.host, ms=costs.host.ms[:, form])
        alone = np.zeros(len(form)) if self._host is None else self._host.read_ms(self._host.ms.T)
        self._read_alone = (np.ones(2) if self._host is None else self._host.times) * alone[:, None]  # (V, 2)
        self._cluster, self._devices = topology.cluster(), topology.num_devices
        self._links = links_of(self._cluster)
        # Only tables that may take longer alone than the mean device takes anyhow can decide.
        own = self._ms[:, self._level, :, np.arange(len(form))]  # (V, 2, P)
        least, longest = np.full((len(tables), *own.shape[1:]), np.inf), np.zeros((len(tables), 2))
        np.minimum.at(least, self._table, own * self._parts[:, None, None])
        np.maximum.at(longest, self._table, own.max(axis=2) + self._read_alone)
        self._may_decide = longest > least.sum(axis=0).max(axis=1) / self._devices  # (T, 2)
        self._fixed_ms = float(costs.fixed_ms.sum())
        self._latency_ms = float(self._cluster.latency_ms) if self._devices > 1 else 0.0
        most = np.zeros((len(tables), loads.shape[1]))
        np.maximum.at(most, which, loads * parts[:, None])
        worst = most.sum(axis=0)
        worst[model.maxima] = loads[:, model.maxima].max(axis=0)
        self._high = float(model.costs(np.tile(worst, (self._devices, 1)), self._cluster)[1])
        self._cuts, self._most_read = None, 0.0
        if self._host is not None:
            self._most_read = float(host_read_ms(worst[model.num_loads :])) * (1.0 + ROUNDING)
            even = np.full((len(tables), len(self._host.hbm_ms)), np.inf)
            np.minimum.at(even, self._table, (self._host.ms * self._parts).T)
            self._cuts = HostCuts(self._host, even.sum(axis=0) / self._devices)

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
        from scipy.sparse import csr_array

        lower = np.array([0, *np.cumsum(counts.low)])[self._level]  # devices of lower levels, at least
        usable = np.where(self._everywhere, lower == 0, np.array(counts.high)[self._level] > 0)
        usable &= case.exchanges | self._replica
        groups = list(self._groups(counts))
        reads = 0 if self._host is None else len(groups)
        others = OTHERS + (self._indices is not None)
        objective = np.concatenate([np.zeros(len(usable)), np.ones(others), np.zeros(reads)])
        low = np.zeros(len(objective))
        high = np.concatenate([usable.astype(float), np.full(others, self._high), np.full(reads, self._most_read)])
        shares = np.arange(len(usable))
        whole = csr_array((np.ones(len(shares)), (self._table, shares)), (self._table.max() + 1, len(objective)))
        constant = self._fixed_ms + self._latency_ms * (2.0 if case.exchanges else 1.0)
        if self._indices is not None and case.exchanges:
            constant += float(latencies_ms(self._cluster))
        while True:
            self.solved += 1
            rows = _Rows(reads, self._indices is not None)
            self._add_compute(rows, counts, groups)
            self._add_exchanges(rows, groups, case)
            self._add_indices(rows, groups)
            matrix, limits = csr_array(np.array(rows.values)), np.array(rows.limits)
            ends = np.stack([low, high], axis=1)
            result = linprog()(objective, matrix, limits, whole, np.ones(whole.shape[0]), ends, "highs")
            if result.status == 2 and "infeasible" in result.message:
                return float("inf")
            spreads = np.stack([spread for _, spread in groups])
            if self._cuts is None or result.x is None or not self._cuts.add(spreads, result.x):
                return lagrangian_ms(result, objective, (matrix, limits), self._table, (low, high), constant)

    def _add_compute(self, rows: _Rows, counts: Counts, groups: list[_Group]) -> None:
        """The memory, and forward and backward of groups of devices and of a device with one part alone."""
        every = np.arange(len(self._level))
        for number, (group, share) in enumerate(groups):
            level = np.where(self._everywhere, np.maximum(self._level, group[0]), self._level)
            ms = self._ms[:, level, :, every] * share[:, None, None]  # (V, 2, P)
            for piece in range(ms.shape[2]):
                rows.add(ms[:, 0, piece], forward=-1.0, reads=self._reads(number, 0))
                rows.add(ms[:, 1, piece], backward=-1.0, reads=self._reads(number, 1))
            for read_ms, hbm_ms in () if self._cuts is None else self._cuts.rows(share):
                rows.add(read_ms, hbm_ms, reads={number: -1.0})
            rows.add(self._memory * share / self._caps.max(), 1.0)
        rows.add(self._memory * self._parts / self._caps.sum(), 1.0)
        widest = max((level for level, low in enumerate(counts.low) if low), default=0)
        level = np.where(self._everywhere, np.maximum(self._level, widest), self._level)
        alone = self._ms[:, level, :, every].max(axis=2) + self._read_alone  # (V, 2)
        for table, phase in zip(*np.nonzero(self._may_decide), strict=True):
            own = np.where(self._table == table, alone[:, phase], 0.0)
            rows.add(own, forward=phase - 1.0, backward=-1.0 * phase)

    def _reads(self, group: int, phase: int) -> dict[int, float]:
        """How often the read time of a group counts in a phase."""
        return {} if self._host is None else {group: float(self._host.times[phase])}

    def _add_exchanges(self, rows: _Rows, groups: list[_Group], case: _Case) -> None:
        if not self._links:
            return
        cluster, devices, domains = self._cluster, self._devices, self._cluster.num_peers + 1.0
        host = float(cluster.host_size)
        inside, across = cluster.intra_bytes_per_ms, cluster.inter_bytes_per_ms
        of_gradients = across * cluster.cross_host_ratio
        peers, others = domains.min() - 1.0, (devices - domains.max()) / devices
        in_host = (host - 1.0) / max(peers, 1.0)  # of these peers, those on the host of a device

        def send(main_bytes: FloatArray) -> None:
            rows.add(main_bytes * case.line.slope, -case.line.offset, exchange=-1.0)
            if 0.0 < case.most_bytes < np.inf:
                rows.add(main_bytes / case.most_bytes, 1.0)

        for _, share in groups:
            sent = (self._outputs + self._partial) * share
            summed, far = self._host_partial * share / host * in_host, self._far * share / host
            near = (sent / devices + summed) * (peers / inside)
            if not cluster.crosses_domains:
                send(sent * (peers / devices))
                if host < devices:  # tables on one of several hosts
                    rows.add(near + far * ((devices - host) / devices / inside), exchange=-1.0)
                continue
            # The offset of a line is that of the busiest device, so it is not added to what others take besides.
            send((sent + far) * others)
            rows.add((sent + far) * (others * case.line.slope) + summed * (peers / inside), exchange=-1.0)
            rows.add(near + far * (others / across), exchange=-1.0)
        rows.add(2.0 * self._gradient * (peers / domains.min() / inside), exchange=1.0, back=-1.0)
        if cluster.crosses_domains:
            rows.add(2.0 * self._gradient * (others / domains.max() / of_gradients), exchange=1.0, back=-1.0)
            for row in self._links[-1].received:
                own = self._links[-1].sent[row == 0]  # of the devices of a receiver's own domain, which is the smallest
                # Weights of these devices, and of one as a receiver, with which all outputs count the same.
                weight = 1.0 / ((1.0 / own).sum() + 1.0 / row[row > 0].min())
                reduced = 2.0 * self._gradient * (own.min() / len(own) / of_gradients)
                received = self._outputs * self._parts * weight + self._partial * own.min()
                send(received)
                rows.add(received * case.line.slope + reduced, back=-1.0)

    def _add_indices(self, rows: _Rows, groups: list[_Group]) -> None:
        if self._indices is None:
            return
        links = links_of(links_of_indices(self._cluster))
        for _, share in groups:
            for link in links:
                rows.add(self._indices * share * (link.sent.min() / link.bytes_per_ms), indices=-1.0)

    def _groups(self, counts: Counts) -> Iterator[_Group]:
        """Groups of levels, and how many parts of each form, (V,), their mean device has at least."""
        for group in counts.groups():
            most, least = counts.most(group), counts.least(group)
            spread = np.where(np.isin(self._level, group), self._parts / most, 0.0)
            yield group, np.where(self._everywhere, least / most, spread)
        for crowd in self._crowds:
            yield (0,), crowd


class _Rows:
    """Rows of a linear program, with the read times of so many groups, and the exchange of indices if it is exposed."""

    def __init__(self, reads: int, exposed: bool = False) -> None:
        self._reads, self._exposed = reads, exposed
        self.values: list[FloatArray] = []
        self.limits: list[float] = []

    def add(
        self,
        shares: FloatArray,
        limit: float = 0.0,
        *,
        forward: float = 0.0,
        backward: float = 0.0,
        exchange: float = 0.0,
        back: float = 0.0,
        indices: float = 0.0,
        reads: Mapping[int, float] | None = None,
    ) -> None:
        """Let the (V,) shares and the other variables, times these numbers, be at most the limit.

        Those are the ms of forward and backward without fixed costs, of the exchange in each without a latency, of that
        of indices, and those that the mean device of each group reads from its host.
        """
        of_groups = np.zeros(self._reads)
        for group, factor in (reads or {}).items():
            of_groups[group] = factor
        phases = [forward, backward, exchange, back, indices][: OTHERS + self._exposed]
        self.values.append(np.concatenate([shares, phases, of_groups]))
        self.limits.append(limit)


def _forms(
    tables: Tables, topology: Topology, model: AnalyticalShardingModel, limits: Constraints | None
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], FloatArray, FloatArray, FloatArray]]:
    """Kind, table, parts that make a table, loads and least memory of a part, for each kind of form, in arrays of F.

    Those that the constraints permit; of blocks on a host, on any.
    """
    dims, rows, devices = tables.embedding_dim, tables.num_embeddings, topology.num_devices
    every = np.arange(len(tables))
    forms = [(TABLE_WISE, every, 1, dims)]
    for width in range(4, int(dims.max()), 4):
        forms.append((COLUMN_WISE, np.flatnonzero(dims > width), 1, np.full(len(tables), width)))
    of_host = devices_of_hosts(topology)
    own = of_host < devices or limits is not None  # on one host it is row_wise, which may not be permitted
    for kind, blocks in ((ROW_WISE, devices), (TABLE_ROW_WISE, of_host if own else 0)):
        if blocks:
            forms.append((kind, np.flatnonzero(has_equal_blocks(rows, blocks)), blocks, dims))
    forms.append((DATA_PARALLEL, every, devices, dims))
    for kind, possible, copies, widths in forms:
        which = possible
        if limits is not None:
            which = possible[limits.may_have_parts(kind, widths, copies, tables)[possible]]
        if len(which):
            shards = shard_tables(tables.select(which), kind, topology, widths[which])
            last = shards.num_embeddings  # the last block has the fewest rows
            if kind in (ROW_WISE, TABLE_ROW_WISE):
                last = rows[which] - (copies - 1) * shards.num_embeddings
            memory = shards.memory_bytes * (last / shards.num_embeddings)
            parts = copies * dims[which] / widths[which]
            on_all = ROW_WISE if kind == TABLE_ROW_WISE and of_host == devices else kind
            yield np.full(len(which), on_all), which, parts, model.loads(shards, topology, kind), memory
