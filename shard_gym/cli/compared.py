"""The plan that a user has, explained, and beside a new one: as tables on the terminal and as JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from shard_gym.agents import Agent
from shard_gym.cli.console import NONE, heading, new_table, print_table, sentence, warn
from shard_gym.cli.memory import rooms
from shard_gym.cli.misfit import missing_bytes
from shard_gym.cli.planning import OwnModel, planned
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.common.text import (
    counted,
    format_bytes,
    format_gib,
    format_mib,
    format_ms,
    format_percent,
    format_seconds,
)
from shard_gym.cost_models import PHASES
from shard_gym.hardware.topology import MAX_DEVICES
from shard_gym.interop.plan_files import devices_of_file
from shard_gym.planning.comparison import Comparison, Migration, Totals
from shard_gym.planning.explanation import Explanation, explain
from shard_gym.plans import ShardingPlan, TableSharding, plan_memory_used
from shard_gym.plans.hbm_split import allotted_caps
from shard_gym.plans.memory import training_memory
from shard_gym.plans.needs import HOST_MEMORY
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.plans.text import brief_sharding
from shard_gym.tasks.groups import caps_in
from shard_gym.tasks.problems import problem_of

TORCHREC = "torchrec"
"""Stands for the plan of TorchRec's planner where a file with a plan is asked for; it is also the planner's agent."""

MAX_DEVICES_SHOWN = 16  # the most devices of which it is printed what they send and receive
MAX_CHANGES = 8  # the most changed tables that are printed: those that move most bytes


def torchrec_plan(own: OwnModel, agent: Agent) -> ShardingPlan | None:
    """The plan of TorchRec's planner, the `agent`; None, and a line that says why, if it finds none."""
    try:
        answer = planned(own, TORCHREC, lambda _: agent).answer
    except NoPlacementFoundError as error:
        warn(f"There is nothing to compare with. {str(error).splitlines()[0]}")
        return None
    assert isinstance(answer, ShardingPlan)
    return answer


def explained_plan(own: OwnModel, plan: ShardingPlan) -> Explanation:
    """A plan of a user's tables explained, valid but for memory; one of whole tables as a placement.

    Raises:
        InvalidOptionError: it splits tables, and the cost model does not cost parts of tables; or it is for groups, and
            `own` does not say how often their copies are averaged.
    """
    topology, placement = own.topology, plan.placement if plan.groups == ONE_GROUP else None
    require_sync_every(own, plan)
    if topology.host is not None:
        buffers = int(training_memory(plan, own.tables, own.num_devices).buffers.max())
        topology = own.beside(min(buffers, own.one_room - 1))
    caps = topology.memory_cap_bytes
    needed = plan_memory_used(plan, own.tables, own.num_devices)
    if (needed > caps).any() and plan.groups == ONE_GROUP and (allotted := allotted_caps(needed, topology)) is not None:
        caps = allotted
    enough = np.maximum(caps, needed if plan.groups == ONE_GROUP else needed.max())  # of devices of all groups
    fits = np.array_equal(enough, caps)
    roomy = replace(topology, memory_cap_bytes=caps) if fits else topology.with_caps(enough)
    task = own.task(roomy, splittable=placement is None)
    answer = plan if placement is None else placement
    try:
        model = problem_of(task).model(own.model)
    except InvalidOptionError as error:
        raise InvalidOptionError(
            f"The plan splits tables, and the cost model {own.model.name!r} does not cost parts of tables. Give a plan "
            "of whole tables, or leave out --cost-model."
        ) from error
    explanation = explain(task, answer, model)
    return replace(explanation, own_caps=caps_in(plan.groups, caps))


def require_sync_every(own: OwnModel, plan: ShardingPlan) -> None:
    """Raise InvalidOptionError for a plan for groups if `own` does not say how often their copies are averaged."""
    if plan.groups != ONE_GROUP and not own.sync_every:
        raise InvalidOptionError(
            f"The plan is for {plan.groups.count} groups of devices with a copy of all tables each. Say with "
            "--sync-every after how many iterations the copies are averaged."
        )


def on_devices_of_file(own: OwnModel, path: str) -> OwnModel:
    """`own` with as many devices as the old plan in the file at `path` is for; warns if the new one has others.

    Of a file that does not say how many these are, they are those of `own` if they may be, or all of the hosts up to
    the last device with a shard; of a host, the next power of two.
    """
    told, asked = devices_of_file(path), own.num_devices
    size = own.topology.devices_per_host
    within = min(1 << max(told.number - 1, 0).bit_length(), size)
    most = told.number if told.is_known else within if told.number <= size else -(-told.number // size) * size
    if told.number <= asked <= most or not 1 <= most <= MAX_DEVICES:
        return own
    if told.is_known:
        found = f"is a plan for {counted(most, 'device')}"
    else:
        found = f"names no device above {told.number - 1}, so it is taken for a plan for {counted(most, 'device')}"
    warn(f"{path} {found}, and the new one is for {asked}. Each is costed on its own devices.")
    return replace(own, num_devices=most)


def needs_host_memory(own: OwnModel, plan: ShardingPlan, hbm_rows: NDArray[np.int64] | None) -> bool:
    """Whether a plan has rows in host memory, of which `own` has some: as its file says, or as the tables need it.

    Args:
        hbm_rows: (S,) int64, rows of each shard in HBM, as its file says; None if it does not.
    """
    if not own.host_bytes or HOST_MEMORY not in own.model.supports:
        return False
    away = hbm_rows is not None and bool((hbm_rows < plan.shard_arrays()[:, 3]).any())
    return away or missing_bytes(own.tables, own.in_hbm.topology) > 0


def warn_if_other_split(explanation: Explanation, name: str, hbm_rows: NDArray[np.int64] | None) -> None:
    """Warn if the file `name` keeps another part of the rows in HBM than the split that is costed."""
    if hbm_rows is None or np.array_equal(hbm_rows, explanation.split.hbm_rows):
        return
    columns, has = explanation.shards[:, 5], explanation.shards[:, 3]
    whole = int((has * columns).sum())
    given, best = (int((rows * columns).sum()) / whole for rows in (hbm_rows, explanation.split.hbm_rows))
    warn(
        f"{name} keeps {format_percent(given)} of the rows' bytes in HBM. What follows is of the best split of the "
        f"same plan, which keeps {format_percent(best)} there."
    )


def warn_if_over(explanation: Explanation, name: str, room: NDArray[np.int64]) -> bool:
    """Warn if tables and buffers of the plan `name` exceed (D,) `room` bytes on a device; returns whether they do."""
    memory = training_memory(explanation.plan, explanation.task.tables, explanation.task.num_devices)
    has = rooms(explanation, room)
    device = int(memory.buffers.argmax())
    buffers = memory.buffers[device]
    if explanation.task.topology.host is not None and buffers >= room[device]:
        warn(
            f"{name} exceeds the memory: the buffers of a training step need {format_bytes(buffers)} of the HBM of "
            f"device {device}, which has {format_bytes(room[device])} for them and for rows. Its cost is "
            "that of all rows in host memory."
        )
        return True
    over = memory.total - has
    device = int(over.argmax())
    if over[device] <= 0:
        return False
    others = int((over > 0).sum()) - 1
    more = f" So {'does' if others == 1 else 'do'} {counted(others, 'other device')}." * (others > 0)
    warn(
        f"{name} exceeds the memory: device {device} would hold {format_bytes(memory.tables[device])} of tables and "
        f"{format_bytes(memory.buffers[device])} of buffers, {format_bytes(over[device])} more than the "
        f"{format_bytes(has[device])} for both.{more}"
    )
    return True


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print both plans side by side, and the tables that differ."""
    heading(console, f"\nCompared with {Path(comparison.before_name).name}\n")
    table = new_table()
    table.add_column("")
    for name in _names(comparison):
        table.add_column(name, justify="right", overflow="fold", min_width=8)
    table.add_column("new/old", justify="right", no_wrap=True)
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
            ratio = f"{new / old:.2f}" if old else NONE
            table.add_row(label, text, new_text, ratio, style="bold" if label == COST else "")
    print_table(console, table)
    _print_changes(console, comparison)


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


def _names(comparison: Comparison) -> tuple[Text, Text]:
    return sentence(Path(comparison.before_name).name), sentence(Path(comparison.after_name).name)


def _print_changes(console: Console, comparison: Comparison) -> None:
    tables, changes = comparison.after.task.tables, comparison.changes
    if not comparison.same_groups:
        old, new = (counted(each.plan.groups.count, "group") for each in (comparison.before, comparison.after))
        console.print(sentence(f"\nThe first plan is for {old} of devices and the other for {new}."))
        return
    if not changes:
        console.print(sentence(f"\nBoth plans are the same for all {counted(len(tables), 'table')}."))
        return
    if comparison.renumbered:
        console.print(sentence("\nBoth plans are the same but for the numbers of devices.", "bold"))
    heading(console, f"\n{len(changes)} of {counted(len(tables), 'table')} change, those that move most bytes first\n")
    table = new_table()
    table.add_column("table", overflow="fold", min_width=8)
    table.add_column("moved\nMiB", justify="right", no_wrap=True)
    for name in _names(comparison):
        table.add_column(name, min_width=16)
    for change in changes[:MAX_CHANGES]:
        shardings = (brief_sharding(each) for each in (change.before, change.after))
        table.add_row(sentence(tables.names[change.table]), format_mib(change.moved_bytes), *map(sentence, shardings))
    print_table(console, table)
    more, same = len(changes) - MAX_CHANGES, len(tables) - len(changes)
    left = [f"and {more} more"] * (more > 0) + [f"{counted(same, 'table')} without a change"] * (same > 0)
    if left:
        console.print(sentence("; ".join(left), "dim"))
    _print_migration(console, comparison)


def _print_migration(console: Console, comparison: Comparison) -> None:
    """What each device sends and receives until the tables are where the new plan has them, and how long it takes."""
    migration = comparison.migration
    if migration is None or not migration.received_bytes.any():
        return
    total = format_bytes(int(migration.received_bytes.sum()))
    how_long = format_seconds(migration.seconds)
    heading(console, f"\nMoving from the old plan to the new one: {total}, {how_long} on the links\n")
    table = new_table()
    for name in ("", "sends\nMiB", "receives\nMiB"):
        table.add_column(name, justify="right", no_wrap=True)
    most = np.maximum(migration.sent_bytes, migration.received_bytes)
    shown = np.sort(np.argsort(-most, kind="stable")[:MAX_DEVICES_SHOWN])
    for device in shown.tolist():
        sizes = (each[device] for each in (migration.sent_bytes, migration.received_bytes))
        table.add_row(f"device {device}", *(format_mib(int(size)) for size in sizes))
    print_table(console, table)
    if len(most) > len(shown):
        left = len(most) - len(shown)
        console.print(sentence(f"{counted(len(shown), 'device')} shown, those that move most; {left} left out.", "dim"))


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
