"""`RL4CoAgent`: answers tasks with a policy of RL4CO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.rl4co.env import RL4CoEnv
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError, TableTooLargeError
from shard_gym.envs.core.episode_state import COMPLETE
from shard_gym.envs.placement.observation import COST_FREE
from shard_gym.envs.tensors import TensorShardingEnv
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.tasks import Task


class RL4CoAgent(Agent):
    """Plays episodes with a policy of RL4CO, which takes the most likely action in each step.

    Args:
        name: its name in result files.
        policy: a policy of RL4CO.
        env: where it was trained, with an observation without costs.

    Raises:
        InvalidOptionError: the observation has costs.
    """

    def __init__(self, name: str, policy: nn.Module, env: RL4CoEnv) -> None:
        if env.episodes.observation not in COST_FREE:
            raise InvalidOptionError(
                f"{name!r} would ask for costs uncounted: train it with observation='set'; "
                f"got {env.episodes.observation!r}."
            )
        self.name, self.policy, self.env = name, policy, env
        self._keys = set(env.episodes.observations())

    @property
    @override
    def splits(self) -> bool:
        return isinstance(self.env.episodes, TensorShardingEnv)

    @override
    def place(self, task: Task) -> Placement:
        if self.splits:
            raise NoPlacementFoundError(f"The policy of {self.name!r} splits tables: ask it for a plan.")
        placement: Placement = self._answer(task)
        return placement

    @override
    def plan(self, task: Task) -> ShardingPlan:
        if not self.splits:
            return super().plan(task)
        plan: ShardingPlan = self._answer(task)
        return plan

    def _answer(self, task: Task) -> Any:
        [answer] = self.answers([task])
        if isinstance(answer, NoPlacementFoundError):
            raise answer
        return answer

    def answers(self, tasks: Sequence[Task]) -> list[Any]:
        """For each task a placement, or a plan if the policy splits, or a `NoPlacementFoundError`.

        Tasks that fit the padding of the training are played side by side, with that padding; others alone.
        """
        own = self.env.episodes
        fits = [task.num_tables <= own.max_tables and task.num_devices <= own.max_devices for task in tasks]
        some = [task for task, its in zip(tasks, fits, strict=True) if its]
        played = iter(self._played(some)) if some else iter(())
        return [next(played) if its else self._played([task])[0] for task, its in zip(tasks, fits, strict=True)]

    def _played(self, tasks: Sequence[Task]) -> list[Any]:
        try:
            episodes = self.env.episodes.of_tasks(tasks)
        except TableTooLargeError as error:
            if len(tasks) > 1:
                return [answer for task in tasks for answer in self._played([task])]
            return [NoPlacementFoundError(str(error))]
        if differ := set(episodes.observations()) ^ self._keys:
            what = (
                f"{self.name} learned from observations that differ from those of these tasks in "
                f"{', '.join(sorted(differ))}: train it on tasks with host memory where these have it, else without."
            )
            return [NoPlacementFoundError(what) for _ in tasks]
        env = RL4CoEnv(episodes)
        self.policy.eval()
        with torch.inference_mode():
            found = self.policy(env.reset(env.generator.every()), env, phase="test", decode_type="greedy")
        episodes.begin(torch.arange(len(tasks), device=episodes.device))
        for actions in found["actions"].T:
            episodes.step(actions)
        complete, placements = (episodes.status == COMPLETE).tolist(), episodes.placements().cpu().numpy()
        answers: list[Any] = []
        for number, task in enumerate(tasks):
            if not complete[number]:
                what = (
                    f"The policy of {self.name} left a table of task {task.name!r} without a device with room for it."
                )
                answers.append(NoPlacementFoundError(what))
            elif isinstance(episodes, TensorShardingEnv):
                answers.append(episodes.plan(number))
            else:
                answers.append(placements[number, : task.num_tables])
        return answers
