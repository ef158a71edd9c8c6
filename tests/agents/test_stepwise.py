"""`stepwise`: built plans are valid and cost what is said; the evolution, the constants, the agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.base import Agent
from shard_gym.agents.search.own_times import ROUGH, OwnTimes
from shard_gym.agents.search.rules import MoldableAgent
from shard_gym.agents.search.splits import SplitOptions
from shard_gym.agents.stepwise.agent import StepwiseAgent, load_stepwise
from shard_gym.agents.stepwise.evolution import Evolution
from shard_gym.agents.stepwise.learner import StepwiseLearner
from shard_gym.agents.stepwise.steps import START, Steps, Weight
from shard_gym.common.errors import (
    InvalidCheckpointError,
    InvalidConstraintsError,
    InvalidOptionError,
    NoPlacementFoundError,
    TableTooLargeError,
)
from shard_gym.cost_models import make_cost_model
from shard_gym.plans import SHARDING_TYPES
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tasks import Task, TaskSuite, load_suite, problem_of

TRUE = make_cost_model("analytical", additive=True, splits=True)
SERVED = make_cost_model("analytical-inference", additive=True, splits=True)
NO_CONSTANTS = np.zeros(8)


def sets(count: int, seed: int = 0, far: float = 0.7) -> np.ndarray:
    return START + far * np.random.default_rng(seed).normal(size=(count, len(Weight)))


def require_built(task: Task, types: tuple[str, ...] = SHARDING_TYPES) -> int:
    """Build eight plans; those that have room are valid, and cost what is said. How many have."""
    own = OwnTimes(task.tables, task.topology)
    options = SplitOptions(task, own, types)
    model = TRUE if task.tables.workload.training else SERVED
    built, true = Steps(options, own).build(sets(8)), options.under(model)
    phases, costs = model.costs(built.loads(true), true.cluster)
    fits = np.flatnonzero(np.isfinite(built.ms)).tolist()
    for number in fits:
        split = built.split(number, options)
        answer = split.plan() if types == SHARDING_TYPES else split.placement
        problem_of(task).checked(answer, task)
        estimate = model.estimate(answer, task.tables, task.topology)
        assert costs[number] == pytest.approx(estimate.total_ms, rel=1e-9)
        np.testing.assert_allclose(phases[number], estimate.phases_ms, rtol=1e-9, atol=1e-12)
        held = built.loads(options)[number]
        assert built.ms[number] == pytest.approx(own.costs(held, options.cluster)[1], rel=1e-9)
    return len(fits)


@pytest.mark.parametrize(
    "suite", ["shard-4", "shard-generalize", "tier-generalize", "sequence-16", "inference-8", "shard-constrained-8"]
)
def test_plans_are_valid_and_cost_what_is_said(suite: str) -> None:
    tasks = sorted(load_suite(suite, "train"), key=lambda task: task.num_tables)[:4]
    assert sum(require_built(task) for task in tasks) >= 16


def test_plans_of_small_tasks_keep_to_memory_and_constraints(
    random_task: Callable[..., Task], random_constraints: Callable[..., Constraints]
) -> None:
    fits = constrained = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 7, int(rng.integers(2, 5)), slack=float(rng.uniform(1.1, 2.5)))
        limits = random_constraints(rng, task, types=True) if seed % 2 else None
        task = replace(task, known_placement=None, splittable=True)
        with suppress(TableTooLargeError, InvalidConstraintsError):
            task = replace(task, constraints=limits)
            constrained += limits is not None
        fits += require_built(task)
    assert constrained >= 10
    assert fits > 120


def test_whole_tables_are_placed_whole(tiered_task: Callable[..., Task]) -> None:
    tasks = [*list(load_suite("mixdim-8", "train"))[:2], tiered_task(np.random.default_rng(0), 12, 3)]
    assert all(require_built(task, (TABLE_WISE,)) for task in tasks)


def test_a_plan_does_not_depend_on_those_beside_it() -> None:
    task = load_suite("shard-4", "train")[0]
    own = OwnTimes(task.tables, task.topology)
    options, many = SplitOptions(task, own, SHARDING_TYPES), sets(6)
    together = Steps(options, own).build(many)
    for number in range(6):
        alone = Steps(options, own).build(many[[number]])
        assert alone.ms[0] == together.ms[number]
        assert alone.split(0, options).key == together.split(number, options).key


def test_the_evolution_finds_the_least_of_a_noisy_bowl_and_goes_on_from_its_state() -> None:
    rng, target = np.random.default_rng(0), np.array([2.0, -1.0, 0.5, 3.0])
    scales = np.array([1.0, 10.0, 0.1, 3.0])

    def score(vectors: np.ndarray) -> Any:
        return (((vectors - target) * scales) ** 2).sum(axis=1) + 1e-4 * rng.normal(size=len(vectors))

    evolution = Evolution(np.zeros(4), 0.5, 12)
    for _ in range(120):
        drawn = evolution.draw(rng)
        evolution.tell(drawn, score(drawn))
    assert np.abs((evolution.mean - target) * scales).max() < 0.1
    other = Evolution(np.ones(4), 0.1, 12)
    other.load_state(evolution.state())
    for each in (evolution, other):
        drawn = each.draw(np.random.default_rng(1))
        each.tell(drawn, drawn[:, 0])
    for name, array in evolution.state().items():
        assert np.array_equal(array, other.state()[name]), name
    with pytest.raises(InvalidCheckpointError, match="lacks the array 'covariance'"):
        other.load_state({"mean": np.zeros(4)})


def test_constants_learn_what_times_truly_are() -> None:
    suite = load_suite("shard-4", "train")
    few = TaskSuite("few", tuple(sorted(suite, key=lambda task: task.num_tables)[:3]))
    errors = []
    for generations in (1, 20):
        learner = StepwiseLearner(few, TRUE, 0, tasks=3, generations=generations)
        errors.append(learner.iterate().numbers["error"])
    assert errors[1] < 0.8 * errors[0]


def test_the_cheapest_plans_of_learned_weights_cost_less() -> None:
    """Of 64 sets the cheapest tenth, which is what is learned, with the same constants before and after."""
    suite = load_suite("shard-4", "train")
    few = TaskSuite("few", tuple(sorted(suite, key=lambda task: task.num_tables)[:4]))
    learner = StepwiseLearner(few, TRUE, 0, tasks=4, generations=4, population=16)
    found = []
    for learner.iteration in range(25):
        learner.iterate()
        if learner.iteration in (0, 24):
            arrays, costs = learner.weights(), []
            for task in few:
                own = OwnTimes(task.tables, task.topology, ROUGH.scaled(np.exp(arrays["constants"]).tolist()))
                options = SplitOptions(task, own, SHARDING_TYPES)
                built, true = Steps(options, own).build(arrays["weights"]), options.under(TRUE)
                costs.append(np.quantile(TRUE.costs(built.loads(true), true.cluster)[1], 0.1))
            found.append(np.log(costs).mean())
    assert found[1] < found[0] - 0.01


@pytest.mark.parametrize("suite", ["shard-constrained-8", "constrained-8"])
def test_it_learns_from_tasks_whose_tables_stay_together(suite: str) -> None:
    few = TaskSuite("few", tuple(sorted(load_suite(suite, "train"), key=lambda task: task.num_tables)[:2]))
    assert any(task.constraints is not None and task.constraints.together for task in few)
    learner = StepwiseLearner(few, TRUE, 0, tasks=2, generations=1, population=4)
    assert all(np.isfinite(learner.iterate().mean_cost_ms) for learner.iteration in range(2))


def test_far_weights_are_written_as_they_are_read() -> None:
    few = TaskSuite("few", (load_suite("shard-4", "train")[0],))
    learner = StepwiseLearner(few, TRUE, 0, tasks=1, generations=1, population=4, sigma=5.0)
    learner._evolution.mean[:] = 99.0
    load_stepwise(learner.weights(), {"agent": "stepwise"}, TRUE, 0)
    with pytest.raises(InvalidOptionError, match="sigma must be at most 5, not 6"):
        StepwiseLearner(few, TRUE, 0, sigma=6.0)


def test_suites_of_replanning_are_nothing_to_learn_from_too() -> None:
    with pytest.raises(InvalidOptionError, match="'drift-medium-30' are of replanning"):
        StepwiseLearner(load_suite("shard-4", "train"), TRUE, 0, also="drift-medium-30")


def test_a_descent_makes_no_plan_worse_and_more_plans_none() -> None:
    tasks = sorted(load_suite("shard-4", "train"), key=lambda task: task.num_tables)[:3]

    def cost(agent: Agent, task: Task) -> float:
        own = OwnTimes(task.tables, task.topology)
        return own.estimate(agent.plan(task), task.tables, task.topology).total_ms

    for task in tasks:
        costs = [
            cost(StepwiseAgent("stepwise", sets(16), NO_CONSTANTS, by_rule=0, **options), task)
            for options in ({"plans": 2, "moves": 0}, {"moves": 0}, {"built": 1}, {"built": 3})
        ]
        assert costs == sorted(costs, reverse=True)


def test_it_is_not_above_the_rule_by_its_own_times_and_builds_nothing_for_large_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights that are good for nothing: only the plans of the rule are left."""
    bad = np.where(np.arange(len(Weight)) == Weight.LEVEL, 30.0, -30.0)[None]
    tasks = [sorted(load_suite(suite, "train"), key=lambda task: task.num_tables)[0] for suite in ("shard-4", "tier-8")]
    for task in tasks:
        own, rule = OwnTimes(task.tables, task.topology), MoldableAgent()
        agent = StepwiseAgent("stepwise", bad, NO_CONSTANTS)
        found, least = (each.plan(task) if task.splittable else each.place(task) for each in (agent, rule))
        costs = [own.estimate(answer, task.tables, task.topology).total_ms for answer in (found, least)]
        assert costs[0] <= costs[1] * (1 + 1e-12)
    monkeypatch.setattr("shard_gym.agents.stepwise.agent.LARGEST", 0)
    monkeypatch.setattr(Steps, "build", None)
    task = tasks[0]
    assert StepwiseAgent("stepwise", bad, NO_CONSTANTS, by_rule=1, moves=0).plan(task) == MoldableAgent().plan(task)


def test_where_nothing_finds_room_moldable_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in groups of devices."""
    agent = StepwiseAgent("stepwise", sets(2), NO_CONSTANTS)

    def nothing(*_: Any) -> Any:
        raise NoPlacementFoundError("nothing fits")

    monkeypatch.setattr(agent, "_cheapest", nothing)
    split, rule = load_suite("shard-4", "train")[0], MoldableAgent()
    for task in (split, replace(split, sync_every=100)):
        assert agent.plan(task) == rule.plan(task)
    whole = load_suite("mixdim-4", "train")[0]
    assert np.array_equal(agent.place(whole), rule.place(whole))


def test_plans_in_groups_of_devices_are_valid() -> None:
    task = replace(load_suite("shard-4", "train")[0], sync_every=100)
    plan = StepwiseAgent("stepwise", sets(4), NO_CONSTANTS, moves=0).plan(task)
    assert problem_of(task).checked(plan, task) == plan


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"weights": sets(2)}, "lacks the array 'constants'"),
        ({"weights": sets(2)[:, :3], "constants": NO_CONSTANTS}, r"shape \(2, 3\)"),
        ({"weights": sets(0), "constants": NO_CONSTANTS}, "1 to 1024 sets of weights, 0 here"),
        ({"weights": sets(2) * np.nan, "constants": NO_CONSTANTS}, "numbers from -50 to 50 alone"),
        ({"weights": sets(2) + 1e3, "constants": NO_CONSTANTS}, "numbers from -50 to 50 alone"),
        ({"weights": np.array(1.0), "constants": NO_CONSTANTS}, "shape"),
    ],
)
def test_a_file_that_holds_no_agent_is_refused(arrays: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(InvalidCheckpointError, match=says):
        load_stepwise(arrays, {"agent": "stepwise"}, TRUE, 0)


def test_options_that_are_no_counts_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="built must be an integer of at least 0, not -1"):
        StepwiseAgent("stepwise", sets(2), NO_CONSTANTS, built=-1)
    with pytest.raises(InvalidOptionError, match="by_rule must be an integer of at least 1, not 0"):
        StepwiseAgent("stepwise", sets(2), NO_CONSTANTS, built=0, by_rule=0)
