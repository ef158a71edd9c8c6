"""`WholeTables`: a plan whose split tables become whole one by one, and what each then costs on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base.model import AdditiveCostModel, loads_of_shards
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan, table_wise
from shard_gym.tables import Tables


class WholeTables:
    """A checked plan for D devices, as it is now; memory is that of tables in HBM, without buffers."""

    def __init__(self, plan: ShardingPlan, tables: Tables, topology: Topology, model: AdditiveCostModel) -> None:
        self.plan, self._tables, self._topology, self._model = plan, tables, topology, model
        self._whole = model.loads(tables, topology)
        self._loads, shards = loads_of_shards(model, plan, tables, topology)
        self._table, self._device = shards[:, 0], shards[:, 1]
        self._bytes = shards[:, 3] * tables.workload.select(shards[:, 0]).row_bytes(shards[:, 5])

    def left_bytes(self, table: int) -> IntArray:
        """(D,) int64, what each device has left with `table` whole there and its shards gone; negative: no room."""
        others = self._table != table
        left: IntArray = self._topology.memory_cap_bytes - self._tables.memory_bytes[table]
        np.subtract.at(left, self._device[others], self._bytes[others])
        return left

    def costs_ms(self, table: int, devices: IntArray) -> FloatArray:
        """(M,) ms, the costs with `table` whole on each of M devices, and all else as it is."""
        model, others = self._model, self._table != table
        rest = model.reduce(self._loads[others], self._device[others], self._topology.num_devices)
        new = model.add(rest[devices], self._whole[table])
        return model.costs_with_one(self._topology.cluster(), rest, model.device_phases(rest), devices, new)[1]

    def with_whole(self, table: int, device: int) -> ShardingPlan:
        """The plan with `table` whole on `device`."""
        shardings = list(self.plan.tables)
        shardings[table] = table_wise(self._tables, table, device)
        return replace(self.plan, tables=tuple(shardings))

    def make_whole(self, table: int, device: int) -> None:
        """Put `table` whole on `device`."""
        self.plan, others = self.with_whole(table, device), self._table != table
        self._loads = np.concatenate([self._loads[others], self._whole[[table]]])
        self._table = np.append(self._table[others], table)
        self._device = np.append(self._device[others], device)
        self._bytes = np.append(self._bytes[others], self._tables.memory_bytes[table])
