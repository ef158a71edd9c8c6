"""Raw timings taken at submission: every placement is executed, and what was timed is what is ranked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents import make_agent
from shard_gym.cli import leaderboard as command
from shard_gym.cost_models.measured import model as measured_model
from shard_gym.cost_models.measured.model import MeasuredCostModel, Measurement
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard.store import place_of
from shard_gym.leaderboard.timing import measured_timings
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tables import Tables
from shard_gym.topology import Topology

SUITE, OTHER = "dlrm-20x4", "merlin-tiny-x8"
GPU = "NVIDIA H200"


class Stopwatch:
    """Stands in for a GPU: every device takes a random time."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self.options = options
        self.machine = SimpleNamespace(device_name=GPU)
        self.asked: list[list[int]] = []
        self.closed = False
        self._rng = np.random.default_rng(0)

    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> Measurement:
        self.asked.append(placement.tolist())
        ms = self._rng.uniform(1.0, 2.0, (10, topology.num_devices, 4))
        phases = np.median(ms, axis=0)
        return Measurement(phases, float(phases.max(axis=0).sum()), ms, spread=0.1, seconds=1.0)

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def evaluations() -> list[Evaluation]:
    return [evaluate(make_agent("random", seed=seed), SUITE) for seed in (0, 1)]


def test_every_placement_is_executed_in_its_order(evaluations: list[Evaluation]) -> None:
    stopwatch, told = Stopwatch(), []
    rows = json.loads(measured_timings(stopwatch, load_suite(SUITE), evaluations, (0, 1), lambda *at: told.append(at)))
    assert stopwatch.asked == [result.placement for each in evaluations for result in each.tasks]
    tasks = len(load_suite(SUITE))
    assert [row["seed"] for row in rows["rows"]] == [0] * tasks + [1] * tasks
    assert np.array(rows["rows"][0]["phases_ms"]).shape == (10, 4, 4)
    assert told[-1] == (2 * tasks, 2 * tasks)


def test_what_was_not_placed_is_not_timed(evaluations: list[Evaluation]) -> None:
    first = evaluations[0]
    failed = replace(first, tasks=(replace(first.tasks[0], placement=None, valid=False), *first.tasks[1:]))
    stopwatch = Stopwatch()
    rows = json.loads(measured_timings(stopwatch, load_suite(SUITE), [failed], (0,)))["rows"]
    assert rows[0]["phases_ms"] is None
    assert len(stopwatch.asked) == len(first.tasks) - 1


def test_an_evaluation_of_other_tasks_is_refused_before_any_is_executed(evaluations: list[Evaluation]) -> None:
    stopwatch = Stopwatch()
    with pytest.raises(InvalidOptionError, match=r"which are not the .* test tasks of 'merlin-tiny-x8'"):
        measured_timings(stopwatch, load_suite(OTHER), evaluations, (0, 1))
    assert stopwatch.asked == []


def submission(root: Path) -> command.Submit:
    return command.Submit(
        entry=f"measured/{SUITE}/greedy",
        name="Greedy",
        author=["Ada Example"],
        agent=["size-greedy"],
        commit="0" * 40,
        layout="in-turn",
        root=root,
    )


def test_an_entry_of_the_measured_track_is_measured_when_it_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Stopwatch] = []

    class Kept(Stopwatch):
        version = MeasuredCostModel.version

        def __init__(self, *kind: str, **options: Any) -> None:
            super().__init__(*kind, **options)
            made.append(self)

    monkeypatch.setattr(command, "this_machine", lambda kind: None)
    monkeypatch.setattr(measured_model, "MeasuredCostModel", Kept)
    submit = submission(tmp_path)
    assert submit.run() == 0
    assert made[0].options == {"layout": "in-turn"}
    assert made[0].closed
    verified, findings = verify_entry(place_of(tmp_path, submit.entry))
    assert verified is not None, findings
    assert (verified.entry.hardware.gpu, verified.entry.hardware.layout) == (GPU, "in-turn")
    assert 4 < verified.entry.scores.mean_cost_ms < 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_placed_for_the_measured_track(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="CUDA"):
        submission(tmp_path).run()
