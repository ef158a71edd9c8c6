"""Ranks the entries of suites again under other assumptions: `python tools/rankings.py`, two minutes.

The answers stay as they are; what changes is what their tasks, or the cost model, assume. The rows of the suites of
sequences, groups and serving go to docs/results/cost-model-errors.md; `host_memory.py` has those of the suites with
host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import tyro

from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table, with_block
from shard_gym.common.system import current_commit
from shard_gym.cost_models import AdditiveCostModel, AnalyticalShardingModel, InferenceCostModel
from shard_gym.cost_models.analytical.assumptions import ASSUMED, VariedShardingModel, assumed_scales
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.planning.trust import other_lookups
from shard_gym.plans import ShardingPlan
from shard_gym.tables.row_popularity import RowPopularity
from shard_gym.tasks.problems import Answer, problem_of
from shard_gym.tasks.suites import load_suite
from shard_gym.tasks.suites.recipes import BEYOND
from shard_gym.tasks.task import Task

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "cost-model-errors.md"
LEADERBOARDS = ROOT / "leaderboards"
AS_IT_IS = "as it is"
CARRIED = ("latency", "small_messages", "host_memory")  # terms that a topology carries, of serving, too

World = tuple[str, Task, AdditiveCostModel]  # an assumption, a task under it, and the cost model of its answers


def answers_of(suite: str) -> dict[str, tuple[Answer, ...]]:
    """The answers of the first seed of each entry that answers all tasks, by folder; without the random ones."""
    track, found = "sharding" if load_suite(suite)[0].splittable else "simulated", {}
    for folder in sorted((LEADERBOARDS / track / suite).iterdir()):
        entry = verify_entry(EntryFolder(LEADERBOARDS, track, suite, folder.name))[0]
        if entry is not None and not entry.failures and folder.name != "random":
            found[folder.name] = entry.answers[0]
    return found


def ranked_again(suite: str, worlds: Callable[[Task, Sequence[Answer]], Iterator[World]]) -> list[list[str]]:
    """A row for each assumption: whether the first entry stays first, and which pairs are in another order.

    Args:
        worlds: a function of a task and the answers to it; the first of its assumptions is `AS_IT_IS`.
    """
    tasks, entries = list(load_suite(suite)), answers_of(suite)
    problem, names = problem_of(tasks[0]), list(entries)
    found: dict[str, FloatArray] = {}
    for number, task in enumerate(tasks):
        answers = [entries[name][number] for name in names]
        for world, changed, model in worlds(task, answers):
            given = [problem.cost_ms(answer, changed, model) for answer in answers]
            found[world] = found.get(world, np.zeros(len(names))) + np.array(given)
    own, rows = found[AS_IT_IS], []
    for world, sums in found.items():
        pairs = [(a, b) for a in range(len(names)) for b in range(a) if own[a] != own[b]]
        swapped = [(a, b) for a, b in pairs if (own[a] < own[b]) != (sums[a] < sums[b])]
        apart = max((abs(own[a] / own[b] - 1) for a, b in swapped), default=0.0)
        first = "yes" if own.argmin() == sums.argmin() else "no"
        how_far = f"{100 * apart:.1f}%" if swapped else "-"
        rows.append([f"`{suite}`", world, first, f"{len(swapped)} of {len(pairs)}", how_far])
    return rows


HEADER = ("suite", "assumption", "first stays first", "pairs in another order", "how far apart at most")


def other_terms(task: Task, plans: Sequence[ShardingPlan]) -> Iterator[World]:
    """Each assumed term at its least and its largest scale, and other exponents of the popularity."""
    training = task.tables.workload.training
    model = AnalyticalShardingModel() if training else InferenceCostModel()
    yield AS_IT_IS, task, model
    for name, scales in assumed_scales(plans, task.topology, "fp32").items():
        for scale in scales:
            varied = VariedShardingModel({name: scale})
            other = replace(task, topology=varied.varied_topology(task.topology))
            if training:
                yield f"{ASSUMED[name]}, times {scale:.3g}", other, varied
            elif name in CARRIED:
                yield f"{ASSUMED[name]}, times {scale:.3g}", other, model
    for every in (task.sync_every // 2, task.sync_every * 2) if task.sync_every else ():
        yield f"averaged every {every} iterations", replace(task, sync_every=every), model
    popularity = task.tables.popularity
    assert isinstance(popularity, RowPopularity)
    changes = {"exponents 0.2 lower": -0.2, "exponents 0.2 higher": 0.2}
    changed = other_lookups(task.tables, popularity, np.arange(task.num_tables), tuple(changes.values()))
    for world, tables in zip(changes, changed, strict=True):
        yield world, replace(task, tables=tables), model


def main() -> None:
    """Rank the entries of the suites of sequences, groups and serving again."""
    rows = []
    for recipe in BEYOND:
        found = ranked_again(recipe.name, other_terms)[1:]
        changed = [row for row in found if row[3][0] != "0" or row[2] == "no"]
        rows += changed
        others = len(found) - len(changed)
        rows.append([f"`{recipe.name}`", f"the other {others}", "yes", f"0 of {found[0][3].split()[-1]}", "-"])
    today, commit = f"{datetime.now(timezone.utc):%d %B %Y}", current_commit()[:7]
    text = f"{table(HEADER, rows, left=2)}\n\nMade on {today} at commit {commit} with `python tools/rankings.py`."
    write_atomically(PAGE, with_block(PAGE, "rankings", text).encode())
    print(text)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
