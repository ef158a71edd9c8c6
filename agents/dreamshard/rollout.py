"""Episodes inside an estimated MDP: the environment's own step, many at once, with a policy choosing the devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.dreamshard.policy import Policy, PolicyInput
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.state import COMPLETE, PlacementState, advance, initial_state
from shard_gym.topology import Cluster

Float32Array = NDArray[np.float32]


@dataclass(frozen=True)
class Steps:
    """What a policy saw and did in N episodes of at most T steps; beyond an episode's steps the numbers mean nothing.

    Attributes:
        features: (N, T, 21) float32, of the tables in placement order.
        table_costs_ms: (N, T, 4) float32, each table alone.
        costs_ms: (N, T, D, 4) float32, of the devices before each step.
        used: (N, T, D) float32, share of the memory in use before each step.
        legal: (N, T, D) bool.
        actions: (N, T) int64.
        taken: (N, T) bool, True where the policy had a choice to make.
        device_mask: (N, D) float32.
    """

    features: Float32Array
    table_costs_ms: Float32Array
    costs_ms: Float32Array
    used: Float32Array
    legal: NDArray[np.bool_]
    actions: NDArray[np.int64]
    taken: NDArray[np.bool_]
    device_mask: Float32Array


@dataclass(frozen=True)
class Rollout:
    """How N episodes ended.

    Attributes:
        placements: (N, T) int64, in the tasks' own order of tables; -1 beyond them and where a failed episode stopped.
        cost_ms: (N,) float64, estimated; the penalty for a failed episode.
        complete: (N,) bool.
        steps: what happened on the way, if it was to be recorded.
    """

    placements: NDArray[np.int64]
    cost_ms: FloatArray
    complete: NDArray[np.bool_]
    steps: Steps | None


def play(
    problem: Problem,
    model: AdditiveCostModel,
    policy: type[Policy],
    weights: FloatWeights,
    rng: np.random.Generator | None,
    *,
    record: bool = False,
) -> Rollout:
    """Play the N episodes of `problem` to their ends.

    Args:
        problem: prepared with `model`.
        model: estimates the costs; the policy sees them.
        policy: the kind of policy.
        weights: its weights.
        rng: draws the devices; None takes the likeliest.
        record: keep what `Steps` holds.
    """
    state, steps_model = initial_state(problem, model), _WithoutTotals(model)
    features, alone = problem.tables.features[problem.row], problem.tables.costs[problem.row]
    latents = policy.latents(weights, features)
    longest, everyone = int(problem.num_tables.max()), np.arange(problem.num_envs)
    held = np.zeros((problem.num_envs, problem.max_devices, latents.shape[-1]), np.float32)
    mask = problem.cluster.device_mask.astype(np.float32)
    per_byte = 1.0 / np.maximum(problem.memory_cap, 1)
    recorder = _Recorder(problem, longest) if record else None
    for step in range(longest):
        legal = state.fits
        now = PolicyInput(
            held=held,
            costs_ms=state.phases_ms.astype(np.float32),
            used=(state.memory_used * per_byte).astype(np.float32),
            table=latents[:, step],
            table_costs_ms=alone[:, step],
            device_mask=mask,
        )
        actions = _chosen(policy.scores(weights, now), legal, rng)
        if recorder:
            recorder.add(step, now, legal, actions)
        advance(problem, state, actions, steps_model)
        held[everyone, actions] += latents[:, step]
    steps = recorder.steps(features[:, :longest], alone[:, :longest], mask) if recorder else None
    return _ended(problem, state, model, steps)


def _chosen(scores: Float32Array, legal: NDArray[np.bool_], rng: np.random.Generator | None) -> NDArray[np.int64]:
    """(N,) devices: the best legal score; with Gumbel noise added, which makes the maximum follow the softmax."""
    noise = 0.0 if rng is None else rng.gumbel(size=scores.shape)
    actions: NDArray[np.int64] = np.where(legal, scores + noise, -np.inf).argmax(axis=1)
    return actions


class _WithoutTotals(CountedCostModel):
    """A model that leaves out the cost of the iteration, which nobody asks for before the end of an episode."""

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """(...) zeros."""
        return np.zeros(phases.shape[:-2])


def _ended(problem: Problem, state: PlacementState, model: AdditiveCostModel, steps: Steps | None) -> Rollout:
    complete = state.status == COMPLETE
    cost = model.iteration_cost(state.phases_ms, state.device_loads[..., model.shared_loads], problem.cluster)
    return Rollout(
        placements=problem.placements_of(state.assignment, np.arange(problem.num_envs)),
        cost_ms=np.where(complete, cost, problem.penalty_ms),
        complete=complete,
        steps=steps,
    )


class _Recorder:
    """Fills the arrays of `Steps`."""

    def __init__(self, problem: Problem, longest: int) -> None:
        shape = (problem.num_envs, longest, problem.max_devices)
        self._costs = np.zeros((*shape, 4), np.float32)
        self._used = np.zeros(shape, np.float32)
        self._legal = np.zeros(shape, np.bool_)
        self._actions = np.zeros(shape[:2], np.int64)

    def add(self, step: int, now: PolicyInput, legal: NDArray[np.bool_], actions: NDArray[np.int64]) -> None:
        """One step."""
        self._costs[:, step] = now.costs_ms
        self._used[:, step] = now.used
        self._legal[:, step] = legal
        self._actions[:, step] = actions

    def steps(self, features: Float32Array, alone: Float32Array, mask: Float32Array) -> Steps:
        """All of them."""
        taken = np.asarray(self._legal.any(axis=2))  # nothing is legal where an episode is over
        return Steps(features, alone, self._costs, self._used, self._legal, self._actions, taken, mask)
