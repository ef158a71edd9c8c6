"""How the order of agents changes between versions of the cost model `analytical`, on six suites.

    python tools/compare_versions.py --collect "what code this is"   # adds the version that is imported to the data
    python tools/compare_versions.py                                 # makes the tables of the page from the data

The data are docs/results/cost-model-versions.json, the page docs/results/cost-model-versions.md. An older version is
collected from its own code, with PYTHONPATH; each agent plans with the version that scores it, and the checkpoints of
`dreamshard` are those that its code shipped, trained under it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_additive_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.suites import load_suite
from shard_gym.tasks import Task

PAGE = Path(__file__).parent.parent / "docs" / "results" / "cost-model-versions.md"
DATA = PAGE.with_suffix(".json")

SUITES = ("dlrm-20x4", "dlrm-50x4", "generalize", "mixdim-4", "mixdim-8", "merlin-small-x8")
REFERENCE = "local-search"
AGENTS = (
    *("random", "size-greedy", "dim-greedy", "lookup-greedy", "size-lookup-greedy", "lane-greedy", "cost-greedy"),
    "dreamshard",
    REFERENCE,
)
MAX_QUERIES = 20_000


def phases_ms(agent: str, task: Task) -> list[float]:
    """Ms of forward, both all-to-alls and backward of the placement of an agent; NaN if it finds none."""
    options: dict[str, Any] = {"max_queries": MAX_QUERIES} if agent == REFERENCE else {}
    try:
        placement = make_agent(agent, **options).place(task)
    except NoPlacementFoundError:
        return [np.nan] * 3
    model = make_additive_cost_model("analytical")
    forward, *exchange, backward = model.estimate(placement, task.tables, task.topology).phases_ms.max(axis=0).tolist()
    return [forward, sum(exchange), backward]


def compared(tasks: list[Task]) -> dict[str, Any]:
    """Means over the tasks that all agents place; percent of the cost of local search on the same task."""
    ms = np.array([[phases_ms(agent, task) for task in tasks] for agent in AGENTS])
    ms = ms[:, ~np.isnan(ms).any(axis=(0, 2))]
    reference = ms[AGENTS.index(REFERENCE)]
    percent = (100 * (ms / reference.sum(axis=-1)[:, None])).mean(axis=1)  # (agents, phases)
    return {
        "tasks": ms.shape[1],
        "forward_exchange_backward": {agent: row.round(2).tolist() for agent, row in zip(AGENTS, percent, strict=True)},
    }


def collected(code: str) -> dict[str, Any]:
    """The record of the version that is imported."""
    return {
        "cost_model": make_additive_cost_model("analytical").fingerprint,
        "code": code,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "max_queries": MAX_QUERIES,
        "suites": {suite: compared(list(load_suite(suite))) for suite in SUITES},
    }


def suite_table(name: str, records: list[dict[str, Any]]) -> str:
    """The table of one suite: rank and percent above local search under each version, and where the last comes from."""
    percent = [
        np.array([record["suites"][name]["forward_exchange_backward"][agent] for agent in AGENTS]) for record in records
    ]
    costs = np.array([each.sum(axis=-1) for each in percent])
    above = costs - costs[:, -1:]
    rank = 1 + (costs[:, None] < costs[..., None] - 0.05).sum(axis=-1)
    rows = []
    for agent in costs[-1].argsort():
        excess = (percent[-1][agent] - percent[-1][-1]).tolist()
        rows.append(
            (
                AGENTS[agent],
                *(f"{rank[number, agent]}" for number in range(len(records))),
                *(f"{above[number, agent]:.1f}" for number in range(len(records))),
                " / ".join(f"{round(part)}" for part in excess) if agent < len(AGENTS) - 1 else "",
            )
        )
    versions = [record["cost_model"].rpartition("-v")[2] for record in records]
    header = (
        "agent",
        *(f"rank, version {version}" for version in versions),
        *(f"%, version {version}" for version in versions),
        f"phases, version {versions[-1]}",
    )
    shares = [" / ".join(f"{share:.0f}" for share in each[-1]) for each in percent]
    tasks = ", then ".join(str(record["suites"][name]["tasks"]) for record in records)
    intro = f"Tasks: {tasks}. Shares of the phases, in percent: {', then '.join(shares)}."
    return f"## {name}\n\n{intro}\n\n{table(header, rows)}"


def tables(records: list[dict[str, Any]]) -> str:
    """The tables of all suites, and what made them."""
    made = "; ".join(f"`{each['cost_model']}` on {each['date']} from {each['code']}" for each in records)
    queries = f"Local search has {records[-1]['max_queries']:,} evaluations for each task."
    return "\n\n".join([*(suite_table(suite, records) for suite in SUITES), f"Collected: {made}. {queries}"])


def main(collect: str = "", out: Path = DATA) -> None:
    """Collect the version that is imported, or make the tables of the page.

    Args:
        collect: what code this is, to collect its costs; nothing to make the tables
        out: the file of the data
    """
    records = {record["cost_model"]: record for record in read_json(out)} if out.exists() else {}
    if collect:
        record = collected(collect)
        records[record["cost_model"]] = record
        write_json(out, [records[name] for name in sorted(records)], indent=1)
    else:
        write_atomically(PAGE, with_block(PAGE, "versions", tables(list(records.values()))).encode())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
