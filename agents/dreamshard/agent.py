"""The trained agent, local search (`dream-search`) or a policy (`paper`) under the surrogate; needs NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.options import PRESETS, PaperOptions, SearchOptions
from shard_gym.agents.dreamshard.policy import new_policy
from shard_gym.agents.dreamshard.rollout import play
from shard_gym.agents.presets import COST, options_to_place
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.envs.core.problem import prepare
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.system import one_blas_thread
from shard_gym.tasks import Task

POLICY = "policy."  # prefix of the policy's weights in a file; that of the surrogate's is `COST`
PROPOSAL_QUERIES = 2_000  # surrogate evaluations of a search for a placement to measure


class DreamShardAgent(Agent):
    """Places tasks of any size under a learned cost model; it never evaluates the true cost.

    Args:
        cost_model: the surrogate.
        options: of the preset it was trained with.
        policy_weights: of the policy of the preset `paper`; `dream-search` has none.
        seed: of the local search.
    """

    def __init__(
        self,
        name: str,
        cost_model: AdditiveCostModel,
        options: SearchOptions | PaperOptions,
        policy_weights: FloatWeights | None = None,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.options = options
        self.policy_weights = policy_weights or {}
        self.seed = checked_seed(seed)

    @property
    @override
    def search_budget(self) -> int:
        return self.options.queries if isinstance(self.options, SearchOptions) else 0

    @override
    def place(self, task: Task) -> Placement:
        with one_blas_thread():
            if isinstance(self.options, SearchOptions):
                return LocalSearchAgent(self.cost_model, self.options.queries, seed=self.seed).place(task)
            return self._episode(task, self.options, None)

    def proposal(self, task: Task, rng: np.random.Generator) -> Placement:
        """A placement to measure in training: of a shorter search, or of an episode with drawn devices."""
        if isinstance(self.options, SearchOptions):
            queries, seed = min(PROPOSAL_QUERIES, self.options.queries), int(rng.integers(2**31))
            return LocalSearchAgent(self.cost_model, queries, seed=seed).place(task)
        return self._episode(task, self.options, rng)

    def _episode(self, task: Task, options: PaperOptions, rng: np.random.Generator | None) -> Placement:
        """The placement of one episode of the policy; with the most likely devices where `rng` is None."""
        problem = prepare(task, self.cost_model, task.num_tables, task.num_devices)
        rollout = play(problem, self.cost_model, self.policy_weights, rng, cost_features=options.cost_features)
        if not rollout.complete[0]:
            raise NoPlacementFoundError(
                f"The policy of {self.name} left a table of task {task.name!r} without a device that has room for it. "
                "Train with the preset dream-search, which searches for a valid placement."
            )
        placement: Placement = rollout.placements[0]
        return placement


def load_dreamshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> DreamShardAgent:
    """The agent of a training run; `changes` are `queries` for `dream-search`, the errors those of `load_agent`."""
    options: SearchOptions | PaperOptions = options_to_place(PRESETS, about, changes)
    network, rng = options.architecture, np.random.default_rng(0)
    policy = new_policy(rng) if isinstance(options, PaperOptions) else {}
    require_arrays("The agent's file", arrays, agent_arrays(network.new_weights(rng), policy))
    return DreamShardAgent(about["agent"], network(under(COST, arrays)), options, under(POLICY, arrays), seed)


def agent_arrays(cost_weights: FloatWeights, policy_weights: FloatWeights) -> Arrays:
    """The weights of both networks in one dict."""
    return {**prefixed(COST, cost_weights), **prefixed(POLICY, policy_weights)}
