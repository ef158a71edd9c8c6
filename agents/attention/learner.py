"""Training of the attention policy: REINFORCE on the true cost, with the mean of a task's rollouts as the baseline."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.attention.agent import (
    HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    POLICY,
    AttentionAgent,
    AttentionPolicy,
    Batch,
    Rollouts,
    described,
    log_probabilities,
    play,
    shard_load,
)
from shard_gym.agents.base.presets import COST
from shard_gym.agents.training import Learner, Report
from shard_gym.agents.training.cost_network import CostNetworkTraining
from shard_gym.agents.training.loads import with_whole_memory
from shard_gym.agents.training.modules import ModuleTraining, new_module
from shard_gym.agents.training.suites import suites_to_learn
from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_learning_rate, is_not_negative
from shard_gym.common.errors import InvalidOptionError, InvalidTaskError, short_repr
from shard_gym.common.io.arrays import Arrays, prefixed, under
from shard_gym.common.system import one_thread
from shard_gym.cost_models import AdditiveCostModel, CostEstimate, CostModel, make_cost_model
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.cost_models.fitting.data.dataset import concatenate_tables
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.plans.needs import SPLITS
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.tasks.forms import FINER, FORMS, SplitTask, formed, whole

WEIGHTS, TASKS, CHOICES, COSTS, COST_WEIGHTS = range(5)  # purposes of random generators
MAX_GRADIENT_NORM = 1.0
COST_LEARNING_RATE = 6e-3  # the learning rate of the learned cost at the start is that of `dream-search`
FAILURE = 1.1  # a rollout that got stuck counts as this many times the costliest one of its task
ROOM = 1.05  # a drawn table needs at most a device divided by this, where tables are not split


class AttentionLearner(Learner):
    """An attention policy in training, by POMO's REINFORCE (Kwon et al., NeurIPS 2020).

    A rollout that leaves a table without room counts as 1.1 times the costliest one of its task, also in the reports.

    A step draws a training task, and as many tables of all training tasks as it has for each of some new tasks. It
    rolls each out many times and evaluates the true cost of every rollout. The advantage is how much cheaper a rollout
    is than the mean of its task's, in shares of that mean; the unit is their root mean square over the step. The
    gradient is that of the cheapest and the costliest rollouts of each task alone, because it takes longer than the
    rollouts do. On suites whose tables may be split, each drawn task has one of the `FORMS`.

    Some of the rollouts train a learned cost, by which the agent chooses among its samples (see `AttentionAgent`).

    Args:
        suite, cost_model, seed: see `Learner`.
        name: of the agent.
        also: names of more suites, with commas between them: each step is on the training tasks of one of them, or of
            `suite`. What learns from all sizes and pools places on all of them. All are on one machine.
        iterations: how often the state is saved, and the learning rates lowered; they fall to zero, as a cosine.
        updates: steps in each iteration.
        tasks: drawn in each step.
        rollouts: of each task.
        kept: the cheapest and the costliest rollouts of a task that the gradient is of, as many of both.
        learning_rate: Adam's at the start.
        entropy: weight of the entropy of the choices.
        hidden: of the encoder, a multiple of 8.
        layers: of the encoder.
        records: rollouts in each iteration that train the learned cost, at most `tasks` times `rollouts`.
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
        iterations: int = 150,
        updates: int = 60,
        tasks: int = 8,
        rollouts: int = 96,
        kept: int = 8,
        learning_rate: float = 1e-3,
        entropy: float = 0.003,
        hidden: int = 64,
        layers: int = 3,
        records: int = 20,
        cost_updates: int = 100,
    ) -> None:
        suites = suites_to_learn(suite, also)
        plans = any(task.splittable for each in suites for task in each)
        super().__init__(suite, make_cost_model(cost_model, additive=True, splits=True) if plans else cost_model, seed)
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
        self.records = checked_count("records", records, most=self.tasks * self.rollouts)
        self.cost_updates = checked_count("cost_updates", cost_updates)
        self.planned_queries = self.iterations * self.updates * self.tasks * self.rollouts
        self._more = suites[1:]
        _require_one_machine(suites)
        if plans:
            self._require_spreading(next(task for each in suites for task in each if task.splittable))
        if also:
            self.sources = {"also_sha256": [each.sha256 for each in suites[1:]]}
        self._pools = [concatenate_tables([task.tables for task in each]) for each in suites]
        self._frames = [[task for task in each if _any_form(task)] for each in suites]
        for each, frames in zip(suites, self._frames, strict=True):
            if not frames:
                raise InvalidOptionError(
                    f"On no task of {each.name} the tables fit the devices in a form that leaves a table to place. "
                    "Learn from tasks with more memory."
                )
        self._policy = new_module(lambda: AttentionPolicy(self.hidden, self.layers), self.rng(WEIGHTS))
        self._policy.normalize(np.concatenate([described(task) for each in suites for task in each]))
        self._training = ModuleTraining(self._policy, self.learning_rate, MAX_GRADIENT_NORM)
        needs = frozenset[str]().union(*(task.needs for each in suites for task in each))
        self._learned = CostNetworkTraining(PooledCostModel, self.rng(COST_WEIGHTS), needs=needs)

    @override
    def _move(self, device: str) -> None:
        self._training.move_to(device)
        self._learned.move_to(device)

    @override
    def iterate(self) -> Report:
        draws, choices = self.rng(TASKS), self.rng(CHOICES)
        left = float(0.5 * (1.0 + np.cos(np.pi * self.iteration / self.iterations)))  # of the learning rates
        self._training.set_learning_rate(self.learning_rate * left)
        costs, entropies = [], []
        recorded = choices.integers(self.updates, size=self.records)
        with one_thread():
            for update in range(self.updates):
                tasks = self._drawn(draws)
                cost, entropy = self._update(tasks, int((recorded == update).sum()), choices)
                costs.append(cost)
                entropies.append(entropy)
            rate = COST_LEARNING_RATE * left
            numbers = {"entropy": float(np.mean(entropies))}
            if len(self._learned.recorder):
                numbers["cost_loss"] = self._learned.train(
                    self.rng(COSTS), steps=self.cost_updates, learning_rate=rate, final_learning_rate=rate
                )
        return Report(float(np.mean(costs)), numbers)

    def _drawn(self, rng: np.random.Generator) -> list[SplitTask]:
        """Tasks of random tables of a suite on the devices of one of its tasks, as many and as full as there."""
        which = int(rng.integers(len(self._pools)))
        pool, frames = self._pools[which], self._frames[which]
        frame = frames[rng.integers(len(frames))]
        return [self._one_drawn(f"drawn {number}", frame, pool, rng) for number in range(self.tasks)]

    def _one_drawn(self, name: str, frame: Task, pool: Tables, rng: np.random.Generator) -> SplitTask:
        caps, plans, host = frame.topology.memory_cap_bytes, frame.splittable, frame.topology.host
        most = int(with_whole_memory(frame.topology, frame.num_devices).memory_cap_bytes[0])
        fitting = np.arange(len(pool)) if plans else np.flatnonzero(pool.memory_bytes * ROOM <= most)
        if not len(fitting):
            return self._as_it_is(name, frame)
        tables = pool.select(rng.choice(fitting, min(frame.num_tables, len(fitting)), replace=False))
        fuller = tables.memory_bytes.sum() / frame.tables.memory_bytes.sum()
        least = 1 if plans else int(tables.memory_bytes.max() * ROOM)
        if host is not None:
            host = replace(host, hbm_bytes=max(int(host.hbm_bytes * fuller), 1), total_bytes=None)
        clipped = np.clip((caps * fuller).astype(np.int64), least, most)
        topology = replace(frame.topology.with_caps(clipped), host=host)
        form = FORMS[rng.integers(len(FORMS))] if plans else None
        if tables.memory_bytes.sum() <= topology.memory_cap_bytes.sum():
            with suppress(InvalidTaskError):  # a table that no split makes small enough
                drawn = Task(name, tables, topology, splittable=plans)
                found = whole(drawn) if form is None else formed(drawn, form) or _any_form(drawn)
                if found is not None:
                    return found
        return self._as_it_is(name, frame)

    def _as_it_is(self, name: str, frame: Task) -> SplitTask:
        found = _any_form(replace(frame, name=name))
        assert found is not None  # it is one of the frames
        return found

    def _update(self, tasks: list[SplitTask], records: int, rng: np.random.Generator) -> tuple[float, float]:
        """One step; the mean cost of the rollouts, and the mean entropy of the choices of those that were kept."""
        model = self.cost_model if isinstance(self.cost_model, AdditiveCostModel) else NoCosts()
        batch = Batch.of([replace(each.task, name=f"form {n}") for n, each in enumerate(tasks)], self.rollouts, model)
        rollouts = play(self._policy, batch, rng)
        recorded = rng.choice(len(rollouts.complete), records, replace=False)
        costs = self._costs(tasks, rollouts, recorded).reshape(len(tasks), -1)
        mean = costs.mean(axis=1, keepdims=True)
        advantage = 1.0 - costs / mean
        advantage /= np.sqrt((advantage**2).mean()) + 1e-6
        kept = self._kept(costs)
        assert rollouts.trajectories is not None  # they were recorded
        logs, entropy = log_probabilities(self._policy, batch, rollouts.trajectories.take(kept))
        weight = torch.from_numpy(advantage.reshape(-1)[kept].astype(np.float32)).to(logs.device)
        self._training.step(-(weight * logs).mean() - self.entropy * entropy.mean())
        return float(costs.mean()), float(entropy.mean().detach())

    def _kept(self, costs: FloatArray) -> NDArray[np.int64]:
        """The numbers of the cheapest and the costliest episodes of each task; all of them if there are no more."""
        tasks, count = costs.shape
        order = np.argsort(costs, axis=1, kind="stable")
        if 2 * self.kept < count:
            order = np.concatenate([order[:, : self.kept], order[:, count - self.kept :]], axis=1)
        return np.asarray(order + count * np.arange(tasks)[:, None], np.int64).reshape(-1)

    def _costs(self, tasks: list[SplitTask], rollouts: Rollouts, recorded: NDArray[np.int64]) -> FloatArray:
        """(N,) ms; those that got stuck cost more than all others. The complete ones of `recorded` are recorded."""
        complete, count = rollouts.complete, self.rollouts
        costs = np.full(len(complete), np.nan)
        if isinstance(self.cost_model, AdditiveCostModel):
            model, before, everywhere = self.cost_model, self.cost_model.queries, None
            if SPLITS in model.supports:  # (B, K) loads of the spread tables of each task
                everywhere = np.stack([each.loads(model) for each in tasks])
            phases, every = rollouts.costs(everywhere)
            self.cost_model.queries = before + int(complete.sum())  # the others are not placements
            self.costed += int(complete.sum())
            self.require_costs(every[complete])
            costs[complete] = every[complete]
            for episode in recorded[complete[recorded]].tolist():
                form = tasks[episode // count]
                estimate = CostEstimate(phases[episode, : form.origin.num_devices], costs[episode])
                self._record(form, rollouts.placement(episode), estimate)
        else:
            chosen = set(recorded.tolist())
            for episode in np.flatnonzero(complete).tolist():
                form, placement = tasks[episode // count], rollouts.placement(episode)
                measured = self.true_cost(placement, form.origin.tables, form.origin.topology)
                if measured is not None:
                    costs[episode] = measured.total_ms
                    if episode in chosen:
                        self._record(form, placement, measured)
        by_task = costs.reshape(len(tasks), count)
        worst = np.nan_to_num(by_task).max(axis=1)
        for number in np.flatnonzero(np.isnan(by_task).all(axis=1)).tolist():
            task = tasks[number].task
            worst[number] = self.cost_model.penalty_ms(task.tables, task.topology)
        return np.where(np.isnan(by_task), FAILURE * worst[:, None], by_task).reshape(-1)

    def _require_spreading(self, task: Task) -> None:
        """Refuse a cost model that does not estimate all shards of the `FORMS`, before training."""
        assert isinstance(self.cost_model, AdditiveCostModel)
        for kind in (ROW_WISE, DATA_PARALLEL):
            shards = shard_tables(task.tables.select([0]), kind, task.topology)
            try:
                self.cost_model.loads(shards, task.topology, kind)
            except InvalidOptionError as error:
                raise InvalidOptionError(
                    f"{self.name} also splits tables {kind}, which cost model {self.cost_model.fingerprint!r} does not "
                    "estimate. Train under another, such as analytical."
                ) from error

    @property
    @override
    def device_counts(self) -> set[int]:
        return super().device_counts | {task.num_devices for suite in self._more for task in suite}

    def _record(self, form: SplitTask, placement: Placement, estimate: CostEstimate) -> None:
        self._learned.record(shard_load(form, placement), estimate)

    @override
    def state(self) -> Arrays:
        return {**prefixed(POLICY, self._training.state()), **self._learned.state()}

    @override
    def load_state(self, arrays: Arrays) -> None:
        self._training.load_state(under(POLICY, arrays), "The policy")
        self._learned.load_state(arrays)

    @override
    def weights(self) -> Arrays:
        return {**prefixed(POLICY, self._training.weights()), **prefixed(COST, self._learned.weights())}

    @override
    def about(self) -> dict[str, Any]:
        more = [f"{suite.name}/{suite.split}" for suite in self._more]
        return {"hidden": self.hidden, "layers": self.layers, **({"more_data": more} if more else {})}

    @override
    def agent(self) -> AttentionAgent:
        return AttentionAgent(self.name, copy.deepcopy(self._policy).cpu(), self._learned.model())


def _require_one_machine(suites: Sequence[TaskSuite]) -> None:
    """Refuse tasks on several machines: no input of the learned cost tells them apart."""
    topologies = [task.topology for suite in suites for task in suite]
    rates = {(each.host.read_gb_per_s, each.host.update_gb_per_s) for each in topologies if each.host is not None}
    machines = {(each.device, each.links) for each in topologies}
    if len(machines) > 1 or len(rates) > 1:
        devices = sorted({device.name for device, _ in machines})
        raise InvalidOptionError(
            "The learned cost of attention has no input that tells machines apart, but these tasks are on several: "
            f"{', '.join(devices)}. Learn from suites of one hardware profile."
        )


def _any_form(task: Task) -> SplitTask | None:
    """`task` as it is, or if it may be split in the first form that is possible; None if there is none."""
    if not task.splittable:
        fits = task.tables.memory_bytes.max() <= task.topology.memory_cap_bytes.max()
        return whole(task) if fits else None
    return next((found for form in (*FORMS, *FINER) if (found := formed(task, form)) is not None), None)
