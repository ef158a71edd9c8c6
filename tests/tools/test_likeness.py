"""The table of likeness in docs/results/leaderboard-checks.md: a row of it is computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2] / "leaderboards"
PAGE = ROOT.parent / "docs" / "results" / "leaderboard-checks.md"
BOARD = ("simulated", "mixdim-v100-4")  # of few entries


def test_the_table_of_the_page_has_what_is_measured(tool: Callable[[str], ModuleType]) -> None:
    pytest.importorskip("pydantic")
    from shard_gym.leaderboard import find_entries, verify_entry

    entries = [verify_entry(each)[0] for each in find_entries(ROOT)[0] if each.board == BOARD]
    cells, found = tool("likeness").row(BOARD, entries)
    assert f"| {' | '.join(cells)} |" in PAGE.read_text()
    assert len(found) == len(entries)
