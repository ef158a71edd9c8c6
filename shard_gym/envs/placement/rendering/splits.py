"""The split tables of a plan in a picture: a bar for each table, cut into its shards. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from shard_gym.envs.placement.rendering.canvas import SLATE, Canvas
from shard_gym.envs.placement.rendering.plan_view import PlanView
from shard_gym.io.pictures import GREY

ROW, BAR, GAP = 0.27, 3.6, 0.015
"""Inches: the height of a row, the width of a bar, and what separates shards."""


def splits_height(count: int) -> float:
    """Inches that `count` split tables take."""
    return 0.25 + ROW * count if count else 0.0


def draw_splits(canvas: Canvas, view: PlanView, splits: Sequence[tuple[int, str]], left: float, top: float) -> None:
    """A bar for each table, cut in proportion to the cells of its shards; the number in a shard is its device."""
    if not splits:
        return
    canvas.text(left, top + 0.16, "split tables: the device of each shard", 8, GREY)
    for index, (table, words) in enumerate(splits):
        y = top + 0.25 + ROW * index
        shards = sorted(view.plan.tables[table].shards, key=lambda s: (s.first_column, s.first_row, s.device))
        cells = sum(shard.num_rows * shard.num_columns for shard in shards)
        x = left
        for shard in shards:
            wide = BAR * shard.num_rows * shard.num_columns / cells
            canvas.rect(x, y, max(wide - GAP, wide / 2), 0.19, SLATE)
            if wide > canvas.width_of(str(shard.device), 8) + 0.06:
                canvas.text(x + (wide - GAP) / 2, y + 0.135, str(shard.device), 8, "#FFFFFF", ha="center")
            x += wide
        canvas.text(left + BAR + 0.2, y + 0.14, words, 8.5)
