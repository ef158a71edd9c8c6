"""Episodes played side by side: as environments play them, what follows from their actions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidPlacementError
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.env.episode_data import DECISIONS, EpisodeData
from shard_gym.replanning.env.play import PlayedEpisode, history_of, play, player_of

MODEL = make_cost_model(additive=True, splits=True)

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


@pytest.fixture(scope="module")
def played(kinds_of_tasks: Tasks) -> list[PlayedEpisode]:
    """Random episodes of all tasks."""
    seen: list[int] = []
    found = play(Random(), list(kinds_of_tasks.values()), MODEL, progress=seen.append)
    assert seen == list(range(1, DECISIONS + 1))
    return found


def test_an_episode_is_that_of_an_environment_and_of_its_recorded_actions(
    kinds_of_tasks: Tasks, played: list[PlayedEpisode], env_for: MakeEnv, same: Any
) -> None:
    tasks = list(kinds_of_tasks.values())
    assert [each.task for each in played] == tasks
    env = env_for(*tasks)
    for number, each in enumerate(played):
        assert each.actions.shape == (DECISIONS,)
        env.reset(options={"task": number})
        for action in each.actions:
            *_, info = env.step(int(action))
        assert same(tuple(each.history), tuple(env.history()))
        assert each.seconds == pytest.approx(info["running_s"] + info["paused_s"] + info["moved_s"])
        assert each.failure == ""
        found = history_of(each.task, each.actions, MODEL)
        assert found.seconds == pytest.approx(each.history.seconds, rel=1e-12)
        assert all(same(getattr(found, name), getattr(each.history, name)) for name in ("kinds", "repairs"))
    fresh = replace(each.task, task=replace(each.task.task))  # it shares no plans that are known already
    assert history_of(fresh, each.actions, MODEL).seconds == pytest.approx(each.history.seconds, rel=1e-12)


def test_what_follows_from_actions_does_not_depend_on_what_is_made_at_once(
    played: list[PlayedEpisode], same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task, actions in ((each.task, each.actions[:60]) for each in played):
        at_once = history_of(replace(task, task=replace(task.task)), actions, MODEL)
        with monkeypatch.context() as changed:
            changed.setattr(EpisodeData, "expect", lambda *_: None)
            one_by_one = history_of(replace(task, task=replace(task.task)), actions, MODEL)
        assert same(tuple(at_once), tuple(one_by_one))


def test_an_illegal_action_ends_its_episode_alone(kinds_of_tasks: Tasks) -> None:
    tasks = [kinds_of_tasks["growing"], kinds_of_tasks["plain"]]
    growing, plain = play(Always(5), tasks, MODEL)  # a task whose tables do not grow has no plans with headroom
    assert "there was no plan of the kind of the action" in plain.failure
    assert plain.actions.tolist() == [5]
    assert growing.failure == "" or len(growing.actions) < DECISIONS
    with pytest.raises(InvalidPlacementError, match=r"Action 5 at decision 0 of task '\w+' is illegal"):
        history_of(kinds_of_tasks["plain"], np.full(DECISIONS, 5), MODEL)
    for action in (9, -1):
        with pytest.raises(InvalidPlacementError, match=f"actions are 0 to 8; number 0 is {action}"):
            play(Always(action), tasks, MODEL)


def test_a_function_of_observations_is_a_player(kinds_of_tasks: Tasks) -> None:
    task = kinds_of_tasks["plain"]
    [played] = play(player_of(lambda seen: np.zeros(len(seen["must_plan"]), np.int64)), [task], MODEL)
    [other] = play(Always(0), [task], MODEL)
    assert played.seconds == other.seconds


def test_observations_of_a_suite_have_its_padding(kinds_of_tasks: Tasks) -> None:
    """An agent trained on a suite answers each of its tasks, in whatever company."""
    seen: set[tuple[int, ...]] = set()

    def keep(observations: ObservationDict) -> np.ndarray:
        seen.add(tuple(each.shape[1] for each in observations.values() if each.ndim > 1))
        return np.zeros(len(observations["must_plan"]), np.int64)

    suite = DriftSuite("padded", (kinds_of_tasks["plain"],), padding=(11, 5))
    play(player_of(keep), suite, MODEL)
    play(player_of(keep), replace(suite, tasks=(kinds_of_tasks["spot"], kinds_of_tasks["plain"])), MODEL)
    assert len(seen) == 1
    play(player_of(keep), list(suite), MODEL)
    assert len(seen) == 2


@pytest.mark.parametrize("given", [np.zeros(DECISIONS + 1, np.int64), [[0]], [0.5], [9], [[0], [0, 1]]])
def test_what_is_no_sequence_has_no_history(kinds_of_tasks: Tasks, given: Any) -> None:
    with pytest.raises(InvalidPlacementError, match="A sequence for task 'plain' must be at most 336 integers"):
        history_of(kinds_of_tasks["plain"], given, MODEL)


@pytest.mark.parametrize("given", [[0.7], [0, 0], [[0], [0, 0]], None])
def test_what_is_no_action_for_each_task_is_rejected(kinds_of_tasks: dict[str, DriftTask], given: Any) -> None:
    with pytest.raises(InvalidPlacementError, match=r"must return an array of shape \(1,\) of integers"):
        play(player_of(lambda seen: given), [kinds_of_tasks["plain"]], MODEL)
