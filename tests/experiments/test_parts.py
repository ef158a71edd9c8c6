from __future__ import annotations

import pytest

from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.experiments.methods import ABLATIONS, LEARNED, METHODS, STABLE_BASELINES, measured
from shard_gym.experiments.parts import PARTS, Plan
from shard_gym.experiments.report import SECTIONS
from shard_gym.suites import suite_info


def test_every_part_asks_something_and_has_a_section() -> None:
    cells = Plan(seeds=1).cells()
    assert set(cells) == set(PARTS) == set(SECTIONS)
    assert all(cells.values())
    assert all(suite_info(suite).tasks.get("train") for part in PARTS.values() for suite in part.suites)


def test_what_two_parts_need_is_made_once() -> None:
    suites, transfer, time = (set(Plan(seeds=2, parts=(part,)).runs()) for part in ("suites", "transfer", "time"))
    assert time < suites
    at_home = {run for run in transfer if run.trained_on == run.test}
    assert at_home
    assert at_home < suites
    trainings = {run.training_key for run in transfer}
    assert trainings <= {run.training_key for run in suites}


def test_a_preset_with_its_own_number_of_measurements_is_the_preset() -> None:
    ask = ("dlrm-50x4", "dlrm-50x4", 1, None)
    assert measured("paper", 10).runs(*ask) == LEARNED["paper"].runs(*ask)
    assert measured("paper", 20).runs(*ask) != LEARNED["paper"].runs(*ask)


def test_methods_of_a_table_differ() -> None:
    for methods in (METHODS, STABLE_BASELINES, ABLATIONS):
        runs = [method.runs("dlrm-20x4", "dlrm-20x4", 1, None) for method in methods.values()]
        assert len(set(runs)) == len(runs)


def test_more_seeds_keep_the_runs_there_are() -> None:
    assert set(Plan(seeds=1).runs()) < set(Plan(seeds=3).runs())


def test_a_plan_asks_for_no_more_than_it_is_told() -> None:
    plan = Plan(1, ("suites",), ("dlrm-20x4",), ("rnn",), 2)
    trained = [run for run in plan.runs() if run.trained_on]
    assert [(run.agent, run.test, dict(run.options)) for run in trained] == [("rnn", "dlrm-20x4", {"iterations": 2})]
    assert {run.agent for run in plan.runs()} >= {"local-search", "size-greedy"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"seeds": 0}, InvalidOptionError, "seeds must be at least 1, not 0"),
        ({"parts": ("suite",)}, UnknownNameError, "no part named 'suite'. Did you mean 'suites'"),
        ({"methods": ("papers",)}, UnknownNameError, "no method named 'papers'"),
        ({"suites": ("dlrm",)}, UnknownNameError, "dlrm"),
        ({"suites": ("mlperf-x8",)}, InvalidOptionError, "has no training tasks"),
    ],
)
def test_a_plan_of_nothing_real_is_refused(changes, error, words) -> None:
    with pytest.raises(error, match=words):
        Plan(**changes)
