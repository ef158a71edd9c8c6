"""The trained agent, for tasks of any size, and its loader. Needs torch, not SB3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shard_gym.agents.base import CostGuidedAgent, task_rng
from shard_gym.agents.policy import PolicyAgent
from shard_gym.agents.sb3.network import INPUTS, DeviceScorer, device_set
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.checks import checked_count, checked_seed
from shard_gym.cost_models import CostModel, additive_estimate, make_cost_model
from shard_gym.envs.core.episodes import ObservationDict
from shard_gym.errors import InvalidCheckpointError, NoPlacementFoundError, short_repr
from shard_gym.io.arrays import Arrays
from shard_gym.placement import Placement
from shard_gym.system import one_thread
from shard_gym.tasks import Task

MAX_WIDTH = 2**12
"""The widest network that is loaded from a file."""


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

    def place(self, task: Task) -> Placement:
        """See `Agent`."""
        rng = task_rng(self.seed, task)
        for retry in range(self.retries + 1):
            try:
                return self._try(task, retry / max(self.retries, 1), rng)
            except NoPlacementFoundError as error:
                stuck = error
        raise stuck

    def _try(self, task: Task, share: float, rng: np.random.Generator) -> Placement:
        """One episode of `task`, with that share of the devices drawn by `rng`."""

        def choose(observation: ObservationDict, mask: NDArray[np.bool_]) -> int:
            if rng.random() < share:
                return int(rng.choice(np.flatnonzero(mask)))
            tensors = {key: torch.from_numpy(array).unsqueeze(0) for key, array in observation.items()}
            return int(self.scorer(device_set(tensors)).argmax())

        player = PolicyAgent(
            self.name,
            choose,
            max_tables=task.num_tables,
            max_devices=task.num_devices,
            observation=self.scorer.observation,
            cost_model=self.cost_model,
        )
        with torch.no_grad(), one_thread():
            return player.place(task)


def load_policy(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, *, retries: int = 20
) -> SetPolicyAgent:
    """The agent of a training run, from the scorer's weights; the other arguments are those of `SetPolicyAgent`.

    Raises:
        InvalidCheckpointError: these are not the weights of such a network.
    """
    observation = about.get("observation", "compact")  # the only one there was before it was recorded
    if not isinstance(observation, str) or observation not in INPUTS:
        raise InvalidCheckpointError(
            f"The policy was trained with the observation {short_repr(observation)}; known are {', '.join(INPUTS)}."
        )
    scorer = DeviceScorer(network_size(about, "width", MAX_WIDTH), observation)
    load_module_arrays(scorer, arrays, "The policy")
    return SetPolicyAgent(about["agent"], scorer, cost_model=cost_model, seed=seed, retries=retries)
