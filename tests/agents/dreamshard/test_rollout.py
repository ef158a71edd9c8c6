"""The policy, its rollouts under a cost model, and REINFORCE on their trajectories."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shard_gym.agents.dreamshard.agent import DreamShardTrajectories, Rollout, new_policy, play
from shard_gym.agents.dreamshard.learner import FAILURE, action_log_probabilities, advantages, policy_loss
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.fitting.training import as_arrays, trainable
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import EnvProblem, prepare
from shard_gym.evaluation.evaluations import score
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task, TaskSuite

MODEL = make_cost_model("analytical")


def fresh(suite: TaskSuite, seed: int) -> FloatWeights:
    """Untrained weights, with inputs normalized over the tables of `suite`."""
    features = np.concatenate([task.tables.features() for task in suite])
    return new_policy(np.random.default_rng(seed), features)


def problem_of(suite: TaskSuite, tasks: list[Task]) -> EnvProblem:
    prepared = PreparedTasks(suite, MODEL, suite.max_tables, suite.max_devices, len(tasks))
    prepared.begin(np.arange(len(tasks)), tasks)
    return prepared.problem


def rollout_of(cost: list[float], complete: list[bool]) -> Rollout:
    count = len(cost)
    nothing = DreamShardTrajectories(*(np.empty(0) for _ in range(4)))  # type: ignore[arg-type]
    return Rollout(np.zeros((count, 1), np.int64), np.array(cost), np.array(complete), nothing)


def test_complete_episodes_are_valid_placements_with_their_costs(small_suite: TaskSuite) -> None:
    tasks = [task for task in small_suite for _ in range(3)]
    rollout = play(problem_of(small_suite, tasks), MODEL, fresh(small_suite, 0), np.random.default_rng(0))
    assert rollout.complete.any()
    for task, placement, cost, complete in zip(
        tasks, rollout.placements, rollout.cost_ms, rollout.complete, strict=True
    ):
        if complete:
            checked = check_placement(placement[: task.num_tables], task.tables, task.topology)
            assert score(task, checked, MODEL) == pytest.approx(cost, rel=1e-12)
            assert (placement[task.num_tables :] == -1).all()
        else:
            assert cost == MODEL.penalty_ms(task.tables, task.topology)


@pytest.mark.parametrize("cost_features", [True, False])
def test_training_recomputes_the_probabilities_of_the_rollout(small_suite: TaskSuite, cost_features: bool) -> None:
    """Without noise the most likely device was taken, and it is the most likely one in training, too."""
    weights = fresh(small_suite, 1)
    problem = problem_of(small_suite, list(small_suite))
    steps = play(problem, MODEL, weights, None, cost_features=cost_features).trajectories
    assert bool(steps.costs_ms.any()) == cost_features
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    probabilities = np.exp(action_log_probabilities(tensors, steps).numpy())
    assert (probabilities[~steps.legal & steps.taken[..., None]] == 0).all()
    np.testing.assert_allclose(probabilities[steps.taken].sum(axis=-1), 1, rtol=1e-5)
    assert (probabilities.argmax(axis=-1) == steps.actions)[steps.taken].all()
    assert steps.taken.sum(axis=1).tolist() == [task.num_tables for task in small_suite]


def test_devices_are_drawn_with_their_probabilities(random_task: Callable[..., Task]) -> None:
    """One table, three devices: the frequencies are those of the softmax."""
    task = random_task(np.random.default_rng(3), 1, 3)
    weights = fresh(TaskSuite("one", (task,)), 4)
    problem = prepare(task, MODEL, 1, 3).repeated(6000)
    rollout = play(problem, MODEL, weights, np.random.default_rng(5))
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    probabilities = action_log_probabilities(tensors, rollout.trajectories)[0, 0].exp().numpy()
    frequencies = np.bincount(rollout.placements[:, 0], minlength=3) / 6000
    np.testing.assert_allclose(frequencies, probabilities, atol=0.025)


def test_advantages_are_normalised_returns_and_a_failure_is_a_little_worse_than_the_rest() -> None:
    for cost, complete, counted in (
        ([1.0, 3.0, 8.0], [True, True, True], [1.0, 3.0, 8.0]),
        ([2.0, 3.0, 4.0, 1e6], [True, True, True, False], [2.0, 3.0, 4.0, 4.0 * FAILURE]),
    ):
        expected = -(np.array(counted) - np.mean(counted)) / np.std(counted, ddof=1)
        np.testing.assert_allclose(advantages(rollout_of(cost, complete)), expected, rtol=1e-6)


def test_the_bonus_for_entropy_raises_it(small_suite: TaskSuite) -> None:
    weights = trainable(fresh(small_suite, 6))
    problem = prepare(small_suite[3], MODEL, 8, 3).repeated(8)
    steps = play(problem, MODEL, as_arrays(weights), np.random.default_rng(6)).trajectories

    def entropy() -> float:
        logs = action_log_probabilities(weights, steps)
        return float(-(logs.exp() * logs.clip(min=-1e4)).sum(-1)[torch.tensor(steps.taken)].mean().detach())

    before = entropy()
    policy_loss(weights, steps, np.zeros(8), 1.0).backward()
    gradients = {name: tensor.grad for name, tensor in weights.items() if tensor.grad is not None}
    length = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    with torch.no_grad():
        for name, gradient in gradients.items():
            weights[name] -= 0.01 * gradient / length
    assert entropy() > before
