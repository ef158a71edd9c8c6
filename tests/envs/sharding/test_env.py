"""`EmbeddingSharding-v0`: its plans, spaces, restrictions and failures. The contract tests do the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidActionError, InvalidOptionError, TableTooLargeError, UnknownNameError
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.cost_models.base.host_rows import THRESHOLDS, host_bytes
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.envs.core.hbm_curves import NUM_CURVE, READS
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.envs.sharding.episodes import OBSERVATIONS
from shard_gym.plans import SHARDING_TYPES, check_plan
from shard_gym.plans.statistics import shard_tables
from shard_gym.tasks import Task, TaskSuite


def play(env: EmbeddingShardingEnv, seed: int) -> tuple[float, dict[str, Any], list[ObservationDict]]:
    """A random legal episode: its return, last info and observations."""
    rng = np.random.default_rng(seed)
    obs, info = env.reset(seed=seed)
    total, over, seen = 0.0, False, [obs]
    while not over:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        obs, reward, over, _, info = env.step(action)
        total += reward
        seen.append(obs)
    return total, info, seen


@pytest.mark.parametrize("reward", ["terminal", "dense"])
def test_an_episode_makes_a_plan_and_is_charged_its_cost(random_task: Any, reward: str) -> None:
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, 6, 4, slack=(None, 1.5)[i % 2], devices_per_host=2, name=f"task {i}") for i in range(4)]
    tasks[1:3] = [replace(task, topology=replace(task.topology, devices_per_domain=4)) for task in tasks[1:3]]
    model, kinds = AnalyticalShardingModel("fp16"), set()
    env = EmbeddingShardingEnv(TaskSuite("own", tuple(tasks)), cost_model=model, reward=reward)
    for seed in range(8):
        total, info, seen = play(env, seed)
        assert all(env.observation_space.contains(obs) for obs in seen)
        if info["failure"]:
            assert info["failure"] == 2
            assert (info["placement"] == -1).all()
            assert total == pytest.approx(-env.problem.penalty_ms[0])
            continue
        plan = check_plan(env.plan, env.task.tables, env.task.topology)
        kinds |= {sharding.sharding_type for sharding in plan.tables}
        cost = model.estimate(plan, env.task.tables, env.task.topology)
        assert -total == pytest.approx(cost.total_ms) == pytest.approx(info["cost_ms"])
        assert info["phase_costs_ms"] == pytest.approx(cost.phases_ms)
        assert plan_of(env.task, info["placement"], env.rules) == plan
    assert kinds == set(SHARDING_TYPES)


def test_the_observation_is_of_the_current_part(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 3, 2, dims=(32,))
    env = EmbeddingShardingEnv(TaskSuite("own", (task,)), observation="full", max_shards=4)
    whole, _ = env.reset(seed=0)
    half = env.step(env.rules.halve)[0]
    first = int(env.problem.order[0, 0])
    model = make_cost_model(additive=True, splits=True)
    for obs, tables in ((whole, task.tables), (half, task.tables.with_dims(16))):
        assert np.array_equal(obs["current_table"], tables.features()[first])
        loads = model.loads(tables.select([first]), task.topology)
        alone = model.single_tables(loads, task.topology)[0][0]
        assert obs["current_table_costs"] == pytest.approx(alone.astype(np.float32))
    assert [obs["parts_waiting"].tolist() for obs in (whole, half)] == [[1, 0, 0], [0, 2, 0]]
    variants = whole["variant_costs"].reshape(env.rules.num_variants, 4)
    assert np.array_equal(variants[0], whole["current_table_costs"])
    assert np.array_equal(variants[1], half["current_table_costs"])
    nothing = [-1] * 12
    assert whole["assignment"].tolist() == half["assignment"].tolist() == nothing
    assert env.step(0)[0]["assignment"].tolist() == [0, *nothing[1:]]
    assert env.step(1)[0]["assignment"].tolist() == [0, -1, 1, *nothing[3:]]
    features = whole["table_features"].reshape(3, -1)
    assert np.array_equal(features, task.tables.features()[env.problem.order[0]])


@pytest.mark.parametrize(
    ("types", "extra"),
    [
        (("table_wise",), 0),
        (("table_wise", "column_wise"), 1),
        (("table_wise", "table_row_wise"), 3),
        (SHARDING_TYPES, 6),
    ],
)
def test_the_sharding_types_decide_the_actions(random_task: Any, types: tuple[str, ...], extra: int) -> None:
    task = random_task(np.random.default_rng(0), 3, 6, devices_per_host=2)
    env = EmbeddingShardingEnv(TaskSuite("own", (task,)), sharding_types=types)
    assert repr(env.action_space) == f"Discrete({6 + extra})"
    _, info, _ = play(env, 0)
    assert {sharding.sharding_type for sharding in env.plan.tables} <= set(types)
    assert info["failure"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_shards": 3}, "power of two"),
        ({"sharding_types": ("table_wise", "rowwise")}, "rowwise"),
        ({"sharding_types": np.array("table_wise")}, "sharding_types must be a list of sharding types"),
        ({"cost_model": "measured"}, "'measured' is not additive"),
        ({"max_devices": 2}, "max_devices must be an integer of at least 4"),
    ],
)
def test_wrong_arguments_are_named(random_task: Any, arguments: dict[str, Any], message: str) -> None:
    suite = TaskSuite("own", (random_task(np.random.default_rng(0), 3, 4),))
    with pytest.raises((InvalidOptionError, UnknownNameError), match=message):
        EmbeddingShardingEnv(suite, **arguments)


def test_failures_say_what_was_wrong(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 2, dims=(32,))
    env = EmbeddingShardingEnv(TaskSuite("own", (task,)), max_devices=3)
    env.reset(seed=0)
    with pytest.raises(InvalidActionError, match="from 0 to 2, or from 3 to 6 to split, not 7"):
        env.step(7)
    env.step(env.rules.halve)
    assert env.step(2)[4]["failure"] == 1
    failure = env.failure()
    assert failure is not None
    table = int(env.problem.order[0, 0])
    assert (failure["reason"], failure["bytes_needed"]) == ("illegal_action", task.tables.memory_bytes[table] // 2)
    says = f"The current shard of table {task.tables.names[table]} was given an action that is illegal"
    assert says in failure["message"]


def test_tables_larger_than_a_device_are_for_this_environment(random_tables: Any, random_task: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 2, dims=(64,)).select([0, 0])
    caps = np.full(3, 3 * int(tables.memory_bytes[0]) // 4)
    topology = replace(random_task(np.random.default_rng(0), 1, 3).topology, memory_cap_bytes=caps)
    suite = TaskSuite("own", (Task("large", tables, topology, splittable=True),))
    env = EmbeddingShardingEnv(suite, sharding_types=("table_wise", "column_wise"))
    _, info = env.reset(seed=0)
    assert np.flatnonzero(info["action_mask"]).tolist() == [env.rules.halve]
    _, info, _ = play(env, 0)
    assert info["failure"] == 0
    assert [len(sharding.shards) > 1 for sharding in check_plan(env.plan, tables, topology).tables] == [True, True]
    with pytest.raises(TableTooLargeError, match="no split of it by the sharding_types and max_shards"):
        EmbeddingShardingEnv(suite, sharding_types=("table_wise", "column_wise"), max_shards=1).reset(seed=0)
    with pytest.raises(TableTooLargeError, match="EmbeddingSharding-v0 splits tables"):
        EmbeddingPlacementEnv(suite).reset(seed=0)


@pytest.mark.parametrize("seed", range(3))
def test_an_illegal_action_is_redirected_to_the_emptiest_device_or_to_the_first_split(
    random_task: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    suite = TaskSuite("own", (random_task(rng, 5, 3, slack=1.05, dims=(16, 32), devices_per_host=2),))
    env, plain = (EmbeddingShardingEnv(suite, max_devices=6, illegal=each) for each in ("redirect", "terminate"))
    info, other = env.reset(seed=0)[1], plain.reset(seed=0)[1]
    unit, over, count = float(env.problem.lower_bound_ms[0]), False, 0
    while not over:
        mask, used = info["action_mask"].tolist(), env.state.memory_used[0].tolist()
        action = instead = int(rng.integers(env.rules.num_actions))
        if not mask[action]:
            count += 1
            instead = min((d for d in range(6) if mask[d]), key=lambda d: used[d], default=mask.index(1))
        _, reward, over, _, info = env.step(action)
        _, expected, ended, _, other = plain.step(instead)
        assert over == ended
        assert reward == pytest.approx(expected - 0.05 * unit * (instead != action), rel=1e-12)
        assert info["redirected"] == count
        assert info["failure"] == other["failure"] != 1
        assert info["placement"].tolist() == other["placement"].tolist()
    assert count


def test_the_observation_without_costs_adds_up_the_amounts_of_the_shards(random_task: Any) -> None:
    rng, kinds = np.random.default_rng(1), set()
    tasks = [random_task(rng, 5, 4, devices_per_host=2, dims=(16, 64), name=f"task {i}") for i in range(4)]
    env = EmbeddingShardingEnv(TaskSuite("own", tuple(tasks)), observation="features", max_devices=5)
    for seed in range(6):
        obs, info = env.reset(seed=seed)
        tables, topology, over = env.task.tables, env.task.topology, False
        assert env.problem.order[0].tolist() == np.argsort(-tables.embedding_dim * tables.pooling_factor).tolist()
        while not over:
            obs, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            amounts, widths = np.zeros((5, 5)), np.zeros(5)
            for table, device, _, _, _, columns in env.plan.shard_arrays().tolist():
                kind = env.plan.tables[table].sharding_type
                kinds.add(kind)
                part = shard_tables(tables.select([table]), kind, topology, np.array([columns]))
                amounts[device] += part.amounts()[0]
                widths[device] = max(widths[device], columns / 128)
            assert obs["device_shares"] == pytest.approx((amounts / tables.amounts().sum(axis=0)).ravel(), rel=1e-5)
            assert obs["device_width"] == pytest.approx(widths)
    assert kinds == set(SHARDING_TYPES)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_the_curves_of_devices_are_those_of_their_shards(tiered_task: Any, observation: str) -> None:
    rng, kinds = np.random.default_rng(2), set()
    tasks = [tiered_task(rng, 5, 4, devices_per_host=2, dims=(16, 64), name=f"task {i}") for i in range(4)]
    env = EmbeddingShardingEnv(TaskSuite("own", tuple(tasks)), observation=observation, max_devices=5)
    count, seen = env.rules.num_variants, np.abs(THRESHOLDS[:, None] + np.expm1(-READS)).argmin(axis=0)
    for seed in range(6):
        obs, info = env.reset(seed=seed)
        tables, topology, over = env.task.tables, env.task.topology, False
        while not over:
            variants = obs["variant_curves"].reshape(count, -1)
            level = int(env.state.level[0])
            assert np.array_equal(obs["current_table_curve"], variants[level])
            obs, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            assert env.observation_space.contains(obs)
            held = np.zeros((5, NUM_CURVE))
            for table, device, _, _, _, columns in env.plan.shard_arrays().tolist():
                kind = env.plan.tables[table].sharding_type
                kinds.add(kind)
                part = shard_tables(tables.select([table]), kind, topology, np.array([columns]))
                held[device] += host_bytes(part, dense=kind == "data_parallel")[0, seen] / THRESHOLDS[seen]
            held /= topology.host.hbm_bytes
            assert obs["device_curves"].reshape(5, -1) == pytest.approx(held / (1 + held), rel=1e-5)
        assert not obs["variant_curves"].any() or info["failure"]
    assert kinds == set(SHARDING_TYPES)


def test_snapshots_and_clones_go_on_within_a_halved_table(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 3, 2, dims=(32,))
    env = EmbeddingShardingEnv(TaskSuite("own", (task,)))
    env.reset(seed=0)
    for action in (env.rules.halve, 0, env.rules.halve):
        env.step(action)
    snapshot, clone = env.get_state(), env.clone()
    rest = (1, 0, env.rules.data_parallel, 1)
    first = [env.step(action)[1] for action in rest]
    plan = env.plan
    assert [clone.step(action)[1] for action in rest] == first
    env.set_state(snapshot)
    assert env.plan != plan
    assert [env.step(action)[1] for action in rest] == first
    assert env.plan == plan
    assert [shard.num_columns for shard in plan.tables[int(env.problem.order[0, 0])].shards] == [16, 8, 8]
    for other in (EmbeddingPlacementEnv(env.tasks), EmbeddingShardingEnv(env.tasks, max_shards=4)):
        other.reset(seed=0)
        with pytest.raises(InvalidOptionError, match="snapshot's"):
            other.set_state(snapshot)
        with pytest.raises(InvalidOptionError, match="snapshot's"):
            env.set_state(other.get_state())
