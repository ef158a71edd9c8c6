"""A matplotlib figure in inches to draw on, its colours, and where labels go. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import missing_extra
from shard_gym.common.io.pictures import INK, LINE

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    from shard_gym.common.io.figures import NotebookFigure
except ModuleNotFoundError as error:
    raise missing_extra("matplotlib", "viz", "A picture of a placement") from error

TRACK, SLATE, ALERT = "#EDF0F3", "#8796A5", "#B3261E"
DPI = 100


class Canvas:
    """A figure with one invisible pair of axes in inches, y downwards.

    Every style is given explicitly, so the user's rcParams neither change the picture nor are changed.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width = width
        # An even number of pixels, as video codecs want it; a hair more, because matplotlib rounds down.
        self.height = (math.ceil(height * DPI / 2) * 2 + 1e-3) / DPI
        self.figure = NotebookFigure(figsize=(width, self.height), dpi=DPI, facecolor="white")
        self.figure.set_layout_engine("none")
        FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self.axes.set_axis_off()
        self.axes.set(xlim=(0.0, width), ylim=(self.height, 0.0))

    def rect(self, x: float, y: float, width: float, height: float, color: str, *, edge: str | None = None) -> None:
        """A filled rectangle with the top left corner (x, y); with `edge`, it is outlined and drawn on top."""
        self.axes.add_artist(  # not add_patch, which works out limits for axes that have them already
            Rectangle(
                (x, y),
                max(width, 0.0),
                height,
                facecolor=color,
                edgecolor=edge or "none",
                linewidth=1.3 if edge else 0.0,
                zorder=4 if edge else 2,
                joinstyle="miter",
            )
        )

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str = LINE, width: float = 0.8, **kw: Any) -> None:
        """A line through points."""
        style = {"linestyle": "-", "marker": "", "solid_capstyle": "butt", "zorder": 1}
        self.axes.add_artist(Line2D(xs, ys, color=color, linewidth=width, **{**style, **kw}))

    def text(self, x: float, y: float, words: str, size: float = 9.0, color: str = INK, **kw: Any) -> float:
        """Text with its baseline at y; returns its width in inches. A "$" is drawn as it is."""
        style = {
            "family": "DejaVu Sans",
            "parse_math": False,
            "usetex": False,
            "weight": "normal",
            "style": "normal",
            "va": "baseline",
            "zorder": 6,
        }
        label = self.axes.text(x, y, words, fontsize=size, color=color, **{**style, **kw})
        return float(label.get_window_extent().width) / self.figure.dpi

    def width_of(self, words: str, size: float, weight: str = "normal") -> float:
        """How many inches `words` would take."""
        width = self.text(0.0, 0.0, words, size, weight=weight)
        self.axes.texts[-1].remove()
        return width


def blend(color: str, share: float) -> str:
    """`color` ("#RRGGBB") mixed with `share` of white."""
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * share):02X}" for c in channels)


def to_pixels(figure: Figure) -> NDArray[np.uint8]:
    """(H, W, 3) uint8, `figure` at its own dpi; a new array."""
    canvas: Any = FigureCanvasAgg(figure)  # its methods carry no types
    canvas.draw()
    return np.array(canvas.buffer_rgba(), dtype=np.uint8)[..., :3].copy()


def spread(wanted: FloatArray, widths: FloatArray, low: float, high: float, gap: float) -> FloatArray:
    """(N,) float64, centers near the ascending `wanted` for labels of these widths, at least `gap` apart.

    It is the mean of two solutions, one that pushes labels to the right and one to the left; the mean of two that keep
    the gaps keeps them too. All labels lie between `low` and `high` if there is room.
    """
    mirrored = -_pushed(-wanted[::-1], widths[::-1], -high, -low, gap)[::-1]
    return (_pushed(wanted, widths, low, high, gap) + mirrored) / 2


def _pushed(wanted: FloatArray, widths: FloatArray, low: float, high: float, gap: float) -> FloatArray:
    centers = np.maximum(wanted, low + widths / 2)
    needed = (widths[1:] + widths[:-1]) / 2 + gap
    for i in range(1, len(centers)):
        centers[i] = max(centers[i], centers[i - 1] + needed[i - 1])
    centers[-1] = min(centers[-1], high - widths[-1] / 2)
    for i in range(len(centers) - 2, -1, -1):
        centers[i] = min(centers[i], centers[i + 1] - needed[i])
    return centers


def format_like(value: float, scale: float) -> str:
    """`value` with the decimals that suit numbers up to `scale`: two below 100, fewer above, more below 1."""
    if not 1e-3 <= scale < 1e7:
        return f"{value:.3g}"
    size = math.floor(math.log10(scale))
    return f"{value:,.{2 - size if size < 0 else max(0, min(2, 3 - size))}f}"


def horizon_of(total_ms: float) -> float:
    """End of the time axis in ms: a round number, so that the axis of a video rarely changes."""
    if total_ms <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(total_ms))
    steps = np.array([1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0]) * power
    return float(steps[steps >= 1.01 * total_ms][0])


def ticks_of(horizon_ms: float, count: int) -> list[float]:
    """About `count` round numbers from 0 to `horizon_ms`."""
    ticks = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(0.0, horizon_ms)
    return [float(tick) for tick in ticks if 0 <= tick <= horizon_ms * 1.001]
