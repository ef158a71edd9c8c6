"""Rollouts of DreamShard's policy: N episodes at once under a cost model, through the environment's own step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.dreamshard.policy import device_scores
from shard_gym.cluster import Cluster
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.neural.features import plain_features, table_latents
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.envs.core.episode_state import COMPLETE
from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.state import advance, initial_state


@dataclass(frozen=True)
class Trajectories:
    """Inputs and actions of a policy in N episodes of at most T steps; undefined beyond an episode's last step."""

    features: NDArray[np.float32]  # (N, T, 21) float32, of the tables in placement order
    costs_ms: NDArray[np.float32]  # (N, T, D, 4), estimated before each step; 0 if the policy is to ignore them
    legal: NDArray[np.bool_]  # (N, T, D) bool
    actions: NDArray[np.int64]  # (N, T) int64

    @property
    def taken(self) -> NDArray[np.bool_]:
        """(N, T) bool, whether the policy chose a device: no device is legal once an episode has ended."""
        return np.asarray(self.legal.any(axis=2))


@dataclass(frozen=True)
class Rollout:
    """The ends of N episodes, and the way there."""

    placements: NDArray[np.int64]  # (N, T), in the tasks' own order of tables; -1 beyond them and for unplaced tables
    cost_ms: FloatArray  # (N,) float64, estimated; the penalty for a failed episode
    complete: NDArray[np.bool_]  # (N,) bool
    trajectories: Trajectories  # inputs and actions


def play(
    problem: Problem,
    model: AdditiveCostModel,
    weights: FloatWeights,
    rng: np.random.Generator | None,
    *,
    cost_features: bool = True,
) -> Rollout:
    """Play the N episodes of `problem`, which was prepared with `model`, to their ends.

    `rng` draws the devices; with None the most likely ones are taken. The policy, of these `weights`, sees the
    estimated costs if `cost_features`.
    """
    state, step_model = initial_state(problem, model), _WithoutTotals(model)
    features = problem.tables.features[problem.row]
    latents = table_latents(weights, plain_features(features))
    longest, episodes = int(problem.num_tables.max()), np.arange(problem.num_envs)
    latent_sums = np.zeros((problem.num_envs, problem.max_devices, latents.shape[-1]), np.float32)
    shape = (problem.num_envs, longest, problem.max_devices)
    costs = np.zeros((*shape, 4), np.float32)
    legal, actions = np.zeros(shape, np.bool_), np.zeros(shape[:2], np.int64)
    for step in range(longest):
        legal[:, step] = state.fits
        if cost_features:
            costs[:, step] = state.phases_ms
        scores = device_scores(weights, latent_sums, costs[:, step])
        # The maximum of scores with Gumbel noise follows their softmax.
        noise = 0.0 if rng is None else rng.gumbel(size=scores.shape)
        actions[:, step] = np.where(legal[:, step], scores + noise, -np.inf).argmax(axis=1)
        advance(problem, state, actions[:, step], step_model)
        latent_sums[episodes, actions[:, step]] += latents[:, step]
    complete = state.status == COMPLETE
    cost = model.iteration_cost(state.phases_ms, state.device_loads[..., model.shared_loads], problem.cluster)
    return Rollout(
        placements=problem.placements_of(state.assignment, episodes),
        cost_ms=np.where(complete, cost, problem.penalty_ms),
        complete=complete,
        trajectories=Trajectories(features[:, :longest], costs, legal, actions),
    )


class _WithoutTotals(CountedCostModel):
    """A model without the cost of the iteration, which is only needed at the end of an episode."""

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        return np.zeros(phases.shape[:-2])
