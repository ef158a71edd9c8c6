"""Searches on many devices: balancing in pairs of devices, reforms by price, and runs that grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents.search import PlanSearchAgent
from shard_gym.agents.search.items import Items, put_where_emptiest
from shard_gym.agents.search.pairs import PAIRED_FROM, PairSearch
from shard_gym.agents.search.plan_search import (
    DEFAULT_QUERIES,
    LONGER,
    MORE_QUERIES,
    default_queries,
    run_ends,
)
from shard_gym.agents.search.reforms import Reformer
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.cost_models import CountedCostModel, make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import Task, problem_of

MODEL = make_cost_model("analytical", additive=True, splits=True)
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


def drawn(seed: int, tables: int, devices: int) -> Task:
    """Tables of mixed dims on A100."""
    rng, pool = np.random.default_rng(seed), load_pool("dlrm-2021").tables
    own = pool.select(rng.integers(len(pool), size=tables)).with_dims(rng.choice([16, 32, 64, 128], tables))
    topology = hardware_profile("a100-dgx").topology(devices)
    return Task(f"drawn-{seed}", own, topology, splittable=True)


def start_of(task: Task) -> SplitTables:
    options = SplitOptions(task, MODEL, SHARDING_TYPES, 4)
    return SplitTables.whole(options, put_where_emptiest(Items.of_tables(task, MODEL)))


@pytest.mark.parametrize("devices", [PAIRED_FROM, PAIRED_FROM + 1])
def test_equal_tables_that_begin_on_a_third_of_the_devices_end_up_even(devices: int) -> None:
    tables = Tables.from_zipf([10_000] * (3 * devices), 64, 10.0, 1.0, Workload(1024))
    topology = hardware_profile("a100-dgx").topology(devices)
    task = Task("equal", tables, topology, splittable=True)
    items, rng = Items.of_tables(task, MODEL), np.random.default_rng(0)
    search = PairSearch(items, np.arange(3 * devices) // 9, rng)
    search.run(NEVER)
    assert np.bincount(search.best.found, minlength=devices).tolist() == [3] * devices
    assert search.best.cost == pytest.approx(items.cost_ms(np.arange(3 * devices) % devices))


@given(seed=st.integers(0, 1000), tables=st.integers(1, 60), devices=st.integers(2, 40))
@settings(max_examples=20, deadline=None)
def test_balancing_never_costs_more_and_keeps_to_memory(seed: int, tables: int, devices: int) -> None:
    task = drawn(seed, tables, devices)
    items = Items.of_tables(task, MODEL)
    start = put_where_emptiest(items)
    caps = task.topology.memory_cap_bytes - np.minimum(items.memory_left(start), task.topology.memory_cap_bytes // 3)
    items = replace(items, free=caps)  # short of memory: no device gets much fuller than the fullest
    search = PairSearch(items, start, np.random.default_rng(seed))
    search.run(NEVER)
    assert items.memory_left(search.best.found).min() >= 0
    assert search.best.cost == pytest.approx(items.cost_ms(search.best.found))
    assert search.best.cost <= items.cost_ms(start) * (1 + 1e-12)
    again = PairSearch(items, start, np.random.default_rng(seed))
    again.run(NEVER)
    assert again.best.found.tolist() == search.best.found.tolist()


def test_balancing_keeps_tables_apart_and_on_their_devices() -> None:
    task = drawn(3, 80, PAIRED_FROM)
    devices = np.ones((80, PAIRED_FROM), np.bool_)
    devices[:20, 8:] = False
    limits = Constraints.none(80, PAIRED_FROM)
    limits = replace(limits, devices=devices, apart=(tuple(range(20, 50)),))
    start = np.concatenate([np.arange(20) % 8, np.arange(30), np.zeros(30, np.int64)])
    items = replace(Items.of_tables(task, MODEL), constraints=limits)
    search = PairSearch(items, start, np.random.default_rng(0))
    search.run(NEVER)
    assert search.best.cost < items.cost_ms(start)
    for placement in (search.best.found, search.placement):
        assert placement[:20].max() < 8
        assert len(set(placement[20:50].tolist())) == 30


def test_a_round_costs_an_evaluation_for_each_change_of_a_pair_and_not_of_each_pair() -> None:
    model = CountedCostModel(MODEL)
    task, start = drawn(0, 2 * 128, 128), np.arange(256) // 4
    search = PairSearch(Items.of_tables(task, model), start, np.random.default_rng(0))
    before, rounds = model.queries, 0

    def spent() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds > 1

    search.run(spent)
    assert 24 <= model.queries - before < 40  # (4 + 1)^2 - 1 changes, and the plans that are made of them
    assert (search.placement != start).sum() > 16  # many pairs at once


def test_prices_are_what_more_of_a_form_costs_all_devices() -> None:
    """Every table once more, in the form that it has: as dear as the mean device says."""
    task = drawn(1, 120, PAIRED_FROM)
    start, rng = start_of(task), np.random.default_rng(0)
    more, own = Reformer(start.options, rng).prices(start)
    items = start.items()
    search = PairSearch(items, start.device, rng)
    search.run(NEVER)
    held = items.device_loads(search.best.found)
    grown = held.copy()
    sums = np.delete(np.arange(held.shape[1]), MODEL.maxima)
    grown[:, sums] += 0.01 * items.loads.sum(axis=0)[sums] / len(held)
    phases = [MODEL.costs(loads, items.cluster)[0].mean(axis=0).sum() for loads in (held, grown)]
    assert own.sum() == pytest.approx((phases[1] - phases[0]) / 0.01, rel=0.1)
    assert np.isinf(more[:, 0]).all()  # that is the form which all have


@pytest.mark.parametrize("seed", range(3))
def test_reforms_change_one_form_and_fit(seed: int) -> None:
    task = drawn(seed, 150, PAIRED_FROM)
    problem, start = problem_of(task), start_of(task)
    reformer, made = Reformer(start.options, np.random.default_rng(seed)), 0
    split = start
    for _ in range(40):
        changed = reformer.changed(split, reformer.prices(split))
        if changed is None:
            continue
        before, plan = split.plan(), problem.checked(changed.plan(), task)
        differ = [new for old, new in zip(before.tables, plan.tables, strict=True) if old != new]
        assert 1 <= len(differ) <= 64
        assert len({each.sharding_type for each in differ}) == 1
        split, made = changed, made + 1
    assert made > 10
    assert len({each.sharding_type for each in split.plan().tables}) > 2


def test_runs_do_not_depend_on_the_evaluations_in_all() -> None:
    ends = list(run_ends(DEFAULT_QUERIES, 50, 10_000_000))
    assert ends[0] >= 50
    assert DEFAULT_QUERIES in ends
    assert all(later == pytest.approx(LONGER * end, rel=0.02) for end, later in pairwise(ends))
    for most in (1, 60, 5_000, 200_000, 200_001):
        own = list(run_ends(DEFAULT_QUERIES, 50, most))
        assert own == ends[: len(own)]
        assert own[-1] >= most
        assert [end for end in ends if end < most] == own[:-1]


def test_the_default_grows_with_devices() -> None:
    assert [default_queries(devices) for devices in (1, 2, 8)] == [DEFAULT_QUERIES] * 3
    assert DEFAULT_QUERIES < default_queries(12) < MORE_QUERIES
    assert [default_queries(devices) for devices in (16, 768)] == [MORE_QUERIES] * 2
    assert default_queries(1536) == MORE_QUERIES // 2


BUDGETS = (50, 300, 1_000, 3_000)
"""With these a search ends inside a run, and at the end of one."""


@pytest.mark.parametrize("kind", range(3))
def test_more_evaluations_never_cost_more(kind: int) -> None:
    """On ten tasks of each kind: on few devices, on many, and short of memory."""
    for number in range(10):
        if kind == 0:
            task = drawn(number, 4 + 4 * number, 2 + number % 7)
        elif kind == 1:
            task = drawn(number, 30 + 4 * number, PAIRED_FROM + number)
        else:
            task = drawn(number, 20, 16)
            task = replace(task, topology=task.topology.with_caps(task.tables.memory_bytes.sum() // 10))
        costs = []
        for budget in BUDGETS:
            agent = PlanSearchAgent(max_queries=budget, seed=number)
            costs.append(problem_of(task).cost_ms(agent.plan(task), task, MODEL))
        assert costs == sorted(costs, reverse=True), (task.name, costs)
