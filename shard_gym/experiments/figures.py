"""The figures of a study. Needs matplotlib, which is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.experiments.methods import LOCAL_SEARCH
from shard_gym.experiments.results import MeanInterval, Result, Results
from shard_gym.experiments.runs import ERROR_KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LINE = "#1F2933", "#66727F", "#D5DBE1"
# Okabe and Ito's colours, which colour-blind readers tell apart; each also has a marker of its own.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E6A100", "#56B4E9", "#1F2933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SIZE = 12.0
"""Font size in points; a page shows the figures at about half their size."""


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure in inches with `columns` axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    panels = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for axes in panels:
        axes.tick_params(labelsize=SIZE, colors=INK)
        axes.grid(color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    return figure, panels


def _style(position: int, *, trained: bool = True) -> dict[str, Any]:
    """Colour and marker of the method at that position; those that do not learn are hollow and grey."""
    marker = MARKERS[position % len(MARKERS)]
    if trained:
        return {"color": COLORS[position % len(COLORS)], "marker": marker}
    return {"color": GREY, "marker": marker, "markerfacecolor": "white"}


def _percent(change: MeanInterval) -> tuple[float, float]:
    """Mean and half width in percent; a half width of 0 for a single seed."""
    return 100 * change.mean, 100 * (change.half_width or 0.0)


def draw_suites(results: Results, found: Sequence[Result]) -> Figure | None:
    """Cost against local search: a row for each suite, a mark for each method."""
    changes: dict[str, dict[str, tuple[float, float]]] = {}
    learning = []
    for result in found:
        method, suite, reference = result.setting.method, result.setting.test, results.local_search(result.setting.test)
        if reference is not None and method not in (LOCAL_SEARCH, "random"):
            changes.setdefault(method, {})[suite] = _percent(result.change(reference))
            learning += [method] if result.trained else []
    if not changes:
        return None
    suites = list(dict.fromkeys(suite for by_suite in changes.values() for suite in by_suite))
    figure, (axes,) = _figure(12.0, 1.6 + 0.5 * len(suites))
    positions = {False: 0, True: 0}
    for method, by_suite in changes.items():
        trained = method in learning
        means, half_widths = zip(*by_suite.values(), strict=True)
        axes.errorbar(
            means,
            [suites.index(suite) for suite in by_suite],
            xerr=half_widths,
            linestyle="none",
            markersize=9,
            label=method,
            **_style(positions[trained], trained=trained),
        )
        positions[trained] += 1
    axes.axvline(0.0, color=INK, linewidth=1.2)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
    ends = [mean + side * half for each in changes.values() for mean, half in each.values() for side in (-1, 1)]
    low, high = 1.3 * min(*ends, 0.0) - 0.2, 1.3 * max(*ends, 0.0) + 0.2
    axes.set_xlim(low, high)
    steps = (1, 3, 10, 30, 100, 300, 1000)  # equal distances on this axis
    axes.set_xticks([tick for tick in (*(-step for step in steps), 0, *steps) if low <= tick <= high])
    axes.minorticks_off()
    axes.set_yticks(range(len(suites)), suites)
    axes.set_ylim(len(suites) - 0.5, -0.5)
    axes.set_xlabel("cost against local search under the cost model (left is better)", fontsize=SIZE, color=INK)
    figure.legend(loc="outside right upper", fontsize=SIZE - 1, frameon=False)
    return figure


def draw_budget(results: Results, found: Sequence[Result]) -> Figure | None:
    """Error of the surrogate, and cost of the placements, against evaluations in training, on the first suite."""
    varied = [result for result in found if result.setting.measurements]
    if not varied:
        return None
    suite = varied[0].setting.test
    varied = [result for result in varied if result.setting.test == suite]
    figure, (left, right) = _figure(13.0, 5.2, 2)
    for position, method in enumerate(dict.fromkeys(result.setting.method for result in varied)):
        same = [result for result in varied if result.setting.method == method]
        evaluations, style = [result.training_evaluations for result in same], _style(position)
        for kind, line in zip(ERROR_KINDS, ("-", "--", ":"), strict=True):
            errors = [result.surrogate_error(kind) for result in same]
            heights = [np.nan if error is None else 100 * error.mean for error in errors]
            left.plot(
                evaluations, heights, linestyle=line, linewidth=2, markersize=7, label=f"{method}, {kind}", **style
            )
        costs = [MeanInterval.of(result.costs_ms) for result in same]
        means, half_widths = [cost.mean for cost in costs], [cost.half_width or 0.0 for cost in costs]
        right.errorbar(evaluations, means, half_widths, linewidth=2, markersize=8, capsize=3, label=method, **style)
    for reference, words, line in (
        (results.strongest_heuristic(suite), "strongest heuristic", "--"),
        (results.local_search(suite), "local search under the cost model", ":"),
    ):
        if reference is not None:
            right.axhline(reference.mean_ms, color=GREY, linewidth=1.5, linestyle=line, label=words)
    for axes, words in ((left, "error of the surrogate, %"), (right, "cost of the placements, ms")):
        axes.set_xscale("log")
        axes.set_xticks(sorted({result.training_evaluations for result in varied}))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", rotation=45)
        axes.minorticks_off()
        axes.set_xlabel("evaluations of the cost model in training", fontsize=SIZE, color=INK)
        axes.set_title(f"{words} ({suite})", fontsize=SIZE + 1, color=INK, loc="left", weight="bold")
        axes.legend(fontsize=SIZE - 2, facecolor="white", edgecolor="white", framealpha=1.0, handlelength=3.5)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    left.tick_params(axis="y", which="minor", labelsize=SIZE)
    return figure


FIGURES: dict[str, Callable[[Results, Sequence[Result]], Figure | None]] = {
    "suites": draw_suites,
    "budget": draw_budget,
}
"""The figure of each section that has one."""
