from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError, InvalidTaskError, MemoryExceededError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.tasks import TaskSuite, load_suite, suite_names
from shard_gym.tasks.suites import best_known as module
from shard_gym.tasks.suites.best_known import best_known, best_known_costs, best_known_path, write_best_known

MODEL = AnalyticalCostModel()
SUITE = load_suite("dlrm-20x4")


class OtherModel(AnalyticalCostModel):
    name = "other"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of random placements of the test split."""
    monkeypatch.setattr(module, "BEST_KNOWN", tmp_path)
    placements = {task.name: make_agent("random").place(task) for task in SUITE}
    return write_best_known([SUITE], placements, MODEL, "Drawn at random.")


@pytest.mark.parametrize("name", suite_names("simulated"))
def test_shipped_costs_are_those_of_the_shipped_placements(name: str) -> None:
    suite = load_suite(name)
    assert len(best_known(suite, MODEL)) == len(suite)


def test_what_was_written_is_read_back(written: Path) -> None:
    assert written == best_known_path(SUITE.name)
    costs, known = best_known_costs(SUITE, MODEL), best_known(SUITE, MODEL)
    assert list(costs) == [task.name for task in SUITE]
    for task in SUITE:
        placement = make_agent("random").place(task)
        assert costs[task.name] == MODEL.estimate(placement, task.tables, task.topology).total_ms
        assert np.array_equal(known[task.name].answer, placement)


def test_nothing_is_known_for_another_model_another_split_or_a_suite_of_ones_own(written: Path) -> None:
    assert best_known_costs(SUITE, OtherModel()) == {}
    assert best_known_costs(load_suite(SUITE.name, "train"), MODEL) == {}
    assert best_known_costs(TaskSuite(SUITE.name, SUITE.tasks, SUITE.split), MODEL) == {}
    assert best_known_costs(load_suite("dlrm-40x4"), MODEL) == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"suite_sha256": "0" * 64}, "has"),
        ({"schema": 2}, "schema 1"),
        ({"extra": 1}, "the keys"),
        ({"splits": []}, "must map"),
        ({"splits": {"test": []}}, "must map"),
        ({"splits": {"test": {"nobody": {}}}}, "does not have"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {}}}}, "the keys cost_ms"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {"cost_ms": -1, "placement": [0]}}}}, "positive number"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {"cost_ms": True, "placement": [0]}}}}, "positive number"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {"cost_ms": 10**400, "placement": [0]}}}}, "positive number"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {"cost_ms": 1.0, "placement": [0]}}}}, "not valid"),
        ({"splits": {"test": {"dlrm-20x4/test/0": {"cost_ms": 1.0, "placement": [0] * 20}}}}, "not valid"),
    ],
)
def test_a_damaged_file_is_refused(written: Path, change: dict[str, Any], says: str) -> None:
    written.write_text(json.dumps(json.loads(written.read_text()) | change))
    with pytest.raises(DamagedFileError, match=says):
        best_known(SUITE, MODEL)


@pytest.mark.parametrize("cost", [0.001, 1e308])
def test_a_cost_that_is_not_that_of_its_placement_is_refused(written: Path, cost: float) -> None:
    record = json.loads(written.read_text())
    record["splits"]["test"]["dlrm-20x4/test/0"]["cost_ms"] = cost
    written.write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=r"task 'dlrm-20x4/test/0' in .* costs \d+\.\d+ ms, and not"):
        best_known(SUITE, MODEL)


def test_only_valid_placements_of_one_named_suite_are_written(written: Path) -> None:
    before = written.read_bytes()
    task = SUITE.task(0)
    placement = make_agent("random").place(task)
    with pytest.raises(InvalidTaskError, match="named suites"):
        write_best_known([TaskSuite("mine", SUITE.tasks)], {}, MODEL, "")
    with pytest.raises(InvalidTaskError, match="named suites"):
        write_best_known([SUITE, load_suite("dlrm-40x4")], {}, MODEL, "")
    with pytest.raises(InvalidTaskError, match="nobody"):
        write_best_known([SUITE], {"nobody": placement}, MODEL, "")
    with pytest.raises(MemoryExceededError):
        write_best_known([SUITE], {task.name: np.zeros(20, np.int64)}, MODEL, "")
    assert written.read_bytes() == before
