"""The table features as DreamShard and NeuroShard read them, plain numbers; and their table network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.either import Array, joined
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.tables import FEATURE_NAMES
from shard_gym.tables.tables import FEATURE_MEAN, FEATURE_STD

LATENT = 32

SCALED = len(FEATURE_MEAN)
"""Features that `Tables.features` gives as standardized logarithms; the reuse bins after them are shares."""


def plain_features(features: Array) -> Array:
    """(..., 21): dim, rows, pooling factor and GiB of each table, then the reuse bins, from `Tables.features`.

    The cost of a device is nearly linear in these numbers. With their logarithms as inputs, a small network that sums
    over tables has an error several times as large after a hundred placements.
    """
    columns = [
        net.exp2(features[..., k : k + 1] * std + mean) - 1.0
        for k, (mean, std) in enumerate(zip(FEATURE_MEAN, FEATURE_STD, strict=True))
    ]
    plain = joined([*columns, features[..., SCALED:]])
    return plain.astype(np.float32) if isinstance(plain, np.ndarray) else plain


def new_table_network(rng: np.random.Generator) -> FloatWeights:
    """Initial weights of `table_latents`, which normalize nothing."""
    size = len(FEATURE_NAMES)
    return {**net.new_normalization("features", size), **net.new_mlp(rng, "table", (size, 128, LATENT))}


def table_latents(weights: Weights, plain: Array) -> Array:
    """(..., 32) of tables with (..., 21) plain features: an MLP (21, 128, 32), ReLU on both layers."""
    return net.relu(net.mlp(weights, "table", net.normalized(weights, "features", plain)))


def fitted_feature_normalization(plain: NDArray[np.float32]) -> FloatWeights:
    """The weights that normalize (M, 21) plain features over the training tables; the reuse bins stay as they are."""
    weights = net.new_normalization("features", len(FEATURE_NAMES))
    for name, values in net.fitted_normalization("features", plain[:, :SCALED]).items():
        weights[name][:SCALED] = values
    return weights
