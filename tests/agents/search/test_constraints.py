"""Searches and heuristics keep to the constraints of a task, and lose nothing where these permit everything."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.search import LocalSearchAgent, PlanSearchAgent
from shard_gym.agents.search.balance import balanced, joined
from shard_gym.agents.search.heuristics import PAPER_SCORES
from shard_gym.agents.search.splits import SplitOptions
from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidPlanError,
    NoPlacementFoundError,
    StatesExceedHbmError,
)
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.bounds import plan_lower_bound_ms
from shard_gym.hardware import HostMemory, hardware_profile
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.constraints_json import constraints_from_json
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite, problem_of
from shard_gym.tasks.forms import forms_of
from shard_gym.tasks.suites.drawing import with_constraints

MODEL, SPLITTING = AnalyticalCostModel(), AnalyticalShardingModel()


@pytest.fixture
def tasks(random_task: Callable[..., Task], random_constraints: Callable[..., Constraints]) -> Callable[..., Any]:
    """Random tasks with constraints."""

    def drawn(
        count: int, num_tables: int, num_devices: int, *, types: bool = False, seed: int = 0, **options: Any
    ) -> Any:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            task = random_task(rng, num_tables, num_devices, **options)
            limits = random_constraints(rng, task, types=types)
            known = None if types else task.known_placement
            yield replace(task, constraints=limits, known_placement=known, splittable=types)

    return drawn


def _meets(task: Task, placement: np.ndarray) -> bool:
    try:
        task.require_constraints(placement)
    except InvalidPlanError:
        return False
    return True


def test_the_best_placement_under_constraints_is_found(
    tasks: Callable[..., Any], valid_placements: Callable[[Task], np.ndarray]
) -> None:
    few = {"max_queries": 2_000}
    for number, task in enumerate(tasks(6, 5, 3, slack=2.0)):
        every = [placement for placement in valid_placements(task) if _meets(task, placement)]
        problem = problem_of(task)
        best = problem.costs_ms(every, task, MODEL).min()
        for agent, options in (("exact", {}), ("local-search", few), ("plan-search", few)):
            solver: Any = make_agent(agent, cost_model=MODEL, **options)
            cost = problem.cost_ms(problem.checked(solver.place(task), task), task, MODEL)
            assert cost == pytest.approx(best, rel=1e-4), (number, agent)
            if agent == "exact":
                assert solver.last_bound_ms is not None
                assert solver.last_bound_ms <= best


def test_the_best_placement_with_tables_in_either_memory_is_found(
    random_task: Callable[..., Task], valid_placements: Callable[[Task], np.ndarray]
) -> None:
    """Of all placements that have room for the tables that must be in HBM, and for those in host memory; or nearly."""
    refused = dearer = 0
    few = {"max_queries": 2_000}
    for seed in range(4):
        tables = random_task(np.random.default_rng(seed), 6, 3).tables
        first, second, third, fourth, *_ = np.argsort(tables.memory_bytes).tolist()
        limits = replace(Constraints.none(6, 3), in_hbm=(first, third), in_host=(second,), cached=(fourth,))
        hbm = int(tables.memory_bytes[third]) + 1
        topology = hardware_profile("a100-dgx").topology(3, memory_cap_bytes=int(0.9 * tables.memory_bytes.sum()))
        topology = replace(topology, host=HostMemory(hbm, 16.0, 20.0))
        task = Task("random", tables, topology, constraints=limits)
        problem, every = problem_of(task), []
        for placement in valid_placements(task):
            try:
                every.append(problem.checked(placement, task))
            except StatesExceedHbmError:
                refused += 1
        best = problem.costs_ms(every, task, MODEL).min()
        for agent, options, most in (("exact", {}, 1.0001), ("plan-search", few, 1.35)):
            solver: Any = make_agent(agent, cost_model=MODEL, **options)
            cost = problem.cost_ms(problem.checked(solver.place(task), task), task, MODEL)
            assert best * (1 - 1e-9) <= cost <= best * most, (seed, agent)
            if agent == "exact":
                assert solver.last_bound_ms is not None
                assert solver.last_bound_ms <= best * (1 + 1e-9)
                simple = MODEL.bounds(MODEL.loads(task.tables, task.topology), task.topology)[0]
                assert solver.last_bound_ms >= min(simple, best) * (1 - 1e-9)
        plan = PlanSearchAgent(SPLITTING, **few).plan(task)
        planned = replace(task, splittable=True)
        problem_of(planned).checked(plan, planned)
        assert plan_lower_bound_ms(task.tables, task.topology, SPLITTING) <= best
        free = Task("random", tables, topology)
        dearer += best > 1.001 * problem.cost_ms(make_agent("exact", cost_model=MODEL).place(free), free, MODEL)
    assert refused
    assert dearer


def test_states_of_rows_in_host_memory_take_none_of_it() -> None:
    """Of 1.2 MB of each table, 0.4 are states of rowwise Adagrad, and in HBM."""
    tables = Tables.from_zipf([100_000] * 2, 4, [20.0] * 2, 1.0, Workload(4096, "fp16", "rowwise_adagrad"))
    free = Constraints.none(2, 2)
    for part, limits in ((900_000, free), (1_700_000, replace(free, together=((0, 1),)))):
        topology = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=1_000_000 + part)
        topology = replace(topology, host=HostMemory(1_000_000, 16.0, 20.0))
        task = Task("states", tables, topology, constraints=replace(limits, in_host=(0, 1)))
        for agent in ("exact", "local-search"):
            problem = problem_of(task)
            answer = problem.checked(make_agent(agent, cost_model=MODEL, max_queries=500).place(task), task)
            assert len(set(answer.tolist())) == (1 if limits.together else 2)
        with pytest.raises(InvalidConstraintsError, match="no device has host memory"):
            replace(task, topology=topology.with_caps(1_790_000))


def test_a_search_leaves_room_in_each_memory() -> None:
    """Eight equal tables that must be in HBM, and eight that must be in the host: two of each for each of 4 devices."""
    tables = Tables.from_zipf([1000] * 16, 64, [50.0] * 8 + [0.1] * 8, 1.0, Workload(1024, "fp16"))
    size = int(tables.memory_bytes[0])
    topology = hardware_profile("a100-dgx").topology(4, memory_cap_bytes=4 * size)
    topology = replace(topology, host=HostMemory(2 * size, 16.0, 20.0))
    limits = replace(Constraints.none(16, 4), in_hbm=tuple(range(8)), in_host=tuple(range(8, 16)))
    task = Task("tight", tables, topology, constraints=limits, splittable=True)
    for agent in (PlanSearchAgent(MODEL, max_queries=2_000), LocalSearchAgent(MODEL, max_queries=2_000)):
        device = agent.place(task)
        for kept in (device[:8], device[8:]):
            assert np.bincount(kept, minlength=4).tolist() == [2, 2, 2, 2], agent.name


@pytest.mark.parametrize("agent", ["random", "cost-greedy", "lane-greedy", *PAPER_SCORES])
def test_heuristics_keep_to_constraints(agent: str, tasks: Callable[..., Any]) -> None:
    for task in tasks(12, 20, 4):
        problem_of(task).checked(make_agent(agent).place(task), task)


@pytest.mark.parametrize("agent", ["random", "lane-greedy", "cost-greedy", "local-search"])
def test_agents_that_place_spread_the_tables_that_may_not_be_whole(agent: str, tasks: Callable[..., Any]) -> None:
    kinds = set()
    for task in tasks(10, 14, 4, types=True, devices_per_host=2):
        may_spread = np.any(
            [task.constraints.may_spread(each, np.arange(4)) for each in ("row_wise", DATA_PARALLEL)], 0
        )
        if (task.constraints.may_be_whole | may_spread).all():
            with suppress(NoPlacementFoundError):  # memory
                plan = problem_of(task).checked(make_agent(agent).plan(task), task)
                kinds |= {sharding.sharding_type for sharding in plan.tables}
        else:
            with pytest.raises(NoPlacementFoundError, match="do not permit that for all tables"):
                make_agent(agent).plan(task)
    assert {"table_wise", DATA_PARALLEL} < kinds


def test_tables_that_stay_together_are_placed_one_after_another(random_tables: Callable[..., Tables]) -> None:
    # Each device holds three tables: were the mates placed apart in the order, no room would be left for the second.
    rng = np.random.default_rng(1)
    tables = random_tables(rng, 1, dims=(16,)).select(np.zeros(6, np.int64))
    topology = load_suite("dlrm-20x4")[0].topology
    topology = replace(topology, num_devices=2, memory_cap_bytes=np.full(2, 3 * int(tables.memory_bytes[0])))
    limits = replace(Constraints.none(6, 2), together=((0, 4, 5),))
    task = Task("full", tables, topology, constraints=limits)
    for name in ("random", "cost-greedy", "size-greedy"):
        problem_of(task).checked(make_agent(name).place(task), task)


def test_large_tables_find_room_beside_tables_that_are_kept_to_few_devices(
    random_tables: Callable[..., Tables],
) -> None:
    """A pair that fills a device does not fit where small tables, which come first, were put."""
    tables = random_tables(np.random.default_rng(2), 1, dims=(16,)).select(np.zeros(6, np.int64))
    tables = replace(tables, num_embeddings=tables.num_embeddings * np.array([1, 1, 1, 10, 9, 8]))
    size = int(tables.memory_bytes[0])
    topology = replace(hardware_profile("a100-dgx").topology(3), memory_cap_bytes=np.full(3, 19 * size))
    devices = np.ones((6, 3), np.bool_)
    devices[:3] = [[True, True, False], [False, True, True], [True, False, True]]
    limits = replace(Constraints.none(6, 3), devices=devices, together=((3, 4),))
    task = Task("tight", tables, topology, constraints=limits)
    problem_of(task).checked(PlanSearchAgent(max_queries=300).place(task), task)


def test_plans_keep_to_constraints(tasks: Callable[..., Any]) -> None:
    forms = set()
    for number, task in enumerate(tasks(20, 14, 4, types=True, devices_per_host=2)):
        plan = problem_of(task).checked(PlanSearchAgent(max_queries=1_000, seed=number).plan(task), task)
        forms |= {sharding.sharding_type for sharding in plan.tables}
    assert forms == set(SHARDING_TYPES)


@pytest.mark.parametrize("name", SHARDING_TYPES)
def test_no_table_may_be_whole_but_in_one_form(name: str, random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(3), 12, 4, devices_per_host=2, dims=(32, 64))
    types = np.tile(np.isin(SHARDING_TYPES, (name,)), (12, 1))
    limits = replace(Constraints.none(12, 4), sharding_types=types)
    task = replace(task, splittable=True, known_placement=None, constraints=limits)
    plan = problem_of(task).checked(PlanSearchAgent(max_queries=500).plan(task), task)
    kinds = {sharding.sharding_type for sharding in plan.tables}
    assert kinds <= ({"table_wise", "column_wise"} if name in ("table_wise", "column_wise") else {name})


def test_a_table_may_be_kept_to_one_host(random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(4), 8, 4, devices_per_host=2)
    record = {"tables": {task.tables.names[0]: {"sharding_types": ["table_row_wise"], "devices": [2, 3]}}}
    limits = constraints_from_json(record, task.tables, 4)
    task = replace(task, splittable=True, known_placement=None, constraints=limits)
    plan = problem_of(task).checked(PlanSearchAgent(max_queries=500).plan(task), task)
    assert plan.tables[0].devices == [2, 3]


def test_constraints_that_permit_everything_change_no_plan() -> None:
    for name in ("shard-4", "sequence-16"):
        task = load_suite(name)[0]
        limits = Constraints.none(task.num_tables, task.num_devices)
        found = [PlanSearchAgent(max_queries=2_000).plan(each) for each in (task, replace(task, constraints=limits))]
        assert found[0] == found[1], name
    task = load_suite("mixdim-4")[0]
    limits = Constraints.none(task.num_tables, task.num_devices)
    free, none = (LocalSearchAgent(max_queries=3_000).place(each) for each in (task, replace(task, constraints=limits)))
    assert np.array_equal(free, none)


def test_plans_are_balanced_and_joined_within_constraints() -> None:
    changed = 0
    rng = np.random.default_rng(8)
    for drawn in load_suite("mixdim-8", "train")[:4]:
        task = with_constraints(replace(drawn, splittable=True), rng)
        plan = PlanSearchAgent(max_queries=1_000).plan(task)
        for other in (joined(plan, task, SPLITTING), balanced(plan, task, SPLITTING, SHARDING_TYPES, 8)):
            problem_of(task).checked(other, task)
            changed += other != plan
    assert changed  # so that the check is one


def test_forms_that_policies_place_keep_to_constraints() -> None:
    rng, placed = np.random.default_rng(9), set()
    for drawn in load_suite("mixdim-8", "train")[:4]:
        task = with_constraints(replace(drawn, splittable=True), rng)
        for form in forms_of(task):
            plan = form.plan(make_agent("size-greedy").place(form.task))
            placed |= {sharding.sharding_type for sharding in plan.tables}
            problem_of(task).checked(plan, task)
    assert placed >= {"table_wise", "column_wise", "row_wise", "data_parallel"}


def test_bytes_that_another_planner_reserves_count(random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(6), 6, 2)
    cap = int(task.topology.memory_cap_bytes[0])
    reserved = np.zeros((6, len(SHARDING_TYPES), 2), np.int64)
    reserved[:3, :, 0] = cap // 2 + 1  # of the first three tables, each device has room for one part
    limits = replace(Constraints.none(6, 2), least_bytes=reserved)
    task = replace(task, splittable=True, known_placement=None, constraints=limits)
    with pytest.raises(NoPlacementFoundError, match="relax the constraints"):
        PlanSearchAgent(max_queries=200).plan(task)
    reserved[2] = 0
    fits = replace(task, constraints=replace(limits, least_bytes=reserved))
    plan = PlanSearchAgent(max_queries=200).plan(fits)
    assert sorted(plan.tables[0].devices + plan.tables[1].devices) == [0, 1]


def test_blocks_without_rows_where_constraints_permit_them(random_task: Callable[..., Task]) -> None:
    """Of 5 rows in four blocks of two, three have rows; the search counts the last block as one of these."""
    task = random_task(np.random.default_rng(8), 2, 4)
    rows = np.array([5, 9])
    distinct = np.minimum(rows, task.tables.lookups_per_batch) * 0.5
    tables = replace(task.tables, num_embeddings=rows, distinct_rows=distinct)
    types = np.array([[name == "row_wise" for name in SHARDING_TYPES], [True] * 5])
    limits = replace(Constraints.none(2, 4), sharding_types=types)
    topology = replace(task.topology, memory_cap_bytes=2**30)
    with pytest.raises(InvalidConstraintsError, match="may be row_wise only, and has no such form"):
        Task("few", tables, topology, splittable=True, constraints=limits)
    task = Task("few", tables, topology, splittable=True, constraints=replace(limits, empty_blocks=True))
    plan = problem_of(task).checked(PlanSearchAgent(max_queries=500).plan(task), task)
    assert [shard.num_rows for shard in plan.tables[0].shards] == [2, 2, 1, 0]
    options = SplitOptions(task, SPLITTING, SHARDING_TYPES)
    row_wise = next(way for way in options.spreads if way.sharding_type == "row_wise")
    third = SPLITTING.loads(shard_tables(tables, "row_wise", topology, blocks=np.array([3, 3])), topology, "row_wise")
    assert options.loads[:, row_wise.variant].tolist() == third.tolist()


def test_exact_says_that_no_placement_meets_the_constraints(random_task: Callable[..., Task]) -> None:
    task = random_task(np.random.default_rng(7), 6, 2)
    record = {"tables": {"*": {"sharding_types": ["data_parallel"]}}}
    limits = constraints_from_json(record, task.tables, 2)
    task = replace(task, splittable=True, known_placement=None, constraints=limits)
    with pytest.raises(NoPlacementFoundError, match="may not be whole on one device"):
        make_agent("exact").place(task)
