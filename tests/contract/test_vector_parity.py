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

from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.tasks import TaskSampler

Pair = tuple[VectorEnv[Any, Any, Any], VectorEnv[Any, Any, Any]]
MakePair = Callable[..., Pair]

STEPS = {1: 60, 4: 30, 9: 20, 12: 20}
LONG = 340  # a whole episode of replanning
DRIFTING = "EmbeddingReplanning-v0"

# Environment, source, mode, size, observation, reward, illegal actions, texts: all pairs that are `possible` are there.
PLACING = """
Placement     dlrm-20x4  DISABLED  9 features terminal   terminate texts
Placement     generalize NEXT_STEP 1 compact  terminal   terminate texts
Placement     tight      NEXT_STEP 9 features dense      redirect  texts
Placement     tiered     NEXT_STEP 1 compact  normalized redirect  -
Placement     tiered     SAME_STEP 4 full     balance    terminate -
Placement     tiered     NEXT_STEP 4 features terminal   terminate texts
Placement     mixed      DISABLED  4 full     normalized terminate texts
Sharding      dlrm-20x4  SAME_STEP 4 full     normalized redirect  texts
Sharding      generalize NEXT_STEP 9 compact  balance    terminate -
Sharding      tight      SAME_STEP 4 compact  normalized terminate -
Sharding      tiered     DISABLED  9 full     dense      redirect  texts
Sharding      mixed      NEXT_STEP 4 features balance    redirect  -
Sharding      mixed      SAME_STEP 1 compact  dense      redirect  -
Sharding      mixed      DISABLED  9 full     terminal   redirect  -
PlacementReal dlrm-20x4  DISABLED  1 features balance    terminate texts
PlacementReal dlrm-20x4  NEXT_STEP 9 compact  normalized redirect  texts
PlacementReal generalize DISABLED  4 full     dense      terminate -
PlacementReal tight      SAME_STEP 4 compact  terminal   redirect  texts
ShardingReal  dlrm-20x4  SAME_STEP 1 features dense      redirect  -
ShardingReal  generalize SAME_STEP 9 features normalized terminate texts
ShardingReal  generalize SAME_STEP 4 compact  terminal   terminate -
ShardingReal  tight      NEXT_STEP 1 full     terminal   terminate -
ShardingReal  tight      DISABLED  9 compact  balance    redirect  texts
"""

# The same without observations. An episode has 336 steps unless an illegal action ends it.
REPLANNING = """
Replanning drifting   NEXT_STEP 1  excess redirect  texts
Replanning drifting   NEXT_STEP 4  time   redirect  -
Replanning drifting   SAME_STEP 4  time   terminate -
Replanning drifting   DISABLED  1  excess terminate texts
Replanning growth-600 NEXT_STEP 4  excess terminate -
Replanning growth-600 SAME_STEP 12 time   terminate texts
Replanning growth-600 DISABLED  1  time   redirect  -
Replanning spot-600   NEXT_STEP 12 time   terminate texts
Replanning spot-600   SAME_STEP 1  excess redirect  -
Replanning spot-600   DISABLED  4  time   terminate texts
Replanning spot-600   DISABLED  12 excess terminate -
"""
EACH_AND_ALL_MODES = pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        *zip(ENVIRONMENTS, itertools.cycle(AutoresetMode), strict=False),
        *(("EmbeddingPlacement-v0", mode) for mode in list(AutoresetMode)[1:]),
    ],
)
"""Every environment, and every mode of one of them: what modes do is in the class that all share."""

TABLE = [line.split() for line in (PLACING + REPLANNING).splitlines() if line]


def possible(one: str, other: str) -> bool:
    """Real environments execute neither host memory nor sequence tables. Long episodes end too late where actions are
    redirected, or too many of them have to; tasks that are always new are dear."""
    real = "Real" in one and other in ("tiered", "mixed")
    return not real and (one, other) not in (("generalize", "redirect"), ("12", "redirect"), ("drifting", "12"))


GRID = [
    pytest.param(
        f"Embedding{env_id}-v0",
        source,
        AutoresetMode[mode],
        int(num_envs),
        {
            "reward": rest[-3],
            "illegal": rest[-2],
            "info_text": rest[-1] == "texts",
            **({"headroom": True} if env_id == "Replanning" else {"observation": rest[0]}),
        },
        id=f"{env_id}-{source}-{mode}-{num_envs}",
    )
    for env_id, source, mode, num_envs, *rest in TABLE
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
    """(N,) actions; one in fifteen is any device, most of which do not exist. Of replanning, most keep the plan.

    Of generalize, whose episodes are long, it is one in twelve.
    """
    picks, rare = (
        np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1),
        1 / (12 if source == "generalize" else 15),
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


@pytest.mark.parametrize("cases", [PLACING, REPLANNING])
def test_all_pairs_of_two_options_are_compared(cases: str) -> None:
    rows = [line.split() for line in cases.splitlines() if line]
    for one, other in itertools.combinations(zip(*rows, strict=True), 2):
        wanted = {pair for pair in itertools.product(one, other) if possible(*pair)}
        assert set(zip(one, other, strict=True)) == wanted


@pytest.mark.parametrize(("env_id", "source", "mode", "num_envs", "more"), GRID)
def test_every_step_is_that_of_a_sync_vector(
    env_id: str, source: str, mode: AutoresetMode, num_envs: int, more: dict[str, Any], pair: MakePair, same: Any
) -> None:
    envs = pair(env_id, source, mode, num_envs, **more)
    rng = np.random.default_rng([num_envs, len(source)])
    obs, infos = reset_both(envs, same, seed=3)
    masks, ends, kinds = obs["action_mask"], np.zeros(num_envs, int), kinds_of(infos)
    failures, redirected, finals = set[int](), 0, 0
    redirects = more["illegal"] == "redirect"
    endless = redirects and env_id == DRIFTING
    steps = STEPS[num_envs] * (2 if "Sharding" in env_id and num_envs == 1 else 1)  # it has more steps than tables
    for _ in range(LONG if endless and num_envs == 1 else steps):
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
    if endless:
        assert ends.sum() == (num_envs == 1)
    else:
        assert ends.sum() >= max(2, num_envs // 3)
    assert (redirected > 0) == redirects
    assert 1 not in failures if redirects else failures > {0} or failures == {1}
    if source == "tight" and num_envs == 9:
        assert failures == ({0, 2} if redirects else {0, 1, 2})
    assert (finals > 0) == (mode == AutoresetMode.SAME_STEP)
    texts = {"task", "failure_message"} if more["info_text"] else set()
    assert {key for key, (dtype, _) in kinds.items() if dtype.kind == "O"} == texts


@pytest.mark.parametrize(("env_id", "mode"), list(zip(ENVIRONMENTS, itertools.cycle(AutoresetMode), strict=False)))
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


@EACH_AND_ALL_MODES
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
