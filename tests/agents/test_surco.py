"""SurCo: the linear solver, the gradient of its perturbed answers, and that steps and the network lower the cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents.surco.agent import SurCoAgent, load_surco
from shard_gym.agents.surco.learner import SurCoLearner
from shard_gym.agents.surco.network import LinearCostNetwork
from shard_gym.agents.surco.options import PRESETS, PriorOptions, ZeroOptions
from shard_gym.agents.surco.perturbed import EstimatedCosts, perturbed
from shard_gym.agents.surco.solver import assign
from shard_gym.agents.training.modules import new_module
from shard_gym.cost_models import make_additive_cost_model
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError, UnknownNameError
from shard_gym.placement import check_placement
from shard_gym.tasks import Task, TaskSuite

MakeTask = Callable[..., Task]
MODEL = make_additive_cost_model("analytical")


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


def test_tables_that_fill_the_devices_to_the_last_byte_are_placed(random_task: MakeTask) -> None:
    """Thirds of a device are no whole numbers of any unit."""
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0] * 6)
    topology = random_task(np.random.default_rng(3), 1, 2).topology
    full = Task("full", tables, replace(topology, memory_cap_bytes=np.full(2, 3 * tables.memory_bytes[0])))
    costs = np.tile([1.0, 0.0], (6, 1)) + np.arange(6)[:, None] * [0.1, 0.0]
    assert assign(costs, full).tolist() == [0, 0, 0, 1, 1, 1]


def test_an_impossible_task_is_refused(random_task: MakeTask) -> None:
    tables = random_task(np.random.default_rng(3), 1, 1).tables.select([0, 0, 0])
    task = random_task(np.random.default_rng(3), 1, 2)
    caps = np.full(2, tables.memory_bytes[0] * 3 // 2)
    three = Task("three", tables, replace(task.topology, memory_cap_bytes=caps))
    with pytest.raises(NoPlacementFoundError, match="HiGHS found no assignment"):
        assign(np.zeros((3, 2)), three)


def test_the_gradient_is_the_slope_of_the_mean_cost(random_task: MakeTask) -> None:
    """With many samples, in units of the standard deviation, along a random direction; both are estimates."""
    task = random_task(np.random.default_rng(1), 3, 2)
    costs, rng = EstimatedCosts(MODEL, task), np.random.default_rng(0)
    linear, direction = rng.normal(size=(2, 3, 2))
    noise = rng.normal(size=(40_000, 3, 2))

    def mean(at: np.ndarray) -> tuple[float, float]:
        answers = (at + noise).argmin(axis=2)  # no table is too large here
        code, which = np.unique(answers @ [4, 2, 1], return_inverse=True)
        each = costs.of([answers[which == number][0] for number in range(len(code))])[which]
        return float(each.mean()), float(each.std())

    step = 0.1
    slope = (mean(linear + step * direction)[0] - mean(linear - step * direction)[0]) / (2 * step)
    found = perturbed(linear, costs, 40_000, 1.0, np.random.default_rng(1))
    assert (found.gradient * direction).sum() == pytest.approx(slope / mean(linear)[1], abs=0.05)
    assert found.mean_ms == pytest.approx(mean(linear)[0], rel=0.01)
    assert found.cost_ms == pytest.approx(MODEL.estimate(found.placement, task.tables, task.topology).total_ms)


def test_steps_lower_the_cost_and_the_cheapest_placement_is_kept(random_task: MakeTask) -> None:
    """Under the true cost: on a task of 12 tables, and never above what the same noise found with fewer steps."""
    task = random_task(np.random.default_rng(4), 12, 3)
    costs = []
    for steps in (1, 5, 40):
        placement = SurCoAgent("a", MODEL, ZeroOptions(steps=steps), None).place(task)
        costs.append(MODEL.estimate(placement, task.tables, task.topology).total_ms)
    assert costs[0] >= costs[1] >= costs[2]
    assert costs[2] < 0.95 * costs[0]


def test_what_was_found_stands_where_the_solver_fails_later(
    random_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer of a pair is an answer, too; the gradient needs both."""
    task = random_task(np.random.default_rng(4), 12, 3)
    first, calls = SurCoAgent("a", MODEL, ZeroOptions(steps=1), None).place(task), [0]

    def failing(linear: np.ndarray, task: Task) -> np.ndarray:
        calls[0] += 1
        if calls[0] > 16:
            raise NoPlacementFoundError("none")
        return assign(linear, task)

    monkeypatch.setattr("shard_gym.agents.surco.perturbed.assign", failing)
    assert np.array_equal(SurCoAgent("a", MODEL, ZeroOptions(steps=3), None).place(task), first)
    calls[0] = 15  # the first of four samples has an answer, and the other of its pair has none
    found = perturbed(np.zeros((12, 3)), EstimatedCosts(MODEL, task), 4, 0.5, np.random.default_rng(0))
    assert not found.gradient.any()
    check_placement(found.placement, task.tables, task.topology)


def test_the_network_learns_to_spread_tables(random_task: MakeTask) -> None:
    """Its placements of the training tasks cost less after training, under a cost learnt from 40 measurements."""
    tasks = [replace(random_task(np.random.default_rng(n), 8, 2), name=f"t{n}") for n in range(3)]
    options: dict[str, Any] = {"prior_updates": 40, "hidden": 16, "prior_rate": 0.01, "cost_updates": 100}
    learner = SurCoLearner(TaskSuite("own", tuple(tasks)), MODEL, 0, preset="prior", iterations=2, **options)

    def mean_cost() -> float:
        agent = learner.agent()
        return float(
            np.mean([MODEL.estimate(agent.place(each), each.tables, each.topology).total_ms for each in tasks])
        )

    before = mean_cost()
    for _ in range(2):
        learner.iterate()
        learner.iteration += 1
    assert mean_cost() < 0.9 * before
    assert learner.true_cost_queries == learner.planned_queries == 40


def test_wrong_options_files_and_devices_are_refused(random_task: MakeTask) -> None:
    task = random_task(np.random.default_rng(0), 4, 2)
    suite = TaskSuite("one", (task,))
    for preset, wrong in (
        ("zero", {"samples": 3}),
        ("zero", {"sigma": 0.0}),
        ("zero", {"steps": 0}),
        ("prior", {"hidden": 6}),
        ("prior", {"prior_updates": -1}),
    ):
        with pytest.raises(InvalidOptionError):
            SurCoLearner(suite, MODEL, 0, preset=preset, **wrong)
    for unknown in ("half", []):
        with pytest.raises(UnknownNameError):
            SurCoLearner(suite, MODEL, 0, preset=unknown)
    for preset in PRESETS:
        few = {"hidden": 8} | ({"prior_updates": 1} if preset != "zero" else {})
        learner = SurCoLearner(suite, MODEL, 0, preset=preset, **few)
        about, arrays = {"agent": "surco", **learner.about()}, learner.weights()
        assert isinstance(load_surco(arrays, about, MODEL, 0), SurCoAgent)
        with pytest.raises(InvalidCheckpointError):
            load_surco({name: array for name, array in arrays.items() if "table" not in name}, about, MODEL, 0)
        for steps in (0, 10**9):
            with pytest.raises((InvalidOptionError, UnknownNameError)):
                load_surco(arrays, about, MODEL, 0, steps=steps)
    prior = new_module(lambda: LinearCostNetwork(1, 8), np.random.default_rng(0))
    with pytest.raises(NoPlacementFoundError, match="at most 1 device"):
        SurCoAgent("a", MODEL, PriorOptions(hidden=8), prior).place(task)
