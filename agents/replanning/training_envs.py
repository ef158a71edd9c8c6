"""Environments for Stable-Baselines3 whose observations are `PolicyInputs`: replayed from tables of plans, or played.

Rewards are "excess", in days at the reference cost. Actions are those of `legal_actions`.

Needs the extra `sb3`; import it where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn, VecEnvWrapper

from shard_gym.agents.replanning.base import View
from shard_gym.agents.replanning.policy_inputs import PolicyInputs, input_space
from shard_gym.agents.replanning.table_episodes import Replay, TableEpisodes
from shard_gym.agents.sb3.vec_env import OneObjectVecEnv, ReplanningVecEnv
from shard_gym.envs.replanning.windows import HOURS, LAST_DAYS, WINDOWS

Floats = NDArray[np.float32]


class TableVecEnv(OneObjectVecEnv):
    """All tasks of a suite side by side, replayed from their tables of plans; it plays them again and again.

    There are no migrations and no measured costs. It is many times as fast as `PlayedVecEnv`. The last
    infos of an episode hold `seconds`.

    Args:
        episodes: the tasks, N of them.
        pause_s: seconds of a pause.
    """

    def __init__(self, episodes: TableEpisodes, pause_s: float) -> None:
        self._replay, self._inputs = Replay(episodes, pause_s), PolicyInputs()
        self._day_s, self._total = episodes.day_s, np.zeros(len(episodes.number))
        count, _, kinds = episodes.number.shape
        super().__init__(self._replay, count, input_space(kinds), spaces.Discrete(1 + kinds))

    def reset(self) -> Floats:
        """Begin all episodes."""
        self._replay.begin()
        self._total[:] = 0.0
        self._inputs.begin(self.num_envs, self._replay.action_masks().shape[1] - 1)
        return self._inputs.of(self._replay.view())

    def step_wait(self) -> VecEnvStepReturn:
        """Step all episodes."""
        actions = legal_actions(self._actions, self._replay.action_masks(), self._replay.must_plan)
        always = self._replay.new_plan_s()
        seconds = self._replay.step(actions)
        self._total += seconds
        rewards = ((always - seconds) / self._day_s).astype(np.float32)
        over = self._replay.is_over
        infos: list[dict[str, Any]] = [{"seconds": each} if over else {} for each in self._total.tolist()]
        return (
            self.reset() if over else self._inputs.of(self._replay.view()),
            rewards,
            np.full(self.num_envs, over),
            infos,
        )


class PlayedVecEnv(VecEnvWrapper):
    """N episodes of `EmbeddingReplanning-v0`, with tasks drawn from the suite.

    The last infos of an episode are those of the environment, without `"terminal_observation"`.

    Args:
        num_envs: N.
        options: of the environment, without `reward`.
    """

    def __init__(self, num_envs: int, **options: Any) -> None:
        envs = ReplanningVecEnv(num_envs, reward="excess", **options)
        self._inputs, self._kinds = PolicyInputs(), envs.envs.episodes.num_actions - 1
        self._view: View | None = None
        super().__init__(envs, input_space(self._kinds))

    def reset(self) -> Floats:
        """Begin N episodes."""
        seen = self.venv.reset()
        assert isinstance(seen, dict)
        self._inputs.begin(self.num_envs, self._kinds)
        self._view = View.of(seen)
        return self._inputs.of(self._view)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Send the actions."""
        assert self._view is not None  # SB3 resets first
        self.venv.step_async(legal_actions(actions, self._view.legal, self._view.must_plan))

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments."""
        seen, rewards, dones, infos = self.venv.step_wait()
        assert isinstance(seen, dict)
        for info in infos:
            info.pop("terminal_observation", None)
        self._view = View.of(seen)
        return self._inputs.of(self._view), rewards / np.float32(HOURS), dones, infos


def legal_actions(
    actions: NDArray[np.integer[Any]], legal: NDArray[np.bool_], must_plan: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(N,) what is done: a plan without room for growth where there is none; for three days where one must be made.

    To keep a plan that cannot go on is to make one for the last three days, with room for growth where there is some.

    Args:
        actions: (N,) what a policy chose.
        legal: (N, A) the legal actions.
        must_plan: (N,) whether the plan in action cannot go on.
    """
    repair = legal.shape[1] - len(WINDOWS) + LAST_DAYS
    chosen = np.where(must_plan & (actions == 0), repair, actions)
    ours = legal[np.arange(len(chosen)), chosen]
    return np.where(ours, chosen, (chosen - 1) % len(WINDOWS) + 1)
