"""SurCo: the linear solver, the gradient of its perturbed answers, and that steps lower the cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents.search.items import Items
from shard_gym.agents.surco.agent import SurCoAgent, ZeroOptions, assign, load_surco, perturbed
from shard_gym.agents.surco.learner import SurCoLearner
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError, UnknownNameError
from shard_gym.cost_models import make_cost_model
from shard_gym.plans import plan_of_placement
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task, TaskSuite, problem_of

MakeTask = Callable[..., Task]
MODEL = make_cost_model("analytical", additive=True)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_the_solver_is_as_good_as_trying_everything(random_task: MakeTask, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 5, 2, slack=float(rng.uniform(1.05, 1.6)))
    costs = rng.normal(size=(5, 2))
    memory, caps = task.tables.memory_bytes, task.topology.memory_cap_bytes
    sums = [
        costs[np.arange(5), way].sum()
        for way in map(np.array, product(range(2), repeat=5))
        if (np.bincount(way, memory, 2) <= caps).all()
    ]
    placement = check_placement(assign(costs, task), task.tables, task.topology)
    assert costs[np.arange(5), placement].sum() == pytest.approx(min(sums), abs=1e-9)


def test_the_solver_keeps_to_constraints_and_is_as_good_as_trying_everything_that_does(
    random_task: MakeTask, random_constraints: Callable[..., Constraints], valid_placements: Callable[[Task], Any]
) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 6, 3, slack=2.0)
        task = replace(task, constraints=random_constraints(rng, task))
        costs = rng.normal(size=(6, 3))
        placement = problem_of(task).checked(assign(costs, task), task)
        assert task.constraints is not None
        sums = [
            costs[np.arange(6), way].sum()
            for way in valid_placements(task)
            if not task.constraints.problem_of(plan_of_placement(way, task.tables), task.tables)
        ]
        assert costs[np.arange(6), placement].sum() == pytest.approx(min(sums), abs=1e-3)  # HiGHS stops at a gap


def test_the_solver_fills_devices_to_the_last_byte_and_says_what_is_impossible(random_task: MakeTask) -> None:
    """Thirds of a device are no whole numbers of any unit."""
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0] * 6)
    topology = random_task(np.random.default_rng(3), 1, 2).topology
    size = int(tables.memory_bytes[0])
    full, short = (
        Task("full", tables.select(range(count)), replace(topology, memory_cap_bytes=np.full(2, count * size // 2)))
        for count in (6, 3)
    )
    costs = np.tile([1.0, 0.0], (6, 1)) + np.arange(6)[:, None] * [0.1, 0.0]
    assert assign(costs, full).tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(NoPlacementFoundError, match="HiGHS found no assignment"):
        assign(costs[:3], short)


def test_the_gradient_is_the_slope_of_the_mean_cost(random_task: MakeTask) -> None:
    """With many samples, in units of the standard deviation, along a random direction; both are estimates."""
    task = random_task(np.random.default_rng(1), 3, 2)
    items, rng = Items.of_tables(task, MODEL), np.random.default_rng(0)
    linear, direction = rng.normal(size=(2, 3, 2))
    noise = rng.normal(size=(40_000, 3, 2))

    def mean(at: np.ndarray) -> tuple[float, float]:
        answers = (at + noise).argmin(axis=2)  # no table is too large here
        code, which = np.unique(answers @ [4, 2, 1], return_inverse=True)
        each = np.array([items.cost_ms(answers[which == number][0]) for number in range(len(code))])[which]
        return float(each.mean()), float(each.std())

    step = 0.1
    slope = (mean(linear + step * direction)[0] - mean(linear - step * direction)[0]) / (2 * step)
    found = perturbed(linear, task, items, 40_000, 1.0, np.random.default_rng(1))
    assert (found.gradient * direction).sum() == pytest.approx(slope / mean(linear)[1], abs=0.05)
    assert found.cost_ms == pytest.approx(MODEL.estimate(found.placement, task.tables, task.topology).total_ms)


def test_steps_lower_the_cost_and_the_cheapest_placement_is_kept(random_task: MakeTask) -> None:
    """Under the true cost: on a task of 12 tables, and never above what the same noise found with fewer steps."""
    task = random_task(np.random.default_rng(4), 12, 3)
    costs = []
    for steps in (1, 5, 40):
        placement = SurCoAgent("a", MODEL, ZeroOptions(steps=steps)).place(task)
        costs.append(MODEL.estimate(placement, task.tables, task.topology).total_ms)
    assert costs[0] >= costs[1] >= costs[2]
    assert costs[2] < 0.95 * costs[0]


def test_what_was_found_stands_where_the_solver_fails_later(
    random_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of a pair is an answer, too; the gradient needs both."""
    task = random_task(np.random.default_rng(4), 12, 3)
    first, calls = SurCoAgent("a", MODEL, ZeroOptions(steps=1)).place(task), [0]

    def failing(linear: np.ndarray, task: Task) -> np.ndarray:
        calls[0] += 1
        if calls[0] > 16:
            raise NoPlacementFoundError("none")
        return assign(linear, task)

    monkeypatch.setattr("shard_gym.agents.surco.agent.assign", failing)
    assert np.array_equal(SurCoAgent("a", MODEL, ZeroOptions(steps=3)).place(task), first)
    calls[0] = 15  # the first of four samples has an answer, and the other of its pair has none
    found = perturbed(np.zeros((12, 3)), task, Items.of_tables(task, MODEL), 4, 0.5, np.random.default_rng(0))
    assert not found.gradient.any()
    check_placement(found.placement, task.tables, task.topology)


def test_an_agent_that_was_written_before_it_had_one_preset_still_loads(random_task: MakeTask) -> None:
    """Options that had no effect on `zero` are left out; other presets, arrays and options are errors."""
    task = random_task(np.random.default_rng(0), 4, 2)
    learner = SurCoLearner(TaskSuite("one", (task,)), MODEL, 0, steps=3)
    about, arrays = {"agent": "surco", **learner.about()}, learner.weights()
    older = {**about["options"], "prior_updates": 0, "prior_tasks": 4, "prior_rate": 1e-3, "hidden": 64}
    placement = load_surco(arrays, {**about, "options": older, "max_devices": 2}, MODEL, 5).place(task)
    assert np.array_equal(placement, load_surco(arrays, about, MODEL, 5).place(task))
    for wrong in ({"preset": "prior", "options": older}, {"options": {**older, "wings": 2}}, {"options": None}):
        with pytest.raises(InvalidCheckpointError):
            load_surco(arrays, {**about, **wrong}, MODEL, 0)
    for steps in (0, 10**9):
        with pytest.raises(InvalidOptionError):
            load_surco(arrays, about, MODEL, 0, steps=steps)
    with pytest.raises(UnknownNameError):
        load_surco(arrays, about, MODEL, 0, samples=2)
