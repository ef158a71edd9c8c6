"""Texts and pictures of replanning: at most 80 columns, plans at their hours, and figures of several histories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.envs.core.config import RENDER_MODES
from shard_gym.replanning import DriftTask, EmbeddingReplanningEnv
from shard_gym.replanning.drift.tasks import DAYS
from shard_gym.replanning.env.episode_data import DECISIONS
from shard_gym.replanning.env.history import NO_PLAN, History
from shard_gym.replanning.env.rendering import LETTERS, LEVELS, render_ansi
from shard_gym.replanning.env.vector import EmbeddingReplanningVectorEnv
from shard_gym.replanning.env.windows import HOURS

MakeEnv = Callable[..., EmbeddingReplanningEnv]
Tasks = dict[str, DriftTask]
pictures = pytest.mark.skipif("rgb_array" not in RENDER_MODES, reason="matplotlib is not installed")


def history(hours: int, seed: int = 0, plans: float = 0.3) -> History:
    """A history with plans of all kinds."""
    rng = np.random.default_rng(seed)
    kinds = np.where(rng.random(hours) < plans, rng.integers(8, size=hours), NO_PLAN).astype(np.int8)
    repairs = (kinds == 0) & (rng.random(hours) < 0.5)
    seconds = rng.uniform(0, 30_000, (hours, 3))
    return History(rng.uniform(1.0, 2.0, hours), seconds, kinds, repairs)


def days_of(text: str) -> list[tuple[str, str]]:
    """The 24 costs and the 24 marks of each day; a day without plans has no line of marks."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("day  0")) + 1
    last = next(number for number, line in enumerate(lines) if line.startswith("An hour:")) - 1
    days: list[tuple[str, str]] = []
    for line in lines[first:last]:
        shown = line.ljust(80)[5 : 5 + HOURS]
        if line[:5].strip():
            days.append((shown, " " * HOURS))
        else:
            assert shown.strip()
            days[-1] = days[-1][0], shown
    return days


@pytest.mark.parametrize("hours", [0, 1, 24, 200, DECISIONS])
def test_a_text_shows_each_hour_and_its_plan(kinds_of_tasks: Tasks, hours: int) -> None:
    given = history(hours)
    text = render_ansi(kinds_of_tasks["growing"], given)
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("\n")
    when = "finished" if hours == DECISIONS else f"day {hours // 24 + 1} of {DAYS}, {hours % 24:02}:00"
    assert text.splitlines()[0] == f"growing: {when}"
    if not hours:
        assert len(text.splitlines()) == 1
        return
    shown = "".join(costs for costs, _ in days_of(text)).rstrip()
    marks = "".join(mark for _, mark in days_of(text))
    assert len(shown) == hours
    low, high = given.hourly_ms.min(), given.hourly_ms.max()
    for hour, (cost, kind, repair) in enumerate(zip(given.hourly_ms, given.kinds, given.repairs, strict=True)):
        share = (cost - low) / max(high - low, 1e-12)
        assert shown[hour] == LEVELS[round(share * (len(LEVELS) - 1))]
        letter = " " if kind == NO_PLAN else LETTERS[kind % 4].upper() if kind >= 4 else LETTERS[kind]
        assert marks[hour] == ("!" if repair else letter)
    made = int((given.kinds != NO_PLAN).sum())
    assert f"{made} plan{'' if made == 1 else 's'} made, {given.repairs.sum()} repair" in text


def test_the_longest_text_has_80_columns(kinds_of_tasks: Tasks) -> None:
    given = history(DECISIONS, plans=1.0)._replace(repairs=np.ones(DECISIONS, np.bool_))
    given = given._replace(seconds=np.full((DECISIONS, 3), 9_999_999.0 / DECISIONS), hourly_ms=given.hourly_ms * 1e4)
    task = replace(kinds_of_tasks["growing spot"], name="a long name " * 10)
    assert max(map(len, render_ansi(task, given).splitlines())) <= 80


def test_environments_show_what_was_done(kinds_of_tasks: Tasks, env_for: MakeEnv) -> None:
    env = env_for(kinds_of_tasks["spot"], render_mode="ansi")
    env.reset()
    assert env.render() == "spot: day 1 of 14, 00:00\n"
    for action in (1, 2, 3, 4, 0):
        env.step(action)
    _, marks = days_of(env.render())[0]
    assert marks.rstrip() == "hd3n"
    many = EmbeddingReplanningVectorEnv(2, env.tasks, render_mode="ansi")
    many.reset()
    many.step(np.array([0, 2]))
    texts: Any = many.render()
    assert [days_of(text)[0][1].strip() for text in texts] == ["", "d"]


@pictures
def test_a_figure_has_a_row_for_each_history(kinds_of_tasks: Tasks) -> None:
    from shard_gym.replanning.env.figure import draw

    names = ["never", "always", "oracle"]
    histories = {name: history(DECISIONS, seed) for seed, name in enumerate(names)}
    figure = draw(kinds_of_tasks["spot"], histories)
    rows = [axes for axes in figure.axes if axes.lines]
    assert len(rows) == len(names)
    last = histories[names[-1]]
    for axes, (name, given) in zip(rows, histories.items(), strict=True):
        texts = [text.get_text() for text in axes.texts]
        assert texts[0] == name
        made = int((given.kinds != NO_PLAN).sum())
        assert texts[1].startswith(f"{made} plans")
        longer = given.seconds.sum() / last.seconds.sum() - 1
        assert (f"{longer * 100:.2f}"[:4] in texts[1]) == (name != names[-1])
        lines = [line.get_ydata() for line in axes.lines]
        assert any(np.array_equal(line, given.hourly_ms) for line in lines)
        assert any(np.array_equal(line, last.hourly_ms) for line in lines)
        drawn = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
        rings = [line for line in drawn if line.get_fillstyle() == "none"]
        assert sum(len(line.get_xdata()) for line in rings) == given.repairs.sum()
        assert sum(len(line.get_xdata()) for line in drawn if line not in rings) == made
    assert "spot, 120 s for a plan" in figure.get_suptitle()


@pictures
def test_figures_of_nothing_can_be_drawn(kinds_of_tasks: Tasks) -> None:
    from shard_gym.replanning.env.figure import draw

    figure = draw(kinds_of_tasks["plain"], {"one": history(0), "other": history(0)})
    figure.canvas.draw()
    assert len(figure.axes) >= 2
