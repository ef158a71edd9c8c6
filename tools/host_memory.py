"""Makes the numbers and the picture of docs/host-memory.md: `python tools/host_memory.py COMMAND`.

costs       what rows in host memory cost, and what placements cost that do not know of them
rankings    the ranking of the leaderboards' entries, under other assumptions
headroom    how much search gains over greedy agents, without terms that nobody measured
thresholds  how close the thresholds of the cost model are to the best split
picture     which rows of the tables of a device are in HBM
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from rankings import AS_IT_IS, HEADER, World, ranked_again

from shard_gym.agents import make_agent
from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table, with_block
from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, SIZE, save_picture
from shard_gym.common.system import current_commit
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.analytical.assumptions import VariedShardingModel
from shard_gym.cost_models.analytical.model import BACKWARD_LANE_MS, FORWARD_LANE_MS, LANE_SHARE, AnalyticalCostModel
from shard_gym.cost_models.base.host_rows import host_loads, host_read_ms
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.hardware.topology import Topology
from shard_gym.planning.trust import other_lookups
from shard_gym.plans.hbm_rows import best_split
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables.row_popularity import RowPopularity
from shard_gym.tables.tables import Tables
from shard_gym.tasks.problems import Answer, problem_of
from shard_gym.tasks.suites import load_suite, suite_names
from shard_gym.tasks.task import Task

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "host-memory.md"
PICTURE = ROOT / "docs" / "images" / "host-memory.png"
LEADERBOARDS = ROOT / "leaderboards"

SUITES = tuple(name for name in suite_names() if name.startswith("tier-"))
PLACED = ("tier-4", "tier-8")
PICTURED = ("tier-4", 2, 3)  # suite, test task and device
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
GREEDY = ("size-greedy", "dim-greedy", "lookup-greedy", "size-lookup-greedy", "lane-greedy")  # ask no cost model


def write(block: str, text: str, command: str) -> None:
    made = f"Made on {datetime.now(timezone.utc):%d %B %Y} at commit {current_commit()[:7]} with `{command}`."
    write_atomically(PAGE, with_block(PAGE, block, f"{text}\n\n{made}").encode())
    print(text)


def cost_ms(task: Task, agent: Any, scored: Task) -> float:
    return float(AnalyticalCostModel().estimate(agent.place(task), scored.tables, scored.topology).total_ms)


def with_hbm(task: Task, share: float) -> Task:
    """The task with HBM for a share of the tables; for all of them, without host memory."""
    assert task.topology.host is not None
    hbm = int(share * int(task.tables.memory_bytes.sum()) / task.num_devices)
    host = replace(task.topology.host, hbm_bytes=hbm) if share < 1 else None
    return replace(task, topology=replace(task.topology, host=host))


def costs(tasks: int = 20) -> None:
    """Costs of tier-8 at several shares of HBM.

    Args:
        tasks: of the suite's test tasks
    """
    chosen, rows = list(load_suite("tier-8", "test"))[:tasks], []
    for share in SHARES:
        found: dict[str, list[float]] = {}
        for task in chosen:
            own, all_in_hbm = with_hbm(task, share), with_hbm(task, 1.0)
            for name, asked in (("plan-search", own), ("blind", all_in_hbm), ("cost-greedy", own)):
                agent = make_agent("plan-search" if name == "blind" else name)
                found.setdefault(name, []).append(cost_ms(asked, agent, own))
            found.setdefault("greedy", []).append(min(cost_ms(own, make_agent(name), own) for name in GREEDY))
        means = {name: float(np.mean(values)) for name, values in found.items()}
        best = means["plan-search"]
        shown = [f"{100 * (means[name] / best - 1):.0f}%" for name in ("cost-greedy", "blind", "greedy")]
        rows.append([f"{100 * share:g}%", f"{best:.2f}", *shown])
    header = ["HBM", "`plan-search`, ms", "`cost-greedy`", "search blind to it", "best greedy that never asks"]
    write("costs", table(header, rows), f"python tools/host_memory.py costs --tasks {tasks}")


def worlds(task: Task, answers: Sequence[Answer]) -> Iterator[World]:
    """The tables and topologies of a task under each assumption."""
    tables, topology, popularity = task.tables, task.topology, task.tables.popularity
    assert isinstance(popularity, RowPopularity)
    model = problem_of(task).model("analytical")
    assert isinstance(model, AdditiveCostModel)

    def with_other(tables: Tables, topology: Topology) -> tuple[Task, AdditiveCostModel]:
        return replace(task, tables=tables, topology=topology, known_placement=None), model

    yield AS_IT_IS, task, model
    flatter, steeper = other_lookups(tables, popularity, np.arange(len(tables)), (-0.1, 0.1))
    yield "exponents 0.1 lower", *with_other(flatter, topology)
    yield "exponents 0.1 higher", *with_other(steeper, topology)
    yield "half the rates", *with_other(tables, VariedShardingModel({"host_memory": 2.0}).varied_topology(topology))


def rankings() -> None:
    """Entries of each suite by their mean cost, where every task has an answer, with the first seed's answers."""
    rows = [row for suite in SUITES for row in ranked_again(suite, worlds)]
    write("rankings", table(HEADER, rows, left=2), "python tools/host_memory.py rankings")


class OwnLanes(AnalyticalCostModel):
    """Every table has the lanes of its own width, whatever the widest table of its device is."""

    def loads(self, shards: Tables, topology: Topology, sharding_type: str = TABLE_WISE) -> FloatArray:
        loads = super().loads(shards, topology, sharding_type)
        loads[:, [FORWARD_LANE_MS, BACKWARD_LANE_MS]] *= loads[:, [LANE_SHARE]]
        loads[:, LANE_SHARE] = 1.0
        return loads


def headroom(tasks: int = 20) -> None:
    """How much more greedy placements cost than those of a local search of 20,000, under changed models.

    Args:
        tasks: of each suite's test tasks
    """
    full = AnalyticalCostModel().constants
    no_gradients = full._replace(cycles_per_gradient=0.0, cycles_per_update=0.0)
    models: Sequence[tuple[str, Callable[[], AnalyticalCostModel]]] = (
        ("full model", AnalyticalCostModel),
        ("without gradient cycles", lambda: AnalyticalCostModel(no_gradients)),
        ("without the widest table", OwnLanes),
        ("without both", lambda: OwnLanes(no_gradients)),
    )
    rows = []
    for suite in PLACED:
        row = [f"`{suite}`"]
        for _, make in models:
            gaps = []
            for task in list(load_suite(suite, "test"))[:tasks]:
                model = make()

                def cost(name: str, task: Task = task, model: AnalyticalCostModel = model, **options: Any) -> float:
                    asks = {"cost_model": model} if name in ("cost-greedy", "local-search") else {}
                    placement = make_agent(name, **asks, **options).place(task)
                    return float(model.estimate(placement, task.tables, task.topology).total_ms)

                best = cost("local-search", max_queries=20_000)
                never = min(map(cost, GREEDY))
                gaps.append((min(never, cost("cost-greedy")) / best - 1, never / best - 1))
            asked, never = 100 * np.mean(gaps, axis=0)
            row.append(f"{asked:.1f}% ({never:.1f}%)")
        rows.append(row)
    header = ["suite", *(name for name, _ in models)]
    write("headroom", table(header, rows), f"python tools/host_memory.py headroom --tasks {tasks}")


def thresholds() -> None:
    """Host bytes of the cost model against those of the best split, on devices of random placements."""
    rows, rng = [], np.random.default_rng(0)
    for suite in PLACED:
        below, host_ms = [], []
        for task in load_suite(suite, "test"):
            topology, devices = task.topology, rng.integers(0, task.num_devices, task.num_tables)
            assert topology.host is not None
            loads = AnalyticalCostModel().reduce(
                AnalyticalCostModel().loads(task.tables, topology), devices, task.num_devices
            )
            found = host_read_ms(loads[:, -host_loads(task.tables, topology).shape[1] :])
            split = best_split(task.tables, devices, np.zeros(task.num_tables, np.bool_), topology)
            exact = np.bincount(devices, split.host_reads * task.tables.row_bytes, task.num_devices)
            exact /= topology.host.read_gb_per_s * 1e6
            below += (1 - found[exact > 1e-3] / exact[exact > 1e-3]).tolist()
            host_ms += (exact - found).tolist()
        numbers, ms = 100 * np.array(below), (f"{np.mean(host_ms):.4f}", f"{np.max(host_ms):.3f}")
        rows.append([f"`{suite}`", f"{numbers.mean():.2f}%", f"{numbers.max():.1f}%", *ms])
    header = ["suite", "too low, mean", "worst", "ms too low, mean", "worst"]
    write("thresholds", table(header, rows), "python tools/host_memory.py thresholds")


def picture() -> None:
    """Rows of the tables of one device by how likely a batch reads them, and the threshold."""
    suite, number, device = PICTURED
    task = load_suite(suite, "test")[number]
    placement = make_agent("plan-search").place(task)
    chosen = np.flatnonzero(placement == device)
    tables = task.tables.select(chosen)
    split = best_split(tables, np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.bool_), task.topology)
    share, count = tables.row_popularity.steps(tables.num_embeddings.astype(np.float64))
    read = -np.expm1(-share * tables.lookups_per_batch[:, None])
    figure = Figure(figsize=(10.0, 4.6), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    level = []
    for number, (probabilities, rows) in enumerate(zip(read, count, strict=True)):
        color, real = COLORS[number % len(COLORS)], rows > 0
        rank, probabilities = np.cumsum(rows[real]), probabilities[real]
        kept = rank <= split.hbm_rows[number] + 0.5
        if kept.any() and not kept.all():
            level.append(float(probabilities[kept][-1]))
        name = f"{tables.names[number]}: {tables.embedding_dim[number]} columns"
        axes.plot(rank[kept], probabilities[kept], color=color, linewidth=3.0, solid_capstyle="butt", label=name)
        axes.plot(rank[~kept], probabilities[~kept], color=color, linewidth=1.2, alpha=0.55)
    threshold = float(np.median(level))
    axes.axhline(threshold, color=INK, linewidth=1.0, linestyle="--")
    axes.annotate(
        f"threshold {threshold:.2g}", (1.0, threshold), (4, 5), textcoords="offset points", fontsize=SIZE, color=INK
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=1.6)
    axes.set_xlim(left=1e3)
    axes.set_xlabel("rows, the most popular first", color=INK, fontsize=SIZE)
    axes.set_ylabel("probability that a batch reads the row", color=INK, fontsize=SIZE)
    axes.set_title(
        "Thick: rows in HBM. Thin: rows in the host's memory. One threshold serves all tables of a device.",
        color=GREY,
        fontsize=SIZE - 1,
        loc="left",
    )
    axes.tick_params(colors=INK)
    axes.grid(color=LINE, linewidth=0.6)
    axes.spines[:].set_visible(False)
    axes.legend(loc="lower left", frameon=False, fontsize=SIZE - 2)
    save_picture(figure, PICTURE)
    print(PICTURE, threshold, int(split.hbm_rows.sum()), int(tables.num_embeddings.sum()))


if __name__ == "__main__":
    commands = {each.__name__: each for each in (costs, rankings, headroom, thresholds, picture)}
    tyro.extras.subcommand_cli_from_dict(commands, description=__doc__)
