"""The figure of a study: every method on every suite. Needs matplotlib, which is imported when it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shard_gym.experiments.methods import LOCAL_SEARCH
from shard_gym.experiments.results import MeanInterval, Result, Results
from shard_gym.io.pictures import COLORS, GREY, INK, LINE, SIZE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def _style(position: int, *, trained: bool) -> dict[str, Any]:
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
    from matplotlib.figure import Figure

    suites = list(dict.fromkeys(suite for by_suite in changes.values() for suite in by_suite))
    figure = Figure(figsize=(12.0, 1.6 + 0.5 * len(suites)), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=SIZE, colors=INK)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
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
