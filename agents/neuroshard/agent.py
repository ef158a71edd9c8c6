"""The agent trained as in the paper: a beam search over column splits under its networks. It needs NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.agent import load_search
from shard_gym.agents.dreamshard.options import SearchOptions
from shard_gym.agents.neuroshard.beam import BeamSearch
from shard_gym.agents.neuroshard.options import PRESETS, PaperOptions
from shard_gym.agents.presets import COST, options_to_place
from shard_gym.agents.splits import SplitOptions, SplitTables
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.system import one_blas_thread
from shard_gym.tasks import Task


class NeuroShardAgent(Agent):
    """Plans of column shards for tasks of any size under learned costs; it never evaluates the true cost.

    Args:
        name: its name.
        cost_model: the networks.
        options: of the preset `paper`.
    """

    def __init__(self, name: str, cost_model: NeuralCostModel, options: PaperOptions) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options

    def place(self, task: Task) -> Placement:
        """The same search with whole tables alone."""
        return self._split(task, (TABLE_WISE,)).device

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._split(task, self.cost_model.sharding_types).plan()

    def _split(self, task: Task, sharding_types: tuple[str, ...]) -> SplitTables:
        options = self.options
        beam = BeamSearch(options.width, options.candidates, options.max_splits, options.limits)
        with one_blas_thread():
            return beam.search(SplitOptions(task, self.cost_model, sharding_types, options.max_shards))


def load_neuroshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> Agent:
    """The agent of a training run; `changes` are `queries` for the preset `search`, errors those of `load_agent`."""
    options: SearchOptions | PaperOptions = options_to_place(PRESETS, about, changes)
    if isinstance(options, SearchOptions):
        return load_search(arrays, about, options, seed)
    network = options.architecture
    require_arrays("The agent's file", arrays, prefixed(COST, network.weights_like(under(COST, arrays))))
    return NeuroShardAgent(about["agent"], network(under(COST, arrays)), options)
