"""Training of SurCo: measure placements, and train a cost network on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.surco.agent import PRESETS, SurCoAgent, ZeroOptions
from shard_gym.agents.training.cost_network import CostNetworkLearner
from shard_gym.agents.training.loads import ShardLoad, random_load, whole_tables
from shard_gym.cost_models import CostModel
from shard_gym.tasks import Task, TaskSuite


class SurCoLearner(CostNetworkLearner):
    """SurCo in training (see `ZeroOptions`).

    The first iteration measures random loads, the later ones the agent's own placements, as `dream-search` does.

    The other arguments, and the errors, are those of `CostNetworkLearner`.

    Args:
        preset: "zero".
    """

    presets = PRESETS
    answers_quickly = False  # 8 s for a task of mixdim-8

    options: ZeroOptions

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "surco",
        preset: str = "zero",
        **changes: Any,
    ) -> None:
        super().__init__(suite, cost_model, seed, name, preset, changes)

    @override
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        return None if self.iteration else random_load(self.suite, rng)

    @override
    def _proposed(self, agent: SurCoAgent, task: Task, rng: np.random.Generator) -> ShardLoad:
        return whole_tables(task.tables, task.topology, agent.proposal(task, rng))

    @override
    def agent(self) -> SurCoAgent:
        return SurCoAgent(self.name, self.network.model(), self.options)
