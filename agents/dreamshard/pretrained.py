"""The trained DreamShard agents of the package, one for each of three kinds of hardware, for tasks of any size.

`checkpoints/` holds the agents and a page with their results; `python tools/pretrained.py` trains them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.agent import DreamShardAgent
from shard_gym.agents.training.registry import load_agent
from shard_gym.errors import NoPlacementFoundError
from shard_gym.hardware import hardware_profile
from shard_gym.placement import Placement
from shard_gym.tasks import Task

CHECKPOINTS = Path(__file__).parent / "checkpoints"


class Pretrained(NamedTuple):
    """A checkpoint: the suite and the options it was trained with."""

    suite: str
    options: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return CHECKPOINTS / f"{self.suite}.safetensors"


PRETRAINED: dict[str, Pretrained] = {
    "rtx2080ti-pcie": Pretrained("dlrm-50x4", {}),
    "v100-nvlink": Pretrained("mixdim-v100-4", {}),
    "a100-dgx": Pretrained("generalize", {"iterations": 10, "measurements": 50}),
}
"""The checkpoint for each hardware profile."""


class PretrainedDreamShard(Agent):
    """Places a task with the checkpoint trained for its hardware.

    Args:
        seed: of the local search.
        options: for placing: `queries`, see `SearchOptions`.
    """

    name = "dreamshard"

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self._agents: dict[str, DreamShardAgent] = {}
        for profile, checkpoint in PRETRAINED.items():
            agent = load_agent(checkpoint.path, seed=seed, **options)
            assert isinstance(agent, DreamShardAgent)
            self._agents[hardware_profile(profile).device.name] = agent

    @property
    @override
    def search_budget(self) -> int:
        return max(agent.search_budget for agent in self._agents.values())

    def place(self, task: Task) -> Placement:
        """(T,) int64; NoPlacementFoundError also says that no checkpoint was trained for the task's devices."""
        device = task.topology.device.name
        if device not in self._agents:
            raise NoPlacementFoundError(
                f"The package has DreamShard agents for {' and '.join(sorted(self._agents))}. "
                f"Task {task.name!r} is for {device}; train one with: shard-gym train --agent dreamshard --suite NAME "
                "--out FOLDER."
            )
        return self._agents[device].place(task)
