"""The picture of all solvers on docs/solvers.md: what they cost, over the evaluations they ask for, and over time.

docs/images/solvers.png is made from the entries of the leaderboards: `python tools/pareto.py`. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from shard_gym.io.pictures import COLORS, GREY, INK, LINE
from shard_gym.leaderboard.ranking import load_leaderboards
from shard_gym.leaderboard.solvers import Solver, solvers

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "solvers.png"

SUITES = ("mixdim-4", "mixdim-8", "generalize", "shard-4")

MOST = 1.2
"""Solvers further above the bounds are left out."""

LEAST_QUERIES = 1.0
"""Where solvers without any are drawn."""

SIDES = ((7, 3), (7, -13), (-17, 3), (-17, -13), (-4, 9), (-4, -19), (18, 3), (-28, 3))
"""Where the number of a point may stand, in pixels from it."""

LEAGUES = {"zero-query": COLORS[0], "guided": COLORS[4], "search": COLORS[1]}


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The numbers of the points of which no other is as far left and lower, from the left."""
    best, found = np.inf, []
    for number in sorted(range(len(points)), key=lambda each: points[each]):
        if points[number][1] < best:
            best = points[number][1]
            found.append(number)
    return found


def draw_panel(axes: Axes, shown: Sequence[Solver], x: Callable[[Solver], float], keys: Mapping[str, int]) -> None:
    """One suite: a point for each solver, hollow if it fails on a task, and the front of those that do not."""
    for each in shown:
        color = LEAGUES.get(each.league, INK)
        fill = "white" if each.failures else color
        axes.plot(x(each), percent(each), "o", color=color, markerfacecolor=fill, markersize=6, zorder=3)
    points = [(x(each), percent(each)) for each in shown if not each.failures]
    axes.plot(*zip(*(points[number] for number in front(points)), strict=True), color=GREY, linewidth=1, zorder=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.12)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(which="both", colors=INK, labelsize=8)
    label(axes, [(x(each), percent(each), str(keys[each.name])) for each in shown])


def label(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write the number of each point beside it, where neither another point nor a number is."""
    axes.autoscale_view()
    at = axes.transData.transform([(x, y) for x, y, _ in points])
    taken = [*at.tolist()]
    for (x, y, text), (left, bottom) in zip(points, at, strict=True):

        def crowd(offset: tuple[int, int], left: float = left, bottom: float = bottom) -> float:
            middle = np.array([left + offset[0] + 5, bottom + offset[1] + 5])
            return sum(float((np.abs(middle - other) < (12, 10)).all()) for other in np.array(taken))

        offset = min(SIDES, key=crowd)
        taken.append([left + offset[0] + 5, bottom + offset[1] + 5])
        axes.annotate(text, (x, y), xytext=offset, textcoords="offset pixels", fontsize=8, color=INK, zorder=4)


def percent(solver: Solver) -> float:
    """Its gap to the bounds."""
    assert solver.gap is not None
    return 100 * solver.gap


def short(name: str) -> str:
    """The name without what does not tell it from the others."""
    return name.replace(" (Stable-Baselines3, set policy)", "")


def draw(entries: Sequence[Solver]) -> Figure:
    """A row for each suite: the gap to the bounds over queries, and over the time to plan a task."""
    order = list(LEAGUES)
    ranked = [each for each in entries if each.suite in SUITES and each.league in order]
    shown = [each for each in ranked if each.gap is not None and 0 < each.gap <= MOST]
    worst: dict[str, int] = {}
    for each in shown:
        worst[each.name] = max(order.index(each.league), worst.get(each.name, 0))
    names = sorted(worst.items(), key=lambda each: each[::-1])
    keys = {name: number for number, (name, _) in enumerate(names, start=1)}
    figure = Figure(figsize=(12.5, 3 * len(SUITES)), layout="constrained")
    grid = figure.add_gridspec(len(SUITES), 3, width_ratios=(1, 1, 0.62))
    for row, suite in enumerate(SUITES):
        left, right = figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row, 1])
        own = [each for each in shown if each.suite == suite]
        draw_panel(left, own, lambda each: max(each.queries, LEAST_QUERIES), keys)
        draw_panel(right, own, lambda each: 1e3 * each.planning_seconds, keys)
        left.set_title(suite, loc="left", fontsize=11, color=INK, fontweight="bold")
        left.set_ylabel("above proven bounds, %", fontsize=9, color=INK)
        left.set_xlabel("evaluations of the cost, in training and for one task (none: at 1)", fontsize=8, color=INK)
        right.set_xlabel("time to plan a task, ms", fontsize=8, color=INK)
    key = figure.add_subplot(grid[:, 2])
    key.set_axis_off()
    lines = [("filled: every task solved; hollow: fails on some", INK, "normal")]
    for league in order:
        lines += [("", INK, "normal"), (league, LEAGUES[league], "bold")]
        lines += [(f"{keys[name]}  {short(name)}", INK, "normal") for name, its in names if order[its] == league]
    for number, (text, color, weight) in enumerate(lines):
        key.text(0.0, 1 - number / max(42, len(lines)), text, fontsize=9, color=color, fontweight=weight, va="top")
    return figure


def main(out: Path = PICTURE) -> int:
    """Draw the picture.

    Args:
        out: the file
    """
    draw(solvers(load_leaderboards(ROOT / "leaderboards"))).savefig(out, dpi=110)
    return 0


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
