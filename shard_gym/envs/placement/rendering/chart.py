"""The chart of a placement: what each device does in each phase, on one time axis, and its memory."""

from __future__ import annotations

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
    spread,
    ticks_of,
)
from shard_gym.envs.placement.rendering.view import PlacementView

# Okabe and Ito's colours, which colour-blind readers can tell apart: compute is dark, communication light; forward is
# cold, backward warm.
PHASE_COLORS = ("#0072B2", "#56B4E9", "#E6A100", "#D55E00")
PHASE_LABELS = (("forward",), ("forward", "all-to-all"), ("backward", "all-to-all"), ("backward",))
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 2.5}
PALE = 0.80
"""How far the colour of a waiting device is blended into white."""


class Chart:
    """A row for each device of `view`, drawn by `draw`; coordinates are in inches.

    Args:
        canvas: what to draw on.
        view: the placement.
        left: edge of the column of device numbers.
        top: upper edge of the first row.
        right: edge of the column of memory numbers.
        row: height of a row.
        horizon_ms: end of the time axis, ms.
        narrow: leave out some labels.
    """

    def __init__(
        self,
        canvas: Canvas,
        view: PlacementView,
        left: float,
        top: float,
        right: float,
        row: float,
        horizon_ms: float,
        *,
        narrow: bool = False,
    ) -> None:
        self.canvas, self.view, self.narrow = canvas, view, narrow
        self.left, self.top, self.right, self.row, self.horizon_ms = left, top, right, row, horizon_ms
        self._time_left = left + (1.1 if narrow else 1.45)
        self._time_right = right - (1.35 if narrow else 2.75)
        self._spans: list[float] = view.spans_ms.tolist()
        self._shown = view.most_loaded()
        self._others = np.setdiff1d(np.arange(view.task.num_devices), self._shown)
        self._bottom = top + (len(self._shown) + bool(self._others.size)) * row

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
        return self._bottom + 0.52

    def _x(self, ms: float) -> float:
        """The x of a time."""
        return self._time_left + ms / self.horizon_ms * (self._time_right - self._time_left)

    def _number(self, ms: float) -> str:
        """`ms` with as many decimals as all other times of the chart."""
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
        """Of each device its number, its tables and its four phases."""
        canvas, heading = self.canvas, self.top - 0.16
        canvas.text(self.left, heading, "device", 8, GREY)
        canvas.text(self._time_left - 0.14, heading, "tables", 8, GREY, ha="right")
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
        self.canvas.text(self.right, heading, words, 8, GREY, ha="right")
        all_used, caps = self._rows(self.view.memory_used), self._rows(self.view.task.topology.memory_cap_bytes)
        scale = (self.right - left - (0.45 if self.narrow else 1.15)) / max(caps.max(), all_used.max())
        height = self.row * 0.40
        for index, (used, cap) in enumerate(zip(all_used.tolist(), caps.tolist(), strict=True)):
            middle = self.top + (index + 0.5) * self.row
            self.canvas.rect(left, middle - height / 2, cap * scale, height, LINE)
            self.canvas.rect(left, middle - height / 2, used * scale, height, ALERT if used > cap else SLATE)
            numbers = f"{used / cap:.0%}" if self.narrow else f"{used / unit_bytes:.2f} / {cap / unit_bytes:.2f}"
            self.canvas.text(self.right, middle + 0.045, numbers, 8.5, ha="right")
