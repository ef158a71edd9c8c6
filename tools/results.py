"""Scores every agent on every suite and writes the tables and the picture of the documentation: `make results`.

    docs/results.json           what was measured
    docs/results.md, README.md  tables, made from it
    docs/images/placement.png   the picture of the README

Only the planning times depend on the machine. `--render` makes the tables from docs/results.json without measuring.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tyro

from shard_gym.agents import AGENTS, make_agent
from shard_gym.cli.console import new_progress
from shard_gym.cli.demo import draw_extremes
from shard_gym.cost_models import make_additive_cost_model
from shard_gym.evaluation import compare, evaluate
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.io.pictures import save_picture
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.suites import load_suite, suite_names
from shard_gym.suites.best_known import best_known_costs
from shard_gym.text import counted, format_change, format_ms

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results.json"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "placement.png"

README_SUITES = (
    "dlrm-20x4",
    "dlrm-50x4",
    "dlrm-200x8",
    "mixdim-4",
    "generalize",
    "mlperf-x8",
    "merlin-tiny-x8",
    "merlin-small-x8",
    "merlin-large-x128",
)
REFERENCES = ("best known", "lower bound")
"""Rows that are not agents."""

HEADER = ("agent", "mean ms", "95% interval", "vs random", "gap to best", "failed", "plan ms", "queries")

INTRODUCTION = """# Results

Test split of every suite, cost model `analytical`; made by `make results`. Costs are ms, the embedding part of a
training iteration: means over the tasks, with a 95% bootstrap interval; failed tasks are charged their penalty. `vs
random` and `gap to best` are means over the tasks of the cost relative to the random agent and to the best known
placement. `plan ms` is the median for one task on one core of the machine that ran it; `queries` are the agent's
evaluations of the cost model for each task. No placement costs less than the `lower bound`, and often none can reach
it. A suite with one task has no interval."""

Results = dict[str, dict[str, dict[str, Any]]]
"""The numbers of the tables, by suite and agent."""


def measure() -> Results:
    """Every agent on the test split of every suite."""
    model = make_additive_cost_model("analytical")
    results: Results = {}
    with new_progress() as progress:
        for name in progress.track(suite_names("simulated"), description="suites"):
            suite = load_suite(name)
            best = best_known_costs(suite, model)
            evaluations = {agent: evaluate(make_agent(agent), suite, model) for agent in AGENTS}
            results[name] = {}
            for agent, evaluation in evaluations.items():
                row = compare(evaluation, evaluations["random"], best)
                results[name][agent] = {
                    "mean_cost_ms": evaluation.mean_cost_ms,
                    "interval_ms": list(evaluation.interval_ms),
                    "failures": evaluation.failures,
                    "to_random": row.to_random,
                    "to_best": row.to_best,
                    "seconds": row.seconds,
                    "queries": row.queries,
                }
            scorer = Scorer(suite)
            bounds = [scorer.lower_bound(number) for number in range(len(suite))]
            for reference, costs in zip(REFERENCES, ([best[task.name] for task in suite], bounds), strict=True):
                results[name][reference] = {"mean_cost_ms": float(np.mean(costs))}
            if name == "dlrm-50x4":
                save_picture(draw_extremes(evaluations, model), PICTURE)
    return results


def readme_table(results: Results) -> str:
    """A row for each agent, a column for each of `README_SUITES`."""
    rows = []
    for agent in (*AGENTS, *REFERENCES):
        cells = []
        for row in (results[suite][agent] for suite in README_SUITES):
            failed = f" ({row['failures']})" if row.get("failures") else ""
            cells.append(format_ms(row["mean_cost_ms"]) + failed)
        rows.append([agent if agent in REFERENCES else f"`{agent}`", *cells])
    return table(["agent", *README_SUITES], rows)


def page(results: Results) -> str:
    """A table for each suite, with every column."""
    blocks = [INTRODUCTION]
    for name, agents in results.items():
        suite = load_suite(name)
        rows = []
        for agent, row in agents.items():
            if agent in REFERENCES:
                rows.append([agent, format_ms(row["mean_cost_ms"]), *[""] * (len(HEADER) - 2)])
                continue
            rows.append(
                [
                    f"`{agent}`",
                    format_ms(row["mean_cost_ms"]),
                    " to ".join(map(format_ms, row["interval_ms"])) if len(suite) > 1 else "",
                    format_change(row["to_random"]),
                    format_change(row["to_best"], digits=2),
                    str(row["failures"]),
                    f"{1e3 * row['seconds']:,.1f}",
                    f"{row['queries']:,.0f}",
                ]
            )
        blocks += [f"## {name}", f"{suite.description} {counted(len(suite), 'task')}.", table(HEADER, rows)]
    return "\n\n".join(blocks) + "\n"


def main(render: bool = False) -> None:
    """Measure, unless told not to, and write everything.

    Args:
        render: make the tables from docs/results.json, measure nothing
    """
    if not render:
        write_json(RESULTS, measure())
    results = read_json(RESULTS)
    write_atomically(PAGE, page(results).encode())
    write_atomically(README, with_block(README, "results", readme_table(results)).encode())
    print(f"Written: {RESULTS}, {PAGE}, {README}{'' if render else f', {PICTURE}'}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
