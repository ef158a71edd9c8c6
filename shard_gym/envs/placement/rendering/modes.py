"""Renders a view in the mode asked for: pictures of `figure`, or plain text, which needs no other package."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from shard_gym.common.text import counted
from shard_gym.envs.placement.rendering.view import PlacementView, shorten

_WIDTH = 80
_BAR = 24
_LETTERS = np.array(list("FfbB"))


def render(view: PlacementView, render_mode: str) -> Any:
    """A str for "ansi"; for "rgb_array" the (H, W, 3) uint8 array of `figure.render_rgb`."""
    if render_mode == "ansi":
        return render_ansi(view)
    from shard_gym.envs.placement.rendering.figure import render_rgb  # needs matplotlib

    return render_rgb(view)


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
    title = f"bars: 0 to {_ms(spans.sum())} ms" if spans.sum() > 0 else ""
    lines = [
        f"{shorten(task.name, _WIDTH - len(facts))}{facts}",
        "",
        f"dev {view.unit:>6}   fwd F   a2a f   a2a b   bwd B  {title:<{_BAR}} memory, {view.memory_unit()[0]}",
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
        *textwrap.wrap(view.describe_unplaced() + ".", _WIDTH),
        *(line for _, words in view.splits() for line in textwrap.wrap(words, _WIDTH, subsequent_indent="    ")),
    ]
    if view.failure:
        lines += textwrap.wrap(f"FAILED: {shorten(view.failure, 1000)}", _WIDTH)
    return "\n".join(lines) + "\n"


def _device_line(view: PlacementView, device: int) -> str:
    unit = view.memory_unit()[1]
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
    """`value`, which is not negative, in at most 6 characters; 7 from 10 s on."""
    for digits, limit in ((3, 1e2), (1, 1e4)):
        if value < limit - 0.5 * 10.0**-digits:
            return f"{value:.{digits}f}"
    return f"{value:.1e}"
