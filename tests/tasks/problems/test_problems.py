"""Problems: what is the same answer, bounds that hold for every legal one, and who plays what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from shard_gym.agents import PolicyAgent, make_agent
from shard_gym.common.errors import InvalidOptionError, InvalidPlacementError, NoPlacementFoundError
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan, TableSharding, column_wise, data_parallel, row_wise, table_wise
from shard_gym.plans.plan import Groups
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.drift.levels import GROWING, STRONG
from shard_gym.replanning.env.episode_data import DECISIONS, episode_data
from shard_gym.replanning.problem import _history
from shard_gym.tables import Tables
from shard_gym.tasks import PROBLEMS, Task, TaskSuite, problem_of
from shard_gym.tasks.groups import task_of_group

MODEL = make_cost_model(additive=True, splits=True)
PLANS, SEQUENCES = PROBLEMS["sharding"], PROBLEMS["replanning"]


def with_dims(tables: Tables, dims: list[int]) -> Tables:
    return tables.select(np.arange(len(dims))).with_dims(np.array(dims))


def task_of(tables: Tables, num_devices: int = 4, **changes: object) -> Task:
    return Task("plans", tables, hardware_profile("a100-dgx").topology(num_devices), splittable=True, **changes)


def test_the_same_plan_written_otherwise_is_the_same(four_tables: Tables) -> None:
    """Copies of entries are found by it: what costs the same by its very nature must not look different."""
    tables = with_dims(four_tables, [64, 64, 32, 32])
    task = task_of(tables)
    topology = task.topology
    whole, halves = table_wise(tables, 0, 2), column_wise(tables, 1, [0, 3])
    plan = ShardingPlan((whole, halves, data_parallel(tables, 2, topology), row_wise(tables, 3, topology)))
    replicas = plan.tables[2]
    same = [
        (TableSharding("column_wise", whole.shards), *plan.tables[1:]),
        (whole, column_wise(tables, 1, [3, 0]), *plan.tables[2:]),
        (whole, replace(halves, shards=halves.shards[::-1]), *plan.tables[2:]),
        (whole, halves, replace(replicas, shards=replicas.shards[::-1]), plan.tables[3]),
        (table_wise(tables, 0, 1), column_wise(tables, 1, [2, 0]), *plan.tables[2:]),  # devices renumbered
    ]
    others = [
        (table_wise(tables, 0, 0), *plan.tables[1:]),  # beside a half now
        (whole, column_wise(tables, 1, [0, 3], [16, 48]), *plan.tables[2:]),
        (*plan.tables[:3], data_parallel(tables, 3, topology)),
    ]
    assert {PLANS.canonical(ShardingPlan(each), task) for each in same} == {PLANS.canonical(plan, task)}
    assert PLANS.canonical(plan, task) not in {PLANS.canonical(ShardingPlan(each), task) for each in others}


@pytest.mark.parametrize("dims", [[120], [12], [68], [36, 100], [200], [136, 1000]])
def test_bounds_hold_for_columns_that_are_no_halves(four_tables: Tables, dims: list[int]) -> None:
    """Any widths that are multiples of 4 are legal, and a valid plan is never worse than none."""
    for num_devices in (1, 4):
        tables = with_dims(four_tables, dims)
        task = task_of(tables, num_devices)
        narrow = [column_wise(tables, table, [0] * (dim // 4)) for table, dim in enumerate(dims)]
        wide, wider = (
            [
                column_wise(tables, table, [0] * len(widths), widths)
                for table, dim in enumerate(dims)
                for widths in [[width] * (dim // width) + [dim % width] * (dim % width > 0)]
            ]
            for width in (32, 128)
        )
        for shardings in (narrow, wide, wider):
            cost = MODEL.estimate(ShardingPlan(tuple(shardings)), tables, task.topology).total_ms
            assert PLANS.lower_bound_ms(task, MODEL) <= cost * (1 + 1e-12)
            assert cost < PLANS.penalty_ms(task, MODEL)


@pytest.mark.parametrize("sync_every", [0, 100])
def test_costs_of_many_plans_are_those_of_each_alone(four_tables: Tables, sync_every: int) -> None:
    """To the bit; the loads of parts are kept, of plans with groups those of each number of groups."""
    tables = with_dims(four_tables, [100, 64, 36, 32])
    task = task_of(tables, sync_every=sync_every)
    topology, rng, plans = task.topology, np.random.default_rng(0), []
    for number in range(40):
        shardings = []
        for table, dim in enumerate(tables.embedding_dim.tolist()):
            cuts = np.unique(rng.integers(1, dim // 4, 2)) * 4
            widths = np.diff([0, *cuts, dim]).tolist()
            columns = column_wise(tables, table, rng.integers(4, size=len(widths)).tolist(), widths)
            forms = [table_wise(tables, table, int(rng.integers(4))), columns]
            forms += [row_wise(tables, table, topology), data_parallel(tables, table, topology)]
            shardings.append(forms[rng.integers(4)])
        plans.append(ShardingPlan(tuple(shardings)))
        if sync_every and number % 2:
            own = task_of_group(task, Groups(2))
            plans[-1] = ShardingPlan(tuple(data_parallel(tables, each, own.topology) for each in range(4)), Groups(2))
    alone = [PLANS.cost_ms(plan, task, MODEL) for plan in plans]
    assert PLANS.costs_ms(plans, task, MODEL).tolist() == alone
    assert PLANS.costs_ms(plans[::-1], task, MODEL).tolist() == alone[::-1]


def test_a_suite_may_have_tasks_of_both_kinds_in_any_order(four_tables: Tables) -> None:
    split = task_of(four_tables)
    whole = replace(split, name="whole", splittable=False)
    for tasks in ((split, whole), (whole, split)):
        results = evaluate(make_agent("plan-search", max_queries=500), TaskSuite("both", tasks)).tasks
        assert {result.task: result.plan is not None for result in results} == {"plans": True, "whole": False}


def test_agents_that_play_whole_tables_fail_where_one_fits_no_device(four_tables: Tables) -> None:
    tables = four_tables.select([1, 0]).with_dims(np.array([128, 4]))
    half = int(tables.memory_bytes[0]) // 2
    topology = hardware_profile("a100-dgx").topology(4, memory_cap_bytes=max(half, int(tables.memory_bytes[1])) + 1)
    task = Task("large", tables, topology, splittable=True)
    agent = PolicyAgent("first", lambda _, mask: int(mask.argmax()), max_tables=2, max_devices=4)
    (result,) = evaluate(agent, TaskSuite("one", (task,))).tasks
    assert "fits no device whole" in result.failure


@pytest.mark.parametrize("name", PROBLEMS)
def test_agents_are_asked_what_they_play_alone(name: str, drift_task: Callable[..., DriftTask]) -> None:
    for agent, problems in (("lookup-greedy", {"placement", "sharding"}), ("never", {"replanning"})):
        if name in problems:
            PROBLEMS[name].require_agent(make_agent(agent))
        else:
            with pytest.raises(InvalidOptionError, match=f"Agent '{agent}' answers .*, not {name}"):
                PROBLEMS[name].require_agent(make_agent(agent))
    for wrong in (3, "random", type(make_agent("random"))):
        with pytest.raises(InvalidOptionError, match="agent must be"):
            PROBLEMS[name].require_agent(wrong)
    with pytest.raises(InvalidOptionError, match="problems of the agent must be the names of problems"):
        PROBLEMS[name].require_agent(SimpleNamespace(problems=3))


@pytest.mark.parametrize("method", ["begin", "act"])
def test_methods_with_other_arguments_are_refused_before_anything_is_played(method: str) -> None:
    agent = SimpleNamespace(begin=lambda count: None, act=lambda observations: None)
    PROBLEMS["replanning"].require_agent(agent)
    setattr(agent, method, lambda one, other: None)
    with pytest.raises(InvalidOptionError, match=f"The agent's {method} does not take .* alone"):
        PROBLEMS["replanning"].require_agent(agent)


def test_what_is_kept_of_an_episode_cannot_be_written_to(drift_task: Callable[..., DriftTask]) -> None:
    problem, task = PROBLEMS["replanning"], drift_task(tables=4, devices=2)
    data = episode_data(task, problem.model("analytical"))  # type: ignore[arg-type]
    data.options(2)
    kept = [data.first_plan.placement, data.plan(50, 0).placement, data.window_lookups(2), *data.options(2)]
    kept += _history(task, np.zeros(DECISIONS, np.int64), problem.model("analytical"))
    assert [array.flags.writeable for array in kept] == [False] * len(kept)


@pytest.fixture(scope="module")
def drifting(drift_task: Callable[..., DriftTask]) -> list[DriftTask]:
    spot = replace(STRONG, departures=1.0)
    return [
        drift_task(tables=4, devices=3, level=level, seed=seed, pause_s=5.0)
        for seed, level in enumerate((STRONG, spot))
    ]


def test_an_evaluation_of_replanning_costs_the_time_of_the_episodes(drifting: list[DriftTask]) -> None:
    suite = DriftSuite("two", tuple(drifting))
    found = evaluate(make_agent("ski-last-day"), suite)
    assert [problem_of(task) for task in suite] == [SEQUENCES] * 2
    assert not found.failures
    for result, task in zip(found.tasks, suite, strict=True):
        assert result.placement is result.plan is None
        actions = SEQUENCES.from_json(result.sequence, task)
        assert result.answer == SEQUENCES.to_json(actions) == result.sequence
        assert SEQUENCES.cost_ms(actions, task, MODEL) == result.cost_ms
        assert 0 <= SEQUENCES.lower_bound_ms(task, MODEL) < result.cost_ms < SEQUENCES.penalty_ms(task, MODEL)
        facts = SEQUENCES.facts(actions, task, MODEL)
        assert facts["plans"] >= facts["repairs"] == (facts["repairs"] if task.level.departures else 0)
        assert facts["pauses, s"] == 5.0 * facts["plans"]
    assert SEQUENCES.canonical(np.zeros(DECISIONS, np.int64), suite[0]) is None  # all who do nothing are alike


def test_an_illegal_sequence_fails_and_is_charged(
    drifting: list[DriftTask], drift_task: Callable[..., DriftTask]
) -> None:
    growing = drift_task(tables=4, devices=3, level=replace(GROWING, age_days=(3.0, 6.0)), pause_s=5.0)
    suite = DriftSuite("three", (*drifting, replace(growing, name="growing")))  # it grows, so there is headroom
    found = evaluate(lambda seen: np.where(seen["time"][:, 4] > 0.5, 1, 0), suite)
    assert found.failures == 0
    broken = evaluate(lambda seen: np.full(len(suite), seen["action_mask"].shape[1] - 1), suite)
    assert [result.valid for result in broken.tasks[:2]] == [False, False]
    assert broken.costs_ms[:2].tolist() == [SEQUENCES.penalty_ms(task, MODEL) for task in drifting]
    assert "no plan of the kind of the action" in broken.tasks[0].failure


def test_an_error_of_a_replanning_agent_fails_its_tasks(drifting: list[DriftTask]) -> None:
    def gives_up(seen: dict[str, np.ndarray]) -> np.ndarray:
        raise NoPlacementFoundError("nothing found")

    found = evaluate(gives_up, DriftSuite("two", tuple(drifting)))
    assert [result.failure for result in found.tasks] == ["nothing found"] * 2
    assert "mean cost: " in repr(found)
    assert f" {SEQUENCES.format_cost(found.mean_cost_ms)} s (95%" in repr(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0" * 335, "must be a text of 336 characters"),
        (None, "must be a text of 336 characters"),
        ("0" * 335 + "x", "Decision 335 of task .* is 'x', but must be a digit from 0 to 8"),
        ("9" * 336, "Decision 0 of task .* is '9'"),
    ],
)
def test_sequences_that_are_none_are_refused(drifting: list[DriftTask], text: object, reason: str) -> None:
    with pytest.raises(InvalidPlacementError, match=reason):
        SEQUENCES.from_json(text, drifting[0])


@pytest.mark.parametrize("given", [[0] * 335, np.zeros(336), [9] * 336, [-1] * 336, "0"])
def test_actions_that_are_none_are_refused(drifting: list[DriftTask], given: object) -> None:
    with pytest.raises(InvalidPlacementError):
        SEQUENCES.checked(given, drifting[0])
