"""Lower bounds on plans: never above the cost of one, close to the best known ones, and best first over lane levels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from shard_gym.agents.search import PlanSearchAgent
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidPlanError,
    MemoryExceededError,
    NoPlacementFoundError,
)
from shard_gym.common.io.parsing import parse_json
from shard_gym.cost_models import AdditiveCostModel, AnalyticalShardingModel
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.analytical.grouped import model_of
from shard_gym.cost_models.analytical.index_exchange import EXPOSED, HIDDEN, INDEX_EXCHANGES
from shard_gym.cost_models.analytical.inference import InferenceCostModel
from shard_gym.cost_models.bounds import PlanProof, plan_lower_bound_ms, plan_tree, prove, proven_ms
from shard_gym.cost_models.bounds import plans as plan_bounds
from shard_gym.cost_models.bounds.lane_counts import Counts, best_first
from shard_gym.cost_models.bounds.plan_nodes import Branch
from shard_gym.hardware import PROFILES, Replicas, hardware_profile
from shard_gym.plans import (
    SHARDING_TYPES,
    ShardingPlan,
    TableSharding,
    column_wise,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task, load_suite, problem_of
from shard_gym.tasks.suites.best_known import stated_costs

MODEL = AnalyticalShardingModel()


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Bounds of 60 programs hold as those of 1,500 do, and take less than a second."""
    most, plan_bounds.MAX_PROGRAMS, plan_bounds.MIN_PROGRAMS = plan_bounds.MAX_PROGRAMS, 60, 60
    yield
    plan_bounds.MAX_PROGRAMS, plan_bounds.MIN_PROGRAMS = most, 200


def cost_ms(plan: ShardingPlan, task: Task, model: AnalyticalShardingModel = MODEL) -> float:
    """Infinity where the plan does not fit."""
    try:
        return model.estimate(plan, task.tables, task.topology).total_ms
    except MemoryExceededError:
        return float("inf")


def shardings(task: Task, table: int) -> Iterator[TableSharding]:
    """The ways to shard one table, with at most two column shards, one of them 4 columns wide or both equal."""
    tables, topology, devices = task.tables, task.topology, range(task.num_devices)
    dim = int(tables.embedding_dim[table])
    yield from (table_wise(tables, table, device) for device in devices)
    yield data_parallel(tables, table, topology)
    for pair, width in product(product(devices, repeat=2), {4, dim // 8 * 4}):
        if width < dim:
            yield column_wise(tables, table, pair, (width, dim - width))
    with suppress(InvalidPlanError):
        yield row_wise(tables, table, topology)
    for host in range(-(-task.num_devices // topology.devices_per_host)):
        with suppress(InvalidPlanError):
            yield table_row_wise(tables, table, topology, host)


def test_under_constraints_it_is_higher_and_no_plan_that_meets_them_costs_less(
    random_task: Any, random_constraints: Any
) -> None:
    """Of all plans of two tables on two or three devices, and of a search of more."""
    higher, ratios = 0, []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 2, 2 + (seed == 3), dims=(8, 48), devices_per_host=1 + seed % 3)
        limits = random_constraints(rng, task, types=True)
        every = (ShardingPlan(choice) for choice in product(*(list(shardings(task, table)) for table in range(2))))
        kept = [plan for plan in every if not limits.problem_of(plan, task.tables)]
        best = min(cost_ms(plan, task) for plan in kept)
        free, bound = (plan_lower_bound_ms(task.tables, task.topology, MODEL, each) for each in (None, limits))
        assert bound <= best, seed
        higher += bound > free * 1.001
        ratios.append(bound / best)
    assert higher > 2
    assert np.mean(ratios) > 0.85
    for seed in range(10, 13):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 12, 4, dims=(8, 48, 132), devices_per_host=1 << seed % 3)
        limits = random_constraints(rng, task, types=True)
        constrained = replace(task, splittable=True, known_placement=None, constraints=limits)
        plan = PlanSearchAgent(MODEL, max_queries=300).plan(constrained)
        assert plan_lower_bound_ms(task.tables, task.topology, MODEL, limits) <= cost_ms(plan, task), seed


@pytest.mark.parametrize(
    ("per_host", "host_memory", "index_exchange", "seeds"),
    [
        (1, False, HIDDEN, (0, 1)),
        (2, False, HIDDEN, (0, 1)),
        (4, False, HIDDEN, (4, 3)),
        (2, True, HIDDEN, (0, 1, 4)),
        (4, True, HIDDEN, (4, 1)),
        (2, False, EXPOSED, (0, 5)),
    ],
)
def test_it_is_below_the_best_of_all_plans_of_tiny_tasks(
    random_task: Any, in_host: Any, per_host: int, host_memory: bool, index_exchange: str, seeds: Sequence[int]
) -> None:
    """Two tables on two or three devices: on one host, on hosts of one size, or on hosts of two and one."""
    ratios, model = [], AnalyticalShardingModel(index_exchange=index_exchange)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        slack = 1.2 if seed % 2 else None
        task = random_task(rng, 2, 2 + seed % 2, slack=slack, dims=(8, 48, 136), devices_per_host=per_host)
        if host_memory:
            task = in_host(task, (0.05, 0.2, 0.5)[seed // 2])
        choices = product(*(list(shardings(task, table)) for table in range(2)))
        best = min(cost_ms(ShardingPlan(choice), task, model) for choice in choices)
        ratios.append(plan_lower_bound_ms(task.tables, task.topology, model) / best)
    assert max(ratios) <= 1.0
    # Of the exchange of indices, the slower start of messages is left out.
    assert np.mean(ratios[::2]) > (
        0.9 if index_exchange == HIDDEN else 0.85
    )  # where memory is scarce, that tables are whole matters more


def plan_of(task: Task) -> ShardingPlan:
    return PlanSearchAgent(MODEL, max_queries=100).plan(task)


def served(task: Task) -> Task:
    return replace(task, tables=replace(task.tables, workload=replace(task.tables.workload, training=False)))


@pytest.mark.parametrize(("kind", "least"), [("sequences", 0.85), ("serving", 0.95), ("replicas", 0.85)])
def test_it_is_below_the_best_of_all_plans_of_tiny_tasks_of_other_kinds(
    random_task: Any, kind: str, least: float
) -> None:
    """Two tables on two or four devices, in hosts of two: sequences, in serving, and a group with replicas."""
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        task = replace(random_task(rng, 2, 2 + seed % 2 * 2, dims=(8, 48), devices_per_host=2), known_placement=None)
        model: AdditiveCostModel = MODEL
        bounded: AnalyticalShardingModel = MODEL
        if kind == "sequences":
            task = replace(task, tables=replace(task.tables, pooled=np.array([False, seed > 1])))
        elif kind == "serving":
            task, model = served(task), InferenceCostModel()
            bounded = InferenceCostModel()
        else:
            task = replace(task, topology=replace(task.topology, replicas=Replicas(4, 2, 1 + 50 * seed)))
            model = model_of(task.topology, MODEL)
        costs = []
        for choice in product(*(list(shardings(task, table)) for table in range(2))):
            with suppress(InvalidPlanError, MemoryExceededError):
                costs.append(model.estimate(ShardingPlan(choice), task.tables, task.topology).total_ms)
        ratios.append(plan_lower_bound_ms(task.tables, task.topology, bounded) / min(costs))
    assert max(ratios) <= 1.0
    assert np.mean(ratios) > least


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_plan_costs_less(random_task: Any, in_host: Any, random_plan: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, devices, per_host = int(rng.integers(1, 7)), int(rng.integers(1, 8)), int(rng.integers(1, 5))
    slack, profile = rng.choice([None, 1.3, 3.0]), str(rng.choice(sorted(PROFILES)))
    dims = (8, 20, 48, 64, 132)
    task = random_task(rng, tables, devices, slack=slack, profile=profile, dims=dims, devices_per_host=per_host)
    if slack is None and seed % 2:
        task = replace(task, tables=task.tables.with_training(optimizer="adam"))
    if rng.random() < 0.5:
        task = in_host(task, np.exp(rng.uniform(np.log(0.01), np.log(1.1))))
    if rng.random() < 0.5:
        task = replace(task, topology=replace(task.topology, cross_host_ratio=float(rng.uniform(0.01, 1.0))))
    if rng.random() < 0.5:
        task = replace(task, topology=replace(task.topology, devices_per_domain=per_host * int(rng.integers(1, 4))))
    loss = rng.choice([FITTED.overlap_loss, 1.0])
    constants = FITTED._replace(overlap_loss=float(loss))
    serves = bool(rng.random() < 0.25)
    model = (InferenceCostModel if serves else AnalyticalShardingModel)(
        str(rng.choice(["fp32", "fp16", "mx4"])), constants, index_exchange=str(rng.choice(INDEX_EXCHANGES))
    )
    types: tuple[str, ...] = SHARDING_TYPES
    if serves:
        task = served(replace(task, known_placement=None))
    elif task.topology.host is None and rng.random() < 0.4:
        task = replace(task, known_placement=None, tables=replace(task.tables, pooled=rng.random(tables) < 0.5))
        types = tuple(kind for kind in SHARDING_TYPES if kind != "table_row_wise")
    bound = plan_lower_bound_ms(task.tables, task.topology, model)
    plans = [random_plan(rng, task.tables, task.topology, types) for _ in range(12)]
    with suppress(NoPlacementFoundError):
        plans.append(PlanSearchAgent(model, max_queries=80).plan(task))
    assert 0 < bound <= min(cost_ms(plan, task, model) for plan in plans)


@pytest.mark.parametrize(("name", "number", "share"), [("shard-4", 0, 0.94), ("shard-generalize", 3, 0.92)])
def test_it_is_close_to_the_best_known_plans(name: str, number: int, share: float) -> None:
    """The last of them has a device alone on its host, which receives the outputs of all others."""
    suite = load_suite(name)
    task = suite[number]
    bound = plan_lower_bound_ms(task.tables, task.topology, MODEL)
    assert share <= bound / stated_costs(suite, MODEL)[task.name] <= 1.0


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_it_is_within_a_tenth_of_what_plan_search_finds_with_host_memory(
    random_task: Any, in_host: Any, share: float
) -> None:
    task = in_host(random_task(np.random.default_rng(0), 20, 4), share)
    plan = PlanSearchAgent(MODEL, max_queries=1500).plan(task)
    assert 0.9 * cost_ms(plan, task) < plan_lower_bound_ms(task.tables, task.topology, MODEL) <= cost_ms(plan, task)


def test_a_limit_on_programs_loosens_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_suite("shard-4")[2]
    exact = plan_lower_bound_ms(task.tables, task.topology, MODEL)
    monkeypatch.setattr(plan_bounds, "MAX_PROGRAMS", 5)
    monkeypatch.setattr(plan_bounds, "MIN_PROGRAMS", 5)
    assert 0.8 * exact < plan_lower_bound_ms(task.tables, task.topology, MODEL) < exact


@pytest.mark.parametrize("host_memory", [False, True])
def test_wrong_multipliers_give_a_lower_bound(
    random_task: Any, in_host: Any, host_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, rng = random_task(np.random.default_rng(4), 8, 3), np.random.default_rng(0)
    error = 0.01
    if host_memory:
        task, error = in_host(task, 0.1), 0.001
    right, solve = plan_lower_bound_ms(task.tables, task.topology, MODEL), plan_tree.linprog()

    def disturbed(*arguments: Any, **options: Any) -> Any:
        result = solve(*arguments, **options)
        if result.status == 0:
            result.ineqlin.marginals *= rng.uniform(1 - error, 1 + error, len(result.ineqlin.marginals))
        return result

    monkeypatch.setattr(plan_tree, "linprog", lambda: disturbed)
    assert 0 < plan_lower_bound_ms(task.tables, task.topology, MODEL) < right


def test_a_proof_is_checked_without_a_solver(random_task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it states is what it proves, and with what a plan costs it states no more than that."""
    task = random_task(np.random.default_rng(3), 10, 5, dims=(8, 48, 132), devices_per_host=2)
    about: Any = task.tables, task.topology, MODEL
    plan = PlanSearchAgent(MODEL, max_queries=200).plan(task)
    proof = prove(*about, known_ms=cost_ms(plan, task))
    assert proof.tree.leaves > 5
    monkeypatch.setattr(plan_tree, "linprog", None)
    copied = PlanProof.from_json(json.loads(json.dumps(proof.to_json())))
    assert proven_ms(copied, *about) == pytest.approx(proof.bound_ms, rel=1e-9)
    assert 0.8 * cost_ms(plan, task) < proof.bound_ms <= cost_ms(plan, task)
    assert proven_ms(replace(copied, below_ms=0.5 * proof.bound_ms), *about) <= 0.5 * proof.bound_ms


def test_a_proof_that_was_tampered_with_proves_no_more_than_is_true(random_task: Any) -> None:
    """Any multipliers give a bound, of the same tree; of one with missing leaves nothing follows."""
    task = random_task(np.random.default_rng(5), 6, 3, dims=(8, 48, 132), devices_per_host=2)
    about: Any = task.tables, task.topology, MODEL
    best = cost_ms(PlanSearchAgent(MODEL, max_queries=2000).plan(task), task)
    proof, rng = prove(*about, known_ms=best), np.random.default_rng(0)
    assert proven_ms(proof, *about) > 0.8 * best
    for change in (
        lambda: rng.uniform(0.0, 3.0),
        lambda: -1.0,
        lambda: 1e300,
        lambda: float("inf"),
        lambda: float("nan"),
    ):
        copied = PlanProof.from_json(proof.to_json())
        trees = [copied.tree]
        for tree in trees:
            trees += tree.children
            tree.multipliers = {key: each * change() for key, each in tree.multipliers.items()}
        assert proven_ms(copied, *about) < proof.bound_ms
    for what, which, at in (("ms", 3, 1.0), ("ms", 0, float("nan")), ("collective", -1, 0.0), ("kind", 6, 0.0)):
        copied = PlanProof.from_json(proof.to_json())
        copied.tree.branch = Branch(what, which, at)
        assert proven_ms(copied, *about) == 0.0
    copied = PlanProof.from_json(proof.to_json())
    tree = copied.tree
    while tree.children[0].branch is not None:
        tree = tree.children[0]
    tree.children.pop()
    assert proven_ms(copied, *about) == 0.0
    inner = {"branch": [1, 0, 0.0], "children": 2}
    for nodes in (
        *(None, [], [1.0], [[1.0]], [[1.0, "x"]], [[], []], [inner], [inner, []], [inner, [], [], []]),
        *([{**inner, **change}, [], []] for change in ({"branch": [9, 0, 0.0]}, {"branch": [-1, 0, 0.0]})),
        *([{**inner, "children": count}, [], []] for count in (10**400, 0.5, -1, "2")),
    ):
        with pytest.raises(DamagedFileError, match="proof is damaged"):
            PlanProof.from_json([1.0, nodes])
    for damaged in ([], [1.0], ["x", [[]]], [10**400, [[]]], None):
        with pytest.raises(DamagedFileError, match="proof is damaged"):
            PlanProof.from_json(damaged)


def test_keys_of_rows_that_a_program_does_not_have_prove_nothing(random_task: Any, in_host: Any) -> None:
    task = random_task(np.random.default_rng(0), 3, 2)
    for own in (task, in_host(task, 0.2)):
        for key in (-1, 3, 10**6 - 1, 10**6 + 10**5, 10**9):
            proof = PlanProof.from_json([1e9, [[1.0, key]]])
            assert 0.0 <= proven_ms(proof, own.tables, own.topology, MODEL) < cost_ms(plan_of(own), own)


def test_a_tree_of_any_depth_is_kept() -> None:
    tree = plan_tree.Tree(multipliers={3: 0.5})
    for level in range(60):
        tree = plan_tree.Tree(branch=Branch("ms", level % 3, 1.0), children=[tree, plan_tree.Tree()])
    proof = PlanProof(4.0, tree)
    assert PlanProof.from_json(parse_json(json.dumps(proof.to_json()).encode(), "It")) == proof


@pytest.mark.parametrize(("name", "number"), [("sequence-16", 1), ("shard-constrained-8", 0), ("inference-8", 2)])
def test_stored_answers_of_suites_are_not_below_it(name: str, number: int) -> None:
    suite = load_suite(name)
    task, problem = suite[number], problem_of(suite[0])
    model = problem.model(suite.cost_model)
    best = stated_costs(suite, model)[task.name]
    assert 0.8 * best < plan_lower_bound_ms(task.tables, task.topology, model, task.constraints) <= best


def test_more_memory_never_raises_it(random_task: Any) -> None:
    task = random_task(np.random.default_rng(1), 6, 3, dims=(32, 128))
    least = int(task.tables.memory_bytes.sum() / 3 * 1.02)
    caps = [least, 2 * least, 10 * least]
    topologies = [hardware_profile("a100-dgx").topology(3, memory_cap_bytes=cap) for cap in caps]
    found = [plan_lower_bound_ms(task.tables, topology, MODEL) for topology in topologies]
    assert found[0] * (1 + 1e-9) >= found[1] >= found[2] * (1 - 1e-9)


def test_an_overlap_loss_above_one_is_refused(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 2, 2)
    with pytest.raises(InvalidOptionError, match=r"overlap_loss of 1\.5"):
        plan_lower_bound_ms(
            task.tables, task.topology, AnalyticalShardingModel(constants=FITTED._replace(overlap_loss=1.5))
        )


# Counts of lane levels


def points(counts: Counts) -> set[tuple[int, ...]]:
    ranges = (range(low, high + 1) for low, high in zip(counts.low, counts.high, strict=True))
    return {point for point in product(*ranges) if sum(point) == counts.total}


@given(
    ends=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted), min_size=1, max_size=3),
    total=st.integers(1, 9),
)
def test_counts_know_their_points(ends: list[list[int]], total: int) -> None:
    counts = Counts(tuple(low for low, _ in ends), tuple(high for _, high in ends), total)
    if not points(counts):
        return
    tight = counts.tightened()
    assert points(tight) == points(counts)
    for levels in ([0], list(range(len(ends))), list(range(len(ends)))[1:]):
        sums = [sum(point[level] for level in levels) for point in points(tight)]
        assert (tight.least(levels), tight.most(levels)) == (min(sums), max(sums))
    if not tight.is_point:
        halves = [points(half) for half in tight.halves()]
        assert set().union(*halves) == points(tight)
        assert sum(map(len, halves)) == len(points(tight))


def test_the_best_point_of_the_best_case_comes_first() -> None:
    class Squares:
        """The bound of counts is the least (first - 3)^2 of their points, and the case."""

        solved = 0

        def cases(self) -> list[float]:
            return [5.0, 0.5]

        def all_counts(self) -> Counts:
            return Counts((0, 0), (9, 9), 9)

        def bound_ms(self, counts: Counts, case: float) -> float:
            self.solved += 1
            return min((first - 3.0) ** 2 for first, _ in points(counts)) + case

    found = list(best_first(Squares(), 1000))
    assert found[0] == (0.5, Counts((3, 6), (3, 6), 9), 0.5)
    assert len(found) == 20
    assert [bound for bound, *_ in found] == sorted(bound for bound, *_ in found)
    first = next(best_first(Squares(), 3))
    assert first[0] == 0.5
    assert not first[1].is_point


def test_with_empty_blocks_no_plan_that_has_some_costs_less() -> None:
    """A table of five rows in blocks of one or two, of which some have none."""
    topology = hardware_profile("a100-dgx").topology(8, devices_per_host=4)
    sizes, dims = np.array([5, 400_000]), np.array([64, 64])
    tables = Tables.from_zipf(sizes, dims, 5.0, 1.05, Workload(8192, "fp32", "sgd"))
    limits = Constraints.none(2, 8)
    for only in ("row_wise", "table_row_wise"):
        kinds = np.tile(np.array(SHARDING_TYPES) == only, (2, 1))
        kinds[1] = True
        own = replace(limits, sharding_types=kinds, empty_blocks=True)
        split: Any = row_wise if only == "row_wise" else table_row_wise
        first = split(tables, 0, topology, *([] if only == "row_wise" else [0]), True)
        plans = [ShardingPlan((first, table_wise(tables, 1, device))) for device in (0, 7)]
        costs = [MODEL.estimate(plan, tables, topology).total_ms for plan in plans]
        assert 0.5 * min(costs) < plan_lower_bound_ms(tables, topology, MODEL, own) <= min(costs)
