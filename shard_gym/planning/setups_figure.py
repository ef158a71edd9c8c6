"""Lines over the number of devices, one for each hardware, in panels side by side. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shard_gym.common.io.pictures import COLORS, GREY, INK, LINE, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
APART = 0.05  # shares of a number of devices between crosses of several hardware

Lines = Mapping[str, Sequence[tuple[int, float | None]]]
"""By hardware its numbers of devices, each with a value, or None if the tables do not fit."""


def draw(panels: Mapping[str, Lines]) -> Figure:
    """A panel for each label of a vertical axis; crosses where tables do not fit.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.ticker import FixedLocator, NullLocator

    from shard_gym.common.io.figures import NotebookFigure

    figure = NotebookFigure(figsize=(12.0, 4.2), facecolor="white", layout="constrained")
    for axes, (label, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        counts = sorted({count for points in lines.values() for count, _ in points})
        axes.set_ylabel(label, color=INK)
        axes.set_xlabel("devices", color=INK)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{count:,}" for count in counts])
        _lines(axes, lines)
        axes.margins(x=0.1)
        axes.set_ylim(bottom=0)
        axes.tick_params(colors=INK)
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=min(len(labels), 5), frameon=False)
    return figure


def _lines(axes: Any, lines: Lines) -> None:
    crosses = []
    for number, (name, points) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        fits = sorted((count, value) for count, value in points if value is not None)
        axes.plot(
            [count for count, _ in fits],
            [value for _, value in fits],
            marker=MARKERS[number % len(MARKERS)],
            color=color,
            label=name,
        )
        shift = 1 + APART * (number - (len(lines) - 1) / 2)
        crosses += [(count * shift, color) for count, value in points if value is None]
    for place, color in crosses:
        axes.plot(place, 0.0, "x", color=color, markersize=8, clip_on=False)
    if crosses:
        axes.plot([], [], "x", color=GREY, label="does not fit")
