"""The policy network of DreamShard: a score for every device, from the tables it holds and its estimated times.

As in the cost networks, weights are a dict of arrays, and the functions work on NumPy arrays (placing) and torch
tensors (training) alike. The weights do not depend on the numbers of tables and devices.

Sizes and activations are those of daochenzha/dreamshard, dreamshard/models.py. A device is represented by its sum of
table latents beside an MLP (3, 64, 32, ReLU on both layers) of its estimated times for forward, communication and
backward; one affine layer scores it. The table to place is not an input: the order of the tables implies it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.features import (
    LATENT,
    fitted_feature_normalization,
    new_table_network,
    plain_features,
)
from shard_gym.cost_models.neural.network import Array, FloatWeights, Weights


def new_policy(rng: np.random.Generator, features: NDArray[np.float32] | None = None) -> FloatWeights:
    """Weights of an untrained policy, whose inputs are normalized over (M, 21) `features` of the training tables."""
    return {
        **new_table_network(rng),
        **net.new_mlp(rng, "costs", (3, 64, LATENT)),
        **net.new_dense(rng, "score", 2 * LATENT, (2 * LATENT, 1)),
        **({} if features is None else fitted_feature_normalization(plain_features(features))),
    }


def device_scores(weights: Weights, latent_sums: Array, costs_ms: Array) -> Array:
    """(..., D) scores, whose softmax over the legal devices is the policy.

    They follow from the (..., D, 32) sums of the latents of each device's tables and its (..., D, 4) estimated phases.
    """
    costs = net.relu(net.mlp(weights, "costs", costs_ms[..., [0, 2, 3]]))
    return net.dense(weights, "score", net.joined([latent_sums, costs]))[..., 0]
