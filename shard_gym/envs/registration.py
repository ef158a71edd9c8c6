"""Registers the environments with Gymnasium; one table, so that every test can walk over all of them."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium


class EntryPoints(NamedTuple):
    """Where an environment is defined, for one environment and for many at once."""

    scalar: str
    vector: str


ENVIRONMENTS: dict[str, EntryPoints] = {
    "EmbeddingPlacement-v0": EntryPoints(
        "shard_gym.envs.placement.env:EmbeddingPlacementEnv",
        "shard_gym.envs.placement.vector:EmbeddingPlacementVectorEnv",
    ),
}
"""The entry points of each environment id."""


def register_environments() -> None:
    """Make every environment known to `gymnasium.make`; calling it again changes nothing."""
    for env_id, entry_points in ENVIRONMENTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_points.scalar, vector_entry_point=entry_points.vector)
