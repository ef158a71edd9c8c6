"""`PolicyAgent`: answers a task by playing an episode of the environment with a policy."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.agents.base.agent import CostGuidedAgent
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import NoPlacementFoundError, TableTooLargeError, wrong_kind
from shard_gym.cost_models import CostModel, additive_estimate, make_cost_model
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.episodes import CostFreeObservation, Observation
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import make_observation
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.variants import checked_max_shards, checked_sharding_types
from shard_gym.tasks import Task, TaskSuite

Policy = Callable[[ObservationDict, NDArray[np.bool_]], int]
"""Maps an observation and the (A,) mask of legal actions to an action: a device, or where tables are split another."""


class PolicyAgent(CostGuidedAgent):
    """Plays one episode of `EmbeddingPlacement` with a policy, or of `EmbeddingSharding` if it may split tables.

    The observations hold the estimated costs of the tables placed so far; each counts as a cost-model evaluation. Under
    an observation without costs, such as "features", nothing is evaluated.

    Args:
        name: its name in result files.
        policy: chooses the actions.
        max_tables: padding the policy was trained with.
        max_devices: padding the policy was trained with.
        observation: the observation the policy was trained with; one given by name has keys of host memory where the
            task has host memory, an object such as `CompactObservation(host_memory=True)` always or never.
        cost_model: the model behind the observations; the analytical one in place of one that is not additive. Where
            tables are split, one that supports it.
        sharding_types: those that the policy was trained with, a list or names with commas between them; None for
            whole tables.
        max_shards: column shards of a table at most, as in training.
        max_hosts: padding the policy was trained with; those of the task if None.

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
        sharding_types: Collection[str] | None = None,
        max_shards: int = 8,
        max_hosts: int | None = None,
    ) -> None:
        model = make_cost_model(cost_model) if sharding_types is None else make_cost_model(cost_model, splits=True)
        super().__init__(additive_estimate(model))
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
        self.sharding_types = None if sharding_types is None else checked_sharding_types(sharding_types)
        self.max_shards = checked_max_shards(max_shards)
        self.max_hosts = max_hosts

    @property
    @override
    def splits(self) -> bool:
        return self.sharding_types is not None

    @override
    def plan(self, task: Task) -> ShardingPlan:
        """The errors are those of `place`."""
        if self.sharding_types is None:
            return super().plan(task)
        env = self._env(task)
        self._played(env, self.policy)
        assert isinstance(env, EmbeddingShardingEnv)
        return env.plan

    def place(self, task: Task) -> Placement:
        """(T,) int64; NoPlacementFoundError also says that the task is larger than the policy's padding.

        A policy that may split tables has no legal actions but devices.
        """
        if self.sharding_types is None:
            placement: Placement = self._played(self._env(task), self.policy)["placement"][: task.num_tables]
            return placement

        def whole(observation: ObservationDict, mask: NDArray[np.bool_]) -> int:
            devices = mask.copy()
            devices[task.num_devices :] = False
            if not devices.any():
                raise NoPlacementFoundError(f"A table of task {task.name!r} fits no device whole.")
            return self.policy({**observation, "action_mask": devices.astype(np.int8)}, devices)

        env = self._env(task)
        self._played(env, whole)
        assert isinstance(env, EmbeddingShardingEnv)
        return np.array([sharding.shards[0].device for sharding in env.plan.tables], np.int64)

    def _env(self, task: Task) -> EmbeddingPlacementEnv:
        """An environment of this task alone."""
        if task.num_tables > self.max_tables or task.num_devices > self.max_devices:
            raise NoPlacementFoundError(
                f"{self.name} holds at most {self.max_tables} tables and {self.max_devices} devices; "
                f"task {task.name!r} has {task.num_tables} and {task.num_devices}."
            )
        sees_costs = not isinstance(make_observation(self.observation), CostFreeObservation)
        arguments: dict[str, Any] = {
            "suite": TaskSuite("one task", (task,)),
            "cost_model": additive_estimate(self.cost_model) if sees_costs else NoCosts(),
            "observation": self.observation,
            "max_tables": self.max_tables,
            "max_devices": self.max_devices,
        }
        if self.sharding_types is None:
            return EmbeddingPlacementEnv(**arguments)
        arguments |= {"sharding_types": self.sharding_types, "max_shards": self.max_shards}
        return EmbeddingShardingEnv(**arguments, max_hosts=self.max_hosts)

    @staticmethod
    def _played(env: EmbeddingPlacementEnv, policy: Policy) -> dict[str, Any]:
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
