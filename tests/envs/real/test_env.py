"""The measured environment: it executes placements, and keeps the contract of the one that estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import shard_gym
from shard_gym.common.errors import InvalidOptionError, InvalidTablesError, MeasurementError
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate, CostModel, make_cost_model
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.envs.real.env import EmbeddingPlacementRealEnv
from shard_gym.envs.real.tasks import as_measured
from shard_gym.hardware import hardware_profile
from shard_gym.tables import load_pool
from shard_gym.tasks import TaskSampler, TaskSuite, load_suite

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")

assert shard_gym.__version__  # importing it registers the environments

ID = "EmbeddingPlacementReal-v0"
QUICK: dict[str, Any] = {"device": "cpu", "batch_size": 64, "iterations": 2, "warmup": 1, "timeout_s": 60.0}


def small_suite() -> TaskSuite:
    """Three tasks of 20 tables for 2 devices, of Meta's tables with the fewest rows."""
    tables = load_pool("dlrm-2021").tables
    chosen = np.flatnonzero((tables.pooling_factor < 20) & (tables.pooling_factor > 1))
    chosen = chosen[np.argsort(tables.num_embeddings[chosen], kind="stable")][:60]
    sampler, rng = TaskSampler(tables.select(chosen), (20, 20), (2, 2), memory_slack=10), np.random.default_rng(0)
    return TaskSuite("small", [sampler.sample(rng) for _ in range(3)])


@pytest.fixture(scope="module")
def suite() -> TaskSuite:
    return small_suite()


@pytest.fixture(scope="module")
def env(suite: TaskSuite) -> Iterator[gymnasium.Env[Any, Any]]:
    env = gymnasium.make(ID, suite=suite, **QUICK)
    yield env
    session = env.unwrapped.measured._session
    assert session.pids
    env.close()
    assert not session.pids


def play(env: gymnasium.Env[Any, Any], info: dict[str, Any], choose: Any) -> tuple[float, dict[str, Any], Any]:
    """To the end; the return, the last info and the last observation."""
    total, over = 0.0, False
    while not over:
        obs, reward, over, _, info = env.step(int(choose(np.flatnonzero(info["action_mask"]))))
        total += reward
    return total, info, obs


def test_the_reward_is_minus_the_measured_cost(forked_workers: None, env: gymnasium.Env[Any, Any]) -> None:
    _, info = env.reset(seed=0, options={"task": 0})
    total, info, obs = play(env, info, np.random.default_rng(0).choice)
    task = env.unwrapped.task
    penalty_ms = env.unwrapped.measured.penalty_ms(task.tables, task.topology)
    assert total == -min(info["cost_ms"], np.nextafter(penalty_ms, 0.0))  # a loaded machine may exceed the penalty
    assert info["cost_ms"] == pytest.approx(info["phase_costs_ms"].max(axis=0).sum())
    assert (info["phase_costs_ms"] > 0).all()
    assert obs["device_costs"] == pytest.approx(info["phase_costs_ms"].ravel())
    assert info["measurement_seconds"] > 0
    assert info["measurement_spread"] >= 0
    assert info["measurement_clock_ghz"] == info["measurement_late"] == 0.0  # of GPUs
    assert info["failure"] == 0


def test_observations_are_those_of_the_estimating_environment(suite: TaskSuite) -> None:
    """On the same hardware, until the last step."""
    real = gymnasium.make(ID, suite=suite, **QUICK)
    estimating = gymnasium.make("EmbeddingPlacement-v0", suite=as_measured(suite, real.unwrapped.measured))
    assert real.observation_space == estimating.observation_space
    (obs, info), (other, _) = real.reset(seed=3), estimating.reset(seed=3)
    for _ in range(19):
        assert all(np.array_equal(obs[key], other[key]) for key in other)
        action = int(info["action_mask"].argmax())
        obs, reward, _, _, info = real.step(action)
        other = estimating.step(action)[0]
        assert reward == 0
    real.close()


class Scorer(CostModel):
    """Fails as often as it is told, then says what the estimate says, times a factor."""

    name, version = "scorer", 1

    def __init__(self, failures: int, factor: float) -> None:
        self.failures, self.factor = failures, factor

    def estimate(self, placement: Any, tables: Any, topology: Any) -> CostEstimate:
        if self.failures:
            self.failures -= 1
            raise MeasurementError("It was the weather.")
        found = make_cost_model("analytical").estimate(placement, tables, topology)
        return CostEstimate(self.factor * found.phases_ms, self.factor * found.total_ms)

    def penalty_ms(self, tables: Any, topology: Any) -> float:
        return 1000.0


def with_scorer(suite: TaskSuite, failures: int, factor: float, **arguments: Any) -> Any:
    env = EmbeddingPlacementRealEnv(suite, **QUICK, **arguments)
    env._episodes.final_cost = Scorer(failures, factor)
    return env


def test_a_step_whose_measurement_failed_can_be_tried_again(suite: TaskSuite) -> None:
    env, twin = with_scorer(suite, 2, 2.0), with_scorer(suite, 0, 2.0)
    for each in (env, twin):
        each.reset(seed=0)
        for table in range(19):
            each.step(table % 2)
    expected = twin.step(1)
    for _ in range(2):
        with pytest.raises(MeasurementError, match="weather"):
            env.step(1)
    found = env.step(1)
    assert found[1] == expected[1]
    assert found[4]["placement"].tolist() == expected[4]["placement"].tolist()
    assert not any(key.startswith("measurement") for key in found[4])  # this cost model has nothing to add


@pytest.mark.parametrize("reward", ["terminal", "dense"])
def test_a_measurement_beyond_the_penalty_never_makes_failing_pay(suite: TaskSuite, reward: str) -> None:
    env = with_scorer(suite, 0, 1e9, reward=reward)
    measured = set()
    for choose in (min, np.random.default_rng(0).choice):
        _, info = env.reset(seed=0, options={"task": 0})
        total, info, _ = play(env, info, choose)
        assert total == pytest.approx(-1000.0)
        assert reward == "dense" or total > -1000.0
        task = env.task
        true_ms = make_cost_model("analytical").estimate(info["placement"], task.tables, task.topology).total_ms
        assert info["cost_ms"] == 1e9 * true_ms
        measured.add(info["cost_ms"])
    assert len(measured) == 2  # what was measured is told apart
    env = with_scorer(suite, 0, 1.0, reward=reward, max_devices=3)
    env.reset(seed=0)
    assert env.step(2)[1] == -1000.0  # there is no third device


def test_many_at_once_share_their_workers(quick_workers: None, suite: TaskSuite) -> None:
    settings = {"suite": suite, "layout": "parallel", **QUICK}
    vector = gymnasium.make_vec(ID, num_envs=3, vectorization_mode="vector_entry_point", **settings)
    _, info = vector.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        _, rewards, over, _, info = vector.step(rng.integers(2, size=3))
    assert over.all()
    penalties_ms = vector.unwrapped.episodes.problem.penalty_ms
    assert (-rewards == np.minimum(info["cost_ms"], np.nextafter(penalties_ms, 0.0))).all()
    assert (info["measurement_seconds"] > 0).all()
    session = vector.unwrapped.measured._session
    assert len(session.pids) == 2
    vector.close()
    assert not session.pids


def test_tasks_keep_their_memory_caps_and_get_the_hardware_of_the_machine(suite: TaskSuite) -> None:
    profile, measured = hardware_profile("cpu"), MeasuredCostModel("cpu", batch_size=64)
    moved = as_measured(suite, measured)
    assert isinstance(moved, TaskSuite)
    assert [task.name for task in moved] == [task.name for task in suite]
    assert (moved[0].topology.device, moved[0].topology.links) == (profile.device, profile.links)
    assert moved[0].topology.memory_cap_bytes.tolist() == suite[0].topology.memory_cap_bytes.tolist()
    assert moved[0].tables.workload.batch_size == 64
    assert np.array_equal(moved[0].tables.distinct_rows, suite[0].tables.at_batch_size(64).distinct_rows)
    drawn = as_measured(TaskSampler(load_pool("dlrm-2021"), (3, 4), (2, 2)), measured)
    assert (drawn.max_tables, drawn.max_devices) == (4, 2)
    sampled = drawn.sample(np.random.default_rng(0))
    assert (sampled.topology.device, sampled.tables.workload.batch_size) == (profile.device, 64)


def test_devices_that_were_calibrated_on_this_machine_stay(suite: TaskSuite) -> None:
    measured = MeasuredCostModel("cpu")
    own = replace(hardware_profile("cpu").device, name=measured.hardware, kernel_launch_us=7.0)
    task = replace(suite[0], topology=replace(suite[0].topology, device=own))
    assert as_measured(TaskSuite("mine", [task]), measured)[0].topology.device == own


@pytest.mark.parametrize("what", ["rows in host memory", "tables that are served", "plans for groups of devices"])
def test_what_is_not_executed_is_refused_at_the_edge(suite: TaskSuite, what: str) -> None:
    task = suite[0]
    if what == "rows in host memory":
        task = load_suite("tier-4")[0]
    elif what == "tables that are served":
        task = replace(task, tables=task.tables.with_training(training=False))
    else:
        task = replace(task, splittable=True, sync_every=10)
    with pytest.raises(InvalidOptionError, match=f"The measurement of task .* does not support {what}"):
        as_measured(TaskSuite("mine", [task]), MeasuredCostModel("cpu"))


def test_a_suite_made_for_the_machine_stays_as_it_is() -> None:
    suite = load_suite("cpu-20x2")
    assert as_measured(suite, MeasuredCostModel("cpu")) is suite
    assert as_measured(suite, AnalyticalCostModel()) is suite


def test_a_larger_batch_than_that_of_the_tables_is_refused(suite: TaskSuite) -> None:
    with pytest.raises(InvalidTablesError, match="does not follow from them"):
        gymnasium.make(ID, suite=suite, device="cpu", batch_size=2**17)


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_other_cost_models_are_refused_as_measured(make: Any) -> None:
    with pytest.raises(InvalidOptionError, match="measured must be a MeasuredCostModel"):
        make("shard_gym:EmbeddingPlacementReal-v0", suite="dlrm-20x4", measured="cpu")
