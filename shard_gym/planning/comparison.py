"""Comparison of two plans of the same tables on devices of one kind: what they cost, hold and send, which tables
differ, and what moves from one plan to the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.report import Grid, Printout
from shard_gym.common.text import (
    counted,
    format_bytes,
    format_gib,
    format_mib,
    format_ms,
    format_seconds,
)
from shard_gym.cost_models import PHASES
from shard_gym.cost_models.base.model import SAME
from shard_gym.planning.explanation import Explanation
from shard_gym.plans import Shard, TableSharding
from shard_gym.plans.memory import training_memory
from shard_gym.plans.migration import migration_seconds, moved_by_device
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP
from shard_gym.plans.text import brief_sharding
from shard_gym.tasks.problems.sharding import ShardingProblem

MAX_DEVICES_SHOWN = 16  # the most devices of which it is said what they send and receive
MAX_CHANGES = 8  # the most changed tables that are listed: those that move most bytes


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


def comparison_report(comparison: Comparison) -> Printout:
    """Both plans side by side, and the tables that differ."""
    report, table = Printout(), Grid()
    report.heading(f"\nCompared with {Path(comparison.before_name).name}\n")
    table.column()
    for name in _names(comparison):
        table.column(name, right=True, overflow="fold", min_width=8)
    table.column("new/old", right=True, no_wrap=True)
    one_domain = all(each.task.topology.num_domains == 1 for each in (comparison.before, comparison.after))
    as_many = comparison.totals[0].num_devices == comparison.totals[1].num_devices
    group = comparison.after.task.topology.fast_group
    rows = (_numbers(totals, group) for totals in comparison.totals)
    for (label, old, text), (_, new, new_text) in zip(*rows, strict=True):
        left_out = (
            (one_domain and label.startswith(ACROSS))
            or (as_many and label == DEVICES)
            or (label == INDICES and old == new == 0)
        )
        if not left_out:
            ratio = f"{new / old:.2f}" if old else "-"
            table.row(label, text, new_text, ratio, style="bold" if label == COST else "")
    report.add(table, _report_of_changes(comparison))
    return report


COST, INDICES, ACROSS, DEVICES = "cost, ms", "index exchange, ms", "sent across", "devices"


def _numbers(totals: Totals, group: str) -> list[tuple[str, float, str]]:
    """A label, a number and its text for each row of the comparison; `group` has fast links (`Topology.fast_group`)."""
    phases = [
        (f"  {name.replace('_comm', ' comm.')}", float(ms)) for name, ms in zip(PHASES, totals.phases_ms, strict=True)
    ]
    inside, across = totals.sent_bytes.tolist()
    return [
        (DEVICES, totals.num_devices, str(totals.num_devices)),
        *((label, ms, format_ms(ms)) for label, ms in [(COST, totals.cost_ms), *phases]),
        (INDICES, totals.index_exchange_ms, format_ms(totals.index_exchange_ms)),
        ("memory of the fullest device, GiB", totals.memory_bytes, format_gib(totals.memory_bytes)),
        (f"sent inside {group}s, MiB", inside, format_mib(inside)),
        (f"{ACROSS} {group}s, MiB", across, format_mib(across)),
    ]


def _names(comparison: Comparison) -> tuple[str, str]:
    return Path(comparison.before_name).name, Path(comparison.after_name).name


def _report_of_changes(comparison: Comparison) -> Printout:
    tables, changes, report, table = comparison.after.task.tables, comparison.changes, Printout(), Grid()
    if not comparison.same_groups:
        old, new = (counted(each.plan.groups.count, "group") for each in (comparison.before, comparison.after))
        report.line(f"\nThe first plan is for {old} of devices and the other for {new}.")
        return report
    if not changes:
        report.line(f"\nBoth plans are the same for all {counted(len(tables), 'table')}.")
        return report
    if comparison.renumbered:
        report.line("\nBoth plans are the same but for the numbers of devices.", "bold")
    report.heading(f"\n{len(changes)} of {counted(len(tables), 'table')} change, those that move most bytes first\n")
    table.column("table", overflow="fold", min_width=8)
    table.column("moved\nMiB", right=True, no_wrap=True)
    for name in _names(comparison):
        table.column(name, min_width=16)
    for change in changes[:MAX_CHANGES]:
        shardings = (brief_sharding(each) for each in (change.before, change.after))
        table.row(tables.names[change.table], format_mib(change.moved_bytes), *shardings)
    report.add(table)
    more, same = len(changes) - MAX_CHANGES, len(tables) - len(changes)
    left = [f"and {more} more"] * (more > 0) + [f"{counted(same, 'table')} without a change"] * (same > 0)
    if left:
        report.line("; ".join(left), "dim")
    report.add(_report_of_migration(comparison))
    return report


def _report_of_migration(comparison: Comparison) -> Printout:
    """What each device sends and receives until the tables are where the new plan has them, and how long it takes."""
    migration, report, table = comparison.migration, Printout(), Grid()
    if migration is None or not migration.received_bytes.any():
        return report
    total = format_bytes(int(migration.received_bytes.sum()))
    how_long = format_seconds(migration.seconds)
    report.heading(f"\nMoving from the old plan to the new one: {total}, {how_long} on the links\n")
    for name in ("", "sends\nMiB", "receives\nMiB"):
        table.column(name, right=True, no_wrap=True)
    most = np.maximum(migration.sent_bytes, migration.received_bytes)
    shown = np.sort(np.argsort(-most, kind="stable")[:MAX_DEVICES_SHOWN])
    for device in shown.tolist():
        sizes = (each[device] for each in (migration.sent_bytes, migration.received_bytes))
        table.row(f"device {device}", *(format_mib(int(size)) for size in sizes))
    report.add(table)
    if len(most) > len(shown):
        left = len(most) - len(shown)
        report.line(f"{counted(len(shown), 'device')} shown, those that move most; {left} left out.", "dim")
    return report


def compared_to_json(comparison: Comparison) -> dict[str, Any]:
    """The old plan in numbers, the ratio of costs, and every table that changes, as a JSON value.

    `migration` has the bytes that each device sends and receives until the tables are where the new plan has them, and
    the seconds that the slowest link takes. Tables of plans for other groups of devices are not compared.
    """
    old, new = comparison.totals
    inside, across = (old.sent_bytes / 2**20).tolist()
    tables, group = comparison.after.task.tables, comparison.after.task.topology.fast_group
    changes = {
        "changed_tables": [
            {
                "table": tables.names[change.table],
                "moved_bytes": change.moved_bytes,
                "before": _sharding_to_json(change.before),
                "after": _sharding_to_json(change.after),
            }
            for change in comparison.changes
        ],
        "unchanged_tables": len(tables) - len(comparison.changes),
        "migration": _migration_to_json(comparison.migration),
    }
    return {
        "with": comparison.before_name,
        "num_devices": old.num_devices,
        "cost_ms": old.cost_ms,
        "new_cost_over_this": new.cost_ms / old.cost_ms if old.cost_ms else None,
        "phases_ms": dict(zip(PHASES, old.phases_ms.tolist(), strict=True)),
        "index_exchange_ms": old.index_exchange_ms,
        "fullest_device": {"device": old.fullest_device, "bytes": old.memory_bytes},
        "sent_mib": {f"inside_{group}s": inside, f"across_{group}s": across},
        **(changes if comparison.same_groups else {}),
    }


def _migration_to_json(migration: Migration | None) -> dict[str, Any]:
    if migration is None:
        return {}
    return {
        "sent_bytes": migration.sent_bytes.tolist(),
        "received_bytes": migration.received_bytes.tolist(),
        "seconds": migration.seconds,
    }


def _sharding_to_json(sharding: TableSharding) -> dict[str, Any]:
    shards = [[int(number) for number in shard] for shard in sharding.shards]
    return {"sharding_type": sharding.sharding_type, "shards": shards}
