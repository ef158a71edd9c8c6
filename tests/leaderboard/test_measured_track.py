"""The measured track: placements are executed at submission, and raw timings that cannot be measured are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
from shard_gym.cost_models.measured.model import Measurement
from shard_gym.errors import InvalidOptionError
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard.evaluations import EvaluatedAgent, measure
from shard_gym.leaderboard.store import EntryFolder, entry_folder
from shard_gym.leaderboard.submit import EntryInfo, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.placement import Placement
from shard_gym.suites import load_suite
from shard_gym.tables import Tables
from shard_gym.topology import Topology

SUITE, OTHER = "dlrm-20x4", "merlin-tiny-x8"
GPU = "NVIDIA H200"
ROW3 = "timings.json, task dlrm-20x4/test/3, seed 0"

Change = Callable[[Any], object]


def toml(old: str, new: str) -> Change:
    return lambda entry: entry.toml(old, new)


def rows(change: Callable[[list[dict[str, Any]]], object]) -> Change:
    return lambda entry: entry.rows(change, "timings.json")


def scaled(factor: float) -> Change:
    return rows(lambda rows: rows[3].update(phases_ms=(factor * np.array(rows[3]["phases_ms"])).tolist()))


REFUSED: dict[str, tuple[Change, str]] = {
    "too few iterations": (
        rows(lambda rows: rows[3]["phases_ms"].pop()),
        f"{ROW3}: It was timed 9 times; at least 10",
    ),
    "iterations that are copies": (
        rows(lambda rows: rows[3].update(phases_ms=rows[3]["phases_ms"][:1] * 10)),
        f"{ROW3}: Every iteration took exactly as long as the first",
    ),
    "a device missing": (
        rows(lambda rows: rows[3]["phases_ms"][0].pop()),
        rf"{ROW3}: Every iteration needs times of 4 devices; these have \[3, 4\]",
    ),
    "a phase missing": (
        rows(lambda rows: rows[3]["phases_ms"][0][0].pop()),
        f"{ROW3}: rows.3.phases_ms.0.0 is refused",
    ),
    "negative times": (scaled(-1.0), f"{ROW3}: rows.3.phases_ms.0.0.0 is refused"),
    "no time at all": (scaled(0.0), f"{ROW3}: A device with tables took 0.0 ms"),
    "more time than a failure costs": (scaled(1e8), f"{ROW3}: It took .* ms, more than the penalty"),
    "shortened times": (scaled(0.5), "entry.toml: scores.mean_cost_ms is"),
    "another task's times": (
        rows(lambda rows: rows[3].update(phases_ms=rows[2]["phases_ms"])),
        f"{ROW3}: Its timings equal those of task dlrm-20x4/test/2",
    ),
    "a task not timed": (rows(lambda rows: rows.pop(3)), f"{ROW3}: The task is missing"),
    "no timings of a placement": (
        rows(lambda rows: rows[3].update(phases_ms=None)),
        f"{ROW3}: A task has timings exactly where it has a placement",
    ),
    "the simulated cost model": (toml('name = "measured"', 'name = "analytical"'), "entry.toml: cost_model.name is"),
    "no GPU": (toml('gpu = "NVIDIA H200"\n', ""), "entry.toml: hardware.gpu and hardware.layout are required"),
    "a GPU that is no name": (toml("NVIDIA H200", "../../x"), "entry.toml: hardware.gpu is refused"),
    "a GPU that names the layout": (
        toml("NVIDIA H200", "NVIDIA H200 Sequential"),
        "entry.toml: hardware.gpu is refused: it must not say how",
    ),
    "a layout that does not exist": (toml('"parallel"', '"each"'), "entry.toml: hardware.layout is refused"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_timings_are_refused_at_their_place(measured_entry, case: str) -> None:
    assert measured_entry.findings() == []
    change, expected = REFUSED[case]
    change(measured_entry)
    found = measured_entry.findings()
    assert any(re.match(f"measured/dlrm-20x4/measured-greedy/{expected}", each) for each in found), found


def test_measured_costs_come_from_the_timings_alone(measured_entry) -> None:
    entry, _ = verify_entry(measured_entry.folder)
    assert entry is not None
    rows = json.loads((measured_entry.path / "timings.json").read_text())["rows"]
    ms = np.array(rows[3]["phases_ms"])
    expected = sum(max(np.median(ms[:, device, phase]) for device in range(4)) for phase in range(4))
    assert entry.costs_ms[0, 3] == pytest.approx(expected, rel=1e-12)


# Measuring at submission


class FakeGpu:
    """A measured cost model without a GPU: every device takes a random time."""

    last: FakeGpu

    def __init__(self, *_: Any, **options: Any) -> None:
        FakeGpu.last = self
        self.options = options
        self.machine = SimpleNamespace(device_name=GPU)
        self.measured: list[list[int]] = []
        self.closed = False
        self._rng = np.random.default_rng(0)

    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> Measurement:
        self.measured.append(placement.tolist())
        ms = self._rng.uniform(1.0, 2.0, (10, topology.num_devices, 4))
        phases = np.median(ms, axis=0)
        return Measurement(phases, float(phases.max(axis=0).sum()), ms, spread=0.1, seconds=1.0)

    def __enter__(self) -> FakeGpu:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def agent() -> EvaluatedAgent:
    """A random agent whose first task has no placement, evaluated with five seeds."""
    evaluations = [evaluate(make_agent("random", seed=seed), SUITE) for seed in range(5)]
    first, *others = evaluations[0].tasks
    evaluations[0] = replace(evaluations[0], tasks=(replace(first, placement=None, valid=False), *others))
    return EvaluatedAgent("random", True, tuple(evaluations))


def test_every_placement_is_executed_in_its_order(agent: EvaluatedAgent) -> None:
    gpu, progress = FakeGpu(), []
    rows = measure(gpu, load_suite(SUITE), agent, lambda *done: progress.append(done))
    results = [result for evaluation in agent.evaluations for result in evaluation.tasks]
    assert gpu.measured == [result.placement for result in results if result.placement is not None]
    assert [row["task"] for row in rows] == [result.task for result in results]
    tasks = len(load_suite(SUITE))
    assert [row["seed"] for row in rows] == [seed for seed in range(5) for _ in range(tasks)]
    assert rows[0]["phases_ms"] is None
    assert np.array(rows[1]["phases_ms"]).shape == (10, 4, 4)
    assert progress[-1] == (5 * tasks, 5 * tasks)


def test_an_evaluation_of_other_tasks_is_refused_before_any_is_executed(tmp_path: Path, agent: EvaluatedAgent) -> None:
    info = EntryInfo("Mine", ["Ada Example"], "", "", "a laptop", "0" * 40)
    with pytest.raises(InvalidOptionError, match=r"for the 1 test task of 'merlin-tiny-x8' in order, but"):
        submit(EntryFolder(tmp_path, "measured", OTHER, "mine"), agent, info, lambda: pytest.fail("it was executed"))


def submission(root: Path) -> command.Submit:
    return command.Submit(
        entry=f"measured/{SUITE}/greedy",
        name="Greedy",
        author=["Ada Example"],
        agent=["size-greedy"],
        commit="0" * 40,
        layout="sequential",
        root=root,
    )


def test_submitting_to_the_measured_track_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "this_machine", lambda kind: None)
    monkeypatch.setattr(measured_model, "MeasuredCostModel", FakeGpu)
    submit = submission(tmp_path)
    assert submit.run() == 0
    assert FakeGpu.last.options == {"layout": "sequential"}
    assert FakeGpu.last.closed
    verified, findings = verify_entry(entry_folder(tmp_path, submit.entry))
    assert verified is not None, findings
    assert (verified.entry.hardware.gpu, verified.entry.hardware.layout) == (GPU, "sequential")
    assert 4 < verified.entry.scores.mean_cost_ms < 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_placed_for_the_measured_track(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="CUDA"):
        submission(tmp_path).run()
