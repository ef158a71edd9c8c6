"""The command `shard-gym`: one table of sub-commands, one file for each, imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import tyro

from shard_gym.cli.console import errors, sentence
from shard_gym.errors import ShardGymError, unknown_name

PROG = "shard-gym"
ERROR_EXIT_CODE = 2
"""Also that of arguments tyro cannot parse."""

INTERRUPTED_EXIT_CODE = 130
"""Ctrl-C, as shells report it: 128 and the number of the signal."""


class Command(NamedTuple):
    """A sub-command: the function that runs it and the line that `shard-gym --help` shows."""

    module: str
    function: str
    help: str


COMMANDS: dict[str, Command] = {
    "demo": Command("shard_gym.cli.demo", "demo", "Score all agents, train one, draw a picture: in a few minutes."),
    "suites": Command("shard_gym.cli.suites", "suites", "List the task suites, or verify every shipped file."),
    "pools": Command("shard_gym.cli.pools", "pools", "List the table pools, or print the card of one."),
    "evaluate": Command(
        "shard_gym.cli.evaluate", "evaluate", "Let agents place all tasks of a suite and compare them."
    ),
    "train": Command("shard_gym.cli.train", "train", "Train an agent that learns; a run goes on where it was stopped."),
    "experiment": Command(
        "shard_gym.cli.experiment", "experiment", "Repeat the experiments of the DreamShard paper on the suites."
    ),
    "show": Command("shard_gym.cli.show", "show", "Explain a placement: what each device costs, what would help."),
    "place": Command("shard_gym.cli.place", "place", "Place the tables of a model of your own: tables in, a plan out."),
    "doctor": Command(
        "shard_gym.cli.doctor", "doctor", "Can placements be measured on this machine? If not, what to install."
    ),
    "collect": Command("shard_gym.cli.collect", "collect", "Measure random placements on this machine's devices."),
    "fit-cost-model": Command(
        "shard_gym.cli.fit_cost_model", "fit_cost_model", "Fit neural cost models to what was measured."
    ),
    "report-cost-model": Command(
        "shard_gym.cli.report_cost_model", "report_cost_model", "Hold cost models against what was measured; a page."
    ),
    "leaderboard": Command(
        "shard_gym.cli.leaderboard", "leaderboard", "Submit to the leaderboards, verify entries, make the tables."
    ),
    "import-pool": Command("shard_gym.cli.import_pool", "import_pool", "Make a pool from one of Meta's lookup files."),
}
"""The one table of sub-commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shard-gym` with `argv` (default: the process's arguments) and return its exit code.

    An error ShardGym raises on purpose becomes a sentence on standard error and exit code 2, and Ctrl-C a word and exit
    code 130; any other error keeps its traceback, for it is a bug.

    Raises:
        SystemExit: after a help text, or when the arguments do not parse.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        print(PROG, version(PROG))
        return 0
    try:
        if args and args[0] in COMMANDS:
            return _run(args[0], args[1:])
        if args and not args[0].startswith("-"):
            raise unknown_name("command", args[0], COMMANDS)
        _overview(args or ["--help"])
    except ShardGymError as error:
        errors().print(sentence(str(error), "bold red"), soft_wrap=True)
        return ERROR_EXIT_CODE
    except KeyboardInterrupt:
        errors().print(sentence("Interrupted.", "bold red"))
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:  # `shard-gym --help | head` has read enough; nothing more can be printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _run(name: str, args: Sequence[str]) -> int:
    """Run one sub-command."""
    command = COMMANDS[name]
    function = getattr(import_module(command.module), command.function)
    bound = tyro.cli(
        _bound(function),
        prog=f"{PROG} {name}",
        args=args,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
    )
    return bound() or 0


def _bound(function: Callable[..., int | None]) -> Callable[..., Callable[[], int | None]]:
    """`function`, but bound to its arguments instead of called, so that it runs outside the parser.

    Within it, a ValueError of ours could be taken for an argument that does not parse.
    """

    @wraps(function)
    def bind(*args: Any, **options: Any) -> Callable[[], int | None]:
        return partial(function, *args, **options)

    return bind


def _overview(args: Sequence[str]) -> None:
    """Print the help of all sub-commands, or an error for an unknown option; imports none of them."""
    tyro.extras.subcommand_cli_from_dict(
        {name: _documented(command.help) for name, command in COMMANDS.items()},
        prog=PROG,
        description=(
            f"ShardGym {version(PROG)}: which GPU gets which embedding table of a recommender model.\n"
            f"`{PROG} COMMAND --help` explains a command.\n`{PROG} --version` prints the version."
        ),
        args=args,
    )


def _documented(text: str) -> Callable[[], None]:
    """A function that does nothing, with `text` as its docstring."""

    def nothing() -> None:
        pass

    nothing.__doc__ = text
    return nothing
