"""Attributes of environments, scalar and vector: those that can be assigned to work, the others say how to get them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from shard_gym import save_suite
from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.envs.registration import ENVIRONMENTS

EACH = pytest.mark.parametrize("env_id", ENVIRONMENTS)


def others(env: Any) -> Any:
    """A suite of two tasks of the environment's own suite, which have no other tasks."""
    return replace(env.tasks, tasks=list(env.tasks)[2:4])


@EACH
def test_an_episode_under_way_goes_on_and_the_next_has_one_of_the_new_tasks(
    env_id: str, kinds: Any, rollout: Any, same: Any
) -> None:
    made = [gymnasium.make(env_id, **kinds[env_id].small) for _ in range(3)]
    for env in made:
        env.reset(seed=1, options={"task": 0})
        rollout(env, np.random.default_rng(0), 2)
    curriculum = others(made[0].unwrapped)
    made[0].unwrapped.tasks = curriculum
    made[1].set_wrapper_attr("tasks", curriculum)
    legal = int(made[2].get_wrapper_attr("action_masks")().argmax())
    went_on = [env.step(legal) for env in made]
    for _, _, _, _, info in went_on:
        del info["task_index"]  # the number in the suite
    assert same(went_on[0], went_on[1])
    assert same(went_on[0], went_on[2])
    for env in made[:2]:
        assert env.unwrapped.tasks is curriculum
        seen = set()
        for _ in range(12):
            _, info = env.reset()
            seen.add((env.unwrapped.task.name, int(info["task_index"])))
        assert seen == {(task.name, number) for number, task in enumerate(curriculum)}


@EACH
def test_vector_environments_change_their_tasks_as_episodes_end(env_id: str, kinds: Any, same: Any) -> None:
    one, other = (gymnasium.make_vec(env_id, num_envs=3, **kinds[env_id].small) for _ in range(2))
    for envs in (one, other):
        envs.reset(seed=1)
    curriculum, old = others(one), {task.name for task in one.get_attr("task")}
    one.set_attr("tasks", curriculum)
    assert {task.name for task in one.get_attr("task")} == old
    going = np.ones(3, np.bool_)
    for _ in range(3):
        actions = other.action_masks().argmax(axis=1)
        (obs, rewards, ended, *_), (same_obs, same_rewards, *_) = one.step(actions), other.step(actions)
        assert (rewards[going] == same_rewards[going]).all()
        assert all((value[going] == same_obs[key][going]).all() for key, value in obs.items())
        going &= ~ended
    assert going.any()
    one.step(np.full(3, kinds[env_id].illegal))
    one.step(np.zeros(3, np.int64))
    drawn = {task.name for env, task in enumerate(one.get_attr("task")) if going[env]}
    assert drawn <= {task.name for task in curriculum}


def test_tasks_that_do_not_fit_are_refused_with_a_way_out() -> None:
    env: Any = gymnasium.make("EmbeddingPlacement-v0", suite="dlrm-20x4").unwrapped
    sharding: Any = gymnasium.make("EmbeddingSharding-v0", suite="shard-4", max_tables=4_000, max_devices=256).unwrapped
    drifting: Any = gymnasium.make("EmbeddingReplanning-v0", suite="drift-medium-120").unwrapped
    before = env.tasks
    for owner, suite, says in (
        (env, "dlrm-40x4", "up to 40 tables, but this environment was made for 20. Make it with max_tables=40"),
        (env, "drift-medium-120", "its environment is EmbeddingReplanning-v0"),
        (env, [], "suite must be"),
        (sharding, "inference-8", "scored by the cost model 'analytical-inference"),
        (sharding, "tier-generalize", "have host memory, but this environment was made for tasks without"),
        (drifting, "shard-4", "its environment is EmbeddingSharding-v0"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            owner.tasks = suite
    with pytest.raises(UnknownNameError, match="dlrm-21x4"):
        env.tasks = "dlrm-21x4"
    assert env.tasks is before
    env.tasks = "dlrm-20x4"
    assert env.tasks.split == "train"


def test_what_was_given_to_the_constructor_cannot_be_assigned_to() -> None:
    env = gymnasium.make("EmbeddingPlacement-v0", suite="dlrm-20x4").unwrapped
    envs = gymnasium.make_vec("EmbeddingPlacement-v0", num_envs=2, suite="dlrm-20x4")
    for name in {each.name for each in fields(PlacementConfig)} - {"render_mode"}:
        way = "Set `tasks` to a suite" if name in ("suite", "split") else f"Make another one with {name}="
        for each in (env, envs):
            with pytest.raises(InvalidOptionError, match=f"{name} is an argument of {type(each).__name__}.*{way}"):
                setattr(each, name, "nonsense")
        with pytest.raises(InvalidOptionError, match=name):
            env.set_wrapper_attr(name, "nonsense")
    for name in ("num_envs", "autoreset_mode"):
        with pytest.raises(InvalidOptionError, match=name):
            setattr(envs, name, 3)
    for wrong in ("human", "foo"):
        with pytest.raises(InvalidOptionError, match="render_mode must be None or one of"):
            env.render_mode = wrong
    env.render_mode = "ansi"
    env.reset(seed=0)
    assert isinstance(env.render(), str)


@EACH
def test_attributes_and_methods_of_each_are_those_of_a_sync_vector_env(env_id: str, kinds: Any, same: Any) -> None:
    small = kinds[env_id].small
    envs: Any = gymnasium.make_vec(env_id, num_envs=3, **small)
    sync: Any = SyncVectorEnv([lambda: gymnasium.make(env_id, **small) for _ in range(3)])
    for seed in (5, [7, 8, 9]):
        envs.reset(seed=seed)
        sync.reset(seed=seed)
        assert envs.np_random_seed == sync.np_random_seed
        states = ([each.bit_generator.state for each in made.np_random] for made in (envs, sync))
        assert same(*states)
    assert same(envs.call("action_masks"), sync.call("action_masks"))
    assert [task.name for task in envs.get_attr("task")] == [task.name for task in sync.get_attr("task")]
    assert envs.call("failure") == sync.call("failure") == (None,) * 3
    for name in ("action_space", "observation_space", "render_mode"):
        assert envs.get_attr(name) == sync.get_attr(name)
    assert envs.get_attr("cost_model")[2].fingerprint == sync.get_attr("cost_model")[2].fingerprint
    with pytest.raises(AttributeError, match="no method or attribute 'nothing'"):
        envs.call("nothing")
    with pytest.raises(TypeError, match="take no arguments"):
        envs.call("action_masks", 3)
    with pytest.raises(InvalidOptionError, match="share their attributes"):
        envs.set_attr("tasks", [others(envs), envs.tasks, envs.tasks])


def test_seeds_are_known_before_the_first_reset_and_without_one() -> None:
    envs: Any = gymnasium.make_vec("EmbeddingPlacement-v0", num_envs=2, suite="dlrm-20x4")
    assert envs.np_random_seed == (None, None)
    drawn = [each.bit_generator.state["state"]["state"] for each in envs.np_random]
    assert envs.np_random_seed[0] != envs.np_random_seed[1]
    envs.reset()
    again = gymnasium.make_vec("EmbeddingPlacement-v0", num_envs=2, suite="dlrm-20x4")
    again.reset(seed=list(envs.np_random_seed))
    assert again.get_attr("task") == envs.get_attr("task")
    assert len(set(drawn)) == 2


@EACH
def test_the_json_of_a_spec_makes_the_environment_again(
    env_id: str, kinds: Any, rollout: Any, same: Any, tmp_path: Path
) -> None:
    """With a suite as an object, as a file, and under wrappers; its padding is kept."""
    small = kinds[env_id].small
    whole = gymnasium.make(env_id, **small).unwrapped.tasks
    own = replace(whole, tasks=whole.tasks[1:3], name="own")
    path = tmp_path / "own.json"
    save_suite(path, own)
    results = []
    for suite in (own, path):
        env = gymnasium.wrappers.TimeLimit(gymnasium.make(env_id, **{**small, "suite": suite}), 1000)
        assert env.spec is not None
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.observation_space == env.observation_space
        for each in (env, again):
            results.append([each.reset(seed=3), *rollout(each, np.random.default_rng(3), 12)])
    assert all(same(results[0], each) for each in results[1:])
    envs: Any = gymnasium.make_vec(env_id, num_envs=2, **{**small, "suite": own})
    assert json.loads(envs.spec.to_json())["kwargs"]["suite"]["name"] == "own"


def test_what_json_has_no_form_for_is_named() -> None:
    numbers = gymnasium.make("EmbeddingPlacement-v0", suite="dlrm-20x4", max_tables=np.int64(70))
    assert json.loads(numbers.spec.to_json())["kwargs"]["max_tables"] == 70  # type: ignore[union-attr]
    env = gymnasium.make("EmbeddingPlacement-v0", suite="dlrm-20x4", reward=lambda seen: -seen.cost_after)
    with pytest.raises(InvalidOptionError, match=r"no form for reward=<function .*Make it with a name"):
        env.spec.to_json()  # type: ignore[union-attr]
    assert gymnasium.make(env.spec).unwrapped.tasks.name == "dlrm-20x4"  # type: ignore[arg-type]
