"""Writes docs/suites.md: how solved each suite is, and how much of its headroom rests on terms that nobody measured.

    docs/headroom.json   what was computed: greedy agents and local search under variants of the cost model
    docs/suites.md       the tables, made from it and from the placements and bounds that ship with the suites

`python tools/suites_page.py` computes both in some minutes; `--render` makes the page from what is there.
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
from shard_gym.cost_models.analytical import BACKWARD_LANE_MS, FITTED, FORWARD_LANE_MS, LANE_SHARE, lane_share
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.evaluation import score
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.io.markdown import table
from shard_gym.suites import load_suite, suite_info, suite_names
from shard_gym.suites.gaps import proven_gap
from shard_gym.tables import Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.text import format_range
from shard_gym.topology import Topology

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "suites.md"
HEADROOM = ROOT / "docs" / "headroom.json"

EQUAL_DIMS = "dlrm-50x4"
"""The suite of equal dims that the others are compared with."""

BLIND = (*PAPER_HEURISTICS, "lane-greedy")
"""The greedy agents that never ask the cost model."""

SOLVED = """# The suites

Test tasks of the simulated suites; made by `tools/suites_page.py`. `shard-gym suites --verbose` describes each suite.

## How solved they are

The costs of the best known placements, compared with lower bounds that are proven ([bounds](bounds.md)): no agent gains
more than the gap. Proven to be the best: within 0.01% of the bound. A suite is marked as solved where search comes so
close to the bounds that a good method cannot stand out; in the others there is room left to learn, most of all
without evaluating the cost while placing ([leagues](../leaderboards/README.md#leagues))."""

OPEN = """## How much of the headroom is measured

How much more the best greedy placement of each task costs than that of local search, mean over the test tasks; in
brackets the best of the greedy heuristics that never ask the cost model: what there is to gain over them without asking
it. The best of five or six for each task costs less than any one of them does on all tasks, and local search is not the
best there is ([bounds](bounds.md)), so an agent can gain more than the table says. A part of it rests on two terms of
the [cost model](cost-model.md) that no public measurement determines, so the table has it without each, and without
both; greedy agents and local search then ask the changed model."""

TERMS = """\
- **Gradient cycles**: the time of the thread groups for gradients and for updated rows, in the backward pass. Without
  it the backward is limited by DRAM, the L2 and the sort alone.
- **The widest table**: all tables of a fused operator get the thread groups of its widest one. That FBGEMM does this is
  proven by its code, that the idle lanes cost time is not ([what the code
  proves](cost-model.md#what-fbgemms-code-proves-of-the-lanes)). Without it every table has the groups of its own
  width.

The suites are those whose tasks have tables of several widths, in this sense, and `dlrm-50x4` of equal dims, where
the widest table makes no difference."""

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


def has_mixed_lanes(tasks: TaskSuite) -> bool:
    """Whether a task has tables of several lane shares, so that a wide one can slow others down."""
    return any(len(np.unique(lane_share(task.tables.embedding_dim))) > 1 for task in tasks)


def shown_suites() -> list[str]:
    """The suites whose headroom is computed."""
    simulated = suite_names("simulated")
    return [name for name in simulated if name == EQUAL_DIMS or has_mixed_lanes(load_suite(name))]


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
    for name in shown_suites():
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


def solved_table() -> str:
    """The generated block about proven gaps."""
    model, rows = AnalyticalCostModel(), []
    for name in suite_names("simulated"):
        info, tasks = suite_info(name), load_suite(name)
        gap = proven_gap(tasks, model)
        cells = ["not stored", "", ""]
        if gap is not None:
            cells = [f"{100 * gap.mean:.2f}%", f"{100 * gap.largest:.2f}%", f"{gap.proven} of {gap.tasks}"]
        sizes = [format_range(*info.num_tables), format_range(*info.num_devices)]
        rows.append([f"`{name}`", *sizes, *cells, "solved" if info.is_solved else ""])
    header = ["suite", "tables", "devices", "mean gap to the proven bound", "largest gap", "proven to be the best", ""]
    return table(header, rows, notes=1)


def page(record: dict[str, Any]) -> str:
    """The text of docs/suites.md from the content of docs/headroom.json."""
    return "\n\n".join([SOLVED, solved_table(), OPEN, headroom_table(record), TERMS]) + "\n"


def main(render: bool = False, max_queries: int = 20_000) -> None:
    """Compute, unless told not to, and write the page.

    Args:
        render: make the page from docs/headroom.json, compute nothing
        max_queries: evaluations of local search for each task and variant
    """
    if not render:
        compute(max_queries)
    write_atomically(PAGE, page(read_json(HEADROOM)).encode())
    print(f"Written: {PAGE}")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
