"""Speed of the environments and the searches: `make bench` prints JSON; `ARGS=--write` renews docs/performance.md.

Compare ratios within one run; absolute rates depend on the machine. The record has

    shapes              steps/s by tables x devices: of the scalar environment (with each observation, and without plain
                        numbers), of the vector environment, and of the bare loop (see bare_loop.py)
    task_preparation_s  seconds to prepare a task of 50 tables
    local_search        moves costed per second, alone and within a whole search
    large_task          seconds to place 1,000 tables on 128 devices
    evaluation_s        seconds for all test tasks of a suite
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from bare_loop import BareLoop

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.agents.neighbourhood import Neighbourhood
from shard_gym.agents.search import BATCH
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, make_cost_model
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.evaluation import score
from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block
from shard_gym.system import cpu_model
from shard_gym.tasks import TaskSampler, capped_task, pack_by_memory
from shard_gym.text import format_seconds

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
SHAPES = ((20, 4), (50, 4), (200, 4), (50, 16), (200, 16))
"""Tables and devices."""

NUM_ENVS = (1, 16, 128, 1024, 4096)
"""Sizes of the vector environment."""


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


def median_rate(work: Callable[[], int], repeats: int) -> float:
    """Median over `repeats` runs of the items per second of `work`, which returns their number; one run warms up."""
    work()
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        items = work()
        rates.append(items / (time.perf_counter() - started))
    return statistics.median(rates)


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

    def seconds() -> tuple[int, float]:
        spent = 0.0
        for _ in range(1000):
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            started = time.perf_counter()
            if env.step(action)[2]:
                env.reset()
            spent += time.perf_counter() - started
        return 1000, spent

    seconds()
    return statistics.median(steps / spent for steps, spent in (seconds() for _ in range(repeats)))


def vector_env(suite: shard_gym.TaskSuite, num_envs: int, observation: str, repeats: int) -> float:
    """Steps/s of the vector environment over whole episodes with resets; the time to choose actions is not counted."""
    envs = EmbeddingPlacementVectorEnv(num_envs, suite, observation=observation)
    prepare_tasks(envs, suite)
    seen, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    noise = [rng.random((num_envs, suite.max_devices)) for _ in range(8)]

    def rate() -> float:
        nonlocal seen
        spent = 0.0
        steps = 2 * suite.max_tables + 2
        for number in range(steps):
            actions = (noise[number % 8] * seen["action_mask"]).argmax(axis=1)
            started = time.perf_counter()
            seen, *_ = envs.step(actions)
            spent += time.perf_counter() - started
        return steps * num_envs / spent

    rate()
    return statistics.median(rate() for _ in range(repeats))


def shape_record(tables: int, devices: int, repeats: int) -> dict[str, Any]:
    """All rates for one number of tables and devices."""
    suite, plain = fixed_suite(tables, devices), AnalyticalCostModel()
    record: dict[str, Any] = {
        "scalar_env": {
            "full": round(scalar_env(suite, "full", repeats, plain)),
            "compact": round(scalar_env(suite, "compact", repeats, plain)),
            "compact_arrays": round(scalar_env(suite, "compact", repeats, ArraysOnly())),
        },
        "vector_env": {},
    }
    for num_envs in NUM_ENVS:
        bare = BareLoop(suite, num_envs)
        bare_rate = median_rate(bare.episode, repeats)
        rates = {kind: vector_env(suite, num_envs, kind, repeats) for kind in ("full", "compact")}
        record["vector_env"][num_envs] = {
            "bare_loop": round(bare_rate),
            **{kind: round(rate) for kind, rate in rates.items()},
            "compact_to_bare_loop": round(rates["compact"] / bare_rate, 3),
        }
    return record


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
    current = Neighbourhood(task, make_cost_model("analytical"), pack_by_memory(task.tables, devices))
    moves = current.moves(current.critical_tables())
    batch = moves.take(np.random.default_rng(0).permutation(len(moves))[:BATCH])

    def cost_moves() -> int:
        for _ in range(20):
            current.costs_after(batch)
        return 20 * len(batch)

    agent = make_agent("local-search")
    fingerprint = make_cost_model("analytical").fingerprint

    def search() -> int:
        asked = agent.true_cost_queries(fingerprint)
        agent.place(task)
        return agent.true_cost_queries(fingerprint) - asked

    return {
        "changes_per_s": round(median_rate(cost_moves, repeats)),
        "queries_per_s_of_a_search": round(median_rate(search, repeats)),
    }


def large_task() -> dict[str, dict[str, float]]:
    """1,000 tables on 128 devices: cost and seconds, greedy and improved."""
    rng, pool = np.random.default_rng(0), shard_gym.load_pool("dlrm-2021").tables
    tables = pool.select(rng.integers(len(pool), size=1000)).with_dims(rng.choice([16, 32, 64, 128], 1000))
    task, model = capped_task("large", tables, 128, "a100-dgx", 1.5), make_cost_model("analytical")
    record = {}
    for name in ("lookup-greedy", "cost-greedy", "local-search"):
        started = time.perf_counter()
        options = {"max_queries": 300_000} if name == "local-search" else {}
        placement = make_agent(name, **options).place(task)
        spent = time.perf_counter() - started
        record[name] = {"cost_ms": round(score(task, placement, model), 3), "seconds": round(spent, 3)}
    return record


def evaluation(suite: str, agent: str) -> float:
    """Seconds to evaluate an agent on all test tasks, without loading the suite."""
    shard_gym.load_suite(suite)
    started = time.perf_counter()
    shard_gym.evaluate(make_agent(agent), suite)
    return round(time.perf_counter() - started, 3)


def measure(args: Args) -> dict[str, Any]:
    """Everything, as a JSON value."""
    shapes = {f"{tables}x{devices}": shape_record(tables, devices, args.repeats) for tables, devices in SHAPES}
    return {
        "shard_gym": shard_gym.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "shapes": shapes,
        "task_preparation_s": task_preparation(args.repeats),
        "local_search": {f"{t}x{d}": local_search(t, d, args.repeats) for t, d in ((50, 4), (200, 16))},
        "large_task": large_task(),
        "evaluation_s": {agent: evaluation("dlrm-200x8", agent) for agent in ("lookup-greedy", "local-search")},
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def page_block(record: dict[str, Any]) -> str:
    """The record as Markdown: tables, and the ratios that the page discusses."""
    machine = (
        f"Machine: {record['machine']}; Python {record['python']}, NumPy {record['numpy']}; one thread. "
        f"Peak memory of the whole run: {record['peak_memory_mib']} MiB."
    )
    rates = []
    for shape, of_shape in record["shapes"].items():
        scalar = of_shape["scalar_env"]
        rates.append([shape, "scalar", f"{scalar['full']:,}", f"{scalar['compact']:,}", "", ""])
        for size, row in of_shape["vector_env"].items():
            cells = [f"{row[kind]:,}" for kind in ("full", "compact", "bare_loop")]
            rates.append([shape, f"{size:,}", *cells, f"{row['compact_to_bare_loop']:.2f}"])
    searches = [
        [shape, f"{row['changes_per_s']:,}", f"{row['queries_per_s_of_a_search']:,}"]
        for shape, row in record["local_search"].items()
    ]
    large_task = [
        [f"`{name}`", f"{row['cost_ms']:.2f}", f"{row['seconds']:.2f}"] for name, row in record["large_task"].items()
    ]
    evaluations = [[f"`{name}`", f"{seconds:.2f}"] for name, seconds in record["evaluation_s"].items()]
    return "\n\n".join(
        [
            machine,
            table(("tables x devices", "N", "full", "compact", "bare loop", "compact / bare loop"), rates),
            "\n".join(ratios(record)),
            table(("local search", "moves costed per second", "evaluations per second of a whole search"), searches),
            table(("1,000 tables on 128 devices", "cost, ms", "seconds"), large_task),
            table(("evaluation of dlrm-200x8, 50 tasks", "seconds"), evaluations),
        ]
    )


def ratios(record: dict[str, Any]) -> Iterable[str]:
    """The ratios of the record, one list item each."""
    shapes = record["shapes"]
    for devices in dict.fromkeys(devices for _, devices in SHAPES):
        same = [shapes[f"{tables}x{number}"] for tables, number in SHAPES if number == devices]
        large = [each["vector_env"][size]["compact_to_bare_loop"] for each in same for size in NUM_ENVS if size > 1000]
        bare = [each["scalar_env"]["compact"] / each["vector_env"][1]["bare_loop"] for each in same]
        arrays = [each["scalar_env"]["compact"] / each["scalar_env"]["compact_arrays"] for each in same]
        yield f"- {devices} devices, a thousand environments and more: {spread(large)} of the bare loop's steps/s."
        yield f"- {devices} devices, scalar environment: {spread(bare)} of the bare loop's steps/s at N = 1."
        yield f"- {devices} devices, scalar environment: {spread(arrays)} times the steps/s of the same on arrays."
    seconds = record["task_preparation_s"]
    steps = seconds * shapes["50x4"]["scalar_env"]["compact"]
    yield f"- Preparing a task of 50 tables: {format_seconds(seconds)}, as long as {steps:.0f} steps."


def spread(values: list[float]) -> str:
    """The least and the largest of `values`."""
    return f"{min(values):.2f} to {max(values):.2f}"


def main(args: Args) -> None:
    """Measure, print, and write where asked to."""
    record = measure(args)
    if args.write:
        write_atomically(PAGE, with_block(PAGE, "bench", page_block(record)).encode())
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
