"""An explanation of a placement or a sharding plan on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from shard_gym.cli.console import FAILED, heading, new_table, print_table, sentence
from shard_gym.cli.trusted import print_evidence
from shard_gym.common.text import counted, format_change, format_gib, format_ms
from shard_gym.cost_models.analytical.index_exchange import EXPOSED
from shard_gym.planning.explanation import Explanation
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, GRID_SHARD, ONE_GROUP, TABLE_WISE

CRITICAL = "bold yellow"

WIDE = 100  # columns of a window where names and parts of tables have room beside hosts
NAME_END = 8  # characters at the end of a name that are shown where they have not
MAX_SPLITS = 8  # the most split tables that are printed: those that gain most, where that is known
MIN_GAIN_MS = 1e-9  # a move that gains less is rounding error

NO_MOVES = "Moves are not listed: what they gain is not measured. --cost-model analytical lists estimates."


def print_explanation(
    console: Console, explanation: Explanation, devices: int = 16, named: int = 2, moves: int = 0
) -> None:
    """Print `devices` with `named` shards each, the cost, the splits, and at most `moves` that gain."""
    _print_devices(console, explanation, devices, named)
    _print_totals(console, explanation)
    if explanation.noun == "plan":
        _print_splits(console, explanation)
    if moves:
        _print_moves(console, explanation, moves)


def _print_devices(console: Console, explanation: Explanation, count: int, named: int) -> None:
    """A row for each device: phases (a star on the slowest device), memory and costliest shards."""
    caps, phases_ms = explanation.memory_cap_bytes, explanation.phases_ms
    hosts = [str(host) for host in explanation.hosts] if explanation.task.topology.num_hosts > 1 else []
    slowest = [f"{format_ms(ms)} " for ms in phases_ms.max(axis=0)]
    table = new_table(footer=True)
    table.add_column("\ndev", "max", justify="right", no_wrap=True)
    if hosts:
        table.add_column("\nhost", justify="right", no_wrap=True)
    for name, longest in zip(("\nforw. ", "forw. \ncomm ", "backw. \ncomm ", "\nbackw. "), slowest, strict=True):
        table.add_column(name, longest, justify="right", no_wrap=True)
    table.add_column("memory/cap\nGiB", justify="right", no_wrap=True)
    held = "tables" if explanation.noun == "placement" else "shards"
    table.add_column(f"\n{held}", str(len(explanation.shards)), justify="right", no_wrap=True)
    if named:
        alone = "ms alone of" if explanation.moves is not None else "estimated ms alone of"
        table.add_column(f"{alone}\nthe costliest", overflow="ellipsis", min_width=len("costliest"))
    shown = explanation.busiest(count)
    for device in shown.tolist():
        phases = [
            Text(f"{format_ms(ms)}*", CRITICAL) if critical else Text(f"{format_ms(ms)} ")
            for ms, critical in zip(phases_ms[device], explanation.critical[device], strict=True)
        ]
        used, cap = explanation.memory_used[device], caps[device]
        memory = Text(f"{format_gib(used)}/{format_gib(cap)}", FAILED if used > cap else "")
        own = explanation.shards_on(device)
        narrow = bool(hosts) and console.width < WIDE
        costliest = [_named(explanation, own[:named].tolist(), narrow)] if named else []
        table.add_row(str(device), *hosts[device : device + 1], *phases, memory, str(len(own)), *costliest)
    print_table(console, table)
    console.print(sentence("* the other devices wait for this one in this phase", "dim"))
    left = explanation.task.num_devices - len(shown)
    if left:
        console.print(sentence(f"{counted(len(shown), 'device')} shown, the most loaded; {left} left out.", "dim"))


def _named(explanation: Explanation, shards: list[int], narrow: bool) -> Text:
    label = _end_of_name if narrow else _label
    lines = (f"{format_ms(explanation.single_shard_ms[shard])} {label(explanation, shard)}" for shard in shards)
    text = sentence("\n".join(lines))
    text.no_wrap = True
    return text


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


def _print_totals(console: Console, explanation: Explanation) -> None:
    total = explanation.total_ms
    grid = new_table(header=False)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("cost", f"{format_ms(total)} ms", "", style="bold")
    of_whole = "; split tables may cost less" * (explanation.noun == "placement")
    for name, value, scope in (
        ("best known", explanation.best_known_ms, ""),
        ("lower bound", explanation.lower_bound_ms, of_whole),
    ):
        if value is not None:
            change = f"this {explanation.noun} {format_change(total / value - 1)}{scope}"
            grid.add_row(name, f"{format_ms(value)} ms", change)
    console.print()
    console.print(grid)
    if explanation.task.num_devices > 1:
        console.print(sentence(f"\n{index_exchange_sentence(explanation)}"))
    print_evidence(console, explanation.task.topology, explanation.cost_model, explanation.task.tables.workload)


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


def _print_splits(console: Console, explanation: Explanation) -> None:
    kinds: dict[str, int] = {}
    for sharding in explanation.plan.tables:
        kinds[sharding.sharding_type] = kinds.get(sharding.sharding_type, 0) + 1
    console.print()
    console.print(sentence(", ".join(f"{count} {kind}" for kind, count in kinds.items()), "dim"))
    if explanation.plan.groups != ONE_GROUP:
        console.print(sentence(groups_sentence(explanation)))
    if not explanation.splits:
        return
    knows = explanation.moves is not None  # what splits gain
    heading(console, f"\nSplit or replicated tables ({len(explanation.splits)}){', by what that gains' * knows}\n")
    table = new_table()
    for name, right in (("table", False), ("type", False), ("shards", True), *([("gain ms", True)] if knows else [])):
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for split in explanation.splits[:MAX_SPLITS]:
        sharding = explanation.plan.tables[split.table]
        gain = "too large whole" if split.gain_ms is None else format_ms(split.gain_ms)
        label = sentence(explanation.task.tables.names[split.table])
        table.add_row(label, sharding.sharding_type, str(len(sharding.shards)), *([gain] if knows else []))
    print_table(console, table)
    left = len(explanation.splits) - MAX_SPLITS
    if left > 0:
        console.print(sentence(f"{left} more.", "dim"))


def groups_sentence(explanation: Explanation) -> str:
    """How many groups of devices hold all tables, and what averaging them costs."""
    groups, replicas = explanation.plan.groups, explanation.task.topology.replicas
    assert replicas is not None
    size, every = counted(explanation.task.num_devices, "device"), counted(replicas.sync_every, "iteration")
    return (
        f"{groups.count} {groups.layout} groups of {size} each hold all tables; this is one of them. Averaging them "
        f"every {every} costs {format_ms(explanation.sync_ms)} of {format_ms(explanation.total_ms)} ms."
    )


def _print_moves(console: Console, explanation: Explanation, count: int) -> None:
    console.print()
    if explanation.moves is None:
        console.print(sentence(NO_MOVES, "dim"))
        return
    gaining = [move for move in explanation.moves if move.gain_ms > MIN_GAIN_MS]
    tried, noun = len(explanation.moves), "table" if explanation.noun == "placement" else "shard"
    if not gaining:
        none_gains = f"No move of a {noun} on a starred device gains ({counted(tried, noun)} tried)."
        console.print(sentence(none_gains if tried else f"No {noun} on a starred device fits elsewhere."))
        return
    heading(console, f"Moves of one {noun} that gain ({len(gaining)} of {counted(tried, noun)} on starred devices)\n")
    table = new_table()
    table.add_column(noun, overflow="fold", min_width=12)
    for header in ("from", "to", "gain ms", "gain"):
        table.add_column(header, justify="right", no_wrap=True)
    for move in gaining[:count]:
        table.add_row(
            sentence(_label(explanation, move.shard)),
            str(move.source),
            str(move.target),
            format_ms(move.gain_ms),
            f"{100 * move.gain_ms / explanation.total_ms:.1f}%",
        )
    print_table(console, table)
