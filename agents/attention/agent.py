"""The trained attention policy as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from shard_gym.agents.attention.network import HEADS, AttentionPolicy
from shard_gym.agents.attention.rollout import Batch, play
from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.presets import COST
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.checks import checked_count, checked_seed, is_not_negative
from shard_gym.cost_models import CostModel, ShardingCostModel
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.cost_models.no_costs import NoCosts
from shard_gym.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    NoPlacementFoundError,
    TableTooLargeError,
    short_repr,
)
from shard_gym.forms import FINER, FINEST, FORMS, SplitTask, forms_of, whole
from shard_gym.io.arrays import Arrays, prefixed, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.system import one_thread
from shard_gym.tasks import Task

POLICY = "policy."  # prefix of the policy's weights in a file; `COST` that of the learned cost's
MAX_HIDDEN, MAX_LAYERS = 2**10, 32  # the largest network that is loaded from a file
ATTEMPTS = FORMS, FINER, FINEST  # the forms of a plan: the next ones where those before all fail
SAMPLES, MAX_SAMPLES = 128, 2**14  # rollouts of a task, by default and at most

TEMPERATURE = 3.0
"""On the first 25 training tasks of mixdim-4, 128 samples at 3, 4 and 6 cost 0.1%, 0.2% and 0.1% less than at 2; on
those of mixdim-8 0.2%, 0.3% and 0.5% more (seed 0, 23 November 2026)."""

MAX_TEMPERATURE = 1e6  # the highest temperature: all devices are then equally likely


class AttentionAgent(Agent):
    """Places tables as the policy rolls out, and keeps the rollout that a learned cost says is the cheapest.

    It never evaluates the true cost. The first rollout takes the likeliest devices, the others draw them. So a rollout
    that leaves a table without room is not the end, if there are others. A plan is a placement of the parts of a task
    in one of its `FORMS`; every form has as many rollouts.

    Args:
        name: how result files call it.
        policy: takes tasks of any size.
        cost_model: the learned cost.
        samples: rollouts of a task, of all forms together, rounded up to a multiple of these. With 1 only the likeliest
            devices are taken, and the learned cost is not used, but to choose among forms. If the likeliest devices
            leave a table without room, there are as many rollouts as by default.
        temperature: divides the scores before devices are drawn.
        seed: of the drawn devices. Equal seeds give equal placements.

    Raises:
        InvalidOptionError: an argument is out of range.
    """

    def __init__(
        self,
        name: str,
        policy: AttentionPolicy,
        cost_model: ShardingCostModel,
        *,
        samples: int = SAMPLES,
        temperature: float = TEMPERATURE,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.policy = policy
        self.cost_model = cost_model
        self.samples = checked_count("samples", samples, most=MAX_SAMPLES)
        if not is_not_negative(temperature) or temperature > MAX_TEMPERATURE:
            raise InvalidOptionError(
                f"temperature must be a number from 0 to {MAX_TEMPERATURE:g}, not {short_repr(temperature)}."
            )
        self.temperature = float(temperature)
        self.seed = checked_seed(seed)

    @property
    def search_budget(self) -> int:
        """Rollouts of a plan if all forms fail, and are tried twice again with smaller parts."""
        samples = self.samples if self.samples > 1 else SAMPLES
        return len(ATTEMPTS) * len(FORMS) * -(-samples // len(FORMS))

    @override
    def place(self, task: Task) -> Placement:
        return self._best(task, [whole(task)])[1]

    @override
    def plan(self, task: Task) -> ShardingPlan:
        for forms in ATTEMPTS:
            with suppress(NoPlacementFoundError):
                form, placement = self._best(task, forms_of(task, forms))
                return form.plan(placement)
        raise NoPlacementFoundError(
            f"{self.name} tried {len(FORMS)} forms of task {task.name!r}, in which wide or heavy tables are split, and "
            "twice again with smaller parts; in none it found a device with room for every part. Use plan-search."
        )

    def _best(self, task: Task, forms: Sequence[SplitTask]) -> tuple[SplitTask, Placement]:
        """The form and the placement of its parts that the learned cost prefers."""
        for samples in (1, SAMPLES) if self.samples == 1 else (self.samples,):
            found = self._tried(task, forms, -(-samples // len(forms))) if forms else None
            if found is not None:
                return found
        raise NoPlacementFoundError(
            f"In all rollouts of {self.name}, a table of task {task.name!r} was left without a device that has room for"
            " it. Take more samples, or use local-search."
        )

    def _tried(self, task: Task, forms: Sequence[SplitTask], count: int) -> tuple[SplitTask, Placement] | None:
        """The same with `count` rollouts of each form; None if none is complete."""
        only = len(forms) == count == 1
        model = NoCosts() if only else self.cost_model
        temperature = np.full((len(forms), count), self.temperature)
        temperature[:, 0] = 0.0
        with one_thread():
            tasks = [replace(form.task, name=f"form {number}") for number, form in enumerate(forms)]
            try:
                batch = Batch.of(tasks, count, model)
            except TableTooLargeError as error:
                raise NoPlacementFoundError(str(error)) from error
            rollouts = play(self.policy, batch, task_rng(self.seed, task), temperature.reshape(-1), record=False)
            complete = np.flatnonzero(rollouts.complete)
            if not len(complete):
                return None
            costs = rollouts.costs(np.stack([form.loads(model) for form in forms]))[1][complete]
        best = int(complete[costs.argmin()])
        return forms[best // count], rollouts.placement(best)


def load_attention(
    arrays: Arrays,
    about: Mapping[str, Any],
    cost_model: CostModel,
    seed: int,
    *,
    samples: int = SAMPLES,
    temperature: float = TEMPERATURE,
) -> AttentionAgent:
    """The agent of a training run; other arguments are those of `AttentionAgent`, errors those of `load_agent`."""
    hidden, layers = network_size(about, "hidden", MAX_HIDDEN), network_size(about, "layers", MAX_LAYERS)
    if hidden % HEADS:
        raise InvalidCheckpointError(f"hidden of the policy must be a multiple of {HEADS}, not {hidden}.")
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        policy = AttentionPolicy(hidden, layers)
    load_module_arrays(policy, under(POLICY, arrays), "The policy")
    weights = {name: array for name, array in arrays.items() if not name.startswith(POLICY)}
    expected = PooledCostModel.weights_like(under(COST, weights))
    require_arrays("The agent's file", weights, prefixed(COST, expected))
    learned = PooledCostModel(under(COST, weights))
    return AttentionAgent(about["agent"], policy, learned, samples=samples, temperature=temperature, seed=seed)
