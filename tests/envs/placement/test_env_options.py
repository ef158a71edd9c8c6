"""`EmbeddingPlacementEnv`: which task an episode gets, and named errors for options and arguments that mean nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.errors import InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSampler, TaskSuite


@pytest.fixture(scope="module")
def env() -> EmbeddingPlacementEnv:
    return EmbeddingPlacementEnv("dlrm-20x4", "test")


@pytest.mark.parametrize("key", [3, np.int64(3), "dlrm-20x4/test/3", load_suite("dlrm-20x4")[3]])
def test_a_task_is_chosen_by_index_by_name_or_as_it_is(env: EmbeddingPlacementEnv, key: Any) -> None:
    _, info = env.reset(options={"task": key})
    assert info["task"] == env.task.name == "dlrm-20x4/test/3"
    assert env.task is (key if isinstance(key, Task) else env.tasks[3])


def test_a_task_from_elsewhere_is_taken_as_it_is(env: EmbeddingPlacementEnv, random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 5, 2, name="dlrm-20x4/test/3")
    env.reset(options={"task": 3})
    _, info = env.reset(options={"task": task})
    assert env.task is task
    assert info["action_mask"].tolist() == [1, 1, 0, 0]
    env.reset(options={"task": 3})
    assert env.task.num_tables == 20


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "dlrm-20x4/test/51"}, UnknownNameError, "Did you mean 'dlrm-20x4/test/"),
        ({"task": 50}, InvalidOptionError, "tasks 0 to 49; there is no task 50"),
        ({"task": -1}, InvalidOptionError, "tasks 0 to 49; there is no task -1"),
        ({"task": True}, InvalidOptionError, "tasks 0 to 49; there is no task True"),
        ({"task": 1.0}, InvalidOptionError, "tasks 0 to 49; there is no task 1.0"),
        ({"tsk": 1}, InvalidOptionError, "'task', not \\['tsk'\\]"),
        ({"task": load_suite("dlrm-40x8")[0]}, InvalidTaskError, "40 tables and 8 devices.*at most 20 tables and 4"),
    ],
)
def test_an_option_that_means_nothing_is_a_named_error(
    env: EmbeddingPlacementEnv, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    env.reset(seed=0, options={"task": 2})
    with pytest.raises(error, match=message):
        env.reset(options=options)
    assert env.task.name == "dlrm-20x4/test/2"
    assert not env.step(0)[2]  # the episode under way is whole


def test_options_are_left_as_they_were(env: EmbeddingPlacementEnv) -> None:
    options = {"task": 4}
    env.reset(options=options)
    assert options == {"task": 4}


def test_without_an_option_all_tasks_are_drawn(env: EmbeddingPlacementEnv) -> None:
    env.reset(seed=0)
    names = [env.reset()[1]["task"] for _ in range(400)]
    assert set(names) == {task.name for task in load_suite("dlrm-20x4")}


def test_a_sampler_serves_fresh_tasks_forever(random_tables: Any) -> None:
    sampler = TaskSampler(random_tables(np.random.default_rng(0), 60), (3, 9), (2, 5), embedding_dims=(4, 64))
    env = EmbeddingPlacementEnv(sampler)
    env.reset(seed=0)
    sizes = {(env.reset()[1]["task"], env.task.num_tables, env.task.num_devices) for _ in range(60)}
    assert len({name for name, *_ in sizes}) == 60
    assert {tables for _, tables, _ in sizes} == set(range(3, 10))
    assert {devices for *_, devices in sizes} == {2, 3, 4, 5}
    assert env.action_space.n == 5
    with pytest.raises(InvalidOptionError, match="no numbered tasks"):
        env.reset(options={"task": 0})


def test_a_task_source_of_ones_own_needs_only_the_shape(random_task: Any) -> None:
    class Same:
        max_tables, max_devices = 6, 3

        def sample(self, rng: np.random.Generator) -> Task:
            return random_task(np.random.default_rng(0), 6, 3)

    env = EmbeddingPlacementEnv(Same())
    assert env.reset(seed=0)[1]["task"] == "random"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"suite": "dlrm-20x5"}, UnknownNameError, "Did you mean 'dlrm-20x4'"),
        ({"split": "val"}, InvalidOptionError, "splits .*'test', 'train'.* not 'val'"),
        ({"cost_model": "analytic"}, UnknownNameError, "Did you mean 'analytical'"),
        ({"reward": "sparse"}, UnknownNameError, "no reward named 'sparse'"),
        ({"observation": "compat"}, UnknownNameError, "Did you mean 'compact'"),
        ({"max_tables": 19}, InvalidOptionError, "max_tables must be an integer of at least 20.*19"),
        ({"max_devices": 3}, InvalidOptionError, "max_devices must be an integer of at least 4.*3"),
        ({"max_devices": 8.0}, InvalidOptionError, "8.0"),
        ({"render_mode": "human"}, InvalidOptionError, "ansi.*not 'human'"),
    ],
)
def test_an_argument_that_means_nothing_is_a_named_error(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EmbeddingPlacementEnv(**{"suite": "dlrm-20x4", **arguments})


def test_a_suite_of_ones_own_needs_no_name(random_task: Any) -> None:
    rng = np.random.default_rng(0)
    tasks = TaskSuite("mine", [random_task(rng, 3 + i, 2, name=f"task {i}") for i in range(4)])
    env = EmbeddingPlacementEnv(tasks)
    assert (env.max_tables, env.max_devices) == (6, 2)
    assert {env.reset(seed=seed)[1]["task"] for seed in range(40)} == {f"task {i}" for i in range(4)}
