"""Training on plans that are executed, by workers whose times are random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.training import make_learner
from shard_gym.agents.training.loads import load_of_plan, random_plan_load
from shard_gym.common.errors import InvalidOptionError, MeasurementError
from shard_gym.cost_models import AnalyticalShardingModel, CostEstimate, CostModel
from shard_gym.cost_models.fitting.data.random_plans import executable_types
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, check_plan
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.tasks import TaskSuite, load_suite

pytest.importorskip("torch")

SUITE = "shard-cpu-20x2"
FEW: dict[str, Any] = {"iterations": 2, "measurements": 3, "cost_updates": 5, "queries": 200}


@pytest.fixture(scope="module")
def tasks() -> TaskSuite:
    return replace(load_suite(SUITE, "train"), tasks=load_suite(SUITE, "train").tasks[:4])


@pytest.fixture
def measured(quick_workers: None) -> Iterator[MeasuredCostModel]:
    pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")
    with MeasuredCostModel("cpu", layout="parallel", iterations=2, warmup=1) as model:
        yield model


class Executed(CostModel):
    """The analytical model, but it costs whole plans alone, keeps them, and fails as often as it is told."""

    name, version = "executed", 1
    supports = frozenset({"training", "splits"})

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.plans = failures, list[ShardingPlan]()

    def estimate(self, answer: Any, tables: Any, topology: Any) -> CostEstimate:
        if isinstance(answer, ShardingPlan):
            if self.failures:
                self.failures -= 1
                raise MeasurementError("It was the weather.")
            self.plans.append(answer)
        return AnalyticalShardingModel().estimate(answer, tables, topology)

    def penalty_ms(self, tables: Any, topology: Any, *, splits: bool = False) -> float:
        return 1e9 if splits else 1e6


def test_random_plans_are_valid_and_of_the_types_asked_for(tasks: TaskSuite) -> None:
    rng, seen = np.random.default_rng(0), dict.fromkeys(SHARDING_TYPES, 0)
    for _ in range(60):
        load = random_plan_load(tasks, 3, SHARDING_TYPES, rng)
        if load.plan is None:
            assert load.placement is not None
            continue
        tables, plan = load.plan
        check_plan(plan, tables, load.topology)
        for sharding in plan.tables:
            seen[sharding.sharding_type] += 1
    assert seen[TABLE_WISE] > seen[COLUMN_WISE] > seen[ROW_WISE] > 0
    assert seen[DATA_PARALLEL] > 0
    for _ in range(20):
        load = random_plan_load(tasks, 1, (TABLE_WISE, COLUMN_WISE), rng)
        kinds = set() if load.plan is None else {each.sharding_type for each in load.plan[1].tables}
        assert kinds <= {TABLE_WISE, COLUMN_WISE}
        assert load.plan is None or max(len(each.shards) for each in load.plan[1].tables) == 2


def test_a_load_of_a_plan_costs_what_the_plan_does(tasks: TaskSuite) -> None:
    """Which shows that its shards are those of the plan."""
    rng, model = np.random.default_rng(1), AnalyticalShardingModel()
    for _ in range(20):
        load = random_plan_load(tasks, 3, SHARDING_TYPES, rng)
        if load.plan is not None:
            tables, plan = load.plan
            expected = model.estimate(plan, tables, load.topology).total_ms
            assert load.estimate(model).total_ms == pytest.approx(expected, rel=1e-12)
            assert len(load_of_plan(plan, tables, load.topology).devices) == len(plan.shard_arrays())


def test_blocks_of_rows_are_left_out_where_the_devices_do_not_divide_the_batch(tasks: TaskSuite) -> None:
    task = tasks[0]
    three = replace(task.topology, num_devices=3, memory_cap_bytes=np.full(3, 2**33))
    assert executable_types(SHARDING_TYPES, task.tables, task.topology) == SHARDING_TYPES
    assert executable_types(SHARDING_TYPES, task.tables, three) == (TABLE_WISE, COLUMN_WISE, DATA_PARALLEL)


@pytest.mark.parametrize("name", ["dreamshard", "neuroshard"])
def test_plans_are_measured_whole(tasks: TaskSuite, name: str) -> None:
    model = Executed()
    learner: Any = make_learner(name, tasks, cost_model=model, **FEW)
    for number in range(2):
        report = learner.iterate()
        learner.iteration = number + 1
    assert 0 < report.mean_cost_ms < 1e6
    assert any(plan.split_tables for plan in model.plans)
    assert (learner.true_cost_queries, learner.costed, learner.failures) == (6, 6, 0)
    plan = learner.agent().plan(tasks[0])
    check_plan(plan, tasks[0].tables, tasks[0].topology)


def test_a_plan_that_fails_twice_is_charged_and_not_learned(tasks: TaskSuite) -> None:
    model = Executed(failures=0)
    learner: Any = make_learner("dreamshard", tasks, cost_model=model, **FEW)
    learner.iterate()
    learner.iteration, model.failures = 1, 2
    assert learner.iterate().mean_cost_ms > 1e9 / 4
    assert (learner.failures, learner.costed, len(learner.network.recorder)) == (1, 5, 5)
    assert learner.true_cost_queries == 7  # the one that failed was tried twice
    model.failures = 10**6
    learner.failures = learner.costed
    with pytest.raises(MeasurementError, match="weather"):
        learner.iterate()


@pytest.mark.parametrize("name", ["dreamshard", "neuroshard"])
def test_a_learner_measures_plans_on_a_machine(measured: MeasuredCostModel, tasks: TaskSuite, name: str) -> None:
    learner: Any = make_learner(name, tasks, cost_model=measured, **FEW)
    learner.iterate()
    learner.iteration = 1
    assert learner.iterate().numbers["cost_loss"] > 0
    assert (learner.true_cost_queries, learner.failures) == (6, 0)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("attention", {}, "is not additive"),
        ("maskable-ppo", {"observation": "splits"}, "is not additive"),
        ("surco", {}, "learns placement, and"),
        ("autoshard", {}, "learns placement, and"),
    ],
)
def test_learners_that_cannot_measure_plans_say_so(tasks: TaskSuite, name: str, options: Any, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        make_learner(name, tasks, cost_model=Executed(), **options)
