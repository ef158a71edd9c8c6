"""The trained attention policy as an agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shard_gym.agents.attention.network import HEADS, AttentionPolicy
from shard_gym.agents.attention.rollout import LIMITS, NO_LIMIT, Batch, Rollouts, play
from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.training.cost_network import COST
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.checks import checked_count, checked_seed, is_not_negative
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.cost_models.neural.pooled_sharding import PooledShardingModel
from shard_gym.cost_models.no_costs import NoCosts
from shard_gym.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    NoPlacementFoundError,
    TableTooLargeError,
    short_repr,
)
from shard_gym.io.arrays import Arrays, require_arrays, under
from shard_gym.placement import Placement
from shard_gym.sharding import ShardingPlan
from shard_gym.system import one_thread
from shard_gym.tasks import Task
from shard_gym.text import counted

POLICY = "policy."
"""Prefix of the policy's weights in a file; `COST` that of the learned cost's."""

MAX_HIDDEN, MAX_LAYERS = 2**10, 32
"""The largest network that is loaded from a file."""

SAMPLES, MAX_SAMPLES = 128, 2**14
"""Rollouts of a task, by default and at most."""

TEMPERATURE = 3.0
"""On the training tasks of mixdim-4, 128 samples at 1 to 4 cost 5.361, 5.333, 5.326 and 5.328 ms, the likeliest actions
5.435 (seed 0, 23 November 2026; at 1, 64 samples)."""


class AttentionAgent(Agent):
    """Places tables as the policy rolls out, and keeps the rollout that a learned cost says is the cheapest.

    It never evaluates the true cost. The first rollout takes the likeliest actions, the others draw them. So a rollout
    that leaves a table without room is not the end, if there are others.

    Args:
        name: how result files call it.
        policy: takes tasks of any size.
        cost_model: the learned cost.
        samples: rollouts of a task. With 1 only the likeliest actions are taken, and the learned cost is not used, but
            for plans: these have a rollout with each of the `LIMITS` at least. If the likeliest actions leave a table
            without room, there are as many as by default.
        temperature: divides the scores before actions are drawn.
        seed: of the drawn actions. Equal seeds give equal placements.

    Raises:
        InvalidOptionError: an argument is out of range.
    """

    def __init__(
        self,
        name: str,
        policy: AttentionPolicy,
        cost_model: AdditiveCostModel,
        *,
        samples: int = SAMPLES,
        temperature: float = TEMPERATURE,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.policy = policy
        self.cost_model = cost_model
        self.samples = checked_count("samples", samples, most=MAX_SAMPLES)
        if not is_not_negative(temperature):
            raise InvalidOptionError(f"temperature must be a number of at least 0, not {short_repr(temperature)}.")
        self.temperature = float(temperature)
        self.seed = checked_seed(seed)

    def place(self, task: Task) -> Placement:
        """See `Agent`; tables are not split."""
        rollouts, episode = self._best(task, plans=False)
        return rollouts.placement(episode)

    def _best(self, task: Task, *, plans: bool) -> tuple[Rollouts, int]:
        """Rollouts of `task`, and the complete one that the learned cost prefers.

        Raises:
            NoPlacementFoundError: none is complete.
        """
        limits = LIMITS if plans else (NO_LIMIT,)
        few = max(self.samples, len(limits))
        for count in (few,) if self.samples > 1 else (few, SAMPLES):
            rollouts = self._rollouts(task, count, limits, plans=plans)
            complete = np.flatnonzero(rollouts.complete)
            if len(complete):
                costs = rollouts.costs()[1][complete]
                return rollouts, int(complete[costs.argmin()])
        raise NoPlacementFoundError(
            f"In all {counted(count, 'rollout')} of {self.name}, a table of task {task.name!r} was left without a "
            "device that has room for it. Take more samples, or use local-search."
        )

    def _rollouts(self, task: Task, count: int, limits: tuple[float, ...], *, plans: bool) -> Rollouts:
        """`count` rollouts with the `limits` in turn; the first with each limit takes the likeliest actions."""
        temperature = np.full(count, self.temperature)
        temperature[: len(limits)] = 0.0
        model = NoCosts() if count == 1 else self.cost_model
        with one_thread():
            try:
                batch = Batch.of([task], count, model, plans=plans, limits=np.resize(limits, count))
            except TableTooLargeError as error:
                raise NoPlacementFoundError(str(error)) from error
            return play(self.policy, batch, task_rng(self.seed, task), temperature)


class AttentionPlanAgent(AttentionAgent):
    """The same for plans, whose tables may be split."""

    def plan(self, task: Task) -> ShardingPlan:
        """See `Agent`."""
        rollouts, episode = self._best(task, plans=True)
        return rollouts.plan(episode)


def load_attention(
    arrays: Arrays,
    about: Mapping[str, Any],
    cost_model: CostModel,
    seed: int,
    *,
    samples: int = SAMPLES,
    temperature: float = TEMPERATURE,
) -> AttentionAgent:
    """The agent of a training run; the other arguments are those of `AttentionAgent`.

    Raises:
        InvalidCheckpointError: these are not the weights of such an agent.
        InvalidOptionError: an option is out of range.
    """
    hidden, layers = network_size(about, "hidden", MAX_HIDDEN), network_size(about, "layers", MAX_LAYERS)
    if hidden % HEADS:
        raise InvalidCheckpointError(f"hidden of the policy must be a multiple of {HEADS}, not {hidden}.")
    plans = about.get("plans")
    if not isinstance(plans, bool):
        raise InvalidCheckpointError(f"plans must be true or false, not {short_repr(plans)}.")
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        policy = AttentionPolicy(hidden, layers, plans)
    load_module_arrays(policy, under(POLICY, arrays), "The policy")
    weights = {name: array for name, array in arrays.items() if not name.startswith(POLICY)}
    expected = PooledShardingModel.new_weights(np.random.default_rng(0))
    require_arrays("The agent's file", weights, {COST + name: array for name, array in expected.items()})
    kind = AttentionPlanAgent if plans else AttentionAgent
    learned = PooledShardingModel(under(COST, weights))
    return kind(about["agent"], policy, learned, samples=samples, temperature=temperature, seed=seed)
