"""TorchRec's own planner, told the hardware, the memory, the pooling factors and the optimizer of a task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import ModuleType

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import (
    InvalidPlanError,
    MemoryExceededError,
    NoPlacementFoundError,
    missing_torchrec,
    unknown_name,
)
from shard_gym.hardware import Topology
from shard_gym.interop.torchrec import from_torchrec
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, TABLE_WISE
from shard_gym.plans.variants import checked_sharding_types
from shard_gym.tables import Tables
from shard_gym.tasks import Task

BUFFERS = (1.0, 2.0, 4.0, 8.0, 0.5, 0.0)
"""TorchRec counts buffers of inputs and outputs as memory, and 4 bytes for each row that a cache may hold; memory caps
of tasks do not. So it is told a larger cap, by these multiples of an even share of such bytes, until a plan fits."""

SORTS = ("storage", "perf")


class TorchRecAgent(Agent):
    """The planner of TorchRec with the settings that it ships with. It asks no cost model of ShardGym.

    Nothing of the memory is reserved, because all of it is for tables. Of TorchRec's sharding types it may use those
    that ShardGym's plans have, and of its kernels those with the rows in HBM; with host memory, those with the rows
    there, too. Which rows are in HBM is then the best split of each device, as for all agents. Of the constraints of a
    task it is told the sharding types, the narrowest shards and the kernels; it knows no devices of a table, and no
    tables that stay together or apart, so a plan that breaks those counts as none.

    Args:
        sharding_types: those it may use.
        min_partition: the least columns of a shard.
        sort_by: the order in which shards find their devices, the largest first: by "storage", or by "perf", TorchRec's
            estimate of their time.

    Raises:
        InvalidOptionError, UnknownNameError: an option is not valid.
        MissingExtraError: TorchRec is not installed.
    """

    name = "torchrec"
    offloads = False  # whether it scales caches up where there is host memory

    def __init__(
        self, sharding_types: Collection[str] = SHARDING_TYPES, min_partition: int = 128, sort_by: str = "storage"
    ) -> None:
        self.sharding_types = checked_sharding_types(sharding_types)
        self.min_partition = checked_count("min_partition", min_partition, least=4)
        if sort_by not in SORTS:
            raise unknown_name("order of TorchRec's partitioner", sort_by, SORTS)
        self.sort_by = sort_by
        _calls(self.name)

    def place(self, task: Task) -> Placement:
        """The planner with table_wise alone."""
        placement = self._plan(task, (TABLE_WISE,)).placement
        assert placement is not None
        return placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._plan(task, self.sharding_types)

    def _plan(self, task: Task, sharding_types: tuple[str, ...]) -> ShardingPlan:
        calls, topology = _calls(self.name), task.topology
        tables = replace(task.tables, names=tuple(f"table_{table}" for table in range(task.num_tables)))  # must differ
        offloads = self.offloads and topology.host is not None
        buffers = _uncounted_bytes(tables, topology) / topology.num_devices
        failure = ""
        for multiple in BUFFERS:
            extra = multiple * buffers
            try:
                found = calls.planned(
                    replace(task, tables=tables), extra, sharding_types, self.min_partition, self.sort_by, offloads
                )
                plan = from_torchrec(found, tables, topology)
                task.require_constraints(plan)
                return plan
            except (InvalidPlanError, MemoryExceededError, calls.PlannerError) as error:
                failure = str(error).split("\n", 1)[0]
        wanted = "fits" if task.constraints is None else "fits and keeps to its constraints"
        raise NoPlacementFoundError(f"TorchRec's planner found no plan of task {task.name!r} that {wanted}: {failure}")


class OffloadTorchRecAgent(TorchRecAgent):
    """The planner of TorchRec with its proposer of caches in HBM for tables in host memory.

    `EmbeddingOffloadScaleupProposer` is told the distinct rows of a batch and the miss rates of an LRU cache of each
    table, and scales the caches up from the smallest. It takes half a minute for 50 tables. Without host memory the
    agent answers as `torchrec` does.
    """

    name = "torchrec-offload"
    offloads = True


class TunedTorchRecAgent(TorchRecAgent):
    """The planner of TorchRec with settings that are better on training tasks than those that it ships with.

    Tasks for which it then finds no plan are answered with the settings that it ships with.
    """

    # Chosen on 23 November 2026 by costs on the first training tasks of shard-4 (8), shard-8 (6) and shard-generalize
    # (6 of at most 500 tables x devices), one setting for all suites: mean cost 9.09 -> 8.61, 10.18 -> 8.08 and
    # 29.69 -> 27.21 ms. Tried: min_partition 16, 32, 64 and 128, both orders, and with table_wise and column_wise all
    # others, data_parallel, the row-wise ones, and none. Each is:
    # shard-gym evaluate --agent torchrec --split train --tasks 8 --suite shard-4 --option min_partition=32
    #   --option sort_by=perf --option sharding_types=table_wise,column_wise,data_parallel
    name = "torchrec-tuned"

    def __init__(self) -> None:
        super().__init__((TABLE_WISE, COLUMN_WISE, DATA_PARALLEL), 32, "perf")
        self._shipped = TorchRecAgent()

    @override
    def place(self, task: Task) -> Placement:
        try:
            return super().place(task)
        except NoPlacementFoundError:
            return self._shipped.place(task)

    @override
    def plan(self, task: Task) -> ShardingPlan:
        try:
            return super().plan(task)
        except NoPlacementFoundError:
            return self._shipped.plan(task)


def _uncounted_bytes(tables: Tables, topology: Topology) -> float:
    """Bytes on all devices together that TorchRec counts and caps do not: outputs, indices and the maps of caches."""
    outputs = 4.0 * tables.embedding_dim * tables.outputs_per_batch
    maps = 0.0 if topology.host is None else 4.0 * float(tables.num_embeddings.sum())
    return maps + float((outputs + 8.0 * tables.lookups_per_batch).sum())


def _calls(name: str) -> ModuleType:
    """What calls TorchRec; MissingExtraError if it is not installed."""
    try:
        from shard_gym.agents.published import torchrec_calls
    except ImportError as error:
        raise missing_torchrec(f"The agent {name!r}") from error
    return torchrec_calls
