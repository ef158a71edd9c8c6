"""A placement as a matplotlib figure, several side by side, and as an array of pixels. Needs matplotlib.

Figures use neither pyplot nor any other global state of matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidPlacementError
from shard_gym.common.io.pictures import GREY, INK, LINE
from shard_gym.common.text import counted, format_mib
from shard_gym.envs.placement.rendering.canvas import (
    ALERT,
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MARGIN, CHART_WIDTH, CHART_GAP = 12.0, 0.45, 5.6, 0.5

# Okabe and Ito's colours, which colour-blind readers can tell apart: compute is dark, communication light; forward is
# cold, backward warm.
PHASE_COLORS = ("#0072B2", "#56B4E9", "#E6A100", "#D55E00")
PHASE_LABELS = (("forward",), ("forward", "all-to-all"), ("backward", "all-to-all"), ("backward",))
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 2.5}
PALE = 0.80  # how far the colour of a waiting device is blended into white

IN_HOST = "#D9C08F"  # sand, of bytes in host memory; lighter than the slate of those in HBM

SENT_COLUMN = 0.72  # inches of a column of bytes sent

SPLIT_ROW, SPLIT_BAR, SPLIT_GAP = 0.27, 3.6, 0.015
"""Inches of a split table: the height of its row, the width of its bar, and the gap between its shards."""


def draw(view: PlacementView, *, title: str | None = None, frame: bool = False) -> Figure:
    """The placement under its headline, by default the task's name, as a `matplotlib.figure.Figure`.

    The four phases follow each other on one time axis, and each is as long as its slowest device takes: the width of
    the chart is the cost. Solid is work, pale is waiting. Of more than 16 devices the most loaded are drawn, and the
    mean of the others. A frame has room for all tasks of the view's environment.
    """
    row, own = _row_height(view.task.num_devices), _rows_height(view.task.num_devices)
    splits = view.splits()
    split_rows = max(len(splits), view.split_rows)
    height = 3.62 + own + (0.25 + SPLIT_ROW * split_rows if split_rows else 0.0)
    others = range(min(view.frame_devices, MAX_ROWS + 1) + 1) if frame else ()
    canvas = Canvas(WIDTH, height + max([0.0, *(_rows_height(number) - own for number in others)]))
    chart = Chart(canvas, view, MARGIN, WIDTH - MARGIN, row, horizon_of(float(view.spans_ms.sum())))
    room = _cost(chart, 17) - 0.3
    canvas.text(MARGIN, 0.50, _fit(canvas, title or view.task.name, room, 14, "bold"), 14, weight="bold")
    lines = [f"{_what(view)}, batch of {view.task.tables.workload.batch_size:,}", _explanation(view)]
    if view.failure:
        lines = wrap(f"Failed: {shorten(view.failure, 1000)}", 150, max_lines=2, placeholder="...")
    for index, line in enumerate(lines):
        canvas.text(MARGIN, 0.80 + 0.20 * index, line, 9.5, ALERT if view.failure else GREY)
    below = chart.draw() + 0.45
    _unplaced_strip(canvas, view, MARGIN, below, chart.right)
    _split_tables(canvas, view, splits, MARGIN, below + 0.22)
    _legend(canvas, MARGIN, height - 0.22)
    return canvas.figure


def draw_comparison(views: Sequence[tuple[str, PlacementView]]) -> Figure:
    """Placements side by side on one scale, each under its name; otherwise as `draw`."""
    if not views:
        raise InvalidPlacementError("There is nothing to compare: pass at least one (name, view).")
    row = min(_row_height(view.task.num_devices) for _, view in views)
    count = max(_row_count(view.task.num_devices) for _, view in views)
    complete = not any(view.failure or view.unplaced.size for _, view in views)
    width = 2 * MARGIN + len(views) * CHART_WIDTH + (len(views) - 1) * CHART_GAP
    canvas = Canvas(width, 2.95 + count * row)
    horizon = 1.02 * max(float(view.spans_ms.sum()) for _, view in views) or 1.0
    best, best_ms = min(((name, view.cost_ms) for name, view in views), key=lambda pair: pair[1])
    best = _fit(canvas, best, 1.3, 9)
    for index, (name, view) in enumerate(views):
        left = MARGIN + index * (CHART_WIDTH + CHART_GAP)
        chart = Chart(canvas, view, left, left + CHART_WIDTH, row, horizon, narrow=True)
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

    W is 1200, and H depends on the environment alone (both are even), so the frames of all its episodes make one video.
    """
    return to_pixels(draw(view, frame=True))


def _row_count(num_devices: int) -> int:
    """Rows of the chart: a device each, and one for all devices left out."""
    return min(num_devices, MAX_ROWS + 1)


def _row_height(num_devices: int) -> float:
    """Inches for one device: less where there are many."""
    return 0.40 if num_devices <= 4 else 0.34 if num_devices <= 8 else 0.26


def _rows_height(num_devices: int) -> float:
    return _row_count(num_devices) * _row_height(num_devices)


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


def _split_tables(
    canvas: Canvas, view: PlacementView, splits: Sequence[tuple[int, str]], left: float, top: float
) -> None:
    """A bar for each table, cut in proportion to the cells of its shards; the number in a shard is its device.

    With host memory, the part of a shard that is in HBM is slate, and the rest sand.
    """
    if not splits:
        return
    away = view.task.topology.host is not None
    heading = "rows in HBM (slate) and in host memory (sand), of the tables with most bytes there; numbers are devices"
    canvas.text(left, top + 0.16, heading if away else "split tables: the device of each shard", 8, GREY)
    for index, (table, words) in enumerate(splits):
        y = top + 0.25 + SPLIT_ROW * index
        own = view.shardings[table].shards
        kept = view.hbm_rows.get(table, [shard.num_rows for shard in own])
        shards = sorted(zip(own, kept, strict=True), key=lambda s: (s[0].first_column, s[0].first_row, s[0].device))
        cells = sum(shard.num_rows * shard.num_columns for shard in own)
        x = left
        for shard, rows in shards:
            wide = SPLIT_BAR * shard.num_rows * shard.num_columns / cells
            drawn, share = max(wide - SPLIT_GAP, wide / 2), rows / shard.num_rows
            if share > 0:
                canvas.rect(x, y, drawn * share, 0.19, SLATE)
            if share < 1:
                canvas.rect(x + drawn * share, y, drawn * (1 - share), 0.19, IN_HOST)
            # The number is in the wider of both parts.
            start, width = (x, drawn * share) if share > 0.5 else (x + drawn * share, drawn * (1 - share))
            if width + SPLIT_GAP > canvas.width_of(str(shard.device), 8) + 0.06:
                color = "#FFFFFF" if share > 0.5 else INK
                canvas.text(start + width / 2, y + 0.135, str(shard.device), 8, color, ha="center")
            x += wide
        canvas.text(left + SPLIT_BAR + 0.2, y + 0.14, words, 8.5)


def _legend(canvas: Canvas, x: float, y: float) -> None:
    blue = PHASE_COLORS[0]
    for color, edge, words in (
        (blue, None, "busy"),
        (blend(blue, PALE), None, "waiting for the slowest device"),
        (blue, INK, "slowest of its phase: all others wait for it"),
    ):
        canvas.rect(x, y - 0.10, 0.20, 0.12, color, edge=edge)
        x += 0.27 + canvas.text(x + 0.27, y, words, 8, GREY) + 0.28


class Chart:
    """A row for each device of `view` between `left` and `right`, drawn by `draw`; coordinates are in inches."""

    def __init__(
        self,
        canvas: Canvas,
        view: PlacementView,
        left: float,
        right: float,
        row: float,
        horizon_ms: float,
        *,
        narrow: bool = False,
    ) -> None:
        self.canvas, self.view, self.narrow = canvas, view, narrow
        self.left, self.right, self.row, self.horizon_ms = left, right, row, horizon_ms
        self.top = 1.77 if narrow else 1.92  # upper edge of the first row
        self._time_left = left + (1.1 if narrow else 1.45)
        self._sent = 0 if narrow or view.task.num_devices == 1 else min(view.task.topology.num_domains, 2)  # columns
        self._memory_right = right - SENT_COLUMN * self._sent
        self._time_right = self._memory_right - (1.35 if narrow else 2.75 if self._sent < 2 else 2.45)
        self._spans: list[float] = view.spans_ms.tolist()
        self._shown = view.most_loaded()
        self._others = np.setdiff1d(np.arange(view.task.num_devices), self._shown)
        self._bottom = self.top + (len(self._shown) + bool(self._others.size)) * row

    def draw(self) -> float:
        """Draw rows, headings and the time axis; returns the y of the lower end."""
        if any(self._spans):
            self._time_axis()
            self._phase_headings()
        else:
            x, y = (self._time_left + self._time_right) / 2, (self.top + self._bottom) / 2 + 0.05
            self.canvas.text(x, y, "nothing is placed yet", 10, GREY, ha="center", bbox=WHITE)
        self._devices()
        self._memory()
        self._traffic()
        return self._bottom + 0.52

    def _x(self, ms: float) -> float:
        return self._time_left + ms / self.horizon_ms * (self._time_right - self._time_left)

    def _number(self, ms: float) -> str:
        return format_like(ms, self.horizon_ms)

    def _rows(self, column: NDArray[np.generic]) -> FloatArray:
        """(R, ...) float64, `column` (D, ...) of the devices shown, and its mean over the others if there are any."""
        means = column[self._others].mean(axis=0, keepdims=True) if self._others.size else column[:0]
        return np.concatenate([column[self._shown], means]).astype(np.float64)

    def _time_axis(self) -> None:
        """Grid, tick labels in ms and, below them, the total as a dimension line."""
        canvas, total, below = self.canvas, sum(self._spans), self._bottom + 0.18
        for tick in ticks_of(self.horizon_ms, 5 if self.narrow else 8):
            canvas.line([self._x(tick)] * 2, [self.top, self._bottom + 0.04])
            canvas.text(self._x(tick), below, f"{tick:,.10g}", 8, GREY, ha="center")
        canvas.text(self._time_left - 0.14, below, "time, ms", 8, GREY, ha="right")
        start, end, y = self._x(0), self._x(total), self._bottom + 0.37
        canvas.line([end, end], [self.top - 0.05, self._bottom + 0.04], INK, 1.2, zorder=5)
        canvas.line([start, end], [y, y], INK, 0.9)
        for x in (start, end):
            canvas.line([x, x], [y - 0.05, y + 0.05], INK, 0.9)
        words = f"{self._number(total)} ms"
        if not self.narrow:
            words = " + ".join(map(self._number, self._spans)) + f" = {words}"
        if canvas.width_of(words, 8.5) + 0.3 <= end - start:
            canvas.text((start + end) / 2, y + 0.042, words, 8.5, ha="center", bbox=WHITE)
        else:
            canvas.text(end + 0.10, y + 0.042, words, 8.5)

    def _phase_headings(self) -> None:
        """Above each phase a bracket in its colour, with name, ms and slowest device; labels never overlap."""
        canvas, top = self.canvas, self.top
        ends = np.cumsum(self._spans)
        names = [label if self.narrow else (" ".join(label),) for label in PHASE_LABELS]
        lines = [f"{self._number(span)} ms" for span in self._spans]
        if not self.narrow:
            lines = [line + self._slowest_in(phase) for phase, line in enumerate(lines)]
        widths = [
            max(canvas.width_of(line, 8.5), *(canvas.width_of(part, 8.5, "bold") for part in name))
            for name, line in zip(names, lines, strict=True)
        ]
        middles = np.array([self._x(end - span / 2) for end, span in zip(ends, self._spans, strict=True)])
        centers = spread(middles, np.array(widths), self._x(0) - 0.05, self._time_right + 0.25, gap=0.14)
        for phase, color in enumerate(PHASE_COLORS):
            left, right, center = self._x(ends[phase] - self._spans[phase]), self._x(ends[phase]), centers[phase]
            canvas.rect(left, top - 0.10, right - left - 0.015, 0.055, color)
            canvas.line([middles[phase], center], [top - 0.10, top - 0.20], color, 1.0)
            for above, part in enumerate(reversed(names[phase])):
                canvas.text(center, top - 0.40 - 0.15 * above, part, 8.5, weight="bold", ha="center")
            canvas.text(center, top - 0.25, lines[phase], 8.5, GREY, ha="center")

    def _slowest_in(self, phase: int) -> str:
        slowest = np.flatnonzero(self.view.slowest[:, phase])
        if slowest.size == 1:
            return f", device {slowest[0]}"
        return ", all" if slowest.size == self.view.task.num_devices else ""

    def _devices(self) -> None:
        """Draw the number of each device, of its tables, and its four phases."""
        canvas, heading, topology = self.canvas, self.top - 0.16, self.view.task.topology
        canvas.text(self.left, heading, "device", 8, GREY)
        canvas.text(self._time_left - 0.14, heading, self.view.unit, 8, GREY, ha="right")
        domains = [str(domain) for domain in topology.domains[self._shown]] if self._sent == 2 else []
        if domains:
            canvas.text(self.left + 0.68, heading, topology.fast_group, 8, GREY, ha="right")
            for last in np.flatnonzero(np.diff(topology.domains[self._shown])).tolist():
                canvas.line([self.left, self.right], [self.top + (last + 1) * self.row] * 2)
        labels, tables = [str(device) for device in self._shown], self._rows(self.view.tables_per_device)
        counts = [f"{count:.0f}" for count in tables]
        if self._others.size:
            labels.append("rest, mean" if self.narrow else "mean of the rest")
            counts[-1] = f"{tables[-1]:.1f}"
        phases_ms, slowest = self._rows(np.maximum(self.view.phases_ms, 0.0)), self._rows(self.view.slowest) == 1.0
        for index, (label, count) in enumerate(zip(labels, counts, strict=True)):
            baseline = self.top + (index + 0.5) * self.row + 0.045
            canvas.text(self.left, baseline, label, 7.5 if len(label) > 4 else 9)
            canvas.text(self._time_left - 0.14, baseline, count, 9, GREY, ha="right")
            for domain in domains[index : index + 1]:  # the mean of the rest has none
                canvas.text(self.left + 0.68, baseline, domain, 9, GREY, ha="right")
            self._bars(index, phases_ms[index].tolist(), slowest[index])

    def _bars(self, index: int, phases_ms: list[float], slowest: NDArray[np.bool_]) -> None:
        """The phases of one device: solid while it works, pale while it waits, outlined where it is the slowest."""
        height = self.row * 0.72
        y = self.top + index * self.row + (self.row - height) / 2
        if not any(self._spans):
            self.canvas.rect(self._time_left, y, self._time_right - self._time_left, height, TRACK)
        start = 0.0
        for span, ms, outlined, color in zip(self._spans, phases_ms, slowest, PHASE_COLORS, strict=True):
            left, right = self._x(start), self._x(start + span)
            self.canvas.rect(left, y, right - left, height, blend(color, PALE))
            self.canvas.rect(left, y, self._x(start + ms) - left, height, color)
            if outlined:
                self.canvas.rect(left, y, right - left, height, color, edge=INK)
            start += span

    def _memory(self) -> None:
        """Bytes in use against the cap of each device, and both as numbers (in a narrow chart their share)."""
        unit, unit_bytes = self.view.memory_unit()
        left, heading = self._time_right + 0.35, self.top - 0.16
        self.canvas.text(left, heading, "memory", 8, GREY)
        words = "of cap" if self.narrow else f"used / cap, {unit}"
        if self.view.task.topology.host is not None and not self.narrow:
            self.canvas.text(self._memory_right, heading - 0.15, "HBM | host memory", 8, GREY, ha="right")
        self.canvas.text(self._memory_right, heading, words, 8, GREY, ha="right")
        all_used, caps = self._rows(self.view.memory_used), self._rows(self.view.memory_cap_bytes)
        scale = (self._memory_right - left - (0.45 if self.narrow else 1.15)) / max(caps.max(), all_used.max())
        height = self.row * 0.40
        host, in_host = self.view.task.topology.host, self._rows(self.view.host_memory_used)
        for index, (used, cap, away) in enumerate(zip(all_used.tolist(), caps.tolist(), in_host.tolist(), strict=True)):
            middle = self.top + (index + 0.5) * self.row
            self.canvas.rect(left, middle - height / 2, cap * scale, height, LINE)
            self.canvas.rect(left, middle - height / 2, (used - away) * scale, height, ALERT if used > cap else SLATE)
            if host is not None:  # a mark where the HBM ends; what is in host memory begins there
                end = left + host.hbm_bytes * scale
                self.canvas.rect(end, middle - height / 2, away * scale, height, IN_HOST)
                self.canvas.line([end, end], [middle - height / 2 - 0.03, middle + height / 2 + 0.03], INK, 0.9)
            numbers = f"{used / cap:.0%}" if self.narrow else f"{used / unit_bytes:.2f} / {cap / unit_bytes:.2f}"
            self.canvas.text(self._memory_right, middle + 0.045, numbers, 8.5, ha="right")

    def _traffic(self) -> None:
        """MiB that each device sends in an iteration: where there are several domains, in its own and to others."""
        own, heading = f"in {self.view.task.topology.fast_group}", self.top - 0.16
        headings = [own, "to others"] if self._sent == 2 else ["sent, MiB"]
        if self._sent == 2:
            self.canvas.text(self.right, heading - 0.15, "sent in an iteration, MiB", 8, GREY, ha="right")
        sent = self._rows(self.view.sent_bytes) if self._sent else np.empty((0, 2))
        for column in range(self._sent):
            x = self.right - SENT_COLUMN * (self._sent - 1 - column)
            self.canvas.text(x, heading, headings[column], 8, GREY, ha="right")
            for index, count in enumerate(sent[:, column].tolist()):
                baseline = self.top + (index + 0.5) * self.row + 0.045
                self.canvas.text(x, baseline, format_mib(count), 8.5, ha="right")
