"""How the time of a plan and of a step grows with tables and devices: fitted exponents, and the largest tasks.

An exponent e of T says that the time grows as T^e, at the number of devices that the row names: the slope of a line
through the logarithms of the times. With 1 the time is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from timing import Stopwatch, seconds_of

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.agents.dreamshard import PRESETS, DreamShardAgent
from shard_gym.agents.dreamshard.agent import new_policy
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.neural import NETWORKS
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.tasks import Task, capped_task

TABLES, DEVICES = (500, 1_000, 2_000, 4_000), (64, 128, 256, 512)
"""Sizes of the fits: tables on the second number of devices, and the second number of tables on devices."""

MANY, ON_MANY = TABLES[1], DEVICES[1]

LARGEST = ((1_000, 128), (4_000, 512), (10_000, 1_024))

NUM_ENVS = 16

PLANNERS = {"`cost-greedy`": "cost-greedy", "DreamShard's policy (`paper`)": "policy", "`plan-search`": "plan-search"}
ENVIRONMENTS = {
    "EmbeddingPlacement-v0": EmbeddingPlacementVectorEnv,
    "EmbeddingSharding-v0": EmbeddingShardingVectorEnv,
}


def large_task(tables: int, devices: int) -> Task:
    """Tables of mixed dims from the pool `dlrm-2021`, on A100 in hosts of eight."""
    rng, pool = np.random.default_rng(0), shard_gym.load_pool("dlrm-2021").tables
    drawn = pool.select(rng.integers(len(pool), size=tables)).with_dims(rng.choice([16, 32, 64, 128], tables))
    return capped_task(f"{tables}x{devices}", drawn, devices, "a100-dgx", 1.5)


@cache
def untrained_policy() -> DreamShardAgent:
    """DreamShard's preset `paper` with weights as drawn: it takes as long as a trained one."""
    options, rng = PRESETS["paper"](), np.random.default_rng(0)
    model = NETWORKS[options.network](NETWORKS[options.network].new_weights(rng))
    return DreamShardAgent("paper", model, options, new_policy(rng))


def planned(name: str, task: Task) -> Any:
    return (untrained_policy() if name == "policy" else make_agent(name)).plan(task)


def step_seconds(make: type[EmbeddingPlacementVectorEnv], task: Task) -> float:
    """Seconds of a step of the vector environment with `NUM_ENVS` environments, over half an episode."""
    envs = make(NUM_ENVS, shard_gym.TaskSuite(task.name, (task,)), observation="compact")
    seen, _ = envs.reset(seed=0)
    rng, watch, steps = np.random.default_rng(0), Stopwatch(), task.num_tables // 2
    noise = [rng.random(seen["action_mask"].shape) for _ in range(8)]
    for number in range(steps):
        actions = (noise[number % 8] * seen["action_mask"]).argmax(axis=1)
        with watch:
            seen, *_ = envs.step(actions)
    return watch.seconds / steps


def exponents() -> dict[str, dict[str, Any]]:
    """By what is timed: seconds at the sizes of both fits, and the exponents."""

    def plan_seconds(name: str, task: Task) -> float:
        return seconds_of(lambda: planned(name, task))

    timed: dict[str, Callable[[Task], float]] = {
        **{label: partial(plan_seconds, name) for label, name in PLANNERS.items()},
        **{f"a step of `{title}`": partial(step_seconds, make) for title, make in ENVIRONMENTS.items()},
    }
    sizes = {
        "tables": (TABLES, [(tables, ON_MANY) for tables in TABLES]),
        "devices": (DEVICES, [(MANY, devices) for devices in DEVICES]),
    }
    record: dict[str, dict[str, Any]] = {label: {} for label in timed}
    for label, work in timed.items():
        for by, (numbers, shapes) in sizes.items():
            found = [work(large_task(*shape)) for shape in shapes]
            record[label][f"by_{by}_s"] = [round(each, 6) for each in found]
            record[label][by] = round(float(np.polyfit(np.log(numbers), np.log(found), 1)[0]), 2)
    return record


def _one_large(name: str, tables: int, devices: int) -> dict[str, float]:
    task = large_task(tables, devices)
    with Stopwatch() as watch:
        plan = planned(name, task)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    cost = make_cost_model(additive=True, splits=True).estimate(plan, task.tables, task.topology).total_ms
    return {
        "seconds": round(watch.seconds, 2),
        "peak_mib": round(int(peak.split()[1]) / 1024),
        "cost_ms": round(cost, 2),
    }


def largest() -> dict[str, dict[str, dict[str, float]]]:
    """By task and agent: seconds, cost and peak memory of a process that plans it, and nothing else (Linux)."""
    record: dict[str, dict[str, dict[str, float]]] = {}
    for tables, devices in LARGEST:
        for label, name in PLANNERS.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(_one_large, name, tables, devices).result()
            record.setdefault(f"{tables:,} x {devices:,}", {})[label] = found
    return record
