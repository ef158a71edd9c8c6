"""`EmbeddingPlacementVectorEnv`: arguments, seeds and reset options, and what it says to those that mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import error
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.errors import InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSampler

SUITE = "dlrm-20x4"


def make(num_envs: int = 3, **more: Any) -> EmbeddingPlacementVectorEnv:
    return EmbeddingPlacementVectorEnv(num_envs, **{"suite": SUITE, "observation": "compact", **more})


def numbers(names: Any) -> list[int | None]:
    """The numbers of the tasks in the suite."""
    return [None if name is None else int(name.rpartition("/")[2]) for name in names]


# Tasks


def test_one_task_for_all_or_one_for_each() -> None:
    env = make()
    assert numbers(env.reset(seed=0, options={"task": 5})[1]["task"]) == [5, 5, 5]
    for tasks in ([4, 0, 9], (4, 0, 9), np.array([4, 0, 9]), [f"{SUITE}/train/{number}" for number in (4, 0, 9)]):
        obs, infos = env.reset(options={"tasks": tasks})
        assert numbers(infos["task"]) == [4, 0, 9]
        for row, number in enumerate((4, 0, 9)):
            alone, _ = EmbeddingPlacementEnv(SUITE, observation="compact").reset(seed=0, options={"task": number})
            assert all(np.array_equal(obs[key][row], alone[key]) for key in alone)


def test_where_no_task_is_named_one_is_drawn_as_ever() -> None:
    env = make()
    drawn = numbers(env.reset(seed=8)[1]["task"])
    assert len(set(drawn)) > 1
    assert numbers(env.reset(seed=8, options={"tasks": [None, 1, None]})[1]["task"]) == [drawn[0], 1, drawn[2]]
    for nothing in ({}, {"task": None}, {"tasks": None}, {"reset_mask": None}, None):
        assert numbers(env.reset(seed=8, options=nothing)[1]["task"]) == drawn


def test_tasks_from_elsewhere_stand_beside_those_of_the_suite() -> None:
    env, other = make(), load_suite(SUITE, "test")
    _, infos = env.reset(seed=0, options={"tasks": [other[3], 1, other[4]]})
    assert infos["task"].tolist() == [other[3].name, f"{SUITE}/train/1", other[4].name]
    assert env.episodes.tasks == [other[3], load_suite(SUITE, "train")[1], other[4]]


def test_only_the_environments_of_the_mask_take_the_tasks_given() -> None:
    env = make()
    env.reset(seed=0, options={"task": 5})
    env.step(np.zeros(3, np.int64))
    mask = np.array([False, True, False])
    obs, infos = env.reset(options={"reset_mask": mask, "tasks": [1, 2, 3]})
    assert numbers(infos["task"]) == [None, 2, None]
    assert infos["_task"].tolist() == infos["_action_mask"].tolist() == mask.tolist()
    assert numbers(task.name for task in env.episodes.tasks) == [5, 2, 5]
    assert obs["progress"].ravel().tolist() == pytest.approx([1 / 20, 0, 1 / 20])


def test_options_are_left_as_they_are() -> None:
    env, options = make(), {"task": 2, "reset_mask": np.ones(3, np.bool_)}
    env.reset(seed=0, options=options)
    assert set(options) == {"task", "reset_mask"}
    assert options["reset_mask"].all()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"task": 50}, InvalidOptionError, r"tasks 0 to 49; there is no task 50"),
        ({"task": -1}, InvalidOptionError, r"there is no task -1"),
        ({"task": True}, InvalidOptionError, r"there is no task True"),
        ({"task": 1.0}, InvalidOptionError, r"there is no task 1.0"),
        ({"task": "dlrm-20x4/train/n"}, UnknownNameError, r"Did you mean 'dlrm-20x4/train/"),
        ({"tasks": [0, 1, 50]}, InvalidOptionError, r"there is no task 50"),
        ({"tasks": [0, "x", 1]}, UnknownNameError, r"no task .* named 'x'"),
        ({"tasks": [0, 1]}, InvalidOptionError, r"must name 3 tasks, one for each"),
        ({"tasks": 4}, InvalidOptionError, r"must name 3 tasks"),
        ({"tasks": "abc"}, InvalidOptionError, r"must name 3 tasks"),
        ({"tasks": {0: 1, 1: 2, 2: 3}}, InvalidOptionError, r"must name 3 tasks"),
        ({"tasks": [0, 1, 2], "task": 1}, InvalidOptionError, r"comes without 'task'"),
        (
            {"reset_mask": [True, False, True]},
            InvalidOptionError,
            r"bool array of shape \(3,\) with a True, not \[True",
        ),
        ({"reset_mask": np.ones(2, np.bool_)}, InvalidOptionError, r"bool array of shape \(3,\)"),
        ({"reset_mask": np.ones((3, 1), np.bool_)}, InvalidOptionError, r"bool array of shape \(3,\)"),
        ({"reset_mask": np.ones(3, np.int64)}, InvalidOptionError, r"bool array of shape \(3,\)"),
        ({"reset_mask": np.zeros(3, np.bool_)}, InvalidOptionError, r"with a True"),
        ({"reset_mask": True}, InvalidOptionError, r"with a True, not True"),
        ([("task", 1)], InvalidOptionError, r"options"),
        (5, InvalidOptionError, r"options"),
        ({"tsak": 1}, InvalidOptionError, r"'task', 'tasks' and 'reset_mask', not \['tsak'\]"),
        ({"task": load_suite("dlrm-40x4")[0]}, InvalidTaskError, r"has 40 tables and 4 devices.*Raise max_tables"),
    ],
)
def test_options_that_mean_nothing_are_refused_and_change_no_episode(
    options: Any, kind: type[Exception], message: str
) -> None:
    env = make()
    env.reset(seed=0)
    env.step(np.zeros(3, np.int64))
    state, tasks = env.episodes.state.copy(), list(env.episodes.tasks)
    with pytest.raises(kind, match=message):
        env.reset(options=options)
    assert env.episodes.tasks == tasks
    assert all(np.array_equal(value, getattr(env.episodes.state, name)) for name, value in vars(state).items())
    env.step(np.zeros(3, np.int64))


def test_a_task_that_is_too_large_spoils_no_episode_beside_it() -> None:
    other, large = load_suite(SUITE, "test"), load_suite("dlrm-40x4")[0]
    one, spoiled = make(2), make(2)
    for env in (one, spoiled):
        env.reset(seed=0, options={"tasks": [other[0], other[1]]})
    with pytest.raises(InvalidTaskError):
        spoiled.reset(options={"tasks": [other[2], large]})
    for _ in range(20):
        a, b = (env.step(env.action_masks().argmax(axis=1)) for env in (one, spoiled))
        assert all(np.array_equal(a[0][key], b[0][key]) for key in a[0])
        assert np.array_equal(a[1], b[1])
    assert np.array_equal(a[4]["placement"], b[4]["placement"])


def test_a_sampler_has_no_numbered_tasks(random_tables: Any) -> None:
    sampler = TaskSampler(random_tables(np.random.default_rng(0), 9), (3, 5), (1, 2))
    env = make(2, suite=sampler)
    with pytest.raises(InvalidOptionError, match=r"has no numbered tasks; pass a Task"):
        env.reset(seed=0, options={"task": 1})
    task = sampler.sample(np.random.default_rng(0))
    renamed = replace(task, name="renamed")
    assert env.reset(seed=0, options={"tasks": [task, renamed]})[1]["task"].tolist() == [task.name, "renamed"]


def test_the_first_reset_is_of_all_environments() -> None:
    mask = np.array([True, False, True])
    for mode in AutoresetMode:
        env = make(autoreset_mode=mode)
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            env.reset(seed=0, options={"reset_mask": mask})
        env.reset(seed=0, options={"reset_mask": np.ones(3, np.bool_)})
        env.reset(options={"reset_mask": mask})


# Seeds


def test_a_number_seeds_each_environment_with_the_next_one() -> None:
    env = make()
    expected = env.reset(seed=[20, 21, 22])[1]["task"].tolist()
    for seed in (20, np.int64(20), (20, 21, 22)):
        assert env.reset(seed=seed)[1]["task"].tolist() == expected
    alone = EmbeddingPlacementEnv(SUITE)
    assert [alone.reset(seed=20 + row)[1]["task"] for row in range(3)] == expected


def test_an_environment_without_a_seed_goes_on_with_its_generator() -> None:
    one, other = make(), make()
    one.reset(seed=3)
    other.reset(seed=3)
    unseeded = one.reset()[1]["task"].tolist()
    assert other.reset(seed=[None, 77, None])[1]["task"][[0, 2]].tolist() == [unseeded[0], unseeded[2]]
    fresh = {tuple(make().reset()[1]["task"]) for _ in range(5)}
    assert len(fresh) > 1


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ([1, 2], r"one for each of the 3 environments; got \[1, 2\]"),
        ([], r"one for each of the 3 environments"),
        (1.5, r"seed must be None, an integer, or a list of one for each of the 3 environments; got 1.5"),
        ("abc", r"got 'abc'"),
        ({1: 1, 2: 2, 3: 3}, r"seed must be None"),
    ],
)
def test_seeds_that_do_not_fit_are_refused(seed: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make().reset(seed=seed)


@pytest.mark.parametrize("seed", [-1, [1, 2, -3], [1.0, 2, 3], [1, "2", 3]])
def test_numbers_that_are_no_seeds_are_gymnasiums_to_refuse(seed: Any) -> None:
    with pytest.raises(error.Error, match="Seed must be"):
        make().reset(seed=seed)


# Arguments


@pytest.mark.parametrize("num_envs", [0, -1, True, 2.0, "3", None])
def test_the_number_of_environments_is_a_positive_integer(num_envs: Any) -> None:
    with pytest.raises(InvalidOptionError, match="num_envs must be an integer of at least 1"):
        make(num_envs)


@pytest.mark.parametrize("mode", ["never", 3, None, "", "NextStep "])
def test_an_autoreset_mode_that_is_none_lists_those_there_are(mode: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"one of \['NEXT_STEP', 'SAME_STEP', 'DISABLED'\]"):
        make(autoreset_mode=mode)


def test_episodes_are_not_cut_short() -> None:
    with pytest.raises(InvalidOptionError, match="max_episode_steps must be None, not 10: an episode ends by itself"):
        make(max_episode_steps=10)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"suite": "dlrm-20x5"}, UnknownNameError),
        ({"cost_model": "analytic"}, UnknownNameError),
        ({"reward": "sparse"}, UnknownNameError),
        ({"observation": "compct"}, UnknownNameError),
        ({"max_tables": 19}, InvalidOptionError),
        ({"max_devices": 3}, InvalidOptionError),
        ({"split": "validation"}, InvalidOptionError),
    ],
)
def test_arguments_are_checked_as_those_of_one_environment(arguments: dict[str, Any], kind: type[Exception]) -> None:
    messages = []
    for made in (make, lambda **more: EmbeddingPlacementEnv(**{"suite": SUITE, **more})):
        with pytest.raises(kind) as raised:
            made(**arguments)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
