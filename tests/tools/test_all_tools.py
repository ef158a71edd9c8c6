"""Every script in tools/ can be imported: some take hours, so nothing else runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
NAMES = sorted(path.stem for path in TOOLS.glob("[!_]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported_and_says_what_it_does(tool: Callable[[str], ModuleType], name: str) -> None:
    assert tool(name).__doc__
