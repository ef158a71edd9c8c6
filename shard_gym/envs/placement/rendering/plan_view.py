"""What pictures and texts show of a sharding plan: shards instead of tables, and how the split tables are split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import CostEstimate
from shard_gym.envs.placement.rendering.view import PlacementView, shorten
from shard_gym.sharding import ShardingPlan, plan_memory_used
from shard_gym.sharding.text import describe_plan, describe_sharding
from shard_gym.tasks import Task
from shard_gym.text import format_bytes

MAX_SPLITS = 8
"""Split tables shown one by one; of more, the largest."""


@dataclass(frozen=True, eq=False)
class PlanView(PlacementView):
    """A checked sharding plan and what it costs, shown like a placement; its `placement` is that of the first shards.

    Attributes:
        plan: the plan; a table without shards is not placed yet.
        split_rows: rows for split tables in a picture, at least; so all pictures of an episode have one size.
    """

    unit: ClassVar[str] = "shards"

    plan: ShardingPlan = field(default_factory=lambda: ShardingPlan(()))
    split_rows: int = 0

    @staticmethod
    def of_plan(task: Task, plan: ShardingPlan, cost: CostEstimate) -> PlanView:
        """The view of a checked plan of `task` that costs `cost`."""
        first = np.array([sharding.shards[0].device for sharding in plan.tables], np.int64)
        return PlanView(task, first, cost.phases_ms, cost.total_ms, plan=plan)

    @property
    def tables_per_device(self) -> NDArray[np.int64]:
        """(D,) int64, shards on each device."""
        return np.bincount(self.plan.shard_arrays()[:, 1], minlength=self.task.num_devices).astype(np.int64)

    @property
    def memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the shards on each device."""
        return plan_memory_used(self.plan, self.task.tables, self.task.num_devices)

    def describe_unplaced(self) -> str:
        """One line: the tables without a device; if there are none, how many are split, and by which types."""
        return super().describe_unplaced() if self.unplaced.size else describe_plan(self.plan)

    def splits(self) -> list[tuple[int, str]]:
        """At most `MAX_SPLITS` split tables, the largest first, and how each is split."""
        memory, names = self.task.tables.memory_bytes, self.task.tables.names
        largest = sorted(self.plan.split_tables, key=lambda table: -int(memory[table]))[:MAX_SPLITS]
        return [
            (
                table,
                f"{shorten(names[table], 24)} ({format_bytes(int(memory[table]))}): "
                f"{describe_sharding(self.plan.tables[table])}",
            )
            for table in largest
        ]
