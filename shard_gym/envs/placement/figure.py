"""The pictures behind `shard_gym.envs.placement.viewer`. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.envs.placement.page import (
    ALERT,
    GREY,
    INK,
    LINE,
    SLATE,
    TRACK,
    Page,
    blend,
    format_like,
    horizon_of,
    spread,
    to_pixels,
)
from shard_gym.envs.placement.viewer import MAX_ROWS, PlacementView, describe_unplaced, memory_unit, shorten
from shard_gym.text import counted

# Okabe and Ito's colours, which colour-blind readers tell apart: compute dark, communication light; forward cold,
# backward warm.
PHASE_COLORS = ("#0072B2", "#56B4E9", "#E6A100", "#D55E00")
PHASE_LABELS = ("forward", "forward all-to-all", "backward all-to-all", "backward")
NARROW_LABELS = ("forward", "forward\nall-to-all", "backward\nall-to-all", "backward")
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 2.5}
PALE = 0.80
"""How far the colour of a waiting device is blended into white."""

WIDTH, MARGIN, PANEL_WIDTH, PANEL_GAP = 12.0, 0.45, 5.6, 0.5


@dataclass(frozen=True)
class _Rows:
    """What the rows of the chart show; the last may be the mean of the devices left out.

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
        """The rows of `view`; `rest` is the name of the one for the devices left out."""
        shown = view.most_loaded()
        others = np.setdiff1d(np.arange(view.task.num_devices), shown)
        columns = (view.phases_ms, view.slowest, view.memory_used, view.task.topology.memory_cap_bytes)
        phases, slowest, used, caps = (column[shown].astype(np.float64) for column in columns)
        labels, counts = [str(device) for device in shown], [str(n) for n in view.tables_per_device[shown]]
        if others.size:
            phases, slowest, used, caps = (
                np.append(rows, [column[others].mean(axis=0)], axis=0)
                for rows, column in zip((phases, slowest, used, caps), columns, strict=True)
            )
            labels.append(rest)
            counts.append(f"{view.tables_per_device[others].mean():.1f}")
        return _Rows(labels, counts, np.maximum(phases, 0.0), slowest == 1.0, used, caps)


@dataclass(frozen=True)
class _Panel:
    """Where one placement is drawn, in inches, and how much time its axis holds.

    Attributes:
        left: edge of the column of device numbers.
        top: upper edge of the first device's row.
        right: edge of the column of memory numbers.
        row: height of a row.
        horizon_ms: end of the time axis, ms.
        compact: leave out what a narrow panel has no room for.
    """

    left: float
    top: float
    right: float
    row: float
    horizon_ms: float
    compact: bool = False

    @property
    def time_left(self) -> float:
        """Where the time 0 stands."""
        return self.left + (1.1 if self.compact else 1.45)

    @property
    def time_right(self) -> float:
        """Where the horizon stands."""
        return self.right - (1.35 if self.compact else 2.75)

    def number(self, ms: float) -> str:
        """`ms` with as many decimals as all other times of the panel."""
        return format_like(ms, self.horizon_ms)

    def x(self, ms: float) -> float:
        """Where the time `ms` stands."""
        return self.time_left + ms / self.horizon_ms * (self.time_right - self.time_left)


def draw(view: PlacementView, *, title: str | None = None) -> Figure:
    """See `viewer.draw`."""
    row = row_height(view)
    page = Page(WIDTH, 3.62 + row_count(view) * row)
    panel = _Panel(MARGIN, 1.92, WIDTH - MARGIN, row, horizon_of(float(view.spans_ms.sum())))
    room = _cost(page, view, panel, 17) - 0.3
    page.text(MARGIN, 0.50, _fit(page, title or view.task.name, room, 14, "bold"), 14, weight="bold")
    lines = (f"{_what(view)}, batch of {view.task.tables.workload.batch_size:,}", _explanation(view))
    for index, line in enumerate(_failure(view, 150, 2) or lines):
        page.text(MARGIN, 0.80 + 0.20 * index, line, 9.5, ALERT if view.note else GREY)
    bottom = _chart(page, view, panel)
    _unplaced_strip(page, view, MARGIN, bottom + 0.45, panel.right)
    _legend(page, MARGIN, page.height - 0.22)
    return page.figure


def draw_comparison(views: Sequence[tuple[str, PlacementView]]) -> Figure:
    """See `viewer.draw_comparison`."""
    row = min(row_height(view) for _, view in views)
    count = max(row_count(view) for _, view in views)
    complete = not any(view.note or view.unplaced.size for _, view in views)
    width = 2 * MARGIN + len(views) * PANEL_WIDTH + (len(views) - 1) * PANEL_GAP
    page = Page(width, 2.95 + count * row + (0.0 if complete else 0.60))
    horizon = 1.02 * max(float(view.spans_ms.sum()) for _, view in views) or 1.0
    best, best_ms = min(((name, view.cost_ms) for name, view in views), key=lambda pair: pair[1])
    best = _fit(page, best, 1.3, 9)
    for index, (name, view) in enumerate(views):
        left = MARGIN + index * (PANEL_WIDTH + PANEL_GAP)
        panel = _Panel(left, 1.77, left + PANEL_WIDTH, row, horizon, compact=True)
        page.text(left, 0.76, _fit(page, f"{shorten(view.task.name, 30)}: {_what(view)}", PANEL_WIDTH, 8.5), 8.5, GREY)
        worse = complete and view.cost_ms > best_ms
        room = _cost(page, view, panel, 15, f"{view.cost_ms / best_ms:.2f} times {best}" if worse else "") - 0.2
        page.text(left, 0.50, _fit(page, name, room, 13, "bold"), 13, weight="bold")
        bottom = _chart(page, view, panel)
        if not complete:
            for number, line in enumerate(_failure(view, 84, 3) or wrap(describe_unplaced(view), 84)[:2]):
                page.text(left, bottom + 0.25 + 0.17 * number, line, 8, ALERT if view.note else GREY)
    _legend(page, MARGIN, page.height - 0.22)
    return page.figure


def draw_pixels(view: PlacementView) -> NDArray[np.uint8]:
    """See `viewer.render_rgb`."""
    return to_pixels(draw(view))


def row_count(view: PlacementView) -> int:
    """Rows of the chart: a device each, and one for all devices left out."""
    return min(view.task.num_devices, MAX_ROWS + 1)


def _what(view: PlacementView) -> str:
    task = view.task
    return f"{counted(task.num_tables, 'table')} on {task.num_devices} x {shorten(task.topology.device.name, 32)}"


def _explanation(view: PlacementView) -> str:
    """How to read the chart. A learned model may have a head of its own for the total, which is then said."""
    how = "Each phase lasts as long as its slowest device takes; the others wait."
    total = float(view.spans_ms.sum())
    if abs(total - view.cost_ms) <= 0.005 * view.cost_ms:
        return f"{how} The cost is the width of the chart."
    number = format_like(view.cost_ms, max(total, view.cost_ms))
    return f"{how} The cost model puts the whole at {number} ms, which is not their sum."


def _failure(view: PlacementView, width: int, most: int) -> list[str]:
    """Why the placement failed, in at most `most` lines; none if it did not."""
    lines = wrap(f"Failed: {shorten(view.note, 1000)}", width) if view.note else []
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 3] + "..."]


def _cost(page: Page, view: PlacementView, panel: _Panel, size: float, factor: str = "") -> float:
    """The cost, large, and before it, small, what it is; returns the inches left of it in the panel.

    `factor` says how many times the cheapest of the others it is.
    """
    number = format_like(view.cost_ms, max(panel.horizon_ms, view.cost_ms))
    width = page.text(panel.right, 0.50, f"{number} ms", size, weight="bold", ha="right")
    meaning = (
        "failed, so far"
        if view.note
        else "so far"
        if view.unplaced.size
        else factor or "embedding part of an iteration"
    )
    x = panel.right - width - 0.10
    return x - page.text(x, 0.50, meaning, 9, ALERT if view.note else GREY, ha="right") - panel.left


def _fit(page: Page, name: str, room: float, size: float, weight: str = "normal") -> str:
    """`name`, shortened to `room` inches."""
    letters = len(name)
    while letters > 12 and page.width_of(shorten(name, letters), size, weight) > room:
        letters = max(12, int(letters * min(0.97, room / page.width_of(shorten(name, letters), size, weight))))
    return shorten(name, letters)


def _chart(page: Page, view: PlacementView, panel: _Panel) -> float:
    """The rows of all devices with their headings and the time axis; returns the y of its lower end."""
    rows = _Rows.of(view, "rest, mean" if panel.compact else "mean of the rest")
    bottom = panel.top + len(rows.labels) * panel.row
    heading = panel.top - 0.16
    page.text(panel.left, heading, "device", 8, GREY)
    page.text(panel.time_left - 0.14, heading, "tables", 8, GREY, ha="right")
    _time_axis(page, view, panel, bottom)
    _phase_headings(page, view, panel)
    for index, label in enumerate(rows.labels):
        baseline = panel.top + (index + 0.5) * panel.row + 0.045
        page.text(panel.left, baseline, label, 7.5 if len(label) > 4 else 9)
        page.text(panel.time_left - 0.14, baseline, rows.tables[index], 9, GREY, ha="right")
        _device_bars(page, view, panel, rows, index)
    _memory(page, view, panel, rows)
    return bottom + 0.52


def _time_axis(page: Page, view: PlacementView, panel: _Panel, bottom: float) -> None:
    """Grid, tick labels in ms and, below them, the total as a dimension line."""
    total = float(view.spans_ms.sum())
    if total == 0:
        middle = (panel.time_left + panel.time_right) / 2
        page.text(middle, (panel.top + bottom) / 2 + 0.05, "nothing is placed yet", 10, GREY, ha="center", bbox=WHITE)
        return
    count = 5 if panel.compact else 8
    for tick in MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(0.0, panel.horizon_ms):
        if 0 <= tick <= panel.horizon_ms * 1.001:
            page.line([panel.x(tick)] * 2, [panel.top, bottom + 0.04])
            page.text(panel.x(tick), bottom + 0.18, f"{tick:,.10g}", 8, GREY, ha="center")
    page.text(panel.time_left - 0.14, bottom + 0.18, "time, ms", 8, GREY, ha="right")
    start, end, y = panel.x(0), panel.x(total), bottom + 0.37
    page.line([end, end], [panel.top - 0.05, bottom + 0.04], INK, 1.2, zorder=5)
    page.line([start, end], [y, y], INK, 0.9)
    for x in (start, end):
        page.line([x, x], [y - 0.05, y + 0.05], INK, 0.9)
    words = f"{panel.number(total)} ms"
    if not panel.compact:
        words = " + ".join(panel.number(float(span)) for span in view.spans_ms) + f" = {words}"
    if page.width_of(words, 8.5) + 0.3 <= end - start:
        page.text((start + end) / 2, y + 0.042, words, 8.5, ha="center", bbox=WHITE)
    else:
        page.text(end + 0.10, y + 0.042, words, 8.5)


def _phase_headings(page: Page, view: PlacementView, panel: _Panel) -> None:
    """Above each span a bracket in its colour, with name, ms and the device that decides; labels never overlap."""
    spans = view.spans_ms
    if spans.sum() == 0:
        return
    ends = np.cumsum(spans)
    names = [label.split("\n") for label in (NARROW_LABELS if panel.compact else PHASE_LABELS)]
    lines = [f"{panel.number(float(span))} ms" for span in spans]
    if not panel.compact:
        lines = [line + _who(view, phase) for phase, line in enumerate(lines)]
    widths = [
        max(page.width_of(line, 8.5), *(page.width_of(part, 8.5, "bold") for part in name))
        for name, line in zip(names, lines, strict=True)
    ]
    wanted = np.array([panel.x(float(end - span / 2)) for end, span in zip(ends, spans, strict=True)])
    centers = spread(wanted, np.array(widths), panel.x(0) - 0.05, panel.time_right + 0.25, gap=0.14)
    for phase, (center, middle) in enumerate(zip(centers, wanted, strict=True)):
        left, right = panel.x(float(ends[phase] - spans[phase])), panel.x(float(ends[phase]))
        page.rect(left, panel.top - 0.10, right - left - 0.015, 0.055, PHASE_COLORS[phase])
        page.line([middle, center], [panel.top - 0.10, panel.top - 0.20], PHASE_COLORS[phase], 1.0)
        for above, part in enumerate(reversed(names[phase])):
            page.text(center, panel.top - 0.40 - 0.15 * above, part, 8.5, weight="bold", ha="center")
        page.text(center, panel.top - 0.25, lines[phase], 8.5, GREY, ha="center")


def _who(view: PlacementView, phase: int) -> str:
    """Which device decides how long `phase` lasts."""
    deciding = np.flatnonzero(view.slowest[:, phase])
    if deciding.size == 1:
        return f", device {deciding[0]}"
    return ", all" if deciding.size == view.task.num_devices else ""


def _device_bars(page: Page, view: PlacementView, panel: _Panel, rows: _Rows, index: int) -> None:
    """One device's four phases: solid while it works, pale while it waits, outlined where all others wait for it."""
    height = panel.row * 0.72
    y = panel.top + index * panel.row + (panel.row - height) / 2
    if not view.spans_ms.any():
        page.rect(panel.time_left, y, panel.time_right - panel.time_left, height, TRACK)
    start = 0.0
    for phase, span in enumerate(view.spans_ms):
        left, right = panel.x(start), panel.x(start + float(span))
        busy = panel.x(start + float(rows.phases_ms[index, phase]))
        page.rect(left, y, right - left, height, blend(PHASE_COLORS[phase], PALE))
        page.rect(left, y, busy - left, height, PHASE_COLORS[phase])
        if rows.slowest[index, phase]:
            page.rect(left, y, right - left, height, PHASE_COLORS[phase], edge=INK)
        start += float(span)


def _memory(page: Page, view: PlacementView, panel: _Panel, rows: _Rows) -> None:
    """Bytes in use against the cap of each device, and both as numbers (the share alone where there is little room)."""
    unit, unit_bytes = memory_unit(view)
    left = panel.time_right + 0.35
    width = panel.right - left - (0.45 if panel.compact else 1.15)
    heading = panel.top - 0.16
    page.text(left, heading, "memory", 8, GREY)
    page.text(panel.right, heading, "of cap" if panel.compact else f"used / cap, {unit}", 8, GREY, ha="right")
    scale = width / float(max(rows.caps.max(), rows.used.max()))
    height = panel.row * 0.40
    for index, (used, cap) in enumerate(zip(rows.used, rows.caps, strict=True)):
        middle = panel.top + (index + 0.5) * panel.row
        page.rect(left, middle - height / 2, cap * scale, height, LINE)
        page.rect(left, middle - height / 2, used * scale, height, ALERT if used > cap else SLATE)
        numbers = f"{used / cap:.0%}" if panel.compact else f"{used / unit_bytes:.2f} / {cap / unit_bytes:.2f}"
        page.text(panel.right, middle + 0.045, numbers, 8.5, ha="right")


def _unplaced_strip(page: Page, view: PlacementView, left: float, y: float, right: float) -> None:
    """All bytes of the task in one strip: placed ones solid, then the tables without a device, largest first."""
    sizes = view.task.tables.memory_bytes
    scale = (right - left) / float(sizes.sum())
    page.text(left, y - 0.08, _fit(page, describe_unplaced(view), right - left, 9), 9)
    x = mark = left + float(sizes[view.placement >= 0].sum()) * scale
    page.rect(left, y, x - left, 0.11, SLATE)
    for table in sorted(view.unplaced, key=lambda t: -int(sizes[t])):
        width = float(sizes[table]) * scale
        gap = 0.012 if width > 0.04 else 0.0
        page.rect(x + gap, y, width - gap, 0.11, LINE)
        if table == view.next_table:
            mark = x + gap
        x += width
    if view.next_table >= 0:
        width = max(0.03, float(sizes[view.next_table]) * scale - 0.012)
        page.rect(min(mark, right - width), y, width, 0.11, ALERT if view.note else INK)


def _legend(page: Page, x: float, y: float) -> None:
    """How to read the bars, in one line."""
    blue = PHASE_COLORS[0]
    for color, edge, words in (
        (blue, None, "busy"),
        (blend(blue, PALE), None, "waiting for the slowest device"),
        (blue, INK, "slowest of its phase: all others wait for it"),
    ):
        page.rect(x, y - 0.10, 0.20, 0.12, color, edge=edge)
        x += 0.27 + page.text(x + 0.27, y, words, 8, GREY) + 0.28


def row_height(view: PlacementView) -> float:
    """Inches for one device: less where there are many."""
    return 0.40 if view.task.num_devices <= 4 else 0.34 if view.task.num_devices <= 8 else 0.26
