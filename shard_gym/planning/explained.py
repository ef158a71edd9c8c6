"""What an explanation says: its devices, cost, splits, moves, traffic and replicas, as a report and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.common.report import Cell, Grid, Printout
from shard_gym.common.text import counted, format_change, format_gib, format_mib, format_ms
from shard_gym.cost_models.analytical.index_exchange import EXPOSED
from shard_gym.interop.replicas import replicas_note, replicated_tables
from shard_gym.planning.explanation import Explanation
from shard_gym.planning.memory import host_to_json
from shard_gym.planning.trust import evidence_on, evidence_sentence, is_analytical
from shard_gym.plans import plan_to_json
from shard_gym.plans.files import GROUPS, HBM_ROWS, distinct_names, groups_to_json
from shard_gym.plans.placement import to_plan
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, ONE_GROUP, TABLE_WISE
from shard_gym.tasks import Task

NAME_END = 8  # characters at the end of a name, which are shown where it has no room beside hosts
MAX_SPLITS = 8  # the most split tables that are printed: those that gain most, where that is known
MIN_GAIN_MS = 1e-9  # a move that gains less is rounding error

NO_MOVES = "Moves are not listed: what they gain is not measured. `cost_model='analytical'` lists estimates."


def task_heading(task: Task, how: str) -> str:
    """Which tables on which devices, and `how` they are answered, in two lines."""
    sequences = int(np.count_nonzero(~task.tables.pooled))
    tables = counted(task.num_tables, "table") + f", {sequences} of them sequences," * (sequences > 0)
    served = " served," * (not task.tables.workload.training)
    return f"{task.name}: {tables}{served} on {task.num_devices} x {task.topology.device.name},\n{how}\n"


def explanation_report(
    explanation: Explanation, devices: int = 16, named: int = 2, moves: int = 0, *, narrow: bool = False
) -> Printout:
    """`devices` with `named` shards each, the cost, the splits, and at most `moves` that gain.

    Args:
        narrow: whether names and parts of tables have no room beside hosts.
    """
    report = _report_of_devices(explanation, devices, named, narrow)
    report.add(_report_of_totals(explanation))
    if explanation.noun == "plan":
        report.add(_report_of_splits(explanation))
    if moves:
        report.add(_report_of_moves(explanation, moves))
    return report


def _report_of_devices(explanation: Explanation, count: int, named: int, narrow: bool) -> Printout:
    """A row for each device: phases (a star on the slowest device), memory and costliest shards."""
    caps, phases_ms = explanation.memory_cap_bytes, explanation.phases_ms
    hosts = [str(host) for host in explanation.hosts] if explanation.task.topology.num_hosts > 1 else []
    slowest = [f"{format_ms(ms)} " for ms in phases_ms.max(axis=0)]
    report, table = Printout(), Grid(footer=True)
    table.column("\ndev", "max", right=True, no_wrap=True)
    if hosts:
        table.column("\nhost", right=True, no_wrap=True)
    for name, longest in zip(("\nforw. ", "forw. \ncomm ", "backw. \ncomm ", "\nbackw. "), slowest, strict=True):
        table.column(name, longest, right=True, no_wrap=True)
    table.column("memory/cap\nGiB", right=True, no_wrap=True)
    held = "tables" if explanation.noun == "placement" else "shards"
    table.column(f"\n{held}", str(len(explanation.shards)), right=True, no_wrap=True)
    if named:
        alone = "ms alone of" if explanation.moves is not None else "estimated ms alone of"
        table.column(f"{alone}\nthe costliest", overflow="ellipsis", min_width=len("costliest"))
    shown = explanation.busiest(count)
    for device in shown.tolist():
        phases = [
            Cell(f"{format_ms(ms)}*", "critical") if critical else f"{format_ms(ms)} "
            for ms, critical in zip(phases_ms[device], explanation.critical[device], strict=True)
        ]
        used, cap = explanation.memory_used[device], caps[device]
        memory = Cell(f"{format_gib(used)}/{format_gib(cap)}", "failed" if used > cap else "")
        own = explanation.shards_on(device)
        costliest = [_named(explanation, own[:named].tolist(), narrow and bool(hosts))] if named else []
        table.row(str(device), *hosts[device : device + 1], *phases, memory, str(len(own)), *costliest)
    report.add(table)
    report.line("* the other devices wait for this one in this phase", "dim")
    left = explanation.task.num_devices - len(shown)
    if left:
        report.line(f"{counted(len(shown), 'device')} shown, the most loaded; {left} left out.", "dim")
    return report


def _named(explanation: Explanation, shards: list[int], narrow: bool) -> Cell:
    label = _end_of_name if narrow else _label
    lines = (f"{format_ms(explanation.single_shard_ms[shard])} {label(explanation, shard)}" for shard in shards)
    return Cell("\n".join(lines), no_wrap=True)


def _end_of_name(explanation: Explanation, shard: int) -> str:
    name = explanation.task.tables.names[int(explanation.shards[shard, 0])]
    return name if len(name) <= NAME_END else f"…{name[1 - NAME_END :]}"


def _label(explanation: Explanation, shard: int) -> str:
    table, _, _, num_rows, first, columns = explanation.shards[shard].tolist()
    sharding = explanation.plan.tables[table]
    blocks = sum(each.num_rows > 0 for each in sharding.shards if each.first_column == first)
    rows = f" rows 1/{blocks}" if num_rows else " no rows"
    of_columns = f", {columns} cols" * (sharding.sharding_type == GRID_SHARD)
    part = {TABLE_WISE: "", COLUMN_WISE: f" {columns} cols", DATA_PARALLEL: " replica"}
    return f"{explanation.task.tables.names[table]}{part.get(sharding.shard_type, rows + of_columns)}"


def _report_of_totals(explanation: Explanation) -> Printout:
    total, report, grid = explanation.total_ms, Printout(), Grid(header=False)
    for right in (False, True, False):
        grid.column(right=right, min_width=1)
    grid.row("cost", f"{format_ms(total)} ms", "", style="bold")
    of_whole = "; split tables may cost less" * (explanation.noun == "placement")
    for name, value, scope in (
        ("best known", explanation.best_known_ms, ""),
        ("lower bound", explanation.lower_bound_ms, of_whole),
    ):
        if value is not None:
            change = f"this {explanation.noun} {format_change(total / value - 1)}{scope}"
            grid.row(name, f"{format_ms(value)} ms", change)
    report.line()
    report.add(grid)
    if explanation.task.num_devices > 1:
        report.line(f"\n{index_exchange_sentence(explanation)}")
    task = explanation.task
    report.line(f"\n{evidence_sentence(task.topology, explanation.cost_model, task.tables.workload)}", "dim")
    return report


def index_exchange_sentence(explanation: Explanation) -> str:
    """How long the exchange of the indices takes, and the cost with and without it."""
    took, total = explanation.index_exchange_ms, explanation.total_ms
    if not took:
        return "No indices are exchanged."
    mode = "Train" if explanation.task.tables.workload.training else "Eval"
    pipeline = f"a pipelined input ({mode}PipelineSparseDist)"
    estimated = "" if explanation.cost_model.startswith("analytical") else " (estimated)"
    if explanation.index_exchange == EXPOSED:
        without = f"{pipeline} hides it, and leaves {format_ms(total - took)} ms."
        return f"Index exchange {format_ms(took)} ms{estimated}, in this cost; {without}"
    return (
        f"Index exchange {format_ms(took)} ms{estimated}, hidden by {pipeline}; without one an iteration takes "
        f"{format_ms(total)} + {format_ms(took)} = {format_ms(total + took)} ms."
    )


def _report_of_splits(explanation: Explanation) -> Printout:
    kinds: dict[str, int] = {}
    for sharding in explanation.plan.tables:
        kinds[sharding.sharding_type] = kinds.get(sharding.sharding_type, 0) + 1
    report, table = Printout(), Grid()
    report.line()
    report.line(", ".join(f"{count} {kind}" for kind, count in kinds.items()), "dim")
    if explanation.plan.groups != ONE_GROUP:
        report.line(groups_sentence(explanation))
    if not explanation.splits:
        return report
    knows = explanation.moves is not None  # what splits gain
    report.heading(f"\nSplit or replicated tables ({len(explanation.splits)}){', by what that gains' * knows}\n")
    for name, right in (("table", False), ("type", False), ("shards", True), *([("gain ms", True)] if knows else [])):
        table.column(name, right=right, no_wrap=True, overflow="ellipsis")
    for split in explanation.splits[:MAX_SPLITS]:
        sharding = explanation.plan.tables[split.table]
        gain = "too large whole" if split.gain_ms is None else format_ms(split.gain_ms)
        name = explanation.task.tables.names[split.table]
        table.row(name, sharding.sharding_type, str(len(sharding.shards)), *([gain] if knows else []))
    report.add(table)
    left = len(explanation.splits) - MAX_SPLITS
    if left > 0:
        report.line(f"{left} more.", "dim")
    return report


def groups_sentence(explanation: Explanation) -> str:
    """How many groups of devices hold all tables, and what averaging them costs."""
    groups, replicas = explanation.plan.groups, explanation.task.topology.replicas
    assert replicas is not None
    size, every = counted(explanation.task.num_devices, "device"), counted(replicas.sync_every, "iteration")
    return (
        f"{groups.count} {groups.layout} groups of {size} each hold all tables; this is one of them. Averaging them "
        f"every {every} costs {format_ms(explanation.sync_ms)} of {format_ms(explanation.total_ms)} ms."
    )


def _report_of_moves(explanation: Explanation, count: int) -> Printout:
    report, table = Printout(), Grid()
    report.line()
    if explanation.moves is None:
        report.line(NO_MOVES, "dim")
        return report
    gaining = [move for move in explanation.moves if move.gain_ms > MIN_GAIN_MS]
    tried, noun = len(explanation.moves), "table" if explanation.noun == "placement" else "shard"
    if not gaining:
        none_gains = f"No move of a {noun} on a starred device gains ({counted(tried, noun)} tried)."
        report.line(none_gains if tried else f"No {noun} on a starred device fits elsewhere.")
        return report
    report.heading(f"Moves of one {noun} that gain ({len(gaining)} of {counted(tried, noun)} on starred devices)\n")
    table.column(noun, overflow="fold", min_width=12)
    for header in ("from", "to", "gain ms", "gain"):
        table.column(header, right=True, no_wrap=True)
    for move in gaining[:count]:
        table.row(
            _label(explanation, move.shard),
            str(move.source),
            str(move.target),
            format_ms(move.gain_ms),
            f"{100 * move.gain_ms / explanation.total_ms:.1f}%",
        )
    report.add(table)
    return report


def traffic_report(explanation: Explanation, devices: int = 16) -> Printout:
    """What each of `devices` sends inside its domain and, where there are several, to others; and all do."""
    topology, sent, report, table = explanation.task.topology, explanation.traffic, Printout(), Grid(footer=True)
    if topology.num_devices == 1:
        return report
    across, group = topology.num_domains > 1, topology.fast_group
    gradients = ", gradients" * explanation.task.tables.workload.training
    report.heading(f"\nSent in an iteration, MiB: outputs, partial sums{gradients}\n")
    totals = [format_mib(count) for count in sent.sum(axis=0)[: 1 + across]]
    table.column("", "all devices", right=True, no_wrap=True)
    if across:
        table.column(group, "", right=True, no_wrap=True)
    for name, total in zip((f"inside its {group}", f"to other {group}s"), totals, strict=False):
        table.column(name, total, right=True, no_wrap=True)
    for device in explanation.busiest(devices).tolist():
        numbers = [format_mib(count) for count in sent[device, : 1 + across]]
        table.row(f"device {device}", *[str(topology.domains[device])] * across, *numbers)
    report.add(table)
    return report


def traffic_to_json(explanation: Explanation) -> dict[str, Any]:
    """The host of each device, its domain if that has several, and the MiB that it sends in an iteration in its domain
    (its host by default) and to others."""
    inside, across = (explanation.traffic / 2**20).T.tolist()
    topology, group = explanation.task.topology, explanation.task.topology.fast_group
    return {
        "hosts": explanation.hosts.tolist(),
        **({} if group == "host" else {"domains": topology.domains.tolist()}),
        "sent_mib": {f"inside_its_{group}": inside, f"to_other_{group}s": across},
    }


def replicas_report(explanation: Explanation) -> Printout:
    """Which tables are replicas, how TorchRec trains them and what they gain; empty where no trained table is one."""
    note, report = replicas_note(explanation.plan, explanation.task.tables), Printout()
    if note:
        report.line()
        report.line(note, soft_wrap=True)
        report.line(_without_them(explanation), soft_wrap=True)
    return report


def _without_them(explanation: Explanation) -> str:
    """What the plan costs without its replicas, a sentence; empty if that is not known."""
    cost, now = explanation.without_replicas_ms, explanation.total_ms
    if cost is None or explanation.task.constraints is not None:  # which may keep them from being whole
        return ""
    return f"With them whole, each on its best device, the plan costs {format_ms(cost)} ms ({cost / now - 1:+.1%})."


def replicas_to_json(explanation: Explanation) -> dict[str, Any]:
    """The tables that are replicas, the note of how they are trained, and the cost without; nothing without a note."""
    note = replicas_note(explanation.plan, explanation.task.tables)
    if not note:
        return {}
    names = replicated_tables(explanation.plan, explanation.task.tables)
    return {"replicas": {"tables": names, "note": note, "without_ms": explanation.without_replicas_ms}}


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """A placement or plan as a JSON value, every table by its name (of a placement, by `distinct_names`)."""
    record: dict[str, Any] = {"cost_model": explanation.cost_model, "cost_ms": explanation.total_ms}
    record["index_exchange_ms"] = explanation.index_exchange_ms
    record |= _evidence_to_json(explanation)
    tables, devices, traffic = explanation.task.tables, explanation.devices, traffic_to_json(explanation)
    host = host_to_json(explanation)
    if explanation.noun == "plan":
        groups = explanation.plan.groups
        in_groups = {} if groups == ONE_GROUP else {GROUPS: groups_to_json(groups)}
        plan = plan_to_json(explanation.plan, tables, explanation.task.topology)
        return record | in_groups | {"plan": plan} | replicas_to_json(explanation) | host | traffic
    per_device = to_plan(devices, explanation.task.num_devices)
    names = distinct_names(tables.names)
    placed = {
        "placement": dict(zip(names, devices.tolist(), strict=True)),
        "devices": [[names[table] for table in held] for held in per_device],
    }
    if host:
        placed[HBM_ROWS] = dict(zip(names, explanation.split.hbm_rows.tolist(), strict=True))
    return record | placed | host | traffic


def _evidence_to_json(explanation: Explanation) -> dict[str, Any]:
    """By phase the mean error and the number of measurements, or null; nothing of other cost models."""
    if not is_analytical(explanation.cost_model):
        return {}
    found = evidence_on(explanation.task.topology, explanation.task.tables.workload)
    return {
        "held_out_errors": {
            phase: each and {"mean_error": each.held_out_error, "measurements": each.measurements}
            for phase, each in found.items()
        }
    }
