"""How DreamShard trains and places: every number of the two presets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from shard_gym.agents.dreamshard.policy import POLICIES
from shard_gym.cost_models.neural.dreamshard import DreamShardCostModel
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.errors import InvalidOptionError, unknown_name


@dataclass(frozen=True)
class DreamShardOptions:
    """The numbers of DreamShard's loop.

    Attributes:
        iterations: how often data are collected and both networks trained.
        measurements: true costs asked for in each iteration.
        explored: share of them spent on random loads (see `measure.random_load`); the others are spent on placements
            of the agent's own.
        proposal_queries: estimates that local search may ask for to improve such a placement before it is measured.
        network: architecture of the cost network.
        cost_updates: batches the cost network learns from in each iteration.
        cost_batch: placements in each.
        policy: architecture of the policy.
        policy_updates: batches of episodes the policy learns from in each iteration.
        tasks: tasks in each such batch.
        episodes: episodes of each task.
        entropy: weight of the entropy bonus.
        learning_rate: of Adam for both networks; falls linearly over the iterations.
        cost_learning_rate: of the cost network; falls to 0 within each iteration. 0: that of both networks.
        weight_decay: of the cost network's matrices.
        relative_loss: learn costs in units of their mean instead of in ms.
        samples: placements drawn from the policy, beside its likeliest one, when a task is placed.
        queries: estimates that local search inside the dream may ask for when a task is placed; 0 for no search.
    """

    iterations: int = 10
    measurements: int = 10
    explored: float = 0.0
    proposal_queries: int = 0
    network: str = "dreamshard"
    cost_updates: int = 300
    cost_batch: int = 64
    policy: str = "paper"
    policy_updates: int = 10
    tasks: int = 1
    episodes: int = 10
    entropy: float = 1e-3
    learning_rate: float = 5e-4
    cost_learning_rate: float = 0.0
    weight_decay: float = 0.0
    relative_loss: bool = False
    samples: int = 0
    queries: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value, whole = getattr(self, name), isinstance(getattr(DreamShardOptions, name), int)
            right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            if not (right and least <= value < float("inf")):
                kind = "an integer" if whole else "a number"
                raise InvalidOptionError(f"{name} must be {kind} of at least {least}, not {value!r}.")
        if self.explored >= 1:
            raise InvalidOptionError(f"explored is a share from 0 to below 1, not {self.explored!r}.")
        for name, known in (("network", NETWORKS), ("policy", POLICIES)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if not self.relative_loss and not issubclass(NETWORKS[self.network], DreamShardCostModel):
            raise InvalidOptionError(
                f"The loss in ms is that of DreamShard's network; with {self.network!r} set relative_loss to True."
            )


_LEAST = {
    "iterations": 1,
    "measurements": 1,
    "explored": 0,
    "proposal_queries": 0,
    "cost_updates": 0,
    "cost_batch": 1,
    "policy_updates": 0,
    "tasks": 1,
    "episodes": 2,
    "entropy": 0,
    "learning_rate": 1e-12,
    "cost_learning_rate": 0,
    "weight_decay": 0,
    "samples": 0,
    "queries": 0,
}

PRESETS: dict[str, DreamShardOptions] = {
    "paper": DreamShardOptions(),
    "dream-search": DreamShardOptions(
        iterations=5,
        measurements=20,
        explored=0.5,
        proposal_queries=2_000,
        network="pooled",
        cost_updates=600,
        policy="context",
        policy_updates=10,
        tasks=8,
        episodes=8,
        entropy=1e-3,
        learning_rate=1e-3,
        cost_learning_rate=6e-3,
        weight_decay=0.5,
        relative_loss=True,
        samples=16,
        queries=10_000,
    ),
}
"""`paper` is DreamShard as published (the defaults of daochenzha/dreamshard, train.py); `dream-search`
goes beyond it: a network that is told more, episodes of many tasks, and a search inside the dream."""


def dreamshard_options(preset: str, **changes: Any) -> DreamShardOptions:
    """The options of `preset`, with `changes`.

    Raises:
        UnknownNameError: there is no such preset, network or policy.
        InvalidOptionError: there is no such option, or it has an impossible value.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    unknown = sorted(changes.keys() - {field.name for field in fields(DreamShardOptions)})
    if unknown:
        raise unknown_name("option of DreamShard", unknown[0], [field.name for field in fields(DreamShardOptions)])
    return replace(PRESETS[preset], **changes)
