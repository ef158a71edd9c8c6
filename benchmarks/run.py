"""How fast things are: `make bench` prints JSON. Compare ratios within one run; absolute times depend on the machine.

scalar_env    steps/s of the environment under random legal actions, beside the bare cost arithmetic in NumPy
batched_step  steps/s of the one step function with N environments at once
local_search  placements costed per second
evaluation    seconds for all test tasks of a suite
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tyro

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.placement.problem import Problem, prepare
from shard_gym.envs.placement.state import Status, initial_state, step

SUITES = ("dlrm-20x4", "dlrm-50x4", "dlrm-200x8")


@dataclass
class Args:
    """How long to measure."""

    repeats: int = 5
    """medians are over this many runs"""
    steps: int = 2000
    """steps of a scalar run"""


def median_rate(work: Callable[[], int], repeats: int) -> float:
    """Median of the items per second `work` gets done, after one run to warm up; it returns the number of items."""
    work()
    rates = []
    for _ in range(repeats):
        started = time.perf_counter()
        items = work()
        rates.append(items / (time.perf_counter() - started))
    return statistics.median(rates)


def scalar_env(suite: str, observation: str, args: Args) -> float:
    """Steps/s of the environment."""
    env = shard_gym.EmbeddingPlacementEnv(suite, "test", observation=observation)
    rng = np.random.default_rng(0)
    env.reset(seed=0)

    def work() -> int:
        for _ in range(args.steps):
            legal = np.flatnonzero(env.action_masks())
            if env.step(int(legal[rng.integers(len(legal))]))[2]:
                env.reset()
        return args.steps

    return median_rate(work, args.repeats)


def bare_loop(suite: str, args: Args) -> float:
    """Steps/s of the cost arithmetic alone, one environment: add a table's loads, compute phases and cost."""
    model = make_cost_model("analytical")
    task = shard_gym.load_suite(suite)[0]
    loads, cluster = model.table_loads(task.tables, task.topology), task.topology.cluster()

    def work() -> int:
        device_loads = np.zeros((task.num_devices, model.num_loads))
        for number in range(args.steps):
            device = number % task.num_devices
            device_loads[device] = model.add(device_loads[device], loads[number % task.num_tables])
            model.iteration_cost(model.device_costs(device_loads, cluster), device_loads, cluster)
        return args.steps

    return median_rate(work, args.repeats)


def batched_step(suite: str, num_envs: int, args: Args) -> float:
    """Steps/s of `state.step` over whole episodes of `num_envs` environments."""
    model = make_cost_model("analytical")
    tasks = shard_gym.load_suite(suite)
    ready = [prepare(task, model, tasks.max_tables, tasks.max_devices) for task in tasks]
    problem = Problem.stack([ready[i % len(ready)] for i in range(num_envs)])
    rng = np.random.default_rng(0)

    def work() -> int:
        state, done = initial_state(problem, model), 0
        for _ in range(tasks.max_tables):
            done += int((state.status == Status.RUNNING).sum())
            noise = rng.random(state.fits.shape) * state.fits
            state = step(problem, state, noise.argmax(axis=1), model)
        return done

    return median_rate(work, args.repeats)


def local_search(suite: str, args: Args) -> float:
    """Placements costed per second while searching one task."""
    agent = make_agent("local-search")
    task, fingerprint = shard_gym.load_suite(suite)[0], agent.cost_model.fingerprint

    def work() -> int:
        asked = agent.true_cost_queries(fingerprint)
        agent.place(task)
        return agent.true_cost_queries(fingerprint) - asked

    return median_rate(work, args.repeats)


def evaluation(suite: str, agent: str) -> float:
    """Seconds to evaluate an agent on all test tasks, the suite being loaded."""
    shard_gym.load_suite(suite)
    started = time.perf_counter()
    shard_gym.evaluate(make_agent(agent), suite)
    return time.perf_counter() - started


def measure(args: Args) -> dict[str, Any]:
    """Everything, as a JSON value."""
    suites = {}
    for suite in SUITES:
        bare = bare_loop(suite, args)
        scalar = {kind: scalar_env(suite, kind, args) for kind in ("full", "compact")}
        suites[suite] = {
            "bare_loop_steps_per_s": round(bare),
            "scalar_env": {
                kind: {"steps_per_s": round(rate), "ratio_to_bare_loop": round(rate / bare, 3)}
                for kind, rate in scalar.items()
            },
            "batched_step_steps_per_s": {n: round(batched_step(suite, n, args)) for n in (1, 64, 1024)},
            "local_search_queries_per_s": round(local_search(suite, args)),
            "evaluation_s": {
                agent: round(evaluation(suite, agent), 3) for agent in ("lookup-greedy", "cost-greedy", "local-search")
            },
        }
    return {
        "shard_gym": shard_gym.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "suites": suites,
    }


if __name__ == "__main__":
    print(json.dumps(measure(tyro.cli(Args, description=__doc__)), indent=1))
