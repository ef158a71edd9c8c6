"""The trained attention policy as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shard_gym.agents.attention.features import described
from shard_gym.agents.attention.network import HEADS, AttentionPolicy
from shard_gym.agents.attention.rollout import Batch, play
from shard_gym.agents.base import Agent
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.cost_models import CostModel
from shard_gym.errors import InvalidCheckpointError, NoPlacementFoundError
from shard_gym.io.arrays import Arrays
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task

MAX_HIDDEN, MAX_LAYERS = 2**10, 32
"""The largest network that is loaded from a file."""


class AttentionAgent(Agent):
    """Places tables on the policy's likeliest devices, in one pass; it evaluates no cost model.

    Args:
        name: how result files call it.
        policy: takes tasks of any size.
    """

    def __init__(self, name: str, policy: AttentionPolicy) -> None:
        self.name = name
        self.policy = policy

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        batch = Batch.of([described(task)])
        with one_thread():
            rollouts = play(self.policy, batch, 1, None)
        if not rollouts.complete[0, 0]:
            raise NoPlacementFoundError(
                f"{self.name} left a table of task {task.name!r} without a device that has room for it. Where memory "
                "is short, use local-search."
            )
        placement: Placement = rollouts.placements(batch, 0)[0]
        return placement


def load_attention(arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int) -> AttentionAgent:
    """The agent of a training run, from the policy's weights.

    Raises:
        InvalidCheckpointError: these are not the weights of such a policy.
    """
    hidden, layers = network_size(about, "hidden", MAX_HIDDEN), network_size(about, "layers", MAX_LAYERS)
    if hidden % HEADS:
        raise InvalidCheckpointError(f"hidden of the policy must be a multiple of {HEADS}, not {hidden}.")
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        policy = AttentionPolicy(hidden, layers)
    load_module_arrays(policy, arrays, "The policy")
    return AttentionAgent(about["agent"], policy)
