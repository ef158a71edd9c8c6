"""`shard-gym show`: one placement, explained device by device."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from shard_gym.answers import PLANS
from shard_gym.checks import checked_count
from shard_gym.cli.agent_options import AgentOptions, parse_options
from shard_gym.cli.console import NONE, heading, new_table, output, print_table, sentence
from shard_gym.cli.options import ANALYTICAL, CostModelOptions, OptionalPath, placing_agent, proven_bound
from shard_gym.cli.plans import print_plan_devices, print_plan_moves, print_splits
from shard_gym.cost_models import CostModel, make_sharding_cost_model
from shard_gym.drift.suites import drift_suite_names
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.envs.real.tasks import as_measured
from shard_gym.errors import InvalidOptionError
from shard_gym.explain import Explanation, explain
from shard_gym.explain_plan import explain_plan
from shard_gym.io.pictures import require_picture, save_picture
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs
from shard_gym.suites.bounds import lower_bounds
from shard_gym.tasks import Task
from shard_gym.text import counted, format_change, format_gib, format_ms

CRITICAL = "bold yellow"
GIB = 2**30
MIN_GAIN_MS = 1e-9
"""A move that gains less is rounding error."""

DEVICES, TABLES, MOVES = 16, 2, 5
"""So many are listed, unless another number is asked for."""

NO_MOVES = "Moves are not listed: what they gain is not measured. --cost-model analytical lists estimates."


def show(
    suite: str,
    agent: str,
    option: AgentOptions,
    task: int | str = 0,
    split: str = "test",
    cost: CostModelOptions = ANALYTICAL,
    seed: int = 0,
    devices: int = DEVICES,
    tables: int = TABLES,
    moves: int = MOVES,
    picture: OptionalPath = None,
) -> None:
    """Explain a placement or a plan: what each device costs, and what would help.

    For a suite of drifting tasks: what an agent of replanning does, by hour.

    Args:
        suite: name of the suite; `shard-gym suites` lists them.
        agent: name of the agent that places the tables, or folder of a training run.
        option: an option of the agent, such as max_queries=5000; repeat it for more. `shard-gym agents` lists them all.
        task: number of the task in the split, or its name.
        split: split of the suite, train or test.
        cost: the cost model of the placement. With measured costs, agents that ask a cost model plan under analytical.
        seed: of the agent, if it is random.
        devices: number of devices to list; the most loaded, if there are more.
        tables: number of tables to name on each device, the costliest first.
        moves: number of moves that reduce the cost to list, the largest gain first; none with measured costs.
        picture: also draw the placement to this file (.png, .svg, .pdf); needs matplotlib.
    """
    checked_count("--devices", devices, 1)
    checked_count("--tables", tables, 0)
    checked_count("--moves", moves, 0)
    if picture is not None:
        require_picture(picture)
    if suite in drift_suite_names():
        from shard_gym.cli.show_episode import show_episode

        if cost != ANALYTICAL or (devices, tables, moves) != (DEVICES, TABLES, MOVES):
            raise InvalidOptionError(
                f"Suite {suite!r} drifts: its episodes are shown with analytical costs, without devices, tables and "
                "moves. Leave out the options of the cost model, --devices, --tables and --moves."
            )
        show_episode(suite, agent, parse_options(option), task, split, seed, picture)
        return
    model = cost.make()
    chosen_suite = as_measured(load_suite(suite, split), model)
    chosen = chosen_suite.task(task)
    console = output()
    placer = placing_agent(agent, cost, model, seed, **parse_options(option))
    if chosen.splittable:
        if picture is not None:
            raise InvalidOptionError("--picture draws placements of whole tables, and this is a sharding plan.")
        sharding_model = make_sharding_cost_model(model)
        plan = PLANS.checked(PLANS.asker(placer)(chosen), chosen)
        _print_heading(console, chosen, agent, sharding_model)
        best = best_known_costs(chosen_suite, sharding_model).get(chosen.name)
        bound = lower_bounds(chosen_suite, sharding_model).get(chosen.name)
        explained = explain_plan(plan, chosen.tables, chosen.topology, sharding_model)
        print_plan_devices(console, explained, devices, tables)
        print_totals(console, explained.total_ms, best, bound, "plan")
        print_splits(console, explained)
        if moves:
            print_plan_moves(console, explained, moves)
        return
    best = best_known_costs(chosen_suite, model).get(chosen.name)
    placement = placer.place(chosen)
    stored = lower_bounds(chosen_suite, model).get(chosen.name)
    bound = max(filter(None, (stored, proven_bound(placer, model))), default=None)
    explanation = explain(chosen, placement, model, best_known_ms=best, lower_bound_ms=bound)
    _print_heading(console, chosen, agent, model)
    print_devices(console, explanation, devices, tables)
    print_totals(console, explanation.total_ms, best, bound)
    if moves:
        print_moves(console, explanation, moves)
    if picture is not None:
        from shard_gym.envs.placement.rendering.figure import draw  # needs matplotlib

        view = PlacementView(chosen, explanation.placement, explanation.phases_ms, explanation.total_ms)
        save_picture(draw(view, title=f"{chosen.name}, placed by {agent}"), picture)
        console.print(sentence(f"\nPicture written to {picture}.", "dim"))


def _print_heading(console: Console, task: Task, agent: str, model: CostModel) -> None:
    heading(
        console,
        f"{task.name}: {counted(task.num_tables, 'table')} on {task.num_devices} x {task.topology.device.name},\n"
        f"placed by {agent}, costed by {model.fingerprint}\n",
    )


def print_devices(console: Console, explanation: Explanation, count: int = 16, named: int = 2) -> None:
    """Print a row for each device: phases (a star on the slowest device), memory and costliest tables."""
    caps = explanation.task.topology.memory_cap_bytes
    slowest = [f"{format_ms(ms)} " for ms in explanation.phases_ms.max(axis=0)]
    table = new_table(footer=True)
    table.add_column("\ndev", "max", justify="right", no_wrap=True)
    for name, longest in zip(("\nforw. ", "forw. \ncomm ", "backw. \ncomm ", "\nbackw. "), slowest, strict=True):
        table.add_column(name, longest, justify="right", no_wrap=True)
    table.add_column("memory/cap\nGiB", justify="right", no_wrap=True)
    table.add_column("\ntables", str(explanation.task.num_tables), justify="right", no_wrap=True)
    if named:
        alone = "ms alone of" if explanation.moves is not None else "estimated ms alone of"
        table.add_column(f"{alone}\nthe costliest", overflow="ellipsis", min_width=len("costliest"))
    shown = explanation.busiest(count)
    for device in shown:
        phases = [
            Text(f"{format_ms(ms)}*", CRITICAL) if critical else Text(f"{format_ms(ms)} ")
            for ms, critical in zip(explanation.phases_ms[device], explanation.critical[device], strict=True)
        ]
        memory = f"{format_gib(explanation.memory_used[device])}/{format_gib(caps[device])}"
        costliest = [_costliest(explanation, int(device), named)] if named else []
        table.add_row(str(device), *phases, memory, str(explanation.tables_per_device[device]), *costliest)
    print_table(console, table)
    console.print(sentence("* the other devices wait for this one in this phase", "dim"))
    left = explanation.task.num_devices - len(shown)
    if left:
        console.print(sentence(f"{counted(len(shown), 'device')} shown, the most loaded; {left} left out.", "dim"))


def _costliest(explanation: Explanation, device: int, count: int) -> Text:
    names = explanation.task.tables.names
    lines = (
        f"{format_ms(explanation.single_table_ms[table])} {names[table]}"
        for table in explanation.tables_on(device)[:count]
    )
    text = sentence("\n".join(lines))
    text.no_wrap = True
    return text


def print_totals(
    console: Console, total: float, best: float | None, bound: float | None, noun: str = "placement"
) -> None:
    """Print the cost, the best known cost and the lower bound, in ms."""
    grid = new_table(header=False)
    grid.add_column()
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("cost", f"{format_ms(total)} ms", "", style="bold")
    for name, value in (("best known", best), ("lower bound", bound)):
        if value is None:
            grid.add_row(name, NONE, "")
        else:
            grid.add_row(name, f"{format_ms(value)} ms", f"this {noun} {format_change(total / value - 1)}")
    console.print()
    console.print(grid)


def print_moves(console: Console, explanation: Explanation, count: int = 5) -> None:
    """Print the moves of one table that reduce the cost most; at most one for each table."""
    if explanation.moves is None:
        console.print()
        console.print(sentence(NO_MOVES, "dim"))
        return
    gaining = [move for move in explanation.moves if move.gain_ms > MIN_GAIN_MS]
    tried = len(explanation.moves)
    console.print()
    if not gaining:
        none_gains = f"No move of a table on a starred device gains ({counted(tried, 'table')} tried)."
        console.print(sentence(none_gains if tried else "No table on a starred device fits elsewhere."))
        return
    heading(console, f"Moves of one table that gain ({len(gaining)} of {counted(tried, 'table')} on starred devices)\n")
    table = new_table()
    table.add_column("table", overflow="fold", min_width=12)
    for header in ("from", "to", "gain ms", "gain"):
        table.add_column(header, justify="right", no_wrap=True)
    for move in gaining[:count]:
        table.add_row(
            sentence(explanation.task.tables.names[move.table]),
            str(move.source),
            str(move.target),
            format_ms(move.gain_ms),
            f"{100 * move.gain_ms / explanation.total_ms:.1f}%",
        )
    print_table(console, table)
