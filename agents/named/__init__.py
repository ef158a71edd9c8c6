"""Agents as commands name them: those of the package, trained ones, and custom classes and functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from numpy.typing import ArrayLike
from typing_extensions import override

from shard_gym.agents import AGENTS, Agent, AgentEntry, CostGuidedAgent, make_agent
from shard_gym.agents.registry import AGENT, LEARNERS, answering, is_path
from shard_gym.agents.registry.agents import parameters
from shard_gym.agents.search import PlanSearchAgent
from shard_gym.common.errors import InvalidOptionError, unknown_name
from shard_gym.common.report import Note
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.tasks import Task

PLANNING = "analytical"
"""The cost model of agents that ask one while they answer, where costs are measured: some ask 50,000 times a task."""

OBSERVATIONS = ("observations", "observation")
"""Names of the first parameter of a function that plays episodes of replanning."""

ORACLE = "The oracle knows the future, so it is no agent: only shard-gym show takes it, on a suite of replanning."


class CustomAgent(Agent):
    """A custom agent: `place(task)` is enough, or `plan(task)` where tables may be split."""

    def __init__(
        self, name: str, place: Callable[[Task], ArrayLike] | None, plan: Callable[[Task], Any] | None = None
    ) -> None:
        self.name = name
        self._place, self._plan = place, plan

    @property
    def places(self) -> bool:
        """Whether it places whole tables."""
        return self._place is not None

    @property
    @override
    def splits(self) -> bool:
        return self._plan is not None

    def place(self, task: Task) -> Any:
        """What the agent returns; whoever asks checks it."""
        if self._place is None:
            raise InvalidOptionError(
                f"{self.name} has plan(task) alone, and the tables of task {task.name!r} may not be split. Give it "
                "place(task), or a task of a suite shard-*."
            )
        return self._place(task)

    def plan(self, task: Task) -> Any:
        """What the agent returns; whoever asks checks it."""
        return super().plan(task) if self._plan is None else self._plan(task)


def agent_named(
    name: str, *, cost_model: str | CostModel = "analytical", seed: int = 0, suite: str | None = None, **options: Any
) -> Agent:
    """The agent that a command names; the other arguments are those of `make_agent`.

    Beyond what `make_agent` takes, `name` may be FILE.py:NAME or MODULE:NAME of a custom agent, where NAME is a class,
    a function that makes an agent, a function of a `task` that returns its placement, one of `observations` that
    returns actions, or an agent. A class or maker gets the arguments `cost_model`, `seed` and `suite` if it has
    parameters of these names.
    """
    if name == "oracle" and not Path(name).exists():
        raise InvalidOptionError(ORACLE)
    where, colon, what = name.rpartition(":")
    if not colon or Path(name).exists():
        return make_agent(name, cost_model=cost_model, seed=seed, suite=suite, **options)
    module = _module(where)
    if not hasattr(module, what):
        raise InvalidOptionError(f"There is nothing named {what!r} in {where}, as `agent={name}` says.")
    found = getattr(module, what)
    known = [] if isinstance(found, type) or not callable(found) else list(parameters(found, name))
    acts = known[:1] != [] and known[0] in OBSERVATIONS
    if isinstance(found, type) or (callable(found) and not acts and "task" not in known):
        if inspect.isabstract(found):
            raise InvalidOptionError(f"{name} is no agent: it lacks {', '.join(sorted(found.__abstractmethods__))}.")
        found = AgentEntry(found).make(name, cost_model, seed, suite, options)
    elif options:
        raise InvalidOptionError(
            f"{name} takes no options, and {', '.join(options)} was given: only a class, or a function that makes an "
            "agent, takes some."
        )
    if acts:
        found = SimpleNamespace(act=found, name=what, problems=("replanning",))
    return as_agent(found, name, what)


def as_agent(found: Any, name: str, what: str = "") -> Agent:
    """An agent, from one or from what acts as one: an object with `place` or `plan`, or a function of a task.

    Args:
        name: of it in messages.
        what: its name as an agent, if it does not say one; `name` if not given.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if isinstance(found, Agent) or callable(getattr(found, "act", None)):  # the latter plays episodes of replanning
        agent: Agent = found
        return agent
    plan = getattr(found, "plan", None)
    place = getattr(found, "place", None if callable(plan) else found)
    if not (callable(place) or callable(plan)):
        raise InvalidOptionError(
            f"{name} is no agent: it has no place(task), no plan(task) and no act(observations), and it is no function "
            "of a task."
        )
    for kind, function in (("place", place), ("plan", plan)):
        try:
            if function is not None:
                inspect.signature(function).bind(None)
        except (TypeError, ValueError) as error:
            raise InvalidOptionError(f"{name} is no agent: its function {kind} does not take a task alone.") from error
    return CustomAgent(agent_name(found, what or name), place, plan)


def agent_name(agent: Any, otherwise: str = "") -> str:
    """What an agent is called: its `name`, or `otherwise`, or the name of a function or class."""
    return str(getattr(agent, "name", otherwise or getattr(agent, "__name__", type(agent).__name__)))


def make_placing_agent(
    name: str, model: CostModel, seed: int, suite: str | None = None, /, **options: Any
) -> tuple[Agent, list[Note]]:
    """The agent of that name (`agent_named`), to be scored by `model`, and what is to be said of it.

    With measured costs, an agent that asks a cost model while it places asks `PLANNING`, as in a race.
    """
    measured = isinstance(model, MeasuredCostModel)
    agent = agent_named(name, cost_model=PLANNING if measured else model, seed=seed, suite=suite, **options)
    asks = isinstance(agent, PlanSearchAgent) or (isinstance(agent, CostGuidedAgent) and agent.asks_costs)
    if not (measured and asks):
        return agent, []
    plans = f"{name} plans under the cost model {PLANNING}, not under measured costs"
    return agent, [Note(f"{plans}; only its placements are measured.", is_warning=False)]


class NamedAgent(NamedTuple):
    """What makes an agent in any process: the arguments of `agent_named`.

    Attributes:
        weights: the file of a trained agent, which then needs no name.
    """

    name: str
    cost_model: CostModel
    seed: int
    suite: str
    options: Mapping[str, Any]
    weights: bytes | None = None

    @property
    def answers_alone(self) -> bool:
        """Whether its answer to a task is the same whatever it answered before: it draws from `task_rng` alone."""
        return self.weights is not None or self.name in AGENTS

    def packed(self) -> NamedAgent:
        """The same with what it needs of this machine: the weights of a trained agent, the whole path of a file."""
        if self.name in AGENTS:
            return self
        path, colon, what = self.name.rpartition(":")
        if colon and not Path(self.name).exists():
            return self._replace(name=f"{Path(path).resolve()}:{what}") if path.endswith(".py") else self
        file = Path(self.name)
        return self._replace(weights=(file / AGENT if file.is_dir() else file).read_bytes())

    def make(self) -> Agent:
        """The agent; warnings are left to whoever names it first."""
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            name = self.name
            if self.weights is not None:
                name = str(Path(folder, AGENT))
                Path(name).write_bytes(self.weights)
            return agent_named(name, cost_model=self.cost_model, seed=self.seed, suite=self.suite, **self.options)


def require_problem(name: str, problem: str) -> None:
    """Raise an error if `name` is an agent of the package that does not answer a problem, or a name of none.

    Raises:
        InvalidOptionError: it answers another problem; the message lists those that answer this one.
        UnknownNameError: it is neither an agent of the package nor a path nor FILE.py:NAME nor MODULE:NAME.
    """
    wanted = {problem} if problem == "replanning" else {"placement", "sharding"}  # plans may be of whole tables
    plays = AGENTS[name].problems if name in AGENTS else LEARNERS[name].learns if name in LEARNERS else ()
    if plays and wanted.isdisjoint(plays):
        known = ", ".join(answering(wanted))
        raise InvalidOptionError(f"Agent {name!r} answers {plays[0]}, not {problem}. Those that do: {known}.")
    if not plays and ":" not in name and name != "oracle" and not is_path(name):
        raise unknown_name("agent", name, sorted(answering(wanted)))


def _module(where: str) -> ModuleType:
    """The module in a file, or of a name that can be imported from the current folder, too."""
    path = Path(where)
    if path.suffix == ".py":
        if not path.is_file():
            raise InvalidOptionError(f"There is no file {path}.")
        spec = importlib.util.spec_from_file_location(f"shard_gym_own_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look there
        sys.path.insert(0, str(path.parent.absolute()))  # for what stands beside it
        spec.loader.exec_module(module)
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")
    absent = f"There is no module {where!r}. Name FILE.py:NAME or MODULE:NAME, or an agent of the package."
    if not all(map(str.isidentifier, where.split("."))):
        raise InvalidOptionError(absent)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name != where.partition(".")[0] and error.name != where:
            raise  # it imports what is not installed
        raise InvalidOptionError(absent) from error
