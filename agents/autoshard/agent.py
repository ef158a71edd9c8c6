"""The trained AutoShard policy as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from typing_extensions import override

from shard_gym.agents.autoshard.network import AutoShardNetwork
from shard_gym.agents.autoshard.options import PRESETS, AutoShardOptions
from shard_gym.agents.autoshard.rollout import play
from shard_gym.agents.base import Agent
from shard_gym.agents.presets import saved_options
from shard_gym.agents.training.torch_arrays import load_module_arrays
from shard_gym.cost_models import CostModel
from shard_gym.errors import NoPlacementFoundError, TableTooLargeError
from shard_gym.io.arrays import Arrays
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task


class AutoShardAgent(Agent):
    """Places tasks of any size on the policy's likeliest devices that have room; it evaluates no cost model."""

    def __init__(self, name: str, network: AutoShardNetwork) -> None:
        self.name = name
        self.network = network

    @override
    def place(self, task: Task) -> Placement:
        try:
            with one_thread():
                played = play(self.network, [task], None)
        except TableTooLargeError as error:
            raise NoPlacementFoundError(str(error)) from error
        if not played.complete[0]:
            raise NoPlacementFoundError(
                f"{self.name} left a table of task {task.name!r} without a device that has room for it. Where memory "
                "is short, use local-search."
            )
        placement: Placement = played.placements[0]
        return placement


def load_autoshard(arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int) -> AutoShardAgent:
    """The agent of a training run, from the network's weights; the errors are those of `load_agent`."""
    options: AutoShardOptions = saved_options(PRESETS, about)
    with torch.device("meta"):
        network = AutoShardNetwork(options.standardized)
    load_module_arrays(network, arrays, "The network")
    return AutoShardAgent(about["agent"], network)
