"""The trained DreamShard agents of the package, one for each kind of hardware, for placements and plans of any size.

`checkpoints/` holds the agents and a page with their results; `python tools/pretrained.py` trains them again.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.base.agent import MAX_QUERIES
from shard_gym.agents.dreamshard.agent import SurrogateSearchAgent
from shard_gym.agents.registry import load_agent
from shard_gym.agents.search.rules import MoldableAgent
from shard_gym.common.checks import checked_count, checked_seed
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan
from shard_gym.plans.needs import REPLICAS, unsupported
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task

CHECKPOINTS = Path(__file__).parent / "checkpoints"

DEVICES, DIMS, BATCHES = (2, 256), (4, 512), (2_048, 131_072)
"""The numbers of devices, the dims and the samples of a batch that the checkpoints saw in training, on one host and on
several."""

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam", "partial_rowwise_adam")
"""The optimizers of the tables in training. LAMB has the states of Adam and is answered like it. Weights were FP16 and
FP32; BF16 has the bytes and so the costs of FP16, and is answered like it."""


QUERIES = 200_000
"""Surrogate evaluations of the search for an answer. With twice as many, plans of eight tasks cost 0.3% less on
`shard-4`, 0.0% on `shard-8` and, of five, 0.7% on `sequence-16` (29 November 2026)."""


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

    Outside of what the checkpoints saw (`outside`), it warns, and answers as `moldable` does.

    Args:
        seed: of the search.
        queries: surrogate evaluations of the search, see `SearchOptions`.

    Raises:
        InvalidOptionError: an argument is not valid.
    """

    name = "dreamshard"
    estimates = True

    def __init__(self, seed: int = 0, queries: int = QUERIES) -> None:
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
        return self._rule_for(task).place(task) if outside(task) else self._agent(task).place(task)

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._rule_for(task).plan(task) if outside(task) else self._agent(task).plan(task)

    def _rule_for(self, task: Task) -> Agent:
        """What answers a task that lies outside, with a warning."""
        self.answered_by = MoldableAgent.name
        warnings.warn(
            "The task lies outside of what the DreamShard agents of the package were trained for: "
            f"{outside(task)}. {MoldableAgent.name} answers instead. Agents that need no training are local-search "
            "(whole tables) and plan-search (split ones); or train one on tasks of your own "
            "(docs/tutorials/own-tables.md).",
            stacklevel=3,
        )
        return MoldableAgent()

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
    if lacking := unsupported(task.needs, _supports(_profile_of(task))):
        return f"they did not learn {lacking.what}"
    if not _has_known_host(task):
        return "its hosts have other bandwidths than the hardware profile that they learned"
    dims, batch = task.tables.embedding_dim, task.tables.workload.batch_size
    for what, (least, most), found in (
        ("devices", DEVICES, (task.num_devices,)),
        ("columns in a table", DIMS, (int(dims.min()), int(dims.max()))),
        ("samples in a batch", BATCHES, (batch,)),
    ):
        wrong = next((number for number in found if not least <= number <= most), None)
        if wrong is not None:
            return f"they learned {least:,} to {most:,} {what}, and it has {wrong:,}"
    return ""


@lru_cache
def _supports(profile: str) -> frozenset[str]:
    """What tasks of a checkpoint may need: what its network learned, and groups, whose averaging is arithmetic."""
    agent = load_agent(PRETRAINED[profile].path)
    assert isinstance(agent, SurrogateSearchAgent)
    return agent.cost_model.supports | {REPLICAS}


def _has_known_host(task: Task) -> bool:
    """Whether rows in host memory, if there are any, are read and updated as fast as on hardware of a checkpoint."""
    host, known = task.topology.host, hardware_profile(_profile_of(task)).host
    if host is None:
        return True
    return known is not None and (host.read_gb_per_s, host.update_gb_per_s) == (
        known.read_gb_per_s,
        known.update_gb_per_s,
    )


def _profile_of(task: Task) -> str:
    """The hardware profile of a checkpoint that has the numbers of the task's devices and links, or ""."""
    device, links = task.topology.device, task.topology.links
    for name, known in ((name, hardware_profile(name)) for name in PRETRAINED):
        if (replace(known.device, name=device.name), known.links) == (device, links):
            return name
    return ""
