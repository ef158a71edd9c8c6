"""Episodes as tensors of torch, on any device."""

from shard_gym.envs.tensors.placement import TensorPlacementEnv

__all__ = ["TensorPlacementEnv"]
