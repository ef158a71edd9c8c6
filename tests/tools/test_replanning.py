"""The page of the agents of replanning shows the data."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from shard_gym.common.io.files import read_json
from shard_gym.common.io.markdown import with_block


@pytest.fixture
def results(tool: Callable[[str], ModuleType]) -> Any:
    return tool("replanning")


def test_the_page_shows_the_data_as_they_are(results: Any) -> None:
    data = read_json(results.DATA)
    assert with_block(results.PAGE, "results", results.results(data)) == results.PAGE.read_text(encoding="utf-8")
    for found in data["suites"].values():
        assert set(found["agents"]) <= {*results.LABELS}
    assert with_block(results.PAGE, "gains", results.gains(data)) == results.PAGE.read_text(encoding="utf-8")


def test_means_and_standard_errors_are_over_tasks(results: Any) -> None:
    """Of two seeds on three tasks: means over seeds 0.02, 0.04, 0.06; their standard error is 0.02 / sqrt(3)."""
    runs = [{"excess": [0.01, 0.05, 0.06]}, {"excess": [0.03, 0.03, 0.06]}]
    text = results.results({"suites": {"drift-strong-600": {"agents": {"never": runs}}}})
    assert "| never | 4.0 ± 1.2 |" in text
