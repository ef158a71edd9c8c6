"""Episodes of replanning as a matplotlib figure, and as an array of pixels. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, require_matplotlib
from shard_gym.common.text import counted, format_percent
from shard_gym.replanning.drift.tasks import DAYS, DriftTask
from shard_gym.replanning.env.history import NO_PLAN, History
from shard_gym.replanning.env.windows import HOURS, KINDS, WINDOWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("v", "o", "s", "^")  # the markers of plans, by window

WIDTH, ROW, MARGIN = 11.0, 1.55, 1.0


def draw(task: DriftTask, histories: Mapping[str, History]) -> Figure:
    """One row for each history, by name: the cost of an iteration in each hour, and the plans that were made.

    The grey line in every row is the last history, so the oracle should be the last.
    """
    require_matplotlib()
    from matplotlib.lines import Line2D

    from shard_gym.common.io.figures import NotebookFigure

    rows, last = len(histories), list(histories.values())[-1]
    figure = NotebookFigure(figsize=(WIDTH, ROW * rows + MARGIN), dpi=100, facecolor="white", layout="constrained")
    grid: Any = figure.subplots(rows, 1, sharex=True, sharey=True, squeeze=False)
    for axes, (name, history) in zip(grid[:, 0], histories.items(), strict=True):
        if rows > 1:
            axes.plot(_days(last), last.hourly_ms, color=LINE, linewidth=1.6)
        _row(axes, name, history, last if rows > 1 else None)
    grid[-1, 0].set_xlabel("day of the episode", color=GREY)
    figure.supylabel("ms of an iteration" + (", mean of each hour" if rows > 1 else ""), color=GREY, fontsize=10)
    keys = [
        Line2D([], [], marker=marker, color=color, linestyle="", label=f"plan for the {window.name.split(',')[0]}")
        for window, marker, color in zip(WINDOWS, MARKERS, COLORS, strict=False)
    ]
    keys.append(Line2D([], [], marker="o", color=INK, fillstyle="none", markersize=11, linestyle="", label="repair"))
    if rows > 1:
        keys.append(Line2D([], [], color=LINE, linewidth=1.6, label=list(histories)[-1]))
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)
    figure.suptitle(f"{task.name}, {task.pause_s:g} s for a plan", x=0.01, ha="left", fontsize=11, color=INK)
    return figure


def _row(axes: Axes, name: str, history: History, best: History | None) -> None:
    days, costs = _days(history), history.hourly_ms
    axes.plot(days, costs, color=INK, linewidth=1.1)
    for window, (marker, color) in enumerate(zip(MARKERS, COLORS, strict=False)):
        kinds = [number for number, kind in enumerate(KINDS) if kind.window == window]
        made = np.isin(history.kinds, kinds)
        axes.plot(days[made], costs[made], linestyle="", marker=marker, color=color, markersize=6)
    axes.plot(
        days[history.repairs],
        costs[history.repairs],
        linestyle="",
        marker="o",
        color=INK,
        fillstyle="none",
        markersize=11,
    )
    axes.set_xlim(0, DAYS)
    axes.set_xticks(range(0, DAYS + 1))
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.tick_params(colors=GREY, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    total = history.seconds.sum()
    words = counted(int((history.kinds != NO_PLAN).sum()), "plan")
    if best is not None and best is not history and len(days):
        words += f", {format_percent(float(total / best.seconds.sum() - 1.0))} longer"
    axes.text(1.01, 0.62, name, transform=axes.transAxes, fontsize=10, weight="bold", color=INK, va="bottom")
    axes.text(1.01, 0.52, words, transform=axes.transAxes, fontsize=9, color=GREY, va="top")


def render_rgb(task: DriftTask, history: History, *, failed: bool = False) -> NDArray[np.uint8]:
    """(H, W, 3) uint8, the picture of one episode; its size is always the same."""
    figure = draw(task, {"failed" if failed else "this episode": history})
    from shard_gym.envs.placement.rendering.canvas import to_pixels  # needs matplotlib

    return to_pixels(figure)


def _days(history: History) -> NDArray[np.float64]:
    return np.arange(len(history.hourly_ms)) / HOURS
