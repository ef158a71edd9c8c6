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
MOST_DEVICES, MOST_SPLITS = 16, 8
"""Rows that are printed: the devices that hold most, and the splits that gain most."""


def print_plan(console: Console, explanation: PlanExplanation) -> None:
    """Print the devices, the cost and the split tables."""
    _print_devices(console, explanation)
    console.print(f"\ncost  {format_ms(explanation.total_ms)} ms", style="bold", highlight=False)
    _print_splits(console, explanation)


def _print_devices(console: Console, explanation: PlanExplanation) -> None:
    caps, used, phases = explanation.topology.memory_cap_bytes, explanation.memory_used, explanation.phases_ms
    shown = np.sort(np.argsort(-phases.sum(axis=1), kind="stable")[:MOST_DEVICES])
    table = new_table(footer=True)
    table.add_column("\ndev", "max", justify="right", no_wrap=True)
    slowest = phases.max(axis=0)
    for name, longest in zip(("\nforw. ", "forw. \ncomm ", "backw. \ncomm ", "\nbackw. "), slowest, strict=True):
        table.add_column(name, f"{format_ms(longest)} ", justify="right", no_wrap=True)
    table.add_column("memory/cap\nGiB", justify="right", no_wrap=True)
    table.add_column("\nshards", str(len(explanation.shards)), justify="right", no_wrap=True)
    table.add_column("ms alone of\nthe costliest", overflow="ellipsis", min_width=len("costliest"))
    for device in shown.tolist():
        cells = [
            Text(f"{format_ms(ms)}*", CRITICAL) if critical else Text(f"{format_ms(ms)} ")
            for ms, critical in zip(phases[device], explanation.critical[device], strict=True)
        ]
        memory = f"{format_gib(used[device])}/{format_gib(caps[device])}"
        own = explanation.shards_on(device)
        table.add_row(str(device), *cells, memory, str(len(own)), _named(explanation, int(own[0])) if len(own) else "")
    print_table(console, table)
    console.print(sentence("* the other devices wait for this one in this phase", "dim"))
    left = explanation.topology.num_devices - len(shown)
    if left:
        console.print(sentence(f"{counted(len(shown), 'device')} shown, the slowest; {left} left out.", "dim"))


def _named(explanation: PlanExplanation, shard: int) -> Text:
    """The ms of a shard alone, its table, and how much of it the shard has."""
    table, _, _, rows, _, columns = explanation.shards[shard].tolist()
    kind, shape = explanation.plan.tables[table].sharding_type, explanation.tables.num_embeddings[table]
    part = {
        TABLE_WISE: "",
        COLUMN_WISE: f", {columns} columns",
        DATA_PARALLEL: ", replica",
    }.get(kind, f", {rows / shape:.0%} of rows")
    text = sentence(f"{format_ms(explanation.single_shard_ms[shard])} {explanation.tables.names[table]}{part}")
    text.no_wrap = True
    return text


def _print_splits(console: Console, explanation: PlanExplanation) -> None:
    """The sharding types of all tables, and what each split gains over the best device for the whole table."""
    kinds: dict[str, int] = {}
    for sharding in explanation.plan.tables:
        kinds[sharding.sharding_type] = kinds.get(sharding.sharding_type, 0) + 1
    console.print()
    console.print(sentence(", ".join(f"{count} {kind}" for kind, count in kinds.items()), "dim"))
    if not explanation.splits:
        return
    heading(console, f"\nSplit tables ({len(explanation.splits)}), by what the split gains\n")
    table = new_table()
    for name, right in (("table", False), ("type", False), ("shards", True), ("gain ms", True)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for split in explanation.splits[:MOST_SPLITS]:
        sharding = explanation.plan.tables[split.table]
        gain = "too large whole" if split.gain_ms is None else format_ms(split.gain_ms)
        label = sentence(explanation.tables.names[split.table])
        table.add_row(label, sharding.sharding_type, str(len(sharding.shards)), gain)
    print_table(console, table)
    left = len(explanation.splits) - MOST_SPLITS
    if left > 0:
        console.print(sentence(f"{left} more.", "dim"))
