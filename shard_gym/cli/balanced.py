"""What `shard-gym place` makes of an answer, whole tables and balance of memory: a line on the terminal, and JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from shard_gym.agents.balance import MORE, balanced, fullest, joined
from shard_gym.agents.restarts import RestartedSearch
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.cli.planning import Planned
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.problems import problem_of
from shard_gym.text import format_ms, format_percent

Balance = Literal["yes", "no"]


@dataclass(frozen=True)
class Relief:
    """How full the fullest device was, as a share of what tables and buffers may take, and is."""

    before: float
    after: float
    cheapest_ms: float  #: what the cheapest answer costs

    def sentence(self) -> str:
        """The shares before and after."""
        return (
            f"Within {MORE:.0%} of the cheapest answer ({format_ms(self.cheapest_ms)} ms), the fullest device is "
            f"{format_percent(self.after)} full instead of {format_percent(self.before)}; --balance no takes the "
            "cheapest."
        )

    def to_json(self) -> dict[str, Any]:
        """The same numbers."""
        shares = {"fullest_device": self.after, "fullest_device_of_cheapest": self.before}
        return {"balance": shares | {"cheapest_ms": self.cheapest_ms}}


def relieved(plan: Planned, cost_model: CostModel, balance: Balance) -> tuple[Planned, Relief | None]:
    """The answer of plan-search or local-search with tables whole whose splits gain nothing (`joined`), and made less
    full (`balanced`) unless `balance` is "no"; None where it is as full as before.
    """
    agent, task, problem = plan.agent, plan.task, problem_of(plan.task)
    model = problem.model(cost_model)
    if not isinstance(model, AdditiveCostModel) or not isinstance(agent, (RestartedSearch, LocalSearchAgent)):
        return plan, None
    forms: dict[str, Any] = {}
    now = problem.cost_ms(plan.answer, task, model)
    if isinstance(agent, RestartedSearch) and [cost for cost, _ in agent.found[:1]] == [now]:  # the last search's
        forms["others"] = [answer for _, answer in agent.found[1:]]
    if task.splittable and isinstance(agent, RestartedSearch):
        forms |= {"sharding_types": agent.search.sharding_types, "max_shards": agent.search.max_shards}
    cheapest = joined(plan.answer, task, model)
    answer = cheapest if balance == "no" else balanced(cheapest, task, model, **forms)
    if answer is cheapest:
        return replace(plan, answer=cheapest), None
    answer = joined(answer, task, model)
    shares = fullest(cheapest, task), fullest(answer, task)
    return replace(plan, answer=answer), Relief(*shares, problem.cost_ms(cheapest, task, model))
