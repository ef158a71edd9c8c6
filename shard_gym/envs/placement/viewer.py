"""A placement to look at: as plain text, and (with the extra `viz`) as a figure or an array of pixels."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import PHASES, FloatArray
from shard_gym.errors import InvalidPlacementError, missing_extra
from shard_gym.placement import memory_used
from shard_gym.tasks import Task
from shard_gym.text import counted, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RENDER_MODES: list[str] = ["ansi", "rgb_array"] if importlib.util.find_spec("matplotlib") else ["ansi"]
"""The render modes that work with the packages installed here."""

MAX_ROWS = 16
"""Devices shown one by one; of more than that, the most loaded."""

_WIDTH = 80
_BAR = 24
_LETTERS = np.array(list("FfbB"))
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class PlacementView:
    """A placement, complete or under way, and what it costs.

    Attributes:
        task: the task.
        placement: (T,) int64, device of each table in the task's own order; -1 where it has none yet.
        phases_ms: (D, 4) float64, ms each device takes in each phase (`shard_gym.cost_models.PHASES`).
        cost_ms: cost of the tables placed so far in ms.
        note: why the placement failed, a sentence; empty if it did not.
        next_table: the table to be placed next; -1 if there is none or the order is not known.

    Raises:
        InvalidPlacementError: an array has a wrong shape, names a device that does not exist, or holds a NaN, or
            `next_table` is placed already.
    """

    task: Task
    placement: NDArray[np.int64]
    phases_ms: FloatArray
    cost_ms: float
    note: str = ""
    next_table: int = -1

    def __post_init__(self) -> None:
        tables, devices = self.task.num_tables, self.task.num_devices
        if np.shape(self.placement) != (tables,) or np.shape(self.phases_ms) != (devices, len(PHASES)):
            raise InvalidPlacementError(
                f"A view of {self.task!r} needs a placement of shape ({tables},) and phases_ms of shape "
                f"({devices}, {len(PHASES)}), not {np.shape(self.placement)} and {np.shape(self.phases_ms)}."
            )
        if self.placement.min() < -1 or self.placement.max() >= devices:
            raise InvalidPlacementError(
                f"A view of {self.task!r} holds devices 0 to {devices - 1}, or -1 for a table without one; "
                f"this placement goes from {self.placement.min()} to {self.placement.max()}."
            )
        if self.next_table != -1 and self.next_table not in self.unplaced:
            raise InvalidPlacementError(
                f"next_table of a view of {self.task!r} must be an unplaced table, or -1; not {self.next_table!r}."
            )
        if not (np.isfinite(self.phases_ms).all() and np.isfinite(self.cost_ms)):
            raise InvalidPlacementError(f"The costs of a view of {self.task!r} must be finite numbers of ms.")

    @property
    def unplaced(self) -> NDArray[np.int64]:
        """Indices of the tables without a device, int64, ascending."""
        return np.flatnonzero(self.placement < 0)

    @property
    def tables_per_device(self) -> NDArray[np.int64]:
        """(D,) int64, tables on each device."""
        return np.bincount(self.placement[self.placement >= 0], minlength=self.task.num_devices).astype(np.int64)

    @property
    def memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the tables on each device."""
        placed = np.flatnonzero(self.placement >= 0)
        if not placed.size:
            return np.zeros(self.task.num_devices, np.int64)
        return memory_used(self.placement[placed], self.task.tables.select(placed), self.task.num_devices)

    @property
    def spans_ms(self) -> FloatArray:
        """(4,) float64, how long each phase lasts: as long as its slowest device takes."""
        return np.asarray(np.maximum(self.phases_ms, 0.0).max(axis=0))

    @property
    def slowest(self) -> NDArray[np.bool_]:
        """(D, 4) bool, the devices that decide how long each phase lasts; none for a phase that takes no time."""
        longest = self.spans_ms
        return np.asarray((self.phases_ms >= longest * (1 - _SAME)) & (longest > 0))

    def most_loaded(self, count: int = MAX_ROWS) -> NDArray[np.int64]:
        """At most `count` devices, ascending: the slowest of each phase first, then those busy for longest."""
        decides = np.unique(self.phases_ms.argmax(axis=0))
        busy = self.phases_ms.sum(axis=1)
        busy[decides] = np.inf
        return np.sort(np.argsort(-busy, kind="stable")[:count])


def shorten(name: str, width: int) -> str:
    """`name` in at most `width` characters, none of which moves a cursor or breaks a line."""
    safe = "".join(char if char.isprintable() else "?" for char in name)
    return safe if len(safe) <= width else f"{safe[: width - 9]}...{safe[-6:]}"


def describe_unplaced(view: PlacementView) -> str:
    """One line: how many tables have no device yet, their bytes, and the next one (or the largest)."""
    left, tables = view.unplaced, view.task.tables
    total = format_bytes(int(tables.memory_bytes.sum()))
    if not left.size:
        return f"All {len(tables)} tables are placed ({total})"
    if view.next_table >= 0:
        word, shown = "next", view.next_table
    else:
        word, shown = "largest", int(left[tables.memory_bytes[left].argmax()])
    return (
        f"{left.size} of {len(tables)} tables not placed yet ({format_bytes(int(tables.memory_bytes[left].sum()))} "
        f"of {total}); {word}: {shorten(tables.names[shown], 28)} ({format_bytes(int(tables.memory_bytes[shown]))})"
    )


def render_ansi(view: PlacementView) -> str:
    """The placement as plain ASCII text (names apart) of at most 80 columns, one line for each device.

    The bars share one time axis, as long as the embedding part of an iteration: a dot is a device that waits for the
    slowest one. Of more than 16 devices the most loaded are shown.
    """
    task, spans = view.task, view.spans_ms
    placed = task.num_tables - view.unplaced.size
    shown = view.most_loaded()
    facts = (
        f": {placed}/{counted(task.num_tables, 'table')} on {counted(task.num_devices, 'device')}, "
        f"cost {_ms(view.cost_ms)} ms{'' if placed == task.num_tables else ' so far'}"
    )
    lines = [
        f"{shorten(task.name, _WIDTH - len(facts))}{facts}",
        "",
        f"dev tables   fwd F   a2a f   a2a b   bwd B  {_timeline_title(spans):<{_BAR}} memory, {memory_unit(view)[0]}",
        *(_device_line(view, device) for device in shown),
    ]
    if shown.size < task.num_devices:
        lines.append(f"The {shown.size} most loaded devices; {task.num_devices - shown.size} are left out.")
    lines += [
        "-" * _WIDTH,
        f"{'slowest':>10} {''.join(f'{_ms(span):>7} ' for span in spans)} sum {_ms(spans.sum())} ms",
        "",
        "F forward  f forward all-to-all  b backward all-to-all  B backward",
        ". waiting  * slowest of its phase",
        *textwrap.wrap(describe_unplaced(view) + ".", _WIDTH),
    ]
    if view.note:
        lines += textwrap.wrap(f"FAILED: {shorten(view.note, 1000)}", _WIDTH)
    return "\n".join(lines) + "\n"


def memory_unit(view: PlacementView) -> tuple[str, int]:
    """GiB or MiB, whichever suits the devices, and its bytes."""
    return ("GiB", 2**30) if view.task.topology.memory_cap_bytes.max() >= 2**30 else ("MiB", 2**20)


def _timeline_title(spans: FloatArray) -> str:
    return f"bars: 0 to {_ms(spans.sum())} ms" if spans.sum() > 0 else ""


def _device_line(view: PlacementView, device: int) -> str:
    unit = memory_unit(view)[1]
    used, cap = int(view.memory_used[device]) / unit, int(view.task.topology.memory_cap_bytes[device]) / unit
    digits = 2 if cap < 100 else 1 if cap < 1000 else 0
    phases = "".join(
        f"{_ms(ms):>7}{'*' if slowest else ' '}"
        for ms, slowest in zip(view.phases_ms[device], view.slowest[device], strict=True)
    )
    return (
        f"{device:>3} {view.tables_per_device[device]:>6} {phases} {_timeline(view, device)} "
        f"{used:>5.{digits}f}/{cap:.{digits}f}"
    )


def _timeline(view: PlacementView, device: int) -> str:
    """What `device` does in each of `_BAR` equal parts of the time axis."""
    spans = view.spans_ms
    if spans.sum() == 0:
        return " " * _BAR
    ends = np.cumsum(spans)
    times = (np.arange(_BAR) + 0.5) / _BAR * ends[-1]
    phase = np.minimum(np.searchsorted(ends, times, side="right"), len(spans) - 1)
    busy = times - (ends - spans)[phase] < view.phases_ms[device][phase]
    return "".join(np.where(busy, _LETTERS[phase], "."))


def _ms(value: float) -> str:
    """`value`, which is not negative, in at most 7 characters."""
    for digits, limit in ((3, 1e3), (1, 1e5)):
        if value < limit - 0.5 * 10.0**-digits:
            return f"{value:.{digits}f}"
    return f"{value:.1e}"


def draw(view: PlacementView, *, title: str | None = None) -> Figure:
    """The placement as a `matplotlib.figure.Figure`, free of pyplot and of any global state.

    The four phases stand one after the other on one time axis, and each is as long as its slowest device takes: the
    width of the chart is the cost. Solid is work, pale is waiting. Of more than 16 devices the most loaded are drawn,
    and the mean of the others.

    Args:
        view: the placement.
        title: the headline; the task's name by default.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure: Figure = _figures().draw(view, title=title)
    return figure


def draw_comparison(views: Sequence[tuple[str, PlacementView]]) -> Figure:
    """Placements side by side on one scale, each under its name; otherwise as `draw`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidPlacementError: `views` is empty.
    """
    if not views:
        raise InvalidPlacementError("There is nothing to compare: pass at least one (name, view).")
    figure: Figure = _figures().draw_comparison(views)
    return figure


def render_rgb(view: PlacementView) -> NDArray[np.uint8]:
    """(H, W, 3) uint8, the figure of `draw` in an array of its own.

    W is 1200, and H depends on the number of devices alone (both are even), so the frames of an episode make a video.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    pixels: NDArray[np.uint8] = _figures().draw_pixels(view)
    return pixels


def _figures() -> ModuleType:
    """The module that draws; imported on first use, for it needs matplotlib."""
    try:
        from shard_gym.envs.placement import figure
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise missing_extra("matplotlib", "viz", "A picture of a placement") from error
    return figure
