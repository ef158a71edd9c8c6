"""The agents that learn: one table from their names to what trains them and what loads them again."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.agents.base import Agent
from shard_gym.agents.training.learner import Learner
from shard_gym.agents.training.run import AGENT
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, missing_extra, unknown_name
from shard_gym.io.arrays import load_arrays
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite


class Family(NamedTuple):
    """Where an agent that learns is written; imported only when it is asked for, because learning needs torch.

    Attributes:
        module: has the two others.
        learner: a `Learner` class, called with (suite, cost_model, seed, name=..., **options).
        loader: a function of (arrays, about, cost_model, seed, **options) that returns the `Agent`.
        extra: brings the packages it needs.
    """

    module: str
    learner: str
    loader: str
    extra: str = "torch"


LEARNERS: dict[str, Family] = {
    "dreamshard": Family("shard_gym.agents.dreamshard", "DreamShardLearner", "load_dreamshard"),
    "rnn": Family("shard_gym.agents.rnn", "RnnLearner", "load_rnn"),
    **dict.fromkeys(
        ("ppo", "maskable-ppo", "a2c", "dqn"),
        Family("shard_gym.agents.sb3.learner", "Sb3Learner", "load_policy", "sb3"),
    ),
}
"""The one table of agents that learn; add yours with `LEARNERS["name"] = Family(...)`."""


def make_learner(
    name: str,
    suite: str | TaskSuite,
    *,
    cost_model: str | AdditiveCostModel = "analytical",
    seed: int = 0,
    **options: Any,
) -> Learner:
    """The agent `name`, ready to train on the training tasks of `suite`.

    Raises:
        UnknownNameError: there is no such agent, no such suite, or the agent has no such option.
        InvalidOptionError: an option has an impossible value.
        MissingExtraError: a package that training needs is not installed.
    """
    family = _family(name)
    tasks = load_suite(suite, "train") if isinstance(suite, str) else suite
    learner = _part(name, family, family.learner)
    known = learner_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of agent {name!r}", option, known)
    made: Learner = learner(tasks, make_cost_model(cost_model), seed, name=name, **options)
    return made


def learner_options(name: str) -> dict[str, Any]:
    """The options that agent `name` can be trained with, and their defaults.

    Raises:
        UnknownNameError: there is no such agent.
        MissingExtraError: a package that training needs is not installed.
    """
    family = _family(name)
    learner = _part(name, family, family.learner)
    more: dict[str, Any] = getattr(learner, "more_options", dict)()
    parameters = inspect.signature(learner).parameters.values()
    own = {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    return {**{option: default for option, default in own.items() if option != "name"}, **more}


def load_agent(
    path: str | Path, *, cost_model: str | AdditiveCostModel = "analytical", seed: int = 0, **options: Any
) -> Agent:
    """A trained agent from its file.

    Args:
        path: the `agent.safetensors` of a training run, or the run's folder.
        cost_model: what the agent may ask while it plans; an agent that plans inside its own model asks nothing.
        seed: of agents that sample placements.
        options: the agent's own.

    Raises:
        InvalidCheckpointError: the file is no agent of ShardGym.
        InvalidOptionError: the agent has no such option.
        MissingExtraError: a package it needs is not installed.
    """
    path = Path(path)
    path = path / AGENT if path.is_dir() else path
    arrays, about = load_arrays(path, "agent")
    name = about.get("agent")
    if not isinstance(name, str) or name not in LEARNERS:
        raise InvalidCheckpointError(f"{path} holds an agent {name!r}; known are {', '.join(sorted(LEARNERS))}.")
    family = LEARNERS[name]
    loader = _part(name, family, family.loader)
    try:
        agent: Agent = loader(arrays, about, make_cost_model(cost_model), seed, **options)
    except InvalidCheckpointError as error:
        raise InvalidCheckpointError(f"{path} is not usable. {error}") from error
    except TypeError as error:
        raise InvalidOptionError(f"Agent {name!r} cannot be loaded with the options {options}: {error}.") from error
    return agent


def _family(name: str) -> Family:
    if name not in LEARNERS:
        raise unknown_name("agent that learns", name, LEARNERS)
    return LEARNERS[name]


def _part(name: str, family: Family, part: str) -> Any:
    """The class or function of that name in the family's module."""
    try:
        return getattr(import_module(family.module), part)
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), family.extra, f"Agent {name!r}") from error
