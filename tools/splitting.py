"""What splitting tables gains over whole ones: the block "splitting" of docs/results/splitting.md.

    python tools/splitting.py     # plans every task with every method, one process, some minutes

The suites are those of placements, so the best placements of whole tables are known, most of them close to proven
bounds. Methods may split and spread every table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from shard_gym.agents import make_agent
from shard_gym.agents.neuroshard.beam import BeamSearch
from shard_gym.agents.splits import SplitOptions
from shard_gym.cost_models import make_cost_model, make_sharding_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block
from shard_gym.sharding import ShardingPlan
from shard_gym.sharding.plan import COLUMN_WISE, TABLE_WISE
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs
from shard_gym.system import cpu_model
from shard_gym.tasks import Task
from shard_gym.text import counted, format_change, format_ms, format_seconds

PAGE = Path(__file__).parent.parent / "docs" / "results" / "splitting.md"

SUITES = ("mixdim-4", "mixdim-8", "mlperf-x8", "merlin-small-x16", "merlin-medium-x128", "merlin-jumbo-x128")

MODEL = make_sharding_cost_model("analytical")


class Outcome(NamedTuple):
    """Of one method on a suite: the share that its plans cost more or less than the best known placements; seconds."""

    change: float
    seconds: float
    failed: int


def neuroshard(task: Task) -> ShardingPlan:
    """The beam search of NeuroShard with the paper's numbers, which asks the true cost instead of its networks."""
    return BeamSearch().search(SplitOptions(task, MODEL, (TABLE_WISE, COLUMN_WISE), max_shards=32)).plan()


METHODS: Mapping[str, Callable[[Task], ShardingPlan]] = {
    "NeuroShard's search, true costs": neuroshard,
    **{
        name: lambda task, agent=agent: make_agent(agent).plan(task)
        for name, agent in (
            ("HugeCTR's planner", "hugectr"),
            ("TorchRec's planner", "torchrec"),
            ("`plan-search`", "plan-search"),
        )
    },
}


def outcome(method: Callable[[Task], ShardingPlan], tasks: list[Task], best_ms: list[float]) -> Outcome:
    """The method on all tasks; those on which it finds no plan are left out of the means, and counted."""
    costs, seconds = [], []
    for task in tasks:
        started = time.perf_counter()
        try:
            plan = method(task)
        except NoPlacementFoundError:
            costs.append(np.nan)
        else:
            costs.append(MODEL.estimate_plan(plan, task.tables, task.topology).total_ms)
        seconds.append(time.perf_counter() - started)
    failed = np.isnan(costs)
    change = np.nansum(costs) / np.sum(np.array(best_ms)[~failed]) - 1.0 if not failed.all() else np.nan
    return Outcome(float(change), float(np.mean(seconds)), int(failed.sum()))


def cell(found: Outcome, tasks: int) -> str:
    """What the table shows of an outcome."""
    failed = f", fails on {found.failed} of {tasks}" if found.failed else ""
    if found.failed == tasks:
        return failed[2:]
    return f"{format_change(found.change)} ({format_seconds(found.seconds)}{failed})"


TOO_SLOW = {("merlin-jumbo-x128", "TorchRec's planner")}
"""Not run: 612 tables on as many devices take TorchRec's planner 8 minutes."""


def main(suites: tuple[str, ...] = SUITES, methods: tuple[str, ...] = tuple(METHODS)) -> None:
    """Plan, and write the page.

    Args:
        suites: names of suites of placements
        methods: columns of the table
    """
    make_agent("torchrec").plan(load_suite(SUITES[0])[0])  # imports what it needs
    rows, tasks_of_all = [], 0
    for suite in suites:
        tasks = load_suite(suite)
        tasks_of_all += len(tasks)
        best = best_known_costs(tasks, make_cost_model("analytical"))
        best_ms = [best[task.name] for task in tasks]
        cells = [
            "not run" if (suite, name) in TOO_SLOW else cell(outcome(METHODS[name], list(tasks), best_ms), len(tasks))
            for name in methods
        ]
        rows.append([f"`{suite}`", str(len(tasks)), format_ms(float(np.mean(best_ms))), *cells])
        print(*rows[-1], sep="  ", flush=True)
    header = ("suite", "tasks", "best known placements, ms", *methods)
    about = (
        f"Cost model `{MODEL.fingerprint}`, {counted(tasks_of_all, 'task')}. Measured on "
        f"{datetime.now(timezone.utc):%d %B %Y}, on {cpu_model()}, one thread."
    )
    write_atomically(PAGE, with_block(PAGE, "splitting", f"{about}\n\n{table(header, rows)}").encode())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
