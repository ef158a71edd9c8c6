"""DreamShard on tasks whose tables do not fit the HBM: it learns what rows in host memory cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import load_agent, make_agent
from shard_gym.agents.dreamshard.learner import DreamShardLearner
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.agents.training.loads import random_load
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.neural.host import RATE
from shard_gym.evaluation import evaluate
from shard_gym.plans import check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.tables import load_pool
from shard_gym.tasks import TaskSampler, TaskSuite

MODEL = AnalyticalCostModel()
SHORT: dict[str, Any] = {"iterations": 2, "measurements": 10, "cost_updates": 60, "queries": 500}


@pytest.fixture(scope="module")
def tiered() -> TaskSuite:
    """Tables of mixed dims on three A100 whose HBM has room for 5 to 50% of the bytes."""
    tables = load_pool("dlrm-2021").tables.select(np.arange(200)).with_training(weight_dtype="fp32", optimizer="sgd")
    sampler = TaskSampler(tables, (8, 14), (3, 3), embedding_dims=(4, 16, 64, 128), hbm_share=(0.05, 0.5))
    rng = np.random.default_rng(3)
    return TaskSuite("tiered", tuple(sampler.sample(rng) for _ in range(6)))


def test_it_learns_to_place_without_a_query(tiered: TaskSuite, trained: Any) -> None:
    """Cheaper than every heuristic that counts lookups or bytes, after 20 measurements."""
    learner = DreamShardLearner(tiered, MODEL, 0, **SHORT)
    trained(learner)
    assert learner.true_cost_queries == 20
    agent = learner.agent()
    found = evaluate(agent, tiered, MODEL)
    assert not found.failures
    for rival in ("lookup-greedy", "size-greedy", "lane-greedy"):
        assert found.mean_cost_ms < 0.9 * evaluate(make_agent(rival), tiered, MODEL).mean_cost_ms
    splittable = replace(tiered[0], splittable=True)
    check_plan(agent.plan(splittable), splittable.tables, splittable.topology)


def test_a_run_is_saved_and_loaded(tiered: TaskSuite, tmp_path: Path) -> None:
    options = {**SHORT, "cost_updates": 5}
    learner = make_learner("dreamshard", tiered, **options)
    TrainingRun(learner, tmp_path / "run", options).run()
    agent = load_agent(tmp_path / "run")
    assert RATE in agent.cost_model.weights
    assert np.array_equal(agent.place(tiered[0]), learner.agent().place(tiered[0]))


def test_random_loads_keep_the_hbm_and_are_uneven(tiered: TaskSuite) -> None:
    rng, spread = np.random.default_rng(0), []
    for _ in range(40):
        tables, topology, placement = random_load(tiered, rng).placement
        check_placement(placement, tables, topology)
        assert topology.host in {task.topology.host for task in tiered}
        spread.append(
            np.bincount(placement, tables.memory_bytes, topology.num_devices).max() / tables.memory_bytes.sum()
        )
    assert max(spread) > 0.9
    assert min(spread) < 0.6


def test_the_network_of_the_paper_is_refused(tiered: TaskSuite) -> None:
    with pytest.raises(InvalidOptionError, match="'dreamshard' cannot learn from tasks with host memory"):
        DreamShardLearner(tiered, MODEL, 0, preset="paper")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("neuroshard", {"iterations": 1, "measurements": 6, "cost_updates": 5, "queries": 200}),
        (
            "neuroshard",
            {"preset": "paper", "iterations": 1, "measurements": 6, "cost_updates": 5, "limits": 2, "max_splits": 1},
        ),
        ("surco", {"iterations": 1, "measurements": 6, "cost_updates": 5, "steps": 1, "samples": 2}),
        ("autoshard", {"iterations": 1, "episodes": 2, "cost_updates": 2}),
        (
            "attention",
            {"iterations": 1, "updates": 2, "tasks": 2, "rollouts": 4, "hidden": 8, "layers": 1, "records": 4},
        ),
    ],
)
def test_other_learned_agents_place(name: str, options: dict[str, Any], tiered: TaskSuite, trained: Any) -> None:
    learner = make_learner(name, tiered, **options)
    trained(learner)
    task = tiered[1]
    check_placement(learner.agent().place(task), task.tables, task.topology)
