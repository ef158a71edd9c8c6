"""Rollouts of the attention policy: R placements of each of B tasks at once, by the environment's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from shard_gym.agents.attention.features import NUM_FEATURES, NUM_SHARES, amounts_of, described, placing_order
from shard_gym.agents.attention.network import LATENT, AttentionPolicy, Held
from shard_gym.agents.training.modules import NOWHERE, chosen_and_entropy, finite, tensors_beside
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.no_costs import without_costs
from shard_gym.envs.core.episode_state import COMPLETE, PlacementState
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.state import advance, initial_state
from shard_gym.placement import Placement
from shard_gym.tasks import Task, TaskSuite


@dataclass(frozen=True)
class Batch:
    """R episodes of each of B tasks, padded to T tables and D devices; episode b * R + r is the r-th of task b."""

    tasks: Sequence[Task]  # B, with different names
    count: int  # R
    features: NDArray[np.float32]  # (B, T, F) float32, in placing order; zeros in padding
    padding: NDArray[np.bool_]  # (B, T) bool
    problem: Problem  # the N = B * R episodes
    model: AdditiveCostModel  # whose loads they add up; it computes no cost while they are played

    @staticmethod
    def of(tasks: Sequence[Task], count: int, model: AdditiveCostModel) -> Batch:
        """`count` episodes of each of `tasks`; raises TableTooLargeError if a table fits no device."""
        longest, widest = max(task.num_tables for task in tasks), max(task.num_devices for task in tasks)
        suite, total = TaskSuite("drawn", tuple(tasks)), len(tasks) * count
        prepared = PreparedTasks(suite, model, longest, widest, total, placing_order)
        prepared.begin(np.arange(total), [task for task in tasks for _ in range(count)])
        features = np.zeros((len(tasks), longest, NUM_FEATURES), np.float32)
        padding = np.ones((len(tasks), longest), np.bool_)
        for row, task in enumerate(tasks):
            features[row, : task.num_tables] = described(task)[placing_order(task.tables)]
            padding[row, : task.num_tables] = False
        return Batch(tasks, count, features, padding, prepared.problem, model)

    @property
    def task_of(self) -> NDArray[np.int64]:
        """(N,) int64, the task of each episode."""
        return np.repeat(np.arange(len(self.tasks)), self.count)


@dataclass(frozen=True)
class Trajectories:
    """M episodes of T steps; a step beyond the end of an episode is not `taken`."""

    task: NDArray[np.int64]  # (M,) int64, the number of its task in the batch
    shares: NDArray[np.float32]  # (M, T, D, ...) float32, see `Held`
    widest: NDArray[np.float32]  # (M, T, D, ...) float32, see `Held`
    legal: NDArray[np.bool_]  # (M, T, D) bool
    action: NDArray[np.int64]  # (M, T) int64, a device for each table in placing order
    taken: NDArray[np.bool_]  # (M, T) bool

    def take(self, episodes: NDArray[np.int64]) -> Trajectories:
        """Those of `episodes`."""
        return Trajectories(*(getattr(self, field.name)[episodes] for field in fields(self)))


@dataclass(frozen=True)
class Rollouts:
    """The ends of the N episodes of a batch, and the way there."""

    batch: Batch  # what was played
    state: PlacementState  # at the ends
    complete: NDArray[np.bool_]  # (N,) bool, whether every table found a place
    trajectories: Trajectories | None  # inputs and actions; None if they were not recorded

    def costs(self, everywhere: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """(N, D, 4) phases and (N,) ms under the model of the batch; of incomplete ones, of what they hold.

        `everywhere` are (B, K) further loads of all devices of each task.
        """
        model, loads = self.batch.model, self.state.device_loads
        if everywhere is not None:
            own = everywhere[self.batch.task_of][:, None] * self.batch.problem.cluster.device_mask[..., None]
            loads = model.add(loads, own)
        return model.costs(loads, self.batch.problem.cluster)

    def placement(self, episode: int) -> Placement:
        """(T,) int64, of a complete one, in the task's own order of tables."""
        task = self.batch.tasks[episode // self.batch.count]
        found = self.batch.problem.placements_of(self.state.assignment, np.array([episode]))
        placement: Placement = found[0, : task.num_tables]
        return placement


def play(
    policy: AttentionPolicy,
    batch: Batch,
    rng: np.random.Generator | None,
    temperature: FloatArray | float = 1.0,
    record: bool = True,
) -> Rollouts:
    """Play the episodes of `batch` to their ends.

    `rng` draws the devices from the softmax of the scores, divided by `temperature`, which is that of all or of each of
    the N episodes; 0 takes the best, as None does for `rng`. Training needs the inputs and actions that `record` keeps.
    """
    problem, model = batch.problem, without_costs(batch.model)
    tensor = tensors_beside(policy)
    state, task = initial_state(problem, model), tensor(batch.task_of)
    count, devices, amounts = problem.num_envs, problem.max_devices, amounts_of(problem)
    there = tensor(problem.cluster.device_mask.copy())
    shares, widest = np.zeros((count, devices, NUM_SHARES), np.float32), np.zeros((count, devices), np.float32)
    sums, steps = tensor(np.zeros((count, devices, LATENT), np.float32)), []
    with torch.no_grad():
        query, value = policy.encode(tensor(batch.features), tensor(batch.padding))
        for step in range(problem.max_tables):
            taken, legal = ~state.over, state.fits.copy()
            table = amounts[problem.current(np.full(count, step))]
            seen = shares.copy(), widest.copy()
            held = Held(sums, tensor(seen[0]), tensor(seen[1]), tensor(table), there)
            scores = finite(policy.scores(query[task, step], held)).cpu().numpy()
            if rng is not None:
                scores = scores + rng.gumbel(size=scores.shape) * np.reshape(temperature, (-1, 1))
            action = np.where(legal, scores, -np.inf).argmax(axis=1)
            if record:
                steps.append((*seen, legal, action, taken))
            advance(problem, state, action, model)
            put = ((action[:, None] == np.arange(devices)) & taken[:, None])[..., None]
            shares += put * table[:, None, :-1]
            np.maximum(widest, put[..., 0] * table[:, -1:], out=widest)
            sums = sums + tensor(put) * value[task, step][:, None]
    complete = np.asarray(state.status == COMPLETE)
    if not record:
        return Rollouts(batch, state, complete, None)
    columns = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
    return Rollouts(batch, state, complete, Trajectories(batch.task_of, *columns))


def log_probabilities(policy: AttentionPolicy, batch: Batch, ways: Trajectories) -> tuple[Tensor, Tensor]:
    """(M,) logs of the probability of each of `ways`, and (M,) mean entropies of its choices in nats."""
    tensor = tensors_beside(policy)
    query, value = policy.encode(tensor(batch.features), tensor(batch.padding))
    task, action = tensor(ways.task), tensor(ways.action)
    taken, legal = tensor(ways.taken).float(), tensor(ways.legal)
    problem, first = batch.problem, ways.task * batch.count
    put = one_hot(action, problem.max_devices).float() * taken[..., None]
    added = put[..., None] * value[task][:, :, None]
    rows = problem.row[first, None] * problem.max_tables + np.arange(problem.max_tables)
    held = Held(
        added.cumsum(dim=1) - added,
        tensor(ways.shares),
        tensor(ways.widest),
        tensor(amounts_of(problem)[rows]),
        tensor(problem.cluster.device_mask[first])[:, None].expand(legal.shape),
    )
    scores = policy.scores(query[task], held).masked_fill(~legal, NOWHERE)
    logs = scores.log_softmax(dim=-1)
    chosen, entropy = chosen_and_entropy(logs, action)
    return (chosen * taken).sum(dim=-1), (entropy * taken).sum(dim=-1) / taken.sum(dim=-1).clamp(min=1.0)
