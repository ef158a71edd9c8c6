"""The table of environments, and their registration with Gymnasium."""

from __future__ import annotations

from typing import Any

import gymnasium

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "EmbeddingPlacement-v0": {
        "entry_point": "shard_gym.envs.placement.env:EmbeddingPlacementEnv",
        "vector_entry_point": "shard_gym.envs.placement.vector:EmbeddingPlacementVectorEnv",
    },
    "EmbeddingSharding-v0": {
        "entry_point": "shard_gym.envs.sharding.env:EmbeddingShardingEnv",
        "vector_entry_point": "shard_gym.envs.sharding.vector:EmbeddingShardingVectorEnv",
    },
    "EmbeddingReplanning-v0": {
        "entry_point": "shard_gym.replanning.env.env:EmbeddingReplanningEnv",
        "vector_entry_point": "shard_gym.replanning.env.vector:EmbeddingReplanningVectorEnv",
    },
    "EmbeddingPlacementReal-v0": {
        "entry_point": "shard_gym.envs.real.env:EmbeddingPlacementRealEnv",
        "vector_entry_point": "shard_gym.envs.real.env:EmbeddingPlacementRealVectorEnv",
        "nondeterministic": True,  # the same actions may give different rewards
    },
    "EmbeddingShardingReal-v0": {
        "entry_point": "shard_gym.envs.real.sharding:EmbeddingShardingRealEnv",
        "vector_entry_point": "shard_gym.envs.real.sharding:EmbeddingShardingRealVectorEnv",
        "nondeterministic": True,
    },
}
"""The arguments of `gymnasium.register` for each environment id."""


def register_environments() -> None:
    """Register every environment with Gymnasium; calling it again changes nothing."""
    for env_id, arguments in ENVIRONMENTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, **arguments)
