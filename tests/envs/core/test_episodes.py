"""`Episodes`: N at once, of which some run, some are over and some begin anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.episodes import Episodes
from shard_gym.envs.core.state import PlacementState, Status
from shard_gym.envs.placement.observation import FullObservation
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import InvalidOptionError
from shard_gym.tasks import Task, TaskSuite

MODEL = make_cost_model("analytical")
SIZES = ((1, 2), (4, 3), (6, 2), (5, 4))  # tables and devices


@pytest.fixture(scope="module")
def tasks(random_task: Any) -> list[Task]:
    rng = np.random.default_rng(2)
    return [random_task(rng, *size, devices_per_host=2, name=f"task {i}") for i, size in enumerate(SIZES)]


@pytest.fixture
def make(tasks: list[Task]) -> Callable[..., Episodes]:
    """Makes N episodes; the i-th is that of the task i % 4."""

    def episodes(num_envs: int = 4, *, begun: bool = True, **more: Any) -> Episodes:
        given = {"suite": TaskSuite("own", tuple(tasks)), "split": "", "cost_model": MODEL, "reward": "dense"}
        made = Episodes(
            num_envs, **{**given, "observation": FullObservation(), "max_tables": 7, "max_devices": 5, **more}
        )
        if begun:
            made.begin(np.arange(num_envs), [tasks[i % 4] for i in range(num_envs)])
        return made

    return episodes


def row(episodes: Episodes, env: int) -> PlacementState:
    """A copy of the state of one episode (N = 1)."""
    return PlacementState(**{name: value[env : env + 1].copy() for name, value in vars(episodes.state).items()})


def whole(episodes: Episodes) -> tuple[Any, ...]:
    """All that can be seen of the episodes."""
    count = len(episodes.tasks)
    return (
        copy.deepcopy(vars(episodes.state)),
        episodes.observations(),
        episodes.masks(),
        episodes.placements(np.arange(count)),
        [episodes.ending(env) for env in range(count)],
    )


# One step


def test_rewards_and_ends_are_those_of_the_step(make: Any) -> None:
    episodes = make()
    rewards, over = episodes.step(np.array([0, 4, 1, 3]))
    assert over.tolist() == [True, True, False, False]
    assert episodes.state.status.tolist() == [
        Status.COMPLETE,
        Status.ILLEGAL_ACTION,
        Status.RUNNING,
        Status.RUNNING,
    ]
    assert rewards[[0, 2, 3]] == pytest.approx(-episodes.state.cost_ms[[0, 2, 3]])
    assert rewards[1] == -episodes.problem.penalty_ms[1]
    rewards, over = episodes.step(np.array([0, 0, 0, 0]))
    assert rewards[:2].tolist() == [0.0, 0.0]
    assert over.tolist() == [False] * 4
    assert (rewards[2:] <= 0).all()


def test_what_is_over_stays_and_what_begins_anew_starts_from_nothing(make: Any, same: Any, tasks: list[Task]) -> None:
    episodes = make()
    episodes.step(np.array([0, 4, 1, 3]))
    ended = row(episodes, 1)
    episodes.step(np.array([1, 1, 1, 1]))
    assert same(vars(row(episodes, 1)), vars(ended))
    beside = [row(episodes, env) for env in (1, 2)]
    episodes.begin(np.array([0, 3]), [tasks[2], tasks[1]])
    assert same([vars(row(episodes, env)) for env in (1, 2)], [vars(each) for each in beside])
    fresh = make(2, begun=False)
    fresh.begin(np.array([0, 1]), [tasks[2], tasks[1]])
    for env, other in ((0, 0), (3, 1)):
        assert same(vars(row(episodes, env)), vars(row(fresh, other)))
        ours, theirs = episodes.observations(), fresh.observations()
        assert all(np.array_equal(ours[key][env], theirs[key][other]) for key in ours)


def test_a_reward_of_any_kind_gives_float64_and_nothing_where_an_episode_was_over(make: Any) -> None:
    for value in (0.5, np.float32(0.5), np.full(4, 0.5, np.float16), np.ones(4, np.int64)):
        episodes = make(reward=lambda transition, value=value: value)
        rewards, _ = episodes.step(np.array([0, 4, 1, 3]))
        assert rewards.dtype == np.float64
        each = float(np.mean(value))
        assert rewards.tolist() == [each] * 4
        assert episodes.step(np.zeros(4, np.int64))[0].tolist() == [0.0, 0.0, each, each]


# What is seen


def test_placements_stand_in_the_tasks_own_order(make: Any, tasks: list[Task]) -> None:
    episodes = make()
    assert (episodes.placements(np.arange(4)) == -1).all()
    rng, chosen = np.random.default_rng(1), [[] for _ in range(4)]
    for _ in range(6):
        actions = np.where(episodes.masks(), rng.random((4, 5)), -1.0).argmax(axis=1)
        for env in np.flatnonzero(episodes.state.status == Status.RUNNING):
            chosen[env].append(actions[env])
        episodes.step(actions)
    placements = episodes.placements(np.array([3, 0, 2]))
    for placement, env in zip(placements, (3, 0, 2), strict=True):
        count = tasks[env].num_tables
        assert placement[episodes.problem.order[env, :count]].tolist() == chosen[env]
        assert (placement[count:] == -1).all()
        expected = MODEL.estimate(placement[:count], tasks[env].tables, tasks[env].topology).total_ms
        assert episodes.ending(env)["cost_ms"] == pytest.approx(expected, rel=1e-9)
        assert np.array_equal(episodes.ending(env)["placement"], placement)
        assert np.array_equal(PlacementView.of(episodes, env).placement, placement[:count])


def test_an_ending_says_nothing_before_the_end_and_why_after_a_failure(make: Any, tasks: list[Task]) -> None:
    episodes = make()
    assert [episodes.ending(env) for env in range(4)] == [{}] * 4
    episodes.step(np.array([0, 4, 1, 3]))
    complete = {"placement", "cost_ms", "phase_costs_ms"}
    assert [set(episodes.ending(env)) for env in range(4)] == [complete, {"failure"}, set(), set()]
    assert [episodes.failure(env) for env in (0, 2, 3)] == [None] * 3
    failure, first = episodes.ending(1)["failure"], episodes.problem.order[1, 0]
    assert (failure["reason"], failure["table"]) == ("illegal_action", tasks[1].tables.names[first])
    assert failure["bytes_needed"] == tasks[1].tables.memory_bytes[first]
    assert failure["bytes_free"] == tasks[1].topology.memory_cap_bytes.max()
    assert {type(value) for value in failure.values()} == {str, int}
    assert failure["table"] in failure["message"] == PlacementView.of(episodes, 1).failure


def test_an_episode_is_restored_beside_others(make: Any, same: Any, tasks: list[Task]) -> None:
    episodes = make()
    episodes.step(np.array([0, 1, 1, 3]))
    kept, before = row(episodes, 3), whole(episodes)
    episodes.step(np.array([0, 1, 1, 3]))
    others = [row(episodes, env) for env in (0, 1)]
    episodes.restore(2, tasks[3], kept)
    assert episodes.tasks[2] is tasks[3]
    assert same(vars(row(episodes, 2)), vars(kept))
    assert all(np.array_equal(value[2], before[1][key][3]) for key, value in episodes.observations().items())
    assert same([vars(row(episodes, env)) for env in (0, 1)], [vars(each) for each in others])
    rewards, _ = episodes.step(np.array([0, 1, 2, 2]))
    twin = make()
    twin.step(np.array([0, 1, 1, 3]))
    assert twin.step(np.array([0, 1, 1, 2]))[0][3] == rewards[2]


# Tasks


def test_there_is_nothing_to_see_of_an_episode_that_never_began(make: Any) -> None:
    with pytest.raises(InvalidOptionError, match="reset"):
        PlacementView.of(make(begun=False), 1)


def test_without_padding_the_largest_task_decides(make: Any) -> None:
    episodes = make(max_tables=None, max_devices=None)
    assert (episodes.max_tables, episodes.max_devices) == (6, 4)
    assert episodes.masks().shape == (4, 4)
