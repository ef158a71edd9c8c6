"""Episodes with split tables: what they record is a valid plan, and the state is what that plan costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidPlanError, InvalidTaskError, MemoryExceededError
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.envs.core.episode_state import ShardingState, Status
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.problem import EnvProblem, prepare
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.envs.core.state import action_mask, advance, initial_state
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, check_plan, plan_memory_used
from shard_gym.tasks import Task

MODEL = make_cost_model(additive=True, splits=True)
MAX_TABLES, MAX_DEVICES, MAX_HOSTS = 5, 5, 3
SEEDS = st.integers(0, 2**32 - 1)


def rules_of(rng: np.random.Generator) -> SplitRules:
    types = {"table_wise", *rng.choice(SHARDING_TYPES, 4).tolist()}
    return SplitRules.of(types, MAX_DEVICES, MAX_HOSTS, 2 ** int(rng.integers(4)))


def task_of(random_task: Any, rng: np.random.Generator) -> Task:
    """A task of up to five tables on up to five devices of one or more hosts, with little memory."""
    devices = int(rng.integers(1, MAX_DEVICES + 1))
    per_host = int(rng.integers(-(-devices // MAX_HOSTS), MAX_DEVICES + 1))
    slack = float(rng.choice([1.02, 1.3]))
    made: Task = random_task(rng, int(rng.integers(1, 6)), devices, slack=slack, devices_per_host=per_host)
    return made


def plan_in(task: Task, problem: EnvProblem, state: ShardingState, env: int) -> ShardingPlan:
    """The plan of a complete episode."""
    assert problem.rules is not None
    return plan_of(task, problem.placements_of(state.assignment, np.array([env]))[0], problem.rules)


@settings(max_examples=20)
@given(seed=SEEDS)
def test_legal_actions_lead_to_plans_that_cost_what_the_state_says(random_task: Any, together: Any, seed: int) -> None:
    """Several episodes at once, and each alone, bit by bit; only between two tables is there a dead end."""
    rng = np.random.default_rng(seed)
    rules, tasks = rules_of(rng), [task_of(random_task, rng) for _ in range(3)]
    problem = together(tasks, MAX_TABLES, MAX_DEVICES, rules)
    alone = [prepare(task, MODEL, MAX_TABLES, MAX_DEVICES, rules=rules) for task in tasks]
    state, single = initial_state(problem, MODEL), [initial_state(one, MODEL) for one in alone]
    assert isinstance(state, ShardingState)
    for _ in range(MAX_TABLES * (2 * rules.max_shards - 1)):
        mask = action_mask(problem, state)
        assert mask.any(axis=1).all()
        actions = np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)
        advance(problem, state, actions, MODEL)
        for env, (one, own) in enumerate(zip(alone, single, strict=True)):
            advance(one, own, actions[env : env + 1], MODEL)
            for name, value in vars(state).items():
                assert value[env].tobytes() == getattr(own, name)[0].tobytes(), name
    assert set(state.status.tolist()) <= {Status.COMPLETE, Status.DEAD_END}
    for env, task in enumerate(tasks):
        if state.status[env] == Status.DEAD_END:
            assert state.waiting[env].tolist() == [1] + [0] * rules.max_halvings, "a dead end within a table"
            continue
        plan = check_plan(plan_in(task, problem, state, env), task.tables, task.topology)
        estimate = MODEL.estimate(plan, task.tables, task.topology)
        assert state.cost_ms[env] == pytest.approx(estimate.total_ms, rel=1e-9)
        assert state.phases_ms[env, : task.num_devices] == pytest.approx(estimate.phases_ms, rel=1e-9)
        used = plan_memory_used(plan, task.tables, task.num_devices)
        assert (state.memory_used[env, : task.num_devices] >= used).all()  # the last block may have fewer rows
        halved = [len(s.shards) for s in plan.tables if s.sharding_type == "column_wise"]
        assert max(halved, default=0) <= 2**rules.max_halvings
        assert {s.sharding_type for s in plan.tables} <= {*rules.sharding_types}
        assert problem.lower_bound_ms[env] <= state.cost_ms[env] * (1 + 1e-9) < problem.penalty_ms[env]


@settings(max_examples=60)
@given(seed=SEEDS)
def test_a_first_action_is_legal_exactly_if_it_can_be_checked(random_task: Any, seed: int) -> None:
    """Of the first table; halving if some number of equal shards fits."""
    rng = np.random.default_rng(seed)
    rules, task = SplitRules.of(SHARDING_TYPES, MAX_DEVICES, MAX_HOSTS, 8), task_of(random_task, rng)
    problem = prepare(task, MODEL, MAX_TABLES, MAX_DEVICES, rules=rules)
    state = initial_state(problem, MODEL)
    table = int(problem.order[0, 0])
    mask, tables, topology = action_mask(problem, state)[0], task.tables, task.topology
    only = tables.select([table])

    def fits(sharding: Any) -> bool:
        try:
            check_plan(ShardingPlan((sharding,)), only, topology)
        except MemoryExceededError:
            return False
        return True

    for action in range(rules.num_actions):
        if action == rules.halve:
            dim, caps = int(tables.embedding_dim[table]), topology.memory_cap_bytes.tolist()
            possible = False
            for parts in (2, 4, 8):
                if dim % (4 * parts) == 0:
                    piece = int(tables.num_embeddings[table]) * dim // parts * tables.workload.weight_bytes
                    possible |= sum(cap // piece for cap in caps) >= parts
            assert mask[action] == possible
            continue
        if action < MAX_DEVICES and action >= task.num_devices:
            assert not mask[action]
            continue
        try:
            (sharding,) = plan_of(Task("one", only, topology_of(task)), np.array([[action, *[-1] * 7]]), rules).tables
        except InvalidPlanError:
            assert not mask[action]
            continue
        if mask[action]:
            assert fits(sharding)
        elif fits(sharding):  # the mask counts ceil(rows / blocks) rows on every device
            assert len(sharding.shards) > 1
            assert min(s.num_rows for s in sharding.shards) < max(s.num_rows for s in sharding.shards)


def topology_of(task: Task) -> Any:
    """The topology without memory caps, because a task must be solvable with whole tables."""
    return replace(task.topology, memory_cap_bytes=np.full(task.num_devices, 2**60))


def test_rows_and_replicas_are_for_tables_without_halves(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 4, dims=(32,), devices_per_host=2)
    rules = SplitRules.of(SHARDING_TYPES, 4, 2, 2)
    problem = prepare(task, MODEL, 2, 4, rules=rules)
    state = initial_state(problem, MODEL)
    assert action_mask(problem, state).tolist() == [[True] * rules.num_actions]
    assert rules.num_actions == 4 + 1 + 1 + 2 + 1
    advance(problem, state, np.array([rules.halve]), MODEL)
    assert action_mask(problem, state).tolist() == [[True] * 4 + [False] * 5]  # two shards are all there may be
    advance(problem, state, np.array([rules.row_wise]), MODEL)
    assert state.status[0] == Status.ILLEGAL_ACTION
    assert action_mask(problem, state).tolist() == [[True] * 4 + [False] * 5]


def test_the_rules_number_the_actions_of_the_allowed_types() -> None:
    rules = SplitRules.of(("table_wise", "row_wise", "data_parallel"), 4, 2, 8)
    assert (rules.halve, rules.row_wise, rules.host_row_wise, rules.data_parallel) == (-1, 4, -1, 5)
    rules = SplitRules.of(SHARDING_TYPES, 4, 2, 4)
    assert (rules.halve, rules.row_wise, rules.host_row_wise, rules.data_parallel) == (4, 5, 6, 8)
    assert (rules.num_variants, rules.num_actions, rules.max_halvings) == (6, 9, 2)
    assert rules.variants_and_hosts[0].tolist() == [-1] * 5 + [3, 4, 4, 5]


def test_more_hosts_than_the_padding_are_refused(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 4, devices_per_host=1)
    with pytest.raises(InvalidTaskError, match="4 hosts, but this environment holds at most 2"):
        prepare(task, AnalyticalShardingModel(), 2, 4, rules=SplitRules.of(SHARDING_TYPES, 4, 2))


def test_a_cap_that_means_no_cap_allows_everything(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 4, dims=(32,), devices_per_host=2)
    task = replace(task, topology=replace(task.topology, memory_cap_bytes=np.full(4, 2**63 - 1)))
    rules = SplitRules.of(SHARDING_TYPES, 5, 3, 8)
    problem = prepare(task, MODEL, 2, 5, rules=rules)
    legal = action_mask(problem, initial_state(problem, MODEL))[0]
    assert np.flatnonzero(~legal).tolist() == [4, rules.host_row_wise + 2]  # a device and a host of padding


def test_a_table_that_no_halving_completes_is_a_dead_end_at_once(random_tables: Any, random_task: Any) -> None:
    """There is room for three quarters of the third table and one quarter: quarters fit, two halves do not."""
    tables = random_tables(np.random.default_rng(0), 1, dims=(64,)).select([0, 0, 0])
    size = int(tables.memory_bytes[0])
    topology = replace(
        random_task(np.random.default_rng(0), 1, 2).topology,
        memory_cap_bytes=np.array([size + size // 4, size + 3 * size // 4]),
    )
    task = Task("tight", tables, topology)
    for max_shards, status in ((1, Status.DEAD_END), (2, Status.DEAD_END), (4, Status.RUNNING)):
        rules = SplitRules.of(("table_wise", "column_wise"), 2, 1, max_shards)
        problem = prepare(task, MODEL, 3, 2, rules=rules)
        state = initial_state(problem, MODEL)
        for device in (0, 1):
            advance(problem, state, np.array([device]), MODEL)
        assert state.status[0] == status
