"""DreamShard's cost network.

Zha et al., *DreamShard*, NeurIPS 2022; sizes and activations as in daochenzha/dreamshard, dreamshard/models.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import Array, joined, largest
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD
from shard_gym.cost_models.neural import features
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.base import NeuralCostModel, NormalizationData
from shard_gym.cost_models.neural.features import LATENT
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Cluster, Topology
from shard_gym.tables import Tables

HIDDEN = 64
HEADS = ("forward", "communication", "backward")
PHASE_OF_HEAD = [0, 1, 1, 2]  # both all-to-alls have the time of the one head for communication


class DreamShardCostModel(NeuralCostModel):
    """DreamShard's cost network.

    A table MLP (21 features, 128, 32 latents, ReLU on both layers); the sum of the latents over a device; heads with
    64 hidden units for forward, communication and backward; the maximum of the sums over the devices, and a head with
    64 hidden units for the cost of the iteration. Numbers are ms throughout.

    Two differences from the authors' code: features are normalized over all training tables, because normalizing
    within a task loses the absolute scale; and an empty device costs nothing instead of the network's output for a
    table of zeros.
    """

    architecture = "dreamshard"
    learns_host_memory = False
    num_sums = LATENT

    @classmethod
    @override
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        return {
            **features.new_table_network(rng),
            **net.new_heads(rng, "phases", LATENT, HIDDEN, len(HEADS)),
            **net.new_mlp(rng, "overall", (LATENT, HIDDEN, 1)),
        }

    @classmethod
    @override
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        return features.fitted_feature_normalization(data.inputs)

    @classmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, 21) float32, DreamShard's features as plain numbers."""
        plain: NDArray[np.float32] = features.plain_features(tables.features())
        return plain

    @classmethod
    @override
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        latents = features.table_latents(weights, inputs)
        return joined([latents, inputs[:, :1] * 0.0 + 1.0])

    @classmethod
    @override
    def own_phases(cls, weights: Weights, loads: Array) -> Array:
        return net.heads(weights, "phases", loads[..., :LATENT])[..., PHASE_OF_HEAD]

    def _costs_alone(self, loads: FloatArray, topology: Topology) -> FloatArray:
        """The sum of the heads, by which the authors sort tables; the head for the cost is not trained on one table."""
        phases = self.own_phases(self.weights, loads.astype(np.float32))
        return np.asarray(phases[:, [FORWARD, BACKWARD_COMM, BACKWARD]].sum(axis=1), np.float64)

    @classmethod
    def overall(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        """(...) ms from the maxima of the latent sums over the devices; does not depend on the phases."""
        return net.mlp(weights, "overall", largest(loads[..., :LATENT], -2))[..., 0]
