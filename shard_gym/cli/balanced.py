"""The balance of memory that `shard-gym place` makes: the answer, a line on the terminal, and JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from shard_gym.agents.balance import MORE, balanced, fullest
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


def relieved(plan: Planned, cost_model: CostModel) -> tuple[Planned, Relief | None]:
    """The answer of plan-search or local-search made less full (`balanced`); None where the answer stays as it is."""
    agent, task, problem = plan.agent, plan.task, problem_of(plan.task)
    model = problem.model(cost_model)
    if not isinstance(model, AdditiveCostModel) or not isinstance(agent, (RestartedSearch, LocalSearchAgent)):
        return plan, None
    if task.splittable and isinstance(agent, RestartedSearch):
        answer = balanced(plan.answer, task, model, agent.search.sharding_types, agent.search.max_shards)
    else:
        answer = balanced(plan.answer, task, model)
    if answer is plan.answer:
        return plan, None
    cheapest = problem.cost_ms(plan.answer, task, model)
    return replace(plan, answer=answer), Relief(fullest(plan.answer, task), fullest(answer, task), cheapest)
