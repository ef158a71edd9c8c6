"""Arguments, seeds and reset options of both environments, and the errors for those that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import error as gymnasium_error
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import CompactObservation
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.errors import InvalidCostError, InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.suites import load_suite
from shard_gym.tasks import Task, TaskSampler, TaskSuite

SUITE = "dlrm-20x4"


@pytest.fixture(scope="module")
def env() -> EmbeddingPlacementEnv:
    return EmbeddingPlacementEnv(SUITE, "test")


def make(num_envs: int = 3, **more: Any) -> EmbeddingPlacementVectorEnv:
    return EmbeddingPlacementVectorEnv(num_envs, **{"suite": SUITE, "observation": "compact", **more})


def numbers(names: Any) -> list[int | None]:
    """The numbers of the tasks in the suite."""
    return [None if name is None else int(name.rpartition("/")[2]) for name in names]


# The task of one environment


@pytest.mark.parametrize("key", [3, np.int64(3), "dlrm-20x4/test/3", load_suite(SUITE)[3]])
def test_a_task_is_chosen_by_index_by_name_or_as_it_is(env: EmbeddingPlacementEnv, key: Any) -> None:
    options = {"task": key}
    _, info = env.reset(options=options)
    assert info["task"] == env.task.name == "dlrm-20x4/test/3"
    assert env.task is (key if isinstance(key, Task) else env.tasks[3])
    assert options == {"task": key}


def test_a_task_from_elsewhere_is_taken_as_it_is(env: EmbeddingPlacementEnv, random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 5, 2, name="dlrm-20x4/test/3")
    env.reset(options={"task": 3})
    _, info = env.reset(options={"task": task})
    assert env.task is task
    assert info["action_mask"].tolist() == [1, 1, 0, 0]
    env.reset(options={"task": 3})
    assert env.task.num_tables == 20


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


def test_an_agent_trained_on_one_split_holds_the_other() -> None:
    spaces = [EmbeddingPlacementEnv("generalize", split).observation_space for split in ("train", "test")]
    assert spaces[0] == spaces[1]


# The tasks of many


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


# Options that are wrong, and change no episode


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"task": 50}, InvalidOptionError, "tasks 0 to 49; there is no task 50"),
        ({"task": -1}, InvalidOptionError, "tasks 0 to 49; there is no task -1"),
        ({"task": True}, InvalidOptionError, "tasks 0 to 49; there is no task True"),
        ({"task": 1.0}, InvalidOptionError, "tasks 0 to 49; there is no task 1.0"),
        ({"task": "dlrm-20x4/test/51"}, UnknownNameError, "Did you mean 'dlrm-20x4/t"),
        ({"task": load_suite("dlrm-40x8")[0]}, InvalidTaskError, "40 tables and 8 devices.*at most 20 tables and 4"),
        ({"tsk": 1}, InvalidOptionError, r"'task'.*, not \['tsk'\]"),
        *((options, InvalidOptionError, "options must be None or a dict with the keys 'task'.*not ")
          for options in ([1], "task", 3, [("task", 1)])),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(
    env: EmbeddingPlacementEnv, options: Any, kind: type[Exception], message: str
) -> None:
    env.reset(seed=0, options={"task": 2})
    before = env.np_random.bit_generator.state
    with pytest.raises(kind, match=message):
        env.reset(seed=1, options=options)
    if kind is InvalidOptionError and not isinstance(options, dict):
        assert env.np_random.bit_generator.state == before
    assert env.task.name == "dlrm-20x4/test/2"
    assert not env.step(0)[2]
    refused_by_many(options, kind, message)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"tasks": [0, 1, 50]}, InvalidOptionError, r"there is no task 50"),
        ({"tasks": [0, "x", 1]}, UnknownNameError, r"no task .* named 'x'"),
        ({"tasks": [0, 1, load_suite("dlrm-40x4")[0]]}, InvalidTaskError, r"40 tables and 4 devices.*Raise max_tables"),
        *(({"tasks": tasks}, InvalidOptionError, "must name 3 tasks, one for each")
          for tasks in ([0, 1], 4, "abc", {0: 1, 1: 2, 2: 3})),
        ({"tasks": [0, 1, 2], "task": 1}, InvalidOptionError, r"comes without 'task'"),
        *(({"reset_mask": mask}, InvalidOptionError, r"bool array of shape \(3,\) with a True, not ")
          for mask in ([True, False, True], np.ones(2, np.bool_), np.ones((3, 1), np.bool_), np.ones(3, np.int64),
                       np.zeros(3, np.bool_), True)),
        ({"tsak": 1}, InvalidOptionError, r"'task', 'tasks' and 'reset_mask', not \['tsak'\]"),
    ],
)  # fmt: skip
def test_wrong_options_of_many_are_refused(options: Any, kind: type[Exception], message: str) -> None:
    refused_by_many(options, kind, message)


def refused_by_many(options: Any, kind: type[Exception], message: str) -> None:
    env, twin = make(), make()
    for each in (env, twin):
        each.reset(seed=0)
        each.step(np.zeros(3, np.int64))
    tasks = list(env.episodes.tasks)
    with pytest.raises(kind, match=message):
        env.reset(options=options)
    assert env.episodes.tasks == tasks
    for _ in range(19):
        a, b = (each.step(each.action_masks().argmax(axis=1)) for each in (env, twin))
        assert all(np.array_equal(a[0][key], b[0][key]) for key in a[0])
        assert np.array_equal(a[1], b[1])
    assert np.array_equal(a[4]["placement"], b[4]["placement"])


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


@pytest.mark.parametrize("seed", [[1, 2], [], 1.5, "abc", {1: 1, 2: 2, 3: 3}])
def test_wrong_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"seed must be None, an integer, or a list .* 3 environments; got"):
        make().reset(seed=seed)


@pytest.mark.parametrize("seed", [-1, [1, 2, -3], [1.0, 2, 3], [1, "2", 3]])
def test_gymnasium_refuses_other_seeds(seed: Any) -> None:
    with pytest.raises(gymnasium_error.Error, match="Seed must be"):
        make().reset(seed=seed)


# Arguments


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
        ({"observation": None}, InvalidOptionError, "observation must be the name of one, .*'full'.*not None"),
        ({"observation": print}, InvalidOptionError, "an object of the shape of Observation, not <built-in"),
        ({"observation": CompactObservation}, InvalidOptionError, r"pass an instance: CompactObservation\(\)"),
        ({"max_tables": "50"}, InvalidOptionError, "max_tables must be an integer.*'50'"),
        *(
            ({"cost_model": each}, (InvalidOptionError, UnknownNameError), "cost.model")
            for each in (AnalyticalCostModel, None, 3)
        ),
    ],
)
def test_wrong_arguments_are_refused_with_one_message(arguments: dict[str, Any], error: Any, message: str) -> None:
    messages = []
    for made in (EmbeddingPlacementEnv, lambda **more: EmbeddingPlacementVectorEnv(2, **more)):
        with pytest.raises(error, match=message) as raised:
            made(**{"suite": SUITE, **arguments})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"num_envs": number}, "num_envs must be an integer of at least 1")
          for number in (0, -1, True, 2.0, "3", None)),
        *(({"autoreset_mode": mode}, r"one of \['NEXT_STEP', 'SAME_STEP', 'DISABLED'\]")
          for mode in ("never", 3, None, "", "NextStep ")),
        ({"max_episode_steps": 10}, "max_episode_steps must be None, not 10: an episode ends by itself"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_many_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make(**arguments)


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
