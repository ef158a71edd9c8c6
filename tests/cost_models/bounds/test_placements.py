"""Lower bounds by linear programs: never above a placement's cost, never below the bound that needs no solver."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

from shard_gym.agents import LocalSearchAgent
from shard_gym.common.errors import MemoryExceededError, MissingExtraError
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.bounds import lower_bound_ms
from shard_gym.cost_models.bounds import placements as bounds
from shard_gym.cost_models.bounds.placements import regions, whole_outputs, whole_tables
from shard_gym.hardware import PROFILES, Topology, hardware_profile
from shard_gym.plans import plan_of_placement
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

MODELS = [AnalyticalCostModel(), AnalyticalCostModel(FITTED._replace(overlap_loss=0.6, cycles_per_update=500.0))]


def cheapest(task: Task, placements: np.ndarray, model: AdditiveCostModel) -> float:
    loads, cluster = model.loads(task.tables, task.topology), task.topology.cluster()
    placed = np.stack([model.reduce(loads, placement, task.num_devices) for placement in placements])
    return float(model.costs(placed, cluster)[1].min())


def tiny(random_task: Any, seed: int, in_host: Any = None) -> Task:
    """Up to six tables on up to three devices, on one or two hosts, with or without memory caps that matter.

    With `in_host`, the HBM has room for 1 to 60% of the tables.
    """
    rng = np.random.default_rng(seed)
    tables, devices = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    slack = 1.2 if seed % 3 == 0 else None
    per_host = 2 if seed % 5 == 0 else 8
    profile = sorted(PROFILES)[seed % len(PROFILES)]
    task: Task = random_task(rng, tables, devices, slack=slack, profile=profile, devices_per_host=per_host)
    return task if in_host is None else in_host(task, np.exp(rng.uniform(np.log(0.01), np.log(0.6))))


@pytest.mark.parametrize("host_memory", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_the_bound_is_between_the_simple_one_and_the_optimum_of_120_tasks(
    random_task: Any, in_host: Any, valid_placements: Any, model: AnalyticalCostModel, host_memory: bool
) -> None:
    gaps = []
    for seed in range(30):
        task = tiny(random_task, seed, in_host if host_memory else None)
        optimum = cheapest(task, valid_placements(task), model)
        simple = model.bounds(model.loads(task.tables, task.topology), task.topology)[0]
        bound = lower_bound_ms(task.tables, task.topology, model)
        assert simple * (1 - 2e-12) <= bound <= optimum  # not even by a rounding error above it
        gaps.append([optimum / simple - 1, optimum / bound - 1])
    assert np.mean(gaps, axis=0)[1] < np.mean(gaps, axis=0)[0] / 2


def test_under_constraints_it_is_higher_and_no_placement_that_meets_them_costs_less(
    random_task: Any, in_host: Any, random_constraints: Any, valid_placements: Any
) -> None:
    higher, ratios = 0, []
    for seed in range(14):
        task = tiny(random_task, seed, in_host if seed % 2 else None)
        limits = random_constraints(np.random.default_rng(seed), task)
        plans = [(each, plan_of_placement(each, task.tables)) for each in valid_placements(task)]
        kept = [placement for placement, plan in plans if not limits.problem_of(plan, task.tables)]
        best = cheapest(task, np.stack(kept), MODELS[seed % 2])
        free, bound = (lower_bound_ms(task.tables, task.topology, MODELS[seed % 2], each) for each in (None, limits))
        assert bound <= best
        higher += bound > free * 1.001
        ratios.append(bound / best)
    assert higher > 2
    assert np.mean(ratios) > 0.9


def test_the_simple_bound_is_lowered_by_its_rounding_errors(valid_placements: Any) -> None:
    """Of these two tables it is the cost of the best placement, and was one unit in the last place above it."""
    tables = Tables.from_zipf([88944, 525372], 64, [28.998384422332947, 1.314035250551198], 1.0, Workload(4096))
    task = Task("tight", tables, PROFILES["a100-dgx"].topology(2))
    optimum = cheapest(task, valid_placements(task), MODELS[0])
    bound = lower_bound_ms(tables, task.topology, MODELS[0])
    assert optimum * (1 - 1e-11) <= bound <= optimum


@pytest.mark.parametrize("model", MODELS)
def test_it_is_tight_where_equal_groups_of_tables_fit_the_devices(
    planted_task: Any, model: AnalyticalCostModel
) -> None:
    task, best = planted_task(np.random.default_rng(1), 5, 4)
    optimum = model.estimate(best, task.tables, task.topology).total_ms
    assert lower_bound_ms(task.tables, task.topology, model) == pytest.approx(optimum, rel=1e-9)


def test_it_is_tight_where_equal_groups_of_tables_read_from_their_hosts(planted_task: Any, in_host: Any) -> None:
    task, best = planted_task(np.random.default_rng(1), 5, 4)
    task = in_host(task, 0.2)
    estimate = MODELS[0].estimate(best, task.tables, task.topology)
    without = MODELS[0].estimate(best, task.tables, replace(task.topology, host=None))
    assert estimate.total_ms > 1.1 * without.total_ms
    assert lower_bound_ms(task.tables, task.topology, MODELS[0]) == pytest.approx(estimate.total_ms, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_close_to_what_local_search_finds_with_host_memory(random_task: Any, in_host: Any, seed: int) -> None:
    task = in_host(random_task(np.random.default_rng(seed), 40, 4), (0.02, 0.05, 0.2)[seed])
    found = LocalSearchAgent(MODELS[0], max_queries=5000).place(task)
    cost = MODELS[0].estimate(found, task.tables, task.topology).total_ms
    simple = MODELS[0].bounds(MODELS[0].loads(task.tables, task.topology), task.topology)[0]
    bound = lower_bound_ms(task.tables, task.topology, MODELS[0])
    assert simple < 0.97 * bound
    assert 0.85 * cost < bound <= cost


def test_a_limit_on_programs_loosens_the_bound_only(random_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = AnalyticalCostModel(), random_task(np.random.default_rng(4), 60, 4)
    exact = lower_bound_ms(task.tables, task.topology, model)
    monkeypatch.setattr(bounds, "MAX_PROGRAMS", 2)
    costs = model.linear_costs(task.tables, task.topology)
    assert costs is not None
    first = next(regions(costs, task.tables.memory_bytes, task.topology.memory_cap_bytes))
    assert first.counts is None
    assert 0 < first.bound_ms < exact


@pytest.mark.parametrize("host_memory", [False, True])
def test_wrong_multipliers_give_a_lower_bound(
    random_task: Any, in_host: Any, host_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is computed from the multipliers; whatever the solver says, it stays below the right one."""
    model, task = AnalyticalCostModel(), random_task(np.random.default_rng(4), 8, 3)
    if host_memory:
        task = in_host(task, 0.1)
    costs = model.linear_costs(task.tables, task.topology)
    assert costs is not None
    right = [region.bound_ms for region in islice(regions(costs, *memory(task)), 1)]
    solve, rng = bounds.linprog(), np.random.default_rng(0)

    def disturbed(*arguments: Any) -> Any:
        result = solve(*arguments)
        result.ineqlin.marginals *= rng.uniform(0.5, 1.5, len(result.ineqlin.marginals))
        return result

    monkeypatch.setattr(bounds, "linprog", lambda: disturbed)
    for _ in range(5):
        wrong = [region.bound_ms for region in islice(regions(costs, *memory(task)), 1)]
        assert wrong[0] < right[0]


def memory(task: Task) -> tuple[Any, Any]:
    return task.tables.memory_bytes, task.topology.memory_cap_bytes


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 3))
def test_whole_tables_are_a_lower_bound_on_every_placement(loads: list[int], devices: int) -> None:
    placements = np.stack(np.meshgrid(*[np.arange(devices)] * len(loads)), axis=-1).reshape(-1, len(loads))
    sums = [np.bincount(placement, loads, devices).max() for placement in placements]
    values = np.array(loads, np.float64)
    assert values.sum() / devices <= whole_tables(values, devices) <= min(sums)
    assert whole_tables(values, devices) <= whole_outputs(values, devices) <= min(sums)


def test_equal_tables_are_rounded_up_to_whole_ones() -> None:
    assert whole_outputs(np.full(50, 64.0), 4) == 13 * 64


def test_outputs_of_sequence_tables_are_not_rounded_up_to_whole_bytes() -> None:
    """The bound on two tables on one device was infinite, as they had more outputs than they have in all."""
    tables = Tables.from_zipf([36929, 1843], [8, 4], [3.37, 6.4], 1.05, Workload(4096), pooled=np.zeros(2, np.bool_))
    task = Task("sequences", tables, PROFILES["a100-dgx"].topology(2))
    limits = replace(Constraints.none(2, 2), together=((0, 1),))
    cost = MODELS[0].estimate(np.array([0, 0]), task.tables, task.topology).total_ms
    assert cost * (1 - 1e-9) <= lower_bound_ms(task.tables, task.topology, MODELS[0], limits) <= cost


def test_without_scipy_the_error_names_the_extra(random_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    task = random_task(np.random.default_rng(0), 3, 2)
    with pytest.raises(MissingExtraError, match=r"shard-gym\[exact\]"):
        lower_bound_ms(task.tables, task.topology, AnalyticalCostModel())


def test_a_bound_holds_where_memory_just_fits() -> None:
    """A tiny hot table makes the multiplier of the memory a billion, so sums round by more than the bound's digits."""
    tables = Tables.from_zipf(
        [3, 111, 5517547, 21700159], [4, 32, 32, 128], [189.07, 48.69, 3.06, 11.53], 0.0, Workload(65536)
    )
    topology = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=5555240704)
    costs = []
    for placement in product(range(2), repeat=4):
        with suppress(MemoryExceededError):
            costs.append(MODELS[0].estimate(np.array(placement), tables, topology).total_ms)
    assert lower_bound_ms(tables, topology, MODELS[0]) <= min(costs)


@pytest.mark.parametrize("changes", [{"dram_gb_per_s": 1e-7}, {"l2_gb_per_s": 1e-9, "clock_ghz": 0.1}])
def test_a_bound_of_costs_beyond_the_solver_is_a_number(changes: dict[str, float]) -> None:
    profile = hardware_profile("a100-dgx")
    topology = Topology(replace(profile.device, **changes), profile.links, 2)
    tables = Tables.from_zipf([1000, 1000], [1024, 4], [1e4, 100.0], 0.0, Workload(2**22))
    bound = lower_bound_ms(tables, topology, MODELS[0])
    assert 0 < bound <= MODELS[0].estimate(np.array([0, 1]), tables, topology).total_ms * (1 + 1e-9)
