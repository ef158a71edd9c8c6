"""The vector environment returns, bit for bit, what a SyncVectorEnv of as many scalar environments returns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from shard_gym.envs.core.episodes import ILLEGAL
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.tasks import TaskSampler

Pair = tuple[VectorEnv[Any, Any, Any], VectorEnv[Any, Any, Any]]
MakePair = Callable[..., Pair]

SOURCES = ("dlrm-20x4", "generalize", "tight")
STEPS = {1: 150, 4: 60, 33: 30}  # several environments take half as many of short tasks

# Sources, modes and sizes each with each; observations, rewards and the rest so that all pairs of two things are there.
# The environments that measure differ in the last step only: of sources, modes and sizes all pairs are enough.
GRID = [
    pytest.param(
        env_id,
        source,
        AutoresetMode[mode],
        num_envs,
        {
            "observation": list(OBSERVATIONS)[(a + b + c) % len(OBSERVATIONS)],
            "reward": list(REWARDS)[(a + 2 * b + c) % len(REWARDS)],
            # An episode of generalize seldom ends unless an illegal action ends it.
            "illegal": ILLEGAL[source != "generalize" and (a // 2 + b + c) % 2],
            "info_text": bool((b + c) % 2),
        },
        id=f"{env_id}-{source}-{mode}-{num_envs}",
    )
    for env_id, (a, source), (b, mode), (c, num_envs) in itertools.product(
        ENVIRONMENTS, enumerate(SOURCES), enumerate(AutoresetMode.__members__), enumerate(STEPS)
    )
    if env_id == "EmbeddingPlacement-v0" or (a + b + 2 * c) % 3 == 0
]


@pytest.fixture(scope="module")
def pair(random_tables: Any) -> MakePair:
    """Makes a SyncVectorEnv and the vector environment of the same arguments."""
    # Hardly more memory than needed: many placements end in a dead end. Tasks are short and of all sizes.
    tight = TaskSampler(random_tables(np.random.default_rng(1), 60), (3, 9), (2, 3), memory_slack=1.02)

    def make(env_id: str, source: str, mode: AutoresetMode, num_envs: int, **more: Any) -> Pair:
        arguments = {"suite": tight if source == "tight" else source, "max_devices": 17, **more}
        reference = SyncVectorEnv(
            [lambda: gymnasium.make(env_id, disable_env_checker=True, **arguments)] * num_envs, autoreset_mode=mode
        )
        return reference, gymnasium.make_vec(env_id, num_envs=num_envs, autoreset_mode=mode, **arguments)

    return make


def draw(masks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N,) actions; one in thirty is any device, most of which do not exist."""
    picks = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
    return np.where(rng.random(len(picks)) < 1 / 30, rng.integers(masks.shape[1], size=len(picks)), picks)


def reset_both(envs: Pair, same: Any, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Reset both; `arguments` is a function, since Gymnasium takes things out of the options."""
    options = arguments.pop("options", dict)
    expected, result = (env.reset(**arguments, options=options()) for env in envs)
    assert same(expected, result)
    return result


def step_both(envs: Pair, actions: np.ndarray, same: Any) -> Any:
    expected, result = (env.step(actions) for env in envs)
    for part, one, other in zip(("obs", "reward", "terminated", "truncated", "infos"), expected, result, strict=True):
        assert same(one, other), part
    return result


def reset_ended(envs: Pair, ended: np.ndarray, same: Any) -> np.ndarray:
    """Resets the environments that are over; returns the masks of all."""
    obs, infos = reset_both(envs, same, options=lambda: {"reset_mask": ended.copy()})
    assert all(np.array_equal(mask, ended) for key, mask in infos.items() if key.startswith("_"))
    assert np.array_equal(infos["action_mask"][ended], obs["action_mask"][ended])
    return obs["action_mask"]


def kinds_of(infos: dict[str, Any]) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Dtype and shape of every array; there is nothing but arrays."""
    return {key: (array.dtype, array.shape) for key, array in infos.items()}


@pytest.mark.parametrize(("env_id", "source", "mode", "num_envs", "more"), GRID)
def test_every_step_is_that_of_a_sync_vector(
    env_id: str, source: str, mode: AutoresetMode, num_envs: int, more: dict[str, Any], pair: MakePair, same: Any
) -> None:
    envs = pair(env_id, source, mode, num_envs, **more)
    rng = np.random.default_rng([num_envs, len(source)])
    obs, infos = reset_both(envs, same, seed=3)
    masks, ends, kinds = obs["action_mask"], np.zeros(num_envs, int), kinds_of(infos)
    failures, redirected, finals = set[int](), 0, 0
    for _ in range(STEPS[num_envs] // (2 if source == "tight" and num_envs > 1 else 1)):
        obs, rewards, ended, _, infos = step_both(envs, draw(masks, rng), same)
        assert (type(rewards), rewards.dtype) == (np.ndarray, np.float64)
        masks, ends = obs["action_mask"], ends + ended
        last = infos.pop("final_info", infos)
        finals += last is not infos
        for key in ("final_obs", "_final_obs", "_final_info"):
            assert (infos.pop(key, None) is None) == (last is infos)
        assert kinds_of(infos) == kinds_of(last) == kinds
        failures |= set(last["failure"].tolist())
        redirected += int(last["redirected"].sum())
        placed = (last["placement"] >= 0).any(axis=1) & last["_placement"]
        assert placed.tolist() == (ended & (last["failure"] == 0)).tolist()
        if mode == AutoresetMode.DISABLED and ended.any():
            masks = reset_ended(envs, ended, same)
    assert ends.sum() >= max(2, num_envs // 2)
    redirects = more["illegal"] == "redirect"
    assert (redirected > 0) == redirects
    assert 1 not in failures if redirects else failures > {0} or failures == {1}
    if source == "tight" and num_envs == 33:
        assert failures == ({0, 2} if redirects else {0, 1, 2})
    assert (finals > 0) == (mode == AutoresetMode.SAME_STEP)
    texts = {"task", "failure_message"} if more["info_text"] else set()
    assert {key for key, (dtype, _) in kinds.items() if dtype.kind == "O"} == texts


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_seeds_go_to_the_environments_as_in_a_sync_vector(
    env_id: str, mode: AutoresetMode, pair: MakePair, same: Any
) -> None:
    envs = pair(env_id, "tight", mode, 4, observation="compact", info_text=True)
    _, first = reset_both(envs, same, seed=[5, 9, 9, 0])
    assert first["task"][1] == first["task"][2] != first["task"][0]
    _, again = reset_both(envs, same, seed=[5, None, 9, None])  # None: the generator goes on
    assert again["task"][[0, 2]].tolist() == first["task"][[0, 2]].tolist()
    assert again["task"][[1, 3]].tolist() != first["task"][[1, 3]].tolist()
    reset_both(envs, same)
    reset_both(envs, same, seed=7)
    # Only those that are reset are seeded.
    mask = np.array([False, True, True, False])
    reset_both(envs, same, seed=[1, 2, None, 4], options=lambda: {"reset_mask": mask.copy()})
    _, last = reset_both(envs, same)
    assert len(set(last["task"])) == 4


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_resets_in_the_middle_are_those_of_a_sync_vector(
    env_id: str, mode: AutoresetMode, pair: MakePair, same: Any
) -> None:
    """Of all or of some, of episodes under way, of those that are over, with a task of one's own or without."""
    envs = pair(env_id, "dlrm-20x4", mode, 4, info_text=True)
    mask = np.array([True, False, True, False])
    obs, _ = reset_both(envs, same, seed=0, options=lambda: {"task": "dlrm-20x4/train/7"})
    for options in (dict, lambda: {"reset_mask": mask.copy()}, lambda: {"reset_mask": mask.copy(), "task": 3}):
        for _ in range(3):
            obs, *_ = step_both(envs, obs["action_mask"].argmax(axis=1), same)
        actions = np.array([16, 0, 16, 0])  # devices that do not exist
        _, _, ended, *_ = step_both(envs, actions, same)
        assert ended.tolist() == mask.tolist()
        obs, infos = reset_both(envs, same, options=options)
        assert obs["progress"].ravel()[mask].tolist() == [0, 0]
    assert infos["task"].tolist() == ["dlrm-20x4/train/3", None, "dlrm-20x4/train/3", None]
    assert infos["task_index"].tolist() == [3, 0, 3, 0]
    for _ in range(20):
        obs, _, ended, *_ = step_both(envs, obs["action_mask"].argmax(axis=1), same)
        if mode == AutoresetMode.DISABLED and ended.any():
            obs = {"action_mask": reset_ended(envs, ended, same)}
