"""`Learner`: an agent in training, as equal iterations between states that can be saved; made by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shard_gym.agents.base import Agent
from shard_gym.agents.registry import LEARNERS
from shard_gym.agents.registry.agents import learner_class
from shard_gym.common.arrays import FloatArray
from shard_gym.common.attempts import tried_twice
from shard_gym.common.checks import checked_seed
from shard_gym.common.errors import (
    InvalidCostError,
    InvalidOptionError,
    MeasurementError,
    short_repr,
    unknown_name,
    wrong_kind,
)
from shard_gym.common.io.arrays import Arrays
from shard_gym.cost_models import PHASES, CostEstimate, CostModel, counted, make_cost_model
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import Suite, load_suite
from shard_gym.tasks.task import cost_model_for

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Report:
    """The numbers of one iteration.

    Attributes:
        mean_cost_ms: mean true cost of the placements evaluated in it, the penalty for those that failed; NaN if no
            episode of an environment ended in it.
        numbers: further numbers for the log, by name.
    """

    mean_cost_ms: float
    numbers: dict[str, float]


class TrueCost(CostModel):
    """A learner's `true_cost` as a cost model: a placement that cannot be measured costs its penalty, on one device.

    Args:
        learner: counts the estimates and the failures.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.name, self.version = learner.cost_model.name, learner.cost_model.version
        self.supports = learner.cost_model.supports

    @property
    def fingerprint(self) -> str:
        """That of the learner's cost model."""
        return self._learner.cost_model.fingerprint

    def estimate(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate:
        """The true cost of a valid answer; where it cannot be measured, the penalty, all on the first device.

        Raises:
            MeasurementError: see `Learner.true_cost`.
        """
        estimate = self._learner.true_cost(answer, tables, topology)
        if estimate is None:
            penalty_ms = self.penalty_ms(tables, topology)
            phases = np.zeros((topology.num_devices, len(PHASES)))
            phases[0] = penalty_ms / len(PHASES)  # all on one device: equal devices would be a good balance
            estimate = CostEstimate(phases, penalty_ms)
        return estimate

    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        """That of the learner's cost model."""
        return self._learner.cost_model.penalty_ms(tables, topology, splits=splits)


class Learner(ABC):
    """An agent in training.

    Iteration i is a function of the state after iteration i - 1, the options and the seed alone: every random number
    comes from `rng(...)`, which starts anew in each iteration. So a run that resumes from a saved state ends exactly
    like one that was never interrupted.

    Args:
        suite: the tasks to learn from.
        cost_model: the true cost; every evaluation is counted.
        seed: of everything random.

    Attributes:
        name: the agent's name.
        iterations: the number of iterations.
        iteration: how many of them are done.
        planned_queries: evaluations of the true cost in all iterations together; None if that is not known before.
        costed: placements and plans whose true cost is known.
        failures: those for which it could not be measured.
        sources: JSON values that identify what it learns from beside the suite; a run with others is another run.
        device: what the networks are trained on, "cpu" or "cuda"; see `move_to`. It is no part of what a run is.
        on_stage: called with what an iteration does next, such as "measuring placements", to show progress.
        presets: dataclasses of options by name, for a learner with presets: the constructor takes their fields, too.
        answers_quickly: whether its agent answers a task in less than a second or so; then runs are validated.
    """

    name: str
    iterations: int
    planned_queries: int | None = None
    presets: ClassVar[Mapping[str, type]] = {}
    answers_quickly: ClassVar[bool] = True

    def __init__(self, suite: Suite[Any], cost_model: CostModel, seed: int) -> None:
        self.suite: Any = suite
        self.cost_model = counted(cost_model)
        self.seed = checked_seed(seed)
        self.iteration = 0
        self.costed = self.failures = 0
        self.sources: dict[str, Any] = {}
        self.device = "cpu"
        self.on_stage: Callable[[str], None] = lambda stage: None

    @classmethod
    def option_defaults(cls, name: str) -> dict[str, Any]:
        """The defaults that the agent `name` has where those of the constructor are None."""
        return {}

    def move_to(self, device: str) -> None:
        """Train on `device`, before the first iteration or the state of a run. Agents, weights and states stay on CPUs.

        Sums on a GPU are rounded in any order, so two runs on one do not end alike bit by bit.

        Raises:
            InvalidOptionError: it is neither "cpu" nor "cuda", torch can use no GPU, or the learner knows CPUs only.
        """
        if device != self.device:
            require_device(device)
            self._move(device)
            self.device = device

    def _move(self, device: str) -> None:
        """Move all tensors of training to `device`."""
        raise InvalidOptionError(f"{self.name} is trained on CPUs only. Leave the device out.")

    @property
    def true_cost_queries(self) -> int:
        """Placements whose true cost was evaluated so far: the part of the measurement budget that is used."""
        return self.cost_model.queries

    def true_cost(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> CostEstimate | None:
        """The true cost of a valid placement or plan; None if it cannot be measured.

        A measurement that fails is tried again, unless the device has too little memory. That the first placement
        fails, or more placements than not, is an error of the machine.

        Raises:
            MeasurementError: see there.
            InvalidCostError: the cost is NaN, infinite or negative.
        """
        try:
            estimate = tried_twice(lambda: self.cost_model.estimate(answer, tables, topology))
        except MeasurementError:
            self.failures += 1
            if self.failures > self.costed:
                raise
            return None
        self.require_costs(np.array(estimate.total_ms))
        self.costed += 1
        return estimate

    def require_costs(self, costs_ms: FloatArray) -> None:
        """Refuse costs that no placement can have.

        Raises:
            InvalidCostError: one is NaN, infinite or negative.
        """
        wrong = ~(np.isfinite(costs_ms) & (costs_ms >= 0))
        if wrong.any():
            raise InvalidCostError(
                f"Cost model {self.cost_model.fingerprint!r} says that a placement costs {costs_ms[wrong][0]} ms; a "
                "cost must be a finite number of at least 0. Repair the model, or train under another."
            )

    @property
    def device_counts(self) -> set[int]:
        """The numbers of devices of all tasks that it learns from."""
        return {task.num_devices for task in self.suite}

    def rng(self, purpose: int = 0) -> np.random.Generator:
        """A random generator for this iteration; a different one for each `purpose`."""
        return np.random.default_rng([self.seed, self.iteration, purpose])

    @abstractmethod
    def iterate(self) -> Report:
        """Do one iteration. The caller increments `iteration` afterwards."""

    @abstractmethod
    def state(self) -> Arrays:
        """Copies of all arrays that decide how training continues: weights, optimizer, data."""

    @abstractmethod
    def load_state(self, arrays: Arrays) -> None:
        """Continue from what `state` returned in a learner with the same options.

        Raises:
            InvalidCheckpointError: the arrays are not those of such a learner.
        """

    @abstractmethod
    def weights(self) -> Arrays:
        """Copies of the arrays that placing needs."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """JSON values that placing needs beside the weights, such as padding and layer sizes."""

    @abstractmethod
    def agent(self) -> Agent:
        """The agent with the current weights."""


def require_device(device: str) -> None:
    """Raise InvalidOptionError unless torch can train on `device`, "cpu" or "cuda"."""
    if device not in DEVICES:
        raise InvalidOptionError(f"The device to train on must be {' or '.join(DEVICES)}, not {short_repr(device)}.")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        why = (
            "no GPU is visible (nvidia-smi, CUDA_VISIBLE_DEVICES), or the driver is too old"
            if torch.version.cuda
            else "it is built without CUDA"
        )
        raise InvalidOptionError(
            f"torch {torch.__version__} can train on no GPU: {why}. Train on the device cpu, or repair that."
        )


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
    if problem not in LEARNERS[name].learns:
        others = [each for each, entry in LEARNERS.items() if problem in entry.learns]
        raise InvalidOptionError(
            f"Agent {name!r} learns {' and '.join(LEARNERS[name].learns)}, and {tasks.name!r} is a suite of "
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


def _option_names(learner: Any) -> list[str]:
    """The keyword arguments of a `Learner` class, and the fields of its presets, which it takes as `**options`."""
    parameters = inspect.signature(learner).parameters.values()
    own = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY and each.name != "name"]
    return list(dict.fromkeys([*own, *(field.name for preset in learner.presets.values() for field in fields(preset))]))
