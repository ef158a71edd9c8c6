"""The trained DreamShard agents of the package, one for each kind of hardware, for placements and plans of any size.

`checkpoints/` holds the agents and a page with their results; `python tools/pretrained.py` trains them again.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.dreamshard.agent import SearchOptions, SurrogateSearchAgent
from shard_gym.agents.published.hugectr import HugeCTRAgent
from shard_gym.agents.registry import load_agent
from shard_gym.agents.search.heuristics import LaneGreedyAgent
from shard_gym.common.checks import checked_count, checked_seed
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan
from shard_gym.plans.needs import GROUPS, REPLICAS, SPLITS, TRAINING, unsupported
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task

CHECKPOINTS = Path(__file__).parent / "checkpoints"

DEVICES, DIMS = (2, 128), (4, 512)
"""The numbers of devices, and the dims, that the checkpoints saw in training, on one host and on several.

Their batches were of 8,192 to 131,072 samples. Others are answered too: at 4,096 and 262,144 the agents were cheaper
than what answers instead on nine of ten tasks.
"""

SUPPORTS = frozenset({TRAINING, SPLITS, GROUPS, REPLICAS})
"""What tasks had in training, or what the search over the network can handle without it."""

OPTIMIZERS = ("sgd", "rowwise_adagrad")
"""The optimizers of the tables in training. Weights were FP16 and FP32. BF16 has the bytes and so the costs of FP16,
and is answered like it."""


class Pretrained(NamedTuple):
    """A checkpoint, by the name of its hardware profile."""

    profile: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return CHECKPOINTS / f"{self.profile}.safetensors"


PRETRAINED: dict[str, Pretrained] = {
    profile: Pretrained(profile) for profile in ("rtx2080ti-pcie", "v100-nvlink", "a100-dgx", "h100-dgx", "h200-dgx")
}
"""The checkpoint for each hardware profile."""


class PretrainedDreamShard(Agent):
    """Answers a task with the checkpoint trained for its hardware; it never evaluates the true cost.

    Outside of what the checkpoints saw (`outside`), it warns, and answers as `lane-greedy` does, or `hugectr` where
    whole tables do not fit.

    Args:
        seed: of the search.
        queries: surrogate evaluations of the search, see `SearchOptions`.

    Raises:
        InvalidOptionError: an argument is not valid.
    """

    name = "dreamshard"

    def __init__(self, seed: int = 0, queries: int = SearchOptions.queries) -> None:
        self.seed = checked_seed(seed)
        self.queries = checked_count("queries", queries, most=MAX_QUERIES)
        self.answered_by = self.name  #: which agent gave the last answer: this one, or what it warned of
        self._agents: dict[str, SurrogateSearchAgent] = {}

    @property
    @override
    def search_budget(self) -> int:
        return self.queries

    @override
    def place(self, task: Task) -> Placement:
        if reason := outside(task):
            self._warn(reason, LaneGreedyAgent.name)
            return LaneGreedyAgent().place(task)
        return self._agent(task).place(task)

    @override
    def plan(self, task: Task) -> ShardingPlan:
        if not (reason := outside(task)):
            return self._agent(task).plan(task)
        for agent in (LaneGreedyAgent(), HugeCTRAgent()):
            try:
                plan = agent.plan(task)
            except NoPlacementFoundError as error:
                failure = error
                continue
            self._warn(reason, agent.name)
            return plan
        raise failure

    def _warn(self, reason: str, instead: str) -> None:
        self.answered_by = instead
        warnings.warn(
            f"The task lies outside of what the DreamShard agents of the package were trained for: {reason}. {instead} "
            "answers instead. Agents that need no training are local-search (whole tables) and plan-search (split "
            "ones); or train one on tasks of your own (docs/tutorials/own-tables.md).",
            stacklevel=3,
        )

    def _agent(self, task: Task) -> SurrogateSearchAgent:
        self.answered_by = self.name
        profile = _profile_of(task)
        if profile not in self._agents:
            agent = load_agent(PRETRAINED[profile].path, seed=self.seed, queries=self.queries)
            assert isinstance(agent, SurrogateSearchAgent)
            self._agents[profile] = agent
        return self._agents[profile]


def outside(task: Task) -> str:
    """Why a task lies outside of what the checkpoints saw in training, a clause; empty if it does not."""
    if not _profile_of(task):
        name, names = task.topology.device.name, sorted(hardware_profile(each).device.name for each in PRETRAINED)
        if name in names:
            return f"its {name} has other numbers or links than the hardware profile that they learned"
        return f"they learned {', '.join(names)}, and it is on {name}"
    if lacking := unsupported(task.needs, SUPPORTS):
        return f"they did not learn {lacking.what}"
    optimizer, dims = task.tables.workload.optimizer, task.tables.embedding_dim
    if optimizer not in OPTIMIZERS:
        return f"they learned the optimizers {' and '.join(OPTIMIZERS)}, and its optimizer is {optimizer}"
    for what, (least, most), found in (
        ("devices", DEVICES, (task.num_devices, task.num_devices)),
        ("columns in a table", DIMS, (int(dims.min()), int(dims.max()))),
    ):
        wrong = next((number for number in found if not least <= number <= most), None)
        if wrong is not None:
            return f"they learned {least} to {most} {what}, and it has {wrong}"
    return ""


def _profile_of(task: Task) -> str:
    """The hardware profile of a checkpoint that has the numbers of the task's devices and links, or ""."""
    device, links = task.topology.device, task.topology.links
    for name, known in ((name, hardware_profile(name)) for name in PRETRAINED):
        if (replace(known.device, name=device.name), known.links) == (device, links):
            return name
    return ""
