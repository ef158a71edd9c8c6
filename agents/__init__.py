"""Agents: everything that places tables, from heuristics to learned policies.

This folder is imported as `shard_gym.agents`; `shard_gym/agents` is a symbolic link to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shard_gym.agents.base import Agent, CostGuidedAgent
from shard_gym.agents.heuristics import (
    PAPER_SCORES,
    CostGreedyAgent,
    GreedyAgent,
    LaneGreedyAgent,
    RandomAgent,
    TableScore,
)
from shard_gym.agents.policy import PolicyAgent
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.agents.training.registry import LEARNERS, load_agent
from shard_gym.checks import require_arguments
from shard_gym.cost_models import CostModel
from shard_gym.errors import UnknownNameError, unknown_name, wrong_kind
from shard_gym.io.arrays import SUFFIX

PAPER_HEURISTICS = tuple(PAPER_SCORES)
"""Names of the four greedy heuristics that the DreamShard paper compares with."""

AgentFactory = Callable[..., Agent]
"""Called with the cost model that the agent may evaluate, a seed, and the agent's own options by keyword."""


def _greedy(name: str, score: TableScore) -> AgentFactory:
    return lambda cost_model, seed: GreedyAgent(name, score)


def _local_search(
    cost_model: str | CostModel, seed: int, max_queries: int = 50_000, max_seconds: float | None = None
) -> Agent:
    return LocalSearchAgent(cost_model, max_queries, max_seconds, seed)


def _dreamshard(cost_model: str | CostModel, seed: int, **options: Any) -> Agent:
    """The agents of the package's checkpoints; imported on first use, because loading needs safetensors."""
    from shard_gym.agents.dreamshard.pretrained import PretrainedDreamShard

    return PretrainedDreamShard(seed, **options)


def _exact(cost_model: str | CostModel, seed: int, **options: Any) -> Agent:
    """The agent of CP-SAT; imported on first use, because it needs OR-Tools."""
    from shard_gym.agents.exact import ExactAgent

    options["seed"] = seed
    require_arguments(ExactAgent, "Agent 'exact'", cost_model, **options)
    return ExactAgent(cost_model, **options)


def _plan_search(cost_model: str | CostModel, seed: int, **options: Any) -> Agent:
    """Imported on first use, as the other planners are: who places whole tables needs none."""
    from shard_gym.agents.plan_search import PlanSearchAgent

    require_arguments(PlanSearchAgent, "Agent 'plan-search'", cost_model, **options, seed=seed)
    return PlanSearchAgent(cost_model, **options, seed=seed)


def _hugectr(cost_model: str | CostModel, seed: int, **options: Any) -> Agent:
    from shard_gym.agents.hugectr import HugeCTRAgent

    require_arguments(HugeCTRAgent, "Agent 'hugectr'", **options)
    return HugeCTRAgent(**options)


def _torchrec(cost_model: str | CostModel, seed: int, **options: Any) -> Agent:
    from shard_gym.agents.torchrec_planner import TorchRecAgent

    require_arguments(TorchRecAgent, "Agent 'torchrec'", **options)
    return TorchRecAgent(**options)


AGENTS: dict[str, AgentFactory] = {
    "random": lambda cost_model, seed: RandomAgent(seed),
    **{name: _greedy(name, score) for name, score in PAPER_SCORES.items()},
    "lane-greedy": lambda cost_model, seed: LaneGreedyAgent(),
    "cost-greedy": lambda cost_model, seed: CostGreedyAgent(cost_model),
    "local-search": _local_search,
    "dreamshard": _dreamshard,
}
"""The agents that need no training here, by name; add yours with `AGENTS["name"] = factory`.

Those that are trained first are in `agents/training/registry.py`."""

SOLVERS: dict[str, AgentFactory] = {"exact": _exact}
"""Agents that `make_agent` knows, too, but that need an extra or minutes for a task, so tables of all agents leave them
out."""


PLANNERS: dict[str, AgentFactory] = {"plan-search": _plan_search, "hugectr": _hugectr, "torchrec": _torchrec}
"""Agents that split tables; `make_agent` knows them, too. They can place whole tables, but others do that better."""


def agents_to_make() -> dict[str, AgentFactory]:
    """All agents that need no training here: `AGENTS`, `SOLVERS` and `PLANNERS`."""
    return {**AGENTS, **SOLVERS, **PLANNERS}


def make_agent(name: str | Path, *, cost_model: str | CostModel = "analytical", seed: int = 0, **options: Any) -> Agent:
    """The agent named `name`, or a trained one from its file.

    Args:
        name: one of `AGENTS`, `SOLVERS` or `PLANNERS`; or the folder of a training run, or the `agent.safetensors` in
            it (see `load_agent`).
        cost_model: the model that the agent may evaluate while it places; agents that evaluate none ignore it.
        seed: of agents that use chance; the others ignore it.
        options: the agent's own, for example `max_queries` of "local-search".

    Raises:
        UnknownNameError: there is no agent of that name, or it has to be trained first; the message lists the names.
        InvalidOptionError: the agent has no such option.
        InvalidCheckpointError: the file is missing or holds no agent.
        MissingExtraError: a package that a solver or a trained agent needs is not installed.
    """
    if not isinstance(name, (str, Path)):
        raise wrong_kind("name", name, "the name of an agent or a path")
    known = agents_to_make()
    if name not in known and _is_path(name):
        return load_agent(name, cost_model=cost_model, seed=seed, **options)
    if name in LEARNERS and name not in known:
        raise UnknownNameError(
            f"Agent {name!r} has to be trained: shard-gym train --agent {name} --suite SUITE --out FOLDER. "
            f"Then name that folder. Known without training: {', '.join(sorted(known))}."
        )
    if name not in known:
        raise unknown_name("agent", name, known)
    factory = known[str(name)]
    require_arguments(factory, f"Agent {name!r}", cost_model, seed, **options)
    return factory(cost_model, seed, **options)


def _is_path(name: str | Path) -> bool:
    """Whether `name` is a path: by its type, by its spelling, or because it exists."""
    return isinstance(name, Path) or (
        isinstance(name, str) and (name.endswith(SUFFIX) or "/" in name or os.path.exists(name))
    )


__all__ = [
    "AGENTS",
    "PAPER_HEURISTICS",
    "PLANNERS",
    "SOLVERS",
    "Agent",
    "CostGreedyAgent",
    "CostGuidedAgent",
    "GreedyAgent",
    "LaneGreedyAgent",
    "LocalSearchAgent",
    "PolicyAgent",
    "RandomAgent",
    "agents_to_make",
    "load_agent",
    "make_agent",
]
