"""Computes what the best sequences of actions take, with hindsight: `python tools/oracle_seconds.py drift-strong-600`.

The results go to shard_gym/drift/data/oracle/<suite>.json, which the leaderboard of replanning reads.
Tables of plans take ten minutes for a suite without a folder that keeps them; suites that differ in their pause share
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tyro

from shard_gym.agents.replanning.oracle import best_sequence
from shard_gym.agents.replanning.plan_table import plan_tables
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.oracle_seconds import write_oracle_seconds
from shard_gym.drift.suites import drift_suite_names, load_drift_suite

MODEL = make_sharding_cost_model("analytical")
TABLES = Path(__file__).parent.parent / "runs" / "plan-tables"
HOW = "dynamic program over all plans that can be made, with hindsight"


def main(suites: tyro.conf.Positional[tuple[str, ...]] = (), tables: Path = TABLES) -> None:
    """Write the files.

    Args:
        suites: names of suites of drifting tasks; all if none is named.
        tables: folder that keeps the tables of plans, each in <suite without its pause>/test.
    """
    for name in suites or drift_suite_names():
        suite = load_drift_suite(name)
        folder = tables / name.rsplit("-", 1)[0] / suite.split
        found = {}
        for task, table in zip(suite, plan_tables(suite, MODEL, folder), strict=True):
            found[task.name] = best_sequence(table, task.task.topology, task.pause_s).seconds
        print(f"Written: {write_oracle_seconds(suite, found, MODEL, HOW)}.", flush=True)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
