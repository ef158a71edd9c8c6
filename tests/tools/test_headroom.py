"""The page of the suites: made from the stored numbers, of which a sample is computed again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical import lane_share
from shard_gym.io.files import read_json
from shard_gym.io.markdown import with_block
from shard_gym.leaderboard.ranking import SOLVED
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.gaps import PROVEN
from shard_gym.tasks import TaskSuite


@pytest.fixture
def headroom(tool: Callable[[str], ModuleType]) -> Any:
    return tool("headroom")


def test_the_table_is_made_from_the_stored_numbers(headroom: Any, markdown_rows: Any) -> None:
    record = read_json(headroom.HEADROOM)
    assert record.keys() == {*headroom.about(0), "suites"}
    assert list(record["suites"]) == suite_names("simulated")
    text = headroom.PAGE.read_text()
    assert f"entry is within {100 * SOLVED:g}%" in " ".join(text.split())
    assert f"proven to be within {100 * PROVEN:g}% of the best" in " ".join(text.split())
    assert text == with_block(headroom.PAGE, headroom.BLOCK, headroom.headroom_table(record))
    rows = markdown_rows(text, "## How much of the headroom rests on terms that nobody measured")
    assert len(rows) == len(record["suites"])
    full, *_ = record["suites"]["mixdim-4"]["headroom"]["full model"]
    assert rows["`mixdim-4`"][1].startswith(f"{100 * full:.1f}% (")


def test_the_numbers_are_those_of_this_cost_model(headroom: Any) -> None:
    record = read_json(headroom.HEADROOM)
    hint = "run tools/headroom.py"
    assert headroom.about(record["max_queries"]).items() <= record.items(), hint
    for name, suite in record["suites"].items():
        assert suite["sha256"] == load_suite(name).sha256, hint
    tasks = load_suite("merlin-medium-x8")
    for variant, make in headroom.VARIANTS.items():
        stored = record["suites"][tasks.name]["headroom"][variant]
        assert headroom.headroom(tasks, make(), record["max_queries"]) == pytest.approx(stored, rel=1e-9), hint


def test_the_headroom_is_that_of_the_best_greedy_agent(headroom: Any) -> None:
    tasks, model = TaskSuite("two", load_suite("mixdim-4").tasks[:2]), AnalyticalCostModel()

    def costs(name: str, **options: Any) -> np.ndarray:
        agent = make_agent(name, cost_model=model, **options)
        return np.array([model.estimate(agent.place(task), task.tables, task.topology).total_ms for task in tasks])

    blind = np.min([costs(name) for name in headroom.BLIND], axis=0)
    greedy = np.minimum(blind, costs("cost-greedy"))
    best = np.minimum(greedy, costs("local-search", max_queries=300))
    expected = [(greedy / best - 1).mean(), (blind / best - 1).mean()]
    assert headroom.headroom(tasks, model, 300) == pytest.approx(expected)
    assert 0 < expected[0] <= expected[1]


def test_a_term_that_is_taken_out_makes_no_difference_any_more(headroom: Any, random_task: Any) -> None:
    rng = np.random.default_rng(3)
    task = random_task(rng, 12, 3, dims=(8, 16, 128))
    alone = [np.flatnonzero(task.tables.embedding_dim == dim) for dim in (8, 16, 128)]
    full, own = AnalyticalCostModel(), headroom.OwnLanes()
    for tables in alone:  # devices of one width have the groups of this width in both models
        part, placement = task.tables.select(tables), np.arange(len(tables)) % 3
        costs = [model.estimate(placement, part, task.topology).total_ms for model in (full, own)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    placement = np.zeros(12, np.int64)
    assert len(np.unique(lane_share(task.tables.embedding_dim))) > 1
    mixed = [model.estimate(placement, task.tables, task.topology).total_ms for model in (full, own)]
    assert mixed[1] < mixed[0]
    for variant in ("without gradient cycles", "without both"):
        loads = headroom.VARIANTS[variant]().table_loads(task.tables, task.topology)
        assert not loads[:, headroom.BACKWARD_LANE_MS].any()
        assert loads[:, headroom.FORWARD_LANE_MS].any()
    assert len({make().fingerprint for make in headroom.VARIANTS.values()}) == 4
