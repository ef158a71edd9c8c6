"""The table of learned agents, with what trains each and what loads it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.agents.base.agent import Agent
from shard_gym.agents.training.learner import Learner
from shard_gym.agents.training.run import AGENT
from shard_gym.common.checks import require_arguments
from shard_gym.common.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    missing_extra,
    short_repr,
    unknown_name,
    wrong_kind,
)
from shard_gym.common.io.arrays import load_arrays
from shard_gym.common.io.files import is_file
from shard_gym.common.text import counted
from shard_gym.cost_models import CostModel, make_cost_model
from shard_gym.tasks.suites import load_suite
from shard_gym.tasks.task import Suite, cost_model_for


class LearnerEntry(NamedTuple):
    """Import paths of a learned agent, each "module:name". They are imported on first use, as most need torch.

    Attributes:
        learner: a `Learner` class, called with (suite, cost_model, seed, name=..., **options).
        loader: a function of (arrays, about, cost_model, seed, **options) that returns the trained `Agent`.
        extra: the extra that brings the packages it needs.
        problems: names of the problems that it learns.
        asks: what it asks of the cost model while it answers: nothing, or the costs of single tables and steps.
        others: the agents of this name for other problems.
        about: what it is, in 45 characters at most, for lists.
    """

    learner: str
    loader: str
    extra: str = "torch"
    problems: tuple[str, ...] = ("placement", "sharding")
    asks: str = "nothing"
    others: tuple[LearnerEntry, ...] = ()
    about: str = ""

    def of_problem(self, problem: str) -> LearnerEntry:
        """The agent of this name for a problem; this one if there is none."""
        return next((each for each in (self, *self.others) if problem in each.problems), self)

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Names of the problems that agents of this name learn."""
        return tuple(problem for each in (self, *self.others) for problem in each.problems)


_REPLANNING = LearnerEntry(
    "shard_gym.replanning.agents.ppo:ReplanningPpoLearner",
    "shard_gym.replanning.agents.ppo:load_policy",
    "sb3",
    ("replanning",),
    about="PPO with a memory, of sb3-contrib",
)
_SB3 = LearnerEntry(
    "shard_gym.agents.sb3.learner:Sb3Learner", "shard_gym.agents.sb3.agent:load_policy", "sb3", asks="costs"
)


LEARNERS: dict[str, LearnerEntry] = {
    "dreamshard": LearnerEntry(
        "shard_gym.agents.dreamshard.learner:DreamShardLearner",
        "shard_gym.agents.dreamshard.agent:load_dreamshard",
        about="DreamShard, a search under learned costs",
    ),
    "rnn": LearnerEntry(
        "shard_gym.agents.rnn.learner:RnnLearner",
        "shard_gym.agents.rnn.agent:load_rnn",
        about="the RNN baseline of DreamShard's paper",
    ),
    "attention": LearnerEntry(
        "shard_gym.agents.attention.learner:AttentionLearner",
        "shard_gym.agents.attention.agent:load_attention",
        about="an attention policy, by POMO's REINFORCE",
    ),
    "autoshard": LearnerEntry(
        "shard_gym.agents.autoshard.learner:AutoShardLearner",
        "shard_gym.agents.autoshard.agent:load_autoshard",
        problems=("placement",),
        about="AutoShard, an LSTM policy",
    ),
    "surco": LearnerEntry(
        "shard_gym.agents.surco.learner:SurCoLearner",
        "shard_gym.agents.surco.agent:load_surco",
        problems=("placement",),
        about="SurCo, an assignment under learned prices",
    ),
    "neuroshard": LearnerEntry(
        "shard_gym.agents.neuroshard.learner:NeuroShardLearner",
        "shard_gym.agents.neuroshard.agent:load_neuroshard",
        about="NeuroShard, a search under learned costs",
    ),
    "ppo": _SB3._replace(others=(_REPLANNING,), about="PPO of Stable-Baselines3"),
    "maskable-ppo": _SB3._replace(others=(_REPLANNING,), about="PPO with masks, of sb3-contrib"),
    "a2c": _SB3._replace(about="A2C of Stable-Baselines3"),
    "dqn": _SB3._replace(about="DQN of Stable-Baselines3"),
    "recurrent-ppo": _REPLANNING,
}
"""All learned agents, by name; add yours with `LEARNERS["name"] = LearnerEntry(...)`."""


def make_learner(
    name: str,
    suite: str | Suite[Any],
    *,
    cost_model: str | CostModel = "analytical",
    seed: int = 0,
    device: str = "cpu",
    **options: Any,
) -> Learner:
    """The agent `name`, ready to train on the training tasks of `suite`; its networks on `device`, "cpu" or "cuda".

    Raises:
        UnknownNameError: there is no such agent, no such suite, or the agent has no such option.
        InvalidOptionError: an option has an impossible value, or there is no such device.
        MissingExtraError: a package that training needs is not installed.
    """
    if name not in LEARNERS:
        raise unknown_name("learned agent", name, LEARNERS)
    tasks = load_suite(suite, "train") if isinstance(suite, (str, Path)) else suite
    if not isinstance(tasks, Suite):
        raise wrong_kind("suite", tasks, "the name of a suite, or a suite")
    problem = tasks[0].problem
    if problem not in LEARNERS[name].all_problems:
        others = [each for each, entry in LEARNERS.items() if problem in entry.all_problems]
        raise InvalidOptionError(
            f"Agent {name!r} learns {' and '.join(LEARNERS[name].all_problems)}, and {tasks.name!r} is a suite of "
            f"{problem}. Train one of {', '.join(others)}, or on another suite."
        )
    learner = learner_class(name, problem)
    known = _option_names(learner)
    for option, value in options.items():
        if option not in known:
            raise unknown_name(f"option of agent {name!r}", option, known)
        if not isinstance(value, Hashable):
            raise wrong_kind(option, value, "a single value")
    make: Any = learner
    try:
        made: Learner = make(tasks, make_cost_model(cost_model_for(tasks, cost_model)), seed, name=name, **options)
        made.move_to(device)
    except (MemoryError, OverflowError) as error:
        raise InvalidOptionError(
            f"Agent {name!r} needs more memory than there is with the options {short_repr(options)}. Make them smaller."
        ) from error
    return made


def learner_class(name: str, problem: str = "") -> type[Learner]:
    """The class that trains the agent `name` of `LEARNERS` for a problem, or for the first that it learns."""
    made: type[Learner] = imported(name, LEARNERS[name].of_problem(problem).learner)
    return made


def _option_names(learner: Any) -> list[str]:
    """The keyword arguments of a `Learner` class, and the fields of its presets, which it takes as `**options`."""
    parameters = inspect.signature(learner).parameters.values()
    own = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY and each.name != "name"]
    return list(dict.fromkeys([*own, *(field.name for preset in learner.presets.values() for field in fields(preset))]))


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
    path = Path(path)
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
    loader = imported(name, LEARNERS[name].of_problem(str(about.get("problem", ""))).loader)
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
            stacklevel=3,
        )


def imported(name: str, path: str) -> Any:
    """The class or function at `path` that agent `name` needs."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), LEARNERS[name].extra, f"Agent {name!r}") from error
