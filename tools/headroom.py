"""How much of the headroom of the suites rests on terms that nobody measured: a table of docs/suites.md.

    docs/headroom.json   what was computed: greedy agents and local search under variants of the cost model
    docs/suites.md       the generated block "headroom", made from it

`python tools/headroom.py` computes both in some minutes; `--render` makes the table from what is there. The other
table of the page, the room to learn, comes from the leaderboards: `shard-gym leaderboard render`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from shard_gym.agents import PAPER_HEURISTICS, make_agent
from shard_gym.agents.base import Agent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical import BACKWARD_LANE_MS, FITTED, FORWARD_LANE_MS, LANE_SHARE
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import score
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table, with_block
from shard_gym.suites import load_suite, suite_names
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.topology import Topology

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "suites.md"
HEADROOM = ROOT / "docs" / "headroom.json"
BLOCK = "headroom"

BLIND = (*PAPER_HEURISTICS, "lane-greedy")
"""The greedy agents that never ask the cost model."""

NO_GRADIENTS = FITTED._replace(cycles_per_gradient=0.0, cycles_per_update=0.0)


class OwnLanes(AnalyticalCostModel):
    """The analytical model in which every table has the thread groups of its own width, whatever is beside it."""

    name = "analytical-own-lanes"

    def table_loads(self, tables: Tables, topology: Topology) -> FloatArray:
        """See `AnalyticalCostModel`."""
        loads = super().table_loads(tables, topology)
        loads[:, [FORWARD_LANE_MS, BACKWARD_LANE_MS]] *= loads[:, [LANE_SHARE]]
        loads[:, LANE_SHARE] = 1.0
        return loads


VARIANTS: dict[str, Callable[[], AnalyticalCostModel]] = {
    "full model": AnalyticalCostModel,
    "without gradient cycles": lambda: AnalyticalCostModel(NO_GRADIENTS),
    "without the widest table": OwnLanes,
    "without both": lambda: OwnLanes(NO_GRADIENTS),
}

Headroom = dict[str, list[float]]
"""By variant: what the best greedy agent costs more than local search, mean over the tasks, and the best of `BLIND`."""


def cost_ms(agent: Agent, task: Task, model: AnalyticalCostModel) -> float:
    """The cost of the agent's placement; the penalty if it finds none."""
    with suppress(NoPlacementFoundError):
        return score(task, agent.place(task), model)
    return model.penalty_ms(task.tables, task.topology)


def headroom(tasks: TaskSuite, model: AnalyticalCostModel, max_queries: int) -> list[float]:
    """What `Headroom` has of one variant."""
    blind = [make_agent(name) for name in BLIND]
    greedy = make_agent("cost-greedy", cost_model=model)
    search = make_agent("local-search", cost_model=model, max_queries=max_queries)
    ratios = []
    for task in tasks:
        of_blind = min(cost_ms(agent, task, model) for agent in blind)
        of_greedy = min(of_blind, cost_ms(greedy, task, model))
        best = min(of_greedy, cost_ms(search, task, model))
        ratios.append((of_greedy / best - 1.0, of_blind / best - 1.0))
    return [float(mean) for mean in np.mean(ratios, axis=0)]


def about(max_queries: int) -> dict[str, Any]:
    """What the headroom depends on beside the suites."""
    return {"cost_model": AnalyticalCostModel().fingerprint, "constants": list(FITTED), "max_queries": max_queries}


def compute(max_queries: int) -> None:
    """Write docs/headroom.json, suite by suite; what is there already for the same model and suites is kept."""
    record = read_json(HEADROOM) if HEADROOM.exists() else {}
    known = record.get("suites", {}) if about(max_queries).items() <= record.items() else {}
    suites: dict[str, Any] = {}
    for name in suite_names("simulated"):
        tasks = load_suite(name)
        if known.get(name, {}).get("sha256") != tasks.sha256:
            rows: Headroom = {variant: headroom(tasks, make(), max_queries) for variant, make in VARIANTS.items()}
            known[name] = {"sha256": tasks.sha256, "tasks": len(tasks), "headroom": rows}
        suites[name] = known[name]
        write_json(HEADROOM, {**about(max_queries), "suites": suites})
        print(name, flush=True)


def headroom_table(record: dict[str, Any]) -> str:
    """The generated block about headroom."""
    rows = [
        [f"`{name}`", str(suite["tasks"])] + [" ".join(_percents(suite["headroom"][variant])) for variant in VARIANTS]
        for name, suite in record["suites"].items()
    ]
    effort = f"{record['max_queries']:,} placements tried by local search for each task"
    return f"Cost model `{record['cost_model']}`; {effort}.\n\n{table(['suite', 'test tasks', *VARIANTS], rows)}"


def _percents(both: list[float]) -> tuple[str, str]:
    greedy, blind = (f"{100 * each:.1f}%" for each in both)
    return greedy, f"({blind})"


def main(render: bool = False, max_queries: int = 20_000) -> None:
    """Compute, unless told not to, and write the page.

    Args:
        render: make the page from docs/headroom.json, compute nothing
        max_queries: evaluations of local search for each task and variant
    """
    if not render:
        compute(max_queries)
    write_atomically(PAGE, with_block(PAGE, BLOCK, headroom_table(read_json(HEADROOM))).encode())
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
