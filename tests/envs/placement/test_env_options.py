"""`EmbeddingPlacementEnv`: which task an episode gets, and named errors for options and arguments that mean nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.core.reward import TerminalReward
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import CompactObservation
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.errors import InvalidCostError, InvalidOptionError, InvalidTaskError, UnknownNameError
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
        (
            {"suite": None},
            InvalidOptionError,
            r"suite must be the name of a suite.*not None.*TaskSuite\('mine', \[task",
        ),
        ({"suite": 5}, InvalidOptionError, "suite must be .*not 5"),
        (
            {"suite": load_suite("dlrm-20x4")[0]},
            InvalidOptionError,
            r"not Task\(.*Wrap .*TaskSuite\('mine', \[task\]\)",
        ),
        ({"suite": list(load_suite("dlrm-20x4"))}, InvalidOptionError, "Wrap tasks of your own"),
        ({"suite": TaskSampler}, InvalidOptionError, "not a class; pass an instance"),
        ({"suite": "mlperf-x8"}, InvalidOptionError, r"splits \['test'\], not 'train'. Pass split='test'"),
        ({"split": None}, InvalidOptionError, "split must be the name of a split.*not None"),
        ({"reward": None}, InvalidOptionError, "reward must be the name of one, .*'terminal'.*not None"),
        ({"reward": 3}, InvalidOptionError, "reward must be .*not 3"),
        ({"reward": TerminalReward}, InvalidOptionError, r"not a class; pass an instance: TerminalReward\(\)"),
        ({"observation": None}, InvalidOptionError, "observation must be the name of one, .*'full'.*not None"),
        ({"observation": print}, InvalidOptionError, "an object of the shape of Observation, not <built-in"),
        ({"observation": CompactObservation}, InvalidOptionError, r"pass an instance: CompactObservation\(\)"),
        ({"max_tables": "50"}, InvalidOptionError, "max_tables must be an integer.*'50'"),
    ],
)
def test_an_argument_that_means_nothing_is_a_named_error(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EmbeddingPlacementEnv(**{"suite": "dlrm-20x4", **arguments})
    with pytest.raises(error, match=message):
        EmbeddingPlacementVectorEnv(2, **{"suite": "dlrm-20x4", **arguments})


@pytest.mark.parametrize("cost_model", [AnalyticalCostModel, None, 3])
def test_a_cost_model_that_is_none_is_refused(cost_model: Any) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError), match=r"cost.model"):
        EmbeddingPlacementEnv("dlrm-20x4", cost_model=cost_model)


@pytest.mark.parametrize("options", [[1], "task", 3, [("task", 1)]])
def test_options_that_are_no_dict_are_refused(env: EmbeddingPlacementEnv, options: Any) -> None:
    env.reset(seed=0, options={"task": 2})
    before = env.np_random.bit_generator.state
    vector = EmbeddingPlacementVectorEnv(2, "dlrm-20x4")
    for each, known in ((env, "'task'"), (vector, "'task', 'tasks', 'reset_mask'")):
        with pytest.raises(InvalidOptionError, match=rf"options must be None or a dict with the keys {known}.*not "):
            each.reset(seed=1, options=options)
    assert env.np_random.bit_generator.state == before
    assert not env.step(0)[2]  # the episode under way is whole


# Costs that are no numbers


class Broken(AnalyticalCostModel):
    """Says `value` once all tables are placed, or as penalty."""

    name = "broken"

    def __init__(self, value: float, what: str) -> None:
        super().__init__()
        self.value, self.what = value, what

    def iteration_cost(self, *arguments: Any) -> Any:
        return super().iteration_cost(*arguments) + (self.value if self.what == "cost" else 0.0)

    def penalty_ms(self, *arguments: Any) -> float:
        return self.value if self.what == "penalty" else super().penalty_ms(*arguments)


@pytest.mark.parametrize("reward", ["terminal", "dense", "normalized"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_cost_that_is_no_number_is_a_named_error_at_the_end(random_task: Any, value: float, reward: str) -> None:
    tasks = TaskSuite("mine", [random_task(np.random.default_rng(0), 3, 2, name="t")])
    model = Broken(value, "cost")
    env = EmbeddingPlacementEnv(tasks, cost_model=model, reward=reward)
    vector = EmbeddingPlacementVectorEnv(2, tasks, cost_model=model, reward=reward)
    with np.errstate(invalid="ignore"):
        env.reset(seed=0)
        vector.reset(seed=0)
        for _ in range(2):
            assert not env.step(0)[2]
            vector.step(np.zeros(2, int))
        for step in (lambda: env.step(0), lambda: vector.step(np.zeros(2, int))):
            with pytest.raises(InvalidCostError, match=rf"'{model.fingerprint}' says {value} ms for task 't'"):
                step()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_penalty_that_is_no_number_is_a_named_error_for_whoever_fails(random_task: Any, value: float) -> None:
    tasks = TaskSuite("mine", [random_task(np.random.default_rng(0), 1, 2, name="t")])
    model = Broken(value, "penalty")
    env = EmbeddingPlacementEnv(tasks, cost_model=model, max_devices=3)
    vector = EmbeddingPlacementVectorEnv(2, tasks, cost_model=model, max_devices=3)
    for each, good, bad in ((env, 0, 2), (vector, np.array([0, 1]), np.array([0, 2]))):
        each.reset(seed=0)
        assert np.all(each.step(good)[2])  # nobody was charged it
        each.reset(seed=0)
        with pytest.raises(InvalidCostError, match=f"says a penalty of {value} ms for failing at task 't'"):
            each.step(bad)


def test_an_agent_trained_on_one_split_holds_the_other() -> None:
    spaces = [EmbeddingPlacementEnv("generalize", split).observation_space for split in ("train", "test")]
    assert spaces[0] == spaces[1]


def test_a_suite_of_ones_own_needs_no_name(random_task: Any) -> None:
    rng = np.random.default_rng(0)
    tasks = TaskSuite("mine", [random_task(rng, 3 + i, 2, name=f"task {i}") for i in range(4)])
    env = EmbeddingPlacementEnv(tasks)
    assert (env.max_tables, env.max_devices) == (6, 2)
    assert {env.reset(seed=seed)[1]["task"] for seed in range(40)} == {f"task {i}" for i in range(4)}
