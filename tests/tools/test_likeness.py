"""The table of likeness in leaderboards/README.md: a row of it is computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2] / "leaderboards"
BOARD = ("simulated", "dlrm-20x4")


def test_the_table_of_the_readme_has_what_is_measured(tool: Callable[[str], ModuleType]) -> None:
    pytest.importorskip("pydantic")
    from shard_gym.leaderboard.store import find_entries
    from shard_gym.leaderboard.verify import verify_entry

    entries = [verify_entry(each)[0] for each in find_entries(ROOT)[0] if each.board == BOARD]
    cells, found = tool("likeness").row(BOARD, entries)
    assert f"| {' | '.join(cells)} |" in (ROOT / "README.md").read_text()
    assert len(found) == len(entries)
