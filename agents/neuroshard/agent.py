"""The trained agent, the paper's beam search or that of `plan-search` under its networks; needs NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.neuroshard.beam import BeamSearch
from shard_gym.agents.neuroshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.plan_search import PlanSearchAgent
from shard_gym.agents.presets import options_to_place
from shard_gym.agents.splits import SplitOptions, SplitTables
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.io.arrays import Arrays, require_arrays
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.system import one_blas_thread
from shard_gym.tasks import Task


class NeuroShardAgent(Agent):
    """Plans for tasks of any size under learned costs; it never evaluates the true cost.

    Args:
        cost_model: the networks.
        options: of the preset it was trained with.
        seed: of the search.
    """

    def __init__(
        self, name: str, cost_model: NeuralCostModel, options: SearchOptions | PaperOptions, seed: int = 0
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        return self.options.queries if isinstance(self.options, SearchOptions) else 0

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self.split(task, (TABLE_WISE,)).device

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self.split(task, self.cost_model.sharding_types).plan()

    def split(self, task: Task, sharding_types: tuple[str, ...], queries: int | None = None) -> SplitTables:
        """The parts of a plan of these types; of a shorter search with `queries`."""
        options = self.options
        with one_blas_thread():
            if isinstance(options, SearchOptions):
                at_most = min(queries or options.queries, options.queries)
                shards = options.max_shards
                return PlanSearchAgent(self.cost_model, sharding_types, shards, at_most, seed=self.seed).split(task)
            beam = BeamSearch(options.width, options.candidates, options.max_splits, options.limits)
            return beam.search(SplitOptions(task, self.cost_model, sharding_types, options.max_shards))


def load_neuroshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> NeuroShardAgent:
    """The agent of a training run; `changes` are `queries` for the preset `search`, errors those of `load_agent`."""
    options: SearchOptions | PaperOptions = options_to_place(PRESETS, about, changes)
    network = options.architecture
    require_arrays("The agent's file", arrays, network.new_weights(np.random.default_rng(0)))
    return NeuroShardAgent(about["agent"], network(arrays), options, seed)
