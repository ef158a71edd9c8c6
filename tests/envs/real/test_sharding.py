"""The measured environment of sharding: it executes plans, and keeps the contract of the one that estimates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import shard_gym
from shard_gym.common.errors import InvalidOptionError, MeasurementError
from shard_gym.cost_models import AnalyticalShardingModel, CostEstimate, CostModel
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.real.sharding import EmbeddingShardingRealEnv
from shard_gym.envs.real.tasks import as_measured
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE
from shard_gym.tasks import TaskSuite, load_suite, problem_of

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")

assert shard_gym.__version__  # importing it registers the environments

ID = "EmbeddingShardingReal-v0"
QUICK: dict[str, Any] = {"layout": "parallel", "batch_size": 64, "iterations": 2, "warmup": 1, "timeout_s": 60.0}


@pytest.fixture(scope="module")
def suite() -> TaskSuite:
    chosen = np.arange(6)
    tasks = load_suite("shard-cpu-20x2").tasks[:3]
    return TaskSuite(
        "small", [replace(task, tables=task.tables.select(chosen), known_placement=None) for task in tasks]
    )


@pytest.fixture
def measured(quick_workers: None) -> Iterator[MeasuredCostModel]:
    with MeasuredCostModel("cpu", layout="parallel", batch_size=64, iterations=2, warmup=1) as model:
        yield model


def play(env: Any, seed: int) -> tuple[list[int], float, dict[str, Any], Any]:
    """Random legal actions to the end; them, the return, the last info and the last observation."""
    rng, actions, total, over = np.random.default_rng(seed), [], 0.0, False
    _, info = env.reset(seed=seed, options={"task": 0})
    while not over:
        actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
        obs, reward, over, _, info = env.step(actions[-1])
        total += reward
    return actions, total, info, obs


def test_the_cost_is_that_of_the_measured_plan(measured: MeasuredCostModel, suite: TaskSuite) -> None:
    env, kinds = EmbeddingShardingRealEnv(suite, measured=measured), set[str]()
    assert env.measured is measured
    for seed in range(6):
        _, total, info, obs = play(env, seed)
        assert info["failure"] == 0
        plan = plan_of(env.task, info["placement"], env.rules)
        assert plan == env.plan
        kinds |= {sharding.sharding_type for sharding in plan.tables}
        assert info["measurement_seconds"] > 0
        again = measured.estimate(plan, env.task.tables, env.task.topology)  # from the cache
        assert (info["cost_ms"], again.details["seconds"]) == (again.total_ms, 0.0)
        assert info["cost_ms"] == problem_of(env.task).cost_ms(plan, env.task, measured)
        assert np.array_equal(info["phase_costs_ms"], again.phases_ms)
        assert obs["device_costs"] == pytest.approx(again.phases_ms.ravel(), rel=1e-6)
        penalty = measured.penalty_ms(env.task.tables, env.task.topology, splits=True)
        assert total == -min(again.total_ms, np.nextafter(penalty, 0.0))
    assert kinds >= {COLUMN_WISE, ROW_WISE, DATA_PARALLEL}


def test_until_the_end_it_is_the_estimating_environment(measured: MeasuredCostModel, suite: TaskSuite) -> None:
    env = EmbeddingShardingRealEnv(suite, measured=measured)
    other = gymnasium.make("EmbeddingSharding-v0", suite=as_measured(suite, measured))
    assert env.observation_space == other.observation_space
    actions = play(env, 0)[0]
    (one, _), (two, _) = (each.reset(seed=0, options={"task": 0}) for each in (env, other))
    for action in actions[:-1]:
        assert all(np.array_equal(one[key], two[key]) for key in two)
        one, two = env.step(action)[0], other.step(action)[0]


def test_many_at_once_give_what_single_ones_do(measured: MeasuredCostModel, suite: TaskSuite) -> None:
    """They share a cache here, so that the same plan costs the same."""
    played = [play(EmbeddingShardingRealEnv(suite, measured=measured), seed) for seed in range(2)]
    vector = gymnasium.make_vec(
        ID, 2, vectorization_mode="vector_entry_point", suite=suite, measured=measured, autoreset_mode="Disabled"
    )
    assert vector.unwrapped.measured is measured
    for one, (actions, total, info, _) in enumerate(played):
        vector.reset(seed=0, options={"task": 0})
        sum_of = 0.0
        for number, action in enumerate(actions):
            _, rewards, over, _, infos = vector.step(np.full(2, action))
            sum_of += rewards[one]
            assert over.all() == (number == len(actions) - 1)
        assert (sum_of, infos["cost_ms"][one]) == (total, info["cost_ms"])
        assert infos["placement"][one].tolist() == info["placement"].tolist()
        assert vector.unwrapped.plan(one) == plan_of(suite[0], info["placement"], vector.unwrapped.rules)
    assert measured._session is not None
    assert measured._session.pids
    vector.close()
    assert not measured._session.pids


class Scorer(CostModel):
    """Fails as often as it is told, then says what the estimate of a plan says, times a factor."""

    name, version = "scorer", 1
    supports = frozenset({"training", "splits"})

    def __init__(self, failures: int, factor: float) -> None:
        self.failures, self.factor = failures, factor

    def estimate(self, answer: Any, tables: Any, topology: Any) -> CostEstimate:
        assert isinstance(answer, ShardingPlan)
        if self.failures:
            self.failures -= 1
            raise MeasurementError("It was the weather.")
        found = AnalyticalShardingModel().estimate(answer, tables, topology)
        return CostEstimate(self.factor * found.phases_ms, self.factor * found.total_ms)

    def penalty_ms(self, tables: Any, topology: Any, *, splits: bool = False) -> float:
        assert splits
        return 1000.0


def with_scorer(suite: TaskSuite, failures: int, factor: float) -> EmbeddingShardingRealEnv:
    env = EmbeddingShardingRealEnv(suite, **QUICK)
    env._episodes.final_cost = Scorer(failures, factor)
    return env


def test_a_step_whose_measurement_failed_can_be_tried_again(suite: TaskSuite) -> None:
    env, twin = with_scorer(suite, 2, 2.0), with_scorer(suite, 0, 2.0)
    actions, total, info, _ = play(twin, 3)
    env.reset(seed=3, options={"task": 0})
    for action in actions[:-1]:
        env.step(action)
    for _ in range(2):
        with pytest.raises(MeasurementError, match="weather"):
            env.step(actions[-1])
    _, reward, over, _, again = env.step(actions[-1])
    assert over
    assert (reward, again["cost_ms"]) == (total, info["cost_ms"])
    assert again["placement"].tolist() == info["placement"].tolist()


def test_failing_costs_the_penalty_of_plans_and_more_than_any_measurement(suite: TaskSuite) -> None:
    env = with_scorer(suite, 0, 1e9)
    _, total, info, _ = play(env, 0)
    assert info["cost_ms"] > 1000.0
    assert -1000.0 < total == pytest.approx(-1000.0)
    env.reset(seed=0)
    illegal = EmbeddingShardingRealEnv(suite, max_devices=3, **QUICK)
    illegal._episodes.final_cost = Scorer(0, 1.0)
    illegal.reset(seed=0)
    assert illegal.step(2)[1] == -1000.0  # there is no third device


def test_blocks_of_rows_need_a_batch_that_the_devices_divide(suite: TaskSuite) -> None:
    env = EmbeddingShardingRealEnv(suite, **(QUICK | {"batch_size": 63}))
    env.reset(seed=0)
    for _ in range(5):
        env.step(env.rules.row_wise)
    with pytest.raises(InvalidOptionError, match="2 devices do not divide a batch of 63"):
        env.step(env.rules.row_wise)


def test_sequences_are_refused(suite: TaskSuite) -> None:
    task = suite[0]
    pooled = np.arange(6) > 0
    sequences = TaskSuite("sequences", [replace(task, tables=replace(task.tables, pooled=pooled))])
    with pytest.raises(InvalidOptionError, match="does not support sequence tables"):
        EmbeddingShardingRealEnv(sequences, **QUICK)


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_other_cost_models_are_refused_as_measured(make: Any) -> None:
    with pytest.raises(InvalidOptionError, match="measured must be a MeasuredCostModel"):
        make(f"shard_gym:{ID}", measured="cpu")
