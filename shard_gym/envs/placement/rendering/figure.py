"""A placement as a matplotlib figure, several side by side, and as an array of pixels. Needs matplotlib.

Figures use neither pyplot nor any other global state of matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shard_gym.envs.placement.rendering.canvas import (
    ALERT,
    GREY,
    INK,
    LINE,
    SLATE,
    Canvas,
    blend,
    format_like,
    horizon_of,
    to_pixels,
)
from shard_gym.envs.placement.rendering.chart import PALE, PHASE_COLORS, Chart
from shard_gym.envs.placement.rendering.view import MAX_ROWS, PlacementView, shorten
from shard_gym.errors import InvalidPlacementError
from shard_gym.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MARGIN, CHART_WIDTH, CHART_GAP = 12.0, 0.45, 5.6, 0.5


def draw(view: PlacementView, *, title: str | None = None) -> Figure:
    """The placement as a `matplotlib.figure.Figure`.

    The four phases follow each other on one time axis, and each is as long as its slowest device takes: the width of
    the chart is the cost. Solid is work, pale is waiting. Of more than 16 devices the most loaded are drawn, and the
    mean of the others.

    Args:
        view: the placement.
        title: the headline; the task's name by default.
    """
    row = _row_height(view)
    canvas = Canvas(WIDTH, 3.62 + _row_count(view) * row)
    chart = Chart(canvas, view, MARGIN, 1.92, WIDTH - MARGIN, row, horizon_of(float(view.spans_ms.sum())))
    room = _cost(chart, 17) - 0.3
    canvas.text(MARGIN, 0.50, _fit(canvas, title or view.task.name, room, 14, "bold"), 14, weight="bold")
    lines = [f"{_what(view)}, batch of {view.task.tables.workload.batch_size:,}", _explanation(view)]
    if view.failure:
        lines = wrap(f"Failed: {shorten(view.failure, 1000)}", 150, max_lines=2, placeholder="...")
    for index, line in enumerate(lines):
        canvas.text(MARGIN, 0.80 + 0.20 * index, line, 9.5, ALERT if view.failure else GREY)
    _unplaced_strip(canvas, view, MARGIN, chart.draw() + 0.45, chart.right)
    _legend(canvas, MARGIN, canvas.height - 0.22)
    return canvas.figure


def draw_comparison(views: Sequence[tuple[str, PlacementView]]) -> Figure:
    """Placements side by side on one scale, each under its name; otherwise as `draw`.

    Raises:
        InvalidPlacementError: `views` is empty.
    """
    if not views:
        raise InvalidPlacementError("There is nothing to compare: pass at least one (name, view).")
    row = min(_row_height(view) for _, view in views)
    count = max(_row_count(view) for _, view in views)
    complete = not any(view.failure or view.unplaced.size for _, view in views)
    width = 2 * MARGIN + len(views) * CHART_WIDTH + (len(views) - 1) * CHART_GAP
    canvas = Canvas(width, 2.95 + count * row)
    horizon = 1.02 * max(float(view.spans_ms.sum()) for _, view in views) or 1.0
    best, best_ms = min(((name, view.cost_ms) for name, view in views), key=lambda pair: pair[1])
    best = _fit(canvas, best, 1.3, 9)
    for index, (name, view) in enumerate(views):
        left = MARGIN + index * (CHART_WIDTH + CHART_GAP)
        chart = Chart(canvas, view, left, 1.77, left + CHART_WIDTH, row, horizon, narrow=True)
        what = _fit(canvas, f"{shorten(view.task.name, 30)}: {_what(view)}", CHART_WIDTH, 8.5)
        canvas.text(left, 0.76, what, 8.5, GREY)
        worse = complete and view.cost_ms > best_ms
        room = _cost(chart, 15, f"{view.cost_ms / best_ms:.2f} times {best}" if worse else "") - 0.2
        canvas.text(left, 0.50, _fit(canvas, name, room, 13, "bold"), 13, weight="bold")
        chart.draw()
    _legend(canvas, MARGIN, canvas.height - 0.22)
    return canvas.figure


def render_rgb(view: PlacementView) -> NDArray[np.uint8]:
    """(H, W, 3) uint8, the pixels of `draw` in a new array.

    W is 1200, and H depends on the number of devices alone (both are even), so the frames of an episode make a video.
    """
    return to_pixels(draw(view))


def _row_count(view: PlacementView) -> int:
    """Rows of the chart: a device each, and one for all devices left out."""
    return min(view.task.num_devices, MAX_ROWS + 1)


def _row_height(view: PlacementView) -> float:
    """Inches for one device: less where there are many."""
    return 0.40 if view.task.num_devices <= 4 else 0.34 if view.task.num_devices <= 8 else 0.26


def _what(view: PlacementView) -> str:
    task = view.task
    return f"{counted(task.num_tables, 'table')} on {task.num_devices} x {shorten(task.topology.device.name, 32)}"


def _explanation(view: PlacementView) -> str:
    """How to read the chart. A learned model may predict a total that is not the sum of the phases."""
    how = "Each phase lasts as long as its slowest device takes; the others wait."
    total = float(view.spans_ms.sum())
    if abs(total - view.cost_ms) <= 0.005 * view.cost_ms:
        return f"{how} The cost is the width of the chart."
    number = format_like(view.cost_ms, max(total, view.cost_ms))
    return f"{how} The cost model puts the whole at {number} ms, which is not their sum."


def _cost(chart: Chart, size: float, factor: str = "") -> float:
    """Write the cost and, smaller, what it is; returns the inches left for the name.

    `factor` compares it with the cheapest of the placements.
    """
    number = format_like(chart.view.cost_ms, max(chart.horizon_ms, chart.view.cost_ms))
    width = chart.canvas.text(chart.right, 0.50, f"{number} ms", size, weight="bold", ha="right")
    meaning = (
        "failed, so far"
        if chart.view.failure
        else "so far"
        if chart.view.unplaced.size
        else factor or "embedding part of an iteration"
    )
    x = chart.right - width - 0.10
    return x - chart.canvas.text(x, 0.50, meaning, 9, ALERT if chart.view.failure else GREY, ha="right") - chart.left


def _fit(canvas: Canvas, name: str, room: float, size: float, weight: str = "normal") -> str:
    """`name`, shortened to `room` inches."""
    letters = len(name)
    while letters > 12 and canvas.width_of(shorten(name, letters), size, weight) > room:
        letters = max(12, int(letters * min(0.97, room / canvas.width_of(shorten(name, letters), size, weight))))
    return shorten(name, letters)


def _unplaced_strip(canvas: Canvas, view: PlacementView, left: float, y: float, right: float) -> None:
    """All bytes of the task in one strip: placed ones solid, then the tables without a device, largest first."""
    sizes = view.task.tables.memory_bytes
    scale = (right - left) / float(sizes.sum())
    canvas.text(left, y - 0.08, _fit(canvas, view.describe_unplaced(), right - left, 9), 9)
    x = mark = left + float(sizes[view.placement >= 0].sum()) * scale
    canvas.rect(left, y, x - left, 0.11, SLATE)
    for table in sorted(view.unplaced, key=lambda t: -int(sizes[t])):
        width = float(sizes[table]) * scale
        gap = 0.012 if width > 0.04 else 0.0
        canvas.rect(x + gap, y, width - gap, 0.11, LINE)
        if table == view.next_table:
            mark = x + gap
        x += width
    if view.next_table >= 0:
        width = max(0.03, float(sizes[view.next_table]) * scale - 0.012)
        canvas.rect(min(mark, right - width), y, width, 0.11, ALERT if view.failure else INK)


def _legend(canvas: Canvas, x: float, y: float) -> None:
    """How to read the bars, in one line."""
    blue = PHASE_COLORS[0]
    for color, edge, words in (
        (blue, None, "busy"),
        (blend(blue, PALE), None, "waiting for the slowest device"),
        (blue, INK, "slowest of its phase: all others wait for it"),
    ):
        canvas.rect(x, y - 0.10, 0.20, 0.12, color, edge=edge)
        x += 0.27 + canvas.text(x + 0.27, y, words, 8, GREY) + 0.28
