"""The vector environment returns, bit for bit, what a SyncVectorEnv of as many scalar environments returns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from shard_gym.envs.core.config import ILLEGAL
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.replanning.env.episodes import REWARDS as DRIFTING_REWARDS
from shard_gym.tasks import TaskSampler

Pair = tuple[VectorEnv[Any, Any, Any], VectorEnv[Any, Any, Any]]
MakePair = Callable[..., Pair]

PLACING = [env_id for env_id in ENVIRONMENTS if "Replanning" not in env_id]
SOURCES = ("dlrm-20x4", "generalize", "tight", "tiered", "mixed")
STEPS = {1: 120, 4: 60, 9: 30}  # several environments take half as many of short tasks

# All pairs of source, mode and size are there, and all observations and rewards with each of them.
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
        PLACING, enumerate(SOURCES), enumerate(AutoresetMode.__members__), enumerate(STEPS)
    )
    # Real environments execute neither host memory nor sequence tables.
    if (a + b + 2 * c) % 3 == 0 and not ("Real" in env_id and source in ("tiered", "mixed"))
]

DRIFTING = "EmbeddingReplanning-v0"
DRIFTING_SOURCES = ("drifting", "growth-600", "spot-600")
DRIFTING_STEPS = {1: 90, 4: 60, 12: 30}
LONG = {1: 680, 4: 340}  # a whole episode, or two
# Sources, modes and sizes so that all pairs of two are there. Where illegal actions are redirected, episodes are long.
GRID += [
    pytest.param(
        DRIFTING,
        source,
        AutoresetMode[mode],
        num_envs,
        {
            "reward": DRIFTING_REWARDS[(a + b) % 2],
            "illegal": ILLEGAL[c < 2 and (a + b) % 2],
            "info_text": bool((b + c) % 2),
            "headroom": True,
        },
        id=f"{DRIFTING}-{source}-{mode}-{num_envs}",
    )
    for (a, source), (b, mode), (c, num_envs) in itertools.product(
        enumerate(DRIFTING_SOURCES), enumerate(AutoresetMode.__members__), enumerate(DRIFTING_STEPS)
    )
    if (a + b + 2 * c) % 3 == 0
]


@pytest.fixture(scope="module")
def pair(random_tables: Any, drifting: Any) -> MakePair:
    """Makes a SyncVectorEnv and the vector environment of the same arguments."""
    # Hardly more memory than needed: many placements end in a dead end. Tasks are short and of all sizes.
    tight = TaskSampler(random_tables(np.random.default_rng(1), 60), (3, 9), (2, 3), memory_slack=1.02)
    tiered = replace(tight, hbm_share=(0.05, 0.5))
    mixed = replace(tight, pool=replace(tight.tables, pooled=np.arange(60) % 3 > 0))

    def make(env_id: str, source: str, mode: AutoresetMode, num_envs: int, **more: Any) -> Pair:
        sources = {"tight": tight, "tiered": tiered, "mixed": mixed, "drifting": drifting}
        arguments = {"suite": sources.get(source, source), "max_devices": 17, **more}
        reference = SyncVectorEnv(
            [lambda: gymnasium.make(env_id, disable_env_checker=True, **arguments)] * num_envs, autoreset_mode=mode
        )
        return reference, gymnasium.make_vec(env_id, num_envs=num_envs, autoreset_mode=mode, **arguments)

    return make


def draw(masks: np.ndarray, rng: np.random.Generator, env_id: str, source: str) -> np.ndarray:
    """(N,) actions; one in thirty is any device, most of which do not exist. Of replanning, most keep the plan.

    Of generalize, whose episodes are long, it is one in twelve.
    """
    picks, rare = (
        np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1),
        1 / (12 if source == SOURCES[1] else 30),
    )
    if env_id == DRIFTING:
        picks, rare = np.where(rng.random(len(picks)) < 0.9, 0, picks), 1 / 10
    return np.where(rng.random(len(picks)) < rare, rng.integers(masks.shape[1], size=len(picks)), picks)


def progress(obs: dict[str, np.ndarray]) -> np.ndarray:
    """(N,) the share of the episode that is over."""
    return obs["progress"][:, 0] if "progress" in obs else obs["time"][:, -1]


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
    if env_id == DRIFTING:
        steps = (LONG if more["illegal"] == "redirect" else DRIFTING_STEPS)[num_envs]
    else:
        steps = STEPS[num_envs] // (2 if source in ("tight", "tiered") and num_envs > 1 else 1)
    if "Sharding" in env_id and num_envs == 1:
        steps *= 3  # an episode has more steps than tables
    for _ in range(steps):
        obs, rewards, ended, _, infos = step_both(envs, draw(masks, rng, env_id, source), same)
        assert (type(rewards), rewards.dtype) == (np.ndarray, np.float64)
        masks, ends = obs["action_mask"], ends + ended
        last = infos.pop("final_info", infos)
        finals += last is not infos
        for key in ("final_obs", "_final_obs", "_final_info"):
            assert (infos.pop(key, None) is None) == (last is infos)
        assert kinds_of(infos) == kinds_of(last) == kinds
        failures |= set(last["failure"].tolist())
        redirected += int(last["redirected"].sum())
        known = (last["placement"] >= 0).reshape(num_envs, -1).any(axis=1)  # at the end; of replanning, always
        if env_id == DRIFTING:
            assert known[last["_placement"]].all()
            known = (last["running_s"] > 0) & (last["failure"] == 0)
        assert (known & last["_placement"]).tolist() == (ended & (last["failure"] == 0)).tolist()
        if mode == AutoresetMode.DISABLED and ended.any():
            masks = reset_ended(envs, ended, same)
    assert ends.sum() >= max(2, num_envs // 2)
    redirects = more["illegal"] == "redirect"
    assert (redirected > 0) == redirects
    assert 1 not in failures if redirects else failures > {0} or failures == {1}
    if source == "tight" and num_envs == 9:
        assert failures == ({0, 2} if redirects else {0, 1, 2})
    assert (finals > 0) == (mode == AutoresetMode.SAME_STEP)
    texts = {"task", "failure_message"} if more["info_text"] else set()
    assert {key for key, (dtype, _) in kinds.items() if dtype.kind == "O"} == texts


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_seeds_go_to_the_environments_as_in_a_sync_vector(
    env_id: str, mode: AutoresetMode, pair: MakePair, same: Any
) -> None:
    source, more = ("drifting", {}) if env_id == DRIFTING else ("tight", {"observation": "compact"})
    envs = pair(env_id, source, mode, 4, **more, info_text=True)
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
    env_id: str, mode: AutoresetMode, pair: MakePair, same: Any, kinds: Any
) -> None:
    """Of all or of some, of episodes under way, of those that are over, with a custom task or without."""
    arguments = {**kinds[env_id].small, "max_devices": 17}
    envs = pair(env_id, arguments["suite"], mode, 4, **arguments, info_text=True)
    names = [each.name for each in envs[0].envs[0].unwrapped.tasks]
    mask = np.array([True, False, True, False])
    obs, _ = reset_both(envs, same, seed=0, options=lambda: {"task": names[7]})
    for options in (dict, lambda: {"reset_mask": mask.copy()}, lambda: {"reset_mask": mask.copy(), "task": 3}):
        for _ in range(3):
            obs, *_ = step_both(envs, obs["action_mask"].argmax(axis=1), same)
        illegal = kinds[env_id].illegal if env_id == DRIFTING else 16  # a device that does not exist
        actions = np.array([illegal, 0, illegal, 0])
        _, _, ended, *_ = step_both(envs, actions, same)
        assert ended.tolist() == mask.tolist()
        obs, infos = reset_both(envs, same, options=options)
        assert progress(obs)[mask].tolist() == [0, 0]
    assert infos["task"].tolist() == [names[3], None, names[3], None]
    assert infos["task_index"].tolist() == [3, 0, 3, 0]
    for _ in range(20):
        obs, _, ended, *_ = step_both(envs, obs["action_mask"].argmax(axis=1), same)
        if mode == AutoresetMode.DISABLED and ended.any():
            obs = {"action_mask": reset_ended(envs, ended, same)}
