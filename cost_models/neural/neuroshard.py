"""NeuroShard's cost networks: one for the computation of a device, two for the all-to-alls.

Zha et al., *Pre-train and Search*, MLSys 2023; sizes as in daochenzha/neuroshard, neuroshard/compute_cost_model.py and
neuroshard/comm_cost_model.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.either import Array, joined, largest, sums_between
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD
from shard_gym.cost_models.neural import features
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.base import NeuralCostModel, NormalizationData
from shard_gym.cost_models.neural.features import LATENT
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Cluster
from shard_gym.tables import Tables

HIDDEN = 64
COMMUNICATION_SIZES = (128, 64, 32, 16)
MIB = 2.0**20
ROUTE_FEATURES = 7
SKEW_FEATURES = 2


class NeuroShardCostModel(NeuralCostModel):
    """NeuroShard's three networks.

    Computation: a table MLP (21 features, 128, 32 latents, ReLU on both layers), the sum over a device, a head with 64
    hidden units. Communication: an MLP (128, 64, 32, 16) for each all-to-all; the backward one from what every device
    sends, the forward one also from when each device is ready to send.

    Differences from the paper: computation has two outputs, forward and backward, because an iteration waits for the
    slowest device in each. The paper's communication networks read one number for each device of a fixed cluster; here
    one network is evaluated for every device, on what this device and the others send and receive inside the host and
    between hosts, so it works for any number of devices.
    """

    architecture = "neuroshard"
    num_sums = LATENT + 1
    shared_loads = slice(LATENT, LATENT + 2)

    @classmethod
    @override
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        return {
            **features.new_table_network(rng),
            **net.new_heads(rng, "compute", LATENT, HIDDEN, 2),
            **new_communication(rng),
        }

    @classmethod
    @override
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        return {
            **features.fitted_feature_normalization(data.inputs[:, :-1]),
            **fitted_communication_normalization(data, data.loads[..., LATENT]),
        }

    @classmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, 22) float32: DreamShard's features as plain numbers, and MiB of pooled outputs."""
        return np.concatenate([features.plain_features(tables.features()), output_mib(tables)[:, None]], axis=1)

    @classmethod
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        """The last summed latent is the MiB of pooled outputs."""
        latents = features.table_latents(weights, inputs[:, :-1])
        return joined([latents, inputs[:, -1:], inputs[:, -1:] * 0.0 + 1.0])

    @classmethod
    def own_phases(cls, weights: Weights, loads: Array) -> Array:
        """The all-to-alls are 0."""
        both = net.heads(weights, "compute", loads[..., :LATENT])
        nothing = both * 0.0
        return joined([both[..., :1], nothing, both[..., 1:]])

    @classmethod
    @override
    def all_to_alls(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        return communication(weights, phases, loads[..., 0], cluster)


def output_mib(tables: Tables) -> NDArray[np.float32]:
    """(T,) float32, MiB of the pooled outputs of each table for the whole batch."""
    values = tables.embedding_dim * tables.num_features * tables.workload.batch_size
    return (values * (OUTPUT_BYTES / MIB)).astype(np.float32)


def new_communication(rng: np.random.Generator) -> FloatWeights:
    """Initial weights of `communication`."""
    return {
        **net.new_mlp(rng, "forward_comm", (ROUTE_FEATURES + SKEW_FEATURES, *COMMUNICATION_SIZES, 1)),
        **net.new_mlp(rng, "backward_comm", (ROUTE_FEATURES, *COMMUNICATION_SIZES, 1)),
        **net.new_normalization("route", ROUTE_FEATURES),
        **net.new_normalization("skew", SKEW_FEATURES),
    }


def fitted_communication_normalization(data: NormalizationData, mib: NDArray[np.float32]) -> FloatWeights:
    """The normalization of `communication`; `mib` is (P, D), the outputs of each device."""
    real = data.cluster.device_mask
    route = routes(mib, data.cluster)[real]
    ready = data.phases_ms[..., [FORWARD, BACKWARD_COMM, BACKWARD]].sum(axis=-1)
    return {
        **net.fitted_normalization("route", route),
        **net.fitted_normalization("skew", skews(ready, data.cluster)[real]),
    }


def communication(weights: Weights, phases: Array, mib: Array, cluster: Cluster) -> Array:
    """(..., D, 2) ms of the forward and backward all-to-all from (..., D, 4) phases and (..., D) MiB of outputs."""
    route = net.normalized(weights, "route", routes(mib, cluster))
    backward = net.mlp(weights, "backward_comm", route)
    late = skews(phases[..., FORWARD] + phases[..., BACKWARD] + backward[..., 0], cluster)
    forward = net.mlp(weights, "forward_comm", joined([route, net.normalized(weights, "skew", late)]))
    return joined([forward, backward])


def skews(ready: Array, cluster: Cluster) -> Array:
    """(..., D, 2) ms: delays, relative to the first device that is ready to send, of each device and of the last one.

    A device is ready after its backward all-to-all and backward computation of the iteration before, and its forward
    computation (neuroshard/simulator.py).
    """
    real = cluster.device_mask * 1.0
    first = -largest(-ready - 1e9 * (1.0 - real), -1)[..., None]
    late = (ready - first) * real
    last = largest(late, -1)[..., None] + late * 0.0
    return joined([late[..., None], last[..., None]])


def routes(mib: Array, cluster: Cluster) -> Array:
    """(..., D, 7): what a device sends and receives (MiB) in its domain and between domains, and the number of devices.

    Every device sends one D-th of its pooled outputs to every device, and receives one D-th of theirs.
    """
    count: Array = cluster.num_devices
    count = count[..., None]
    total = mib.sum(-1)[..., None] + mib * 0.0
    of_peers = sums_between(mib, cluster.domain_begin, cluster.domain_end) - mib
    others = count - 1.0 - cluster.num_peers
    columns = [
        mib * cluster.num_peers / count,
        of_peers / count,
        mib * others / count,
        (total - mib - of_peers) / count,
        mib,
        total / count,
        count + mib * 0.0,
    ]
    return joined([column[..., None] for column in columns])
