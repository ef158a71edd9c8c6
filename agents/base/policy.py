"""`PolicyAgent`: places a task by playing an episode of the environment with a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.base.agent import CostGuidedAgent
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import NoPlacementFoundError, TableTooLargeError, wrong_kind
from shard_gym.cost_models import CostModel, additive_estimate, make_cost_model
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episodes import CostFreeObservation, Observation
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import make_observation
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task, TaskSuite

Policy = Callable[[ObservationDict, NDArray[np.bool_]], int]
"""Maps an observation and the (D,) mask of legal devices to a device."""


class PolicyAgent(CostGuidedAgent):
    """Plays one episode of `EmbeddingPlacement` with a policy.

    The observations hold the estimated costs of the tables placed so far; each counts as a cost-model evaluation. Under
    an observation without costs, such as "features", nothing is evaluated.

    Args:
        name: its name in result files.
        policy: chooses the devices.
        max_tables: padding the policy was trained with.
        max_devices: padding the policy was trained with.
        observation: the observation the policy was trained with; one given by name has keys of host memory where the
            task has host memory, an object such as `CompactObservation(host_memory=True)` always or never.
        cost_model: the model behind the observations; the analytical one in place of one that is not additive.

    Attributes:
        steps_trained: environment steps the policy was trained for; 0 if unknown.

    Raises:
        InvalidOptionError: an argument is not of its kind.
    """

    steps_trained = 0

    def __init__(
        self,
        name: str,
        policy: Policy,
        *,
        max_tables: int,
        max_devices: int,
        observation: str | Observation = "full",
        cost_model: str | CostModel = "analytical",
    ) -> None:
        super().__init__(additive_estimate(make_cost_model(cost_model)))
        if isinstance(policy, type) or not callable(policy):
            raise wrong_kind("policy", policy, "a function of an observation and a mask that returns a device")
        checked_count("max_tables", max_tables)
        checked_count("max_devices", max_devices)
        self.name = name
        self.policy = policy
        self.max_tables = max_tables
        self.max_devices = max_devices
        make_observation(observation)
        self.observation = observation

    def place(self, task: Task) -> Placement:
        """(T,) int64; NoPlacementFoundError also says that the task is larger than the policy's padding."""
        if task.num_tables > self.max_tables or task.num_devices > self.max_devices:
            raise NoPlacementFoundError(
                f"{self.name} holds at most {self.max_tables} tables and {self.max_devices} devices; "
                f"task {task.name!r} has {task.num_tables} and {task.num_devices}."
            )
        sees_costs = not isinstance(make_observation(self.observation), CostFreeObservation)
        env = EmbeddingPlacementEnv(
            TaskSuite("one task", (task,)),
            cost_model=additive_estimate(self.cost_model) if sees_costs else NoCosts(),
            observation=self.observation,
            max_tables=self.max_tables,
            max_devices=self.max_devices,
        )
        placement: Placement = played(env, self.policy)["placement"][: task.num_tables]
        return placement


def played(env: EmbeddingPlacementEnv, policy: Policy) -> dict[str, Any]:
    """Play an episode of the only task of `env`; its last info. Raises NoPlacementFoundError if it fails."""
    try:
        observation, info = env.reset(seed=0)
    except TableTooLargeError as error:
        raise NoPlacementFoundError(str(error)) from error
    over = False
    while not over:
        observation, _, over, _, info = env.step(policy(observation, env.action_masks()))
    if failure := env.failure():
        raise NoPlacementFoundError(failure["message"])
    return info
