"""The trained RNN baseline as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.rnn.network import PlacementNetwork, decode
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.checks import checked_seed
from shard_gym.cost_models import CostModel
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task
from shard_gym.text import format_bytes

MAX_SIZE = 2**16  # the most units of a layer in a network that is loaded from a file


class RnnAgent(Agent):
    """Places tables on the network's most likely devices, or on drawn ones; it evaluates no cost model.

    Args:
        name: how result files call it.
        network: trained for a number of devices; a task with more cannot be placed.
        sample: draw every device from the softmax instead of taking the most likely one.
        seed: of the drawn devices. Equal seeds give equal placements.
    """

    def __init__(self, name: str, network: PlacementNetwork, *, sample: bool = False, seed: int = 0) -> None:
        self.name = name
        self.network = network
        self.sample = sample
        self.seed = checked_seed(seed)

    def place(self, task: Task) -> Placement:
        """(T,) int64; NoPlacementFoundError also says that the task has more devices than the network."""
        most = self.network.max_devices
        if task.num_devices > most:
            raise NoPlacementFoundError(
                f"{self.name} was trained for at most {most} devices, and its output layer has one unit for each; "
                f"task {task.name!r} has {task.num_devices}. Train it on a suite with as many."
            )
        rng = task_rng(self.seed, task)
        noise = gumbel_noise(rng, task.num_tables, 1, most) if self.sample else None
        with torch.no_grad(), one_thread():
            decoded = decode(self.network, task, noise)
        stuck = int(decoded.stuck[0])
        if stuck >= 0:
            raise NoPlacementFoundError(
                f"Table {task.tables.names[stuck]} of task {task.name!r} needs "
                f"{format_bytes(task.tables.memory_bytes[stuck])}, and no device has as much free after the tables "
                f"that {self.name} placed before it."
            )
        placement: Placement = decoded.placements[0]
        return placement


def gumbel_noise(rng: np.random.Generator, num_tables: int, count: int, num_devices: int) -> torch.Tensor:
    """(T, B, D) float32 noise with which `decode` draws `count` placements."""
    return torch.from_numpy(rng.gumbel(size=(num_tables, count, num_devices)).astype(np.float32))


def load_rnn(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, *, sample: bool = False
) -> RnnAgent:
    """The agent of a training run; `seed` and `sample` are those of `RnnAgent`, errors those of `load_agent`."""
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        network = PlacementNetwork(
            network_size(about, "max_devices", MAX_SIZE), network_size(about, "hidden", MAX_SIZE)
        )
    load_module_arrays(network, arrays, "The network")
    return RnnAgent(about["agent"], network, sample=sample, seed=seed)
