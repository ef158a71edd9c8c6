"""The contract tests walk over every registered environment, with every observation and every reward that it has.

They run on every version of Gymnasium that is supported (`make check-gymnasium`).

The contract of the measured environments is tested with measurements that are made up: they differ from the estimates,
but not from one time to the next, so that two environments can be compared. tests/envs/real measures.

Of the suites of drifting tasks they see eight tasks of four tables: the first episode of a task computes its plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

import shard_gym
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, CostEstimate
from shard_gym.cost_models.measured import MeasuredCostModel, Measurement
from shard_gym.envs.core.reward import REWARDS
from shard_gym.envs.placement.observation import OBSERVATIONS
from shard_gym.envs.registration import ENVIRONMENTS
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning import drifting as drifting_files
from shard_gym.replanning.drawing import RECIPES, SPARE, _cap
from shard_gym.replanning.drift.levels import MEDIUM
from shard_gym.replanning.drift.suite import DriftSource
from shard_gym.replanning.env.episodes import REWARDS as DRIFTING_REWARDS
from shard_gym.tables import RowPopularity, Tables

assert shard_gym.__version__  # importing it registers the environments


@pytest.fixture(autouse=True)
def made_up_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as long again as the estimate."""

    def estimate(model: MeasuredCostModel, answer: Any, tables: Tables, topology: Topology) -> Measurement:
        own = AnalyticalShardingModel() if isinstance(answer, ShardingPlan) else AnalyticalCostModel()
        return longer(own.estimate(answer, tables, topology))

    def longer(estimated: CostEstimate) -> Measurement:
        phases_ms = 1.5 * estimated.phases_ms
        return Measurement(phases_ms, 1.5 * estimated.total_ms, phases_ms[None], spread=0.01, seconds=0.0)

    monkeypatch.setattr(MeasuredCostModel, "estimate", estimate)


_load_whole = drifting_files.load


@lru_cache
def _load_small(name: str, split: str) -> DriftSuite:
    suite = _load_whole(name, split)
    return replace(suite, tasks=[_small(each) for each in suite.tasks[1:9]], padding=None)


def _small(whole: DriftTask) -> DriftTask:
    """Four of its tables on four devices; where tables grow, with no more memory than they need."""
    task, law, (recipe,) = whole.task, whole.popularity, (r for r in RECIPES if r.level == whole.level)
    topology = replace(task.topology, num_devices=4, memory_cap_bytes=task.topology.memory_cap_bytes[:4])
    few = replace(task, tables=task.tables.select(np.arange(4)), topology=topology, known_placement=None)
    if whole.grows:
        cap = np.full(4, int(_cap(recipe, few, whole.seed) / SPARE))  # so that plans with headroom may have no room
        few = replace(few, topology=replace(topology, memory_cap_bytes=cap))
    return replace(whole, task=few, popularity=RowPopularity(law.q[:4], law.s[:4]))


@pytest.fixture(autouse=True)
def small_drifting_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suites of drifting tasks have eight, with few tables."""
    monkeypatch.setattr(drifting_files, "load", _load_small)


class Kind(NamedTuple):
    """What tests of one environment begin with.

    Attributes:
        small: arguments for a suite of small tasks.
        illegal: an action that is illegal at their first step.
        padding: arguments for more room than any task of the suites needs.
    """

    small: dict[str, Any]
    illegal: int
    padding: dict[str, int]


DRIFTING = "EmbeddingReplanning-v0"
PLACING = [env_id for env_id in ENVIRONMENTS if env_id != DRIFTING]
PLACEMENT = Kind({"suite": "dlrm-20x4", "max_devices": 5}, 4, {"max_tables": 220, "max_devices": 20})
DRIFT = Kind({"suite": "drift-medium-120", "headroom": True}, 8, {"max_parts": 1000, "max_devices": 20})
KINDS = {**dict.fromkeys(PLACING, PLACEMENT), DRIFTING: DRIFT}


@pytest.fixture
def kinds() -> dict[str, Kind]:
    """By environment."""
    return KINDS


SUITES = ("dlrm-20x4", "generalize")


CHOSEN = [
    (env_id, suite, list(OBSERVATIONS)[(a + b) % len(OBSERVATIONS)], list(REWARDS)[(a + 2 * b) % len(REWARDS)])
    for (a, env_id), (b, suite) in itertools.product(enumerate(PLACING), enumerate(SUITES))
    if "Real" not in env_id or a % 2 == b  # one suite of those that share nearly all with the estimating ones
]
CHOSEN += [
    ("EmbeddingPlacement-v0", "tier-4", "features", "dense"),
    ("EmbeddingSharding-v0", "tier-4", "compact", "terminal"),
]
"""Environment, suite, observation and reward; all pairs are those of test_vector_parity.py. Tasks of tier-4 have host
memory."""

DRIFTING_SUITES = ("drift-medium-120", "growth-600", "spot-600")

CASES = [
    pytest.param(
        (env_id, {"suite": suite, "observation": observation, "reward": reward}),
        id=f"{env_id}-{suite}-{observation}-{reward}",
    )
    for env_id, suite, observation, reward in CHOSEN
] + [
    pytest.param((DRIFTING, {"suite": suite, "reward": reward, "headroom": True}), id=f"{DRIFTING}-{suite}-{reward}")
    for suite, reward in zip(DRIFTING_SUITES, itertools.cycle(DRIFTING_REWARDS), strict=False)  # the rest: parity
]

# What one step gave: observation, reward, terminated, truncated, info; reward is None for a reset.
Result = tuple[Any, Any, bool, bool, dict[str, Any]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """An environment's id and the arguments to make it with."""
    made: tuple[str, dict[str, Any]] = request.param
    return made


@pytest.fixture
def make(case: tuple[str, dict[str, Any]]) -> Callable[..., gymnasium.Env[Any, Any]]:
    """Makes the environment of this case, with further arguments."""
    env_id, arguments = case
    return lambda **more: gymnasium.make(env_id, **{**arguments, **more})


def _rollout(env: gymnasium.Env[Any, Any], actions: np.random.Generator, steps: int) -> list[Result]:
    """`steps` steps, seven in eight of them legal, with a reset (unseeded) after every end."""
    info: dict[str, Any] = {"action_mask": env.get_wrapper_attr("action_masks")().astype(np.int8)}
    results: list[Result] = []
    for _ in range(steps):
        legal = np.flatnonzero(info["action_mask"]) if actions.random() < 0.875 else np.arange(env.action_space.n)
        obs, reward, terminated, truncated, info = env.step(int(actions.choice(legal)))
        results.append((obs, reward, terminated, truncated, info))
        if terminated or truncated:
            obs, info = env.reset()
            results.append((obs, None, False, False, info))
    return results


@pytest.fixture(scope="session")
def rollout() -> Callable[..., list[Result]]:
    return _rollout


@pytest.fixture(scope="session")
def drifting(drift_task: Callable[..., DriftTask]) -> DriftSource:
    """Tasks of three tables on two devices, always new."""

    class Drifting:
        max_parts, max_devices, grows = 3, 2, False

        def sample(self, rng: np.random.Generator) -> DriftTask:
            return drift_task(3, 2, int(rng.integers(2**31)), MEDIUM)

    return Drifting()
