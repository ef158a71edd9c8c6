"""Every script in tools/ and benchmarks/ can be imported: some take hours, so nothing else runs them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from shard_gym.cli import COMMANDS

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    (path.stem, folder) for folder in ("tools", "benchmarks") for path in sorted((ROOT / folder).glob("[!_]*.py"))
]


NEEDS = {"dropin": "torchrec"}
"""Packages that are not in every environment, by the script that imports them."""


@pytest.mark.parametrize(("name", "folder"), SCRIPTS)
def test_it_can_be_imported_and_says_what_it_does(
    tool: Callable[[str, str], ModuleType], name: str, folder: str
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert tool(name, folder).__doc__


LIST = (ROOT / "tools" / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_list_has_every_script_and_no_other() -> None:
    rows = "\n".join(line.split("|")[1] for line in LIST.splitlines() if line.startswith("|"))
    assert sorted(re.findall(r"`([\w-]+)\.py`", rows)) == sorted(name for name, folder in SCRIPTS if folder == "tools")


def test_the_commands_of_the_list_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    commands = [shlex.split(each) for each in re.findall(r"`((?:make|python|shard-gym) [^`]+)`", LIST)]
    assert len(commands) > 10
    for command, *words in commands:
        if command == "make":
            assert {word for word in words if "=" not in word} <= targets, words
        elif command == "shard-gym":
            assert words[0] in COMMANDS, words
        elif words[0] == "-m":
            assert find_spec(words[1]) is not None, words
        else:
            assert (ROOT / words[0]).is_file(), words


def test_make_runs_the_scripts_that_stand_beside_its_targets() -> None:
    recipes = re.findall(r"^([a-z-]+):.*\n\t\$\(BIN\)/python (tools/\S+)", MAKEFILE, re.MULTILINE)
    made = {target: Path(script).name for target, script in recipes}
    listed = re.findall(r"^\| `(\w+\.py)` \|.*\| `make ([a-z-]+)`", LIST, re.MULTILINE)
    assert len(listed) >= 6
    assert {script: made[target] for script, target in listed} == {script: script for script, _ in listed}
