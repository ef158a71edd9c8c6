"""The one table of solvers: the agents that are ready, and those that are trained first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.search.heuristics import PAPER_SCORES, GreedyAgent
from shard_gym.common.checks import is_one_of, require_name
from shard_gym.common.errors import InvalidOptionError, missing_extra, short_repr
from shard_gym.cost_models import CostModel
from shard_gym.tasks import PROBLEMS

PAPER_HEURISTICS = tuple(PAPER_SCORES)
"""Names of the four greedy heuristics that the DreamShard paper compares with."""

_ASKS = ("nothing", "costs", "answers")
PLACEMENT, SHARDING, REPLANNING = ("placement",), ("sharding", "placement"), ("replanning",)


class LearnerEntry(NamedTuple):
    """How a solver is trained. Import paths are "module:name", imported on first use, as most need torch.

    Attributes:
        learner: a `Learner` class, or its import path; called with (suite, cost_model, seed, name=..., **options).
        loader: a function of (arrays, about, cost_model, seed, **options) that returns the trained `Agent`, or its
            import path.
        extra: the extra that brings the packages it needs.
        problems: names of the problems that it learns.
        asks: what it asks of the cost model while it answers: nothing, or the costs of single tables and steps.
        options: names of the options that the trained agent takes.
        options_of: the class that describes these, or its import path.
        about: what it is, in 45 characters at most, for lists.
    """

    learner: Callable[..., Any] | str
    loader: Callable[..., Any] | str
    extra: str = "torch"
    problems: tuple[str, ...] = ("placement", "sharding")
    asks: str = "nothing"
    options: tuple[str, ...] = ()
    options_of: Callable[..., Any] | str = ""
    about: str = ""


@dataclass(frozen=True)
class AgentEntry:
    """A solver: an agent that is ready, one that is trained first, or both.

    Attributes:
        maker: a class or a function that makes the agent that is ready, or the import path "module:name" of one, for
            those that need an extra; "" if it is trained first. Of `cost_model`, `seed` and `suite` (the name of the
            suite that it will answer) it gets those that are its parameters; its other parameters are the agent's
            options.
        problems: names of the problems that the agent that is ready plays; the first is the one that it is made for.
        stochastic: whether its answers depend on the seed.
        asks: what it asks of the cost model while it answers: nothing, the costs of single tables and steps, or the
            costs of answers that it searches among.
        listed: whether tables of all agents have it; not those that take minutes for a task.
        checkpoints: of an agent that ships trained, the import path of the table of its files by hardware profile; ""
            stands for every other one.
        tuning: of an agent whose options are tuned on training tasks, the module of their tuning: `TUNABLE`, and
            functions of its name, `tuned_suites`, and with a suite `tuned_settings` and `replanner`.
        about: what it is, in 45 characters at most, for lists.
        learners: how it is trained; one for each set of problems that it learns in another way.
    """

    maker: Callable[..., Any] | str = ""
    problems: tuple[str, ...] = PLACEMENT
    stochastic: bool = False
    asks: Literal["nothing", "costs", "answers"] = "nothing"
    listed: bool = True
    checkpoints: str = ""
    tuning: str = ""
    about: str = ""
    learners: tuple[LearnerEntry, ...] = ()

    @property
    def learns(self) -> tuple[str, ...]:
        """Names of the problems that it is trained for."""
        return tuple(problem for each in self.learners for problem in each.problems)

    def learner(self, problem: str = "") -> LearnerEntry:
        """How it is trained for a problem; the first way if there is none, or none is named."""
        return next((each for each in self.learners if problem in each.problems), self.learners[0])

    def load(self, name: str) -> Callable[..., Any]:
        """The maker; see `imported`."""
        made: Callable[..., Any] = imported(name, self.maker)
        return made

    def make(self, name: str, cost_model: str | CostModel, seed: int, suite: str | None, options: Any) -> Agent:
        """The agent.

        Raises:
            InvalidOptionError: it has no such option, an option is out of range, or nothing is at its import path.
            MissingExtraError: a package that it needs is not installed.
        """
        maker = self.load(name)
        given = {"cost_model": cost_model, "seed": seed, "suite": suite}
        known = {key: each for key, each in parameters(maker, name).items() if each.kind is not each.VAR_POSITIONAL}
        takes_all = any(each.kind is each.VAR_KEYWORD for each in known.values())
        fixed = {key: value for key, value in given.items() if key in known}
        own = [key for key, each in known.items() if key not in fixed and each.kind is not each.VAR_KEYWORD]
        needed = {key for key in own if known[key].default is Parameter.empty}
        if not needed <= set(options) or not (takes_all or set(options) <= set(own)):
            has = f"Its options are {', '.join(own)}" if own else "It has no options"
            what = f"with the options {short_repr(options)}" if options else "without options"
            raise InvalidOptionError(f"Agent {name!r} cannot be made {what}. {has}.")
        agent: Agent = maker(**fixed, **options)
        return agent


def imported(name: str, path: Callable[..., Any] | str) -> Any:
    """What is at the import path "module:name" of the agent `name`; what is no text is the thing itself.

    Raises:
        InvalidOptionError: nothing is there, or its module cannot be imported.
        ImportError: the module needs what is not installed.
    """
    if not isinstance(path, str):
        return path
    where, _, what = path.partition(":")
    message = f"The entry of agent {name!r} names {path!r}, but "
    try:
        module = import_module(where)
    except ModuleNotFoundError as error:
        if not f"{where}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports what is not installed
        raise InvalidOptionError(f"{message}there is no module {error.name!r}.") from error
    except ImportError:
        raise
    except Exception as error:
        raise InvalidOptionError(f"{message}importing {where} ends with {type(error).__name__}: {error}") from error
    if not hasattr(module, what):
        raise InvalidOptionError(f"{message}there is nothing named {what!r} in {where}.")
    return getattr(module, what)


def imported_for(name: str, path: Callable[..., Any] | str) -> Any:
    """What the learned agent `name` needs (see `imported`); MissingExtraError if a package is missing."""
    try:
        return imported(name, path)
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), LEARNERS[name].learner().extra, f"Agent {name!r}") from error


def learner_class(name: str, problem: str = "") -> Any:
    """The `Learner` class that trains the agent `name` for a problem, or for the first that it learns."""
    return imported_for(name, LEARNERS[name].learner(problem).learner)


def parameters(maker: Any, name: str) -> Mapping[str, Parameter]:
    """The parameters of what makes agent `name`; InvalidOptionError if it does not tell them, as some classes in C."""
    try:
        return signature(maker).parameters
    except (TypeError, ValueError) as error:
        raise InvalidOptionError(f"{name} is no agent: it does not tell its arguments; give it an __init__.") from error


def _replanner(name: str, suite: str | None = None, **settings: Any) -> Agent:
    """Imported on first use, as are the planners: who places whole tables needs none of them."""
    made: Agent = import_module(_TUNING).replanner(name, suite, **settings)
    return made


_TUNING = "shard_gym.replanning.agents.tuning"
_REPLANNERS = {
    "never": "keeps its plan",
    "every": "a plan every so many hours",
    "threshold": "a plan when the last hour cost too much",
    "ski-last-hour": "ski rental; plans for the last hour",
    "ski-last-day": "ski rental; plans for the last day",
    "ski-three-days": "ski rental; plans for the last three days",
    "ski-next-half-day": "ski rental; plans for the next half day",
    "page-hinkley": "a plan after a change, by Page-Hinkley's test",
    "adwin": "a plan after a change, by ADWIN",
    "kswin": "a plan after a change, by KSWIN",
    "seasonal": "forecasts that tomorrow is as yesterday",
    "ridge": "forecasts by a ridge regression",
}

_SCORES = ("bytes", "columns", "values read", "values read times log of rows")

_REPLANNING = LearnerEntry(
    "shard_gym.replanning.agents.ppo:ReplanningPpoLearner",
    "shard_gym.replanning.agents.ppo:load_policy",
    "sb3",
    REPLANNING,
    about="PPO with a memory, of sb3-contrib",
)
_SB3 = LearnerEntry(
    "shard_gym.agents.sb3.learner:Sb3Learner",
    "shard_gym.agents.sb3.agent:load_policy",
    "sb3",
    asks="costs",
    options=("retries",),
    options_of="shard_gym.agents.sb3.agent:SetPolicyAgent",
)


def _sb3(about: str, *more: LearnerEntry) -> AgentEntry:
    return AgentEntry(learners=(_SB3._replace(about=about), *more))


_SHIPPED: dict[str, AgentEntry] = {
    "random": AgentEntry("shard_gym.agents.search.heuristics:RandomAgent", stochastic=True, about="random devices"),
    **{
        name: AgentEntry(partial(GreedyAgent, name, score), about=f"greedy, by {by}")
        for (name, score), by in zip(PAPER_SCORES.items(), _SCORES, strict=True)
    },
    "lane-greedy": AgentEntry(
        "shard_gym.agents.search.heuristics:LaneGreedyAgent", about="greedy, keeps wide tables together"
    ),
    "cost-greedy": AgentEntry(
        "shard_gym.agents.search.heuristics:CostGreedyAgent", asks="costs", about="greedy, by the cost model"
    ),
    "local-search": AgentEntry(
        "shard_gym.agents.search.local_search:LocalSearchAgent",
        stochastic=True,
        asks="answers",
        about="the search of plan-search for whole tables",
    ),
    "dreamshard": AgentEntry(
        "shard_gym.agents.dreamshard.pretrained:PretrainedDreamShard",
        ("placement", "sharding"),
        stochastic=True,
        checkpoints="shard_gym.agents.dreamshard.pretrained:PRETRAINED",
        about="DreamShard, trained for its hardware",
        learners=(
            LearnerEntry(
                "shard_gym.agents.dreamshard.learner:DreamShardLearner",
                "shard_gym.agents.dreamshard.agent:load_dreamshard",
                options=("queries",),
                options_of="shard_gym.agents.dreamshard.agent:SearchOptions",
                about="DreamShard, a search under learned costs",
            ),
        ),
    ),
    "exact": AgentEntry(
        "shard_gym.agents.search.exact:ExactAgent",
        stochastic=True,
        asks="answers",
        listed=False,
        about="the best placement of few tables, by CP-SAT",
    ),
    "plan-search": AgentEntry(
        "shard_gym.agents.search.plan_search:PlanSearchAgent",
        SHARDING,
        stochastic=True,
        asks="answers",
        about="rebuilds and descends from greedy starts",
    ),
    "moldable": AgentEntry(
        "shard_gym.agents.search.rules:MoldableAgent", SHARDING, about="forms for a target time, longest part first"
    ),
    "hugectr": AgentEntry(
        "shard_gym.agents.published.hugectr:HugeCTRAgent", SHARDING, about="the planner of HugeCTR's sample"
    ),
    "torchrec": AgentEntry(
        "shard_gym.agents.published.torchrec_planner:TorchRecAgent", SHARDING, about="TorchRec's planner as it ships"
    ),
    "torchrec-tuned": AgentEntry(
        "shard_gym.agents.published.torchrec_planner:TunedTorchRecAgent",
        SHARDING,
        about="TorchRec's planner with tuned settings",
    ),
    "torchrec-offload": AgentEntry(
        "shard_gym.agents.published.torchrec_planner:OffloadTorchRecAgent",
        SHARDING,
        listed=False,
        about="TorchRec's planner with caches in HBM",
    ),
    "blind-search": AgentEntry(
        "shard_gym.agents.search.blind_search:BlindSearchAgent",
        SHARDING,
        stochastic=True,
        asks="answers",
        listed=False,
        about="plan-search as if all rows were in HBM",
    ),
    "recshard": AgentEntry(
        "shard_gym.agents.published.recshard:RecShardAgent",
        listed=False,
        about="RecShard's integer program for two tiers",
    ),
    **{
        name: AgentEntry(partial(_replanner, name), REPLANNING, tuning=_TUNING, about=about)
        for name, about in _REPLANNERS.items()
    },
    "rnn": AgentEntry(
        learners=(
            LearnerEntry(
                "shard_gym.agents.rnn.learner:RnnLearner",
                "shard_gym.agents.rnn.agent:load_rnn",
                options=("sample",),
                options_of="shard_gym.agents.rnn.agent:RnnAgent",
                about="the RNN baseline of DreamShard's paper",
            ),
        )
    ),
    "attention": AgentEntry(
        learners=(
            LearnerEntry(
                "shard_gym.agents.attention.learner:AttentionLearner",
                "shard_gym.agents.attention.agent:load_attention",
                options=("samples", "temperature"),
                options_of="shard_gym.agents.attention.agent:AttentionAgent",
                about="an attention policy, by POMO's REINFORCE",
            ),
        )
    ),
    "stepwise": AgentEntry(
        "shard_gym.agents.stepwise.pretrained:shipped",
        SHARDING,
        checkpoints="shard_gym.agents.stepwise.pretrained:SHIPPED",
        about="table after table, by learned weights",
        learners=(
            LearnerEntry(
                "shard_gym.agents.stepwise.learner:StepwiseLearner",
                "shard_gym.agents.stepwise.agent:load_stepwise",
                options=("plans", "built", "by_rule", "moves"),
                options_of="shard_gym.agents.stepwise.agent:StepwiseAgent",
                about="table after table, by evolved weights",
            ),
        ),
    ),
    "autoshard": AgentEntry(
        learners=(
            LearnerEntry(
                "shard_gym.agents.autoshard.learner:AutoShardLearner",
                "shard_gym.agents.autoshard.agent:load_autoshard",
                problems=PLACEMENT,
                about="AutoShard, an LSTM policy",
            ),
        )
    ),
    "surco": AgentEntry(
        learners=(
            LearnerEntry(
                "shard_gym.agents.surco.learner:SurCoLearner",
                "shard_gym.agents.surco.agent:load_surco",
                problems=PLACEMENT,
                options=("steps",),
                options_of="shard_gym.agents.surco.agent:ZeroOptions",
                about="SurCo, an assignment under learned prices",
            ),
        )
    ),
    "neuroshard": AgentEntry(
        learners=(
            LearnerEntry(
                "shard_gym.agents.neuroshard.learner:NeuroShardLearner",
                "shard_gym.agents.neuroshard.agent:load_neuroshard",
                options=("queries",),
                options_of="shard_gym.agents.dreamshard.agent:SearchOptions",
                about="NeuroShard, a search under learned costs",
            ),
        )
    ),
    "ppo": _sb3("PPO of Stable-Baselines3", _REPLANNING),
    "maskable-ppo": _sb3("PPO with masks, of sb3-contrib", _REPLANNING),
    "a2c": _sb3("A2C of Stable-Baselines3"),
    "dqn": _sb3("DQN of Stable-Baselines3"),
    "recurrent-ppo": AgentEntry(learners=(_REPLANNING,)),
}


def _require_valid(name: str, entry: AgentEntry) -> None:
    """Raise InvalidOptionError unless an entry has what its class says; import paths are followed on first use."""
    require_name("The name of an agent", name, InvalidOptionError)
    if not isinstance(entry, AgentEntry):
        raise _wrong(name, "is", "an AgentEntry, such as AgentEntry(MyAgent)", entry)
    if not (entry.maker or entry.learners):
        raise InvalidOptionError(f"The entry of agent {name!r} has no maker and no learners; give it one of them.")
    if not isinstance(entry.learners, tuple) or not all(isinstance(each, LearnerEntry) for each in entry.learners):
        raise _wrong(name, "has as its learners", "a tuple of LearnerEntry", entry.learners)
    for field in ("checkpoints", "tuning"):
        if not isinstance(getattr(entry, field), str):
            raise _wrong(name, f"has as its {field}", "a text", getattr(entry, field))
    paths = {"maker": entry.maker} if entry.maker else {}
    for part in (*([entry] if entry.maker else ()), *entry.learners):
        if isinstance(part, LearnerEntry):
            paths = {"learner": part.learner, "loader": part.loader}
            paths |= {"options_of": part.options_of} if part.options else {}
        for field, path in paths.items():
            if not (all(path.partition(":")) if isinstance(path, str) else callable(path)):
                raise _wrong(name, f"has as its {field}", 'a class, a function or an import path "module:name"', path)
        problems = part.problems
        if not isinstance(problems, tuple) or not problems or not all(is_one_of(each, PROBLEMS) for each in problems):
            raise _wrong(name, "has as its problems", f"a tuple of {', '.join(PROBLEMS)}, not empty", problems)
        if not is_one_of(part.asks, _ASKS):
            raise _wrong(name, "asks", f"one of {', '.join(_ASKS)}", part.asks)
        if not isinstance(part.about, str):
            raise _wrong(name, "has as its about", "a text", part.about)


def _wrong(name: str, what: str, wanted: str, given: object) -> InvalidOptionError:
    return InvalidOptionError(f"The entry of agent {name!r} {what} {short_repr(given)}, which must be {wanted}.")


class _Solvers(MutableMapping[str, AgentEntry]):
    """Entries by name, which are checked when they are set."""

    def __init__(self, entries: dict[str, AgentEntry]) -> None:
        self._entries = entries

    @override
    def __getitem__(self, name: str) -> AgentEntry:
        return self._entries[name]

    @override
    def __setitem__(self, name: str, entry: AgentEntry) -> None:
        _require_valid(name, entry)
        self._entries[name] = entry

    @override
    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    @override
    def __len__(self) -> int:
        return len(self._entries)


class _Part(MutableMapping[str, AgentEntry]):
    """Those entries of `SOLVERS` that have a maker, or learners; a solver's other part stays as it is.

    What is set here is set in `SOLVERS`, with the other part that is there unless the new entry has one.
    """

    def __init__(self, field: Literal["maker", "learners"]) -> None:
        self._field = field

    @override
    def __getitem__(self, name: str) -> AgentEntry:
        entry = SOLVERS[name]
        if not getattr(entry, self._field):
            raise KeyError(name)
        return entry

    @override
    def __setitem__(self, name: str, entry: AgentEntry) -> None:
        _require_valid(name, entry)
        if not getattr(entry, self._field):
            other = "LEARNERS" if self._field == "maker" else "AGENTS"
            raise InvalidOptionError(f"The entry of agent {name!r} has no {self._field}; set it in {other}.")
        SOLVERS[name] = self._joined(entry, SOLVERS[name]) if name in SOLVERS else entry

    def _joined(self, entry: AgentEntry, there: AgentEntry) -> AgentEntry:
        """`entry`, with the other part of the one that is there if it has none."""
        if self._field == "maker":
            return entry if entry.learners else replace(entry, learners=there.learners)
        return entry if entry.maker else replace(there, learners=entry.learners)

    @override
    def __delitem__(self, name: str) -> None:
        entry = self[name]
        if entry.maker and entry.learners:
            ready = self._field == "learners"
            SOLVERS[name] = replace(entry, learners=()) if ready else AgentEntry(learners=entry.learners)
        else:
            del SOLVERS[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in SOLVERS.items() if getattr(entry, self._field))

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


SOLVERS: MutableMapping[str, AgentEntry] = _Solvers(_SHIPPED)
"""All solvers, by name. A new one is an entry here, or at run time `SOLVERS["name"] = AgentEntry(...)`."""

AGENTS: MutableMapping[str, AgentEntry] = _Part("maker")
"""The solvers that are ready; add yours with `AGENTS["name"] = AgentEntry(MyAgent)`. `LEARNERS` stays as it is."""

LEARNERS: MutableMapping[str, AgentEntry] = _Part("learners")
"""The solvers that are trained; add yours with `LEARNERS["name"] = AgentEntry(learners=(LearnerEntry(...),))`."""


def agent_names(problem: str) -> list[str]:
    """The names of the agents made for a problem that tables of all agents have."""
    return [name for name, entry in AGENTS.items() if problem == entry.problems[0] and entry.listed]


def answering(problems: Collection[str]) -> list[str]:
    """The names of the agents that are ready and answer one of these problems, in the order of the registry."""
    return [name for name, entry in AGENTS.items() if not set(problems).isdisjoint(entry.problems)]
