"""Registers the environments with Gymnasium; one table, so that every test can walk over all of them."""

from __future__ import annotations

import gymnasium

ENVIRONMENTS: dict[str, str] = {
    "EmbeddingPlacement-v0": "shard_gym.envs.placement.env:EmbeddingPlacementEnv",
}
"""Entry point of each environment id."""


def register_environments() -> None:
    """Make every environment known to `gymnasium.make`; calling it again changes nothing."""
    for env_id, entry_point in ENVIRONMENTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point)
