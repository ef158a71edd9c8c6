"""`RL4CoAgent`: answers tasks with a policy of RL4CO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from shard_gym.agents.base import Agent
from shard_gym.agents.rl4co.env import RL4CoEnv
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
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
        options: others of the call of the policy, such as `decode_type="multistart_greedy"` with `select_best=True`.

    Raises:
        InvalidOptionError: the observation has costs.
    """

    def __init__(self, name: str, policy: nn.Module, env: RL4CoEnv, **options: Any) -> None:
        if env.episodes.observation not in COST_FREE:
            raise InvalidOptionError(
                f"{name!r} would ask for costs uncounted: train it with observation='set'; "
                f"got {env.episodes.observation!r}."
            )
        self.name, self.policy, self.env = name, policy, env
        self.options = {"decode_type": "greedy", **options}

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
        """For each task a placement, or a plan if the policy splits, or a `NoPlacementFoundError`; all side by side."""
        episodes = self.env.episodes.of_tasks(tasks)
        env = RL4CoEnv(episodes)
        self.policy.eval()
        with torch.inference_mode():
            found = self.policy(env.reset(env.generator.every()), env, phase="test", **self.options)
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
