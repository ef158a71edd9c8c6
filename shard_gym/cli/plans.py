"""Sharding plans on the terminal: what each device holds and costs, and what the splits gain."""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.text import Text

from shard_gym.cli.console import heading, new_table, print_table, sentence
from shard_gym.explain_plan import PlanExplanation
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, TABLE_WISE
from shard_gym.text import counted, format_gib, format_ms

CRITICAL = "bold yellow"
MAX_SPLITS = 8
"""Split tables that are printed: those that gain most."""

MIN_GAIN_MS = 1e-9
"""A move that gains less is rounding error."""


def print_plan_devices(console: Console, explanation: PlanExplanation, count: int = 16, named: int = 2) -> None:
    """Print a row for each of the `count` slowest devices: phases, memory, and its `named` costliest shards."""
    caps, used, phases = explanation.topology.memory_cap_bytes, explanation.memory_used, explanation.phases_ms
    shown = np.sort(np.argsort(-phases.sum(axis=1), kind="stable")[:count])
    table = new_table(footer=True)
    table.add_column("\ndev", "max", justify="right", no_wrap=True)
    slowest = phases.max(axis=0)
    for name, longest in zip(("\nforw. ", "forw. \ncomm ", "backw. \ncomm ", "\nbackw. "), slowest, strict=True):
        table.add_column(name, f"{format_ms(longest)} ", justify="right", no_wrap=True)
    table.add_column("memory/cap\nGiB", justify="right", no_wrap=True)
    table.add_column("\nshards", str(len(explanation.shards)), justify="right", no_wrap=True)
    if named:
        table.add_column("ms alone of\nthe costliest", overflow="ellipsis", min_width=len("costliest"))
    for device in shown.tolist():
        cells = [
            Text(f"{format_ms(ms)}*", CRITICAL) if critical else Text(f"{format_ms(ms)} ")
            for ms, critical in zip(phases[device], explanation.critical[device], strict=True)
        ]
        memory = f"{format_gib(used[device])}/{format_gib(caps[device])}"
        own = explanation.shards_on(device)
        costliest = [sentence("\n".join(_named(explanation, shard) for shard in own[:named].tolist()))] if named else []
        for text in costliest:
            text.no_wrap = True
        table.add_row(str(device), *cells, memory, str(len(own)), *costliest)
    print_table(console, table)
    console.print(sentence("* the other devices wait for this one in this phase", "dim"))
    left = explanation.topology.num_devices - len(shown)
    if left:
        console.print(sentence(f"{counted(len(shown), 'device')} shown, the slowest; {left} left out.", "dim"))


def _named(explanation: PlanExplanation, shard: int) -> str:
    """The ms of a shard alone, its table, and how much of it the shard has."""
    table, *_, columns = explanation.shards[shard].tolist()
    sharding = explanation.plan.tables[table]
    part = {
        TABLE_WISE: "",
        COLUMN_WISE: f" {columns} cols",
        DATA_PARALLEL: " replica",
    }.get(sharding.sharding_type, f" rows 1/{len(sharding.shards)}")
    return f"{format_ms(explanation.single_shard_ms[shard])} {explanation.tables.names[table]}{part}"


def print_splits(console: Console, explanation: PlanExplanation) -> None:
    """Print the sharding types of all tables, and what each split gains over the best device for the whole table."""
    kinds: dict[str, int] = {}
    for sharding in explanation.plan.tables:
        kinds[sharding.sharding_type] = kinds.get(sharding.sharding_type, 0) + 1
    console.print()
    console.print(sentence(", ".join(f"{count} {kind}" for kind, count in kinds.items()), "dim"))
    if not explanation.splits:
        return
    heading(console, f"\nSplit or replicated tables ({len(explanation.splits)}), by what that gains\n")
    table = new_table()
    for name, right in (("table", False), ("type", False), ("shards", True), ("gain ms", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for split in explanation.splits[:MAX_SPLITS]:
        sharding = explanation.plan.tables[split.table]
        gain = "too large whole" if split.gain_ms is None else format_ms(split.gain_ms)
        label = sentence(explanation.tables.names[split.table])
        table.add_row(label, sharding.sharding_type, str(len(sharding.shards)), gain)
    print_table(console, table)
    left = len(explanation.splits) - MAX_SPLITS
    if left > 0:
        console.print(sentence(f"{left} more.", "dim"))


def print_plan_moves(console: Console, explanation: PlanExplanation, count: int = 5) -> None:
    """Print the moves of one shard that reduce the cost most; at most one for each shard."""
    gaining = [move for move in explanation.moves if move.gain_ms > MIN_GAIN_MS]
    tried = len(explanation.moves)
    console.print()
    if not gaining:
        console.print(sentence(f"No move of a shard on a starred device gains ({counted(tried, 'shard')} tried)."))
        return
    heading(console, f"Moves of one shard that gain ({len(gaining)} of {counted(tried, 'shard')} on starred devices)\n")
    table = new_table()
    table.add_column("ms alone, of", overflow="fold", min_width=12)
    for header in ("from", "to", "gain ms"):
        table.add_column(header, justify="right", no_wrap=True)
    for move in gaining[:count]:
        label = sentence(_named(explanation, move.table))
        table.add_row(label, str(move.source), str(move.target), format_ms(move.gain_ms))
    print_table(console, table)
    if len(gaining) > count:
        console.print(sentence(f"{len(gaining) - count} more.", "dim"))
