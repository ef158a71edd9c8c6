"""Lower bounds that ship with the suites: read back, refused when damaged, and what the solvers say again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError, InvalidTaskError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.tasks import TaskSuite, load_suite, suite_names
from shard_gym.tasks.suites import best_known
from shard_gym.tasks.suites import records as module
from shard_gym.tasks.suites.best_known import best_known_costs
from shard_gym.tasks.suites.bounds import bounds_path, lower_bounds, write_lower_bounds

MODEL = AnalyticalCostModel()
SUITE = load_suite("dlrm-20x4")
BOUNDS = {task.name: 1.5 + number for number, task in enumerate(SUITE)}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "BOUNDS", tmp_path)
    monkeypatch.setattr(best_known, "BEST_KNOWN", tmp_path / "none")
    return write_lower_bounds([SUITE], BOUNDS, MODEL, "Made up.")


@pytest.mark.parametrize("name", suite_names("simulated"))
def test_every_task_has_a_bound_between_that_without_a_solver_and_the_best_known_cost(name: str) -> None:
    suite, best = load_suite(name), best_known_costs(load_suite(name), MODEL)
    bounds = lower_bounds(suite, MODEL)
    assert set(best) == set(bounds) == {task.name for task in suite}
    for task_name, bound in bounds.items():
        task = suite.task(task_name)
        simple = MODEL.bounds(MODEL.loads(task.tables, task.topology), task.topology)[0]
        assert simple * (1 - 1e-9) <= bound <= best[task_name] * (1 + 1e-9)


# Of one dim and of many, of other GPUs, of several hosts, with host memory, and of whole models.
@pytest.mark.parametrize(
    "name", ["dlrm-20x4", "mixdim-8", "mixdim-v100-4", "generalize", "tier-4", "mlperf-x8", "merlin-tiny-x16"]
)
def test_a_shipped_bound_is_at_least_what_linear_programs_say_now(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few programs: of the largest tasks they say a bit less than all of them."""
    pytest.importorskip("scipy")
    from shard_gym.cost_models.bounds import placements as bounds

    monkeypatch.setattr(bounds, "MAX_PROGRAMS", 30)
    suite = load_suite(name)
    for task_name, bound in list(lower_bounds(suite, MODEL).items())[:1]:
        task = suite.task(task_name)
        assert bound >= bounds.lower_bound_ms(task.tables, task.topology, MODEL) * (1 - 1e-6)


def test_what_was_written_is_read_back(written: Path) -> None:
    assert written == bounds_path(SUITE.name)
    assert lower_bounds(SUITE, MODEL) == BOUNDS


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"splits": {"test": {"dlrm-20x4/test/0": -1.0}}}, "positive number"),
        ({"splits": {"test": {"dlrm-20x4/test/0": "1"}}}, "positive number"),
        ({"splits": {"test": {"dlrm-20x4/test/0": 10**400}}}, "positive number"),
    ],
)
def test_a_damaged_file_is_refused(written: Path, change: dict[str, Any], says: str) -> None:
    written.write_text(json.dumps(json.loads(written.read_text()) | change))
    with pytest.raises(DamagedFileError, match=says):
        lower_bounds(SUITE, MODEL)


def test_a_bound_above_the_best_known_cost_is_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    best = best_known_costs(SUITE, MODEL)
    monkeypatch.setattr(module, "BOUNDS", written.parent)
    write_lower_bounds([SUITE], best, MODEL, "They are the best.")
    assert lower_bounds(SUITE, MODEL) == best
    write_lower_bounds([SUITE], best | {SUITE[3].name: 1e6}, MODEL, "Made up.")
    with pytest.raises(DamagedFileError, match=r"'dlrm-20x4/test/3' in .* is 1000000.0 ms, but its best known"):
        lower_bounds(SUITE, MODEL)


def test_only_bounds_of_one_named_suite_are_written(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(InvalidTaskError, match="named suites"):
        write_lower_bounds([TaskSuite("mine", SUITE.tasks)], {}, MODEL, "")
    with pytest.raises(InvalidTaskError, match="nobody"):
        write_lower_bounds([SUITE], {"nobody": 1.0}, MODEL, "")
    assert written.read_bytes() == before
