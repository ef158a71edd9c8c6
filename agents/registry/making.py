"""Agents made by name, or loaded from the file of a training run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from shard_gym.agents.base import Agent
from shard_gym.agents.registry.agents import AGENTS, LEARNERS, answering, imported_for
from shard_gym.common.checks import checked_seed, require_arguments
from shard_gym.common.errors import InvalidCheckpointError, UnknownNameError, unknown_name, wrong_kind
from shard_gym.common.io.arrays import SUFFIX, load_arrays
from shard_gym.common.io.files import is_file
from shard_gym.common.text import counted
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.tasks import PROBLEMS, suite_info, suite_names

AGENT = f"agent{SUFFIX}"
"""Name of the file of a trained agent in the folder of a training run."""


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
        raise wrong_kind("suite", suite, "the name of a suite, such as its name, or None")
    checked_seed(seed)
    if name not in AGENTS and is_path(name):
        return _loaded(Path(name), cost_model, seed, options)
    name = str(name)
    if name in LEARNERS and name not in AGENTS:
        others = _names_for(suite, LEARNERS[name].learns)
        raise UnknownNameError(
            f"Agent {name!r} has to be trained: shard-gym train --agent {name} --suite SUITE --out FOLDER. "
            f"Then name that folder. Known without training: {', '.join(others)}."
        )
    if name not in AGENTS:
        raise unknown_name("agent", name, _names_for(suite, PROBLEMS))
    return AGENTS[name].make(name, cost_model, seed, suite, options)


def _names_for(suite: str | None, problems: Collection[str]) -> list[str]:
    """The agents that answer one of these problems without training; of a named suite, its problem."""
    return sorted(answering(set(problems) & ({suite_info(suite).problem} if suite in suite_names() else set(problems))))


def is_path(name: str | Path) -> bool:
    """Whether `name` is a path: by its type, by its spelling, or because it exists."""
    return isinstance(name, Path) or (
        isinstance(name, str) and (name.endswith(SUFFIX) or "/" in name or os.path.exists(name))
    )


def load_agent(path: str | Path, *, cost_model: str | CostModel = "analytical", seed: int = 0, **options: Any) -> Agent:
    """A trained agent from its file.

    Args:
        path: the `agent.safetensors` of a training run, or the run's folder. A run that is not done gets a warning.
        cost_model: the model behind the agent's observations; agents that plan under their own surrogate ignore it.
        seed: of agents that sample or search.
        options: the agent's own.

    Raises:
        InvalidCheckpointError: the file is no agent of ShardGym.
        InvalidOptionError, UnknownNameError: the agent has no such option, or a value is impossible.
        MissingExtraError: a package it needs is not installed.
    """
    return _loaded(Path(path), cost_model, seed, options)


def _loaded(path: Path, cost_model: str | CostModel, seed: int, options: Mapping[str, Any]) -> Agent:
    """See `load_agent`; here an option may have the name of an argument, and is refused as one that no agent has."""
    try:
        path = path / AGENT if path.is_dir() else path
    except OSError as error:
        raise InvalidCheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not is_file(path):
        runs = sorted(each.parent.name for each in path.parent.glob(f"*/{AGENT}")) if path.name == AGENT else []
        inside = f" The folder has the runs {', '.join(runs)}." if runs else ""
        raise InvalidCheckpointError(
            f"There is no trained agent in {path}; name the folder of a training run, or the {AGENT} in it.{inside}"
        )
    if path.suffix == ".py":
        raise InvalidCheckpointError(f"{path} has no trained agent. Name the agent in it: {path}:NAME.")
    arrays, about = load_arrays(path, "agent")
    _warn_if_unfinished(path, about)
    name = about.get("agent")
    if not isinstance(name, str) or name not in LEARNERS:
        raise InvalidCheckpointError(f"{path} holds an agent {name!r}; known are {', '.join(sorted(LEARNERS))}.")
    loader = imported_for(name, LEARNERS[name].learner(str(about.get("problem", ""))).loader)
    require_arguments(loader, f"Agent {name!r}", arrays, about, cost_model, seed, **options)
    try:
        agent: Agent = loader(arrays, about, make_cost_model(cost_model), seed, **options)
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{path} is not usable. {error}") from error
    return agent


def _warn_if_unfinished(path: Path, about: Mapping[str, Any]) -> None:
    trained = about.get("trained")
    done, planned = (
        (trained.get(key) for key in ("iteration", "iterations")) if isinstance(trained, dict) else (None, None)
    )
    if isinstance(done, int) and isinstance(planned, int) and done < planned:
        warnings.warn(
            f"{path} is the agent of an unfinished run: {done:,} of {counted(planned, 'iteration')} are done. Finish "
            "it first: the same shard-gym train with --resume.",
            stacklevel=4,
        )
