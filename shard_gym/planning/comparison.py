"""Comparison of two plans of the same tables on devices of one kind: what they cost, hold and send, which tables
differ, and what moves from one plan to the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base.model import SAME, FloatArray
from shard_gym.planning.explanation import Explanation
from shard_gym.plans.memory import training_memory
from shard_gym.plans.migration import migration_seconds, moved_by_device
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP, Shard, TableSharding
from shard_gym.tasks.problems.sharding import ShardingProblem


@dataclass(frozen=True)
class Change:
    """A table that two plans shard differently."""

    table: int  #: index of the table
    before: TableSharding
    after: TableSharding
    moved_bytes: int  #: of weights and optimizer states that a device holds afterwards, and did not hold before


@dataclass(frozen=True, eq=False)
class Migration:
    """What moves between D devices, those of both plans, until the tables are where another plan has them."""

    sent_bytes: NDArray[np.int64]  #: (D,) int64, weights and optimizer states that each device sends
    received_bytes: NDArray[np.int64]  #: (D,) int64, those that it receives
    seconds: float  #: that the slowest link is busy (`shard_gym.plans.migration`)


@dataclass(frozen=True, eq=False)
class Totals:
    """An explained plan in a few numbers."""

    num_devices: int  #: of all groups
    cost_ms: float
    phases_ms: FloatArray  #: (4,) float64, the slowest device of each phase
    index_exchange_ms: float  #: of the exchange of the indices, whether it is in the cost or not
    fullest_device: int  #: the device whose tables and buffers take most (`shard_gym.plans.memory`)
    memory_bytes: int  #: what these take
    sent_bytes: FloatArray  #: (2,) float64, bytes an iteration of all devices inside domains, and across; no averaging

    @classmethod
    def of(cls, explanation: Explanation) -> Totals:
        """Those of an explained answer."""
        task = explanation.task
        held = training_memory(explanation.plan, task.tables, task.num_devices).total
        return cls(
            task.num_devices * explanation.plan.groups.count,
            explanation.total_ms,
            np.asarray(explanation.phases_ms.max(axis=0)),
            explanation.index_exchange_ms,
            int(held.argmax()),
            int(held.max()),
            np.asarray(explanation.traffic.sum(axis=0)) * explanation.plan.groups.count,
        )


@dataclass(frozen=True, eq=False)
class Comparison:
    """A plan and the one that may take its place, of the same tables, under one cost model.

    Their devices and hosts are of one kind, and device d of both plans is the same; one plan may be for more devices.
    """

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
            Change(table, before, after, self._moved_bytes(table, int(self._moves(table)[:, 2].sum())))
            for table, (before, after) in enumerate(pairs)
            if _content(before) != _content(after)
        ]
        return tuple(sorted(found, key=lambda change: (-change.moved_bytes, -int(sizes[change.table]))))

    @cached_property
    def migration(self) -> Migration | None:
        """What moves from one plan to the other; None for other groups."""
        if not self.same_groups:
            return None
        topology = max((each.task.topology for each in (self.before, self.after)), key=lambda each: each.num_devices)
        moves = [(self._moves(change.table), change.table) for change in self.changes if change.moved_bytes]
        if not moves:
            none = np.zeros(topology.num_devices, np.int64)
            return Migration(none, none, 0.0)
        source, target, _ = np.concatenate([found for found, _ in moves]).T
        moved = [self._moved_bytes(table, cells) for found, table in moves for cells in found[:, 2].tolist()]
        sizes = np.array(moved, np.int64)
        seconds = float(migration_seconds(source, target, sizes, topology))
        return Migration(*moved_by_device(source, target, sizes, topology.num_devices), seconds)

    def _moves(self, table: int) -> NDArray[np.int64]:
        domains = max((each.task.topology.domains for each in (self.before, self.after)), key=len)
        return _moves(self.before.plan.tables[table], self.after.plan.tables[table], domains)

    def _moved_bytes(self, table: int, cells: int) -> int:
        """Bytes of so many cells of a table, each with its share of the table's bytes."""
        tables = self.after.task.tables
        whole = int(tables.num_embeddings[table]) * int(tables.embedding_dim[table])
        return cells * int(tables.memory_bytes[table]) // whole

    @cached_property
    def renumbered(self) -> bool:
        """Whether the plans differ in the numbers of devices, and of hosts, alone."""
        if not self.same_groups or self.before.task.num_devices != self.after.task.num_devices:
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


def _moves(before: TableSharding, after: TableSharding, domains: NDArray[np.int64]) -> NDArray[np.int64]:
    """(M, 3) int64, source and target of each move of cells that are new on their devices, and their number.

    A replica is sent by a device that has one, in the target's domain of fast links if there is any.

    Args:
        domains: (D,) int64, the domain of each device of both plans.
    """
    held, wanted = (np.array(each.shards, np.int64) for each in (before, after))
    cells = _shared(wanted, held, 1) * _shared(wanted, held, 3)
    source, target = (each.ravel() for each in np.broadcast_arrays(held[None, :, 0], wanted[:, None, 0]))
    moves = np.stack([source, target, cells.ravel()], axis=1)
    if before.sharding_type == DATA_PARALLEL:
        senders = _senders(held[:, 0], wanted[:, 0], domains)
        moves = moves.reshape(len(wanted), len(held), 3)[np.arange(len(wanted)), senders]
    return np.asarray(moves[(moves[:, 0] != moves[:, 1]) & (moves[:, 2] > 0)])


def _senders(holders: NDArray[np.int64], targets: NDArray[np.int64], domains: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) int64, which of the holders of replicas sends to each of N targets: itself, one in its domain, or any."""
    found = []
    for target in targets.tolist():
        for near in (holders == target, domains[holders] == domains[target], holders >= 0):
            if near.any():
                found.append(int(np.flatnonzero(near)[target % int(near.sum())]))
                break
    return np.array(found, np.int64)


def _shared(mine: NDArray[np.int64], old: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """(M, N) int64, rows that M shards and N other ones share; columns if `first` is 3."""
    begin = np.maximum(mine[:, None, first], old[None, :, first])
    end = np.minimum((mine[:, first] + mine[:, first + 1])[:, None], (old[:, first] + old[:, first + 1])[None])
    return np.asarray(np.maximum(end - begin, 0))
