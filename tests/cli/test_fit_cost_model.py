from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.fitting import PlacementSampler, collect, load_measurements
from shard_gym.cost_models.fitting.metrics import estimates_of
from shard_gym.cost_models.neural import load_cost_model
from shard_gym.tables import Workload

STEPS = ("--steps", 200)


def test_a_fit_beats_a_constant_guess(run, data: Path, tmp_path: Path) -> None:
    outcome = run.ok("fit-cost-model", data, "--out", tmp_path, "--network", "pooled", *STEPS)
    train = len(load_measurements(data).first.part("train"))
    said = f"{data} has 300 placements, {train} of them to train on: 1,000 or more are recommended."
    assert said in " ".join(outcome.err.split())
    model, measured = load_cost_model(tmp_path / "pooled.safetensors"), load_measurements(data)
    said, cost = estimates_of(model, measured.test)[1], measured.test.cost_ms
    guess = np.median(measured.first.part("train").cost_ms)
    assert np.abs(said / cost - 1).mean() < 0.2 * np.abs(guess / cost - 1).mean()
    printed = {
        line.split()[0]: line.split()[1:] for line in outcome.out.splitlines() if line.startswith(("lin", "poo"))
    }
    assert float(printed["pooled"][0]) == pytest.approx(100 * np.abs(said / cost - 1).mean(), abs=0.06)
    assert list(printed) == ["linear", "pooled"]


def test_every_data_set_has_its_own_models(run, measured_into, tmp_path: Path) -> None:
    for size in (512, 1024):
        measured_into(tmp_path / "data" / f"batch-{size}", 10, size)
    outcome = run.ok(
        "fit-cost-model", tmp_path / "data", "--out", tmp_path / "out", "--network", "pooled", "--steps", 2
    )
    for size in (512, 1024):
        card = load_cost_model(tmp_path / "out" / f"batch-{size}" / "pooled.safetensors").card
        assert card["data"]["workload"]["batch_size"] == size
        assert card["ranking"] == {}, "too few placements"
        assert f"{size:,} samples" in outcome.out


def test_the_linear_model_has_no_file(run, data: Path, tmp_path: Path) -> None:
    outcome = run.ok("fit-cost-model", data, "--out", tmp_path / "new", "--network", "linear")
    assert "linear" in outcome.out
    assert "Written" not in outcome.out
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--network", "pooledd"), "There is no network named 'pooledd'. Did you mean 'pooled'?"),
        (("--steps", 0), "--steps must be an integer of at least 1"),
        (("--learning-rate", 0), "--learning-rate must be a positive number"),
    ],
)
def test_bad_options_are_refused(run, data: Path, tmp_path: Path, args: tuple[object, ...], words: str) -> None:
    run.refused(words, "fit-cost-model", data, "--out", tmp_path / "new", *args)
    assert not (tmp_path / "new").exists()


def test_too_little_data_is_refused(run, measured_into, tmp_path: Path) -> None:
    run.refused(
        "too small to fit a model to", "fit-cost-model", measured_into(tmp_path / "data", 3), "--out", tmp_path / "new"
    )
    assert run("fit-cost-model", tmp_path / "nowhere", "--out", tmp_path / "new").code == 2


def test_of_data_with_plans_the_network_that_estimates_them_is_fitted(run, tmp_path: Path) -> None:
    sampler = PlacementSampler(Workload(512), "cpu", 2, 2**31, plan_share=0.5, tables_per_device=5)
    collect(AnalyticalShardingModel, tmp_path / "data", sampler, count=60)
    outcome = run.ok("fit-cost-model", tmp_path / "data", "--out", tmp_path / "out", "--steps", 2)
    assert "plans, which neuroshard, dreamshard cannot estimate, so pooled alone" in " ".join(outcome.err.split())
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["pooled.md", "pooled.safetensors"]
    given = ("fit-cost-model", tmp_path / "data", "--out", tmp_path / "other", "--network", "neuroshard")
    run.refused("The data have plans, which neuroshard cannot estimate. Pass --network pooled.", *given)
    assert not (tmp_path / "other").exists()
