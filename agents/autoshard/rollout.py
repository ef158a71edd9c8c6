"""Episodes of AutoShard's policy in the environment, N at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from shard_gym.agents.autoshard.network import LATENT, AutoShardNetwork, Scored
from shard_gym.agents.training.modules import NOWHERE, finite, tensors_beside
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.no_costs import NoCosts
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episode_state import COMPLETE, PlacementState
from shard_gym.envs.core.problem import IntArray, Problem
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

GIB = 2**30


class _ByPredictedCost:
    """An `Observation` without any; tables come by descending cost alone on a device, as `network` predicts it."""

    def __init__(self, network: AutoShardNetwork) -> None:
        self._network = network

    def order(self, tables: Tables) -> IntArray:
        with torch.no_grad():
            costs = self._network.costs(self._network.latents(self._network.inputs(tables)))
        return np.argsort(-costs.cpu().numpy(), kind="stable")

    def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
        return spaces.Dict({})

    def constant(self, problem: Problem, envs: IntArray | None = None) -> ObservationDict:
        return {}

    def __call__(self, problem: Problem, state: PlacementState) -> ObservationDict:
        return {}


@dataclass(frozen=True)
class Trajectories:
    """N episodes of at most S steps; undefined beyond the end of each."""

    inputs: Tensor  # (N, S, 21) float32, of the tables in placement order
    progress: Tensor  # (N, S) float32, the share of the tables placed before each step
    numbers: Tensor  # (N, S, D, 2) float32, see `AutoShardNetwork.scores`
    open: Tensor  # (N, S, D) bool, the devices that could be chosen
    actions: Tensor  # (N, S) int64
    taken: Tensor  # (N, S) bool, whether the episode had such a step
    log_probability: Tensor  # (N, S) float32, of each action
    rewards: NDArray[np.float64]  # (N, S) float64


@dataclass(frozen=True)
class Played:
    """The ends of N episodes, and the way there."""

    placements: NDArray[np.int64]  # (N, T), in the tasks' own order of tables; -1 beyond them and for unplaced tables
    phases_ms: NDArray[np.float64]  # (N, D, 4) float64, of complete placements
    costs_ms: NDArray[np.float64]  # (N,) float64; the penalty where the episode failed
    complete: NDArray[np.bool_]  # (N,) bool
    measured: NDArray[np.bool_]  # (N,) bool, whether the true cost of a complete placement is less than the penalty
    trajectories: Trajectories  # inputs and actions


def play(
    network: AutoShardNetwork,
    tasks: Sequence[Task],
    rng: np.random.Generator | None,
    *,
    masks: bool = True,
    reward: str = "terminal",
    true_cost: CostModel | None = None,
    lower_bounds_ms: NDArray[np.float64] | None = None,
) -> Played:
    """Play an episode of each task.

    `rng` draws the devices; with None the likeliest are taken. Without `masks`, choosing a device without room ends the
    episode. `true_cost` estimates or measures complete placements; None is for no costs and no evaluation. Rewards that
    divide by lower bounds need `lower_bounds_ms`, (N,) of the tasks.
    """
    unique = {task.name: task for task in tasks}
    suite = TaskSuite("drawn", tuple(unique.values()))
    envs = np.arange(len(tasks))
    observe = _ByPredictedCost(network)
    episodes = PlacementConfig(suite, cost_model=NoCosts(), reward=reward, observation=observe).episodes(len(tasks))
    episodes.final_cost = true_cost
    episodes.begin(envs, list(tasks))
    problem, state = episodes.problem, episodes.state
    if lower_bounds_ms is not None:
        problem.lower_bound_ms[:] = lower_bounds_ms
    inputs = _in_order(network, tasks, problem)
    steps, devices = inputs.shape[1], problem.max_devices
    tensor, shape, nothing = tensors_beside(network), (len(tasks), steps), inputs.new_zeros
    progress = (torch.arange(steps, device=inputs.device) / tensor(problem.num_tables)[:, None]).float()
    real = tensor(problem.cluster.device_mask.copy())
    numbers, choosable = nothing(*shape, devices, 2), nothing(*shape, devices, dtype=torch.bool)
    actions, taken = nothing(shape, dtype=torch.int64), nothing(shape, dtype=torch.bool)
    logs, rewards = nothing(shape), np.zeros(shape)
    with torch.no_grad():
        latents = network.latents(inputs)
        states, empty = network.states(latents, progress), network.empty()
        sums, held = nothing(len(tasks), devices, LATENT), nothing(len(tasks), devices, dtype=torch.bool)
        for step in range(steps):
            taken[:, step] = tensor(~state.over)
            numbers[:, step, :, 0] = network.costs(sums) * held  # nothing costs nothing
            numbers[:, step, :, 1] = tensor(state.memory_used / GIB)
            choosable[:, step] = tensor(episodes.masks()) if masks else real
            scores = finite(network.scores(states[:, step], sums + empty, numbers[:, step]))
            distribution = scores.masked_fill(~choosable[:, step], NOWHERE).log_softmax(dim=-1)
            noise = 0.0 if rng is None else tensor(rng.gumbel(size=scores.shape).astype(np.float32))
            device = (distribution + noise).argmax(dim=-1)
            actions[:, step], logs[:, step] = device, distribution[tensor(envs), device]
            rewards[:, step], _ = episodes.step(device.cpu().numpy())
            put = one_hot(device, devices) * taken[:, step, None]
            sums = sums + put[..., None] * latents[:, step, None]
            held = held | (put > 0)
    complete = state.status == COMPLETE
    measured = complete & (state.cost_ms < problem.penalty_ms)
    last = problem.num_tables - 1
    unmeasured = np.flatnonzero(complete & ~measured)  # one device is always in balance
    rewards[unmeasured, last[unmeasured]] = np.minimum(rewards[unmeasured, last[unmeasured]], 0.0)
    return Played(
        placements=episodes.placements(envs),
        phases_ms=state.phases_ms.copy(),
        costs_ms=np.where(complete, state.cost_ms, problem.penalty_ms),
        complete=complete,
        measured=measured,
        trajectories=Trajectories(inputs, progress, numbers, choosable, actions, taken, logs, rewards),
    )


def _in_order(network: AutoShardNetwork, tasks: Sequence[Task], problem: Problem) -> Tensor:
    """(N, S, 21) float32 inputs of the tables of each episode, in placement order."""
    tensor = tensors_beside(network)
    shape = (len(tasks), int(problem.num_tables.max()), problem.tables.features.shape[-1])
    inputs = tensor(np.zeros(shape, np.float32))
    orders = problem.tables.order[problem.row]
    for row, (task, order) in enumerate(zip(tasks, orders, strict=True)):
        inputs[row, : task.num_tables] = network.inputs(task.tables)[tensor(order[: task.num_tables])]
    return inputs


def scored(network: AutoShardNetwork, played: Trajectories) -> Scored:
    """Scores and values of all steps of `played`, with gradients."""
    latents = network.latents(played.inputs)
    states = network.states(latents, played.progress)
    put = one_hot(played.actions, played.open.shape[-1]) * played.taken[..., None]
    added = put[..., None] * latents[..., None, :]
    scores = network.scores(states, added.cumsum(dim=1) - added + network.empty(), played.numbers)
    return Scored(scores.masked_fill(~played.open, NOWHERE), network.value(states)[..., 0])
