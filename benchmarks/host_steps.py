"""What host memory costs: steps and plans of tasks with it beside those of tasks without, which take turns."""

from __future__ import annotations

import itertools
from typing import Any

from stepping import Run, fixed_suite, scalar_steps, vector_steps
from timing import Stopwatch, median_rates

import shard_gym
from shard_gym.agents import make_agent
from shard_gym.common.io.markdown import table
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.sharding.env import EmbeddingShardingEnv
from shard_gym.envs.sharding.vector import EmbeddingShardingVectorEnv

TABLES, DEVICES = 50, 4
HBM_SHARE = (0.05, 0.5)
VECTORS = ((128, "compact"), (4096, "compact"), (4096, "features"))  # N and observation
AGENTS = ("cost-greedy", "plan-search")
NUM_TASKS, NUM_PLANS = 10, 3  # tasks of the suites, and of those that an agent plans in one run

SCALAR = {"`EmbeddingPlacement-v0`": shard_gym.EmbeddingPlacementEnv, "`EmbeddingSharding-v0`": EmbeddingShardingEnv}
VECTOR = dict(zip(SCALAR, (EmbeddingPlacementVectorEnv, EmbeddingShardingVectorEnv), strict=True))


def measure(repeats: int) -> list[dict[str, Any]]:
    """Rows of rates without host memory and with it: steps per second, or plans per hour."""
    suites = [fixed_suite(TABLES, DEVICES, share, NUM_TASKS) for share in (None, HBM_SHARE)]
    rows = []

    def add(what: str, kind: str, works: list[Run]) -> None:
        without, with_it = median_rates(works, repeats)
        rows.append({"what": what, "kind": kind, "without": without, "with": with_it})

    for name, scalar in SCALAR.items():
        add(
            f"steps/s of {name}, compact",
            "scalar",
            [scalar_steps(scalar(each, observation="compact"), each) for each in suites],
        )
    for (name, vector), (count, observation) in itertools.product(VECTOR.items(), VECTORS):
        works = [vector_steps(vector(count, each, observation=observation), each) for each in suites]
        add(f"steps/s of {name}, {observation}", f"{count:,}", works)
    for name in AGENTS:
        add(f"plans/h of `{name}`", "", [_planning(name, each) for each in suites])
    return rows


def _planning(name: str, suite: shard_gym.TaskSuite) -> Run:
    agent = make_agent(name)

    def run(watch: Stopwatch) -> int:
        with watch:
            for task in suite.tasks[:NUM_PLANS]:
                agent.plan(task)
        return NUM_PLANS * 3600

    return run


def page_table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    cells = [
        [row["what"], row["kind"], f"{row['without']:,}", f"{row['with']:,}", f"{row['without'] / row['with']:.2f}"]
        for row in rows
    ]
    heads = (f"{TABLES}x{DEVICES}", "N", "without host memory", "with it", "times as long")
    return table(heads, cells)
