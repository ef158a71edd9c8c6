"""An episode of replanning as text of 80 columns, or as a picture."""

from __future__ import annotations

import textwrap
from typing import Any

from shard_gym.common.text import counted, format_ms, format_seconds
from shard_gym.envs.placement.rendering.view import shorten
from shard_gym.replanning.drift.tasks import DAYS, DriftTask
from shard_gym.replanning.env.history import NO_PLAN, History
from shard_gym.replanning.env.windows import HOURS, KINDS

LEVELS = ".:-=+*#%@"
"""The characters of hours, from the cheapest to the costliest."""

LETTERS = "hd3n"  # the letters of plans, by window
_WIDTH = 80  # the most characters of a line


def render(task: DriftTask, history: History, render_mode: str, failure: dict[str, Any] | None = None) -> Any:
    """A str for "ansi"; for "rgb_array" an (H, W, 3) uint8 array. `failure` is what the environments say of one."""
    if render_mode == "ansi":
        return render_ansi(task, history, failure["message"] if failure else "")
    from shard_gym.replanning.env.figure import render_rgb  # needs matplotlib

    return render_rgb(task, history, failed=failure is not None)


def render_ansi(task: DriftTask, history: History, failure: str = "") -> str:
    """A line for each day so far, the cost of each hour; below it, plans made when an hour began; why it failed."""
    costs, hours = history.hourly_ms, len(history.hourly_ms)
    day, hour = divmod(hours, HOURS)
    when = "finished" if day == DAYS else f"day {day + 1} of {DAYS}, {hour:02}:00"
    lines = [f"{shorten(task.name, _WIDTH - len(when) - 2)}: {when}"]
    if failure:
        lines += textwrap.wrap(f"FAILED: {failure}", _WIDTH)
    if hours:
        made, repairs = int((history.kinds != NO_PLAN).sum()), int(history.repairs.sum())
        spent = dict(zip(("iterations", "pauses", "migrations"), history.seconds.sum(axis=0), strict=True))
        lines += [
            f"{counted(made, 'plan')} made, {counted(repairs, 'repair')} among them.",
            "Spent: " + ", ".join(f"{what} {format_seconds(seconds)}" for what, seconds in spent.items()) + ".",
            "",
            "day  0     6     12    18",
        ]
        low, high = costs.min(), costs.max()
        level = ((costs - low) / max(high - low, 1e-12) * (len(LEVELS) - 1)).round().astype(int)
        shown = "".join(LEVELS[each] for each in level)
        marks = "".join(map(_mark, history.kinds.tolist(), history.repairs.tolist()))
        for number, first in enumerate(range(0, hours, HOURS)):
            of_day = slice(first, first + HOURS)
            lines.append(f"{number + 1:>3}  {shown[of_day]}")
            if marks[of_day].strip():
                lines.append(f"     {marks[of_day]}".rstrip())
        lines += [
            "",
            f"An hour: {LEVELS[0]} for {format_ms(low)} ms an iteration, up to {LEVELS[-1]} for {format_ms(high)} ms.",
            "Plans: h for the last hour, d day, 3 three days, n next 12 hours as yesterday;",
            "capital letters leave room for growth; ! is a repair.",
        ]
    return "\n".join(lines) + "\n"


def _mark(kind: int, repair: bool) -> str:
    if kind == NO_PLAN:
        return " "
    letter = LETTERS[KINDS[kind].window]
    return "!" if repair else letter.upper() if KINDS[kind].headroom else letter
