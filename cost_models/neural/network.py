"""Layers of small dense networks on NumPy arrays or torch tensors: one definition for estimating and for training.

Weights are a dict of arrays, `"<layer>.weight"` (inputs, outputs) and `"<layer>.bias"` (outputs,). With NumPy arrays a
network estimates without torch; with tensors it can be trained. Networks use operations that both libraries have under
one name, and the functions below and of `shard_gym.common.either` for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.either import Array

Weights = Mapping[str, Array]
FloatWeights = dict[str, NDArray[np.float32]]


def relu(values: Array) -> Array:
    """`values` where they are positive, else 0."""
    # NumPy's `clip` takes several times as long, which slows down placing a task step by step.
    return np.maximum(values, 0.0) if isinstance(values, np.ndarray) else values.clamp(min=0)


def softplus(values: Array) -> Array:
    """log(1 + exp(`values`)): a smooth way to be positive."""
    if isinstance(values, np.ndarray):
        return np.logaddexp(values, np.float32(0))
    return values.clamp(min=0) + (-values.abs()).exp().log1p()


def log2(values: Array) -> Array:
    """The binary logarithm."""
    return np.log2(values) if isinstance(values, np.ndarray) else values.log2()


def exp2(values: Array) -> Array:
    """Two to the power of `values`."""
    return np.exp2(values) if isinstance(values, np.ndarray) else values.exp2()


def last(values: Array) -> Array:
    """(..., n) of (n, ...) `values`."""
    return np.moveaxis(values, 0, -1) if isinstance(values, np.ndarray) else values.movedim(0, -1)


def dense(weights: Weights, layer: str, inputs: Array) -> Array:
    """(..., outputs) of one affine layer."""
    weight = weights[f"{layer}.weight"]
    if inputs.dtype != weight.dtype:
        inputs = inputs.astype(weight.dtype)  # NumPy only: products of two precisions are slow
    return inputs @ weight + weights[f"{layer}.bias"]


def mlp(weights: Weights, name: str, inputs: Array) -> Array:
    """(..., outputs) of the layers `name`.0, `name`.1, ... with ReLU between them; the last is affine."""
    values = dense(weights, f"{name}.0", inputs)
    layer = 1
    while f"{name}.{layer}.weight" in weights:
        values = dense(weights, f"{name}.{layer}", relu(values))
        layer += 1
    return _with_shortcut(weights, name, inputs, values)


def heads(weights: Weights, name: str, inputs: Array) -> Array:
    """(..., H) of H networks with one hidden layer and one output each, computed as one wide layer."""
    hidden = relu(dense(weights, f"{name}.hidden", inputs))
    out = weights[f"{name}.out.weight"]
    values = (hidden.reshape((*hidden.shape[:-1], *out.shape)) * out).sum(-1) + weights[f"{name}.out.bias"]
    return _with_shortcut(weights, name, inputs, values)


def _with_shortcut(weights: Weights, name: str, inputs: Array, values: Array) -> Array:
    """`values` plus the affine layer around the network, if it has one; it extrapolates beyond the training data."""
    shortcut = f"{name}.shortcut"
    return values + dense(weights, shortcut, inputs) if f"{shortcut}.weight" in weights else values


def new_mlp(rng: np.random.Generator, name: str, sizes: Sequence[int]) -> FloatWeights:
    """Initial weights of `mlp`: uniform within 1 / sqrt(inputs), the default of torch's linear layers."""
    weights: FloatWeights = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        weights |= new_dense(rng, f"{name}.{layer}", inputs, (inputs, outputs))
    return weights


def new_heads(rng: np.random.Generator, name: str, inputs: int, hidden: int, count: int) -> FloatWeights:
    """Initial weights of `heads`, each head as in `new_mlp`."""
    return {
        **new_dense(rng, f"{name}.hidden", inputs, (inputs, count * hidden)),
        **new_dense(rng, f"{name}.out", hidden, (count, hidden), outputs=count),
    }


def new_shortcut(name: str, inputs: int, outputs: int) -> FloatWeights:
    """Zero weights of the affine layer around the network `name`."""
    return {
        f"{name}.shortcut.weight": np.zeros((inputs, outputs), np.float32),
        f"{name}.shortcut.bias": np.zeros(outputs, np.float32),
    }


def new_dense(
    rng: np.random.Generator, layer: str, fan_in: int, shape: tuple[int, int], outputs: int | None = None
) -> FloatWeights:
    """Initial weights of one layer with `fan_in` inputs to each of its outputs."""
    bound = fan_in**-0.5
    return {
        f"{layer}.weight": rng.uniform(-bound, bound, shape).astype(np.float32),
        f"{layer}.bias": rng.uniform(-bound, bound, outputs or shape[1]).astype(np.float32),
    }


NORMALIZATION = (".mean", ".scale")
"""Endings of the names of weights that are statistics of the training data; they are not trained."""


def new_normalization(name: str, size: int) -> FloatWeights:
    """Weights with which `normalized` changes nothing."""
    return {f"{name}.mean": np.zeros(size, np.float32), f"{name}.scale": np.ones(size, np.float32)}


def normalized(weights: Weights, name: str, values: Array) -> Array:
    """`values` minus the mean and over the spread of the training data."""
    return (values - weights[f"{name}.mean"]) * weights[f"{name}.scale"]


def fitted_normalization(name: str, values: NDArray[np.floating[Any]]) -> FloatWeights:
    """The weights of `normalized` for (n, size) `values`.

    A column that hardly varies is scaled by a tenth of its mean instead of its spread, so that other values do not
    become enormous; a column that does not vary becomes 0.
    """
    mean, spread = values.mean(axis=0), values.std(axis=0)
    unit = np.maximum(spread, np.abs(mean) / 10)
    varies = spread > 1e-4 * np.abs(mean) + 1e-9
    scale = np.divide(1.0, unit, out=np.zeros_like(unit), where=varies)
    return {f"{name}.mean": mean.astype(np.float32), f"{name}.scale": scale.astype(np.float32)}
