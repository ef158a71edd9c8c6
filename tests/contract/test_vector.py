"""The vector environment as Gymnasium wants one: made by id, its spaces, its metadata, its memory, under wrappers."""

from __future__ import annotations

import copy
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
MODES = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)


@pytest.fixture
def make_vector(case: tuple[str, dict[str, Any]]) -> MakeVector:
    """Makes the vector environment of this case, with further arguments."""
    env_id, arguments = case
    return lambda num_envs=3, **more: gymnasium.make_vec(env_id, num_envs=num_envs, **{**arguments, **more})


def play(env: AnyVector, steps: int, seed: int = 0, *, keep: Callable[[Any], Any] = copy.deepcopy) -> list[Any]:
    """All that a reset and `steps` steps return, one action in ten on a device that does not exist in most tasks."""
    rng = np.random.default_rng(seed)
    obs, infos = env.reset(seed=seed)
    masks, results = obs["action_mask"].copy(), [keep((obs, infos))]
    for _ in range(steps):
        picks = np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1)
        actions = np.where(rng.random(env.num_envs) < 0.1, masks.shape[1] - 1, picks)
        obs, rewards, ended, cut, infos = env.step(actions)
        masks, over = obs["action_mask"].copy(), ended.copy()
        results.append(keep((obs, rewards, ended, cut, infos)))
        if env.metadata["autoreset_mode"] == AutoresetMode.DISABLED and over.any():
            obs, infos = env.reset(options={"reset_mask": over})
            masks = obs["action_mask"].copy()
            results.append(keep((obs, infos)))
    return results


@EACH
def test_gymnasium_makes_it_by_itself(env_id: str) -> None:
    vector_class = load_env_creator(ENVIRONMENTS[env_id]["vector_entry_point"])
    for more in ({}, {"vectorization_mode": "vector_entry_point"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = gymnasium.make_vec(env_id, num_envs=3, suite="dlrm-20x4", **more)
        assert type(env) is vector_class
        assert env.num_envs == 3
        assert env.spec.id == env_id
        env.close()
    sync = gymnasium.make_vec(env_id, num_envs=3, suite="dlrm-20x4", vectorization_mode="sync")
    assert type(sync) is SyncVectorEnv


@EACH
def test_a_spec_survives_json(env_id: str, same: Any) -> None:
    env = gymnasium.make_vec(env_id, num_envs=4, suite="dlrm-20x4", max_devices=6, autoreset_mode="SameStep")
    spec = EnvSpec.from_json(env.spec.to_json())
    assert spec.kwargs == env.spec.kwargs
    twin = gymnasium.make_vec(spec)
    assert type(twin) is type(env)
    assert twin.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert same(play(env, 20), play(twin, 20))


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


@MODES
def test_all_that_it_returns_lies_in_its_space(make_vector: MakeVector, mode: AutoresetMode) -> None:
    env = make_vector(3, max_devices=17, autoreset_mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = play(env, 50)
    finals = [final for *_, infos in results for final in infos.get("final_obs", ()) if final is not None]
    assert bool(finals) == (mode == AutoresetMode.SAME_STEP)
    assert all(env.single_observation_space.contains(final) for final in finals)
    for obs, *rest in results:
        assert env.observation_space.contains(obs)
        if len(rest) > 1:
            rewards, ended, cut, _ = rest
            assert [(array.dtype, array.shape) for array in (rewards, ended, cut)] == [
                (np.dtype(kind), (3,)) for kind in (np.float64, np.bool_, np.bool_)
            ]
            assert not cut.any()
            assert np.isfinite(rewards).all()
    assert sum(len(rest) > 1 and rest[1].any() for _, *rest in results) >= 2


@EACH
def test_every_instance_has_its_own_autoreset_mode(env_id: str) -> None:
    given = {None: "NEXT_STEP", **{mode: mode.name for mode in AutoresetMode}}
    given.update({mode.value: mode.name for mode in AutoresetMode})
    given.update({mode.name.lower(): mode.name for mode in AutoresetMode})
    vector_class = load_env_creator(ENVIRONMENTS[env_id]["vector_entry_point"])
    of_class = dict(vector_class.metadata)
    arguments = [{} if mode is None else {"autoreset_mode": mode} for mode in given]
    envs = [gymnasium.make_vec(env_id, num_envs=1, suite="dlrm-20x4", **more) for more in arguments]
    assert [env.metadata["autoreset_mode"] for env in envs] == [AutoresetMode[name] for name in given.values()]
    assert vector_class.metadata == of_class
    render_modes = gymnasium.make(env_id, suite="dlrm-20x4").metadata["render_modes"]
    assert all(env.metadata["render_modes"] == render_modes for env in envs)


@EACH
@MODES
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deep", "pickle"])
def test_a_copy_goes_on_alike_and_alone(env_id: str, mode: AutoresetMode, copied: Any, same: Any) -> None:
    env = gymnasium.make_vec(env_id, num_envs=3, suite="generalize", autoreset_mode=mode)
    obs, _ = env.reset(seed=2)
    for _ in range(5):
        obs, *_ = env.step(obs["action_mask"].argmax(axis=1))
    twin = copied(env)
    theirs = [copy.deepcopy(env.step(np.zeros(3, np.int64))) for env in (twin, twin)]
    ours = [copy.deepcopy(env.step(np.zeros(3, np.int64))) for env in (env, env)]
    assert same(ours, theirs)
    assert same(twin.reset(), env.reset())  # unseeded: the generators went along
    assert same(play(env, 30), play(twin, 30))


WRAPPERS = {
    "statistics": wrappers.RecordEpisodeStatistics,
    "list": wrappers.DictInfoToList,
    "normalize": wrappers.NormalizeReward,
    "flatten": wrappers.FlattenObservation,
    "stack": lambda env: wrappers.RecordEpisodeStatistics(wrappers.ClipReward(env, -5.0, 0.0)),
}


def without_times(infos: Any) -> Any:
    """Infos without the seconds that the wrapper for statistics adds."""
    if isinstance(infos, dict) and "episode" in infos:
        episode = {key: value for key, value in infos["episode"].items() if key not in ("t", "_t")}
        return {**infos, "episode": episode}
    return infos


@EACH
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_of_vector_environments_work_as_on_a_sync_vector(env_id: str, name: str, same: Any) -> None:
    arguments: dict[str, Any] = {"num_envs": 4, "suite": "dlrm-20x4", "reward": "dense", "observation": "compact"}
    ours = WRAPPERS[name](gymnasium.make_vec(env_id, **arguments))
    theirs = WRAPPERS[name](gymnasium.make_vec(env_id, vectorization_mode="sync", **arguments))
    one, other = ours.reset(seed=1), theirs.reset(seed=1)
    assert same(one, other)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(50):
        actions = rng.integers(4, size=4)
        *one, ours_infos = ours.step(actions)
        *other, their_infos = theirs.step(actions)
        assert same(one, other)
        assert same(without_times(ours_infos), without_times(their_infos))
        ends += int(one[2].sum())
        if name == "statistics" and one[2].any():
            lengths = ours_infos["episode"]["l"][one[2]]
            assert ((lengths > 0) & (lengths <= 20)).all()
    assert ends >= 4
