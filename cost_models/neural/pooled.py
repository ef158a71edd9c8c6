"""The network of the learned solvers: sums of learned latents and of work, and a curve for every link.

Costs depend on quantities that DreamShard's 21 features do not show, so the network also reads: the work of each shard
in linear units, whose sums over a device are exact; the share of accesses in each reuse bin; and the share of a warp
that FBGEMM gives to a row of its width. That of the widest shard of a device holds for its whole fused operator, so the
heads read it, and the products of all work with it. A maximum over trained latents needs more than a hundred placements
to find that.

What devices exchange is bytes on links, inside a domain and between domains. The time of a link is a learned curve of
the bytes that never falls. So the slowest device of an exchange is one with the most bytes on a link, and what one
shard changes is known in O(1) (`PooledCostModel.costs_with_one`).
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import Array, joined, larger, sums_between
from shard_gym.cost_models.analytical.all_to_all import slowest_links_with_one
from shard_gym.cost_models.analytical.l2_cache import SECTOR_BYTES, state_sectors, to_sectors
from shard_gym.cost_models.analytical.model import FULL_WARP_DIM, OUTPUT_BYTES, lane_share
from shard_gym.cost_models.base import COMMUNICATION, COMPUTE
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM
from shard_gym.cost_models.base.one_more import largest_of_others
from shard_gym.cost_models.neural import host
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.base import LEAST_MS, NeuralCostModel, NormalizationData
from shard_gym.cost_models.neural.network import FloatWeights, Weights
from shard_gym.hardware import Cluster, Topology
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.needs import GROUPS, SEQUENCES, SERVING, SPLITS, TRAINING
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE
from shard_gym.tables import FEATURE_NAMES, NUM_BINS, Tables

WORK = ("lookups", "vectors_read", "vectors_updated", "states", "bags", "read_mib", "distinct_mib", "gradient_mib")
"""Kinds of work on a device: millions, and MiB in whole sectors of memory.

A vector is the part of a row, up to 128 columns, that a warp reads at once; states are sectors of the optimizer's."""

EXCHANGES = ("all_reduce", "host_reduce_scatter", "reduce_scatter", "all_to_all")
"""What devices exchange: dense gradients of replicas, partial sums of blocks on a host and on all, outputs."""

ALL_REDUCE, HOST_REDUCE_SCATTER, REDUCE_SCATTER, ALL_TO_ALL = range(len(EXCHANGES))
EXCHANGE_OF = {
    DATA_PARALLEL: ALL_REDUCE,
    TABLE_ROW_WISE: HOST_REDUCE_SCATTER,
    ROW_WISE: REDUCE_SCATTER,
    TABLE_WISE: ALL_TO_ALL,
    COLUMN_WISE: ALL_TO_ALL,
}
"""The exchange of each sharding type."""

LATENT, HIDDEN = 32, 64
MOST_MEDIANS = 2.0  # the unit of a phase at most, where a few loads take a hundred times as long as most
MIB = 2.0**20

KNOTS = 2.0 ** np.arange(-6, 4, dtype=np.float32)
"""Where the curve of a link may bend, in multiples of the mean bytes of the training data; linear beyond."""

SPEED = 10.0  # weights of curves are multiplied by it, because a step of the rate that suits a network is small there
FLAT, STRAIGHT = -4.0 / SPEED, 0.5 / SPEED  # first weights of a curve: no bends, and a slope of one


class PooledCostModel(NeuralCostModel):
    """Sums of shards' latents and of their work, and the widest; a network for compute, and curves for exchanges.

    The network has an affine shortcut around it and normalized inputs. The unit of all outputs is the mean phase of the
    training data (`phase.scale`), so one learning rate works for all hardware.
    """

    architecture = "pooled"
    version = 2
    supports = frozenset({TRAINING, SERVING, SEQUENCES, SPLITS, GROUPS})
    sharding_types: ClassVar[tuple[str, ...]] = SHARDING_TYPES
    num_work = len(WORK) + len(EXCHANGES)
    num_sums = LATENT + num_work
    num_maxima = 1
    shared_loads = slice(num_sums - len(EXCHANGES), num_sums + 1)
    num_device = LATENT + 2 * num_work + 1

    @classmethod
    @override
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        device, links = cls.num_device, (len(EXCHANGES), 2)
        curves = np.full((*links, len(KNOTS) + 1, 2), FLAT, np.float32)
        curves[:, :, -1] = STRAIGHT
        return {
            **net.new_mlp(rng, "table", (len(FEATURE_NAMES) + NUM_BINS + cls.num_work, 128, LATENT)),
            **net.new_heads(rng, "compute", device, HIDDEN, 2),
            **net.new_shortcut("compute", device, 2),
            "exchange.curve": curves,
            "exchange.latency": np.full(links, FLAT, np.float32),
            "exchange.scale": np.ones(links, np.float32),
            **net.new_normalization("work", cls.num_work),
            **net.new_normalization("device", device),
            "phase.scale": np.ones(4, np.float32),
        }

    @override
    def forward_alone(self) -> PooledCostModel:
        """The model whose unit of the phases of the backward is 0, also of what the host adds to them."""
        scale = self.weights["phase.scale"].copy()
        scale[[BACKWARD_COMM, BACKWARD]] = 0.0
        model = PooledCostModel({**host.without_updates(self.weights), "phase.scale": scale}, self.card)
        model.exchanges = 1
        return model

    @classmethod
    @override
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        used = data.loads[..., cls.num_sums] > 0
        phases = data.phases_ms[used]
        scale = np.ones((len(EXCHANGES), 2), np.float32)
        for (kind, link), sent in np.ndenumerate(scale):
            sent = _on_links(kind, data.loads[..., cls.shared_loads][..., kind], data.cluster)[link]
            scale[kind, link] = 1.0 / sent[sent > 0].mean() if (sent > 0).any() else 1.0
        return {
            **net.fitted_normalization("work", np.log2(1 + data.inputs[:, -cls.num_work - 1 : -1])),
            **net.fitted_normalization("device", cls._device(data.loads)[used]),
            "exchange.scale": scale,
            "phase.scale": np.minimum(phases.mean(axis=0), MOST_MEDIANS * np.median(phases, axis=0)) + LEAST_MS,
        }

    @classmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, 21 + 17 + 13) float32: DreamShard's features, the access histogram, the work, the share of a warp."""
        return cls.describe_shards(tables, TABLE_WISE)

    @classmethod
    @override
    def describe_shards(cls, shards: Tables, sharding_type: str) -> NDArray[np.float32]:
        width, amounts = lane_share(shards.embedding_dim)[:, None], work(shards, sharding_type)
        return np.concatenate([shards.features(), shards.access_histogram, amounts, width], axis=1, dtype=np.float32)

    @classmethod
    @override
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        plain = cls.num_work + 1  # inputs that are loads as they are: the work, then the share of a warp
        amount, width = inputs[:, -plain:-1], inputs[:, -1:]
        level = net.normalized(weights, "work", net.log2(amount + 1.0))
        latent = net.relu(net.mlp(weights, "table", joined([inputs[:, :-plain], level])))
        return joined([latent, amount, width * 0.0 + 1.0, width])

    @classmethod
    def own_phases(cls, weights: Weights, loads: Array) -> Array:
        """The exchanges are 0."""
        both = net.heads(weights, "compute", net.normalized(weights, "device", cls._device(loads)))
        return joined([both[..., :1], both * 0.0, both[..., 1:]]) * weights["phase.scale"]

    @cached_property
    def _compute(self) -> _ComputeHeads:
        return _ComputeHeads.of(self.weights)

    @override
    def _own_phases(self, loads: FloatArray) -> FloatArray:
        """As `own_phases`, with two products of matrices for both heads."""
        own, width = loads[..., : self.num_sums], loads[..., -1:]
        inputs = np.empty((*loads.shape[:-1], self.num_device), np.float32)
        inputs[..., : self.num_sums], inputs[..., self.num_sums : self.num_sums + 1] = own, width
        np.multiply(own[..., LATENT:], width, out=inputs[..., self.num_sums + 1 :])
        phases = np.zeros((*loads.shape[:-1], 4))
        phases[..., COMPUTE] = self._compute.of_inputs(inputs)
        return phases

    @classmethod
    def _device(cls, loads: Array) -> Array:
        """(..., num_device), the inputs of the heads: all loads but the cost alone, and the work times the width."""
        own, width = loads[..., : cls.num_sums], loads[..., -1:]
        return joined([own, width, own[..., LATENT:] * width])

    @classmethod
    @override
    def all_to_alls(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        found = []
        for kind in range(len(EXCHANGES)):
            if kind == ALL_TO_ALL or (loads[..., kind] > 0).any():
                found.append(_exchange(weights, kind, *_on_links(kind, loads[..., kind], cluster)))
        return net.last(sum(found[1:], found[0])) * weights["phase.scale"][COMMUNICATION]

    @override
    def costs_with_one(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        own_phases: FloatArray,
        devices: NDArray[np.int64],
        new_loads: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """O(M + D), equal to the inherited method but for rounding, where only one exchange differs between devices.

        Then the slowest device of all exchanges together is that of this one.
        """
        before, after = device_loads[:, self.shared_loads], new_loads[:, self.shared_loads]
        differs = [(before[:, kind] != before[0, kind]).any() for kind in range(len(EXCHANGES))]
        changes = (after[:, : len(EXCHANGES)] != before[devices, : len(EXCHANGES)]).any(axis=0)
        others = before[:, :ALL_TO_ALL].any(axis=0)
        if np.count_nonzero(changes | differs) > 1 or (others.any() and not _equal_domains(cluster)):
            return super().costs_with_one(cluster, device_loads, own_phases, devices, new_loads)
        phases = self.device_phases(new_loads)
        alone = before[:, -1].sum() - before[devices, -1] + after[:, -1]
        took, slowest = self._exchanged_with_one(before, devices, after, cluster)
        phases[:, COMMUNICATION] = np.where((alone > 0)[:, None], took, 0.0)
        compute = np.maximum(largest_of_others(own_phases[:, COMPUTE].T)[:, devices], phases[:, COMPUTE].T).sum(axis=0)
        return phases, self._bounded(compute + slowest.sum(axis=-1), alone)

    def _exchanged_with_one(
        self, before: FloatArray, devices: NDArray[np.int64], after: FloatArray, cluster: Cluster
    ) -> tuple[FloatArray, FloatArray]:
        """(M, 2) ms of both exchanges of the device that changes, and of the slowest one; see `costs_with_one`."""
        own_ms, slowest_ms = np.zeros((2, len(devices), 2))
        peers, sizes = cluster.num_peers[devices], (cluster.host_size, cluster.num_devices)
        for kind in range(len(EXCHANGES)):
            if not (before[:, kind].any() or after[:, kind].any()):
                continue
            if kind in (REDUCE_SCATTER, ALL_TO_ALL):
                links = slowest_links_with_one(before[:, kind], devices, after[:, kind], cluster)
                own_near, own_far, near, far = (each / cluster.num_devices for each in links)
                own_ms += _exchange(self.weights, kind, own_near, own_far).T
                slowest_ms += _exchange(self.weights, kind, near, far).T
            else:
                own = _exchange(self.weights, kind, *_of_sums(kind, after[:, kind], peers, *sizes))
                each = _exchange(self.weights, kind, *_of_sums(kind, before[:, kind], cluster.num_peers, *sizes))
                own_ms += own.T
                slowest_ms += np.maximum(own, largest_of_others(each)[:, devices]).T
        unit = self.weights["phase.scale"][COMMUNICATION]
        return own_ms * unit, slowest_ms * unit

    @override
    def _costs_alone(self, loads: FloatArray, topology: Topology) -> FloatArray:
        nowhere = np.zeros((topology.num_devices, len(EXCHANGES) + 1))
        first = np.zeros(len(loads), np.int64)
        _, slowest = self._exchanged_with_one(nowhere, first, loads[:, self.shared_loads], topology.cluster())
        return np.asarray(self.device_phases(loads)[:, COMPUTE].sum(axis=1) + slowest.sum(axis=1))


class _ComputeHeads(NamedTuple):
    """The two heads of compute and the shortcut around them, with normalization and unit in their weights."""

    first: NDArray[np.float32]  # (num_device, 2 HIDDEN + 2), hidden layers of both, then the shortcut
    bias: NDArray[np.float32]  # (2 HIDDEN + 2,)
    second: NDArray[np.float32]  # (2 HIDDEN, 2)

    @staticmethod
    def of(weights: FloatWeights) -> _ComputeHeads:
        exact = {name: array.astype(np.float64) for name, array in weights.items()}
        unit = exact["phase.scale"][COMPUTE]
        mean, scale = exact["device.mean"], exact["device.scale"]
        hidden, out = exact["compute.hidden.weight"], exact["compute.out.weight"]
        first = np.concatenate([hidden, exact["compute.shortcut.weight"] * unit], axis=1) * scale[:, None]
        shortcut = (exact["compute.shortcut.bias"] + exact["compute.out.bias"]) * unit
        bias = np.concatenate([exact["compute.hidden.bias"], shortcut]) - mean @ first
        second = np.zeros((hidden.shape[1], len(out)))
        for head, rows in enumerate(np.split(np.arange(len(second)), len(out))):
            second[rows, head] = out[head] * unit[head]
        return _ComputeHeads(*(each.astype(np.float32) for each in (first, bias, second)))

    def of_inputs(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """(..., 2) ms of the (..., num_device) `inputs`."""
        layer = inputs.reshape(-1, inputs.shape[-1]) @ self.first + self.bias
        hidden, shortcut = np.split(layer, [len(self.second)], axis=1)
        return np.asarray(np.maximum(hidden, 0.0) @ self.second + shortcut).reshape(*inputs.shape[:-1], -1)


def work(shards: Tables, sharding_type: str) -> NDArray[np.float64]:
    """(S, W) float64, the work of one batch for each shard, in the order of `WORK`, and its MiB in each exchange."""
    lookups, bags = shards.lookups_per_batch, shards.outputs_per_batch
    vectors, row = np.ceil(shards.embedding_dim / FULL_WARP_DIM), to_sectors(shards.row_bytes)
    states = shards.distinct_rows * (state_sectors(shards) // SECTOR_BYTES)
    sent = np.zeros((len(shards), len(EXCHANGES)))
    kind = EXCHANGE_OF[sharding_type]
    kinds = np.where(shards.pooled | (kind == ALL_REDUCE), kind, ALL_TO_ALL)  # blocks of a sequence send its rows
    numbers = bags if kind != ALL_REDUCE else shards.num_embeddings * shards.workload.training  # or none
    sent[np.arange(len(shards)), kinds] = shards.embedding_dim * numbers
    millions = [lookups, lookups * vectors, shards.distinct_rows * vectors, states, bags]
    columns = [
        *(each / 1e6 for each in millions),
        *(each / MIB for each in (lookups * row, shards.distinct_rows * row)),
    ]
    gradients = lookups * shards.embedding_dim * (OUTPUT_BYTES / MIB)
    return np.concatenate([np.stack([*columns, gradients], axis=1), sent * (OUTPUT_BYTES / MIB)], axis=1)


def _on_links(kind: int, mib: Array, cluster: Cluster) -> tuple[Array, Array]:
    """(..., D) MiB of an exchange through the link of each device inside its domain, and between domains.

    The larger of what it sends and receives; `mib` is (..., D), what each device exchanges.
    """
    count: Array = cluster.num_devices
    count, peers = count[..., None], cluster.num_peers
    if kind in (ALL_REDUCE, HOST_REDUCE_SCATTER):
        host: Array = cluster.host_size
        return _of_sums(kind, mib, peers, host[..., None], count)
    others = (count - 1.0 - peers) * cluster.device_mask
    of_domain = sums_between(mib, cluster.domain_begin, cluster.domain_end)
    near = larger(mib * peers, (of_domain - mib) * cluster.device_mask) / count
    if not cluster.crosses_domains.any():
        return near, near * 0.0
    return near, larger(mib * others, (mib.sum(-1)[..., None] - of_domain) * (others > 0)) / count


def _of_sums(kind: int, mib: Array, peers: Array, host: Array, count: Array) -> tuple[Array, Array]:
    """What passes the links in an all-reduce, or a reduce-scatter in hosts, where all devices send as much."""
    domain = peers + 1.0
    if kind == ALL_REDUCE:
        return 2.0 * mib * peers / domain, 2.0 * mib * (count - domain) / (count * domain)
    beside = mib * (domain - host) / (count * host)  # the sums for other hosts of the domain
    return mib * (host - 1.0) / host + beside, mib * (count - domain) / (count * host)


def _exchange(weights: Weights, kind: int, near: Array, far: Array) -> Array:
    """(2, ...) forward and backward times of an exchange, in units of `phase.scale`, of (...) MiB through both links.

    The slower link counts; a reduce-scatter inside hosts comes before the exchange between them. 0 without any bytes.
    """
    curve, scale = _positive(weights["exchange.curve"][kind]), weights["exchange.scale"][kind]
    busy, crosses = _curve(curve[0], near * scale[0]), (far > 0).any()
    if crosses:
        across = _curve(curve[1], far * scale[1])
        busy = busy + across if kind == HOST_REDUCE_SCATTER else larger(busy, across)
    latency = _positive(weights["exchange.latency"][kind]).reshape(2, *[1] * near.ndim)
    return (busy + latency) * ((near + far if crosses else near) > 0)


def _equal_domains(cluster: Cluster) -> bool:
    return bool((cluster.num_peers == cluster.num_peers[0]).all())


def _positive(weights: Array) -> Array:
    return net.softplus(SPEED * weights)


def _curve(slopes: Array, amounts: Array) -> Array:
    """(2, ...) values of two curves at (...) amounts: sums of min(amount, knot), and of the amount, by their slopes.

    Amounts are the last axis in all steps, which makes them several times as fast.
    """
    if isinstance(amounts, np.ndarray):
        up_to = np.empty((len(KNOTS) + 1, amounts.size), np.float32)
        up_to[-1] = amounts.ravel()
        np.minimum(up_to[-1], KNOTS[:, None], out=up_to[:-1])
        return (slopes.T @ up_to).reshape(2, *amounts.shape)
    flat = amounts.reshape(-1, 1)
    up_to = joined([flat.minimum(amounts.new_tensor(KNOTS)), flat])
    return (up_to @ slopes).T.reshape(2, *amounts.shape)
