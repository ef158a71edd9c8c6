"""`shard-gym suites`: the task suites, and the check of every shipped file."""

from __future__ import annotations

from rich.text import Text

from shard_gym.cli.console import FAILED, new_table, output, print_table, sentence
from shard_gym.common.errors import ShardGymError
from shard_gym.common.text import format_range
from shard_gym.tables import load_pool
from shard_gym.tables.pools import pool_names
from shard_gym.tasks import load_suite, problem_of, suite_info, suite_names
from shard_gym.tasks.suites.best_known import best_known
from shard_gym.tasks.suites.bounds import lower_bounds

ABOUT = {
    "placement": "of whole tables",
    "sharding": "tables may be split",
    "replanning": "names end with the pause in s",
}
"""What the tables of a problem are, in the order of the problems."""


def suites(verbose: bool = False, verify: bool = False) -> int:
    """List the task suites.

    T is the number of tables of a task, D the number of devices.

    Args:
        verbose: also list each suite's description, version and the first digits of its SHA-256.
        verify: load every suite and every pool, and check their SHA-256 sums and all their placements.
    """
    return _verify() if verify else _list(verbose)


def _list(verbose: bool) -> int:
    table = new_table()
    table.add_column("suite\nversion, SHA-256" if verbose else "suite", no_wrap=True)
    for header in ("tasks", "T", "D"):
        table.add_column(header, no_wrap=True, justify="right")
    source = "pool on hardware"
    table.add_column(f"{source}\ndescription" if verbose else source, min_width=27 if verbose else 29)
    shown = set()
    order = list(ABOUT)
    for info in sorted(map(suite_info, suite_names()), key=lambda info: order.index(info.problem)):
        if info.problem not in shown:
            about = Text(ABOUT[info.problem], "cyan")
            table.add_row(Text(info.problem, "bold cyan"), "", "", "", about)
            shown.add(info.problem)
        name, about = Text(info.name, "bold"), Text(f"{info.pool} on {info.hardware}")
        if verbose:
            name.append(f"\nv{info.version} {info.sha256[:12]}", "dim not bold")
            about.append(f"\n{info.description}", "dim")
        tasks = f"{info.tasks.get('train', 0)}/{info.tasks.get('test', 0)}"
        sizes = (format_range(*each).replace(",", "") for each in (info.num_tables, info.num_devices))  # narrow
        table.add_row(name, tasks, *sizes, about)
    console = output()
    print_table(console, table)
    if not verbose:
        console.print(sentence("\nT tables on D devices; train/test tasks. More: shard-gym suites --verbose", "dim"))
        console.print(sentence("NAME@SEED, such as mixdim-8@7, are new tasks like those of a suite.", "dim"))
    return 0


def _verify() -> int:
    checks = [("pool", name, _check_pool) for name in pool_names()]
    checks += [("suite", name, _check_suite) for name in suite_names()]
    table = new_table()
    for column in ("kind", "name", "result"):
        table.add_column(column)
    damaged = 0
    for kind, name, check in checks:
        try:
            table.add_row(kind, name, sentence(check(name)))
        except ShardGymError as error:
            damaged += 1
            table.add_row(kind, name, sentence(str(error), FAILED))
    console = output()
    console.print(table)
    if damaged:
        console.print(sentence(f"\n{damaged} of {len(checks)} are damaged.", FAILED))
        return 1
    console.print(sentence(f"\nAll {len(checks)} are as they were published.", "green"))
    return 0


def _check_pool(name: str) -> str:
    return f"{len(load_pool(name))} tables"


def _check_suite(name: str) -> str:
    """Load every split, the best known answers and the bounds, which checks bytes, answers and costs."""
    tasks = searched = bounded = 0
    for split in suite_info(name).tasks:
        suite = load_suite(name, split)
        problem = problem_of(suite[0])
        model = problem.model(suite.cost_model)
        tasks += len(suite)
        searched += len(best_known(suite, model))
        bounded += len(lower_bounds(suite, model))
    return f"{tasks} tasks, {searched} best known answers, {bounded} bounds"
