"""Agents: everything that places tables, from heuristics to learned policies.

This folder is imported as `shard_gym.agents`; `shard_gym/agents` is a symbolic link to it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from shard_gym.agents.base.agent import Agent, CostGuidedAgent
from shard_gym.agents.base.policy import PolicyAgent
from shard_gym.agents.registry.agents import AGENTS, PAPER_HEURISTICS, AgentEntry, agent_names
from shard_gym.agents.search.heuristics import CostGreedyAgent, GreedyAgent, LaneGreedyAgent, RandomAgent
from shard_gym.agents.search.local_search import LocalSearchAgent
from shard_gym.agents.training.registry import LEARNERS, load_agent
from shard_gym.common.errors import UnknownNameError, unknown_name, wrong_kind
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.cost_models import CostModel
from shard_gym.tasks.problems import PROBLEMS
from shard_gym.tasks.suites import suite_info, suite_names


def make_agent(
    name: str | Path,
    *,
    cost_model: str | CostModel = "analytical",
    seed: int = 0,
    suite: str | None = None,
    **options: Any,
) -> Agent:
    """The agent named `name`, or a trained one from its file.

    Args:
        name: one of `AGENTS`; or the folder of a training run, or the `agent.safetensors` in it (see `load_agent`).
        cost_model: the model that the agent may evaluate while it answers; agents that evaluate none ignore it.
        seed: of stochastic agents; the others ignore it.
        suite: name of the suite that it will answer. Agents of replanning are tuned for each named suite; the others
            ignore it.
        options: the agent's own, for example `max_queries` of "local-search".

    Raises:
        UnknownNameError: there is no agent of that name, or it has to be trained first; the message lists the names.
        InvalidOptionError: the agent has no such option.
        InvalidCheckpointError: the file is missing or holds no agent.
        MissingExtraError: a package that a solver or a trained agent needs is not installed.
    """
    if not isinstance(name, (str, Path)):
        raise wrong_kind("name", name, "the name of an agent or a path")
    if suite is not None and not isinstance(suite, str):
        raise wrong_kind("suite", suite, "the name of a suite, such as its `name`, or None")
    if name not in AGENTS and _is_path(name):
        return load_agent(name, cost_model=cost_model, seed=seed, **options)
    if name in LEARNERS and name not in AGENTS:
        others = _names_for(suite, LEARNERS[name].all_problems)
        raise UnknownNameError(
            f"Agent {name!r} has to be trained: shard-gym train --agent {name} --suite SUITE --out FOLDER. "
            f"Then name that folder. Known without training: {', '.join(others)}."
        )
    if name not in AGENTS:
        raise unknown_name("agent", name, _names_for(suite, PROBLEMS))
    return AGENTS[str(name)].make(str(name), cost_model, seed, suite, options)


def _names_for(suite: str | None, problems: Collection[str]) -> list[str]:
    """The agents that answer one of these problems without training; of a named suite, its problem."""
    wanted = set(problems) & ({suite_info(suite).problem} if suite in suite_names() else set(problems))
    return sorted(name for name, entry in AGENTS.items() if not wanted.isdisjoint(entry.problems))


def _is_path(name: str | Path) -> bool:
    """Whether `name` is a path: by its type, by its spelling, or because it exists."""
    return isinstance(name, Path) or (
        isinstance(name, str) and (name.endswith(SUFFIX) or "/" in name or os.path.exists(name))
    )


__all__ = [
    "AGENTS",
    "PAPER_HEURISTICS",
    "Agent",
    "AgentEntry",
    "CostGreedyAgent",
    "CostGuidedAgent",
    "GreedyAgent",
    "LaneGreedyAgent",
    "LocalSearchAgent",
    "PolicyAgent",
    "RandomAgent",
    "agent_names",
    "load_agent",
    "make_agent",
]
