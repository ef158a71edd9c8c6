from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shard_gym.experiments import runs
from shard_gym.experiments.runs import record_path
from shard_gym.experiments.study import METHODS, REFERENCES, Method, Study

TINY = ("--seeds", 1, "--sections", "suites", "--suites", "dlrm-20x4", "--methods", "rnn", "--iterations", 1)


class InThisProcess(ThreadPoolExecutor):
    """Saves the start of a process for each run; tests/experiments/test_runs.py has processes."""

    def __init__(self, workers: int, *_: object) -> None:
        super().__init__(workers)


def test_runs_are_made_once_and_reported(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "ProcessPoolExecutor", InThisProcess)
    small = Method("local-search", "local-search", learns=False, options={"max_queries": 100})
    monkeypatch.setitem(REFERENCES, "local-search", small)
    monkeypatch.setitem(METHODS, "local-search", small)
    asked = ("experiment", "dreamshard", "--out", tmp_path / "out", "--runs", tmp_path / "runs", *TINY)
    study = Study(1, ("suites",), ("dlrm-20x4",), ("rnn",), 1)
    first = run(*asked)
    assert first.code == 0, first.err
    assert all(record_path(each, tmp_path / "runs").exists() for each in study.runs())
    page = (tmp_path / "out" / "dreamshard.md").read_text()
    assert "shard-gym experiment dreamshard --seeds 1 --sections suites --suites dlrm-20x4" in page
    assert "| rnn |" in page
    assert "## Missing" not in page
    monkeypatch.setattr(runs, "ProcessPoolExecutor", None)  # calling it would be a TypeError
    assert run(*asked).code == 0
    assert (tmp_path / "out" / "dreamshard.md").read_text() == page


def test_report_only_makes_no_run(run, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    outcome = run(
        "experiment", "dreamshard", "--out", tmp_path / "out", "--runs", tmp_path / "runs", *TINY, "--report-only"
    )
    assert outcome.code == 0
    assert "not made yet; the page names them" in outcome.out.replace("\n", " ")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--report-only",), "with records of runs, so there is nothing to report"),
        (("--sections", "budgets"), "There is no section named 'budgets'. Did you mean 'budget'?"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(run, tmp_path: Path, options, says: str) -> None:
    outcome = run("experiment", "dreamshard", *options, "--runs", tmp_path / "no", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert says in outcome.err.replace("\n", " ")
    assert not list(tmp_path.iterdir())
