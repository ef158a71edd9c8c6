"""Speed of environments and searches: `make bench` prints JSON; `ARGS=--write` renews docs/results/performance.md.

Compare ratios within one run; absolute rates depend on the machine. The record of the environments has

    rates               rows of steps/s: tables x devices, N or kind, each observation, bare loop
    task_preparation_s  seconds to prepare a task of 50 tables
    local_search        moves costed per second, alone and within a whole search
    plan_search         seconds for each plan of a suite
    exponents, largest  see benchmarks/growth.py
    evaluation_s        seconds for all test tasks of a suite
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

import host_steps
import numpy as np
import replanning
import tyro
from bare_loop import BareLoop
from growth import DEVICES, MANY, ON_MANY, TABLES, exponents, largest
from stepping import fixed_suite, prepare_tasks, sampler, scalar_steps, vector_steps
from timing import Stopwatch, median_rate, seconds_of

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.agents.search.descent import BATCH
from shard_gym.agents.search.items import Items
from shard_gym.agents.search.neighbourhood import Neighbourhood
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table, with_block
from shard_gym.common.system import cpu_model
from shard_gym.common.text import format_seconds
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, make_cost_model
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv
from shard_gym.plans.placement import pack_by_memory

PAGE = Path(__file__).parent.parent / "docs" / "results" / "performance.md"
SHAPES = ((20, 4), (50, 4), (200, 4), (50, 16), (200, 16))  # tables and devices
NUM_ENVS = (1, 16, 128, 1024, 4096)  # sizes of the vector environment

PLANNED = ("shard-4", "shard-8", "mixdim-4", "mixdim-8")
PLANNED += ("shard-mlperf-x8", "shard-merlin-medium-x128", "merlin-jumbo-x128")
"""Suites whose test tasks `plan-search` plans."""

OBSERVATIONS = ("full", "compact")


class ArraysOnly(AnalyticalCostModel):
    """The analytical cost model without its formulas on plain numbers, so that scalar environments use arrays."""

    plain_costs = AdditiveCostModel.plain_costs


def rates(tables: int, devices: int, repeats: int) -> list[dict[str, Any]]:
    suite, rows = fixed_suite(tables, devices), list[dict[str, Any]]()

    def vectors(make: type[EmbeddingPlacementVectorEnv], num_envs: int) -> dict[str, int]:
        return {
            each: median_rate(vector_steps(make(num_envs, suite, observation=each), suite), repeats)
            for each in OBSERVATIONS
        }

    for kind, model in (("scalar", AnalyticalCostModel()), ("scalar, on arrays", ArraysOnly())):
        made = {e: shard_gym.EmbeddingPlacementEnv(suite, observation=e, cost_model=model) for e in OBSERVATIONS}
        rows.append({"envs": kind, **{e: median_rate(scalar_steps(env, suite), repeats) for e, env in made.items()}})
    for num_envs in NUM_ENVS:
        bare = BareLoop(suite, num_envs)

        def bare_episode(watch: Stopwatch, bare: BareLoop = bare) -> int:
            with watch:
                return bare.episode()

        found = {"bare_loop": median_rate(bare_episode, repeats), **vectors(EmbeddingPlacementVectorEnv, num_envs)}
        rows.append({"envs": f"{num_envs:,}", **found})
    sharding = f"{NUM_ENVS[-1]:,} of `EmbeddingSharding-v0`"
    rows.append({"envs": sharding, **vectors(EmbeddingShardingVectorEnv, NUM_ENVS[-1])})
    return [{"shape": f"{tables}x{devices}", **row} for row in rows]


def task_preparation(repeats: int) -> float:
    """Seconds to prepare a task: what the first reset with it takes longer than the second."""
    suite, spent = fixed_suite(50, 4), []
    for _ in range(repeats):
        env = shard_gym.EmbeddingPlacementEnv(suite, observation="compact", cost_model=AnalyticalCostModel())
        prepare = partial(prepare_tasks, env, suite)
        spent.append((seconds_of(prepare) - seconds_of(prepare)) / len(suite))
    return round(statistics.median(spent), 6)


def local_search(tables: int, devices: int, repeats: int) -> dict[str, int]:
    task, model = (
        sampler(tables, devices).sample(np.random.default_rng(0)),
        make_cost_model("analytical", additive=True),
    )
    current = Neighbourhood(Items.of_tables(task, model), pack_by_memory(task.tables, devices))
    moves = current.moves(current.critical_tables())
    batch = moves.take(np.random.default_rng(0).permutation(len(moves))[:BATCH])
    agent = make_agent("local-search")

    def cost_moves(watch: Stopwatch) -> int:
        with watch:
            for _ in range(20):
                current.costs_after(batch)
        return 20 * len(batch)

    def search(watch: Stopwatch) -> int:
        asked = agent.true_cost_queries(model.fingerprint)
        with watch:
            agent.place(task)
        return agent.true_cost_queries(model.fingerprint) - asked

    return {
        "changes_per_s": median_rate(cost_moves, repeats),
        "queries_per_s_of_a_search": median_rate(search, repeats),
    }


def plan_search(suite: str) -> dict[str, float]:
    agent, model = make_agent("plan-search"), make_cost_model(additive=True, splits=True)
    seconds, costs = [], []
    for task in shard_gym.load_suite(suite):
        with Stopwatch() as watch:
            plan = agent.plan(task)
        seconds.append(watch.seconds)
        costs.append(model.estimate(plan, task.tables, task.topology).total_ms)
    means = {"mean_s": round(statistics.mean(seconds), 3), "cost_ms": round(statistics.mean(costs), 4)}
    return {**means, "max_s": round(max(seconds), 3)}


def evaluation(suite: str, agent: str) -> float:
    """Seconds to evaluate an agent on all test tasks, without loading the suite."""
    tasks = shard_gym.load_suite(suite)
    return round(seconds_of(lambda: shard_gym.evaluate(make_agent(agent), tasks)), 3)


def measure(repeats: int) -> dict[str, Any]:
    return {
        "rates": [row for shape in SHAPES for row in rates(*shape, repeats)],
        "task_preparation_s": task_preparation(repeats),
        "local_search": {f"{t}x{d}": local_search(t, d, repeats) for t, d in ((50, 4), (200, 16))},
        "plan_search": {suite: plan_search(suite) for suite in PLANNED},
        "exponents": exponents(),
        "largest": largest(),
        "evaluation_s": {agent: evaluation("dlrm-200x8", agent) for agent in ("lookup-greedy", "local-search")},
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def page_tables(record: dict[str, Any]) -> str:
    notes = (
        f"Preparing a task of 50 tables: {format_seconds(record['task_preparation_s'])}. "
        f"Peak memory of the whole run: {record['peak_memory_mib']} MiB."
    )
    steps = []
    for row in record["rates"]:
        bare = [f"{row['bare_loop']:,}", f"{row['compact'] / row['bare_loop']:.2f}"] if "bare_loop" in row else ["", ""]
        steps.append([row["shape"], row["envs"], *(f"{row[each]:,}" for each in OBSERVATIONS), *bare])
    searches = [[shape, *(f"{rate:,}" for rate in row.values())] for shape, row in record["local_search"].items()]
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
    ends = [f"{tables:,} x {ON_MANY}" for tables in (TABLES[0], TABLES[-1])]
    ends += [f"{MANY:,} x {devices}" for devices in (DEVICES[0], DEVICES[-1])]
    evaluations = [[f"`{name}`", f"{seconds:.2f}"] for name, seconds in record["evaluation_s"].items()]
    return "\n\n".join(
        [
            notes,
            table(("tables x devices", "N", *OBSERVATIONS, "bare loop", "compact / bare loop"), steps),
            table(("local search", "moves costed per second", "evaluations per second of a whole search"), searches),
            table(("`plan-search`, test tasks of", "mean seconds", "longest", "mean cost, ms"), plans),
            table(("ms at tables x devices", *ends, "exponent of T", "of D"), growth),
            table(("tables x devices", "agent", "seconds", "peak MiB", "cost, ms"), largest_tasks),
            table(("evaluation of dlrm-200x8, 50 tasks", "seconds"), evaluations),
        ]
    )


def main(
    only: Literal["environments", "host-memory", "replanning"] | None = None, repeats: int = 5, write: bool = False
) -> None:
    """Measure, print, and write where asked to.

    Args:
        only: measure this alone
        repeats: medians are over this many runs
        write: put the numbers into docs/results/performance.md
    """
    date = datetime.now(timezone.utc).date().isoformat()
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    about = f"Machine: {cpu_model()}, {os.cpu_count()} cores; {versions}; one thread; {date}."
    record: dict[str, Any] = {"about": about}
    parts = {"environments": (measure, page_tables, "bench")}
    parts["host-memory"] = (host_steps.measure, host_steps.page_table, "bench host memory")
    parts["replanning"] = (replanning.measure, replanning.page_table, "bench replanning")
    for name, (measure_part, render, block) in parts.items():
        if only in (None, name):
            record[name] = measure_part(repeats)
            if write:
                content = f"{about}\n\n{render(record[name])}"
                write_atomically(PAGE, with_block(PAGE, block, content).encode())
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
