"""Rollouts of the attention policy: R placements or plans of each of B tasks at once, by the environment's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shard_gym.agents.attention.features import NUM_FEATURES, NUM_SHARES, described, parts_of, placing_order
from shard_gym.agents.attention.network import LATENT, NOWHERE, NUM_SPLITS, AttentionPolicy, Held
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.no_costs import without_costs
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import Problem
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import COMPLETE, PlacementState, ShardingState, advance, current_rows, initial_state
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.tasks import Task, TaskSuite

SPLIT_TYPES = (TABLE_WISE, COLUMN_WISE, ROW_WISE, DATA_PARALLEL)

MAX_SHARDS = 8
"""Of a table, as `EmbeddingSharding-v0` has them."""

NO_LIMIT = 1.0

LIMITS = (NO_LIMIT, 0.5, 0.25)
"""Limits of the lane share of all parts of a plan: every row may have a whole warp, half of one or a quarter.

A device runs at the width of its widest part, so halving one of several wide tables gains nothing. Halving all of them
does, and is found only if it is tried: each rollout of a plan has a limit, and halves what is wider and can be halved.
"""


def split_rules(max_devices: int) -> SplitRules:
    """The rules of plans; the splits are the actions after the devices."""
    return SplitRules.of(SPLIT_TYPES, max_devices, 1, MAX_SHARDS)


@dataclass(frozen=True)
class Batch:
    """R episodes of each of B tasks, padded to T tables and D devices; episode b * R + r is the r-th of task b.

    Attributes:
        tasks: B, with different names.
        count: R.
        features: (B, T, F) float32, in placing order; zeros in padding.
        padding: (B, T) bool.
        limits: (N,) float32, see `LIMITS`.
        problem: the N = B * R episodes.
        model: whose loads they add up; it computes no cost while they are played.
    """

    tasks: Sequence[Task]
    count: int
    features: Tensor
    padding: Tensor
    limits: NDArray[np.float32]
    problem: Problem
    model: AdditiveCostModel

    @staticmethod
    def of(
        tasks: Sequence[Task],
        count: int,
        model: AdditiveCostModel,
        *,
        plans: bool,
        limits: NDArray[np.floating[Any]] | None = None,
    ) -> Batch:
        """`count` episodes of each of `tasks`, whose tables may be split for `plans`; by default without limits.

        Raises:
            TableTooLargeError: a table fits no device.
        """
        longest, widest = max(task.num_tables for task in tasks), max(task.num_devices for task in tasks)
        rules = split_rules(widest) if plans else None
        suite, total, order = TaskSuite("drawn", tuple(tasks)), len(tasks) * count, partial(placing_order, plans=plans)
        prepared = PreparedTasks(suite, model, longest, widest, total, order, rules)
        prepared.begin(np.arange(total), [task for task in tasks for _ in range(count)])
        features = np.zeros((len(tasks), longest, NUM_FEATURES), np.float32)
        padding = np.ones((len(tasks), longest), np.bool_)
        for row, task in enumerate(tasks):
            features[row, : task.num_tables] = described(task)[order(task.tables)]
            padding[row, : task.num_tables] = False
        limits = np.full(total, NO_LIMIT) if limits is None else limits
        inputs = torch.from_numpy(features), torch.from_numpy(padding), limits.astype(np.float32)
        return Batch(tasks, count, *inputs, prepared.problem, model)

    @property
    def task_of(self) -> NDArray[np.int64]:
        """(N,) int64, the task of each episode."""
        return np.repeat(np.arange(len(self.tasks)), self.count)


@dataclass(frozen=True)
class Trajectories:
    """M episodes of S steps; a step beyond the end of an episode is not `taken`.

    Attributes:
        task: (M,) int64, the number of its task in the batch.
        table: (M, S) int64, the position of the table in placing order.
        variant: (M, S) int64, that of the table that was given to devices; -1 if it was halved.
        given: (M, S, D) float32, the share of the table that each device received.
        shares, widest: (M, S, D, ...) float32, see `Held`.
        part, splits: (M, S, ...) float32, see `Held`.
        legal: (M, S, A) bool.
        action: (M, S) int64.
        taken: (M, S) bool.
    """

    task: NDArray[np.int64]
    table: NDArray[np.int64]
    variant: NDArray[np.int64]
    given: NDArray[np.float32]
    shares: NDArray[np.float32]
    widest: NDArray[np.float32]
    part: NDArray[np.float32]
    splits: NDArray[np.float32]
    legal: NDArray[np.bool_]
    action: NDArray[np.int64]
    taken: NDArray[np.bool_]

    def take(self, episodes: NDArray[np.int64]) -> Trajectories:
        """Those of `episodes`."""
        return Trajectories(*(getattr(self, field.name)[episodes] for field in fields(self)))


@dataclass(frozen=True)
class Rollouts:
    """The ends of the N episodes of a batch, and the way there.

    Attributes:
        batch: what was played.
        state: at the ends; a `ShardingState` of plans.
        complete: (N,) bool, whether every table found a place.
        trajectories: inputs and actions.
    """

    batch: Batch
    state: PlacementState
    complete: NDArray[np.bool_]
    trajectories: Trajectories

    def costs(self) -> tuple[FloatArray, FloatArray]:
        """(N, D, 4) phases and (N,) ms under the model of the batch; of incomplete ones, of what they hold."""
        return self.batch.model.costs(self.state.device_loads, self.batch.problem.cluster)

    def placement(self, episode: int) -> Placement:
        """(T,) int64, of a complete one in which no table was split."""
        task = self.batch.tasks[episode // self.batch.count]
        found = self.batch.problem.placements_of(self.state.assignment, np.array([episode]))[0, : task.num_tables]
        placement: Placement = found if self.batch.problem.rules is None else found[:, 0]
        return placement

    def plan(self, episode: int) -> ShardingPlan:
        """The plan of a complete one whose tables might be split."""
        rules = self.batch.problem.rules
        assert rules is not None
        placement = self.batch.problem.placements_of(self.state.assignment, np.array([episode]))[0]
        return plan_of(self.batch.tasks[episode // self.batch.count], placement, rules)


def play(
    policy: AttentionPolicy, batch: Batch, rng: np.random.Generator | None, temperature: FloatArray | float = 1.0
) -> Rollouts:
    """Play the episodes of `batch` to their ends.

    Args:
        policy: scores the actions.
        batch: the tasks.
        rng: draws the actions from the softmax of the scores; with None the best are taken.
        temperature: divides the scores, of all or of each of the N episodes; 0 takes the best.
    """
    problem, model = batch.problem, without_costs(batch.model)
    state, task = initial_state(problem, model), batch.task_of
    count, devices, rules = problem.num_envs, problem.max_devices, problem.rules
    parts, real = parts_of(problem), problem.cluster.device_mask.copy()
    each_has = np.asarray(problem.cluster.num_devices)
    there = torch.from_numpy(real)
    shares, widest = np.zeros((count, devices, NUM_SHARES), np.float32), np.zeros((count, devices), np.float32)
    sums, steps = torch.zeros(count, devices, LATENT), []
    with torch.no_grad():
        query, value = policy.encode(batch.features, batch.padding)
        while not state.over.all():
            taken = ~state.over
            table = np.minimum(state.step, problem.max_tables - 1)
            at = torch.from_numpy(task), torch.from_numpy(table)
            rows, level = current_rows(problem, state), _level(state)
            splits = _splits(parts, problem, state)
            part = np.concatenate([parts[rows], batch.limits[:, None]], axis=1)
            legal = _within_limits(state.fits.copy(), rules, part, splits)
            seen = shares.copy(), widest.copy(), part, splits
            held = Held.of(sums, *seen, there)
            scored = policy.scores(query[at], held)[:, : legal.shape[1]]
            scores = scored.masked_fill(~torch.from_numpy(legal), NOWHERE).numpy()
            if rng is not None:
                scores = scores + rng.gumbel(size=scores.shape) * np.reshape(temperature, (-1, 1)) * legal
            action = scores.argmax(axis=1)
            variant = level if rules is None else _variants(rules, action, level)
            given = _given(rules, action, real, each_has, level) * taken[:, None]
            steps.append((table, variant, given, *seen, legal, action, taken))
            advance(problem, state, action, model)
            received = (given > 0)[..., None]
            added = parts[rows - level + np.maximum(variant, 0)][:, None]
            shares += received * added[..., :-1]
            np.maximum(widest, received[..., 0] * added[..., -1], out=widest)
            sums = sums + torch.from_numpy(given)[..., None] * value[at][:, None]
    trajectories = Trajectories(task, *(np.stack(column, axis=1) for column in zip(*steps, strict=True)))
    return Rollouts(batch, state, np.asarray(state.status == COMPLETE), trajectories)


def _within_limits(
    legal: NDArray[np.bool_], rules: SplitRules | None, part: NDArray[np.float32], splits: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """(N, A) bool, `legal` without what exceeds the limit of an episode whose part can be halved; changed in place."""
    if rules is None:
        return legal
    halvable, limit = legal[:, rules.halve, None], part[:, -1:]
    legal[:, : rules.max_devices] &= ~(halvable & (part[:, NUM_SHARES, None] > limit))
    for number, spread in enumerate(rules.spreads, start=1):
        legal[:, spread.first] &= ~(halvable & (splits[:, number, NUM_SHARES, None] > limit))[:, 0]
    return legal


def _level(state: PlacementState) -> NDArray[np.int64]:
    return state.level.copy() if isinstance(state, ShardingState) else np.zeros(len(state.step), np.int64)


def _splits(parts: NDArray[np.float32], problem: Problem, state: PlacementState) -> NDArray[np.float32]:
    """(N, `NUM_SPLITS`, `NUM_SHARES` + 1) float32, a part of each split of the current parts; zeros without splits."""
    rules = problem.rules
    if rules is None:
        return np.zeros((problem.num_envs, NUM_SPLITS, parts.shape[1]), np.float32)
    whole = problem.current(state.step) * rules.num_variants
    half = np.minimum(_level(state) + 1, rules.max_halvings)
    variants = [half, *(np.full_like(half, spread.variant) for spread in rules.spreads)]
    found: NDArray[np.float32] = parts[np.stack([whole + variant for variant in variants], axis=1)]
    return found


def _variants(rules: SplitRules, action: NDArray[np.int64], level: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) int64, the variant that devices receive; -1 if the part is halved."""
    return np.where(action < rules.max_devices, level, rules.variants_and_hosts[0][action])


def _given(
    rules: SplitRules | None,
    action: NDArray[np.int64],
    real: NDArray[np.bool_],
    each_has: FloatArray,
    level: NDArray[np.int64],
) -> NDArray[np.float32]:
    """(N, D) float32, the share of the table that each device receives."""
    given = (action[:, None] == np.arange(real.shape[1])) * (0.5**level)[:, None]
    if rules is not None:
        spread = (action >= rules.max_devices) & (action != rules.halve)
        given = given + spread[:, None] * real / each_has[:, None]
    return np.asarray(given, np.float32)


def log_probabilities(policy: AttentionPolicy, batch: Batch, ways: Trajectories) -> tuple[Tensor, Tensor]:
    """(M,) logs of the probability of each of `ways`, and (M,) mean entropies of its choices in nats."""
    query, value = policy.encode(batch.features, batch.padding)
    at = torch.from_numpy(ways.task)[:, None], torch.from_numpy(ways.table)
    given, taken = torch.from_numpy(ways.given), torch.from_numpy(ways.taken).float()
    added = given[..., None] * value[at][:, :, None]
    real = torch.from_numpy(batch.problem.cluster.device_mask[:: batch.count].copy())[torch.from_numpy(ways.task)]
    sums, real = added.cumsum(dim=1) - added, real[:, None].expand(given.shape)
    held = Held.of(sums, ways.shares, ways.widest, ways.part, ways.splits, real)
    legal, action = torch.from_numpy(ways.legal), torch.from_numpy(ways.action)
    scores = policy.scores(query[at], held)[..., : legal.shape[-1]].masked_fill(~legal, NOWHERE)
    logs = scores.log_softmax(dim=-1)
    chosen = (logs.gather(-1, action[..., None])[..., 0] * taken).sum(dim=-1)
    entropy = -(logs.exp() * logs.clamp(min=-50.0)).sum(dim=-1) * taken
    return chosen, entropy.sum(dim=-1) / taken.sum(dim=-1).clamp(min=1.0)
