"""A fit beats the linear baseline on test tables, keeps its best weights, and is reproducible."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, TrainingDivergedError, UnknownNameError
from shard_gym.cost_models.fitting import FitOptions, fit_cost_model, fit_networks
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.fit import FitProgress, validation_error
from shard_gym.cost_models.fitting.linear import fit_linear
from shard_gym.cost_models.fitting.metrics import errors
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel

SHORT = FitOptions(steps=40, batch_size=16, check_every=20)


@pytest.mark.parametrize("architecture", ["dreamshard", "neuroshard", "pooled"])
def test_a_network_beats_the_linear_model_on_unseen_tables(architecture: str, fitted: Any, costs: SplitCosts) -> None:
    network, linear = (errors(m, costs.part("test")) for m in (fitted(architecture), fit_linear(costs.part("train"))))
    assert network.cost.mape < linear.cost.mape
    assert network.cost.ratio < linear.cost.ratio
    if architecture != "dreamshard":  # which knows neither the number of devices nor what others send
        assert network.cost.mape < linear.cost.mape / 2
        for phase in ("forward_comm", "backward_comm"):
            assert network.phases[phase].mape < linear.phases[phase].mape / 4


def test_the_best_weights_are_kept_and_a_fit_that_gets_worse_ends(costs: SplitCosts) -> None:
    seen: list[FitProgress] = []
    options = FitOptions(steps=1_000, learning_rate=0.3, batch_size=8, check_every=10, patience=3)
    model = fit_cost_model(DreamShardCostModel, costs, seed=0, options=options, on_progress=seen.append)
    best = min(seen, key=lambda progress: progress.validation_error)
    assert seen[-1].step < 1_000
    assert seen[-1].step - best.step == 3 * 10
    assert {progress.best_step for progress in seen[-3:]} == {best.step}
    assert validation_error(model, costs.part("validation")) == best.validation_error
    record = model.card["fit"]
    assert (record["best_step"], record["steps_done"]) == (best.step, seen[-1].step)


def test_a_fit_that_diverges_is_refused(costs: SplitCosts) -> None:
    with pytest.raises(TrainingDivergedError, match="learning_rate"):
        fit_cost_model("pooled", costs, seed=0, options=replace(SHORT, learning_rate=1e9))


def test_progress_and_record_describe_the_fit(costs: SplitCosts) -> None:
    seen: list[FitProgress] = []
    model = fit_cost_model("neuroshard", costs, seed=3, options=replace(SHORT, steps=50), on_progress=seen.append)
    assert [(progress.step, progress.steps) for progress in seen] == [(20, 50), (40, 50), (50, 50)]
    assert all(np.isfinite([progress.loss, progress.validation_error]).all() for progress in seen)
    record = json.loads(json.dumps(model.card["fit"], allow_nan=False))
    assert (record["seed"], record["steps"], record["steps_done"]) == (3, 50, 50)
    assert set(record["versions"]) == {"shard-gym", "numpy", "torch"}


def test_weights_follow_from_the_seed_and_not_from_validation_tables(costs: SplitCosts) -> None:
    """Other costs of validation tables do not change the weights of the first validation."""
    data = costs.data
    doubled = np.where(costs.placement_split == 1, 2.0, 1.0)
    changed = replace(data, cost_ms=data.cost_ms * doubled, phases_ms=data.phases_ms * doubled[:, None, None])
    options = FitOptions(steps=20, batch_size=16, check_every=20)
    one, same, other = (
        fit_cost_model("pooled", each, seed=seed, options=options).fingerprint
        for each, seed in ((costs, 0), (SplitCosts(changed, costs.table_split), 0), (costs, 1))
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("name", "value"), [("steps", 0), ("patience", True), ("learning_rate", 0.0), ("weight_decay", -1)]
)
def test_options_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=name):
        FitOptions(**{name: value})


def test_what_cannot_be_fitted_is_refused(costs: SplitCosts) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'pooled'"):
        fit_cost_model("poold", costs, seed=0)
    with pytest.raises(InvalidOptionError, match="seed is an integer"):
        fit_cost_model("pooled", costs, seed=-1)
    alone = SplitCosts(costs.part("train"), costs.table_split)
    with pytest.raises(InvalidOptionError, match="'validation'"):
        fit_cost_model("pooled", alone, seed=0)
    with pytest.raises(InvalidOptionError, match="must be Measurements, such as those of load_workloads"):
        fit_networks("folder", "out")  # type: ignore[arg-type]
