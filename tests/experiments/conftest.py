from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shard_gym.experiments.runs import Record, Run, record_path
from shard_gym.io.files import write_json

Make = Callable[..., Record]


@pytest.fixture
def make_record(tmp_path: Path) -> Make:
    """Writes a made-up record of a run into tmp_path."""

    def make(run: Run, mean_ms: float, failures: int = 0, seconds: float = 2.0, queries: int = 100) -> Record:
        own = run.agent == "dreamshard"
        record = {
            "run": run.description(),
            "training": {"seconds": seconds, "queries": queries, "iterations": 1} if run.trained_on else None,
            "test": {
                "costs_ms": {"a": mean_ms - 1.0, "b": mean_ms + 1.0},
                "mean_cost_ms": mean_ms,
                "failures": failures,
                "placing_seconds": 0.05,
                "queries": 0.0 if run.trained_on else 7.0,
            },
            "estimate_errors": {"random": 0.25, "greedy": 0.125, "own": 0.0625} if own else None,
            "made_with": {"machine": "An abacus, 2 cores", "python": "3.11", "numpy": "2.0"},
        }
        write_json(record_path(run, tmp_path), record)
        return record

    return make
