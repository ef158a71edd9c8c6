"""DreamShard placing tables: an episode inside its estimate, and for `dream-search` a search there. Needs no torch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.base import Agent
from shard_gym.agents.dreamshard.options import DreamShardOptions, dreamshard_options
from shard_gym.agents.dreamshard.policy import POLICIES
from shard_gym.agents.dreamshard.rollout import play
from shard_gym.agents.search import LocalSearchAgent
from shard_gym.checks import checked_seed
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.cost_models.neural.storage import NETWORKS
from shard_gym.envs.core.problem import Problem, prepare
from shard_gym.errors import InvalidCheckpointError, NoPlacementFoundError, unknown_name
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.tasks import Task

PLACING = ("samples", "queries")
"""Options that a trained agent may still be given."""

COST, POLICY = "cost.", "policy."
"""How the names of the two networks' weights begin in a file."""


class DreamShardAgent(Agent):
    """Places with a learned policy inside a learned estimate; the true cost is never asked.

    Args:
        name: how result files call it.
        cost_model: the learned estimate.
        policy_weights: of the policy `options.policy`.
        options: `samples` and `queries` say how long it may dream about a task.
        seed: of the samples and the search.
    """

    def __init__(
        self,
        name: str,
        cost_model: AdditiveCostModel,
        policy_weights: FloatWeights,
        options: DreamShardOptions,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.cost_model = cost_model
        self.policy_weights = policy_weights
        self.options = options
        self.seed = checked_seed(seed)
        self._policy = POLICIES[options.policy]
        self._search = LocalSearchAgent(cost_model, max_queries=max(1, options.queries), seed=seed)

    @property
    def search_budget(self) -> int:
        """See `Agent`."""
        return self.options.samples + self.options.queries

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        problem = prepare(task, self.cost_model, task.num_tables, task.num_devices)
        found = [*self.played(problem, None), *self._sampled(task, problem)]
        if not self.options.queries:
            return self._best(task, found)
        return self._search.improve(task, _starts(self._search, task, found))

    def proposal(self, task: Task, rng: np.random.Generator, *, search: bool) -> Placement | None:
        """A placement worth measuring, with chance in it: an episode, improved a little; None if it led nowhere."""
        problem = prepare(task, self.cost_model, task.num_tables, task.num_devices)
        found = self.played(problem, rng)
        if not (search and self.options.proposal_queries):
            return found[0][0] if found else None
        queries, seed = self.options.proposal_queries, int(rng.integers(2**31))
        improver = LocalSearchAgent(self.cost_model, max_queries=queries, seed=seed)
        try:
            return improver.improve(task, _starts(improver, task, found))
        except NoPlacementFoundError:
            return None

    def played(self, problem: Problem, rng: np.random.Generator | None) -> list[tuple[Placement, float]]:
        """The complete placements of the episodes of `problem`, and what the dream says they cost."""
        rollout = play(problem, self.cost_model, self._policy, self.policy_weights, rng)
        complete = np.flatnonzero(rollout.complete).tolist()
        return [(rollout.placements[episode], float(rollout.cost_ms[episode])) for episode in complete]

    def _sampled(self, task: Task, problem: Problem) -> list[tuple[Placement, float]]:
        if not self.options.samples:
            return []
        rng = np.random.default_rng([self.seed, zlib.crc32(task.name.encode())])
        return self.played(problem.repeated(self.options.samples), rng)

    def _best(self, task: Task, found: list[tuple[Placement, float]]) -> Placement:
        if not found:
            raise NoPlacementFoundError(
                f"The policy of {self.name} left a table of task {task.name!r} without a device that has room for it. "
                "Let it draw more placements with the option samples, or search with the option queries."
            )
        return min(found, key=lambda each: each[1])[0]


def _starts(search: LocalSearchAgent, task: Task, found: list[tuple[Placement, float]]) -> list[Placement]:
    """Where a search may start: what the policy found, and what the heuristics find inside the dream.

    Raises:
        NoPlacementFoundError: nobody found anything.
    """
    own = [placement for placement, _ in found]
    try:
        return [*own, *search.starts(task)]
    except NoPlacementFoundError:
        if not own:
            raise
        return own


def agent_arrays(cost_weights: Mapping[str, NDArray[Any]], policy_weights: Mapping[str, NDArray[Any]]) -> Arrays:
    """The weights of both networks under one roof."""
    return {
        **{COST + name: array for name, array in cost_weights.items()},
        **{POLICY + name: array for name, array in policy_weights.items()},
    }


def load_dreamshard(
    arrays: Arrays, about: Mapping[str, Any], cost_model: AdditiveCostModel, seed: int, **changes: Any
) -> DreamShardAgent:
    """The agent that a training run left behind; `cost_model` is not asked anything.

    Args:
        arrays: see `agent_arrays`.
        about: holds the options it was trained with.
        cost_model: the true cost.
        seed: of samples and search.
        changes: `samples` and `queries` to place with; 0 of both for the policy alone.

    Raises:
        InvalidCheckpointError: the arrays are not those of such an agent.
        InvalidOptionError: an option has an impossible value.
        UnknownNameError: there is no such option to place with.
    """
    for name in changes:
        if name not in PLACING:
            raise unknown_name("option to place with", name, PLACING)
    try:
        trained = dreamshard_options(about["preset"], **about["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"The file does not say how the agent was trained: {error}") from error
    options = dreamshard_options(about["preset"], **{**asdict(trained), **changes})
    network, policy = NETWORKS[options.network], POLICIES[options.policy]
    rng = np.random.default_rng(0)
    require_arrays("The agent's file", arrays, agent_arrays(network.new_weights(rng), policy.new_weights(rng)))
    return DreamShardAgent(about["agent"], network(under(COST, arrays)), under(POLICY, arrays), options, seed)
