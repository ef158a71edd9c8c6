"""The pictures of the experiments. Needs matplotlib, which is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.experiments.answers import Answer, Answers
from shard_gym.experiments.estimates import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LINE = "#1F2933", "#66727F", "#D5DBE1"
# Okabe and Ito's colours, which colour-blind readers tell apart; the markers say the same again.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E6A100", "#56B4E9", "#1F2933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SIZE = 12.0
"""Points of letters: a page shows the pictures at about half their size."""


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure in inches with that many axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for each in axes:
        each.tick_params(labelsize=SIZE, colors=INK)
        each.grid(color=LINE, linewidth=0.8)
        each.set_axisbelow(True)
        for side in each.spines.values():
            side.set_visible(False)
    return figure, axes


def _look(position: int, answer: Answer) -> dict[str, Any]:
    """Colour and marker of the learned method at that position; those that do not learn are hollow and grey."""
    if not answer.trained:
        return {"color": GREY, "marker": MARKERS[position % len(MARKERS)], "markerfacecolor": "white"}
    return {"color": COLORS[position % len(COLORS)], "marker": MARKERS[position % len(MARKERS)]}


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def draw_suites(answers: Answers, found: Sequence[Answer]) -> Figure | None:
    """Change against local search: a row for each suite, a mark for each method."""
    shown = [answer for answer in found if answers.local_search(answer.cell.test) and answer.cell.method != "random"]
    shown = [answer for answer in shown if answer.cell.method != "local-search"]
    if not shown:
        return None
    suites = _unique(answer.cell.test for answer in shown)
    figure, (axes,) = _figure(12.0, 1.6 + 0.5 * len(suites))
    positions = {False: 0, True: 0}
    for method in _unique(answer.cell.method for answer in shown):
        same = [answer for answer in shown if answer.cell.method == method]
        look = _look(positions[same[0].trained], same[0])
        positions[same[0].trained] += 1
        changes = [answer.change(_known(answers.local_search(answer.cell.test))) for answer in same]
        axes.errorbar(
            [100 * change.mean for change in changes],
            [suites.index(answer.cell.test) for answer in same],
            xerr=[100 * (change.half or 0.0) for change in changes],
            linestyle="none",
            markersize=9,
            label=method,
            **look,
        )
    axes.axvline(0.0, color=INK, linewidth=1.2)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
    ends = [
        100 * (change.mean + side * (change.half or 0.0))
        for answer in shown
        for change in [answer.change(_known(answers.local_search(answer.cell.test)))]
        for side in (-1, 1)
    ]
    low, high = 1.3 * min(*ends, 0.0) - 0.2, 1.3 * max(*ends, 0.0) + 0.2
    axes.set_xlim(low, high)
    steps = (1, 3, 10, 30, 100, 300, 1000)  # evenly apart on this axis
    axes.set_xticks([tick for tick in (*(-step for step in steps), 0, *steps) if low <= tick <= high])
    axes.minorticks_off()
    axes.set_yticks(range(len(suites)), suites)
    axes.set_ylim(len(suites) - 0.5, -0.5)
    axes.set_xlabel("cost against local search under the true cost (left is better)", fontsize=SIZE, color=INK)
    figure.legend(loc="outside right upper", fontsize=SIZE - 1, frameon=False)
    return figure


def _known(answer: Answer | None) -> Answer:
    assert answer is not None
    return answer


def draw_transfer(answers: Answers, found: Sequence[Answer]) -> Figure | None:
    """Change against the method trained where it places: trained on (rows) by tested on (columns)."""
    learned = [answer for answer in found if answer.trained]
    methods = _unique(answer.cell.method for answer in learned)
    if not methods:
        return None
    suites = _unique(answer.cell.test for answer in learned)
    sources = _unique(answer.cell.trained_on for answer in learned)
    figure, panels = _figure(7.0 * len(methods), 2.2 + 0.62 * len(sources), len(methods))
    grids = [_transfer_grid(learned, method, sources, suites) for method in methods]
    largest = max(np.nanmax(np.abs(grid), initial=1.0) for grid in grids)
    for axes, method, grid in zip(panels, methods, grids, strict=True):
        axes.grid(visible=False)
        image = axes.imshow(grid, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
        for row, column in zip(*np.nonzero(~np.isnan(grid)), strict=True):
            value = grid[row, column]
            shade = "white" if abs(value) > 0.6 * largest else INK
            axes.text(
                column, row, f"{round(value, 1) + 0.0:+.1f}", ha="center", va="center", fontsize=SIZE, color=shade
            )
        axes.set_xticks(range(len(suites)), suites, rotation=30, ha="right")
        axes.set_yticks(range(len(sources)), sources)
        axes.set_xlabel("placing", fontsize=SIZE, color=INK)
        axes.set_ylabel("trained on", fontsize=SIZE, color=INK)
        axes.set_title(method, fontsize=SIZE + 2, color=INK, loc="left", weight="bold")
    bar = figure.colorbar(image, ax=panels, shrink=0.9)
    bar.set_label("% cost against training there", fontsize=SIZE, color=INK)
    bar.ax.tick_params(labelsize=SIZE)
    return figure


def _transfer_grid(learned: Sequence[Answer], method: str, sources: list[str], suites: list[str]) -> np.ndarray:
    """(sources, suites) float64, percent; NaN where a run is missing."""
    answers = {(each.cell.trained_on, each.cell.test): each for each in learned if each.cell.method == method}
    grid = np.full((len(sources), len(suites)), np.nan)
    for (source, test), answer in answers.items():
        if (test, test) in answers:
            grid[sources.index(source), suites.index(test)] = 100 * answer.change(answers[test, test]).mean
    return grid


def draw_budget(answers: Answers, found: Sequence[Answer]) -> Figure | None:
    """Error of the estimate, and cost of the placements, against the true costs asked for, on the first suite."""
    varied = [answer for answer in found if answer.cell.measurements]
    if not varied:
        return None
    suite = varied[0].cell.test
    varied = [answer for answer in varied if answer.cell.test == suite]
    figure, (left, right) = _figure(13.0, 5.2, 2)
    styles = dict(zip(KINDS, ("-", "--", ":"), strict=True))
    for position, method in enumerate(_unique(answer.cell.method for answer in varied)):
        same = [answer for answer in varied if answer.cell.method == method]
        asked, look = np.array([answer.training_queries for answer in same]), _look(position, same[0])
        for kind, style in styles.items():
            errors = [answer.error(kind) for answer in same]
            heights = [np.nan if error is None else 100 * error.mean for error in errors]
            left.plot(asked, heights, linestyle=style, linewidth=2, markersize=7, label=f"{method}, {kind}", **look)
        halves = [answer.change(same[0]).half or 0.0 for answer in same]
        reach = np.array(halves) * same[0].mean_ms
        costs = np.array([answer.mean_ms for answer in same])
        right.errorbar(asked, costs, reach, linewidth=2, markersize=8, capsize=3, label=method, **look)
    for reference, words, style in (
        (answers.strongest_heuristic(suite), "strongest heuristic", "--"),
        (answers.local_search(suite), "local search, true cost", ":"),
    ):
        if reference is not None:
            right.axhline(reference.mean_ms, color=GREY, linewidth=1.5, linestyle=style, label=words)
    for axes, words in ((left, "error of the estimate, %"), (right, "cost of the placements, ms")):
        axes.set_xscale("log")
        axes.set_xticks(sorted({answer.training_queries for answer in varied}))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", rotation=45)
        axes.minorticks_off()
        axes.set_xlabel("true costs asked for in training", fontsize=SIZE, color=INK)
        axes.set_title(f"{words} ({suite})", fontsize=SIZE + 1, color=INK, loc="left", weight="bold")
        axes.legend(fontsize=SIZE - 2, facecolor="white", edgecolor="white", framealpha=1.0, handlelength=3.5)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    left.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    left.tick_params(axis="y", which="minor", labelsize=SIZE)
    return figure


def draw_time(answers: Answers, found: Sequence[Answer]) -> Figure | None:
    """Seconds of training: a group of bars for each suite."""
    learned = [answer for answer in found if answer.trained]
    if not learned:
        return None
    suites, methods = (_unique(values) for values in zip(*((a.cell.test, a.cell.method) for a in learned), strict=True))
    figure, (axes,) = _figure(max(7.0, 2.5 + 1.0 * len(suites)), 5.0)
    width = 0.84 / len(methods)
    for position, method in enumerate(methods):
        same = [answer for answer in learned if answer.cell.method == method]
        places = np.array([suites.index(answer.cell.test) for answer in same])
        axes.bar(
            places + (position - (len(methods) - 1) / 2) * width,
            [answer.training_seconds for answer in same],
            width,
            color=COLORS[position % len(COLORS)],
            edgecolor="white",
            label=method,
        )
    axes.grid(visible=False, axis="x")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("seconds of training", fontsize=SIZE, color=INK)
    axes.set_xticks(range(len(suites)), suites, rotation=30, ha="right")
    figure.legend(loc="outside upper left", ncols=min(4, len(methods)), fontsize=SIZE, frameon=False)
    return figure


FIGURES: dict[str, Callable[[Answers, Sequence[Answer]], Figure | None]] = {
    "suites": draw_suites,
    "transfer": draw_transfer,
    "budget": draw_budget,
    "time": draw_time,
}
"""The picture of each part that has one."""
