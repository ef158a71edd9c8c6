"""What the options of several sub-commands share: their types, and the cost model they name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from shard_gym.agents import Agent, CostGuidedAgent
from shard_gym.agents.search.plan_search import PlanSearchAgent
from shard_gym.cli.console import warn
from shard_gym.cli.named_agents import agent_named
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import CostModel, InferenceCostModel, make_cost_model
from shard_gym.tasks.task import Suite, Task, cost_model_for

# With these, `--help` does not show optional arguments as `{None}|PATH ... (default: None)`.
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalFloats = Annotated[str | None, tyro.conf.arg(metavar="FLOAT|FLOAT,FLOAT,...", help_behavior_hint="(optional)")]
OptionalDeviceType = Annotated[
    Literal["cpu", "cuda"] | None, tyro.conf.arg(metavar="{cpu,cuda}", help_behavior_hint="(optional)")
]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]


@dataclass(frozen=True)
class CostModelOptions:
    """The cost model of the placements, and how it measures.

    Some agents also evaluate it while they place or train; while they place, only if it estimates.

    Attributes:
        cost_model: analytical, analytical-lru (of host memory behind a cache in HBM), analytical-inference (of
            serving), the file of a neural cost model (.safetensors), a folder of shard-gym calibrate, or measured.
        device: what measured costs are measured on, cpu or cuda; cpu if not given.
        layout: of measured costs: parallel (a process for each device), sequential (one stands for all) or auto.
        batch_size: samples of an iteration that is measured, over all devices; those of the tables if not given.
        iterations: timed iterations of a measurement; 10 if not given.
        cache: file that keeps measurements, so that none is repeated.
    """

    cost_model: str = "analytical"
    device: OptionalStr = None
    layout: OptionalStr = None
    batch_size: OptionalInt = None
    iterations: OptionalInt = None
    cache: OptionalPath = None

    @property
    def measures(self) -> bool:
        """Whether costs are measured."""
        return self.cost_model == "measured"

    @property
    def training(self) -> bool | None:
        """False for a cost model of serving, so that the tables of a user are served; None leaves them as they are."""
        return False if self.cost_model == InferenceCostModel.name else None

    def make(self, cache: Path | None = None, suite: Suite[Any] | None = None) -> CostModel:
        """The cost model, of `suite` if it is for one; measurements are kept in `cache` if no option says where."""
        given = {name: value for name, value in vars(self).items() if name != "cost_model" and value is not None}
        if self.measures:
            from shard_gym.cost_models.measured import model

            return model.MeasuredCostModel(**({"cache": cache} | given))
        if given:
            raise InvalidOptionError(
                f"--{next(iter(given)).replace('_', '-')} says how costs are measured, but the cost model is "
                f"{self.cost_model!r}. Pass --cost-model measured, or leave it out"
                + ("; with --lookups it is the batch of the log." if "batch_size" in given else ".")
            )
        return make_cost_model(cost_model_for(suite, self.cost_model))


ANALYTICAL = CostModelOptions()

IndexExchange = Literal["hidden", "exposed"]
"""Whether a pipeline hides the exchange of the indices, or an iteration waits for it."""

PLANNING = "analytical"
"""The cost model of agents that ask one while they place, where costs are measured: some ask 50,000 times a task."""


def placing_agent(
    name: str, cost: CostModelOptions, model: CostModel, seed: int, suite: str | None = None, **options: Any
) -> Agent:
    """The agent that --agent names, to be scored by `model`, which `cost` made; see `agent_named` for the rest.

    With measured costs, an agent that asks a cost model while it places asks `PLANNING`, as in a race; a line says so.
    """
    if not cost.measures:
        return agent_named(name, cost_model=model, seed=seed, suite=suite, **options)
    agent = agent_named(name, cost_model=PLANNING, seed=seed, suite=suite, **options)
    if isinstance(agent, PlanSearchAgent) or (isinstance(agent, CostGuidedAgent) and agent.asks_costs):
        plans = f"{name} plans under the cost model {PLANNING}, not under measured costs"
        warn(f"{plans}; only its placements are measured.", "dim")
    return agent


def first_tasks(suite: Suite[Any], count: int) -> Suite[Any]:
    """The first `count` tasks of a suite; all of them for 0."""
    if not 0 <= count <= len(suite):
        raise InvalidOptionError(f"--tasks must be from 1 to {len(suite)}, or 0 for all; it is {count}.")
    return suite if count in (0, len(suite)) else replace(suite, tasks=suite.tasks[:count])


def proven_bound(agent: Agent, task: Task, model: CostModel) -> float | None:
    """`Agent.last_bound_ms`, if it bounds all answers to the task under `model`.

    It is a bound of whole tables, which a plan may cost less than; and an agent may have planned under another model
    (see `placing_agent`).
    """
    asked = isinstance(agent, CostGuidedAgent) and agent.cost_model.fingerprint == model.fingerprint
    return agent.last_bound_ms if asked and not task.splittable else None
