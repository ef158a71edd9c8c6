"""Speed of `EmbeddingReplanning-v0`: `python benchmarks/replanning.py --write-page` renews its part of the page.

`make bench` measures it, too. Steps are decisions; a step of N environments counts N. The first episode of a task
computes its plans, which are kept: that takes `first_s` seconds for each task, and is not in the rates.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

import shard_gym
from shard_gym.drift.levels import GROWING, MEDIUM, DriftLevel
from shard_gym.drift.suite import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.env import EmbeddingReplanningEnv
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.vector import EmbeddingReplanningVectorEnv
from shard_gym.hardware import hardware_profile
from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block
from shard_gym.row_popularity import RowPopularity
from shard_gym.system import cpu_model
from shard_gym.tasks import Task

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"

TASKS = 4
"""In a suite."""

KEEP, LAST_DAY = 0, 2
"""Actions."""


class Shape(NamedTuple):
    """A suite to measure on, and with how many environments; 0 stands for the scalar environment."""

    tables: int
    devices: int
    envs: tuple[int, ...] = (128,)
    level: DriftLevel = MEDIUM

    @property
    def name(self) -> str:
        """In tables."""
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


def actions(every: int) -> Iterator[int]:
    """Keep the plan, but make one for the last day every so many hours; 0 for never."""
    return (LAST_DAY if every and number % every == 0 else KEEP for number in count())


def episode(env: Any, num_envs: int, every: int) -> float:
    """Seconds of the steps of a whole episode."""
    spent = 0.0
    for _, action in zip(range(DECISIONS), actions(every), strict=False):
        chosen = np.full(num_envs, action) if num_envs else action
        started = time.perf_counter()
        env.step(chosen)
        spent += time.perf_counter() - started
    return spent


def rate(suite: DriftSuite, num_envs: int, every: int, repeats: int) -> int:
    """Decisions a second, the median of whole episodes after a first one."""
    many = EmbeddingReplanningVectorEnv(num_envs, suite, autoreset_mode="SAME_STEP") if num_envs else None
    env = many or EmbeddingReplanningEnv(suite)
    seconds = []
    for number in range(repeats + 1):
        env.reset(seed=0, options={"tasks": [each % TASKS for each in range(num_envs)]} if num_envs else {"task": 0})
        spent = episode(env, num_envs, every)
        if number:
            seconds.append(spent)
    return round(DECISIONS * max(num_envs, 1) / statistics.median(seconds))


def first_seconds(suite: DriftSuite) -> float:
    """Seconds that the first episode of a task takes longer than the second: its plans on all days."""
    found = []
    for number in range(TASKS):
        times = []
        for _ in range(2):
            started = time.perf_counter()
            env = EmbeddingReplanningEnv(suite)
            env.reset(seed=0, options={"task": number})
            episode(env, 0, 12)
            times.append(time.perf_counter() - started)
        found.append(times[0] - times[1])
    return round(statistics.median(found), 3)


def measure(repeats: int = 5) -> dict[str, Any]:
    """Everything, as a JSON value."""
    rows = []
    for shape in SHAPES:
        suite = suite_of(shape)
        first = first_seconds(suite)
        for num_envs in shape.envs:
            found = {"keep": rate(suite, num_envs, 0, repeats), "every_12_hours": rate(suite, num_envs, 12, repeats)}
            rows.append({"shape": shape.name, "envs": num_envs, **found, "first_s": first})
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "rows": rows,
    }


def write(record: dict[str, Any]) -> None:
    """Put the numbers into docs/performance.md."""
    about = f"{record['machine']}; Python {record['python']}, NumPy {record['numpy']}; one thread; {record['date']}."
    header = (
        "tables x devices",
        "N",
        "keep, decisions a second",
        "a plan every 12 hours",
        "first episode of a task, s",
    )
    rows = [
        [
            row["shape"],
            f"{row['envs']:,}" if row["envs"] else "scalar",
            f"{row['keep']:,}",
            f"{row['every_12_hours']:,}",
            f"{row['first_s']:.2f}",
        ]
        for row in record["rows"]
    ]
    text = f"Machine: {about}\n\n{table(header, rows)}"
    write_atomically(PAGE, with_block(PAGE, "bench replanning", text).encode())


def main(repeats: int = 5, write_page: bool = False) -> None:
    """Measure, print, and write where asked to.

    Args:
        repeats: medians are over this many runs
        write_page: put the numbers into docs/performance.md
    """
    record = measure(repeats)
    if write_page:
        write(record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
