"""The trained agent, for tasks of any size, and its loader. Needs torch, not SB3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base import CostGuidedAgent, Policy, PolicyAgent, task_rng
from shard_gym.agents.sb3.network import INPUTS, MAX_SHARDS, SPLIT_TYPES, DeviceScorer, device_set
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.common.checks import checked_count, checked_seed
from shard_gym.common.errors import InvalidCheckpointError, NoPlacementFoundError, short_repr
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.system import one_thread
from shard_gym.cost_models import CostModel, additive_estimate, make_cost_model
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task

Answer = TypeVar("Answer", Placement, ShardingPlan)
MAX_WIDTH = 2**12  # the widest network that is loaded from a file


class SetPolicyAgent(CostGuidedAgent):
    """Places every table on the legal device with the highest score, in tasks of any size.

    The observations of a scorer for "compact" hold the estimated costs of the tables placed so far; each counts as a
    cost-model evaluation. A scorer for "features" sees no costs, and nothing is evaluated. If a table fits nowhere in
    the end, the task is tried again with a share of the devices drawn at random, which grows to 1 in the last try.

    Args:
        name: how result files call it.
        scorer: scores the devices.
        cost_model: the model behind the observations.
        seed: of the random devices. Equal seeds give equal placements.
        retries: how often a task is tried again.
    """

    def __init__(
        self,
        name: str,
        scorer: DeviceScorer,
        *,
        cost_model: str | CostModel = "analytical",
        seed: int = 0,
        retries: int = 20,
    ) -> None:
        super().__init__(additive_estimate(make_cost_model(cost_model)))
        self.name = name
        self.scorer = scorer
        self.asks_costs = scorer.observation != "features"
        self.seed = checked_seed(seed)
        self.retries = checked_count("retries", retries, least=0)

    @override
    def place(self, task: Task) -> Placement:
        return self._tried(task, lambda player: player.place(task))

    def _tried(self, task: Task, play: Callable[[PolicyAgent], Answer]) -> Answer:
        """What an episode ends with; again if it fails, with more and more of the actions drawn."""
        rng = task_rng(self.seed, task)
        for retry in range(self.retries + 1):
            try:
                with torch.no_grad(), one_thread():
                    return play(self._player(task, partial(self._choose, rng, retry / max(self.retries, 1))))
            except NoPlacementFoundError as error:
                stuck = error
        raise stuck

    def _choose(
        self, rng: np.random.Generator, share: float, observation: ObservationDict, mask: NDArray[np.bool_]
    ) -> int:
        """The action with the highest score, or, with probability `share`, any legal one."""
        if rng.random() < share:
            return int(rng.choice(np.flatnonzero(mask)))
        tensors = {key: torch.from_numpy(array).unsqueeze(0) for key, array in observation.items()}
        return int(self.scorer(device_set(tensors)).argmax())

    def _player(self, task: Task, choose: Policy) -> PolicyAgent:
        """Plays the episodes of this task."""
        return self._player_of(task, choose, observation=self.scorer.observation)

    def _player_of(self, task: Task, choose: Policy, **options: Any) -> PolicyAgent:
        count, devices = task.num_tables, task.num_devices
        return PolicyAgent(
            self.name, choose, max_tables=count, max_devices=devices, cost_model=self.cost_model, **options
        )


class SetPlanAgent(SetPolicyAgent):
    """The same for plans: it plays `EmbeddingSharding`; its scorer is one for "splits", scored beside the devices."""

    def __init__(
        self, name: str, scorer: DeviceScorer, *, cost_model: str | CostModel = "analytical", **more: Any
    ) -> None:
        super().__init__(name, scorer, cost_model=make_cost_model(cost_model, additive=True, splits=True), **more)

    @override
    def plan(self, task: Task) -> ShardingPlan:
        return self._tried(task, lambda player: player.plan(task))

    @override
    def _player(self, task: Task, choose: Policy) -> PolicyAgent:
        splits = {"sharding_types": SPLIT_TYPES, "max_shards": MAX_SHARDS}
        return self._player_of(task, choose, observation="compact", **splits)


def load_policy(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, *, retries: int = 20
) -> SetPolicyAgent:
    """The agent of a training run; other arguments are those of `SetPolicyAgent`, errors those of `load_agent`."""
    observation = about.get("observation", "compact")  # the only one there was before it was recorded
    if not isinstance(observation, str) or observation not in INPUTS:
        raise InvalidCheckpointError(
            f"The policy was trained with the observation {short_repr(observation)}; known are {', '.join(INPUTS)}."
        )
    scorer = DeviceScorer(network_size(about, "width", MAX_WIDTH), observation)
    load_module_arrays(scorer, arrays, "The policy")
    kind = SetPlanAgent if observation == "splits" else SetPolicyAgent
    return kind(about["agent"], scorer, cost_model=cost_model, seed=seed, retries=retries)
