"""Episodes as tensors of torch, on any device."""

from shard_gym.envs.tensors.placement import TensorPlacementEnv
from shard_gym.envs.tensors.sharding import TensorShardingEnv

__all__ = ["TensorPlacementEnv", "TensorShardingEnv"]
