"""The network `pooled` for shards of most types: more kinds of work, and a network for each collective.

Row-wise shards are partial sums on every device, which a reduce-scatter adds; replicas have dense gradients, which an
all-reduce adds and every device applies to all rows. Bytes of both are further kinds of work, so their sums over a
device are exact.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.cost_models.base import COMMUNICATION
from shard_gym.cost_models.neural import network as net
from shard_gym.cost_models.neural.base import NormalizationData
from shard_gym.cost_models.neural.network import Array, FloatWeights, Weights
from shard_gym.cost_models.neural.neuroshard import MIB, communication
from shard_gym.cost_models.neural.pooled import LATENT, WORK, PooledCostModel, work
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.tables import Tables
from shard_gym.topology import Cluster

COLLECTIVES = ("all_reduce", "reduce_scatter")
"""Names of the networks of what replicas and row-wise shards exchange; each adds to both all-to-alls."""

EXCHANGE_FEATURES = 4

NARROWEST_GROUP = 0.25
"""Share of a warp that reads one row, where all tables of a device are narrow; FBGEMM has groups of 8, 16 and 32."""


class PooledShardingModel(PooledCostModel):
    """`PooledCostModel` with MiB of dense gradients and of partial sums; table_row_wise shards it does not estimate."""

    architecture = "pooled-sharding"
    sharding_types: ClassVar[tuple[str, ...]] = (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL)
    num_work = len(WORK) + len(COLLECTIVES)
    num_sums = LATENT + num_work
    shared_loads = slice(num_sums - len(COLLECTIVES) - 1, num_sums + 1)
    num_device = LATENT + 2 * num_work + 1

    @classmethod
    @override
    def new_weights(cls, rng: np.random.Generator) -> FloatWeights:
        weights = super().new_weights(rng)
        for name in COLLECTIVES:
            weights |= net.new_mlp(rng, name, (EXCHANGE_FEATURES, 32, 2))
            weights |= net.new_shortcut(name, EXCHANGE_FEATURES, 2)
            weights |= net.new_normalization(f"{name}.features", EXCHANGE_FEATURES)
        return weights

    @classmethod
    @override
    def fitted_normalization(cls, data: NormalizationData) -> FloatWeights:
        weights = super().fitted_normalization(data)
        for column, name in enumerate(COLLECTIVES):
            mib = data.loads[..., cls.shared_loads][..., column]
            used = mib > 0
            features = _exchange(mib, data.cluster)[used]
            fitted = len(features) > 0
            name += ".features"
            weights |= (
                net.fitted_normalization(name, features) if fitted else net.new_normalization(name, EXCHANGE_FEATURES)
            )
        return weights

    @classmethod
    def describe(cls, tables: Tables) -> NDArray[np.float32]:
        """(T, 21 + 17 + 8) float32: as in `PooledCostModel`, with dense gradients and partial sums before outputs."""
        return cls.describe_shards(tables, TABLE_WISE)

    @classmethod
    @override
    def describe_shards(cls, shards: Tables, sharding_type: str) -> NDArray[np.float32]:
        cls._require_known(sharding_type)
        amounts = work(shards)
        outputs, exchanged = amounts[:, -1], np.zeros((len(shards), len(COLLECTIVES) + 1))
        if sharding_type == DATA_PARALLEL:
            exchanged[:, 0] = shards.num_embeddings * shards.embedding_dim * (4 / MIB)
        else:
            exchanged[:, 1 if sharding_type == ROW_WISE else 2] = outputs
        inputs = cls._inputs(shards, np.concatenate([amounts[:, :-1], exchanged], axis=1))
        inputs[:, -1] = np.clip(2.0 ** np.ceil(np.log2(inputs[:, -1])), NARROWEST_GROUP, 1.0)
        return inputs

    @classmethod
    def _device(cls, loads: Array) -> Array:
        """Also all work times the share of a warp that reads a row."""
        own, width = super()._device(loads), loads[..., -1:]
        return net.joined([own, loads[..., LATENT : cls.num_sums] * width])

    @classmethod
    @override
    def all_to_alls(cls, weights: Weights, phases: Array, loads: Array, cluster: Cluster) -> Array:
        took = communication(weights, phases, loads[..., len(COLLECTIVES)], cluster)
        for column, name in enumerate(COLLECTIVES):
            mib = loads[..., column]
            if (mib > 0).any():
                features = net.normalized(weights, f"{name}.features", _exchange(mib, cluster))
                took = took + net.mlp(weights, name, features) * (mib > 0)[..., None]
        return took * weights["phase.scale"][COMMUNICATION]


def _exchange(mib: Array, cluster: Cluster) -> Array:
    """(..., D, 4): MiB for the own host and for others, the logarithm of all, and the number of devices."""
    count: Array = cluster.num_devices
    count = count[..., None]
    columns = [
        mib * cluster.num_peers / count,
        mib * (count - 1.0 - cluster.num_peers) / count,
        net.log2(mib + 1.0),
        count + mib * 0.0,
    ]
    return net.joined([column[..., None] for column in columns])
