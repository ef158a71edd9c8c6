"""Observations: what stands in each array, recomputed from the task and the steps taken."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, make_cost_model
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.envs.core.episodes import CostFreeObservation
from shard_gym.envs.core.hbm_curves import NUM_CURVE, hbm_curves
from shard_gym.envs.core.problem import EnvProblem
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.observation import COST_FREE, OBSERVATIONS, CompactObservation, make_observation
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.hardware import Topology
from shard_gym.plans.placement import memory_used
from shard_gym.plans.variants import whole_tables
from shard_gym.tables import Tables

MODEL = make_cost_model("analytical")


@given(seed=st.integers(0, 2**32 - 1))
def test_every_array_says_what_the_documentation_says(random_task: Any, env_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 6, 3, slack=1.6)
    env = env_of(task, max_tables=8, max_devices=5)
    obs, _ = env.reset(seed=0)
    order = env.problem.order[0, :6]
    caps, features = task.topology.memory_cap_bytes, task.tables.features()
    for placed in range(7):
        assert env.observation_space.contains(obs)
        assignment = env.state.assignment[0]
        tables, devices = task.tables.select(order[:placed]) if placed else None, assignment[:placed]
        phases, used = np.zeros((5, 4)), np.zeros(3, int)
        if tables is not None:
            phases[:3] = MODEL.estimate(devices, tables, task.topology).phases_ms
            used = memory_used(devices, tables, 3)
        assert obs["device_costs"].reshape(5, 4) == pytest.approx(phases, rel=1e-6)
        assert env.state.cost_ms[0] == pytest.approx(phases.max(axis=0).sum(), rel=1e-9)
        assert obs["progress"] == pytest.approx([placed / 6])
        assert obs["device_mask"].tolist() == [1, 1, 1, 0, 0]
        assert obs["table_mask"].tolist() == [1] * 6 + [0] * 2
        assert obs["assignment"].tolist() == devices.tolist() + [-1] * (8 - placed)
        assert np.array_equal(obs["table_features"].reshape(8, 21)[:6], features[order])
        assert not obs["table_features"].reshape(8, 21)[6:].any()
        memory = obs["device_memory"].reshape(5, 2)
        assert memory[:3, 0] == pytest.approx(used / caps, rel=1e-6)
        assert not memory[3:].any()
        if placed == 6:
            assert not obs["current_table"].any()
            assert not obs["current_table_costs"].any()
            assert not memory[:, 1].any()
            return
        table = order[placed]
        needed = task.tables.memory_bytes[table]
        alone = MODEL.estimate(
            np.zeros(1, int), task.tables.select([table]), replace(task.topology, memory_cap_bytes=2**60)
        )
        assert np.array_equal(obs["current_table"], features[table])
        assert obs["current_table_costs"] == pytest.approx(alone.phases_ms[0], rel=1e-6)
        assert memory[:3, 1] == pytest.approx(np.minimum(needed / caps, 1), rel=1e-6)
        assert obs["action_mask"][:3].tolist() == (used + needed <= caps).tolist()
        obs, _, terminated, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        if terminated and env.state.step[0] < 6:
            return


@given(seed=st.integers(0, 2**32 - 1))
def test_the_features_of_devices_are_sums_over_their_tables(random_task: Any, env_of: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 6, 3, slack=1.6)
    env = env_of(task, max_tables=8, max_devices=5, observation="features")
    obs, _ = env.reset(seed=0)
    tables, order = task.tables, env.problem.order[0, :6]
    assert order.tolist() == np.argsort(-tables.embedding_dim * tables.pooling_factor, kind="stable").tolist()
    batch = tables.workload.batch_size
    amounts = np.stack(
        [
            np.ones(6),
            tables.pooling_factor * batch,
            tables.pooling_factor * batch * tables.embedding_dim,
            tables.distinct_rows * tables.embedding_dim,
            batch * tables.num_features * tables.embedding_dim,
        ],
        axis=1,
    )
    shares = amounts / np.maximum(amounts.sum(axis=0), 1e-300)
    for placed in range(7):
        assert env.observation_space.contains(obs)
        assignment = env.state.assignment[0, :placed]
        for device in range(5):
            own = order[:placed][assignment == device]
            held = obs["device_shares"].reshape(5, 5)[device]
            assert held == pytest.approx(shares[own].sum(axis=0), rel=1e-6)
            assert obs["device_width"][device] == max([*tables.embedding_dim[own] / 128, 0])
        if placed == 6:
            assert not obs["current_table"].any()
            assert not obs["current_table_shares"].any()
            assert obs["device_shares"].reshape(5, 5).sum(axis=0) == pytest.approx(shares.sum(axis=0), abs=1e-6)
            return
        assert np.array_equal(obs["current_table"], tables.features()[order[placed]])
        assert obs["current_table_shares"] == pytest.approx(shares[order[placed]], rel=1e-6)
        obs, _, terminated, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        if terminated and env.state.step[0] < 6:
            return


class Reversed(AnalyticalCostModel):
    """The costliest table of the analytical model is the cheapest one here."""

    fingerprint = "reversed-v1"

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = "table_wise") -> Any:
        loads = super().loads(shards, topology, sharding_type)
        return loads.max(axis=0) + loads.min(axis=0) - loads


HBM_KEYS = {"current_table_curve", "device_curves", "device_hbm", "hbm_gib"}


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_with_host_memory_the_curves_are_those_of_the_tables(
    tiered_task: Any, random_task: Any, env_of: Any, observation: str
) -> None:
    rng = np.random.default_rng(0)
    task, plain = tiered_task(rng, 6, 3, name="tiered"), random_task(rng, 6, 3, name="plain")
    env = env_of(task, plain, max_tables=8, max_devices=5, observation=observation)
    obs, _ = env.reset(options={"task": "tiered"})
    hbm, order = task.topology.host.hbm_bytes, env.problem.order[0, :6]
    each = hbm_curves(whole_tables(task.tables), task.topology)[:, 0]
    for placed in range(7):
        assert env.observation_space.contains(obs)
        held = np.zeros((5, NUM_CURVE))
        np.add.at(held, env.state.assignment[0, :placed], each[order[:placed]])
        assert obs["device_curves"].reshape(5, -1) == pytest.approx(held / (1 + held), rel=1e-6)
        assert obs["device_hbm"] == pytest.approx([*np.minimum(hbm / task.topology.memory_cap_bytes, 1), 0, 0])
        assert obs["hbm_gib"] == pytest.approx([hbm / 2**30])
        if placed == 6:
            assert not obs["current_table_curve"].any()
            break
        current = each[order[placed]]
        assert obs["current_table_curve"] == pytest.approx(current / (1 + current), rel=1e-6)
        obs, _, over, _, _ = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
        assert not over or placed == 5
    obs, _ = env.reset(options={"task": "plain"})
    obs, *_ = env.step(0)
    assert not any(obs[key].any() for key in HBM_KEYS)
    assert env.observation_space.contains(obs)


class WithoutAttribute:
    """A custom source of tasks with no more members than the protocol asks for."""

    max_tables, max_devices = 6, 3

    def __init__(self, task: Any) -> None:
        self.task = task

    def sample(self, rng: np.random.Generator) -> Any:
        return self.task


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_without_host_memory_there_is_no_key_of_it(tiered_task: Any, random_task: Any, observation: str) -> None:
    rng = np.random.default_rng(0)
    envs = EmbeddingPlacementVectorEnv(2, WithoutAttribute(random_task(rng, 6, 3)), observation=observation)
    obs, _ = envs.reset(seed=0)
    assert not HBM_KEYS & set(obs)
    assert not HBM_KEYS & set(envs.single_observation_space)
    with pytest.raises(InvalidTaskError, match="has host memory, but this environment was made for tasks without it"):
        envs.reset(options={"task": tiered_task(rng, 6, 3)})
    with pytest.raises(InvalidTaskError, match="an attribute host_memory = True"):
        EmbeddingPlacementVectorEnv(2, WithoutAttribute(tiered_task(rng, 6, 3)), observation=observation).reset()


def test_an_observation_object_says_itself_whether_it_shows_host_memory(
    tiered_task: Any, random_task: Any, env_of: Any
) -> None:
    rng = np.random.default_rng(0)
    for task, shows in itertools.product((tiered_task(rng, 4, 2), random_task(rng, 4, 2)), (True, False)):
        env = env_of(task, observation=CompactObservation(shows))
        obs, _ = env.reset(seed=0)
        for device in (0, 1, 0):
            assert env.observation_space.contains(obs)
            assert HBM_KEYS & set(obs) == (HBM_KEYS if shows else set())
            obs, *_ = env.step(device)
        if shows:
            assert obs["device_curves"].any() == (task.topology.host is not None)


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mixdim-4", "tier-4"])
def test_the_features_do_not_depend_on_the_cost_model(suite: str, same: Any) -> None:
    """Neither do the order of the tables and the masks."""

    def seen(cost_model: AdditiveCostModel, observation: str) -> Any:
        env = EmbeddingPlacementVectorEnv(3, suite, "test", cost_model, observation=observation)
        rng = np.random.default_rng(4)
        results = [env.reset(seed=5)[0]]
        for _ in range(30):
            legal = env.action_masks()
            actions = np.where(legal, rng.random(legal.shape), -1).argmax(axis=1)
            results.append(env.step(actions)[0])
        return results

    for observation in COST_FREE:
        assert isinstance(make_observation(observation), CostFreeObservation)
        expected = seen(AnalyticalCostModel(), observation)
        for other in (Reversed(), NoCosts()):
            assert same(seen(other, observation), expected)
    assert not same(seen(Reversed(), "compact"), seen(AnalyticalCostModel(), "compact"))


def test_the_set_is_the_features_beside_all_tables() -> None:
    """What it adds to "features" is what "full" adds to "compact", in the order of "features"."""
    for env_class in (EmbeddingPlacementEnv, EmbeddingShardingEnv):
        few, both = (env_class("shard-4", observation=each) for each in ("features", "set"))
        rng = np.random.default_rng(1)
        (seen, _), (more, _) = few.reset(seed=3), both.reset(seed=3)
        order = both.problem.order[0]
        for _ in range(12):
            assert all(np.array_equal(more.pop(key), value) for key, value in seen.items())
            assert set(more) == {"table_features", "table_mask", "assignment"}
            features = more["table_features"].reshape(both.max_tables, -1)[: both.task.num_tables]
            assert np.array_equal(features, both.task.tables.features()[order[: both.task.num_tables]])
            assert np.array_equal(more["assignment"], both.state.assignment[0].ravel())
            action = int(rng.choice(np.flatnonzero(few.action_masks())))
            (seen, *_), (more, *_) = few.step(action), both.step(action)


def test_a_custom_observation_plugs_in(random_task: Any, env_of: Any) -> None:
    class Blind(CompactObservation):
        def space(self, max_tables: int, max_devices: int) -> spaces.Dict:
            return spaces.Dict({"action_mask": super().space(max_tables, max_devices)["action_mask"]})

        def constant(self, problem: EnvProblem, envs: Any = None) -> Any:
            return {}

        def __call__(self, problem: EnvProblem, state: Any) -> Any:
            return {"action_mask": super().__call__(problem, state)["action_mask"]}

    env = env_of(random_task(np.random.default_rng(0), 3, 2), observation=Blind(), max_devices=3)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert obs["action_mask"].tolist() == [1, 1, 0]
