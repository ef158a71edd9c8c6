"""How far a learned estimate is from the true cost, on placements of three kinds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shard_gym.agents import Agent, make_agent
from shard_gym.agents.dreamshard.agent import DreamShardAgent
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import Evaluation, score
from shard_gym.placement import Placement
from shard_gym.tasks import Task, TaskSuite

GREEDY = "size-lookup-greedy"
KINDS = ("random", "greedy", "own")
"""Placements drawn at random, those of `GREEDY`, and the agent's own."""


def estimate_errors(
    agent: Agent, suite: TaskSuite, evaluation: Evaluation, model: AdditiveCostModel
) -> dict[str, float] | None:
    """The mean over the tasks of |estimate - true cost| / true cost for each of `KINDS`; None if nothing is estimated.

    A kind without any valid placement is left out.

    Args:
        agent: any agent; only DreamShard has an estimate.
        suite: the tasks.
        evaluation: of `agent` on them, under `model`.
        model: the true cost.
    """
    if not isinstance(agent, DreamShardAgent):
        return None
    own = {
        result.task: np.asarray(result.placement, np.int64)
        for result in evaluation.tasks
        if result.placement is not None
    }
    placements = {"random": _placed("random", suite), "greedy": _placed(GREEDY, suite)}
    placements["own"] = ((task, own[task.name]) for task in suite if task.name in own)
    errors = {}
    for kind, placed in placements.items():
        shares = [abs(score(task, p, agent.cost_model) / score(task, p, model) - 1.0) for task, p in placed]
        if shares:
            errors[kind] = float(np.mean(shares))
    return errors


def _placed(name: str, suite: TaskSuite) -> Iterator[tuple[Task, Placement]]:
    """The tasks that the agent of that name can place, with its placements."""
    agent = make_agent(name)
    for task in suite:
        try:
            yield task, agent.place(task)
        except NoPlacementFoundError:
            continue
