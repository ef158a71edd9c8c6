"""The network of `dream-search`: NeuroShard's with more inputs, and with the largest dim of a device's tables.

Costs depend on quantities that DreamShard's 21 features do not show, so the network also reads: the work of each table
in linear units (lookups, bytes read, updated and sent), whose sums over a device are exact; the share of accesses in
each reuse bin; and the dim of the widest table, by which FBGEMM chooses the threads per lookup of the whole fused op.
A maximum over trained latents needs more than a hundred placements to find that dim: on mixdim-4, under version 1 of
the costs, a search on such a network ended 9% above a search on the true cost (one seed), with the dim as a load 3.3%
(five seeds; under version 2 4.8%, docs/results/dreamshard.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.cost_models.base import COMMUNICATION
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural import neuroshard
from shard_gym.cost_models.neural.base import NeuralCostModel, NormalizationData
from shard_gym.cost_models.neural.network import Array, FloatWeights, Weights
from shard_gym.cost_models.neural.neuroshard import MIB, ROUTE_FEATURES, SKEW_FEATURES, output_mib
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import FEATURE_NAMES, Tables
from shard_gym.topology import Cluster

WORK = ("lookups", "read_mib", "distinct_mib", "gradient_mib", "output_mib")
LATENT, HIDDEN = 32, 64
ROUTE_HIDDEN = (32, 32)
"""A tenth of the size of NeuroShard's communication networks, which every step of a search evaluates on all devices."""

FULL_GROUP_DIM = 128.0  # columns that a warp reads at once; the unit of the widest dim


class PooledCostModel(NeuralCostModel):
    """Sums of table latents and of work, the widest dim; heads for forward and backward, networks for the all-to-alls.

    Every network has an affine shortcut around it and normalized inputs. The unit of its outputs is the mean phase of
    the training data (`phase.scale`), so one learning rate works for all hardware.
    """

    architecture = "pooled"
    num_work = len(WORK)
    num_sums = LATENT + num_work
    num_maxima = 1
    shared_loads = slice(num_sums - 1, num_sums + 1)
    num_device = LATENT + num_work + 1

    @classmethod
    @override
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        device = cls.num_device
        return {
            **net.new_mlp(rng, "table", (len(FEATURE_NAMES) + NUM_BINS + cls.num_work, 128, LATENT)),
            **net.new_heads(rng, "compute", device, HIDDEN, 2),
            **net.new_shortcut("compute", device, 2),
            **neuroshard.new_communication(rng, ROUTE_HIDDEN),
            **net.new_shortcut("forward_comm", ROUTE_FEATURES + SKEW_FEATURES, 1),
            **net.new_shortcut("backward_comm", ROUTE_FEATURES, 1),
            **net.new_normalization("work", cls.num_work),
            **net.new_normalization("device", device),
            "phase.scale": np.ones(4, np.float32),
        }

    @classmethod
    @override
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        used = data.loads[..., cls.num_sums] > 0
        return {
            **net.fitted_normalization("work", np.log2(1 + data.inputs[:, -cls.num_work - 1 : -1])),
            **net.fitted_normalization("device", cls._device(data.loads)[used]),
            **neuroshard.fitted_communication_normalization(data, data.loads[..., cls.num_sums - 1]),
            "phase.scale": data.phases_ms[used].mean(axis=0),
        }

    @classmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, 21 + 17 + 6) float32: DreamShard's features, the access histogram, the work, the dim."""
        return cls._inputs(tables, work(tables))

    @staticmethod
    def _inputs(tables: Tables, amounts: NDArray[np.float64]) -> NDArray[np.float32]:
        """(T, F) float32, the inputs of tables with (T, W) `amounts` of work."""
        width = tables.embedding_dim[:, None] / FULL_GROUP_DIM
        return np.concatenate([tables.features(), tables.access_histogram, amounts, width], axis=1, dtype=np.float32)

    @classmethod
    @override
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        plain = cls.num_work + 1  # inputs that are loads as they are: the work, then the dim
        amount, width = inputs[:, -plain:-1], inputs[:, -1:]
        level = net.normalized(weights, "work", net.log2(amount + 1.0))
        latent = net.relu(net.mlp(weights, "table", net.joined([inputs[:, :-plain], level])))
        return net.joined([latent, amount, width * 0.0 + 1.0, width])

    @classmethod
    def own_phases(cls, weights: Weights, loads: Array) -> Array:
        """The all-to-alls are 0."""
        both = net.heads(weights, "compute", net.normalized(weights, "device", cls._device(loads)))
        return net.joined([both[..., :1], both * 0.0, both[..., 1:]]) * weights["phase.scale"]

    @classmethod
    def _device(cls, loads: Array) -> Array:
        """(..., num_device), the inputs of the heads: all loads of a device but its tables' costs alone."""
        return net.joined([loads[..., : cls.num_sums], loads[..., cls.num_sums + 1 :]])

    @classmethod
    @override
    def all_to_alls(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        return neuroshard.communication(weights, phases, loads[..., 0], cluster) * weights["phase.scale"][COMMUNICATION]


def work(tables: Tables) -> NDArray[np.float64]:
    """(T, W) float64, the work of one batch for each table: millions of lookups, and MiB in the order of `WORK`."""
    lookups = tables.lookups_per_batch
    columns: list[NDArray[np.floating[Any]]] = [
        lookups / 1e6,
        lookups * tables.row_bytes / MIB,
        tables.distinct_rows * tables.row_bytes / MIB,
        lookups * tables.embedding_dim * 4 / MIB,
        output_mib(tables),
    ]
    return np.stack(columns, axis=1)
