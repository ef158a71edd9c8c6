"""What reset and step return: repeatable, of plain types, in memory of its own, with one mask and constant infos."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from gymnasium.wrappers import FlattenObservation, TimeLimit
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from shard_gym.common.errors import InvalidActionError, InvalidOptionError
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.envs.core.config import ILLEGAL
from shard_gym.envs.registration import ENVIRONMENTS

Make = Callable[..., gymnasium.Env[Any, Any]]


def test_equal_seeds_give_equal_episodes_whatever_came_before(
    case: tuple[str, dict[str, Any]], make: Make, rollout: Any, same: Any
) -> None:
    env, fresh, steps = make(), make(), 150 if "Replanning" in case[0] else 60
    env.reset(seed=1)
    rollout(env, np.random.default_rng(1), 15)
    one, other = ([each.reset(seed=5), *rollout(each, np.random.default_rng(2), steps)] for each in (env, fresh))
    assert len(one) > steps + 1, "no episode ended, so the draw of a second task was not tested"
    assert same(one, other)
    assert len({env.reset(seed=seed)[1]["task_index"] for seed in range(6)}) > 2


def test_a_pickled_episode_goes_on_as_the_original(make: Make, rollout: Any, same: Any) -> None:
    env = make()
    env.reset(seed=11)
    rollout(env, np.random.default_rng(0), 7)
    twin = pickle.loads(pickle.dumps(env))
    assert same(rollout(env, np.random.default_rng(1), 30), rollout(twin, np.random.default_rng(1), 30))
    assert env.unwrapped.np_random.bit_generator.state == twin.unwrapped.np_random.bit_generator.state


def test_no_two_results_share_memory(make: Make, rollout: Any, arrays_in: Any) -> None:
    env = make()
    results = [env.reset(seed=2), *rollout(env, np.random.default_rng(2), 25), env.reset(), env.reset(seed=2)]
    kept = copy.deepcopy(results)
    rollout(env, np.random.default_rng(3), 40)
    arrays = arrays_in(results)
    assert all(np.array_equal(now, then) for now, then in zip(arrays, arrays_in(kept), strict=True))
    assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(arrays[:120], 2))


def test_results_are_plain_python_with_one_mask_that_is_never_empty(make: Make, rollout: Any) -> None:
    env = make()
    first = env.reset(seed=9)
    results = rollout(env, np.random.default_rng(9), 60)
    for obs, info in [first, *((result[0], result[-1]) for result in results)]:
        assert info["action_mask"].dtype == np.int8
        assert np.array_equal(info["action_mask"], obs["action_mask"])
        assert info["action_mask"].any()
        assert info["action_mask"][env.action_space.sample(info["action_mask"])] == 1
    for _, reward, terminated, truncated, _ in results:
        assert type(reward) in (float, type(None))  # None for a reset
        assert (type(terminated), truncated) == (bool, False)
    method = FlattenObservation(TimeLimit(env, 1000)).get_wrapper_attr("action_masks")()
    assert method.dtype == np.bool_
    assert np.array_equal(method, info["action_mask"])


def test_stepping_out_of_turn_or_out_of_the_space_raises_named_errors(make: Make) -> None:
    env = make(disable_env_checker=True)
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.unwrapped.step(0)
    with pytest.raises(InvalidOptionError, match="A seed is an integer of at least 0, or None, not True"):
        env.reset(seed=True)
    env.reset(seed=0)
    masked = np.ma.array(1, mask=True)
    wrong = (-1, env.action_space.n, 1.0, "0", None, True, np.True_, np.timedelta64(1), [1], np.array([1]), masked)
    for action in wrong:
        with pytest.raises(InvalidActionError, match=r"from [01] to \d"):
            env.step(action)
    terminated = False
    while not terminated:
        terminated = env.step(int(env.unwrapped.action_masks().argmax()))[2]
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    env.step(int(env.unwrapped.action_masks().argmax()))
    for _ in range(2):
        env.close()
    assert env.reset(seed=0)[1]["task_index"] >= 0


def test_the_checkers_of_gymnasium_and_of_stable_baselines3_are_content(
    case: tuple[str, dict[str, Any]], make: Make, rollout: Any
) -> None:
    """Not even a warning. One suite of each environment is drawn, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check_env(make().unwrapped, skip_render_check=case[1]["suite"] not in ("dlrm-20x4", "growth-600"))
        sb3_check_env(make().unwrapped, warn=True)
        env = make(disable_env_checker=False)
        env.reset(seed=3)
        results = rollout(env, np.random.default_rng(3), 30)
    assert all(env.observation_space.contains(obs) for obs, *_ in results)


EACH = pytest.mark.parametrize("env_id", ENVIRONMENTS)


def kinds_of(info: dict[str, Any]) -> dict[str, Any]:
    """The type of every number; dtype and shape of every array."""
    return {key: (v.dtype, v.shape) if isinstance(v, np.ndarray) else type(v) for key, v in info.items()}


def infos_of(env: gymnasium.Env[Any, Any], rollout: Any, steps: int) -> list[dict[str, Any]]:
    """Those of two resets and of steps that end in complete placements and in failures."""
    first, again = (env.reset(seed=seed)[1] for seed in (4, 5))
    return [first, again, *(result[-1] for result in rollout(env, np.random.default_rng(1), steps))]


def arrays_of(env_id: str, actions: int) -> set[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Dtypes and shapes of the arrays of infos."""
    mask = np.dtype(np.int8), (actions,)
    if "Replanning" in env_id:
        return {mask, (np.dtype(np.int64), (1000,))}
    placement = (np.dtype(np.int32), (220, 8)) if "Sharding" in env_id else (np.dtype(np.int64), (220,))
    return {mask, (np.dtype(np.float64), (20, 4)), placement}


def test_every_reset_and_step_returns_the_same_keys_types_and_shapes(
    case: tuple[str, Any], make: Make, kinds: Any, rollout: Any
) -> None:
    for illegal in ILLEGAL:
        env = make(illegal=illegal, **kinds[case[0]].padding)
        infos = infos_of(env, rollout, 70 if "Replanning" in case[0] else 45)
        types = kinds_of(infos[0])
        assert all(kinds_of(info) == types for info in infos)
        assert set(types.values()) - {np.int64, np.float64} == arrays_of(env.spec.id, int(env.action_space.n))
        assert all(np.isfinite(value).all() for info in infos for value in info.values())
        assert (
            max(info["redirected"] for info in infos) > 0
            if illegal == "redirect"
            else {0, 1} <= {info["failure"] for info in infos}
        )


@EACH
def test_texts_come_only_if_they_are_asked_for(env_id: str, kinds: Any) -> None:
    env = gymnasium.make(env_id, **kinds[env_id].small, info_text=True)
    names = [env.unwrapped.tasks[number].name for number in (2, 3)]
    illegal = kinds[env_id].illegal
    _, info = env.reset(seed=0, options={"task": 2})
    assert (info["task"], info["failure_message"]) == (names[0], "")
    info = env.step(illegal)[4]
    assert info["task"] == names[0]
    assert info["failure_message"] == env.unwrapped.failure()["message"] != ""


def test_the_measured_environment_adds_numbers_of_its_measurement() -> None:
    env = gymnasium.make("EmbeddingPlacementReal-v0", suite="dlrm-20x4", max_devices=5)
    added = [f"measurement_{name}" for name in MeasuredCostModel.detail_names]
    infos = [env.reset(seed=0)[1]]
    for _ in range(20):
        infos.append(env.step(int(infos[-1]["action_mask"].argmax()))[4])
    infos += [env.reset()[1], env.step(4)[4]]
    assert set(infos[0]) - set(gymnasium.make("EmbeddingPlacement-v0").reset(seed=0)[1]) == set(added)
    seen = [[info[key] for key in added] for info in infos]
    assert seen == [[0.0] * 4] * 20 + [[0.01, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2  # the spread that conftest.py made up
