"""The search over plans: it finds the best of all plans of tiny tasks, is valid, repeats, and keeps to its budget."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.agents.search import PlanSearchAgent, plan_search
from shard_gym.agents.search.moldable import moldable_splits
from shard_gym.agents.search.plan_starts import shapes_by_price, starts
from shard_gym.agents.search.search_plans import search_plans
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.errors import (
    InvalidOptionError,
    InvalidPlanError,
    NoPlacementFoundError,
    UnknownNameError,
)
from shard_gym.cost_models import CountedCostModel, make_cost_model
from shard_gym.cost_models.base import bounds_of_plans, loads_of_plan
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop.torchrec_json import from_torchrec_json, torchrec_json
from shard_gym.plans import (
    SHARDING_TYPES,
    ShardingPlan,
    TableSharding,
    check_plan,
    column_wise,
    data_parallel,
    plan_from_json,
    plan_memory_used,
    plan_to_json,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.column_levels import NONE, near_equal_widths
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, load_suite
from shard_gym.tasks.suites.best_known import best_known_costs

MODEL = make_cost_model(additive=True, splits=True)


def column_cuts(dim: int, max_shards: int) -> list[list[int]]:
    """Widths of 2, 3 and 4 nearly equal shards, and of one half with both halves of the other; 3 of odd quarters."""
    counts = [k for k in range(2, max_shards + 1) if k != 3 or dim // 4 % max_shards]
    found = [near_equal_widths(dim, k) for k in counts if k <= dim // 4 and (dim % (4 * k) == 0 or dim & (dim - 1))]
    halves = near_equal_widths(dim, 2)
    if max_shards == 4 and min(halves) >= 8:
        found += [[halves[one], *near_equal_widths(halves[1 - one], 2)] for one in range(2)]
    return found


def shardings(tables: Tables, topology: Topology, max_shards: int) -> Iterator[TableSharding]:
    """Every way to shard one table with at most two or four column shards."""
    devices, table = range(topology.num_devices), 0
    yield from (table_wise(tables, table, device) for device in devices)
    ways: list[Any] = [
        lambda own=own, widths=widths: column_wise(tables, table, own, widths)
        for widths in column_cuts(int(tables.embedding_dim[0]), max_shards)
        for own in product(devices, repeat=len(widths))
    ]
    ways += [lambda: row_wise(tables, table, topology), lambda: data_parallel(tables, table, topology)]
    hosts = -(-topology.num_devices // topology.devices_per_host)
    ways += [lambda host=host: table_row_wise(tables, table, topology, host) for host in range(hosts)]
    for way in ways:
        try:
            yield way()
        except InvalidPlanError:
            continue


def cost_ms(plan: ShardingPlan, task: Task) -> float:
    return MODEL.estimate(plan, task.tables, task.topology).total_ms


def best_of_all(task: Task, max_shards: int = 2) -> float:
    """The lowest cost of all plans that fit, from the loads and bytes of each sharding of each table alone."""
    loads, free = np.zeros((1, task.num_devices, MODEL.num_loads)), task.topology.memory_cap_bytes[None]
    for table in range(task.num_tables):
        alone = task.tables.select([table])
        ways = [ShardingPlan((sharding,)) for sharding in shardings(alone, task.topology, max_shards)]
        more = np.stack([loads_of_plan(MODEL, plan, alone, task.topology) for plan in ways])
        needed = np.stack([plan_memory_used(plan, alone, task.num_devices) for plan in ways])
        free = (free[:, None] - needed).reshape(-1, task.num_devices)
        loads = MODEL.add(loads[:, None], more).reshape(-1, task.num_devices, MODEL.num_loads)
        fits = (free >= 0).all(axis=1)
        loads, free = loads[fits], free[fits]
    return float(MODEL.costs(loads, task.topology.cluster())[1].min())


@pytest.mark.parametrize("slack", [1.3, None])
@pytest.mark.parametrize("task_seed", range(3))
def test_it_finds_the_best_of_all_plans(random_task: Any, task_seed: int, slack: float | None) -> None:
    """Two or three tables and devices, one to three devices on a host, little memory or much, all forms of tables."""
    rng = np.random.default_rng(task_seed)
    tables, devices = [(2, 3), (3, 2), (3, 3)][task_seed % 3]
    of_host = int(rng.integers(1, 4))
    task = random_task(rng, tables, devices, slack=slack, dims=(8, 64, 128, 256), devices_per_host=of_host)
    best = best_of_all(task)
    for seed in range(2):
        found = PlanSearchAgent(max_shards=2, max_queries=4_000, seed=seed).plan(task)
        assert cost_ms(found, task) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("dims", "devices", "slack"),
    [((100, 36), 3, 1.2), ((124, 12), 2, None), ((200, 100), 2, 1.2), ((60, 64), 2, 1.2), ((36, 12), 3, None)],
)
def test_it_finds_the_best_of_all_plans_of_dims_whose_halves_are_no_shards(
    random_task: Any, dims: tuple[int, int], devices: int, slack: float | None
) -> None:
    drawn = random_task(np.random.default_rng(devices), 2, devices, devices_per_host=2)
    tables = drawn.tables.with_dims(dims)
    cap = None if slack is None else int(slack * tables.memory_bytes.sum() / devices)
    topology = hardware_profile("a100-dgx").topology(devices, devices_per_host=2, memory_cap_bytes=cap)
    task = Task("odd", tables, topology, splittable=True)
    found = PlanSearchAgent(max_shards=4, max_queries=10_000).plan(task)
    assert cost_ms(found, task) == pytest.approx(best_of_all(task, max_shards=4), rel=1e-9)


COLUMNS = ("table_wise", "column_wise")


def short_of_memory(dims: list[int], columns: list[int], optimizer: str = "sgd") -> Task:
    """Tables of so many columns, and devices of which each has room for so many of them, in one shard."""
    tables = Tables.from_zipf([100_000] * len(dims), dims, 5.0, 1.0, Workload(8192, "fp32", optimizer))
    room = 100_000 * tables.workload.row_bytes(np.array(columns))
    topology = hardware_profile("a100-dgx").topology(len(columns), memory_cap_bytes=room)
    return Task("short", tables, topology, splittable=True)


@pytest.mark.parametrize(
    ("dims", "columns", "wanted"),
    [
        ([100], [20] * 5, {(20,) * 5}),
        ([36], [12] * 3, {(12,) * 3}),
        ([124], [64, 64], {(60, 64)}),
        ([12], [4] * 3, {(4,) * 3}),
        ([200], [28] * 6 + [32], {(28,) * 6 + (32,)}),
        ([100, 128], [52, 112, 64], None),
        ([96], [32] * 3, {(32,) * 3}),  # halves are shards, but none of their forms fits
        ([128, 4], [44, 44, 44], None),
        ([128], [12] * 12, {(8,) * 4 + (12,) * 8}),  # more than eight shards
    ],
)
def test_tables_are_cut_as_the_caps_need_it(
    dims: list[int], columns: list[int], wanted: set[tuple[int, ...]] | None
) -> None:
    """The plan is valid, costs what the search says, and is read back equal from both formats."""
    task = short_of_memory(dims, columns, "rowwise_adagrad" if len(dims) == 1 else "sgd")
    split = PlanSearchAgent(sharding_types=COLUMNS, max_queries=3_000).split(task)
    plan = check_plan(split.plan(), task.tables, task.topology)
    widths = {tuple(sorted(shard.num_columns for shard in sharding.shards)) for sharding in plan.tables[:1]}
    assert wanted is None or widths == wanted
    assert split.items().cost_ms(split.device) == cost_ms(plan, task)
    lower, upper = bounds_of_plans(MODEL, task.tables, task.topology)
    assert lower <= cost_ms(plan, task) <= upper
    tables, topology = task.tables, task.topology
    for written, read in (
        (plan_to_json(plan, tables, topology), plan_from_json),
        (torchrec_json(plan, tables, topology, "ebc"), from_torchrec_json),
    ):
        assert read(json.loads(json.dumps(written)), tables, topology) == plan


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_parts_of_any_width_cost_and_take_what_their_shards_do(random_tables: Any, seed: int) -> None:
    """From random forms, halvings and mergers: loads and bytes of the parts are those of the plan from scratch."""
    rng = np.random.default_rng(seed)
    dims = tuple((4 * rng.integers(1, 65, 4)).tolist())
    tables = random_tables(rng, 4, dims=dims, optimizer=str(rng.choice(["sgd", "rowwise_adagrad", "adam"])))
    topology = hardware_profile("a100-dgx").topology(int(rng.integers(1, 7)), devices_per_host=int(rng.integers(1, 4)))
    task = Task("any", tables, topology, splittable=True)
    options = SplitOptions(task, MODEL, SHARDING_TYPES, int(rng.choice([2, 8, 16])), every_count=bool(rng.integers(2)))
    levels = options.levels
    level = np.array([rng.choice(np.flatnonzero(own)) for own in levels.is_form])
    spread = np.full(4, NOT_SPREAD)
    replicated = [way.sharding_type for way in options.spreads].index(DATA_PARALLEL)
    spread[0] = rng.choice([NOT_SPREAD, replicated])
    split = SplitTables.in_parts(options, spread, level)
    split = split.moved(rng.integers(task.num_devices, size=len(split.table)))
    for _ in range(6):
        part = int(rng.integers(len(split.table)))
        together = levels.merged(split.table[part], split.level[part], split.level)
        mates = np.flatnonzero((together != NONE) & (split.table == split.table[part]))
        mates = mates[mates != part]
        device = int(rng.integers(task.num_devices))
        if options.can_halve(split.table[part], split.level[part]) and rng.random() < 0.5:
            split = split.halved(part, device)
        elif len(mates):
            split = split.merged(part, int(rng.choice(mates)), device)
    plan = split.plan()
    used = topology.memory_cap_bytes - split.items().memory_left(split.device)
    assert np.array_equal(used, plan_memory_used(plan, tables, task.num_devices))
    assert [sum(s.num_columns for s in each.shards) for each in plan.tables[1:]] == tables.embedding_dim[1:].tolist()
    assert split.items().cost_ms(split.device) == pytest.approx(cost_ms(plan, task), rel=1e-12)


@pytest.mark.parametrize(("columns", "most"), [(16, 8), (12, 32)])
def test_a_table_larger_than_eight_devices_may_have_32_shards(columns: int, most: int) -> None:
    """Searches and the rule decide it alike; who asks for 8 has 8."""
    task = short_of_memory([128], [columns] * 12)
    own = SplitOptions(task, CountedCostModel(MODEL), SHARDING_TYPES)
    [(_, ruled), *_] = moldable_splits(task)
    assert (own.max_shards, ruled.options.max_shards) == (most, most)
    if most > 8:
        with pytest.raises(NoPlacementFoundError, match="and at most 8 shards of a table"):
            PlanSearchAgent(sharding_types=COLUMNS, max_queries=500, max_shards=8).plan(task)


def test_many_shards_are_searched_after_half_as_many_and_from_their_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each run; with at most 8 shards there is one search. So it costs no more than half as many shards did."""
    searches = list[tuple[int, list[float], float]]()

    def spied(found: Any, rng: np.random.Generator, budget: Any) -> Any:
        found = list(found)
        best = search_plans(found, rng, budget)
        costs = [each.items().cost_ms(each.device) for each in found]
        searches.append((best.options.max_shards, costs, best.items().cost_ms(best.device)))
        return best

    monkeypatch.setattr(plan_search, "search_plans", spied)
    task = short_of_memory([128, 64, 32], [12] * 24)
    check = PlanSearchAgent(max_queries=2_000).plan(task)
    coarse, fine = searches[::2], searches[1::2]
    assert [most for most, _, _ in coarse] == [16] * len(fine)
    assert [most for most, _, _ in fine] == [32] * len(coarse)
    for (_, _, before), (_, of_starts, after) in zip(coarse, fine, strict=True):
        assert after <= before * (1.0 + 1e-12)
        assert any(cost == pytest.approx(before, rel=1e-12) for cost in of_starts)
    assert cost_ms(check, task) == pytest.approx(min(after for *_, after in fine), rel=1e-12)
    searches.clear()
    PlanSearchAgent(max_queries=2_000, max_shards=8).plan(task)
    assert {most for most, _, _ in searches} == {8}


def test_what_would_help_is_named_where_nothing_fits() -> None:
    """More shards only where columns are left to cut: 100 columns are 25 shards of four, and no more."""
    options = {"sharding_types": COLUMNS, "max_queries": 500}
    with pytest.raises(NoPlacementFoundError, match=r"or allow more shards of a table \(max_shards\), or allow other"):
        PlanSearchAgent(**options, max_shards=4).plan(short_of_memory([100], [20] * 5))
    check = PlanSearchAgent(**options, max_shards=8).plan(short_of_memory([100], [20] * 5))
    assert len(check.tables[0].shards) == 5
    task = short_of_memory([40, 24], [32, 32])
    caps = task.topology.memory_cap_bytes + np.array([-1, 1])
    small = replace(task, topology=replace(task.topology, memory_cap_bytes=caps))
    with pytest.raises(NoPlacementFoundError) as error:
        PlanSearchAgent(**options, max_shards=16).plan(small)
    assert str(error.value).endswith(
        "Raise the caps of the devices, or allow other sharding types (row_wise, table_row_wise, data_parallel)."
    )


@pytest.mark.parametrize("seed", range(3))
def test_it_changes_one_spread_form_into_another(seed: int) -> None:
    """Moves, halvings and single spreads end 1.6% above the best plan of these tables."""
    rng, pool = np.random.default_rng([5, 5]), load_pool("dlrm-2021").tables
    tables = pool.select(rng.choice(len(pool), 3, replace=False)).with_dims(rng.choice([16, 64, 128, 256], 3))
    task = Task("tiny", tables, hardware_profile("a100-dgx").topology(3), splittable=True)
    found = PlanSearchAgent(max_shards=2, max_queries=2_000, seed=seed).plan(task)
    assert cost_ms(found, task) == pytest.approx(best_of_all(task), rel=1e-9)


def test_plans_are_valid_and_of_the_types_that_are_allowed(random_task: Any) -> None:
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tables, devices = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        task = random_task(rng, tables, devices, devices_per_host=2, slack=rng.choice([1.1, 2.0]))
        types = ("table_wise", *rng.permutation(["column_wise", "row_wise", "table_row_wise", "data_parallel"])[:2])
        agent = PlanSearchAgent(sharding_types=types, max_shards=int(rng.choice([1, 2, 8])), max_queries=300)
        try:
            plan = check_plan(agent.plan(task), task.tables, task.topology)
        except NoPlacementFoundError:
            continue
        found += 1
        assert {sharding.sharding_type for sharding in plan.tables} <= set(types)
    assert found >= 18


def test_it_is_far_below_the_best_known_placements() -> None:
    """The suites have no plans yet; these placements are best known for whole tables."""
    suite = load_suite("mlperf-x8")
    best = best_known_costs(suite, make_cost_model("analytical"))[suite[0].name]
    assert cost_ms(PlanSearchAgent(max_queries=40_000).plan(suite[0]), suite[0]) < 0.4 * best


def test_equal_seeds_give_equal_plans_and_others_differ() -> None:
    task = load_suite("mixdim-8")[1]
    first, again, *others = [PlanSearchAgent(seed=seed, max_queries=20_000).plan(task) for seed in (1, 1, 2, 3)]
    assert first == again
    assert any(other != first for other in others)


def test_it_keeps_to_its_budget_and_counts() -> None:
    task = load_suite("mixdim-4")[0]
    agent = PlanSearchAgent(max_queries=8_000)
    agent.plan(task)
    assert 8_000 <= agent.true_cost_queries(MODEL.fingerprint) <= 9_000
    assert agent.true_cost_queries("another-v1") == 0
    assert agent.budget_for(task) == 8_000


@pytest.mark.parametrize(("dim", "devices"), [(100, 4), (36, 1)])
def test_dims_whose_halves_are_no_shards_are_planned(dim: int, devices: int) -> None:
    tables = Tables.from_zipf([100_000] * 6, [dim] * 6, np.full(6, 5.0), 1.0, Workload(batch_size=8192))
    task = Task("one dim", tables, hardware_profile("a100-dgx").topology(devices), splittable=True)
    check_plan(PlanSearchAgent(max_queries=2_000).plan(task), tables, task.topology)


def test_forms_by_price_keep_to_the_budget() -> None:
    tables = load_pool("dlrm-2022").tables.select(np.arange(50)).with_dims(np.tile([32, 128], 25))
    task = Task("many devices", tables, hardware_profile("a100-dgx").topology(64), splittable=True)
    agent = PlanSearchAgent(max_queries=20_000)
    agent.plan(task)
    assert agent.cost_model.queries <= 1.1 * agent.max_queries


def test_forms_by_price_put_tables_too_costly_for_a_device_on_a_host_each() -> None:
    rows, pooling = [2_000_000] * 4 + [100_000] * 60, [200.0] * 4 + [5.0] * 60
    tables = Tables.from_zipf(rows, [16] * 64, np.array(pooling), 1.0, Workload(batch_size=65_536))
    task = Task("hosts", tables, hardware_profile("v100-nvlink").topology(16, devices_per_host=4), splittable=True)
    options = SplitOptions(task, CountedCostModel(MODEL), SHARDING_TYPES, max_shards=8)
    split, _ = shapes_by_price(options, 100_000, most=1)[0]
    spreads = [options.spreads[number] for number in split.spread[split.spread != NOT_SPREAD].tolist()]
    assert [spread.sharding_type for spread in spreads] == ["table_row_wise"] * 4
    assert sorted(spread.host for spread in spreads) == [0, 1, 2, 3]
    assert (split.spread[4:] == NOT_SPREAD).all()


def test_large_parts_come_first_where_forms_by_price_would_not_fit() -> None:
    """Put by cost alone, the parts of the best forms of these tables leave no device with room for the last one."""
    rng, pool = np.random.default_rng(1), load_pool("dlrm-2022").tables
    tables = pool.select(rng.choice(len(pool), 47, replace=False)).with_dims(rng.choice([8, 32, 64, 256, 512], 47))
    cap = int(1.3 * tables.memory_bytes.sum() / 21)
    topology = hardware_profile("v100-nvlink").topology(21, memory_cap_bytes=cap)
    task = Task("short memory", tables, topology, splittable=True)
    options = SplitOptions(task, CountedCostModel(MODEL), SHARDING_TYPES, max_shards=8)
    (best, _), *_ = shapes_by_price(options, 100_000 // 6, most=1)
    assert (best.spread != NOT_SPREAD).sum() == 5
    found = starts(options, 100_000, lambda: False)
    assert any((each.spread == best.spread).all() and _parts(each) == _parts(best) for each in found)


def test_the_first_start_leaves_evaluations_for_others_where_devices_are_many(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 50, 32, dims=(128,))
    model, most = CountedCostModel(MODEL), 1_000
    options = SplitOptions(task, model, SHARDING_TYPES, max_shards=8)
    found = list(starts(options, most, lambda: model.queries > most))
    assert {len(each.table) for each in found} == {50, 100}, "whole tables, and halves"


def _parts(split: SplitTables) -> list[tuple[int, int]]:
    """The (table, level) of each part."""
    return sorted(zip(split.table.tolist(), split.level.tolist(), strict=True))


def test_with_whole_tables_alone_it_places(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 6, 3)
    placement = PlanSearchAgent(max_queries=2_000).place(task)
    plan = PlanSearchAgent(sharding_types=["table_wise"], max_queries=2_000).plan(task)
    assert plan.placement is not None
    assert placement.tolist() == plan.placement.tolist()


@pytest.mark.parametrize("dim", [4, 128])
def test_a_table_larger_than_a_device_is_split(random_task: Any, dim: int) -> None:
    task = random_task(np.random.default_rng(3), 1, 4, dims=(dim,))
    cap = int(task.tables.memory_bytes[0] * 0.6)
    large = Task("large", task.tables, replace(task.topology, memory_cap_bytes=np.full(4, cap)), splittable=True)
    plan = check_plan(PlanSearchAgent(max_queries=1_000).plan(large), large.tables, large.topology)
    assert plan.split_tables == [0]
    with pytest.raises(NoPlacementFoundError, match=r"No plan of task 'large' .*with table_wise and at most 8"):
        PlanSearchAgent(sharding_types=["table_wise"]).plan(large)


@pytest.mark.parametrize(("devices", "share"), [(3, 2.7), (6, 4.5), (7, 5.0)])
def test_a_table_is_spread_where_its_halves_do_not_fit_together(devices: int, share: float) -> None:
    """A power of two of parts, each larger than half a device, on fewer devices than parts; blocks of rows fit."""
    topology = hardware_profile("a100-dgx").topology(devices)
    rows = int(topology.device.memory_bytes * share / 256)
    workload = Workload(65_536, "fp16", "sgd")
    tables = Tables.from_zipf([rows, 10**6, 10**5], [128, 64, 64], [5.0, 10.0, 2.0], 1.0, workload)
    task = Task("large", tables, topology, splittable=True)
    for name, options in (("plan-search", {"max_queries": 500}), ("dreamshard", {"queries": 100})):
        plan = make_agent(name, **options).plan(task)
        assert check_plan(plan, tables, topology).tables[0].sharding_type in (ROW_WISE, TABLE_ROW_WISE)


def test_a_table_of_few_rows_is_not_cut_into_rows(four_tables: Tables) -> None:
    """One row on eight devices: the search must not spread it, although it spreads others."""
    one_row = replace(
        four_tables, num_embeddings=np.array([1, *four_tables.num_embeddings[1:]]), distinct_rows=np.ones(4)
    )
    task = Task("few", one_row, hardware_profile("a100-dgx").topology(8), splittable=True)
    agent = PlanSearchAgent(sharding_types=("table_wise", "column_wise", "row_wise"), max_queries=2_000)
    plan = check_plan(agent.plan(task), task.tables, task.topology)
    assert plan.tables[0].sharding_type != "row_wise"


def test_sharding_types_are_a_list_or_a_text() -> None:
    assert PlanSearchAgent(sharding_types="all").sharding_types == SHARDING_TYPES
    assert PlanSearchAgent(sharding_types="table_wise,row_wise").sharding_types == ("table_wise", "row_wise")
    for wrong in ({"sharding_types": "table_wise,grid"}, {"max_shards": 3}, {"max_shards": 2**62}):
        with pytest.raises((InvalidOptionError, UnknownNameError)):
            PlanSearchAgent(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("failing", [1, 100])
def test_a_run_without_a_plan_does_not_end_the_search(
    random_task: Any, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A longer run has more starts, one of which may fit; if none does, the first run's error is raised."""
    search, numbers = PlanSearchAgent._search, []

    def failing_at_first(agent: PlanSearchAgent, task: Task, types: Any, model: Any, run: Any, *key: Any) -> Any:
        numbers.append(run.number)
        if run.number < failing:
            raise NoPlacementFoundError(f"Run {run.number} found nothing.")
        return search(agent, task, types, model, run, *key)

    monkeypatch.setattr(PlanSearchAgent, "_search", failing_at_first)
    task, agent = random_task(np.random.default_rng(0), 6, 3), PlanSearchAgent(max_queries=30_000)
    if failing == 1:
        check_plan(agent.plan(task), task.tables, task.topology)
    else:
        with pytest.raises(NoPlacementFoundError, match="Run 0"):
            agent.plan(task)
    assert numbers[:2] == [0, 1]
