"""What reset and step return: repeatable, of plain Python types, in memory of its own, with one mask in every place."""

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

from shard_gym.errors import InvalidActionError

Make = Callable[..., gymnasium.Env[Any, Any]]


def test_equal_seeds_give_equal_episodes_whatever_came_before(make: Make, rollout: Any, same: Any) -> None:
    env, fresh = make(), make()
    env.reset(seed=1)
    rollout(env, np.random.default_rng(1), 30)
    one, other = ([each.reset(seed=5), *rollout(each, np.random.default_rng(2), 150)] for each in (env, fresh))
    assert len(one) > 151, "no episode ended, so the draw of a second task was not tested"
    assert same(one, other)
    assert len({env.reset(seed=seed)[1]["task_index"] for seed in range(20)}) > 5


def test_a_pickled_episode_goes_on_as_the_original(make: Make, rollout: Any, same: Any) -> None:
    env = make()
    env.reset(seed=11)
    rollout(env, np.random.default_rng(0), 7)
    twin = pickle.loads(pickle.dumps(env))
    assert same(rollout(env, np.random.default_rng(1), 80), rollout(twin, np.random.default_rng(1), 80))
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
    env.reset(seed=0)
    for action in (-1, env.action_space.n, 1.0, "0", None, np.array([0])):
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


def test_the_checkers_of_gymnasium_and_of_stable_baselines3_are_content(make: Make, rollout: Any) -> None:
    """Not even a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check_env(make().unwrapped)
        sb3_check_env(make().unwrapped, warn=True)
        env = make(disable_env_checker=False)
        env.reset(seed=3)
        results = rollout(env, np.random.default_rng(3), 60)
    assert all(env.observation_space.contains(obs) for obs, *_ in results)
