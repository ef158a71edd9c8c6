"""The checkers of Gymnasium and of Stable-Baselines3 find nothing to say, not even a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

Make = Callable[..., gymnasium.Env[Any, Any]]


def test_gymnasiums_checker_is_content(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check_env(make().unwrapped)


def test_stable_baselines3s_checker_is_content(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sb3_check_env(make().unwrapped, warn=True)


def test_the_passive_checker_of_make_is_content_with_whole_episodes(make: Make, rollout: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(disable_env_checker=False)
        env.reset(seed=3)
        results = rollout(env, np.random.default_rng(3), 60)
    assert all(env.observation_space.contains(obs) for obs, *_ in results)
