"""The table of environments, and their registration with Gymnasium."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium


class EntryPoints(NamedTuple):
    """The classes of an environment.

    Attributes:
        scalar: the environment.
        vector: its vector environment.
        nondeterministic: whether the same actions may give different rewards.
    """

    scalar: str
    vector: str
    nondeterministic: bool = False


ENVIRONMENTS: dict[str, EntryPoints] = {
    "EmbeddingPlacement-v0": EntryPoints(
        "shard_gym.envs.placement.env:EmbeddingPlacementEnv",
        "shard_gym.envs.placement.vector:EmbeddingPlacementVectorEnv",
    ),
    "EmbeddingPlacementReal-v0": EntryPoints(
        "shard_gym.envs.real.env:EmbeddingPlacementRealEnv",
        "shard_gym.envs.real.env:EmbeddingPlacementRealVectorEnv",
        nondeterministic=True,
    ),
}
"""The entry points of each environment id."""


def register_environments() -> None:
    """Register every environment with Gymnasium; calling it again changes nothing."""
    for env_id, entry_points in ENVIRONMENTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_points.scalar,
                vector_entry_point=entry_points.vector,
                nondeterministic=entry_points.nondeterministic,
            )
