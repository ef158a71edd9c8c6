"""DreamShard's policy: a score for every device, from the tables it holds and what they are estimated to cost.

Like the cost networks, a policy is a dict of weights and functions of them that serve NumPy (placing) and torch
(training) alike; its weights know nothing of how many tables or devices there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.neural.features import (
    fitted_feature_normalization,
    new_feature_normalization,
    plain_features,
)
from shard_gym.cost_models.neural.network import (
    Array,
    FloatWeights,
    Weights,
    dense,
    joined,
    largest,
    mlp,
    new_dense,
    new_mlp,
    normalized,
    relu,
)
from shard_gym.tables import FEATURE_NAMES

LATENT = 32


@dataclass(frozen=True)
class PolicyInput:
    """What a policy looks at before a table is placed; arrays of NumPy or torch, `...` episodes and steps.

    Attributes:
        held: (..., D, 32) sums of the latents of the tables on each device.
        costs_ms: (..., D, 4) estimated ms of each phase of each device.
        used: (..., D) share of the memory cap in use.
        table: (..., 32) latents of the table to place.
        table_costs_ms: (..., 4) estimated ms of each phase with that table alone on a device.
        device_mask: (..., D) 1 where there is a device, float.
    """

    held: Array
    costs_ms: Array
    used: Array
    table: Array
    table_costs_ms: Array
    device_mask: Array


class Policy(ABC):
    """Functions from weights to scores.

    Attributes:
        architecture: how files call it.
    """

    architecture: ClassVar[str]

    @classmethod
    @abstractmethod
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        """Weights of an untrained policy."""

    @classmethod
    def calibrated(cls, features: NDArray[np.float32]) -> FloatWeights:
        """The weights that are measured on the (M, 21) features of the training tables; by default there are none."""
        return {}

    @classmethod
    def latents(cls, weights: Weights, features: Array) -> Array:
        """(..., 32) of tables with (..., 21) features: an MLP (21, 128, 32), ReLU on both layers."""
        return relu(mlp(weights, "table", features))

    @classmethod
    @abstractmethod
    def scores(cls, weights: Weights, now: PolicyInput) -> Array:
        """(..., D); the policy is their softmax over the legal devices."""


class PaperPolicy(Policy):
    """The policy of the paper (daochenzha/dreamshard, dreamshard/models.py).

    A device is its sum of table latents beside an MLP (3, 64, 32, ReLU on both layers) of its estimated times for
    forward, communication and backward; one affine layer scores it. The table to place is not looked at: the order in
    which tables come says enough.
    """

    architecture = "paper"

    @classmethod
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        """See `Policy`."""
        return {
            **new_feature_normalization(),
            **new_mlp(rng, "table", (len(FEATURE_NAMES), 128, LATENT)),
            **new_mlp(rng, "costs", (3, 64, LATENT)),
            **new_dense(rng, "score", 2 * LATENT, (2 * LATENT, 1)),
        }

    @classmethod
    def calibrated(cls, features: NDArray[np.float32]) -> FloatWeights:
        """See `Policy`."""
        return fitted_feature_normalization(plain_features(features))

    @classmethod
    def latents(cls, weights: Weights, features: Array) -> Array:
        """See `Policy`; features are read as plain numbers."""
        return super().latents(weights, normalized(weights, "features", plain_features(features)))

    @classmethod
    def scores(cls, weights: Weights, now: PolicyInput) -> Array:
        """See `Policy`."""
        costs = relu(mlp(weights, "costs", now.costs_ms[..., [0, 2, 3]]))
        return dense(weights, "score", joined([now.held, costs]))[..., 0]


class BlindPolicy(PaperPolicy):
    """The paper's policy without the estimated times: an ablation of the cost features."""

    architecture = "paper-without-costs"

    @classmethod
    def scores(cls, weights: Weights, now: PolicyInput) -> Array:
        """See `Policy`."""
        return super().scores(weights, replace(now, costs_ms=now.costs_ms * 0.0))


class ContextPolicy(Policy):
    """The policy of `dream-search`: it also sees the table to place, the memory, and how the other devices stand.

    Times count in units of the slowest device's if the table went there, so that the policy reads the same numbers on
    any hardware and at any number of tables. It begins as a heuristic, for a shortcut from the times to the score
    prefers the device with the least to do, and learns where to differ.
    """

    architecture = "context"
    RELATIVE = 4 + 4 + 4 + 1
    GREED = 30.0
    """How strongly: one table of fifty on four devices moves a device's time by a twelfth of the unit or so."""

    @classmethod
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        """See `Policy`."""
        return {
            **new_mlp(rng, "table", (len(FEATURE_NAMES), 128, LATENT)),
            **new_mlp(rng, "device", (cls.RELATIVE + 2 * LATENT, 64, LATENT)),
            **new_mlp(rng, "score", (3 * LATENT, 64, 1)),
            "greed.weight": np.full((4, 1), -cls.GREED, np.float32),
            "greed.bias": np.zeros(1, np.float32),
        }

    @classmethod
    def scores(cls, weights: Weights, now: PolicyInput) -> Array:
        """See `Policy`."""
        real = now.device_mask[..., None]
        table = now.table_costs_ms[..., None, :] * real
        after = now.costs_ms + table
        unit = largest(after.sum(-1), -1)[..., None, None] + 1e-6
        relative = joined([now.costs_ms / unit, table / unit, (largest(after, -2)[..., None, :] - after) / unit])
        count = now.device_mask.sum(-1)[..., None]
        # Latents grow with the number of tables; what tells devices apart is how they differ from the mean.
        spread = now.held - (now.held * real).sum(-2)[..., None, :] / count[..., None]
        device = joined([relative, now.used[..., None], spread, now.table[..., None, :] * real])
        embedded = relu(mlp(weights, "device", device)) * real
        mean = (embedded.sum(-2) / count)[..., None, :] + embedded * 0.0
        most = largest(embedded, -2)[..., None, :] + embedded * 0.0
        score = mlp(weights, "score", joined([embedded, mean, most])) + dense(weights, "greed", now.costs_ms / unit)
        return score[..., 0]


POLICIES: dict[str, type[Policy]] = {
    policy.architecture: policy for policy in (PaperPolicy, BlindPolicy, ContextPolicy)
}
"""The one table of policies by name."""
