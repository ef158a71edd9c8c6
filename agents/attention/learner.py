"""Training of the attention policy: REINFORCE on the true cost, with the mean of a task's rollouts as the baseline."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shard_gym.agents.attention.agent import MAX_HIDDEN, MAX_LAYERS, AttentionAgent
from shard_gym.agents.attention.features import described
from shard_gym.agents.attention.network import HEADS, new_policy
from shard_gym.agents.attention.rollout import Batch, Rollouts, log_probabilities, play
from shard_gym.agents.training.learner import Learner, Report
from shard_gym.agents.training.torch_arrays import load_training_arrays, module_arrays, training_arrays
from shard_gym.checks import checked_count, checked_learning_rate, is_not_negative
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import concatenate_tables
from shard_gym.errors import InvalidOptionError, short_repr
from shard_gym.io.arrays import Arrays
from shard_gym.system import one_thread
from shard_gym.tasks import Task, TaskSuite

WEIGHTS, TASKS, CHOICES = range(3)
"""Purposes of random generators."""

MAX_GRADIENT_NORM = 1.0

FAILURE = 1.1
"""A placement that got stuck counts as this many times the costliest one of its task."""

ROOM = 1.05
"""A drawn table needs at most a device divided by this."""


class AttentionLearner(Learner):
    """An attention policy in training, as the field trains policies for routing: POMO's REINFORCE (Kwon et al., NeurIPS
    2020).

    A step draws tasks: tables of all training tasks together, as many as one of them has, with its devices. It rolls
    each out several times and evaluates the true cost of every placement. The advantage of a placement is how much
    cheaper it is than the mean of its task's, in shares of that mean; the unit is their root mean square over the step.

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        iterations: how often the state is saved, and the learning rate lowered; it falls to zero, as a cosine.
        updates: steps in each iteration.
        tasks: drawn in each step.
        rollouts: placements of each task, at least two.
        learning_rate: Adam's at the start.
        entropy: weight of the entropy of the choices.
        hidden: of the encoder, a multiple of 8.
        layers: of the encoder.

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
        iterations: int = 100,
        updates: int = 30,
        tasks: int = 8,
        rollouts: int = 48,
        learning_rate: float = 1e-3,
        entropy: float = 0.003,
        hidden: int = 96,
        layers: int = 3,
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.iterations = checked_count("iterations", iterations)
        self.updates = checked_count("updates", updates)
        self.tasks = checked_count("tasks", tasks)
        self.rollouts = checked_count("rollouts", rollouts, least=2)
        self.learning_rate = checked_learning_rate(learning_rate)
        if not is_not_negative(entropy):
            raise InvalidOptionError(f"entropy must be a number of at least 0, not {short_repr(entropy)}.")
        self.entropy = entropy
        self.hidden = checked_count("hidden", hidden, most=MAX_HIDDEN)
        self.layers = checked_count("layers", layers, most=MAX_LAYERS)
        if self.hidden % HEADS:
            raise InvalidOptionError(f"hidden must be a multiple of {HEADS}, not {self.hidden}.")
        self.planned_queries = self.iterations * self.updates * self.tasks * self.rollouts
        self._pool = concatenate_tables([task.tables for task in suite])
        self._policy = new_policy(self.hidden, self.layers, self.rng(WEIGHTS))
        self._policy.normalize(np.concatenate([described(task).features for task in suite]))
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=self.learning_rate)

    def iterate(self) -> Report:
        """See `Learner`."""
        draws, choices = self.rng(TASKS), self.rng(CHOICES)
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * 0.5 * (1.0 + np.cos(np.pi * self.iteration / self.iterations))
        costs, entropies = [], []
        with one_thread():
            for _ in range(self.updates):
                cost, entropy = self._update([self._drawn(draws) for _ in range(self.tasks)], choices)
                costs.append(cost)
                entropies.append(entropy)
        return Report(float(np.mean(costs)), {"entropy": float(np.mean(entropies))})

    def _drawn(self, rng: np.random.Generator) -> Task:
        """A task of random training tables on the devices of a training task, as full as those are."""
        frame = self.suite.sample(rng)
        caps = frame.topology.memory_cap_bytes
        fitting = np.flatnonzero(self._pool.memory_bytes * ROOM <= caps.max())
        if not fitting.size:
            return frame
        tables = self._pool.select(rng.choice(fitting, min(frame.num_tables, len(fitting)), replace=False))
        fuller = tables.memory_bytes.sum() / frame.tables.memory_bytes.sum()
        least = int(tables.memory_bytes.max() * ROOM)
        most = frame.topology.device.memory_bytes
        topology = replace(frame.topology, memory_cap_bytes=np.clip((caps * fuller).astype(np.int64), least, most))
        fits = tables.memory_bytes.sum() <= topology.memory_cap_bytes.sum()
        return Task("drawn", tables, topology) if fits else frame

    def _update(self, tasks: Sequence[Task], rng: np.random.Generator) -> tuple[float, float]:
        """One step; the mean cost of the placements, and the mean entropy of their choices."""
        batch = Batch.of([described(task) for task in tasks])
        shape = (batch.padding.shape[1], len(tasks), self.rollouts, batch.caps.shape[1])
        rollouts = play(self._policy, batch, self.rollouts, rng.gumbel(size=shape).astype(np.float32))
        costs = np.stack([self._costs(task, batch, rollouts, number) for number, task in enumerate(tasks)])
        mean = costs.mean(axis=1, keepdims=True)
        advantage = 1.0 - costs / mean
        advantage /= np.sqrt((advantage**2).mean()) + 1e-6
        logs, entropy = log_probabilities(self._policy, batch, rollouts)
        loss = -(torch.from_numpy(advantage.astype(np.float32)) * logs).mean() - self.entropy * entropy.mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        return float(costs.mean()), float(entropy.mean().detach())

    def _costs(self, task: Task, batch: Batch, rollouts: Rollouts, number: int) -> FloatArray:
        """(R,) ms of the placements of one task; those that got stuck cost more than all others."""
        complete = np.flatnonzero(rollouts.complete[number].numpy())
        placements = rollouts.placements(batch, number)[complete]
        costs = np.full(self.rollouts, np.nan)
        model = self.cost_model
        if isinstance(model, AdditiveCostModel):
            loads = model.table_loads(task.tables, task.topology)
            held = [model.reduce(loads, placement, task.num_devices) for placement in placements]
            if held:
                costs[complete] = model.costs(np.stack(held), task.topology.cluster())[1]
                self.costed += len(held)
        else:
            for row, placement in zip(complete, placements, strict=True):
                estimate = self.true_cost(placement, task.tables, task.topology)
                costs[row] = np.nan if estimate is None else estimate.total_ms
        worst = np.nanmax(costs) if np.isfinite(costs).any() else model.penalty_ms(task.tables, task.topology)
        return np.where(np.isnan(costs), FAILURE * worst, costs)

    def state(self) -> Arrays:
        """See `Learner`."""
        return training_arrays(self._policy, self._optimizer)

    def load_state(self, arrays: Arrays) -> None:
        """See `Learner`."""
        load_training_arrays(self._policy, self._optimizer, arrays, "The policy")

    def weights(self) -> Arrays:
        """See `Learner`."""
        return module_arrays(self._policy)

    def about(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"hidden": self.hidden, "layers": self.layers}

    def agent(self) -> AttentionAgent:
        """See `Learner`."""
        return AttentionAgent(self.name, copy.deepcopy(self._policy))
