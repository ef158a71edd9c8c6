"""A placement as a matplotlib figure, two or more side by side, and as an array of pixels. Needs matplotlib.

Figures use neither pyplot nor any other global state of matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.placement.rendering.canvas import (
    ALERT,
    GREY,
    INK,
    LINE,
    SLATE,
    TRACK,
    Canvas,
    blend,
    format_like,
    horizon_of,
    spread,
    ticks_of,
    to_pixels,
)
from shard_gym.envs.placement.rendering.view import MAX_ROWS, PlacementView, shorten
from shard_gym.errors import InvalidPlacementError
from shard_gym.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart: compute is dark, communication light; forward is
# cold, backward warm.
PHASE_COLORS = ("#0072B2", "#56B4E9", "#E6A100", "#D55E00")
PHASE_LABELS = ("forward", "forward all-to-all", "backward all-to-all", "backward")
NARROW_LABELS = ("forward", "forward\nall-to-all", "backward\nall-to-all", "backward")
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 2.5}
PALE = 0.80
"""How far the colour of a waiting device is blended into white."""

WIDTH, MARGIN, PANEL_WIDTH, PANEL_GAP = 12.0, 0.45, 5.6, 0.5


@dataclass(frozen=True)
class _Rows:
    """The rows of the chart, one for each device shown; the last may be the mean of the devices left out.

    Attributes:
        labels: R names.
        tables: R counts of tables, as text.
        phases_ms: (R, 4) float64, ms.
        slowest: (R, 4) bool.
        used: (R,) float64, bytes.
        caps: (R,) float64, bytes.
    """

    labels: list[str]
    tables: list[str]
    phases_ms: FloatArray
    slowest: NDArray[np.bool_]
    used: FloatArray
    caps: FloatArray

    @staticmethod
    def of(view: PlacementView, rest: str) -> _Rows:
        """The rows of `view`; `rest` is the name of the mean of the devices left out."""
        shown = view.most_loaded()
        others = np.setdiff1d(np.arange(view.task.num_devices), shown)
        labels, counts = [str(device) for device in shown], [str(n) for n in view.tables_per_device[shown]]
        if others.size:
            labels.append(rest)
            counts.append(f"{view.tables_per_device[others].mean():.1f}")

        def rows(column: NDArray[np.generic]) -> FloatArray:
            means = column[others].mean(axis=0, keepdims=True) if others.size else column[:0]
            return np.concatenate([column[shown], means]).astype(np.float64)

        phases_ms, slowest = rows(np.maximum(view.phases_ms, 0.0)), rows(view.slowest) == 1.0
        return _Rows(
            labels, counts, phases_ms, slowest, rows(view.memory_used), rows(view.task.topology.memory_cap_bytes)
        )


@dataclass(frozen=True)
class _Panel:
    """Where one placement is drawn, in inches, and how much time its axis holds.

    Attributes:
        left: edge of the column of device numbers.
        top: upper edge of the first device's row.
        right: edge of the column of memory numbers.
        row: height of a row.
        horizon_ms: end of the time axis, ms.
        compact: the panel is narrow: it leaves out some labels.
    """

    left: float
    top: float
    right: float
    row: float
    horizon_ms: float
    compact: bool = False

    @property
    def time_left(self) -> float:
        """The x of time 0."""
        return self.left + (1.1 if self.compact else 1.45)

    @property
    def time_right(self) -> float:
        """The x of the horizon."""
        return self.right - (1.35 if self.compact else 2.75)

    def number(self, ms: float) -> str:
        """`ms` with as many decimals as all other times of the panel."""
        return format_like(ms, self.horizon_ms)

    def x(self, ms: float) -> float:
        """The x of the time `ms`."""
        return self.time_left + ms / self.horizon_ms * (self.time_right - self.time_left)


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
    panel = _Panel(MARGIN, 1.92, WIDTH - MARGIN, row, horizon_of(float(view.spans_ms.sum())))
    room = _cost(canvas, view, panel, 17) - 0.3
    canvas.text(MARGIN, 0.50, _fit(canvas, title or view.task.name, room, 14, "bold"), 14, weight="bold")
    lines = [f"{_what(view)}, batch of {view.task.tables.workload.batch_size:,}", _explanation(view)]
    if view.failure:
        lines = wrap(f"Failed: {shorten(view.failure, 1000)}", 150, max_lines=2, placeholder="...")
    for index, line in enumerate(lines):
        canvas.text(MARGIN, 0.80 + 0.20 * index, line, 9.5, ALERT if view.failure else GREY)
    bottom = _chart(canvas, view, panel)
    _unplaced_strip(canvas, view, MARGIN, bottom + 0.45, panel.right)
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
    width = 2 * MARGIN + len(views) * PANEL_WIDTH + (len(views) - 1) * PANEL_GAP
    canvas = Canvas(width, 2.95 + count * row)
    horizon = 1.02 * max(float(view.spans_ms.sum()) for _, view in views) or 1.0
    best, best_ms = min(((name, view.cost_ms) for name, view in views), key=lambda pair: pair[1])
    best = _fit(canvas, best, 1.3, 9)
    for index, (name, view) in enumerate(views):
        left = MARGIN + index * (PANEL_WIDTH + PANEL_GAP)
        panel = _Panel(left, 1.77, left + PANEL_WIDTH, row, horizon, compact=True)
        what = _fit(canvas, f"{shorten(view.task.name, 30)}: {_what(view)}", PANEL_WIDTH, 8.5)
        canvas.text(left, 0.76, what, 8.5, GREY)
        worse = complete and view.cost_ms > best_ms
        room = _cost(canvas, view, panel, 15, f"{view.cost_ms / best_ms:.2f} times {best}" if worse else "") - 0.2
        canvas.text(left, 0.50, _fit(canvas, name, room, 13, "bold"), 13, weight="bold")
        _chart(canvas, view, panel)
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


def _cost(canvas: Canvas, view: PlacementView, panel: _Panel, size: float, factor: str = "") -> float:
    """Write the cost and, smaller, what it is; returns the inches left for the name.

    `factor` compares it with the cheapest of the placements.
    """
    number = format_like(view.cost_ms, max(panel.horizon_ms, view.cost_ms))
    width = canvas.text(panel.right, 0.50, f"{number} ms", size, weight="bold", ha="right")
    meaning = (
        "failed, so far"
        if view.failure
        else "so far"
        if view.unplaced.size
        else factor or "embedding part of an iteration"
    )
    x = panel.right - width - 0.10
    return x - canvas.text(x, 0.50, meaning, 9, ALERT if view.failure else GREY, ha="right") - panel.left


def _fit(canvas: Canvas, name: str, room: float, size: float, weight: str = "normal") -> str:
    """`name`, shortened to `room` inches."""
    letters = len(name)
    while letters > 12 and canvas.width_of(shorten(name, letters), size, weight) > room:
        letters = max(12, int(letters * min(0.97, room / canvas.width_of(shorten(name, letters), size, weight))))
    return shorten(name, letters)


def _chart(canvas: Canvas, view: PlacementView, panel: _Panel) -> float:
    """Draw the rows of all devices, their headings and the time axis; returns the y of its lower end."""
    rows = _Rows.of(view, "rest, mean" if panel.compact else "mean of the rest")
    bottom = panel.top + len(rows.labels) * panel.row
    heading = panel.top - 0.16
    canvas.text(panel.left, heading, "device", 8, GREY)
    canvas.text(panel.time_left - 0.14, heading, "tables", 8, GREY, ha="right")
    _time_axis(canvas, view, panel, bottom)
    _phase_headings(canvas, view, panel)
    for index, label in enumerate(rows.labels):
        baseline = panel.top + (index + 0.5) * panel.row + 0.045
        canvas.text(panel.left, baseline, label, 7.5 if len(label) > 4 else 9)
        canvas.text(panel.time_left - 0.14, baseline, rows.tables[index], 9, GREY, ha="right")
        _device_bars(canvas, view, panel, rows, index)
    _memory(canvas, view, panel, rows)
    return bottom + 0.52


def _time_axis(canvas: Canvas, view: PlacementView, panel: _Panel, bottom: float) -> None:
    """Grid, tick labels in ms and, below them, the total as a dimension line."""
    total = float(view.spans_ms.sum())
    if total == 0:
        middle = (panel.time_left + panel.time_right) / 2
        canvas.text(middle, (panel.top + bottom) / 2 + 0.05, "nothing is placed yet", 10, GREY, ha="center", bbox=WHITE)
        return
    for tick in ticks_of(panel.horizon_ms, 5 if panel.compact else 8):
        canvas.line([panel.x(tick)] * 2, [panel.top, bottom + 0.04])
        canvas.text(panel.x(tick), bottom + 0.18, f"{tick:,.10g}", 8, GREY, ha="center")
    canvas.text(panel.time_left - 0.14, bottom + 0.18, "time, ms", 8, GREY, ha="right")
    start, end, y = panel.x(0), panel.x(total), bottom + 0.37
    canvas.line([end, end], [panel.top - 0.05, bottom + 0.04], INK, 1.2, zorder=5)
    canvas.line([start, end], [y, y], INK, 0.9)
    for x in (start, end):
        canvas.line([x, x], [y - 0.05, y + 0.05], INK, 0.9)
    words = f"{panel.number(total)} ms"
    if not panel.compact:
        words = " + ".join(panel.number(float(span)) for span in view.spans_ms) + f" = {words}"
    if canvas.width_of(words, 8.5) + 0.3 <= end - start:
        canvas.text((start + end) / 2, y + 0.042, words, 8.5, ha="center", bbox=WHITE)
    else:
        canvas.text(end + 0.10, y + 0.042, words, 8.5)


def _phase_headings(canvas: Canvas, view: PlacementView, panel: _Panel) -> None:
    """Above each phase a bracket in its colour, with name, ms and slowest device; labels never overlap."""
    spans = view.spans_ms
    if spans.sum() == 0:
        return
    ends = np.cumsum(spans)
    names = [label.split("\n") for label in (NARROW_LABELS if panel.compact else PHASE_LABELS)]
    lines = [f"{panel.number(float(span))} ms" for span in spans]
    if not panel.compact:
        lines = [line + _who(view, phase) for phase, line in enumerate(lines)]
    widths = [
        max(canvas.width_of(line, 8.5), *(canvas.width_of(part, 8.5, "bold") for part in name))
        for name, line in zip(names, lines, strict=True)
    ]
    wanted = np.array([panel.x(float(end - span / 2)) for end, span in zip(ends, spans, strict=True)])
    centers = spread(wanted, np.array(widths), panel.x(0) - 0.05, panel.time_right + 0.25, gap=0.14)
    for phase, (center, middle) in enumerate(zip(centers, wanted, strict=True)):
        left, right = panel.x(float(ends[phase] - spans[phase])), panel.x(float(ends[phase]))
        canvas.rect(left, panel.top - 0.10, right - left - 0.015, 0.055, PHASE_COLORS[phase])
        canvas.line([middle, center], [panel.top - 0.10, panel.top - 0.20], PHASE_COLORS[phase], 1.0)
        for above, part in enumerate(reversed(names[phase])):
            canvas.text(center, panel.top - 0.40 - 0.15 * above, part, 8.5, weight="bold", ha="center")
        canvas.text(center, panel.top - 0.25, lines[phase], 8.5, GREY, ha="center")


def _who(view: PlacementView, phase: int) -> str:
    """The slowest device of `phase`."""
    slowest = np.flatnonzero(view.slowest[:, phase])
    if slowest.size == 1:
        return f", device {slowest[0]}"
    return ", all" if slowest.size == view.task.num_devices else ""


def _device_bars(canvas: Canvas, view: PlacementView, panel: _Panel, rows: _Rows, index: int) -> None:
    """One device's four phases: solid while it works, pale while it waits, outlined where it is the slowest."""
    height = panel.row * 0.72
    y = panel.top + index * panel.row + (panel.row - height) / 2
    if not view.spans_ms.any():
        canvas.rect(panel.time_left, y, panel.time_right - panel.time_left, height, TRACK)
    start = 0.0
    for phase, span in enumerate(view.spans_ms):
        left, right = panel.x(start), panel.x(start + float(span))
        busy = panel.x(start + float(rows.phases_ms[index, phase]))
        canvas.rect(left, y, right - left, height, blend(PHASE_COLORS[phase], PALE))
        canvas.rect(left, y, busy - left, height, PHASE_COLORS[phase])
        if rows.slowest[index, phase]:
            canvas.rect(left, y, right - left, height, PHASE_COLORS[phase], edge=INK)
        start += float(span)


def _memory(canvas: Canvas, view: PlacementView, panel: _Panel, rows: _Rows) -> None:
    """Bytes in use against the cap of each device, and both as numbers (in a narrow panel their share)."""
    unit, unit_bytes = view.memory_unit()
    left = panel.time_right + 0.35
    width = panel.right - left - (0.45 if panel.compact else 1.15)
    heading = panel.top - 0.16
    canvas.text(left, heading, "memory", 8, GREY)
    canvas.text(panel.right, heading, "of cap" if panel.compact else f"used / cap, {unit}", 8, GREY, ha="right")
    scale = width / float(max(rows.caps.max(), rows.used.max()))
    height = panel.row * 0.40
    for index, (used, cap) in enumerate(zip(rows.used, rows.caps, strict=True)):
        middle = panel.top + (index + 0.5) * panel.row
        canvas.rect(left, middle - height / 2, cap * scale, height, LINE)
        canvas.rect(left, middle - height / 2, used * scale, height, ALERT if used > cap else SLATE)
        numbers = f"{used / cap:.0%}" if panel.compact else f"{used / unit_bytes:.2f} / {cap / unit_bytes:.2f}"
        canvas.text(panel.right, middle + 0.045, numbers, 8.5, ha="right")


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
