"""Speed of the environments and the searches: `make bench` prints JSON; `ARGS=--write` renews docs/performance.md.

Compare ratios within one run; absolute rates depend on the machine. The record has

    rates               rows of steps/s: tables x devices, N or kind, each observation, bare loop
    task_preparation_s  seconds to prepare a task of 50 tables
    local_search        moves costed per second, alone and within a whole search
    plan_search         seconds for each plan of a suite
    exponents, largest  see benchmarks/scale.py
    evaluation_s        seconds for all test tasks of a suite
    replanning         see benchmarks/replanning.py
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import replanning
import tyro
from bare_loop import BareLoop
from scale import DEVICES, MANY, ON_MANY, TABLES, exponents, largest

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.agents.items import Items
from shard_gym.agents.neighbourhood import Neighbourhood
from shard_gym.agents.search import BATCH
from shard_gym.cost_models import (
    AdditiveCostModel,
    AnalyticalCostModel,
    make_additive_cost_model,
    make_sharding_cost_model,
)
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block
from shard_gym.system import cpu_model
from shard_gym.tasks import TaskSampler, pack_by_memory
from shard_gym.text import format_seconds

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
SHAPES = ((20, 4), (50, 4), (200, 4), (50, 16), (200, 16))
"""Tables and devices."""

NUM_ENVS = (1, 16, 128, 1024, 4096)
"""Sizes of the vector environment."""

PLANNED = (
    "shard-4",
    "shard-8",
    "mixdim-4",
    "mixdim-8",
    "shard-mlperf-x8",
    "shard-merlin-medium-x128",
    "merlin-jumbo-x128",
)
"""Suites whose test tasks `plan-search` plans."""

OBSERVATIONS = ("full", "compact")


@dataclass
class Args:
    """How much to measure."""

    repeats: int = 5
    """medians are over this many runs"""
    write: bool = False
    """put the numbers into docs/performance.md"""


class ArraysOnly(AnalyticalCostModel):
    """The analytical cost model without its formulas on plain numbers, so that scalar environments use arrays."""

    plain_costs = AdditiveCostModel.plain_costs


def median_rate(work: Callable[[], tuple[int, float]], repeats: int) -> float:
    """Median over `repeats` runs of the items per second of `work`, which returns items and seconds; one warms up."""
    work()
    return statistics.median(items / spent for items, spent in (work() for _ in range(repeats)))


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """The number that `work` returns, and the seconds it took."""
    started = time.perf_counter()
    items = work()
    return items, time.perf_counter() - started


def sampler(tables: int, devices: int) -> TaskSampler:
    """Tasks of one size, one host, mixed dims."""
    pool = shard_gym.load_pool("dlrm-2022").tables
    return TaskSampler(pool, (tables, tables), (devices, devices), "a100-dgx", (16, 32, 64, 128))


def fixed_suite(tables: int, devices: int) -> shard_gym.TaskSuite:
    """Fifty such tasks as a suite."""
    rng, source = np.random.default_rng(0), sampler(tables, devices)
    return shard_gym.TaskSuite(f"{tables}x{devices}", tuple(source.sample(rng) for _ in range(50)))


def prepare_tasks(env: Any, suite: shard_gym.TaskSuite) -> None:
    """Begin every task once, because a task is prepared when it comes for the first time."""
    for number in range(len(suite)):
        env.reset(options={"task": number})


def scalar_env(suite: shard_gym.TaskSuite, observation: str, repeats: int, model: AdditiveCostModel) -> float:
    """Steps/s of one environment under random legal actions; the time to choose them is not counted."""
    env = shard_gym.EmbeddingPlacementEnv(suite, observation=observation, cost_model=model)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    prepare_tasks(env, suite)

    def run() -> tuple[int, float]:
        spent = 0.0
        for _ in range(1000):
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            started = time.perf_counter()
            if env.step(action)[2]:
                env.reset()
            spent += time.perf_counter() - started
        return 1000, spent

    return median_rate(run, repeats)


def vector_env(
    suite: shard_gym.TaskSuite,
    num_envs: int,
    observation: str,
    repeats: int,
    make: type[EmbeddingPlacementVectorEnv] = EmbeddingPlacementVectorEnv,
) -> float:
    """Steps/s of a vector environment over whole episodes with resets; the time to choose actions is not counted."""
    envs = make(num_envs, suite, observation=observation)
    prepare_tasks(envs, suite)
    seen, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    noise = [rng.random(seen["action_mask"].shape) for _ in range(8)]

    def run() -> tuple[int, float]:
        nonlocal seen
        spent = 0.0
        steps = 2 * suite.max_tables + 2
        for number in range(steps):
            actions = (noise[number % 8] * seen["action_mask"]).argmax(axis=1)
            started = time.perf_counter()
            seen, *_ = envs.step(actions)
            spent += time.perf_counter() - started
        return steps * num_envs, spent

    return median_rate(run, repeats)


def rates(tables: int, devices: int, repeats: int) -> list[dict[str, Any]]:
    """All rates for one number of tables and devices."""
    suite, shape = fixed_suite(tables, devices), f"{tables}x{devices}"
    rows: list[dict[str, Any]] = []
    for kind, model in (("scalar", AnalyticalCostModel()), ("scalar, on arrays", ArraysOnly())):
        found = {each: round(scalar_env(suite, each, repeats, model)) for each in OBSERVATIONS}
        rows.append({"shape": shape, "envs": kind, **found})
    for num_envs in NUM_ENVS:
        bare = BareLoop(suite, num_envs)
        bare_rate = round(median_rate(partial(timed, bare.episode), repeats))
        found = {each: round(vector_env(suite, num_envs, each, repeats)) for each in OBSERVATIONS}
        rows.append({"shape": shape, "envs": f"{num_envs:,}", **found, "bare_loop": bare_rate})
    sharding = {e: round(vector_env(suite, num_envs, e, repeats, EmbeddingShardingVectorEnv)) for e in OBSERVATIONS}
    return [*rows, {"shape": shape, "envs": f"{num_envs:,} of `EmbeddingSharding-v0`", **sharding}]


def task_preparation(repeats: int) -> float:
    """Seconds to prepare a task: what the first reset with it takes longer than the second."""
    suite, spent = fixed_suite(50, 4), []
    for _ in range(repeats):
        env = shard_gym.EmbeddingPlacementEnv(suite, observation="compact", cost_model=AnalyticalCostModel())
        times = []
        for _ in range(2):
            started = time.perf_counter()
            prepare_tasks(env, suite)
            times.append(time.perf_counter() - started)
        spent.append((times[0] - times[1]) / len(suite))
    return round(statistics.median(spent), 6)


def local_search(tables: int, devices: int, repeats: int) -> dict[str, int]:
    """Moves costed per second, and evaluations per second of a whole search."""
    task = sampler(tables, devices).sample(np.random.default_rng(0))
    current = Neighbourhood(
        Items.of_tables(task, make_additive_cost_model("analytical")), pack_by_memory(task.tables, devices)
    )
    moves = current.moves(current.critical_tables())
    batch = moves.take(np.random.default_rng(0).permutation(len(moves))[:BATCH])

    def cost_moves() -> int:
        for _ in range(20):
            current.costs_after(batch)
        return 20 * len(batch)

    agent = make_agent("local-search")
    fingerprint = make_additive_cost_model("analytical").fingerprint

    def search() -> int:
        asked = agent.true_cost_queries(fingerprint)
        agent.place(task)
        return agent.true_cost_queries(fingerprint) - asked

    return {
        "changes_per_s": round(median_rate(partial(timed, cost_moves), repeats)),
        "queries_per_s_of_a_search": round(median_rate(partial(timed, search), repeats)),
    }


def plan_search(suite: str) -> dict[str, float]:
    """Seconds of `plan-search` for each test task, and the mean cost."""
    agent, model = make_agent("plan-search"), make_sharding_cost_model("analytical")
    seconds, costs = [], []
    for task in shard_gym.load_suite(suite):
        started = time.perf_counter()
        plan = agent.plan(task)
        seconds.append(time.perf_counter() - started)
        costs.append(model.estimate_plan(plan, task.tables, task.topology).total_ms)
    return {
        "mean_s": round(statistics.mean(seconds), 3),
        "max_s": round(max(seconds), 3),
        "cost_ms": round(statistics.mean(costs), 4),
    }


def evaluation(suite: str, agent: str) -> float:
    """Seconds to evaluate an agent on all test tasks, without loading the suite."""
    shard_gym.load_suite(suite)
    started = time.perf_counter()
    shard_gym.evaluate(make_agent(agent), suite)
    return round(time.perf_counter() - started, 3)


def measure(args: Args) -> dict[str, Any]:
    """Everything, as a JSON value."""
    return {
        "shard_gym": shard_gym.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "rates": [row for shape in SHAPES for row in rates(*shape, args.repeats)],
        "task_preparation_s": task_preparation(args.repeats),
        "local_search": {f"{t}x{d}": local_search(t, d, args.repeats) for t, d in ((50, 4), (200, 16))},
        "plan_search": {suite: plan_search(suite) for suite in PLANNED},
        "exponents": exponents(),
        "largest": largest(),
        "evaluation_s": {agent: evaluation("dlrm-200x8", agent) for agent in ("lookup-greedy", "local-search")},
        "replanning": replanning.measure(args.repeats),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def page_block(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    machine = (
        f"Machine: {record['machine']}; Python {record['python']}, NumPy {record['numpy']}; one thread. "
        f"Preparing a task of 50 tables: {format_seconds(record['task_preparation_s'])}. "
        f"Peak memory of the whole run: {record['peak_memory_mib']} MiB."
    )
    steps = []
    for row in record["rates"]:
        bare = [f"{row['bare_loop']:,}", f"{row['compact'] / row['bare_loop']:.2f}"] if "bare_loop" in row else ["", ""]
        steps.append([row["shape"], row["envs"], *(f"{row[each]:,}" for each in OBSERVATIONS), *bare])
    searches = [
        [shape, f"{row['changes_per_s']:,}", f"{row['queries_per_s_of_a_search']:,}"]
        for shape, row in record["local_search"].items()
    ]
    plans = [
        [f"`{suite}`", f"{row['mean_s']:.2f}", f"{row['max_s']:.2f}", f"{row['cost_ms']:.3f}"]
        for suite, row in record["plan_search"].items()
    ]
    largest_tasks = [
        [shape, name, f"{row['seconds']:.1f}", f"{row['peak_mib']:,}", f"{row['cost_ms']:.2f}"]
        for shape, rows in record["largest"].items()
        for name, row in rows.items()
    ]
    growth = [
        [
            name,
            *(f"{1000 * row[by][end]:,.2f}" for by in ("by_tables_s", "by_devices_s") for end in (0, -1)),
            *(f"{row[by]:.2f}" for by in ("tables", "devices")),
        ]
        for name, row in record["exponents"].items()
    ]
    ends = [f"{TABLES[0]:,} x {ON_MANY}", f"{TABLES[-1]:,} x {ON_MANY}"]
    ends += [f"{MANY:,} x {DEVICES[0]}", f"{MANY:,} x {DEVICES[-1]}"]
    evaluations = [[f"`{name}`", f"{seconds:.2f}"] for name, seconds in record["evaluation_s"].items()]
    return "\n\n".join(
        [
            machine,
            table(("tables x devices", "N", *OBSERVATIONS, "bare loop", "compact / bare loop"), steps),
            table(("local search", "moves costed per second", "evaluations per second of a whole search"), searches),
            table(("`plan-search`, test tasks of", "mean seconds", "longest", "mean cost, ms"), plans),
            table(("ms at tables x devices", *ends, "exponent of T", "of D"), growth),
            table(("tables x devices", "agent", "seconds", "peak MiB", "cost, ms"), largest_tasks),
            table(("evaluation of dlrm-200x8, 50 tasks", "seconds"), evaluations),
        ]
    )


def main(args: Args) -> None:
    """Measure, print, and write where asked to."""
    record = measure(args)
    if args.write:
        write_atomically(PAGE, with_block(PAGE, "bench", page_block(record)).encode())
        replanning.write(record["replanning"])
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
