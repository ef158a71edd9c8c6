"""PPO, MaskablePPO, A2C and DQN as learners: they learn, they resume bit for bit, and they count what they ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym import evaluate
from shard_gym.agents import RandomAgent
from shard_gym.agents.sb3.learner import RelativeReward, Sb3Learner
from shard_gym.agents.training import LEARNERS, TrainingRun, load_agent, make_learner
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from shard_gym.placement import check_placement
from shard_gym.tasks import Task, TaskSuite

NAMES = ("ppo", "maskable-ppo", "a2c", "dqn")
TINY = {"iterations": 4, "num_envs": 4, "width": 8, "replay": 50}
"""DQN's buffer is full after two iterations."""


class Killed(Exception):
    """What ends a run in the middle."""


def learner(suite: TaskSuite, name: str, **options: Any) -> Any:
    return make_learner(name, suite, seed=7, **{**TINY, **options})


def killed_after(iterations: int) -> Callable[..., None]:
    def on_report(learner: Any, _: Any) -> None:
        if learner.iteration == iterations:
            raise Killed

    return on_report


def assert_same_arrays(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert np.array_equal(one[name], other[name]), name


def test_the_four_are_registered_under_their_names() -> None:
    assert {name for name, entry in LEARNERS.items() if entry.learner.endswith(":Sb3Learner")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    name: str, small_suite: TaskSuite, random_task: Callable[..., Task], tmp_path: Path
) -> None:
    whole = learner(small_suite, name)
    TrainingRun(whole, tmp_path / "whole", TINY).run()
    for iterations in (1, 3):
        run = TrainingRun(learner(small_suite, name), tmp_path / "killed", TINY, resume=iterations > 1)
        with pytest.raises(Killed):
            run.run(killed_after(iterations))
        np.random.seed(iterations)  # the generators of the process have no say
        torch.manual_seed(iterations)
    resumed = learner(small_suite, name)
    TrainingRun(resumed, tmp_path / "killed", TINY, resume=True).run()
    assert_same_arrays(whole.state(), resumed.state())
    assert_same_arrays(whole.weights(), resumed.weights())
    assert whole.true_cost_queries == resumed.true_cost_queries
    task = random_task(np.random.default_rng(0), 20, 4)
    assert np.array_equal(load_agent(tmp_path / "killed").place(task), whole.agent().place(task))


@pytest.mark.parametrize("name", NAMES)
def test_an_iteration_changes_the_policy_and_leaves_the_process_alone(name: str, small_suite: TaskSuite) -> None:
    trained = learner(small_suite, name)
    first = trained.weights()
    asked, threads = trained.true_cost_queries, torch.get_num_threads()
    np.random.seed(0)
    torch.manual_seed(0)
    report = trained.iterate()
    drawn = np.random.random(), float(torch.rand(()))
    np.random.seed(0)
    torch.manual_seed(0)
    assert drawn == (np.random.random(), float(torch.rand(())))
    assert torch.get_num_threads() == threads
    assert any(not np.array_equal(first[key], array) for key, array in trained.weights().items())
    costs = [evaluate(RandomAgent(seed), small_suite).mean_cost_ms for seed in range(3)]
    assert 0.5 * min(costs) < report.mean_cost_ms < 2 * max(costs)
    assert trained.true_cost_queries - asked >= 4 * 6  # each step of each environment
    assert all(np.isfinite(value) for value in report.numbers.values())
    assert "n_updates" not in report.numbers


def test_other_seeds_end_elsewhere(small_suite: TaskSuite) -> None:
    one, other = (make_learner("ppo", small_suite, seed=seed, **TINY) for seed in (1, 2))
    assert not np.array_equal(one.weights()["own.weight"], other.weights()["own.weight"])


@pytest.mark.parametrize("name", ["maskable-ppo", "dqn"])
def test_equal_tables_are_learnt_to_be_spread(
    name: str, planted_task: Callable[..., tuple[Task, Any]], tmp_path: Path
) -> None:
    """Trained on three devices; on tasks never seen, also of five, most of what random placement loses is won back."""
    rng = np.random.default_rng(0)

    def suite(devices: int, count: int) -> tuple[TaskSuite, float]:
        pairs = [planted_task(rng, 3, devices) for _ in range(count)]
        tasks = [Task(f"planted/{n}", task.tables, task.topology) for n, (task, _) in enumerate(pairs)]
        model = AnalyticalCostModel()
        costs = [model.estimate(best, task.tables, task.topology).total_ms for task, best in pairs]
        return TaskSuite("planted", tuple(tasks)), float(np.mean(costs))

    options = {"maskable-ppo": {"iterations": 15, "num_envs": 64}, "dqn": {"iterations": 25, "num_envs": 16}}[name]
    trained = make_learner(name, suite(3, 12)[0], seed=0, width=32, **options)
    TrainingRun(trained, tmp_path, options).run()
    agent = load_agent(tmp_path)
    for devices in (3, 5):
        tasks, best = suite(devices, 8)
        learnt, drawn = evaluate(agent, tasks), evaluate(RandomAgent(0), tasks)
        assert learnt.failures == 0
        assert learnt.mean_cost_ms - best < 0.35 * (drawn.mean_cost_ms - best)


def test_small_padding_while_training_is_no_limit_afterwards(
    small_suite: TaskSuite, random_task: Callable[..., Task]
) -> None:
    trained = learner(small_suite, "a2c")
    trained.iterate()
    task = random_task(np.random.default_rng(0), 60, 9)
    check_placement(trained.agent().place(task), task.tables, task.topology)


def test_failed_episodes_count_with_their_penalty(packing_task: Callable[..., Task]) -> None:
    task = packing_task((6, 6, 6), 2)
    report = learner(TaskSuite("stuck", (task,)), "ppo").iterate()
    assert report.mean_cost_ms == pytest.approx(AnalyticalCostModel().penalty_ms(task.tables, task.topology))
    assert report.numbers["failures"] >= 4


def test_the_reward_sums_to_the_cost_in_units_of_the_lower_bound(small_suite: TaskSuite) -> None:
    env = EmbeddingPlacementEnv(small_suite, reward=RelativeReward())
    env.reset(seed=0)
    total, over, info = 0.0, False, {}
    while not over:
        _, reward, over, _, info = env.step(int(env.action_masks().argmax()))
        total += reward
    cost = info["cost_ms"] if "cost_ms" in info else float(env.problem.penalty_ms[0])
    assert total == pytest.approx(-cost / float(env.problem.lower_bound_ms[0]))
    assert total <= -1


@pytest.mark.parametrize("num_envs", [2, 3, 8])
def test_one_table_in_few_environments_is_a_rollout_too(num_envs: int, random_task: Callable[..., Task]) -> None:
    suite = TaskSuite("one", (random_task(np.random.default_rng(0), 1, 2),))
    for name in NAMES:
        assert np.isfinite(learner(suite, name, num_envs=num_envs).iterate().mean_cost_ms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations"),
        ({"num_envs": 1}, "num_envs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"width": 0}, "width"),
        ({"replay": 0}, "replay"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, small_suite: TaskSuite) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        learner(small_suite, "dqn", **options)


def test_an_option_that_is_not_there_is_answered_with_those_that_are(small_suite: TaskSuite) -> None:
    with pytest.raises(UnknownNameError, match=r"agent 'dqn' named 'episodes'\. Known: .*num_envs, replay, width"):
        learner(small_suite, "dqn", episodes=3)


def test_an_algorithm_that_is_not_there_is_a_named_error(small_suite: TaskSuite) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        Sb3Learner(small_suite, AnalyticalCostModel(), 0, name="pppo")


def test_a_state_that_is_not_this_learners_is_refused(small_suite: TaskSuite) -> None:
    trained = learner(small_suite, "dqn")
    trained.iterate()
    state = trained.state()
    for changed, message in (
        ({"q_net.q_net.scorer.own.bias": np.zeros(3)}, "shape"),
        ({"stray": np.zeros(1)}, "'stray' that does not belong"),
        ({"optimizer.0.exp_avg": np.zeros((2, 2))}, "shape"),
        ({"replay.rewards": state["replay.rewards"][:2]}, "replay buffer"),
        ({"replay.position": np.array(40)}, "write position 40"),
        ({"replay.full": np.array(True), "replay.position": np.array(0)}, "does not fit its write position"),
    ):
        with pytest.raises(InvalidCheckpointError, match=message):
            learner(small_suite, "dqn").load_state({**state, **changed})
    with pytest.raises(InvalidCheckpointError, match=r"does not belong|lacks"):
        learner(small_suite, "ppo").load_state(state)
    with pytest.raises(InvalidCheckpointError, match="write position"):
        learner(small_suite, "dqn", replay=16).load_state(state)
