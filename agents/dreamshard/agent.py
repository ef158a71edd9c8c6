"""The trained agents: `plan-search` under the surrogate (`dream-search`), or a policy (`paper`). They need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.dreamshard.policy import new_policy
from shard_gym.agents.dreamshard.rollout import play
from shard_gym.agents.plan_search import PlanSearchAgent
from shard_gym.agents.presets import COST, TYPES, options_to_place
from shard_gym.agents.splits import SplitTables
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.envs.core.problem import prepare
from shard_gym.errors import InvalidCheckpointError, NoPlacementFoundError, short_repr
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan, plan_of_placement
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.system import one_blas_thread
from shard_gym.tasks import Task

POLICY = "policy."  # prefix of the policy's weights in a file; that of the surrogate's is `COST`


class SurrogateSearchAgent(Agent):
    """Searches for placements and plans under a learned cost model; it never evaluates the true cost.

    Args:
        name: its name.
        cost_model: the surrogate.
        options: those that it was trained with.
        sharding_types: those that the surrogate learned; table_wise alone for one that learned from placements.
        seed: of the search.
    """

    def __init__(
        self,
        name: str,
        cost_model: NeuralCostModel,
        options: SearchOptions,
        sharding_types: tuple[str, ...] = (TABLE_WISE,),
        seed: int = 0,
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.sharding_types = sharding_types
        self.seed = checked_seed(seed)

    @property
    @override
    def splits(self) -> bool:
        return self.sharding_types != (TABLE_WISE,)

    @property
    @override
    def search_budget(self) -> int:
        return self.options.queries

    @override
    def place(self, task: Task) -> Placement:
        return self.split(task, (TABLE_WISE,)).device

    @override
    def plan(self, task: Task) -> ShardingPlan:
        if not self.splits:
            return plan_of_placement(self.place(task), task.tables)
        return self.split(task, self.sharding_types).plan()

    def split(
        self, task: Task, sharding_types: tuple[str, ...], queries: int | None = None, seed: int | None = None
    ) -> SplitTables:
        """The parts of the best plan of these types; of a shorter search with `queries`, and with another `seed`."""
        options, seed = self.options, self.seed if seed is None else seed
        queries = min(queries or options.queries, options.queries)
        with one_blas_thread():
            search = PlanSearchAgent(self.cost_model, sharding_types, options.max_shards, queries, seed=seed)
            return search.split(task)


class DreamShardAgent(Agent):
    """Places tasks of any size with DreamShard's policy, which sees the costs of a surrogate; it searches nothing.

    Args:
        name: its name.
        cost_model: the surrogate.
        options: of the preset `paper`.
        policy_weights: of the policy.
    """

    def __init__(
        self, name: str, cost_model: AdditiveCostModel, options: PaperOptions, policy_weights: FloatWeights
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.policy_weights = policy_weights

    @override
    def place(self, task: Task) -> Placement:
        with one_blas_thread():
            return self.proposal(task, None)

    def proposal(self, task: Task, rng: np.random.Generator | None) -> Placement:
        """The placement of one episode, with the most likely devices where `rng` is None, otherwise with drawn ones."""
        problem = prepare(task, self.cost_model, task.num_tables, task.num_devices)
        cost_features = self.options.cost_features
        rollout = play(problem, self.cost_model, self.policy_weights, rng, cost_features=cost_features)
        if not rollout.complete[0]:
            raise NoPlacementFoundError(
                f"The policy of {self.name} left a table of task {task.name!r} without a device that has room for it. "
                "Train with the preset dream-search, which searches for a valid placement."
            )
        placement: Placement = rollout.placements[0]
        return placement


def load_dreamshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> Agent:
    """The agent of a training run; `changes` are `queries` for `dream-search`, the errors those of `load_agent`."""
    options: SearchOptions | PaperOptions = options_to_place(PRESETS, about, changes)
    network, rng = options.architecture, np.random.default_rng(0)
    if isinstance(options, SearchOptions):
        return load_search(arrays, about, options, seed)
    require_arrays("The agent's file", arrays, agent_arrays(network.weights_like(()), new_policy(rng)))
    return DreamShardAgent(about["agent"], network(under(COST, arrays)), options, under(POLICY, arrays))


def load_search(arrays: Arrays, about: Mapping[str, Any], options: SearchOptions, seed: int) -> SurrogateSearchAgent:
    """The agent of a training run with `SearchOptions`; the errors are those of `load_agent`."""
    network = options.architecture
    require_arrays("The agent's file", arrays, prefixed(COST, network.weights_like(under(COST, arrays))))
    types, known = about.get(TYPES, [TABLE_WISE]), network.sharding_types
    if not isinstance(types, list) or TABLE_WISE not in types or not set(map(str, types)) <= set(known):
        raise InvalidCheckpointError(
            f"{TYPES} in its metadata must be a list with {TABLE_WISE!r} and others of "
            f"{', '.join(known)}, not {short_repr(types)}."
        )
    return SurrogateSearchAgent(about["agent"], network(under(COST, arrays)), options, tuple(types), seed)


def agent_arrays(cost_weights: FloatWeights, policy_weights: FloatWeights) -> Arrays:
    """The weights of both networks in one dict."""
    return {**prefixed(COST, cost_weights), **prefixed(POLICY, policy_weights)}
