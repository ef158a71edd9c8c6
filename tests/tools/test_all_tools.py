"""Every script in tools/ and benchmarks/ can be imported: some take hours, so nothing else runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    (path.stem, folder) for folder in ("tools", "benchmarks") for path in sorted((ROOT / folder).glob("[!_]*.py"))
]


@pytest.mark.parametrize(("name", "folder"), SCRIPTS)
def test_it_can_be_imported_and_says_what_it_does(
    tool: Callable[[str, str], ModuleType], name: str, folder: str
) -> None:
    if name == "measure_operators":
        pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")
    assert tool(name, folder).__doc__
