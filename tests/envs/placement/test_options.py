"""Arguments, seeds and reset options of both environments, and the errors for those that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import error as gymnasium_error
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from shard_gym.common.errors import InvalidCostError, InvalidOptionError, InvalidTaskError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import CompactObservation
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.tasks import TaskSampler, TaskSuite, load_suite

SUITE = "dlrm-20x4"


@pytest.fixture(scope="module")
def env() -> EmbeddingPlacementEnv:
    return EmbeddingPlacementEnv(SUITE, "test")


def make(num_envs: int = 3, **more: Any) -> EmbeddingPlacementVectorEnv:
    return EmbeddingPlacementVectorEnv(num_envs, **{"suite": SUITE, "observation": "compact", **more})


def numbers(infos: dict[str, Any]) -> list[int | None]:
    """The numbers of the tasks in the suite; None where nothing was reset."""
    reset = zip(infos["task_index"].tolist(), infos["_task_index"].tolist(), strict=True)
    return [index if there else None for index, there in reset]


# The task of one environment


@pytest.mark.parametrize("key", [3, np.int64(3), "dlrm-20x4/test/3", "itself"])
def test_a_task_is_chosen_by_index_by_name_or_as_it_is(env: EmbeddingPlacementEnv, key: Any) -> None:
    key = env.tasks[3] if key == "itself" else key
    options = {"task": key}
    _, info = env.reset(options=options)
    assert env.task.name == "dlrm-20x4/test/3"
    assert info["task_index"] == 3
    assert env.task is env.tasks[3]
    assert options == {"task": key}


# The tasks of many


def test_one_task_for_all_or_one_for_each() -> None:
    env = make()
    assert numbers(env.reset(seed=0, options={"task": 5})[1]) == [5, 5, 5]
    for tasks in ([4, 0, 9], (4, 0, 9), np.array([4, 0, 9]), [f"{SUITE}/train/{number}" for number in (4, 0, 9)]):
        obs, infos = env.reset(options={"tasks": tasks})
        assert numbers(infos) == [4, 0, 9]
        assert [task.name for task in env.episodes.tasks] == [f"{SUITE}/train/{number}" for number in (4, 0, 9)]
        for row, number in enumerate((4, 0, 9)):
            alone, _ = EmbeddingPlacementEnv(SUITE, observation="compact").reset(seed=0, options={"task": number})
            assert all(np.array_equal(obs[key][row], alone[key]) for key in alone)


def test_where_no_task_is_named_one_is_drawn_as_ever() -> None:
    env = make()
    drawn = numbers(env.reset(seed=8)[1])
    assert len(set(drawn)) > 1
    assert numbers(env.reset(seed=8, options={"tasks": [None, 1, None]})[1]) == [drawn[0], 1, drawn[2]]
    for nothing in ({}, {"task": None}, {"tasks": None}, {"reset_mask": None}, None):
        assert numbers(env.reset(seed=8, options=nothing)[1]) == drawn


def test_only_the_environments_of_the_mask_take_the_tasks_given() -> None:
    env = make()
    env.reset(seed=0, options={"task": 5})
    env.step(np.zeros(3, np.int64))
    mask = np.array([False, True, False])
    obs, infos = env.reset(options={"reset_mask": mask, "tasks": [1, 2, 3]})
    assert numbers(infos) == [None, 2, None]
    assert infos["_cost_ms"].tolist() == infos["_action_mask"].tolist() == mask.tolist()
    assert [task.name for task in env.episodes.tasks] == [f"{SUITE}/train/{number}" for number in (5, 2, 5)]
    assert obs["progress"].ravel().tolist() == pytest.approx([1 / 20, 0, 1 / 20])


REJECTED = [
    ({"task": 50}, InvalidOptionError, "tasks 0 to 49; there is no task 50"),
    ({"task": "dlrm-20x4/test/51"}, UnknownNameError, "Did you mean 'dlrm-20x4/t"),
    ({"task": load_suite("dlrm-40x8")[0]}, InvalidTaskError, "40 tables and 8 devices.*at most 20 tables and 4"),
    ({"tsk": 1}, InvalidOptionError, r"'task'.*, not \['tsk'\]"),
    ([1], InvalidOptionError, "options must be None or a dict with the keys 'task'.*not "),
]
REJECTED_OF_MANY = [
    ({"tasks": [0, 1, 50]}, InvalidOptionError, r"there is no task 50"),
    ({"tasks": [0, 1, load_suite("dlrm-40x4")[0]]}, InvalidTaskError, r"40 tables and 4 devices.*Raise max_tables"),
    *(({"tasks": tasks}, InvalidOptionError, "must name 3 tasks, one for each") for tasks in ([0, 1], "abc")),
    ({"tasks": [0, 1, 2], "task": 1}, InvalidOptionError, r"comes without 'task'"),
    *(
        ({"reset_mask": mask}, InvalidOptionError, r"bool array of shape \(3,\) with a True, not ")
        for mask in ([True, False, True], np.ones((3, 1), np.bool_), np.ones(3, np.int64), np.zeros(3, np.bool_))
    ),
]


@pytest.mark.parametrize(("options", "kind", "message"), REJECTED + REJECTED_OF_MANY)
def test_wrong_options_are_rejected_and_change_no_episode(options: Any, kind: type[Exception], message: str) -> None:
    many = make()
    obs, _ = many.reset(seed=0)
    tasks = list(many.episodes.tasks)
    with pytest.raises(kind, match=message):
        many.reset(options=options)
    assert many.episodes.tasks == tasks
    assert all(np.array_equal(array, obs[key]) for key, array in many.episodes.observations().items())


@pytest.mark.parametrize(("options", "kind", "message"), REJECTED)
def test_wrong_options_of_one_are_rejected(
    env: EmbeddingPlacementEnv, options: Any, kind: type[Exception], message: str
) -> None:
    env.reset(seed=0, options={"task": 2})
    with pytest.raises(kind, match=message):
        env.reset(seed=1, options=options)
    assert env.task.name == "dlrm-20x4/test/2"
    assert not env.step(0)[2]


def test_episodes_have_no_task_before_the_first_reset() -> None:
    with pytest.raises(InvalidOptionError, match="Environment 1 has no task yet; reset it first"):
        make().episodes.task(1)


def test_the_first_reset_is_of_all_environments() -> None:
    mask = np.array([True, False, True])
    for mode in AutoresetMode:
        env = make(autoreset_mode=mode)
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            env.reset(seed=0, options={"reset_mask": mask})
        env.reset(seed=0, options={"reset_mask": np.ones(3, np.bool_)})
        env.reset(options={"reset_mask": mask})


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        ([1, 2], InvalidOptionError, r"seed must be None, an integer, or a list .* 3 environments; got"),
        (1.5, InvalidOptionError, r"seed must be None, an integer, or a list .* 3 environments; got"),
        ({1: 1, 2: 2, 3: 3}, InvalidOptionError, r"seed must be None, an integer, or a list .* 3 environments; got"),
        (-1, gymnasium_error.Error, "Seed must be"),
        ([1, "2", 3], gymnasium_error.Error, "Seed must be"),
        (True, InvalidOptionError, "A seed is an integer of at least 0, or None, not True"),
        ([1, False, 3], InvalidOptionError, "A seed is an integer of at least 0, or None, not False"),
        (np.array("x"), InvalidOptionError, r"seed must be None, an integer, or a list .* 3 environments; got"),
    ],
)
def test_wrong_seeds_are_rejected_and_those_of_numpy_are_not(
    seed: Any, error: type[Exception], message: str, same: Any
) -> None:
    env = make()
    with pytest.raises(error, match=message):
        env.reset(seed=seed)
    assert same(env.reset(seed=np.array([1, 2, 3])), make().reset(seed=[1, 2, 3]))  # type: ignore[arg-type]


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"suite": "dlrm-20x5"}, "Did you mean 'dlrm-20x4'"),
        ({"suite": "mlperf-x8"}, r"has no training tasks, only the splits \['test'\]"),
        ({"suite": None}, r"suite must be the name of a suite.*not None.*TaskSuite\('mine', \[task"),
        ({"suite": TaskSampler}, "not a class; pass an instance"),
        ({"cost_model": "analytic"}, "Did you mean 'analytical'"),
        ({"cost_model": AnalyticalCostModel}, "cost.model"),
        ({"reward": "sparse"}, "no reward named 'sparse'"),
        ({"reward": None}, "reward must be the name of one, .*'terminal'.*not None"),
        ({"observation": "compat"}, "Did you mean 'compact'"),
        ({"observation": CompactObservation}, r"pass an instance: CompactObservation\(\)"),
        ({"max_tables": 19}, "max_tables must be an integer of at least 20.*19"),
        ({"max_devices": 8.0}, "max_devices must be an integer of at least 4.*8.0"),
        ({"render_mode": "human"}, "not 'human'. There is no window: print what render\\(\\) returns with 'ansi'"),
        ({"illegal": "mask"}, "illegal must be 'terminate' or 'redirect', not 'mask'"),
        ({"illegal": np.array(["redirect"])}, "illegal must be 'terminate' or 'redirect', not array"),
        ({"render_mode": np.array([1, 2])}, "render_mode must be None or one of .*, not array"),
        ({"info_text": 1}, "info_text must be True or False, not 1"),
        ({"max_tables": 10**30}, "max_tables must be at most 1,048,576, not 1000000"),
        ({"max_devices": 10_000}, "max_devices must be at most 4,096, not 10000"),
    ],
)
def test_wrong_arguments_are_rejected_with_one_message(arguments: dict[str, Any], message: str) -> None:
    messages = []
    for made in (EmbeddingPlacementEnv, lambda **more: EmbeddingPlacementVectorEnv(2, **more)):
        with pytest.raises((InvalidOptionError, UnknownNameError), match=message) as raised:
            made(**{"suite": SUITE, **arguments})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs must be an integer from 1 to 1048576, not 0"),
        ({"num_envs": True}, "num_envs must be an integer from 1 to 1048576, not True"),
        ({"num_envs": 10**30}, "num_envs must be an integer from 1 to 1048576, not 1000000"),
        ({"copy": "no"}, "copy must be True or False, not 'no'"),
        ({"autoreset_mode": "never"}, r"one of \['NEXT_STEP', 'SAME_STEP', 'DISABLED'\]"),
        ({"max_episode_steps": 10}, "max_episode_steps must be None, not 10: an episode ends by itself"),
    ],
)
def test_wrong_arguments_of_many_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make(**arguments)


# Costs that are no numbers


class Ill(AnalyticalCostModel):
    """Says `cost` more than it is, and `penalty` as penalty."""

    name = "ill"
    cost, penalty = 0.0, 9.0

    def iteration_cost(self, *arguments: Any) -> Any:
        return super().iteration_cost(*arguments) + self.cost

    def penalty_ms(self, *arguments: Any) -> float:
        return self.penalty


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["cost", "penalty"])
def test_a_cost_that_is_no_number_is_a_named_error_at_the_end(random_task: Any, value: float, what: str) -> None:
    tasks = TaskSuite("mine", [random_task(np.random.default_rng(0), 2, 2, name="t")])
    model = Ill()
    setattr(model, what, value)
    last = 1 if what == "cost" else 2  # there is no device 2
    message = rf"'{model.fingerprint}' says {'a penalty of ' * (what == 'penalty')}{value} ms for .*task 't'"
    arguments = {"suite": tasks, "cost_model": model, "max_devices": 3}
    env, many = EmbeddingPlacementEnv(**arguments), EmbeddingPlacementVectorEnv(2, **arguments)
    for each, actions in ((env, [0, last]), (many, [np.array([0, 0]), np.array([1, last])])):
        each.reset(seed=0)
        assert not np.any(each.step(actions[0])[2])
        with pytest.raises(InvalidCostError, match=message):
            each.step(actions[1])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_many_go_on_after_a_cost_that_is_no_number(random_task: Any, mode: str) -> None:
    tasks, model = TaskSuite("one", [random_task(np.random.default_rng(0), 2, 2)]), Ill()
    envs = EmbeddingPlacementVectorEnv(3, tasks, cost_model=model, autoreset_mode=mode)
    envs.reset(seed=0)
    envs.step(np.zeros(3, np.int64))
    model.cost = np.nan
    with pytest.raises(InvalidCostError, match="ill"):
        envs.step(np.zeros(3, np.int64))
    model.cost = 0.0
    if mode == "SAME_STEP":  # the new episodes never began
        with pytest.raises(ResetNeeded):
            envs.step(np.zeros(3, np.int64))
        envs.reset()
    else:
        envs.step(np.zeros(3, np.int64))
    for _ in range(2):
        _, rewards, over, _, _ = envs.step(np.zeros(3, np.int64))
    assert over.all()
    assert np.isfinite(rewards).all()
