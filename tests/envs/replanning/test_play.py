"""Episodes played side by side: as environments play them, again from recorded actions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.drift.suites import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.replanning.env import EmbeddingReplanningEnv
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.play import Recorded, play
from shard_gym.errors import InvalidCostError, InvalidOptionError

MakeEnv = Callable[..., EmbeddingReplanningEnv]
Tasks = dict[str, DriftTask]


class Random:
    """Legal actions; a plan in one hour of ten."""

    def begin(self, count: int) -> None:
        self.rng, self.count = np.random.default_rng(0), count

    def act(self, observations: ObservationDict) -> np.ndarray:
        mask = observations["action_mask"].astype(bool)
        assert len(mask) == self.count
        legal = np.where(mask, self.rng.random(mask.shape), -1.0).argmax(axis=1)
        return np.where(self.rng.random(len(mask)) < 0.1, legal, 0)


class Always:
    """One action in every hour."""

    def __init__(self, action: int) -> None:
        self._action = action

    def begin(self, count: int) -> None:
        self._count = count

    def act(self, observations: ObservationDict) -> np.ndarray:
        return np.full(self._count, self._action)


def test_an_episode_is_that_of_an_environment_and_of_its_recorded_actions(
    kinds_of_tasks: Tasks, env_for: MakeEnv, same: Any
) -> None:
    suite = DriftSuite("own", tuple(kinds_of_tasks.values()))
    seen: list[int] = []
    played = play(Random(), suite, progress=seen.append)
    assert seen == list(range(1, DECISIONS + 1))
    assert [each.task for each in played] == list(suite)
    env = env_for(*suite)
    for number, each in enumerate(played):
        assert each.actions.shape == (DECISIONS,)
        env.reset(options={"task": number})
        for action in each.actions:
            *_, info = env.step(int(action))
        assert same(tuple(each.history), tuple(env.history()))
        assert each.seconds == pytest.approx(info["running_s"] + info["paused_s"] + info["moved_s"])
    again = play(Recorded(np.stack([each.actions for each in played])), list(suite))
    for one, other in zip(played, again, strict=True):
        assert same(tuple(one.history), tuple(other.history))


def test_illegal_actions_are_refused(kinds_of_tasks: Tasks) -> None:
    tasks = [kinds_of_tasks["growing"], kinds_of_tasks["plain"]]
    for action in (5, 9, -1):  # a task whose tables do not grow has no plans with headroom
        with pytest.raises(InvalidOptionError, match=rf"Action {action} at decision 0 of task '\w+' is illegal"):
            play(Always(action), tasks)


@pytest.mark.parametrize("shape", [(2, DECISIONS), (1, DECISIONS - 1), (DECISIONS,)])
def test_recorded_actions_of_another_shape_are_refused(kinds_of_tasks: Tasks, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidOptionError, match=r"must have shape \(1, 336\), a row for each task"):
        play(Recorded(np.zeros(shape, np.int64)), [kinds_of_tasks["plain"]])


class Broken(AnalyticalShardingModel):
    """A model that says NaN for the whole iteration."""

    name = "broken"

    def iteration_cost(self, phases: Any, shared: Any, cluster: Any) -> Any:
        return super().iteration_cost(phases, shared, cluster) * np.nan


def test_costs_that_are_no_numbers_are_refused(drift_task: Callable[..., DriftTask]) -> None:
    with pytest.raises(InvalidCostError, match="must be a finite number"):
        play(Always(0), [drift_task(3)], Broken())


@pytest.mark.parametrize("given", [[0.7], [0, 0], 0, [float("nan")], None])
def test_what_is_no_action_for_each_task_is_refused(kinds_of_tasks: dict[str, DriftTask], given: Any) -> None:
    class Odd:
        def begin(self, count: int) -> None:
            pass

        def act(self, observations: Any) -> Any:
            return given

    with pytest.raises(InvalidOptionError, match="must return 1 integers, an action for each task"):
        play(Odd(), [kinds_of_tasks["plain"]])
