"""The command `shard-gym`: one module for each sub-command, imported only when it is asked for."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from importlib import import_module
from importlib.metadata import version
from typing import Any

import tyro

from shard_gym.cli.console import as_options, new_table, output, print_table, warn
from shard_gym.common.errors import ShardGymError, unknown_name

PROG = "shard-gym"
ERROR_EXIT_CODE = 2  # also that of arguments tyro cannot parse
INTERRUPTED_EXIT_CODE = 130  # Ctrl-C, as shells report it: 128 and the number of the signal

COMMANDS: dict[str, str] = {
    "demo": "Train an agent, compare it with heuristics, show a plan: in half a minute.",
    "suites": "List the task suites, or verify every shipped file.",
    "pools": "List the table pools, or print the card of one.",
    "agents": "List the agents and their options.",
    "evaluate": "Let agents place all tasks of a suite and compare them.",
    "train": "Train a learned agent, or resume its training.",
    "show": "Explain a placement: what each device costs, which moves would help.",
    "place": "Place the tables of your own model: tables in, a plan out.",
    "dataset": "Write placements of agents as a data set for offline RL (Minari).",
    "race": "Measure the placements or plans of several agents in turn, and rank them.",
    "doctor": "Can placements be measured on this machine? If not, what to install.",
    "calibrate": "Measure this machine; a hardware profile and a cost model for it.",
    "collect": "Measure random placements on this machine's devices.",
    "fit-cost-model": "Fit neural cost models to measurements.",
    "report-cost-model": "Compare cost models with measurements; write a page.",
    "leaderboard": "Submit to the leaderboards, verify entries, make the tables.",
    "import-pool": "Make a pool from one of Meta's lookup files.",
}
"""The line that `shard-gym --help` shows for each sub-command.

With "_" for "-", the name is that of a module of this package and of the function in it that runs the sub-command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shard-gym` with `argv` (default: the process's arguments) and return its exit code.

    A ShardGymError becomes a sentence on standard error and exit code 2; Ctrl-C becomes the message that the command
    has given its KeyboardInterrupt, if any, and exit code 130. Any other exception is a bug and keeps its traceback.

    Raises:
        SystemExit: after the help of a command, or when its arguments do not parse.
    """
    if argv is None:
        warnings.showwarning = _show_warning
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        print(PROG, version(PROG))
        return 0
    try:
        if args and args[0] in COMMANDS:
            return _run(args[0], args[1:])
        if args and args[0] not in ("-h", "--help"):
            raise unknown_name("command", args[0], COMMANDS)
        _overview()
    except ShardGymError as error:
        warn(_with_options(str(error), args), "bold red")
        return ERROR_EXIT_CODE
    except KeyboardInterrupt as interrupt:
        warn(str(interrupt) or "Interrupted.", "bold red")
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:  # the reader of `shard-gym --help | head` has closed standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _with_options(message: str, args: Sequence[str]) -> str:
    """`message` with the options among `args` in place of the parameters of functions that are called so; and in place
    of those in backticks (`as_options`)."""
    message = as_options(message)
    for given in args:
        option = re.fullmatch(r"(--[a-z]+(?:[-_][a-z]+)*)(?:=.*)?", given)
        if option is not None:
            parameter = option[1][2:].replace("-", "_")
            # A single word may be a word of the sentence, unless the sentence says what it must be.
            where = rf"(?<![\w./'-]){parameter}(?![\w(=/'])" if "_" in parameter else rf"^{parameter}(?= must be )"
            message = re.sub(where, f"--{parameter.replace('_', '-')}", message)
    return message


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    warn(str(message))


def _run(name: str, args: Sequence[str]) -> int:
    module = name.replace("-", "_")
    function = getattr(import_module(f"shard_gym.cli.{module}"), module)

    # Called after parsing: within the parser, a ValueError of ours would look like an argument that does not parse.
    @wraps(function)
    def bind(*args: Any, **options: Any) -> Callable[[], int | None]:
        return partial(function, *args, **options)

    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff, tyro.conf.OmitArgPrefixes)
    return tyro.cli(bind, prog=f"{PROG} {name}", args=args, config=config)() or 0


def _overview() -> None:
    """Print a line for each sub-command; imports none of them."""
    console = output()
    console.print(f"usage: {PROG} COMMAND [OPTIONS]\n")
    console.print(f"ShardGym {version(PROG)}: which GPU gets which embedding table of a recommender model.\n")
    table = new_table(header=False)
    table.add_column(no_wrap=True)
    table.add_column(min_width=40)
    for name, text in COMMANDS.items():
        table.add_row(name, text)
    print_table(console, table)
    console.print(f"\n`{PROG} COMMAND --help` explains a command. `{PROG} --version` prints the version.")
