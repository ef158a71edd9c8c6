from __future__ import annotations

import pytest

from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.experiments.report import TABLES
from shard_gym.experiments.study import ABLATIONS, LEARNED, METHODS, SECTIONS, STABLE_BASELINES, Study, dreamshard
from shard_gym.suites import suite_info


def test_every_section_has_runs_and_tables() -> None:
    settings = Study(seeds=1).settings()
    assert set(settings) == set(SECTIONS) == set(TABLES)
    assert set(Study(seeds=1).runs()) < set(Study(seeds=3).runs())
    assert all(settings.values())
    assert all(suite_info(suite).tasks.get("train") for section in SECTIONS.values() for suite in section.suites)


def test_runs_of_two_sections_are_made_once() -> None:
    suites, transfer = (set(Study(seeds=2, sections=(section,)).runs()) for section in ("suites", "transfer"))
    trained_where_tested = {run for run in transfer if run.trained_on == run.test}
    assert trained_where_tested
    assert trained_where_tested < suites
    assert {run.training_key for run in transfer} <= {run.training_key for run in suites}


def test_a_preset_with_its_own_number_of_measurements_is_the_preset() -> None:
    suites = ("dlrm-50x4", "dlrm-50x4", 1)
    assert dreamshard("paper", "paper", measurements=10).runs(*suites) == LEARNED["paper"].runs(*suites)
    assert dreamshard("paper", "paper", measurements=20).runs(*suites) != LEARNED["paper"].runs(*suites)


def test_methods_of_a_table_differ() -> None:
    for methods in (METHODS, STABLE_BASELINES, ABLATIONS):
        runs = [method.runs("dlrm-20x4", "dlrm-20x4", 1) for method in methods.values()]
        assert len(set(runs)) == len(runs)


def test_a_study_has_only_the_runs_that_were_chosen() -> None:
    study = Study(1, ("suites",), ("dlrm-20x4",), ("rnn",), 2)
    trained = [run for run in study.runs() if run.trained_on]
    assert [(run.agent, run.test, dict(run.options)) for run in trained] == [("rnn", "dlrm-20x4", {"iterations": 2})]
    assert {run.agent for run in study.runs()} >= {"local-search", "size-greedy"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"seeds": 0}, InvalidOptionError, "seeds must be an integer of at least 1, not 0"),
        ({"sections": ("suite",)}, UnknownNameError, "no section named 'suite'. Did you mean 'suites'"),
        ({"methods": ("papers",)}, UnknownNameError, "no method named 'papers'"),
        ({"suites": ("dlrm",)}, UnknownNameError, "dlrm"),
        ({"suites": ("mlperf-x8",)}, InvalidOptionError, "has no training tasks"),
    ],
)
def test_unknown_names_and_impossible_numbers_are_refused(changes, error, words) -> None:
    with pytest.raises(error, match=words):
        Study(**changes)
