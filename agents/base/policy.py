"""`PolicyAgent`: answers a task by playing an episode of the environment with a policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.envs.sharding.episodes import ShardingEpisodes
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.variants import checked_max_shards, checked_sharding_types
from shard_gym.tasks import Task, TaskSuite

MOST_AT_ONCE = 256
"""Tasks that a policy plays side by side."""

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
        self._require_room(task)
        arguments = self._arguments([task])
        return EmbeddingPlacementEnv(**arguments) if self.sharding_types is None else EmbeddingShardingEnv(**arguments)

    def _require_room(self, task: Task) -> None:
        if task.num_tables > self.max_tables or task.num_devices > self.max_devices:
            raise NoPlacementFoundError(
                f"{self.name} holds at most {self.max_tables} tables and {self.max_devices} devices; "
                f"task {task.name!r} has {task.num_tables} and {task.num_devices}."
            )

    def _arguments(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """Those of an environment of these tasks."""
        sees_costs = not isinstance(make_observation(self.observation), CostFreeObservation)
        arguments: dict[str, Any] = {
            "suite": TaskSuite("asked", tuple(tasks)),
            "cost_model": additive_estimate(self.cost_model) if sees_costs else NoCosts(),
            "observation": self.observation,
            "max_tables": self.max_tables,
            "max_devices": self.max_devices,
        }
        if self.sharding_types is None:
            return arguments
        splits = {"sharding_types": self.sharding_types, "max_shards": self.max_shards, "max_hosts": self.max_hosts}
        return {**arguments, **splits}

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


BatchPolicy = Callable[[ObservationDict, NDArray[np.bool_]], NDArray[np.int64]]
"""Maps observations of N episodes, with a leading axis, and their (N, A) masks to (N,) actions."""


class BatchPolicyAgent(PolicyAgent):
    """A `PolicyAgent` whose policy acts in many episodes at once, so that `evaluate` plays all tasks side by side.

    Args:
        name: its name in result files.
        policy: chooses the actions of N episodes. Those of episodes that are over count for nothing.
        options: those of `PolicyAgent`.
    """

    def __init__(self, name: str, policy: BatchPolicy, **options: Any) -> None:
        def one(observation: ObservationDict, mask: NDArray[np.bool_]) -> int:
            return int(policy({key: array[None] for key, array in observation.items()}, mask[None])[0])

        if isinstance(policy, type) or not callable(policy):
            raise wrong_kind("policy", policy, "a function of observations and masks that returns actions")
        super().__init__(name, one, **options)
        self.batch_policy = policy

    def answers(self, tasks: Sequence[Task]) -> list[Any]:
        """For each task a placement, or if all of them may be split a plan; or a `NoPlacementFoundError`."""
        splits = self.sharding_types is not None and all(task.splittable for task in tasks)
        if self.sharding_types is not None and not splits:
            return [self._alone(task, splits) for task in tasks]
        some = [task for task in tasks if task.num_tables <= self.max_tables and task.num_devices <= self.max_devices]
        kind = EmbeddingShardingVectorEnv if splits else EmbeddingPlacementVectorEnv
        found: dict[str, Any] = {}
        for first in range(0, len(some), MOST_AT_ONCE):
            part = some[first : first + MOST_AT_ONCE]
            envs = kind(len(part), autoreset_mode="DISABLED", **self._arguments(part))
            try:
                observations, infos = envs.reset(seed=0, options={"tasks": list(range(len(part)))})
            except TableTooLargeError:
                continue  # which of them is told one by one
            ended = np.zeros(len(part), np.bool_)
            while not ended.all():
                observations, _, ended, _, infos = envs.step(self.batch_policy(observations, envs.action_masks()))
            for number, task in enumerate(part):
                if failure := envs.episodes.failure(number):
                    found[task.name] = NoPlacementFoundError(failure["message"])
                elif isinstance(envs.episodes, ShardingEpisodes):
                    found[task.name] = envs.episodes.plan(number)
                else:
                    found[task.name] = infos["placement"][number, : task.num_tables]
        return [found[task.name] if task.name in found else self._alone(task, splits) for task in tasks]

    def _alone(self, task: Task, splits: bool) -> Any:
        """The answer to one task, or its error."""
        try:
            return self.plan(task) if splits else self.place(task)
        except NoPlacementFoundError as error:
            return error
