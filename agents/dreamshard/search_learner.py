"""Training for a search: measure random loads and own answers, and fit the surrogate to all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.agent import SurrogateSearchAgent
from shard_gym.agents.dreamshard.options import SearchOptions
from shard_gym.agents.training.cost_network import WEIGHT_DECAY, CostNetworkLearner
from shard_gym.agents.training.loads import ShardLoad, load_of, random_load, random_shards
from shard_gym.agents.training.plan_loads import load_of_plan, random_plan_load
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.data.random_plans import executable_types
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.tasks import Task, TaskSuite

PROPOSAL_QUERIES = 5_000  # surrogate evaluations of a search for an answer to measure


class SurrogateSearchLearner(CostNetworkLearner):
    """A `CostNetworkLearner` whose agent searches under the network, if its options are `SearchOptions`.

    A subclass with another preset overrides what is measured for it, and the agent.
    """

    def __init__(
        self, suite: TaskSuite, cost_model: CostModel, seed: int, name: str, preset: str, changes: Mapping[str, Any]
    ) -> None:
        decay = WEIGHT_DECAY if self.presets.get(preset) is SearchOptions else 0.0
        super().__init__(suite, cost_model, seed, name, preset, changes, decay)

    @property
    def _search_options(self) -> SearchOptions:
        assert isinstance(self.options, SearchOptions)
        return self.options

    @override
    def _random_load(self, number: int, rng: np.random.Generator) -> ShardLoad | None:
        if self.iteration:
            return None
        if not self.plans:
            return random_load(self.suite, rng)
        max_halvings = self._search_options.max_shards.bit_length() - 1
        draw = random_plan_load if self.measures_plans else random_shards
        return draw(self.suite, max_halvings, self.sharding_types, rng)

    @override
    def _proposed(self, agent: Any, task: Task, rng: np.random.Generator) -> ShardLoad:
        seed = int(rng.integers(2**31))
        types = self.sharding_types if task.splittable else (TABLE_WISE,)
        if not self.measures_plans:
            return load_of(agent.split(task, types, PROPOSAL_QUERIES, seed))
        split = agent.split(task, executable_types(types, task.tables, task.topology), PROPOSAL_QUERIES, seed)
        return load_of_plan(split.plan(), task.tables, task.topology)

    @override
    def agent(self) -> Agent:
        model, options = self.network.model(), self._search_options
        return SurrogateSearchAgent(self.name, model, options, self.sharding_types, self.seed)
