"""The RNN baseline: what it draws is legal, what it learns pays, and it asks what it says it asks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.agents import make_agent
from shard_gym.agents.rnn import RnnAgent, RnnLearner, load_rnn
from shard_gym.agents.rnn.agent import PlacementNetwork, decode, gumbel_noise
from shard_gym.agents.training.modules import new_module
from shard_gym.agents.training.torch_arrays import module_arrays
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.cost_models import make_cost_model
from shard_gym.evaluation import evaluate
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task, TaskSuite, problem_of

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)


def small_network(max_devices: int = 4, seed: int = 0) -> PlacementNetwork:
    return new_module(lambda: PlacementNetwork(max_devices, 8), np.random.default_rng(seed))


def drawn(network: PlacementNetwork, task: Task, count: int, seed: int = 0) -> Any:
    noise = gumbel_noise(np.random.default_rng(seed), task.num_tables, count, network.max_devices)
    with torch.no_grad():
        return decode(network, task, noise)


@settings(max_examples=25)
@given(seed=SEEDS)
def test_placements_are_legal_or_stuck_and_penalised_devices_are_never_taken(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 12)), int(rng.integers(1, 5)), slack=2.0)
    decoded = drawn(small_network(6), task, 5, seed)
    assert decoded.placements.shape == (5, task.num_tables)
    assert torch.isfinite(decoded.log_probability).all()
    assert torch.isfinite(decoded.entropy).all()
    order = np.argsort(-task.tables.embedding_dim * task.tables.pooling_factor, kind="stable").tolist()
    for placement, stuck in zip(decoded.placements, decoded.stuck, strict=True):
        free = task.topology.memory_cap_bytes.copy()
        for table in order if stuck < 0 else order[: order.index(stuck)]:
            assert placement[table] < task.num_devices
            free[placement[table]] -= task.tables.memory_bytes[table]
        assert (free >= 0).all()
        if stuck >= 0:
            assert task.tables.memory_bytes[stuck] > free.max()
        else:
            check_placement(placement, task.tables, task.topology)


def test_placements_keep_to_constraints_or_are_stuck(random_task: Any, random_constraints: Any) -> None:
    ended = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 10, 4, slack=2.0)
        task = replace(task, constraints=random_constraints(rng, task))
        decoded = drawn(small_network(6), task, 5, seed)
        for placement in decoded.placements[decoded.stuck < 0]:
            problem_of(task).checked(placement, task)
            ended += 1
    assert ended > 25


def test_devices_are_drawn_as_often_as_the_probabilities_say(random_task: Any) -> None:
    """All 9 placements of two tables, drawn often: their shares are exp(log_probability)."""
    task = random_task(np.random.default_rng(1), 2, 3)
    decoded = drawn(small_network(3), task, 20_000)
    found, first, counts = np.unique(decoded.placements, axis=0, return_index=True, return_counts=True)
    probabilities = decoded.log_probability.exp().numpy()[first]
    assert len(found) == 9
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-5)
    assert counts / 20_000 == pytest.approx(probabilities, abs=0.015)


def test_a_placement_does_not_depend_on_those_drawn_beside_it(random_task: Any) -> None:
    task, network = random_task(np.random.default_rng(2), 9, 3, slack=1.5), small_network()
    together = drawn(network, task, 6)
    noise = gumbel_noise(np.random.default_rng(0), 9, 6, 4)
    for each in range(6):
        with torch.no_grad():
            alone = decode(network, task, noise[:, each : each + 1])
        assert np.array_equal(alone.placements[0], together.placements[each])
        assert alone.log_probability[0] == pytest.approx(float(together.log_probability[each]), abs=1e-4)


def test_the_likeliest_devices_are_taken_and_drawing_depends_on_the_seed(random_task: Any) -> None:
    task, network = random_task(np.random.default_rng(4), 12, 4), small_network()
    greedy = RnnAgent("rnn", network)
    assert np.array_equal(greedy.place(task), RnnAgent("rnn", network, seed=1).place(task))
    chances = drawn(network, task, 500).log_probability.max()
    with torch.no_grad():
        likeliest = decode(network, task)
    assert np.array_equal(likeliest.placements[0], greedy.place(task))
    assert float(likeliest.log_probability[0]) >= float(chances)
    arrays, about = module_arrays(network), {"agent": "rnn", "max_devices": 4, "hidden": 8}
    sampled = [load_rnn(arrays, about, MODEL, seed, sample=True).place(task).tolist() for seed in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_task_with_more_devices_than_the_network_is_refused(random_task: Any) -> None:
    agent = RnnAgent("rnn", small_network(4))
    with pytest.raises(NoPlacementFoundError, match=r"rnn was trained for at most 4 devices.*has 5"):
        agent.place(random_task(np.random.default_rng(0), 10, 5))
    assert agent.place(random_task(np.random.default_rng(0), 10, 2)).max() <= 1


def test_a_table_that_fits_nowhere_is_named(dead_end: Task) -> None:
    endings = set()
    for seed in range(20):
        try:
            placement = RnnAgent("rnn", small_network(2), sample=True, seed=seed).place(dead_end)
        except NoPlacementFoundError as error:
            endings.add(str(error).split()[1])
        else:
            endings.add(tuple(placement.tolist()))
    assert endings == {(1, 0, 0), "c"}


def test_it_learns_to_place_tasks_it_has_not_seen(planted_suite: Any, trained: Any) -> None:
    """Tables come in pairs of equals: the gap to the optimum must shrink to a third, and below that of random."""
    suite, _ = planted_suite(np.random.default_rng(0), 20, 3, 2)
    unseen, best = planted_suite(np.random.default_rng(1), 20, 3, 2)

    def gap(agent: Any) -> float:
        return float((evaluate(agent, unseen).costs_ms / best).mean() - 1)

    learner = RnnLearner(suite, MODEL, 0, iterations=25, episodes=8, hidden=32)
    untrained = gap(learner.agent())
    trained(learner)
    assert gap(learner.agent()) < untrained / 3
    assert gap(learner.agent()) < gap(make_agent("random")) / 3


def test_costs_are_the_true_ones_and_stuck_placements_are_charged_without_a_question(dead_end: Task) -> None:
    task = dead_end
    learner = RnnLearner(TaskSuite("narrow", (task,)), MODEL, 0, episodes=16)
    report = learner.iterate()
    stuck = int(report.numbers["stuck"])
    assert 0 < stuck < 16
    assert learner.true_cost_queries == 16 - stuck
    cost = MODEL.estimate(np.array([1, 0, 0]), task.tables, task.topology).total_ms
    penalty = MODEL.penalty_ms(task.tables, task.topology)
    assert report.mean_cost_ms == pytest.approx((stuck * penalty + (16 - stuck) * cost) / 16)
