"""Infos: the same keys, types and shapes in every reset and step, numbers only, in memory of their own.

That the vector environment's equal those of a SyncVectorEnv: test_vector_parity.py, which also compares their kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.envs.core.config import ILLEGAL
from shard_gym.envs.registration import ENVIRONMENTS

EACH = pytest.mark.parametrize("env_id", ENVIRONMENTS)
Make = Callable[..., gymnasium.Env[Any, Any]]


def kinds_of(info: dict[str, Any]) -> dict[str, Any]:
    """The type of every number; dtype and shape of every array."""
    return {key: (v.dtype, v.shape) if isinstance(v, np.ndarray) else type(v) for key, v in info.items()}


def infos_of(env: gymnasium.Env[Any, Any], rollout: Any, steps: int = 70) -> list[dict[str, Any]]:
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
        infos = infos_of(env, rollout)
        types = kinds_of(infos[0])
        assert all(kinds_of(info) == types for info in infos)
        assert set(types.values()) - {int, float} == arrays_of(env.spec.id, int(env.action_space.n))
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


def _legal(mask: Any, number: int) -> int:
    """A legal device, another one for most numbers."""
    return int(np.flatnonzero(mask)[number % np.count_nonzero(mask)])


def test_the_measured_environment_adds_numbers_of_its_measurement() -> None:
    env = gymnasium.make("EmbeddingPlacementReal-v0", suite="dlrm-20x4", max_devices=5)
    added = [f"measurement_{name}" for name in MeasuredCostModel.detail_names]
    infos = [env.reset(seed=0)[1]]
    for number in range(20):
        infos.append(env.step(_legal(infos[-1]["action_mask"], number))[4])
    infos += [env.reset()[1], env.step(4)[4]]
    assert set(infos[0]) - set(gymnasium.make("EmbeddingPlacement-v0").reset(seed=0)[1]) == set(added)
    seen = [[info[key] for key in added] for info in infos]
    assert seen == [[0.0] * 4] * 20 + [[0.01, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2  # the spread that conftest.py made up
