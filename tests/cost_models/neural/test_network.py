"""Layers: the same numbers from NumPy and from torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shard_gym.common.either import joined, largest
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.features import plain_features

RNG = np.random.default_rng(0)
WEIGHTS = {
    **net.new_mlp(RNG, "mlp", (7, 16, 8, 3)),
    **net.new_mlp(RNG, "bent", (7, 16, 3)),
    **net.new_dense(RNG, "bent.shortcut", 7, (7, 3)),
    **net.new_heads(RNG, "heads", 7, 16, 3),
    "seven.mean": RNG.normal(size=7).astype(np.float32),
    "seven.scale": RNG.uniform(0.5, 2, 7).astype(np.float32),
}
INPUTS = np.abs(RNG.normal(size=(4, 5, 7))).astype(np.float32)


@pytest.mark.parametrize(
    "operation",
    [
        lambda weights, x: net.mlp(weights, "mlp", x),
        lambda weights, x: net.mlp(weights, "bent", x),
        lambda weights, x: net.heads(weights, "heads", x),
        lambda weights, x: net.normalized(weights, "seven", x),
        lambda weights, x: largest(x, -2),
        lambda weights, x: joined([net.relu(x - 1.0), net.log2(x + 1.0), net.exp2(x)]),
        lambda weights, x: plain_features(joined([x, x, x])),
    ],
    ids=["mlp", "mlp with shortcut", "heads", "standardised", "largest", "joined", "plain features"],
)
def test_numpy_and_torch_agree(operation: Callable[..., object]) -> None:
    tensors = {name: torch.tensor(array) for name, array in WEIGHTS.items()}
    plain, tensor = operation(WEIGHTS, INPUTS), operation(tensors, torch.tensor(INPUTS))
    assert isinstance(plain, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_heads_are_networks_side_by_side() -> None:
    hidden, out = WEIGHTS["heads.hidden.weight"].reshape(7, 3, 16), WEIGHTS["heads.out.weight"]
    for head in range(3):
        own = np.maximum(INPUTS @ hidden[:, head] + WEIGHTS["heads.hidden.bias"].reshape(3, 16)[head], 0)
        expected = own @ out[head] + WEIGHTS["heads.out.bias"][head]
        np.testing.assert_allclose(net.heads(WEIGHTS, "heads", INPUTS)[..., head], expected, rtol=1e-5, atol=1e-6)


def test_float64_inputs_are_computed_in_the_precision_of_the_weights() -> None:
    assert net.mlp(WEIGHTS, "mlp", INPUTS.astype(np.float64)).dtype == np.float32


def test_a_new_shortcut_adds_nothing() -> None:
    bent = {name.replace("mlp", "x"): array for name, array in WEIGHTS.items() if name.startswith("mlp")}
    straight = net.mlp(bent, "x", INPUTS)
    assert np.array_equal(net.mlp({**bent, **net.new_shortcut("x", 7, 3)}, "x", INPUTS), straight)


def test_what_is_measured_standardises() -> None:
    values = np.stack([RNG.normal(100, 50, 500), RNG.normal(1000, 1, 500), np.full(500, 7.0)], axis=1)
    out = net.normalized(net.fitted_normalization("x", values), "x", values)
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(out.std(axis=0), [1.0, 0.01, 0.0], rtol=0.1)  # by its spread, a tenth of its mean, not
