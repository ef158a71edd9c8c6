"""Comparison of two plans of the same tables on the same devices: what they cost, hold and send, and which tables
differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.explain import SAME, Explanation
from shard_gym.problems.sharding import ShardingProblem
from shard_gym.sharding.plan import ONE_GROUP, Shard, TableSharding
from shard_gym.training_memory import training_memory


@dataclass(frozen=True)
class Change:
    """A table that two plans shard differently."""

    table: int  #: index of the table
    before: TableSharding
    after: TableSharding
    moved_bytes: int  #: of weights and optimizer states that a device holds afterwards, and did not hold before


@dataclass(frozen=True, eq=False)
class Totals:
    """An explained plan in a few numbers."""

    cost_ms: float
    phases_ms: FloatArray  #: (4,) float64, the slowest device of each phase
    index_exchange_ms: float  #: of the exchange of the indices, whether it is in the cost or not
    fullest_device: int  #: the device whose tables and buffers take most (`shard_gym.training_memory`)
    memory_bytes: int  #: what these take
    sent_bytes: FloatArray  #: (2,) float64, bytes an iteration of all devices inside domains, and across; no averaging

    @classmethod
    def of(cls, explanation: Explanation) -> Totals:
        """Those of an explained answer."""
        task = explanation.task
        held = training_memory(explanation.plan, task.tables, task.num_devices).total
        return cls(
            explanation.total_ms,
            np.asarray(explanation.phases_ms.max(axis=0)),
            explanation.index_exchange_ms,
            int(held.argmax()),
            int(held.max()),
            np.asarray(explanation.traffic.sum(axis=0)) * explanation.plan.groups.count,
        )


@dataclass(frozen=True, eq=False)
class Comparison:
    """A plan and the one that may take its place, of the same tables and devices, under one cost model."""

    before: Explanation
    after: Explanation
    before_name: str  #: a file, or an agent
    after_name: str

    @property
    def same_groups(self) -> bool:
        """Whether both plans are for the same groups of devices; only then their tables can be compared."""
        return self.before.plan.groups == self.after.plan.groups

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The tables that differ: those that move most bytes first, then the larger ones; none of other groups."""
        if not self.same_groups:
            return ()
        sizes = self.after.task.tables.memory_bytes
        pairs = zip(self.before.plan.tables, self.after.plan.tables, strict=True)
        found = [
            Change(table, before, after, _moved_bytes(before, after, int(sizes[table])))
            for table, (before, after) in enumerate(pairs)
            if _content(before) != _content(after)
        ]
        return tuple(sorted(found, key=lambda change: (-change.moved_bytes, -int(sizes[change.table]))))

    @cached_property
    def renumbered(self) -> bool:
        """Whether the plans differ in the numbers of devices, and of hosts, alone."""
        if not self.same_groups:
            return False
        task, same = self.after.task, ShardingProblem().canonical
        old_plan, new_plan = (replace(each.plan, groups=ONE_GROUP) for each in (self.before, self.after))
        costs = self.before.total_ms, self.after.total_ms
        alike = same(old_plan, task) == same(new_plan, task)  # whatever the hosts
        old, new = (np.sort(explanation.traffic[:, 1]) for explanation in (self.before, self.after))
        return alike and bool(np.isclose(*costs, rtol=SAME) and np.allclose(old, new, rtol=SAME))

    @cached_property
    def totals(self) -> tuple[Totals, Totals]:
        """Of the plan before, and of that after."""
        return Totals.of(self.before), Totals.of(self.after)


def _content(sharding: TableSharding) -> tuple[str, list[Shard]]:
    """What a sharding is, whatever the order of its shards; all types of one shard are the same."""
    return sharding.sharding_type if len(sharding.shards) > 1 else "", sorted(sharding.shards)


def _moved_bytes(before: TableSharding, after: TableSharding, table_bytes: int) -> int:
    """Bytes of the cells that are new on their devices, each with its share of the bytes of the table."""
    held, wanted = (np.array(each.shards, np.int64) for each in (before, after))
    kept = 0
    for device in np.unique(wanted[:, 0]):
        mine, old = wanted[wanted[:, 0] == device], held[held[:, 0] == device]
        kept += int((_shared(mine, old, 1) * _shared(mine, old, 3)).sum())
    areas, whole = wanted[:, 2] * wanted[:, 4], (held[:, 1] + held[:, 2]).max() * (held[:, 3] + held[:, 4]).max()
    return int((int(areas.sum()) - kept) * table_bytes // int(whole))


def _shared(mine: NDArray[np.int64], old: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """(M, N) int64, rows that M shards and N other ones share; columns if `first` is 3."""
    begin = np.maximum(mine[:, None, first], old[None, :, first])
    end = np.minimum((mine[:, first] + mine[:, first + 1])[:, None], (old[:, first] + old[:, first + 1])[None])
    return np.asarray(np.maximum(end - begin, 0))
