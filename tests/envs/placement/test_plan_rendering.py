"""Plans in text and pictures: their shards and memory are counted, and split tables are visible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.envs.placement.rendering.modes import render_ansi
from shard_gym.envs.placement.rendering.view import MAX_SPLITS, PlanView
from shard_gym.sharding import (
    ShardingPlan,
    column_wise,
    data_parallel,
    plan_memory_used,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tasks import Task

MODEL = make_sharding_cost_model()


def view_of(task: Task, plan: ShardingPlan) -> PlanView:
    cost = MODEL.estimate_plan(plan, task.tables, task.topology)
    first = np.array([sharding.devices[0] for sharding in plan.tables])
    return PlanView(task, first, cost.phases_ms, cost.total_ms, plan=plan)


@pytest.fixture(scope="module")
def task(random_task: Any) -> Task:
    made: Task = random_task(np.random.default_rng(0), 12, 4, devices_per_host=2, dims=(16, 64))
    return made


@pytest.fixture(scope="module")
def mixed(task: Task) -> PlanView:
    tables, topology = task.tables, task.topology
    shardings = [table_wise(tables, table, 3) for table in range(12)]
    shardings[0] = row_wise(tables, 0, topology)
    shardings[1] = column_wise(tables, 1, [0, 2, 2], [4, 4, int(tables.embedding_dim[1]) - 8])
    shardings[2] = data_parallel(tables, 2, topology)
    shardings[3] = table_row_wise(tables, 3, topology, 1)
    return view_of(task, ShardingPlan(tuple(shardings)))


def test_a_text_counts_shards_and_says_how_tables_are_split(task: Task, mixed: PlanView) -> None:
    text = render_ansi(mixed)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert "dev shards" in text
    assert [int(line.split()[1]) for line in lines[3:7]] == [3, 2, 5, 11]
    words = " ".join(text.split())
    rows = int(task.tables.num_embeddings[0])
    width = int(task.tables.embedding_dim[1]) - 8
    for part in (
        "4 of 12 tables split (1 column_wise, 1 data_parallel, 1 row_wise, 1 table_row_wise), 21 shards.",
        f"): row_wise, 4 blocks of {-(-rows // 4):,} rows on all devices",
        f"): column_wise, 4 + 4 + {width} columns on devices 0, 2, 2",
        "): data_parallel, a replica on each of 4 devices",
        "): table_row_wise, 2 blocks of",
        "rows on devices 2, 3",
    ):
        assert part in words
    assert mixed.memory_used.tolist() == plan_memory_used(mixed.plan, task.tables, 4).tolist()


def test_a_plan_of_whole_tables_looks_like_its_placement(task: Task) -> None:
    view = view_of(task, plan_of_placement([table % 4 for table in range(12)], task.tables))
    assert view.splits() == []
    assert "All 12 tables are whole." in render_ansi(view)
    assert view.tables_per_device.tolist() == [3, 3, 3, 3]


def test_many_split_tables_and_shards_are_summed_up(task: Task, random_task: Any) -> None:
    view = view_of(task, ShardingPlan(tuple(column_wise(task.tables, table, [0, 1]) for table in range(12))))
    shown = [table for table, _ in view.splits()]
    assert len(shown) == MAX_SPLITS
    assert task.tables.memory_bytes[shown].min() >= np.sort(task.tables.memory_bytes)[12 - MAX_SPLITS]
    wide = random_task(np.random.default_rng(0), 1, 4, dims=(128,))
    plan = ShardingPlan((column_wise(wide.tables, 0, [0, 1] * 8, [8] * 16),))
    assert "column_wise, 16 shards of 8 to 8 columns on 2 devices" in render_ansi(view_of(wide, plan))


def test_a_picture_has_a_bar_for_each_shard_of_split_tables(task: Task, mixed: PlanView) -> None:
    pytest.importorskip("matplotlib")
    from shard_gym.envs.placement.rendering.figure import SPLIT_BAR, SPLIT_ROW, draw

    whole = view_of(task, plan_of_placement([0] * 12, task.tables))
    plain, split = draw(whole), draw(mixed)
    assert split.get_figheight() == pytest.approx(plain.get_figheight() + 0.25 + 4 * SPLIT_ROW, abs=0.02)
    words = [text.get_text() for text in split.axes[0].texts]
    assert any("column_wise, 4 + 4 + " in line for line in words)
    assert "shards" in words
    drawn: list[Any] = list(split.axes[0].patches)
    bars = [patch for patch in drawn if patch.get_height() == pytest.approx(0.19)]
    assert len(bars) == 4 + 3 + 4 + 2
    by_row: dict[float, float] = {}
    for bar in bars:
        by_row[round(bar.get_y(), 3)] = by_row.get(round(bar.get_y(), 3), 0.0) + bar.get_width()
    assert len(by_row) == 4
    assert all(width == pytest.approx(SPLIT_BAR, rel=0.03) for width in by_row.values())
