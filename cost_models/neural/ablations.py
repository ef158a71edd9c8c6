"""DreamShard's cost network with one of its two reductions taken away, to see what it is for."""

from __future__ import annotations

from shard_gym.cost_models.neural.dreamshard import LATENT, DreamShardCostModel
from shard_gym.cost_models.neural.network import Array, Weights, joined
from shard_gym.topology import Cluster


class MeanTablesCostModel(DreamShardCostModel):
    """A device is the mean of its tables instead of their sum, so it does not tell how many there are."""

    architecture = "dreamshard-mean-tables"
    num_sums = LATENT + 1

    @classmethod
    def latents(cls, weights: Weights, inputs: Array) -> Array:
        """See `NeuralCostModel`; the last summed latent counts the tables."""
        loads = super().latents(weights, inputs)
        return joined([loads, loads[:, LATENT:]])

    @classmethod
    def _device(cls, loads: Array) -> Array:
        return loads[..., :LATENT] / loads[..., LATENT : LATENT + 1].clip(min=1.0)


class MeanDevicesCostModel(DreamShardCostModel):
    """A placement is the mean of its devices instead of their maximum, so the slowest does not stand out."""

    architecture = "dreamshard-mean-devices"

    @classmethod
    def _placement(cls, latents: Array, cluster: Cluster) -> Array:
        count: Array = cluster.num_devices  # not the padded number
        return latents.sum(-2) / count[..., None]
