"""The table of the agents that need no training here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Literal

from shard_gym.agents.base.agent import Agent
from shard_gym.agents.search.heuristics import PAPER_SCORES, GreedyAgent
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.cost_models import CostModel

PAPER_HEURISTICS = tuple(PAPER_SCORES)
"""Names of the four greedy heuristics that the DreamShard paper compares with."""

PLACEMENT, SHARDING, REPLANNING = ("placement",), ("sharding", "placement"), ("replanning",)


@dataclass(frozen=True)
class AgentEntry:
    """An agent that needs no training here.

    Attributes:
        maker: a class or a function that makes the agent, or the import path "module:name" of one, for those that need
            an extra. Of `cost_model`, `seed` and `suite` (the name of the suite that it will answer) it gets those that
            are its parameters; its other parameters are the agent's options.
        problems: names of the problems that it plays; the first is the one that it is made for.
        stochastic: whether its answers depend on the seed.
        asks: what it asks of the cost model while it answers: nothing, the costs of single tables and steps, or the
            costs of answers that it searches among.
        listed: whether tables of all agents have it; not those that take minutes for a task.
        checkpoints: of an agent that ships trained, the import path of the table of its files by hardware profile.
        tuning: of an agent whose options are tuned on training tasks, the module of their tuning: `TUNABLE`, and
            functions of its name, `tuned_suites`, and with a suite `tuned_settings` and `replanner`.
        about: what it is, in 45 characters at most, for lists.
    """

    maker: Callable[..., Any] | str
    problems: tuple[str, ...] = PLACEMENT
    stochastic: bool = False
    asks: Literal["nothing", "costs", "answers"] = "nothing"
    listed: bool = True
    checkpoints: str = ""
    tuning: str = ""
    about: str = ""

    def load(self) -> Callable[..., Any]:
        """The maker."""
        made: Callable[..., Any] = self.maker if callable(self.maker) else imported(self.maker)
        return made

    def make(self, name: str, cost_model: str | CostModel, seed: int, suite: str | None, options: Any) -> Agent:
        """The agent.

        Raises:
            InvalidOptionError: it has no such option, or an option is out of range.
            MissingExtraError: a package that it needs is not installed.
        """
        maker = self.load()
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


def imported(path: str) -> Any:
    """What is at the import path "module:name"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


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

AGENTS: dict[str, AgentEntry] = {
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
        stochastic=True,
        checkpoints="shard_gym.agents.dreamshard.pretrained:PRETRAINED",
        about="DreamShard, trained for its hardware",
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
}
"""By name; add yours with `AGENTS["name"] = AgentEntry(MyAgent)`."""


def agent_names(problem: str) -> list[str]:
    """The names of the agents made for a problem that tables of all agents have."""
    return [name for name, entry in AGENTS.items() if problem == entry.problems[0] and entry.listed]
