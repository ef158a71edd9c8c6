"""Episodes inside an estimate: they are the environment's, legal, and recorded as they happened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shard_gym.agents.dreamshard.policy import POLICIES, Policy
from shard_gym.agents.dreamshard.reinforce import FAILURE, advantages, choices, policy_loss
from shard_gym.agents.dreamshard.rollout import Rollout, play
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.neural.network import FloatWeights
from shard_gym.cost_models.neural.training import TensorWeights, as_arrays, trainable
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.envs.core.problem import prepare
from shard_gym.evaluation import score
from shard_gym.placement import check_placement
from shard_gym.tasks import Task, TaskSuite

MODEL = make_cost_model("analytical")
EVERY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def fresh(policy: type[Policy], suite: TaskSuite, rng: np.random.Generator) -> FloatWeights:
    """Untrained weights, made for the tables of `suite`."""
    features = np.concatenate([task.tables.features() for task in suite])
    return {**policy.new_weights(rng), **policy.calibrated(features)}


def small_step(weights: TensorWeights) -> None:
    """Against the gradient, a hundredth long."""
    gradients = {name: tensor.grad for name, tensor in weights.items() if tensor.grad is not None}
    length = torch.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    with torch.no_grad():
        for name, gradient in gradients.items():
            weights[name] -= 0.01 * gradient / length


def bank_of(suite: TaskSuite, tasks: list[Task]) -> PreparedTasks:
    bank = PreparedTasks(suite, MODEL, suite.max_tables, suite.max_devices, len(tasks))
    bank.begin(np.arange(len(tasks)), tasks)
    return bank


@EVERY
def test_complete_episodes_are_valid_placements_at_the_cost_they_say(
    policy: type[Policy], small_suite: TaskSuite
) -> None:
    tasks = [task for task in small_suite for _ in range(3)]
    rng = np.random.default_rng(0)
    rollout = play(bank_of(small_suite, tasks).problem, MODEL, policy, fresh(policy, small_suite, rng), rng)
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


@EVERY
def test_what_training_recomputes_is_what_the_episode_did(policy: type[Policy], small_suite: TaskSuite) -> None:
    """Without noise the likeliest device was taken, and every step's share comes from what was held before it."""
    weights = fresh(policy, small_suite, np.random.default_rng(1))
    problem = bank_of(small_suite, list(small_suite)).problem
    steps = play(problem, MODEL, policy, weights, None, record=True).steps
    assert steps is not None
    log_shares = choices(policy, {name: torch.tensor(array) for name, array in weights.items()}, steps).numpy()
    shares = np.exp(log_shares)
    assert (shares[~steps.legal & steps.taken[..., None]] == 0).all()
    np.testing.assert_allclose(shares[steps.taken].sum(axis=-1), 1, rtol=1e-5)
    assert (shares.argmax(axis=-1) == steps.actions)[steps.taken].all()
    assert steps.taken.sum(axis=1).tolist() == [task.num_tables for task in small_suite]


def test_equal_generators_give_equal_episodes_and_others_others(small_suite: TaskSuite) -> None:
    policy = POLICIES["paper"]
    weights = fresh(policy, small_suite, np.random.default_rng(2))
    problem = prepare(small_suite[1], MODEL, 8, 3).repeated(5)
    one, same, other = (
        play(problem, MODEL, policy, weights, np.random.default_rng(seed)).placements for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert len(np.unique(one, axis=0)) > 1


def test_devices_are_drawn_by_their_shares(random_task: Callable[..., Task]) -> None:
    """One table, three devices: the frequencies are those of the softmax."""
    policy = POLICIES["paper"]
    task = random_task(np.random.default_rng(3), 1, 3)
    weights = fresh(policy, TaskSuite("one", (task,)), np.random.default_rng(4))
    problem = prepare(task, MODEL, 1, 3).repeated(6000)
    rollout = play(problem, MODEL, policy, weights, np.random.default_rng(5), record=True)
    assert rollout.steps is not None
    tensors = {name: torch.tensor(array) for name, array in weights.items()}
    shares = choices(policy, tensors, rollout.steps)[0, 0].exp().numpy()
    found = np.bincount(rollout.placements[:, 0], minlength=3) / 6000
    np.testing.assert_allclose(found, shares, atol=0.025)


def test_advantages_compare_an_episode_with_the_others_of_its_task() -> None:
    cost = np.array([1.0, 3.0, 100.0, 300.0])
    rollout = Rollout(np.zeros((4, 1), np.int64), cost, np.ones(4, np.bool_), None)
    np.testing.assert_allclose(advantages(rollout, 2), [0.5**0.5, -(0.5**0.5)] * 2, rtol=1e-6)
    assert advantages(rollout, 1)[3] < advantages(rollout, 1)[2] < advantages(rollout, 1)[1]


def test_a_failed_episode_is_worse_than_all_others_of_its_task_but_not_by_its_penalty() -> None:
    cost, complete = np.array([2.0, 3.0, 4.0, 1e6]), np.array([True, True, True, False])
    failed = advantages(Rollout(np.zeros((4, 1), np.int64), cost, complete, None), 1)
    plain = np.array([2.0, 3.0, 4.0, 4.0 * FAILURE])
    np.testing.assert_allclose(failed, -(plain - plain.mean()) / plain.std(ddof=1), rtol=1e-6)


@EVERY
def test_a_step_against_the_loss_makes_good_choices_likelier(policy: type[Policy], small_suite: TaskSuite) -> None:
    rng = np.random.default_rng(6)
    weights = trainable(fresh(policy, small_suite, rng))
    problem = prepare(small_suite[3], MODEL, 8, 3).repeated(8)
    arrays = as_arrays(weights)
    steps = play(problem, MODEL, policy, arrays, rng, record=True).steps
    assert steps is not None
    advantage = np.array([3.0, *[0.0] * 7])

    def likelihood() -> float:
        said = choices(policy, weights, steps)[0].gather(-1, torch.tensor(steps.actions[0])[:, None])
        return float(said[torch.tensor(steps.taken[0])].sum().detach())

    before = likelihood()
    policy_loss(policy, weights, steps, advantage, 0.0).backward()
    small_step(weights)
    assert likelihood() > before


@EVERY
def test_the_entropy_bonus_alone_makes_choices_more_even(policy: type[Policy], small_suite: TaskSuite) -> None:
    rng = np.random.default_rng(7)
    weights = trainable(fresh(policy, small_suite, rng))
    problem = prepare(small_suite[3], MODEL, 8, 3).repeated(4)
    arrays = as_arrays(weights)
    steps = play(problem, MODEL, policy, arrays, rng, record=True).steps
    assert steps is not None

    def entropy() -> torch.Tensor:
        log_shares = choices(policy, weights, steps)
        return -(log_shares.exp() * log_shares.clip(min=-1e4)).sum(-1)[torch.tensor(steps.taken)].mean()

    before = float(entropy().detach())
    policy_loss(policy, weights, steps, np.zeros(4), 1.0).backward()
    small_step(weights)
    assert float(entropy().detach()) > before
