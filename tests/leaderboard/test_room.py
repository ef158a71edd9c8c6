"""The room of the leaderboards: its face, who may import it, and how long the way through it is."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import shard_gym.leaderboard

ROOM = "shard_gym.leaderboard"


@pytest.fixture(scope="module")
def imports(code: ModuleType) -> dict[str, frozenset[str]]:
    """The modules of the package that each of them imports, wherever in its text."""
    found: dict[str, frozenset[str]] = code.module_imports(everywhere=True)
    return found


def test_the_face_names_few_things_and_all_of_them_are_there() -> None:
    pytest.importorskip("pydantic")
    assert len(shard_gym.leaderboard.__all__) <= 15
    for name in shard_gym.leaderboard.__all__:
        found = getattr(shard_gym.leaderboard, name)
        assert getattr(import_module(found.__module__), name) is found
        assert found.__module__.startswith(f"{ROOM}.")
    with pytest.raises(AttributeError, match="no attribute 'leader'"):
        _ = shard_gym.leaderboard.leader


def test_nothing_of_the_package_but_its_command_and_that_of_races_imports_it(
    imports: dict[str, frozenset[str]],
) -> None:
    importers = {
        module
        for module, imported in imports.items()
        if not module.startswith(ROOM) and any(each.startswith(ROOM) for each in imported)
    }
    assert importers == {"shard_gym.cli.leaderboard", "shard_gym.cli.race"}


def test_an_entry_passes_five_modules_on_its_way_to_a_page(imports: dict[str, frozenset[str]]) -> None:
    inside = {
        module: {each for each in imported if each.startswith(f"{ROOM}.")}
        for module, imported in imports.items()
        if module.startswith(f"{ROOM}.")
    }

    def depth(module: str) -> int:
        return 1 + max(map(depth, inside[module]), default=0)

    assert {depth(f"{ROOM}.{page}") for page in ("site", "markdown")} == {5}
    assert max(map(depth, inside)) == 5


def test_a_race_needs_no_extra_of_entries() -> None:
    script = f"import sys; sys.modules['pydantic'] = None; import {ROOM}.racing, {ROOM}.store"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
