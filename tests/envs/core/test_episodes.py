"""`Episodes`: N at once, of which some run, some are over and some begin anew."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.envs.core.episodes import Episodes
from shard_gym.envs.core.state import PlacementState, Status
from shard_gym.envs.placement.observation import FullObservation
from shard_gym.envs.placement.rendering.view import PlacementView
from shard_gym.errors import InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.tasks import Task, TaskSampler, TaskSuite

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


@pytest.mark.parametrize("reward", ["terminal", "dense", "normalized"])
def test_many_episodes_are_as_many_alone(make: Any, same: Any, tasks: list[Task], reward: str) -> None:
    together, alone = make(8, reward=reward), [make(1, begun=False, reward=reward) for _ in range(8)]
    for env, one in enumerate(alone):
        one.begin(np.zeros(1, np.int64), [tasks[env % 4]])
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = np.where(rng.random(8) < 0.1, 4, together.masks().argmax(axis=1))
        rewards, over = together.step(actions)
        for env, one in enumerate(alone):
            assert same([part[env : env + 1] for part in (rewards, over)], list(one.step(actions[env : env + 1])))
            assert same({k: v[env : env + 1] for k, v in together.observations().items()}, one.observations())
            assert same(together.ending(env), one.ending(0))
    assert (together.state.status != Status.RUNNING).all()


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


def test_observations_are_new_unless_they_are_shared(make: Any, same: Any) -> None:
    episodes = make()
    first, second = episodes.observations(), episodes.observations()
    assert same(first, second)
    assert not any(np.shares_memory(first[key], second[key]) for key in first)
    shared, again = episodes.observations(share=True), episodes.observations(share=True)
    assert same(shared, first)
    assert {key for key in first if np.shares_memory(shared[key], again[key])} == {
        "device_mask",
        "table_features",
        "table_mask",
    }
    assert not any(np.shares_memory(first[key], shared[key]) for key in first)


def test_a_view_stays_as_it_was(make: Any) -> None:
    episodes = make()
    episodes.step(np.array([0, 0, 0, 0]))
    view = PlacementView.of(episodes, 2)
    before = copy.deepcopy(view)
    episodes.step(np.array([0, 0, 1, 1]))
    assert np.array_equal(view.phases_ms, before.phases_ms)
    assert np.array_equal(view.placement, before.placement)
    assert not np.array_equal(PlacementView.of(episodes, 2).phases_ms, before.phases_ms)


# Copies


@pytest.mark.parametrize(
    "copied",
    [Episodes.copy, copy.deepcopy, lambda episodes: pickle.loads(pickle.dumps(episodes))],
    ids=["own", "deep", "pickle"],
)
@pytest.mark.parametrize("num_envs", [1, 7])
def test_a_copy_goes_on_alike_and_alone(make: Any, same: Any, tasks: list[Task], copied: Any, num_envs: int) -> None:
    episodes = make(num_envs)
    episodes.begin(np.array([num_envs - 1]), [replace(tasks[3], name="elsewhere")])
    episodes.step(episodes.masks().argmax(axis=1))
    twin, before = copied(episodes), whole(episodes)
    assert same(whole(twin), before)
    for _ in range(4):
        rewards, over = twin.step(twin.masks().argmax(axis=1))
    twin.begin(np.array([0]), [tasks[2]])
    assert same(whole(episodes), before)
    for _ in range(4):
        expected = episodes.step(episodes.masks().argmax(axis=1))
    episodes.begin(np.array([0]), [tasks[2]])
    assert same((rewards, over), expected)
    # The task a pickle brings back is another object, so it has another row; all that can be seen is equal.
    assert same(whole(twin), whole(episodes))


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


def test_tasks_are_chosen_by_number_by_name_or_drawn(make: Any, tasks: list[Task], random_task: Any) -> None:
    episodes, rng = make(begun=False), np.random.default_rng(0)
    assert episodes.choose(rng, 2) is tasks[2]
    assert episodes.choose(rng, np.int64(3)) is tasks[3]
    assert episodes.choose(rng, "task 1") is tasks[1]
    other = random_task(np.random.default_rng(0), 2, 2)
    assert episodes.choose(rng, other) is other
    assert rng.bit_generator.state == np.random.default_rng(0).bit_generator.state  # nothing was drawn yet
    assert {episodes.choose(rng).name for _ in range(40)} == {task.name for task in tasks}


def test_a_key_that_names_no_task_is_refused(make: Any, random_tables: Any, random_task: Any) -> None:
    rng, drawn = np.random.default_rng(0), TaskSampler(random_tables(np.random.default_rng(0), 9), (2, 5), (1, 2))
    large = [(random_task(np.random.default_rng(0), *size), InvalidTaskError, "at most 7 tables and 5 devices")
             for size in ((8, 2), (6, 6))]  # fmt: skip
    named = [(4, InvalidOptionError, "no task 4"), (-1, InvalidOptionError, "no task -1"), ("x", UnknownNameError, "x")]
    for key, kind, message in large + named:
        with pytest.raises(kind, match=message):
            make(begun=False).choose(rng, key)
    with pytest.raises(InvalidOptionError, match="no numbered tasks; pass a Task"):
        make(begun=False, suite=drawn).choose(rng, 0)


def test_there_is_nothing_to_see_of_an_episode_that_never_began(make: Any) -> None:
    with pytest.raises(InvalidOptionError, match="reset"):
        PlacementView.of(make(begun=False), 1)


@pytest.mark.parametrize("name", ["max_tables", "max_devices"])
@pytest.mark.parametrize("value", [1, 0, True, 7.0, "7"])
def test_padding_holds_the_largest_task(make: Any, name: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=rf"{name} must be an integer of at least \d, the suite's own; got"):
        make(**{name: value})


def test_without_padding_the_largest_task_decides(make: Any) -> None:
    episodes = make(max_tables=None, max_devices=None)
    assert (episodes.max_tables, episodes.max_devices) == (6, 4)
    assert episodes.masks().shape == (4, 4)
