"""`shard-gym race`: measure the placements or plans of several entries in turn, and rank them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.agents import Agent
from shard_gym.agents.named import agent_named, require_problem
from shard_gym.cli.console import NONE, errors, heading, new_progress, new_table, output, print_table, say, sentence
from shard_gym.cli.measuring import print_spread, warn_of_load
from shard_gym.cli.options import OptionalInt, OptionalPath, first_tasks
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import counted, format_ms
from shard_gym.cost_models.measured import model as measured
from shard_gym.envs.real.tasks import as_measured
from shard_gym.leaderboard import store
from shard_gym.leaderboard.race import Race, check_names, raced_problem
from shard_gym.leaderboard.racing import answers_of, answers_of_entries, answers_of_file, run_race
from shard_gym.tasks import Answer, TaskSuite, load_suite

MAX_FAILURES_SHOWN = 5


def race(
    suite: str,
    out: Path,
    entry: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    leaderboard: OptionalPath = None,
    split: str = "test",
    tasks: int = 0,
    rounds: int = 5,
    seed: int = 0,
    device: str = "cpu",
    layout: str = "auto",
    batch_size: OptionalInt = None,
    iterations: int = 10,
) -> None:
    """Measure the placements or plans of several agents in turn, and rank them.

    Every round measures each task with each entry, in random order.

    The same command continues a race that was stopped. Needs FBGEMM.

    A task that an entry fails costs it more than it costs any other entry.

    Args:
        suite: name of the suite; `shard-gym suites` lists them, and says how to draw fresh tasks.
        out: folder for the race.
        entry: name of an agent, folder of a training run, or file of `shard-gym evaluate --out`, with NAME= before it
            if it shall have another name; repeat the option for more.
        leaderboard: folder of the leaderboards, whose entries on the measured track of the suite are raced, too.
        split: split of the suite, train or test.
        tasks: number of tasks, the first ones of the split; 0 for all.
        rounds: number of rounds.
        seed: of the agents that are random.
        device: what is measured on, cpu or cuda.
        layout: parallel (a process for each device), sequential (one stands for all) or auto.
        batch_size: samples of an iteration, over all devices; those of the tables if not given.
        iterations: timed iterations of a measurement.
    """
    if leaderboard and (split, tasks) != ("test", 0):
        raise InvalidOptionError("Entries of a leaderboard are raced on all test tasks; leave out --split and --tasks.")
    model = measured.MeasuredCostModel(device, layout=layout, batch_size=batch_size, iterations=iterations)
    raced = _first(as_measured(load_suite(suite, split), model), tasks)
    answers = _from_leaderboard(leaderboard, suite) if leaderboard else {}
    named = [_named(each) for each in entry]
    check_names([*answers, *(name for name, _ in named)])
    sources = {name: _source(source, raced, seed) for name, source in named}  # all of them, before one plans
    answers |= {name: each if isinstance(each, list) else answers_of(each, raced) for name, each in sources.items()}
    warn_of_load()
    progress = new_progress()
    bar = progress.add_task("measuring", total=None)
    counts = []

    def show(number: int, total: int) -> None:
        counts.append(number)
        progress.update(bar, completed=number, total=total)

    with model, progress:
        done = run_race(out, raced, answers, model, rounds=rounds, progress=show)
    print_race(done)
    ended = f"Written to {out / store.RACE}."
    if counts[0] == len(done.measurements):
        had = f"{out} has {counted(done.num_rounds, 'round')} of this race already"
        ended = f"Nothing was measured: {had}. For more of them, raise --rounds."
    say(f"\n{ended}", "dim")


def _source(source: str, suite: TaskSuite, seed: int) -> Agent | list[Answer | None]:
    """An agent, or the placements or plans of all tasks from a file of `shard-gym evaluate --out`.

    Raises:
        DamagedFileError: the file holds no evaluation of the suite's tasks.
        InvalidPlacementError: an answer in the file is not valid.
        UnknownNameError, InvalidCheckpointError, MissingExtraError: see `make_agent`.
    """
    if source.endswith(".json"):
        return answers_of_file(Path(source), suite)
    require_problem(source, raced_problem(suite).name)
    return agent_named(source, seed=seed)


def _from_leaderboard(root: Path, suite: str) -> dict[str, list[Answer | None]]:
    """The answers of the entries on the measured track; those that are not valid are named on standard error."""
    answers, refused = answers_of_entries(root, suite)
    for entry, finding in refused.items():
        errors().print(sentence(f"{entry} is not valid and not raced. {finding}", "yellow"))
    return answers


def _named(entry: str) -> tuple[str, str]:
    """The name of an entry, and what makes its answers.

    A folder has its name, and a file its own without the suffix: runs/lr0.1 is "lr0.1", and plans.json is "plans".

    Raises:
        InvalidOptionError: the name before the = is empty, or nothing is behind it.
    """
    name, equals, source = entry.partition("=")
    if os.path.exists(entry):  # Path.exists raises OSError where a name is too long for a file
        path = Path(os.path.abspath(entry))  # of "." and "..", too
        return (path.name if path.is_dir() else path.stem), entry
    if not equals:
        return entry, entry
    if not name or not source:
        raise InvalidOptionError(f"--entry {entry!r} wants NAME=AGENT; leave the = out for the agent's own name.")
    return name, source


def _first(suite: TaskSuite, count: int) -> TaskSuite:
    first = first_tasks(suite, count)
    return suite if first is suite else TaskSuite(suite.name, first.tasks, suite.split)


def _interval(ends: tuple[float, float], shown: Callable[[float], str]) -> str:
    return "-".join(map(shown, ends)) if ends[0] < ends[1] else NONE


def print_race(race: Race) -> None:
    """Print the results, the cheapest entry first, and how far the rounds differ."""
    results, console = race.results(), output()
    tasks, rounds = counted(len(race.suite), "task"), counted(race.num_rounds, "round")
    heading(console, f"{race.suite.name} {race.suite.split}, {tasks}, {rounds}, measured on {race.hardware}\n")
    table = new_table()
    table.add_column("\nentry", overflow="fold", min_width=12)
    for header in ("mean\nms", "95%\ninterval", "to the\ncheapest", "95%\ninterval", "beats\nnext", "failed\ntasks"):
        table.add_column(header, justify="right", no_wrap=True)
    for each in results:
        table.add_row(
            sentence(each.entry),
            format_ms(each.mean_ms),
            _interval(each.interval_ms, format_ms),
            f"{each.ratio:.3f}",
            _interval(each.ratio_interval, "{:.3f}".format),
            NONE if each.beats_next is None else f"{each.beats_next:.0%}",
            str(each.failures) if each.failures else NONE,
        )
    print_table(console, table)
    costs, names = race.costs_ms(), list(race.answers)
    for failed in race.unmeasured[:MAX_FAILURES_SHOWN]:
        task = race.suite[failed.task].name
        charge = format_ms(costs[names.index(failed.entry), failed.task, 0])
        console.print(sentence(f"\n{failed.entry} failed on {task}, charged with {charge} ms: {failed.reason}", "red"))
    if len(race.unmeasured) > MAX_FAILURES_SHOWN:
        console.print(sentence(f"and {len(race.unmeasured) - MAX_FAILURES_SHOWN} more.", "red"))
    if race.spread is not None:
        print_spread(f"The rounds of a {race.problem.noun}", race.spread, "rounds")
