"""The comparison of versions of the cost model: its page is made from the data, and these are of the present one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.io.files import read_json


@pytest.fixture
def compare_versions(tool: Callable[[str], ModuleType]) -> Any:
    return tool("compare_versions")


def test_the_tables_of_the_page_are_those_of_the_data_and_of_the_present_version(compare_versions: Any) -> None:
    records = read_json(compare_versions.DATA)
    assert compare_versions.tables(records) in compare_versions.PAGE.read_text()
    assert records[-1]["cost_model"] == AnalyticalCostModel().fingerprint
    for record in records:
        assert list(record["suites"]) == list(compare_versions.SUITES)


def test_the_text_agrees_with_the_data(compare_versions: Any) -> None:
    text = " ".join(compare_versions.PAGE.read_text().split())
    first, second = (record["suites"] for record in read_json(compare_versions.DATA))

    def above(suite: dict[str, Any]) -> dict[str, float]:
        """Percent above local search, by agent, the best first."""
        costs = {agent: sum(parts) - 100 for agent, parts in suite["forward_exchange_backward"].items()}
        return dict(sorted(costs.items(), key=lambda item: item[1]))

    for suite in ("generalize", "mixdim-4", "mixdim-8"):
        assert list(above(first[suite])) == list(above(second[suite])), suite
    shares = [
        [each[suite]["forward_exchange_backward"]["local-search"][1] for suite in ("dlrm-20x4", "dlrm-50x4")]
        for each in (second, first)
    ]
    (low, high), (low_before, high_before) = ([round(share) for share in each] for each in shares)
    assert f"takes {low} to {high}% of the time of a good placement instead of {low_before} to {high_before}%" in text
    before, after = above(first["mixdim-8"]), above(second["mixdim-8"])
    moved = [after[agent] - before[agent] for agent in ("random", *PAPER_HEURISTICS)]
    assert f"are {min(moved):.0f} to {max(moved):.0f} points further" in text
    assert f"from {before['dreamshard']:.1f} to {after['dreamshard']:.1f}% above local search" in text


def test_agents_are_compared_on_the_tasks_that_all_of_them_place(
    compare_versions: Any, random_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_versions, "MAX_QUERIES", 500)
    tasks = [random_task(np.random.default_rng(seed), 12, 3) for seed in range(3)]
    full = random_task(np.random.default_rng(3), 12, 3, slack=1.0)  # only its known placement fits
    found = compare_versions.compared([tasks[0], full, *tasks[1:]])
    assert found["tasks"] == 3
    percent = {agent: sum(parts) for agent, parts in found["forward_exchange_backward"].items()}
    assert percent["local-search"] == pytest.approx(100, abs=0.02)
    assert min(percent, key=percent.__getitem__) == "local-search"


def test_equal_costs_have_equal_ranks(compare_versions: Any) -> None:
    parts = {agent: [10.0, 50.0, 90.0 - number] for number, agent in enumerate(compare_versions.AGENTS)}
    parts["lane-greedy"] = parts["random"]
    record = {"cost_model": "analytical-v7", "suites": {"one": {"tasks": 3, "forward_exchange_backward": parts}}}
    text = compare_versions.suite_table("one", [record])
    assert "| lane-greedy | 8 | 8.0 | 0 / 0 / 8 |" in text
    assert "| random | 8 | 8.0 | 0 / 0 / 8 |" in text
    assert "| local-search | 1 | 0.0 |  |" in text
