"""The planner of NVIDIA HugeCTR's DLRM sample, for plans of column shards (samples/dlrm/sharding/planner.py)."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.common.arrays import IntArray
from shard_gym.common.checks import checked_count, is_not_negative
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidPlanError,
    MemoryExceededError,
    NoPlacementFoundError,
    short_repr,
)
from shard_gym.plans import ShardingPlan, TableSharding, check_plan, column_wise, data_parallel, row_wise, table_wise
from shard_gym.plans.column_levels import UNIT, near_equal_widths
from shard_gym.plans.placement import Placement
from shard_gym.plans.variants import checked_max_shards
from shard_gym.tasks import Task

_Candidate = tuple[float, ShardingPlan]  # the cost of the costliest device, in lookups of a sample, and the plan


class HugeCTRAgent(Agent):
    """Greedy by lookups; then the shard with most lookups is split, up to `iterations` times. It asks no cost model.

    A device costs the lookups of its shards, each table's divided by its number of shards, plus a constant for each
    shard. Tables come by descending lookups, each to the cheapest device with room and no shard of the same table.
    Tables smaller than `replicated_gb` are data-parallel, unless no such plan fits. The plan with the cheapest
    costliest device is returned; one of them is that with all other tables row-wise.

    HugeCTR splits a table's rows over as many devices as it has shards. TorchRec has no such plan, so columns are split
    here. Dims are ignored, as there, where all are equal.

    Args:
        replicated_gb: tables of fewer gigabytes (1e9 bytes) are data-parallel; as in the configuration for DGX H100.
        work_ratio: bytes that move in memory for each that is exchanged; HugeCTR's default. The constant for each shard
            is the ratio of the bandwidths of memory and link, over this.
        iterations: HugeCTR's.
        max_shards: column shards of a table at most, a power of two.

    Raises:
        InvalidOptionError: a number is not valid.
    """

    name = "hugectr"

    def __init__(
        self, replicated_gb: float = 0.008, work_ratio: float = 4.0, iterations: int = 20, max_shards: int = 8
    ) -> None:
        for name, value in (("replicated_gb", replicated_gb), ("work_ratio", work_ratio)):
            if not is_not_negative(value) or (name == "work_ratio" and value == 0):
                least = "above 0" if name == "work_ratio" else "of at least 0"
                raise InvalidOptionError(f"{name} must be a number {least}, not {short_repr(value)}.")
        self.replicated_gb, self.work_ratio = replicated_gb, work_ratio
        self.iterations = checked_count("iterations", iterations)
        self.max_shards = checked_max_shards(max_shards)

    def place(self, task: Task) -> Placement:
        """The placement of the same rule without splits and replicas."""
        found = _Rule(task, 0.0, self.work_ratio, 1).candidates(1)
        if not found:
            raise NoPlacementFoundError(f"Agent 'hugectr' found no placement of whole tables of task {task.name!r}.")
        placement = found[0][1].placement
        assert placement is not None
        return placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        for replicated_gb in (self.replicated_gb, 0.0):
            rule = _Rule(task, replicated_gb * 1e9, self.work_ratio, self.max_shards)
            if found := [*rule.all_row_wise(), *rule.candidates(self.iterations)]:
                return min(found, key=lambda candidate: candidate[0])[1]
        raise NoPlacementFoundError(f"Agent 'hugectr' found no plan of task {task.name!r} that fits the memory.")


class _Rule:
    def __init__(self, task: Task, replicated_bytes: float, work_ratio: float, max_shards: int) -> None:
        self._tables, self._topology, self._max_shards = task.tables, task.topology, max_shards
        self._replicated = task.tables.memory_bytes < replicated_bytes
        device, links = task.topology.device, task.topology.links
        self._shard_cost = device.dram_gb_per_s / links.intra_host_gb_per_s / work_ratio
        self._splits = np.ones(task.num_tables, np.int64)

    def all_row_wise(self) -> list[_Candidate]:
        """The plan with the other tables row-wise, or replicated if they have too few rows; none if it has no room."""
        shardings = [self._replica(table) for table in range(len(self._tables))]
        others = np.flatnonzero(~self._replicated)
        for table in others.tolist():
            with suppress(InvalidPlanError):
                shardings[table] = row_wise(self._tables, table, self._topology)
        lookups = self._tables.pooling_factor[others].sum() / self._topology.num_devices
        return self._if_valid(float(lookups + self._shard_cost * len(others)), shardings)

    def candidates(self, iterations: int) -> list[_Candidate]:
        found: list[_Candidate] = []
        for _ in range(iterations):
            cost, devices, stuck = self._greedily()
            if stuck is None:
                found += self._if_valid(cost, [self._sharding(table, devices) for table in range(len(self._tables))])
                splittable = [table for table in self._by_lookups() if self._can_split(table)]
                if not splittable:
                    break
                self._splits[splittable[0]] *= 2
            elif self._can_split(stuck):
                self._splits[stuck] *= 2
            else:
                break
        return found

    def _by_lookups(self) -> IntArray:
        """The tables that are not replicated, those with the most lookups in a shard first."""
        tables = np.flatnonzero(~self._replicated)
        return tables[np.argsort(-(self._tables.pooling_factor / self._splits)[tables], kind="stable")]

    def _can_split(self, table: int) -> bool:
        twice = 2 * int(self._splits[table])
        units = int(self._tables.embedding_dim[table]) // UNIT
        return twice <= min(units, self._max_shards, self._topology.num_devices)

    def _greedily(self) -> tuple[float, dict[int, list[int]], int | None]:
        """The cost of the costliest device, the devices of each table, and the table for which there is no room."""
        costs = np.zeros(self._topology.num_devices)
        memory = self._shard_bytes()
        left = self._topology.memory_cap_bytes - self._tables.memory_bytes[self._replicated].sum()
        devices: dict[int, list[int]] = {}
        for table in self._by_lookups().tolist():
            own = devices[table] = []
            for needed in memory[table]:
                free = np.flatnonzero((left >= needed) & ~np.isin(np.arange(len(costs)), own))
                if not free.size:
                    return 0.0, devices, table
                device = int(free[costs[free].argmin()])
                own.append(device)
                left[device] -= needed
                costs[device] += self._tables.pooling_factor[table] / self._splits[table] + self._shard_cost
        return float(costs.max()), devices, None

    def _sharding(self, table: int, devices: dict[int, list[int]]) -> TableSharding:
        if self._replicated[table]:
            return self._replica(table)
        own = devices[table]
        if len(own) == 1:
            return table_wise(self._tables, table, own[0])
        return column_wise(
            self._tables, table, own, near_equal_widths(int(self._tables.embedding_dim[table]), len(own))
        )

    def _shard_bytes(self) -> list[list[int]]:
        """Bytes of each column shard of each table, with the optimizer's state."""
        tables, each = self._tables, zip(self._tables.embedding_dim.tolist(), self._splits.tolist(), strict=True)
        widths = [near_equal_widths(dim, parts) for dim, parts in each]
        table = np.repeat(np.arange(len(tables)), self._splits)
        sizes = tables.num_embeddings[table] * tables.workload.select(table).row_bytes(np.concatenate(widths))
        return [some.tolist() for some in np.split(sizes, np.cumsum(self._splits)[:-1])]

    def _replica(self, table: int) -> TableSharding:
        return data_parallel(self._tables, table, self._topology)

    def _if_valid(self, cost: float, shardings: list[TableSharding]) -> list[_Candidate]:
        try:
            return [(cost, check_plan(ShardingPlan(tuple(shardings)), self._tables, self._topology))]
        except MemoryExceededError:
            return []
