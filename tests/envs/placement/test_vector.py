"""`EmbeddingPlacementVectorEnv`: memory, ends, wrong actions, rendering. Parity with SyncVectorEnv: tests/contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from shard_gym.common.errors import InvalidActionError
from shard_gym.envs.core.episode_state import Status
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.tasks import TaskSampler

MODES = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
CONSTANT = {"device_mask", "table_features", "table_mask"}


@pytest.fixture(scope="module")
def make(random_tables: Any) -> Callable[..., EmbeddingPlacementVectorEnv]:
    """Makes an environment with short tasks of all sizes, one device more than any has, and little memory."""
    source = TaskSampler(random_tables(np.random.default_rng(1), 40), (2, 6), (1, 2), memory_slack=1.05)
    arguments = {"suite": source, "max_devices": 3}
    return lambda num_envs=4, **more: EmbeddingPlacementVectorEnv(num_envs, **{**arguments, **more})


def results(env: EmbeddingPlacementVectorEnv, steps: int, seed: int = 0) -> Any:
    """What a reset and `steps` steps return, one after the other and as it is; DISABLED ones reset what is over."""
    rng = np.random.default_rng(seed)
    yield env.reset(seed=seed)
    for _ in range(steps):
        masks = env.action_masks()
        actions = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        actions[rng.random(env.num_envs) < 0.1] = 2
        result = env.step(actions)
        over = result[2].copy()
        yield result
        if env.metadata["autoreset_mode"] == AutoresetMode.DISABLED and over.any():
            yield env.reset(options={"reset_mask": over})


@MODES
def test_without_copies_only_the_constant_keys_are_shared_and_they_are_right(
    make: Any, same: Any, mode: AutoresetMode
) -> None:
    seen: dict[str, list[np.ndarray]] = {}
    fresh, sharing = (make(autoreset_mode=mode, copy=each) for each in (True, False))
    for expected, result in zip(results(fresh, 25), results(sharing, 25), strict=True):
        assert same(expected, result)  # after every end too
        for key, array in result[0].items():
            seen.setdefault(key, []).append(array)
    for key, arrays in seen.items():
        shared = [np.shares_memory(one, other) for one, other in itertools.pairwise(arrays)]
        assert all(shared) if key in CONSTANT else not any(shared), key
    assert seen.keys() > CONSTANT


def test_a_step_before_the_first_reset_asks_for_it(make: Any) -> None:
    env = make(2, render_mode="ansi")
    for ask in (lambda: env.step(np.zeros(2, np.int64)), env.action_masks, env.render):
        with pytest.raises(ResetNeeded, match=r"reset"):
            ask()
    env.reset(seed=0)
    env.step(np.zeros(2, np.int64))
    assert len(env.render()) == 2


def test_without_autoreset_what_is_over_is_left_alone(make: Any) -> None:
    """It stays ended whatever is done, with rewards of 0; when all are over, a reset is due."""
    env = make(3, autoreset_mode="DISABLED")
    env.reset(seed=0)
    obs, _, ended, _, infos = env.step(np.array([0, 2, 0]))
    assert ended.tolist() == [False, True, False]
    later, rewards, still, _, infos_later = env.step(np.array([0, 1, 0]))
    assert rewards[1] == 0.0
    assert still[1]
    assert all(np.array_equal(later[key][1], value[1]) for key, value in obs.items())
    assert all(np.array_equal(infos_later[key][1], value[1]) for key, value in infos.items())
    before = env.episodes.state.copy()
    env.step(np.array([2, 2, 2]))
    with pytest.raises(ResetNeeded, match="All environments are over"):
        env.step(np.zeros(3, np.int64))
    assert np.array_equal(env.episodes.state.cost_ms[1], before.cost_ms[1])
    env.reset(options={"reset_mask": ~np.eye(3, dtype=np.bool_)[1]})
    env.reset(options={"reset_mask": ended})
    assert (env.episodes.state.status == Status.RUNNING).all()
    env.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, np.int64), r"an integer array of shape \(4,\); got int64 of shape \(3,\)"),
        (np.zeros(4), r"got float64 of shape \(4,\)"),
        (np.zeros(4, np.bool_), r"got bool"),
        (np.zeros(4, "m8[s]"), r"got timedelta64\[s\]"),
        (np.zeros(4, "M8[s]"), r"got datetime64\[s\]"),
        (np.zeros(4, object), r"got object of shape \(4,\)"),
        *(
            (actions, "none of them masked and no Booleans or times; got")
            for actions in (
                np.ma.array([0, 1, 0, 0], mask=[0, 1, 0, 0]),
                [0, np.True_, 0, 0],
                [0, np.array(True), 0, 0],
                [0, np.timedelta64(1), 0, 0],
            )
        ),
        ([[0], [0, 1], [0], [0]], r"Actions are 4 device numbers, one for each environment, not \[\[0\], \[0, 1\]"),
        (None, r"got object of shape \(\)"),
        (np.array([0, 0, 3, 0]), r"from 0 to 2, not 3 as for environment 2"),
        (np.array([0, -1, 0, 0]), r"from 0 to 2, not -1 as for environment 1"),
        (np.array([2**63, 0, 0, 0], np.uint64), r"not 9223372036854775808 as for environment 0"),
    ],
)
def test_actions_that_are_none_say_what_they_should_be(make: Any, actions: Any, message: str) -> None:
    env = make()
    env.reset(seed=0)
    before = env.episodes.state.copy()
    with pytest.raises(InvalidActionError, match=message):
        env.step(actions)
    assert all(np.array_equal(value, getattr(env.episodes.state, name)) for name, value in vars(before).items())
