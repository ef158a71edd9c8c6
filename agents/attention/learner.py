"""Training of the attention policy: REINFORCE on the true cost, with the mean of a task's rollouts as the baseline."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shard_gym.agents.attention.agent import MAX_HIDDEN, MAX_LAYERS, POLICY, AttentionAgent, AttentionPlanAgent
from shard_gym.agents.attention.features import described
from shard_gym.agents.attention.network import HEADS, new_policy
from shard_gym.agents.attention.rollout import (
    LIMITS,
    MAX_SHARDS,
    NO_LIMIT,
    SPLIT_TYPES,
    Batch,
    Rollouts,
    log_probabilities,
    play,
)
from shard_gym.agents.attention.selection import record
from shard_gym.agents.training.cost_network import COST, CostNetworkTraining
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.torch_arrays import load_training_arrays, module_arrays, training_arrays
from shard_gym.checks import checked_count, checked_learning_rate, is_not_negative
from shard_gym.cost_models import AdditiveCostModel, CostModel, additive_estimate, make_sharding_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import concatenate_tables
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.cost_models.neural.pooled_sharding import PooledShardingModel
from shard_gym.errors import InvalidOptionError, short_repr
from shard_gym.io.arrays import Arrays, under
from shard_gym.sharding.variants import variants_of
from shard_gym.suites import load_suite
from shard_gym.system import one_thread
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite

WEIGHTS, TASKS, CHOICES, COSTS, COST_WEIGHTS = range(5)
"""Purposes of random generators."""

MAX_GRADIENT_NORM = 1.0

COST_LEARNING_RATE = 6e-3
"""Of the learned cost, at the start; that of `dream-search`."""

FAILURE = 1.1
"""A rollout that got stuck counts as this many times the costliest one of its task."""

ROOM = 1.05
"""A drawn table needs at most a device divided by this, where tables are not split."""


class AttentionLearner(Learner):
    """An attention policy in training, as the field trains policies for routing: POMO's REINFORCE (Kwon et al., NeurIPS
    2020).

    A step draws a training task, and as many tables of all training tasks as it has for each of some new tasks. It
    rolls each out many times and evaluates the true cost of every rollout. The advantage is how much cheaper a rollout
    is than the mean of its task's, in shares of that mean; the unit is their root mean square over the step. The
    gradient is that of the cheapest and the costliest rollouts of each task alone, because it takes longer than the
    rollouts do. On suites whose tables may be split, the policy splits, and each task has one of the `LIMITS`.

    Some of the rollouts train a learned cost, by which the agent chooses among its samples (see `AttentionAgent`).

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        also: names of more suites, with commas between them: each step is on the training tasks of one of them, or of
            `suite`. What learns from all sizes, pools and machines places on all of them.
        iterations: how often the state is saved, and the learning rates lowered; they fall to zero, as a cosine.
        updates: steps in each iteration.
        tasks: drawn in each step.
        rollouts: of each task.
        kept: the cheapest and the costliest rollouts of a task that the gradient is of, as many of both.
        learning_rate: Adam's at the start.
        entropy: weight of the entropy of the choices.
        hidden: of the encoder, a multiple of 8.
        layers: of the encoder.
        records: rollouts in each iteration that train the learned cost.
        cost_updates: batches that it is trained on in each iteration.

    Raises:
        InvalidOptionError: an option is out of range.
    """

    def __init__(
        self,
        suite: TaskSuite,
        cost_model: CostModel,
        seed: int,
        *,
        name: str = "attention",
        also: str = "",
        iterations: int = 100,
        updates: int = 60,
        tasks: int = 8,
        rollouts: int = 96,
        kept: int = 8,
        learning_rate: float = 1e-3,
        entropy: float = 0.003,
        hidden: int = 64,
        layers: int = 3,
        records: int = 20,
        cost_updates: int = 60,
    ) -> None:
        self.plans = suite[0].splittable
        super().__init__(suite, make_sharding_cost_model(cost_model) if self.plans else cost_model, seed)
        self.name = name
        self.iterations = checked_count("iterations", iterations)
        self.updates = checked_count("updates", updates)
        self.tasks = checked_count("tasks", tasks)
        self.rollouts = checked_count("rollouts", rollouts, least=2)
        self.kept = checked_count("kept", kept)
        self.learning_rate = checked_learning_rate(learning_rate)
        if not is_not_negative(entropy):
            raise InvalidOptionError(f"entropy must be a number of at least 0, not {short_repr(entropy)}.")
        self.entropy = entropy
        self.hidden = checked_count("hidden", hidden, most=MAX_HIDDEN)
        self.layers = checked_count("layers", layers, most=MAX_LAYERS)
        if self.hidden % HEADS:
            raise InvalidOptionError(f"hidden must be a multiple of {HEADS}, not {self.hidden}.")
        self.records = checked_count("records", records)
        self.cost_updates = checked_count("cost_updates", cost_updates)
        self.planned_queries = self.iterations * self.updates * self.tasks * self.rollouts
        suites = [suite, *(load_suite(each.strip(), "train") for each in also.split(",") if each.strip())]
        if any(each[0].splittable != self.plans for each in suites):
            raise InvalidOptionError(f"Tables may be split in some of {suite.name}, {also} and not in others.")
        if also:
            self.sources = {"also_sha256": [each.sha256 for each in suites[1:]]}
        self._suites = [(each, concatenate_tables([task.tables for task in each])) for each in suites]
        self._policy = new_policy(self.hidden, self.layers, self.plans, self.rng(WEIGHTS))
        self._policy.normalize(np.concatenate([described(task) for each in suites for task in each]))
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=self.learning_rate)
        self._learned = CostNetworkTraining(PooledShardingModel, ShardRecorder(), self.rng(COST_WEIGHTS))

    def iterate(self) -> Report:
        """See `Learner`."""
        draws, choices, left = self.rng(TASKS), self.rng(CHOICES), self._left
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * left
        costs, entropies = [], []
        recorded = choices.integers(self.updates, size=self.records)
        with one_thread():
            for update in range(self.updates):
                tasks = self._drawn(draws)
                cost, entropy = self._update(tasks, int((recorded == update).sum()), choices)
                costs.append(cost)
                entropies.append(entropy)
            rate = COST_LEARNING_RATE * left
            loss = self._learned.train(
                self.rng(COSTS), steps=self.cost_updates, learning_rate=rate, final_learning_rate=rate
            )
        return Report(float(np.mean(costs)), {"entropy": float(np.mean(entropies)), "cost_loss": loss})

    @property
    def _left(self) -> float:
        """What is left of the learning rates: 1 at the start, near 0 in the last iteration."""
        return float(0.5 * (1.0 + np.cos(np.pi * self.iteration / self.iterations)))

    def _drawn(self, rng: np.random.Generator) -> list[Task]:
        """Tasks of random tables of a suite on the devices of one of its tasks, as many and as full as there."""
        suite, pool = self._suites[rng.integers(len(self._suites))]
        frame = suite.sample(rng)
        return [self._one_drawn(f"drawn {number}", frame, pool, rng) for number in range(self.tasks)]

    def _one_drawn(self, name: str, frame: Task, pool: Tables, rng: np.random.Generator) -> Task:
        caps, most = frame.topology.memory_cap_bytes, frame.topology.device.memory_bytes
        fitting = np.arange(len(pool)) if self.plans else np.flatnonzero(pool.memory_bytes * ROOM <= most)
        tables = pool.select(rng.choice(fitting, min(frame.num_tables, len(fitting)), replace=False))
        fuller = tables.memory_bytes.sum() / frame.tables.memory_bytes.sum()
        least = 1 if self.plans else int(tables.memory_bytes.max() * ROOM)
        topology = replace(frame.topology, memory_cap_bytes=np.clip((caps * fuller).astype(np.int64), least, most))
        possible = tables.memory_bytes.sum() <= topology.memory_cap_bytes.sum()
        if possible and self.plans:
            variants = variants_of(tables, topology, SPLIT_TYPES, MAX_SHARDS.bit_length() - 1)
            possible = bool(variants.fit_empty_devices(topology).any(axis=1).all())
        return Task(name, tables, topology, splittable=self.plans) if possible else replace(frame, name=name)

    def _update(self, tasks: list[Task], records: int, rng: np.random.Generator) -> tuple[float, float]:
        """One step; the mean cost of the rollouts, and the mean entropy of the choices of those that were kept."""
        model = additive_estimate(self.cost_model)
        limits = rng.choice(LIMITS, size=len(tasks)) if self.plans else np.full(len(tasks), NO_LIMIT)
        batch = Batch.of(tasks, self.rollouts, model, plans=self.plans, limits=limits.repeat(self.rollouts))
        rollouts = play(self._policy, batch, rng)
        recorded = rng.choice(len(rollouts.complete), records, replace=False)
        costs = self._costs(rollouts, recorded).reshape(len(tasks), -1)
        mean = costs.mean(axis=1, keepdims=True)
        advantage = 1.0 - costs / mean
        advantage /= np.sqrt((advantage**2).mean()) + 1e-6
        kept = self._kept(costs)
        logs, entropy = log_probabilities(self._policy, batch, rollouts.trajectories.take(kept))
        weight = torch.from_numpy(advantage.reshape(-1)[kept].astype(np.float32))
        loss = -(weight * logs).mean() - self.entropy * entropy.mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        return float(costs.mean()), float(entropy.mean().detach())

    def _kept(self, costs: FloatArray) -> NDArray[np.int64]:
        """The numbers of the cheapest and the costliest episodes of each task; all of them if there are no more."""
        tasks, count = costs.shape
        order = np.argsort(costs, axis=1, kind="stable")
        if 2 * self.kept < count:
            order = np.concatenate([order[:, : self.kept], order[:, count - self.kept :]], axis=1)
        return np.asarray(order + count * np.arange(tasks)[:, None], np.int64).reshape(-1)

    def _costs(self, rollouts: Rollouts, recorded: NDArray[np.int64]) -> FloatArray:
        """(N,) ms; those that got stuck cost more than all others. The complete ones of `recorded` are recorded."""
        complete = rollouts.complete
        phases, costs = np.zeros(0), np.full(len(complete), np.nan)
        if isinstance(self.cost_model, AdditiveCostModel):
            before = self.cost_model.queries
            phases, every = rollouts.costs()
            self.cost_model.queries = before + int(complete.sum())  # the others are not placements
            costs[complete] = every[complete]
            self.costed += int(complete.sum())
            for episode in recorded[complete[recorded]].tolist():
                record(self._learned.recorder, rollouts, episode, phases[episode], costs[episode])
        else:
            for episode in np.flatnonzero(complete).tolist():
                task = rollouts.batch.tasks[episode // rollouts.batch.count]
                estimate = self.true_cost(rollouts.placement(episode), task.tables, task.topology)
                if estimate is not None:
                    costs[episode] = estimate.total_ms
                    record(self._learned.recorder, rollouts, episode, estimate.phases_ms, estimate.total_ms)
        by_task = costs.reshape(len(rollouts.batch.tasks), -1)
        worst = np.array(
            [
                np.nanmax(row) if np.isfinite(row).any() else self.cost_model.penalty_ms(task.tables, task.topology)
                for row, task in zip(by_task, rollouts.batch.tasks, strict=True)
            ]
        )
        return np.where(np.isnan(by_task), FAILURE * worst[:, None], by_task).reshape(-1)

    def state(self) -> Arrays:
        """See `Learner`."""
        return {
            **{POLICY + name: array for name, array in training_arrays(self._policy, self._optimizer).items()},
            **self._learned.state(),
        }

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        load_training_arrays(self._policy, self._optimizer, under(POLICY, arrays), "The policy")
        self._learned.load_state(arrays)

    def weights(self) -> Arrays:
        """See `Learner`."""
        return {
            **{POLICY + name: array for name, array in module_arrays(self._policy).items()},
            **{COST + name: array for name, array in self._learned.weights().items()},
        }

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        more = [f"{suite.name}/{suite.split}" for suite, _ in self._suites[1:]]
        sizes = {"hidden": self.hidden, "layers": self.layers, "plans": self.plans}
        return {**sizes, **({"more_data": more} if more else {})}

    def agent(self) -> AttentionAgent:
        """See `Learner`."""
        kind = AttentionPlanAgent if self.plans else AttentionAgent
        return kind(self.name, copy.deepcopy(self._policy), self._learned.model())
