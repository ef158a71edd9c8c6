"""Training on tensors computes the estimates of arrays, and reduces the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.common.system import one_thread
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.training import (
    Samples,
    as_arrays,
    estimates,
    new_optimizer,
    paper_loss,
    relative_loss,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.cost_models.neural import NETWORKS
from shard_gym.cost_models.neural.network import NORMALIZATION

every_network = pytest.mark.parametrize("architecture", NETWORKS)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    with one_thread():
        yield


@every_network
def test_tensors_give_the_estimates_of_arrays(architecture: str, fitted: Any, make_costs: Any) -> None:
    """On costs estimated by the network itself, training sees no error except where estimates are clipped."""
    model = fitted(architecture)
    data = make_costs(model, {"test": 30}, seed=1).data
    samples = Samples(data, type(model))
    with torch.no_grad():
        tensors = estimates(trainable(model.weights), samples, np.arange(len(samples)))
    phases, cost = (tensor.numpy() for tensor in tensors)
    np.testing.assert_allclose(phases.clip(min=0), data.phases_ms, rtol=1e-3, atol=1e-4 * data.phases_ms.max())
    unclipped = (phases >= 0).all(axis=(1, 2)) & (cost > 0.5)
    assert unclipped.sum() > 10
    np.testing.assert_allclose(cost[unclipped], data.cost_ms[unclipped], rtol=1e-3)


@pytest.mark.parametrize(
    ("architecture", "loss"), [*((name, relative_loss) for name in NETWORKS), ("dreamshard", paper_loss)]
)
def test_every_trained_weight_gets_a_gradient(architecture: str, loss: Any, untrained: Any, costs: SplitCosts) -> None:
    model = untrained(architecture)
    weights = trainable(model.weights)
    loss(weights, Samples(costs.part("train"), type(model)), np.random.default_rng(0), 64).backward()
    for name, tensor in weights.items():
        if name.endswith(NORMALIZATION):
            assert tensor.grad is None
        else:
            assert tensor.grad is not None, name
            assert torch.isfinite(tensor.grad).all()
            assert tensor.grad.abs().max() > 0, name


@pytest.mark.parametrize("architecture", ["dreamshard", "pooled"])
def test_training_halves_the_loss_and_keeps_the_normalization(
    architecture: str, untrained: Any, costs: SplitCosts
) -> None:
    model = untrained(architecture)
    samples, weights = Samples(costs.part("train"), type(model)), trainable(model.weights)
    before = relative_loss(weights, samples, np.random.default_rng(0), 400).item()
    rng, optimizer = np.random.default_rng(0), new_optimizer(weights)
    assert np.isfinite(train_network(weights, optimizer, samples, rng, steps=40, learning_rate=5e-3))
    assert relative_loss(weights, samples, np.random.default_rng(0), 400).item() < before / 2
    for name, array in as_arrays(weights).items():
        assert np.array_equal(array, model.weights[name]) or not name.endswith(NORMALIZATION)


def test_the_learning_rate_falls_to_its_end(untrained: Any, costs: SplitCosts) -> None:
    model = untrained("neuroshard")
    weights, samples = trainable(model.weights), Samples(costs.part("train"), type(model))
    optimizer = new_optimizer(weights)
    train_network(
        weights, optimizer, samples, np.random.default_rng(0), steps=4, learning_rate=0.4, final_learning_rate=0.2
    )
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25] * 2)


def test_only_matrices_decay(untrained: Any) -> None:
    weights = trainable(untrained("pooled").weights)
    decaying, others = new_optimizer(weights, 0.5).param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    named = {id(tensor): name for name, tensor in weights.items()}
    assert {named[id(tensor)] for tensor in decaying["params"]} == {
        name for name in weights if name.endswith(".weight") and ".shortcut." not in name
    }
    assert len(decaying["params"]) + len(others["params"]) == sum(tensor.requires_grad for tensor in weights.values())


def test_used_devices_are_those_with_tables(untrained: Any, costs: SplitCosts) -> None:
    model, data = untrained("dreamshard"), costs.part("test").take(np.arange(30))
    samples = Samples(data, type(model))
    latents = samples.latents(trainable(model.weights))
    loads = samples.loads(latents, np.arange(len(samples)))
    used = loads[..., model.alone] > 0
    assert len(samples.used_devices) == int(used.sum())
    rows = np.arange(len(samples.used_devices))
    torch.testing.assert_close(samples.device_loads(latents, rows), loads[used], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(samples.used_phases_ms, samples.phases_ms[used])


@every_network
def test_normalization_is_that_of_the_inputs_of_the_layers(architecture: str, costs: SplitCosts) -> None:
    network = NETWORKS[architecture]
    samples = Samples(costs.part("train"), network)
    weights = with_normalization(samples, network.new_weights(np.random.default_rng(0)))
    again = network.fitted_normalization(samples.normalization_data(weights))
    assert again.keys() == {name for name in weights if name.endswith(NORMALIZATION)}
    for name, array in again.items():  # a third round changes nothing
        np.testing.assert_allclose(array, weights[name], rtol=1e-5, err_msg=name)


def test_a_few_enormous_costs_do_not_hide_the_others(untrained: Any, costs: SplitCosts) -> None:
    """The units of costs and phases stay those of most placements, where the means would be of the enormous ones."""
    data, model = costs.part("train"), untrained("pooled")
    times = np.ones(len(data.cost_ms))
    times[: len(times) // 20 + 1] = 1e4
    changed = replace(
        data,
        cost_ms=(data.cost_ms * times).astype(data.cost_ms.dtype),
        phases_ms=(data.phases_ms * times[:, None, None]).astype(data.phases_ms.dtype),
    )
    usual, found = (Samples(each, type(model)) for each in (data, changed))
    assert float(found.cost_unit) < 4 * float(usual.cost_unit)
    scales = [with_normalization(each, model.weights)["phase.scale"] for each in (usual, found)]
    assert (scales[1] < 4 * scales[0]).all()
    assert changed.cost_ms.mean() > 100 * data.cost_ms.mean()
