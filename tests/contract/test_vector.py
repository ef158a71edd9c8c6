"""The vector environment as Gymnasium wants one: made by id, its spaces, its metadata, its memory, under wrappers."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import gymnasium.wrappers.vector as wrappers
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from shard_gym.envs.registration import ENVIRONMENTS

AnyVector = VectorEnv[Any, Any, Any]
MakeVector = Callable[..., AnyVector]

EACH = pytest.mark.parametrize("env_id", ENVIRONMENTS)
EACH_AND_ALL_MODES = pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        *zip(ENVIRONMENTS, itertools.cycle(AutoresetMode), strict=False),
        *(("EmbeddingPlacement-v0", mode) for mode in list(AutoresetMode)[1:]),
    ],
)
"""Every environment, and every mode of one of them: what modes do is in the class that all share."""


@pytest.fixture
def make_vector(case: tuple[str, dict[str, Any]]) -> MakeVector:
    """Makes the vector environment of this case, with further arguments."""
    env_id, arguments = case
    return lambda num_envs=3, **more: gymnasium.make_vec(env_id, num_envs=num_envs, **{**arguments, **more})


def play(env: AnyVector, steps: int, seed: int = 0) -> list[Any]:
    """All that a reset and `steps` steps return, one action in ten on a device that does not exist in most tasks."""
    rng = np.random.default_rng(seed)
    obs, infos = env.reset(seed=seed)
    masks, results = obs["action_mask"], [(obs, infos)]
    for _ in range(steps):
        picks = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        actions = np.where(rng.random(env.num_envs) < 0.1, masks.shape[1] - 1, picks)
        obs, rewards, ended, cut, infos = env.step(actions)
        masks = obs["action_mask"]
        results.append((obs, rewards, ended, cut, infos))
        if env.metadata["autoreset_mode"] == AutoresetMode.DISABLED and ended.any():
            obs, infos = env.reset(options={"reset_mask": ended.copy()})
            masks = obs["action_mask"]
            results.append((obs, infos))
    return results


@EACH
def test_gymnasium_makes_it_by_itself(env_id: str, kinds: Any) -> None:
    vector_class = load_env_creator(ENVIRONMENTS[env_id]["vector_entry_point"])
    for more in ({}, {"vectorization_mode": "vector_entry_point"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = gymnasium.make_vec(env_id, num_envs=3, **kinds[env_id].small, **more)
        assert type(env) is vector_class
        assert env.num_envs == 3
        assert env.spec.id == env_id
        env.close()
    sync = gymnasium.make_vec(env_id, num_envs=3, **kinds[env_id].small, vectorization_mode="sync")
    assert type(sync) is SyncVectorEnv


@EACH
def test_specs_survive_json(env_id: str, kinds: Any, rollout: Any, same: Any) -> None:
    arguments = {**kinds[env_id].small, "max_devices": 10}
    one, many = (
        gymnasium.make(env_id, **arguments),
        gymnasium.make_vec(env_id, 4, **arguments, autoreset_mode="SameStep"),
    )
    specs = [EnvSpec.from_json(env.spec.to_json()) for env in (one, many)]
    assert [spec.kwargs for spec in specs] == [one.spec.kwargs, many.spec.kwargs]
    twin, twins = gymnasium.make(specs[0]), gymnasium.make_vec(specs[1])
    assert type(twins) is type(many)
    assert twins.metadata["autoreset_mode"] == many.metadata["autoreset_mode"]
    assert same(play(many, 10), play(twins, 10))
    for env in (one, twin):
        env.reset(seed=1)
    assert same(rollout(one, np.random.default_rng(0), 10), rollout(twin, np.random.default_rng(0), 10))


def test_the_spaces_are_those_of_one_environment_in_a_batch(
    make: Callable[..., gymnasium.Env[Any, Any]], make_vector: MakeVector
) -> None:
    one = make(max_devices=17)
    for num_envs in (1, 5):
        env = make_vector(num_envs, max_devices=17)
        assert env.single_observation_space == one.observation_space
        assert env.single_action_space == one.action_space
        assert env.observation_space == batch_space(one.observation_space, num_envs)
        assert env.action_space == batch_space(one.action_space, num_envs)
        env.reset(seed=0)
        env.action_space.seed(0)
        assert len(env.step(env.action_space.sample())) == 5


@EACH
def test_every_instance_has_its_own_autoreset_mode(env_id: str, kinds: Any) -> None:
    vector_class = load_env_creator(ENVIRONMENTS[env_id]["vector_entry_point"])
    of_class = dict(vector_class.metadata)
    given: list[Any] = [
        {},
        *({"autoreset_mode": m} for mode in AutoresetMode for m in (mode, mode.value, mode.name.lower())),
    ]
    modes = [AutoresetMode.NEXT_STEP, *(mode for mode in AutoresetMode for _ in range(3))]
    envs = [gymnasium.make_vec(env_id, num_envs=1, **kinds[env_id].small, **more) for more in given]
    assert [env.metadata["autoreset_mode"] for env in envs] == modes
    assert [env.unwrapped.autoreset_mode for env in envs] == modes
    assert vector_class.metadata == of_class
    render_modes = gymnasium.make(env_id, **kinds[env_id].small).metadata["render_modes"]
    assert all(env.metadata["render_modes"] == render_modes for env in envs)


@EACH_AND_ALL_MODES
def test_a_copy_of_a_pickle_goes_on_alike_and_alone(env_id: str, mode: AutoresetMode, same: Any) -> None:
    suite = "spot-600" if "Replanning" in env_id else "generalize"
    env = gymnasium.make_vec(env_id, num_envs=3, suite=suite, autoreset_mode=mode)
    obs, _ = env.reset(seed=2)
    for _ in range(5):
        obs, *_ = env.step(obs["action_mask"].argmax(axis=1))
    twin = copy.deepcopy(pickle.loads(pickle.dumps(env)))
    theirs, ours = ([each.step(np.zeros(3, np.int64)) for _ in range(2)] for each in (twin, env))
    assert same(ours, theirs)
    assert same(twin.reset(), env.reset())  # unseeded: the generators went along
    assert same(play(env, 30), play(twin, 30))


@EACH_AND_ALL_MODES
def test_no_two_results_share_memory(env_id: str, mode: AutoresetMode, kinds: Any, arrays_in: Any) -> None:
    env = gymnasium.make_vec(env_id, num_envs=4, **kinds[env_id].small, autoreset_mode=mode)
    arrays, episodes = arrays_in(play(env, 8)), env.unwrapped.episodes
    records = [episodes]
    if "Replanning" not in env_id:
        records = [episodes.problem, episodes.problem.tables, episodes.problem.cluster, episodes.state]
    inside = [each for record in records for each in vars(record).values() if isinstance(each, np.ndarray)]
    assert len(inside) > 10
    assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(arrays, 2))
    assert not any(np.shares_memory(one, other) for one in arrays for other in inside)


@EACH
def test_wrappers_of_vector_environments_run_on_it(env_id: str, kinds: Any) -> None:
    env: Any = wrappers.RecordEpisodeStatistics(gymnasium.make_vec(env_id, num_envs=4, **kinds[env_id].small))
    env, ends = wrappers.DictInfoToList(wrappers.FlattenObservation(wrappers.NormalizeReward(env))), 0
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(50):
        _, _, over, _, infos = env.step(rng.integers(env.single_action_space.n, size=4))
        ends += int(over.sum())
        assert all(0 < infos[row]["episode"]["l"] <= 20 for row in np.flatnonzero(over))
    assert ends >= 4
