"""`shard-gym agents`: all agents and their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from shard_gym.agents import AGENTS, AgentEntry
from shard_gym.agents.named import ORACLE
from shard_gym.agents.registry import LEARNERS, LearnerEntry
from shard_gym.agents.registry.agents import REPLANNING
from shard_gym.agents.registry.options import (
    AgentOption,
    about_agent,
    about_learner,
    placing_options,
    trained_options,
    training_options,
)
from shard_gym.cli.console import heading, new_table, output, print_table, say, sentence
from shard_gym.common.errors import InvalidOptionError, ShardGymError, unknown_name
from shard_gym.plans import SHARDING_TYPES
from shard_gym.tasks import PROBLEMS

READY = "{problem}, without training: --agent NAME --option KEY=VALUE, or make_agent(NAME, KEY=VALUE)"
TRAINED = "Once they are trained: --agent FOLDER with --option KEY=VALUE, or make_agent(FOLDER, KEY=VALUE)"
TRAINING = "Are trained first: shard-gym train --agent NAME --option KEY=VALUE"

LEAGUE = {"nothing": "zero-query", "costs": "guided", "answers": "search"}
"""The league of an agent by what it asks of the cost model (see `AgentEntry`)."""


def agents(name: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME ...")] = ()) -> None:
    """List the agents; with names, what these are, and their options with defaults.

    Args:
        name: agents whose options to list.
    """
    known = {**AGENTS, **LEARNERS}
    for each in name:
        if each == "oracle":
            raise InvalidOptionError(ORACLE)
        if each not in known:
            raise unknown_name("agent", each, known)
    console = output()
    if not name:
        return _print_all(console)
    chosen = set(name)
    headings = []
    ready: dict[str, list[str]] = {}
    for each, entry in AGENTS.items():
        if each in chosen:
            ready.setdefault(_problems(entry), []).append(each)
    for problems, own in ready.items():
        headings.append(READY.format(problem=problems))
        heading(console, ("\n" if len(headings) > 1 else "") + headings[-1])
        for each in own:
            _print_ready(console, each)
    training = [each for each in LEARNERS if each in chosen]
    if training:
        heading(console, f"\n{TRAINING}" if headings else TRAINING)
        for each in training:
            _print_learner(console, each)
        _print_trained(console, training)


def _print_all(console: Console) -> None:
    """Every agent on a line of its own: its name, its league, and what it is."""
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for name, entry in AGENTS.items():
        listing = name, _league(entry), entry.about or _about(about_agent, name)
        groups.setdefault(f"{_problems(entry)}, without training", []).append(listing)
    for name, entry in LEARNERS.items():
        problems = " and ".join(entry.learns).replace(" and ", ", ", max(0, len(entry.learns) - 2))
        groups.setdefault(f"{problems.capitalize()}, trained first", []).append(
            (name, _league(entry.learner()), entry.learner().about or _about(about_learner, name))
        )
    width = max(len(name) for listed in groups.values() for name, *_ in listed)
    for title, listed in groups.items():
        heading(console, title)
        for name, league, about in listed:
            line = Text.assemble(
                (f"  {name:<{width}}  ", "cyan"), f"{league:<{len(LEAGUE['nothing'])}}  " * bool(league)
            )
            console.print(line.append(about), no_wrap=True, overflow="ellipsis")
        console.print()
    say(
        "The second column is the league of the leaderboards: what an agent asks of the cost model while it answers. "
        "Options of an agent: shard-gym agents NAME",
        "dim",
    )


def _problems(entry: AgentEntry) -> str:
    """Those that it answers, as a heading begins."""
    return " and ".join(each for each in PROBLEMS if each in entry.problems).capitalize()


def _league(entry: AgentEntry | LearnerEntry) -> str:
    """The league of an agent; none for replanning, which has no leagues."""
    return "" if entry.problems == REPLANNING else LEAGUE[entry.asks]


def _about(about: Callable[[str], str], name: str) -> str:
    """What an agent is; of one that cannot be imported, why not."""
    try:
        return about(name)
    except (ShardGymError, ImportError) as error:
        return str(error)


def _print_ready(console: Console, name: str) -> None:
    try:
        about, options = about_agent(name), placing_options(name)
    except (ShardGymError, ImportError) as error:
        about, options = str(error), []
    _print_agent(console, name, about, options)


def _print_learner(console: Console, name: str) -> None:
    for entry in LEARNERS[name].learners:
        problem = entry.problems[0]
        try:
            by_preset = training_options(name, problem)
        except ShardGymError as error:
            _print_agent(console, name, str(error), ())
            return
        for number, (preset, options) in enumerate(by_preset.items()):
            which = f", preset={preset}{' (default)' if number == 0 else ''}" if preset else ""
            about = f"{about_learner(name, preset, problem)}; learns {' and '.join(entry.problems)}"
            _print_agent(console, f"{name}{which}", about, options)


def _print_trained(console: Console, names: Sequence[str]) -> None:
    by_name = {}
    for name in names:
        with suppress(ShardGymError):  # it is named above
            by_name[name] = about_learner(name), trained_options(name)
    if any(options for _, options in by_name.values()):
        heading(console, f"\n{TRAINED}")
    for name, (about, options) in by_name.items():
        if options:
            _print_agent(console, name, about, options)


def _print_agent(console: Console, name: str, about: str, options: Sequence[AgentOption]) -> None:
    console.print(Text.assemble("\n", (name, "bold cyan"), f": {about}"))
    if not options:
        return
    table = new_table(header=False)
    table.add_column(no_wrap=True)
    table.add_column(min_width=40)
    for option in options:
        table.add_row(sentence(f"  {option.name}={_written(option.default)}"), sentence(option.about))
    print_table(console, table)


def _written(default: object) -> str:
    """A default as `--option KEY=VALUE` takes it."""
    if default == SHARDING_TYPES:
        return "all"
    return str(default).lower() if isinstance(default, bool) else str(default)
