"""Speed of `EmbeddingReplanning-v0`. Steps are decisions; a step of N environments counts N.

The first episode of a task computes its plans, which are kept: that takes `first_s` seconds for each task, and is not
in the rates.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from timing import Stopwatch, median_rate, seconds_of

import shard_gym
from shard_gym.common.io.markdown import table
from shard_gym.hardware import hardware_profile
from shard_gym.replanning import DriftSuite, DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.levels import GROWING, MEDIUM, DriftLevel
from shard_gym.replanning.env.episode_data import DECISIONS
from shard_gym.replanning.env.vector import EmbeddingReplanningVectorEnv
from shard_gym.tables import RowPopularity
from shard_gym.tasks import Task

TASKS = 4  # tasks of a suite
KEEP, LAST_DAY = 0, 2  # actions


class Shape(NamedTuple):
    """A suite to measure on, and with how many environments; 0 stands for the scalar environment."""

    tables: int
    devices: int
    envs: tuple[int, ...] = (128,)
    level: DriftLevel = MEDIUM

    @property
    def name(self) -> str:
        return f"{self.tables}x{self.devices}" + (", growing" if self.level.growth else "")


SHAPES = (
    Shape(20, 4),
    Shape(50, 4, (0, 1, 16, 128, 1024)),
    Shape(200, 4),
    Shape(50, 16),
    Shape(200, 16),
    Shape(50, 4, level=GROWING),
)


def suite_of(shape: Shape) -> DriftSuite:
    """Tasks of mixed dims from the pool `dlrm-2021`, on A100 in hosts of eight."""
    pool, rng = shard_gym.load_pool("dlrm-2021"), np.random.default_rng(0)
    assert pool.popularity is not None
    tasks = []
    for seed in range(TASKS):
        chosen = rng.choice(len(pool.tables), shape.tables, replace=False)
        tables = pool.tables.select(chosen).with_dims(rng.choice([16, 32, 64, 128], shape.tables))
        task = Task(f"{shape.name} {seed}", tables, hardware_profile("a100-dgx").topology(shape.devices))
        law = RowPopularity(pool.popularity.q[chosen], pool.popularity.s[chosen])
        tasks.append(DriftTask(task.name, task, law, shape.level, seed, 120.0))
    return DriftSuite(shape.name, tuple(tasks))


def episode(env: Any, num_envs: int, every: int, watch: Stopwatch) -> None:
    """The steps of an episode that keeps the plan, but makes one for the last day every so many hours; 0 for never."""
    for number in range(DECISIONS):
        action = LAST_DAY if every and number % every == 0 else KEEP
        chosen = np.full(num_envs, action) if num_envs else action
        with watch:
            env.step(chosen)


def rate(suite: DriftSuite, num_envs: int, every: int, repeats: int) -> int:
    """Decisions a second, the median of whole episodes after a first one."""
    vector = EmbeddingReplanningVectorEnv(num_envs, suite, autoreset_mode="SAME_STEP") if num_envs else None
    env = vector or EmbeddingReplanningEnv(suite)

    def run(watch: Stopwatch) -> int:
        env.reset(seed=0, options={"tasks": [each % TASKS for each in range(num_envs)]} if num_envs else {"task": 0})
        episode(env, num_envs, every, watch)
        return DECISIONS * max(num_envs, 1)

    return median_rate(run, repeats)


def first_seconds(suite: DriftSuite) -> float:
    """Seconds that the first episode of a task takes longer than the second: its plans on all days."""

    def play(number: int) -> None:
        env = EmbeddingReplanningEnv(suite)
        env.reset(seed=0, options={"task": number})
        episode(env, 0, 12, Stopwatch())

    plays = [partial(play, number) for number in range(TASKS)]
    return round(statistics.median(seconds_of(each) - seconds_of(each) for each in plays), 3)


def measure(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        suite = suite_of(shape)
        first = first_seconds(suite)
        for num_envs in shape.envs:
            found = {"keep": rate(suite, num_envs, 0, repeats), "every_12_hours": rate(suite, num_envs, 12, repeats)}
            rows.append({"shape": shape.name, "envs": num_envs, **found, "first_s": first})
    return rows


def page_table(rows: list[dict[str, Any]]) -> str:
    rates = ("keep, decisions a second", "a plan every 12 hours", "first episode of a task, s")
    cells = []
    for row in rows:
        envs = f"{row['envs']:,}" if row["envs"] else "scalar"
        cells.append([row["shape"], envs, f"{row['keep']:,}", f"{row['every_12_hours']:,}", f"{row['first_s']:.2f}"])
    return table(("tables x devices", "N", *rates), cells)
