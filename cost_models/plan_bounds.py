"""A lower bound on the cost of every sharding plan of a task, by a linear program: `plan_lower_bound_ms`.

Variables are the shares of each table that have each form: whole or in column shards of any width, in blocks of rows on
all devices or on a host, data-parallel. A plan gives a solution that costs no more than the plan:

- A phase of compute is a maximum of linear functions once the lane share of a device is known (`linear_costs_of`),
  which is at least that of each shard on it. So its maximum over the devices is at least the mean of what the shards
  would add with their own lane shares.
- A device that has a shard takes at least what that shard alone takes, and of a table in several forms at least the
  mean of these.
- An exchange takes at least the bytes of the mean device at the full bandwidth of each link. Knees are left out, and
  latencies but one: a plan exchanges something in the backward, and nothing in the forward if all is data-parallel.
- All shards together fit the memory of all devices.

As in `bounds.py`, the solver only proposes multipliers, and the bound is the Lagrangian of these.
"""

from __future__ import annotations

from typing import Any

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

FORWARD, BACKWARD, EXCHANGE, BACK = range(4)
"""The last variables: ms of both phases of compute without fixed costs, and of the exchanges forward and back."""


def plan_lower_bound_ms(tables: Tables, topology: Topology, model: AnalyticalShardingModel) -> float:
    """Ms that no sharding plan of the tables costs less than; raises MissingExtraError if scipy is not installed."""
    solve = linprog()
    from scipy.sparse import csr_array

    forms = _Forms(tables, topology, model)
    rows, limits = forms.rows()
    count = len(forms.table)
    objective = np.concatenate([np.zeros(count), np.ones(4)])
    whole = csr_array((np.ones(count), (forms.table, np.arange(count))), (len(tables), count + 4))
    high = np.concatenate([np.ones(count), forms.high])
    low = np.zeros(count + 4)
    result = solve(objective, rows, limits, whole, np.ones(len(tables)), np.stack([low, high], axis=1), "highs")
    return lagrangian_ms(result, objective, (rows, limits), forms.table, (low, high), forms.fixed_ms)


class _Forms:
    """F forms of all tables together, and what each adds to the mean device."""

    def __init__(self, tables: Tables, topology: Topology, model: AnalyticalShardingModel) -> None:
        devices, every = topology.num_devices, np.arange(len(tables))
        chosen: list[NDArray[np.int64]] = []
        loads, memory, parts = [], [], []
        one = tables.memory_bytes

        def add(kind: str, which: NDArray[np.int64], count: FloatArray, widths: NDArray[np.int64] | None) -> None:
            if len(which):
                shards = shard_tables(tables.select(which), kind, topology, widths)
                chosen.append(which)
                loads.append(model.shard_loads(shards, kind, topology))
                copies = kind in (COLUMN_WISE, DATA_PARALLEL)  # blocks have the rows of the table together
                memory.append(shards.memory_bytes * count if copies else one[which].astype(np.float64))
                parts.append(count)

        dims = tables.embedding_dim
        add(TABLE_WISE, every, np.ones(len(tables)), None)
        for width in range(4, int(dims.max()), 4):
            narrower = np.flatnonzero(dims > width)
            add(COLUMN_WISE, narrower, dims[narrower] / width, np.full(len(narrower), width))
        for kind, blocks in ((ROW_WISE, devices), (TABLE_ROW_WISE, devices_of_hosts(topology))):
            if blocks:
                legal = np.flatnonzero(has_equal_blocks(tables.num_embeddings, blocks))
                add(kind, legal, np.full(len(legal), float(blocks)), None)
        add(DATA_PARALLEL, every, np.full(len(tables), float(devices)), None)

        self.table = np.concatenate(chosen)
        self._parts, self._loads = np.concatenate(parts), np.concatenate(loads)
        self._memory = np.concatenate(memory)
        self._room = float(topology.memory_cap_bytes.sum())
        self._topology, self._devices = topology, devices
        self._costs = model.linear_costs_of(self._loads[:, OWN_LOADS])
        cluster = topology.cluster()
        self.fixed_ms = float(self._costs.fixed_ms.sum() + (cluster.latency_ms if devices > 1 else 0.0))
        split = model.num_sum_loads
        most = np.zeros((len(tables), split))
        np.maximum.at(most, self.table, self._loads[:, :split] * self._parts[:, None])
        worst = np.concatenate([most.sum(axis=0), self._loads[:, split:].max(axis=0)])
        self.high = np.full(4, float(model.costs(np.tile(worst, (devices, 1)), cluster)[1]))

    def rows(self) -> tuple[Any, FloatArray]:
        from scipy.sparse import csr_array, vstack

        costs, every = self._costs, np.arange(len(self.table))
        rows: list[Any] = []

        def add(per_form: FloatArray, variable: int | None, row: NDArray[np.int64] | None = None) -> None:
            """One row, or the (F,) number of the `row` of each form: what the forms add is at most the variable."""
            row = np.zeros_like(every) if row is None else row
            count = int(row.max()) + 1
            last = [] if variable is None else [len(every) + variable] * count
            columns = np.concatenate([every, np.array(last, np.int64)])
            values = np.concatenate([per_form, np.full(len(last), -1.0)])
            where = np.concatenate([row, np.arange(len(last))])
            rows.append(csr_array((values, (where, columns)), (count, len(every) + 4)))

        own = costs.ms[:, costs.levels, :, every]  # (F, 2, P), of one shard at its own lane share
        mean = own * (self._parts / self._devices)[:, None, None]
        for phase in (FORWARD, BACKWARD):
            for piece in range(own.shape[2]):
                add(mean[:, phase, piece], phase)
            alone = own[:, phase].max(axis=1)
            add(alone, phase, self.table)
        for forward, back in self._exchanged_ms():
            add(forward, EXCHANGE)
            add(back, BACK)
        add(self._memory / self._room, None)
        matrix = vstack(rows, "csr")
        limits = np.zeros(matrix.shape[0])
        limits[-1] = 1.0
        return matrix, limits

    def _exchanged_ms(self) -> list[tuple[FloatArray, FloatArray]]:
        """For each link, (F,) ms of the exchanges of the mean device in the forward and in the backward."""
        cluster, devices = self._topology.cluster(), self._devices
        if devices == 1:
            return []
        sums = self._loads * (self._parts / devices)[:, None]
        peers, host = cluster.num_peers.min(), cluster.num_peers.max() + 1.0
        others = (devices - 1.0 - cluster.num_peers).min()
        outputs = sums[:, OUTPUT_BYTES_SENT] + sums[:, PARTIAL_BYTES]
        partial, gradient = sums[:, HOST_PARTIAL_BYTES] / host, sums[:, GRADIENT_BYTES]
        inside, across = float(cluster.intra_bytes_per_ms), float(cluster.inter_bytes_per_ms)
        of_hosts = partial * peers / inside
        found = [(outputs * (peers / devices) / inside, 2.0 * gradient * (peers / host) / inside)]
        if cluster.crosses_hosts:
            of_hosts = of_hosts + partial * (others / devices) / across
            far = 2.0 * gradient * (others / (devices * host)) / across
            found.append((outputs * (others / devices) / across, far))
        return [(sent + of_hosts, sent + of_hosts + more) for sent, more in found]
