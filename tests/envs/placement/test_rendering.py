"""Texts and pictures of placements and plans: what they say, that nothing overlaps, and no global state."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidPlacementError
from shard_gym.cost_models import AnalyticalCostModel, make_cost_model
from shard_gym.envs.core.config import RENDER_MODES
from shard_gym.envs.placement.rendering.modes import render_ansi
from shard_gym.envs.placement.rendering.view import MAX_ROWS, MAX_SPLITS, PlacementView, PlanView
from shard_gym.plans import (
    ShardingPlan,
    column_wise,
    data_parallel,
    plan_memory_used,
    plan_of_placement,
    row_wise,
    table_row_wise,
    table_wise,
)
from shard_gym.tables import load_pool
from shard_gym.tasks import Task, capped_task

if "rgb_array" in RENDER_MODES:
    from shard_gym.envs.placement.rendering.canvas import blend, format_like
    from shard_gym.envs.placement.rendering.figure import PALE, PHASE_COLORS, draw, draw_comparison, render_rgb

STAGES = ("empty", "partial", "failed", "complete")
NOTE = (
    "Table table_7 was put on a device that does not exist or has too little memory free: it needs 5368709120 bytes "
    "(5.00 GiB), and the emptiest of the 8 devices has 1073741824 bytes (1.00 GiB) free."
)


def make_task(num_tables: int, num_devices: int, name: str = "dlrm-50x4/test/3") -> Task:
    tables = load_pool("dlrm-2021").tables.select(np.arange(num_tables))
    return capped_task(name, tables, num_devices, "a100-dgx", 1.5)


def make_view(num_devices: int, stage: str = "complete") -> PlacementView:
    task = make_task(3 * num_devices + 2, num_devices)
    assert task.known_placement is not None
    placement = np.array(task.known_placement)
    if stage == "empty":
        placement[:] = -1
    elif stage != "complete":
        placement[task.num_tables // 2 :] = -1
    placed = np.flatnonzero(placement >= 0)
    next_table = -1 if stage == "complete" else int(np.flatnonzero(placement < 0)[0])
    note = NOTE if stage == "failed" else ""
    if not placed.size:
        return PlacementView(task, placement, np.zeros((num_devices, 4)), 0.0, note, next_table)
    estimate = AnalyticalCostModel().estimate(placement[placed], task.tables.select(placed), task.topology)
    return PlacementView(task, placement, estimate.phases_ms, estimate.total_ms, note, next_table)


def with_phases(phases_ms: list[list[float]]) -> PlacementView:
    """A complete placement with these costs."""
    phases = np.array(phases_ms)
    return replace(make_view(len(phases)), phases_ms=phases, cost_ms=float(phases.max(axis=0).sum()))


def test_a_view_counts_placed_and_unplaced_tables() -> None:
    view = make_view(4, "partial")
    sizes, placed = view.task.tables.memory_bytes, view.placement >= 0
    assert view.tables_per_device.sum() == placed.sum()
    assert view.memory_used.tolist() == [sizes[view.placement == device].sum() for device in range(4)]
    text = " ".join(render_ansi(view).split())
    assert f"{(~placed).sum()} of 14 tables not placed yet" in text
    assert f"next: table_{view.next_table} (" in text
    largest = np.where(placed, 0, sizes).argmax()
    assert f"largest: table_{largest} (" in " ".join(render_ansi(replace(view, next_table=-1)).split())


@pytest.mark.parametrize("change", [{"phases_ms": np.full((4, 4), np.nan)}, {"cost_ms": np.inf}])
def test_a_view_without_finite_costs_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidPlacementError, match="finite"):
        replace(make_view(4), **change)


def test_the_most_loaded_devices_always_hold_the_slowest_of_each_phase() -> None:
    phases = np.full((40, 4), 5.0)
    phases[20:] = 1.0
    phases[37, 1] = 5.5  # slow in one phase, and little loaded all in all
    shown = with_phases(phases.tolist()).most_loaded()
    assert len(shown) == MAX_ROWS
    assert 37 in shown
    assert (np.diff(shown) > 0).all()
    assert (shown[:-1] < 20).all()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("num_devices", [1, 4, 128])
def test_the_text_is_plain_and_at_most_80_wide(num_devices: int, stage: str) -> None:
    text = render_ansi(make_view(num_devices, stage))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    assert ("112 are left out" in text) == (num_devices == 128)
    assert ("tables on 1 device, cost" in text) == (num_devices == 1)
    assert (f"FAILED: {NOTE}" in " ".join(text.split())) == ("FAILED" in text) == (stage == "failed")


def test_the_bars_show_work_and_waiting_on_one_time_axis_and_the_slowest_devices_have_stars() -> None:
    lines = render_ansi(with_phases([[2.0, 1.0, 1.0, 4.0], [1.0, 1.0, 0.5, 0.0]])).splitlines()
    assert any("F" * 6 + "f" * 3 + "b" * 3 + "B" * 12 in line for line in lines)
    assert any("F" * 3 + "." * 3 + "f" * 3 + "b" + "." * 14 in line for line in lines)
    assert "cost 8.000 ms" in lines[0]
    assert lines[3].split()[2:6] == ["2.000*", "1.000*", "1.000*", "4.000*"]
    assert lines[4].split()[2:6] == ["1.000", "1.000*", "0.500", "0.000"]


def test_texts_cannot_move_the_cursor_or_widen_the_text() -> None:
    view = replace(make_view(4), task=make_task(14, 4, name="ab" + "c" * 198), failure="a\x1b[2J\nb" + "c" * 500)
    text = render_ansi(view)
    assert "\x1b" not in text
    assert "FAILED: a?[2J?bccc" in " ".join(text.split())
    assert text.startswith("abccc")
    assert max(map(len, text.splitlines())) <= 80


needs_matplotlib = pytest.mark.skipif("rgb_array" not in RENDER_MODES, reason="needs the extra viz")


def text_boxes(figure: Any) -> list[tuple[str, Any]]:
    return [(label.get_text(), label.get_window_extent()) for axes in figure.axes for label in axes.texts]


def assert_legible(figure: Any) -> None:
    """No text leaves the page, and no two touch."""
    boxes = text_boxes(figure)
    for words, box in boxes:
        assert box.x0 >= 0, words
        assert box.y0 >= 0, words
        assert box.x1 <= figure.bbox.width, words
        assert box.y1 <= figure.bbox.height, words
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0
        assert apart, f"{one!r} touches {other!r}"


@needs_matplotlib
@pytest.mark.parametrize("num_devices", [1, 8, 128])  # rows of three heights; of 128 devices 112 are left out
def test_every_picture_is_legible(num_devices: int) -> None:
    views = [(stage, make_view(num_devices, stage)) for stage in STAGES[2:]]
    for _, view in views:
        assert_legible(draw(view))
    assert_legible(draw_comparison(views))
    with pytest.raises(InvalidPlacementError, match="nothing to compare"):
        draw_comparison([])


@needs_matplotlib
@pytest.mark.parametrize(
    "phases_ms",
    [
        [[1e-4, 1e-4, 1e-4, 2e-4], [3e-4, 1e-4, 1e-4, 1e-5]],
        [[1e4, 1.0, 1.0, 2e5], [3.0, 1.0, 1.0, 3e4]],
        [[0.0, 0.0, 0.0, 7.0], [0.0, 0.0, 0.0, 7.0]],
        [[5.0, 100.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]],
    ],
)
def test_extreme_costs_leave_pictures_legible_and_texts_80_wide(phases_ms: list[list[float]]) -> None:
    view = with_phases(phases_ms)
    assert_legible(draw(view))
    assert_legible(draw_comparison([("one", view), ("two", view)]))
    lines = render_ansi(view).splitlines()
    assert max(map(len, lines)) <= 80
    start = lines[2].index("memory")
    assert all(line[start - 2 : start].strip(".FfbB ") == "" and "/" in line[start:] for line in lines[3:5])


@needs_matplotlib
@pytest.mark.parametrize("env_id", ["EmbeddingPlacement-v0", "EmbeddingSharding-v0"])
@pytest.mark.parametrize("suite", ["generalize", "tier-generalize"])
def test_frames_of_all_tasks_of_an_environment_have_one_size(env_id: str, suite: str) -> None:
    """So one video can show several episodes, or several environments beside each other."""
    env = gymnasium.make(env_id, suite=suite, render_mode="rgb_array")
    tasks = sorted(env.unwrapped.tasks, key=lambda task: task.num_devices)
    sizes = set()
    for task in (tasks[0], tasks[-1]):
        env.reset(options={"task": task})
        sizes.add(env.render().shape)
    assert tasks[0].num_devices < tasks[-1].num_devices
    assert len(sizes) == 1


def test_frames_have_one_even_size_at_every_stage() -> None:
    frames = [render_rgb(make_view(2, stage)) for stage in STAGES]
    assert {frame.shape for frame in frames} == {(frames[0].shape[0], 1200, 3)}
    assert frames[0].shape[0] % 2 == 0
    assert all(frame.dtype == np.uint8 for frame in frames)
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(frames, 2))
    again = render_rgb(make_view(2, STAGES[0]))
    assert np.array_equal(again, frames[0])
    assert again.base is None
    assert again.flags.writeable


@needs_matplotlib
def test_what_is_written_in_a_picture() -> None:
    """Long names and dollar signs, which are no formulas; and how the cost is explained."""
    view = with_phases([[1.0] * 4, [2.0] * 4])
    says = [words for words, _ in text_boxes(draw(view))]
    assert any("The cost is the width of the chart" in words for words in says)
    odd = replace(view, task=replace(view.task, name="broken $x^{ mathematics " + "m" * 176), cost_ms=9.5)
    figure = draw(odd)
    assert_legible(figure)
    says = [words for words, _ in text_boxes(figure)]
    assert any(words.startswith("broken $x^{ math") for words in says)
    assert any("puts the whole at 9.50 ms" in words for words in says)
    assert_legible(draw(view, title="W" * 200))
    assert_legible(draw_comparison([("W" * 200, odd), ("a $x^{", view)]))


def pixels_like(frame: NDArray[np.uint8], color: str) -> int:
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
    return int((frame == wanted).all(axis=2).sum())


@needs_matplotlib
def test_pale_pixels_measure_how_long_devices_wait() -> None:
    pale = blend(PHASE_COLORS[3], PALE)
    balanced = render_rgb(with_phases([[1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, 4.0]]))
    waits_1, waits_2 = (render_rgb(with_phases([[1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, ms]])) for ms in (3.0, 2.0))
    assert pixels_like(balanced, pale) == 0
    assert pixels_like(waits_2, pale) == pytest.approx(2 * pixels_like(waits_1, pale), rel=0.03)


@needs_matplotlib
def test_a_comparison_has_one_scale() -> None:
    slow, fast = with_phases([[2.0] * 4, [1.0] * 4]), with_phases([[1.0] * 4, [1.0] * 4])
    figure = draw_comparison([("slow", slow), ("fast", fast)])
    lengths = sorted(
        float(xs[1] - xs[0])
        for xs, ys in (line.get_data() for line in figure.axes[0].lines)
        if ys[0] == ys[1] and xs[0] != xs[1]
    )
    assert len(lengths) == 2
    assert lengths[1] == pytest.approx(2 * lengths[0])
    words = [words for words, _ in text_boxes(figure)]
    assert "2.00 times fast" in words
    assert words.count("embedding part of an iteration") == 1
    for part in ("forward", "backward"):  # each names its compute phase and its all-to-all, in both panels
        assert words.count(part) == 4
    assert words.count("all-to-all") == 4
    assert_legible(figure)


@needs_matplotlib
def test_the_users_settings_neither_matter_nor_change() -> None:
    import matplotlib

    view = make_view(4)
    usual = render_rgb(view)
    colors = {"figure.facecolor": "black", "text.color": "white", "lines.marker": "o", "axes.grid": True}
    sizes = {"figure.dpi": 37, "figure.autolayout": True, "axes.xmargin": 0.3, "patch.linewidth": 9}
    fonts = {"font.size": 30, "font.weight": "bold", "font.style": "italic"}
    with matplotlib.rc_context({**colors, **sizes, **fonts}):
        before = dict(matplotlib.rcParams)
        theirs = render_rgb(view)
        assert dict(matplotlib.rcParams) == before
    assert np.array_equal(usual, theirs)


@needs_matplotlib
@pytest.mark.parametrize(
    "program",
    [
        # The environments do not import matplotlib, and drawing does not import pyplot.
        "import shard_gym, sys\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import shard_gym.envs.placement.rendering.figure\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n",
        # Without matplotlib there is text, and pictures name the extra.
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from shard_gym.envs.core.config import RENDER_MODES\n"
        "from shard_gym.envs.placement.rendering.modes import render\n"
        "from shard_gym.common.errors import MissingExtraError\n"
        "assert RENDER_MODES == ['ansi']\n"
        "try:\n"
        "    render(None, 'rgb_array')\n"
        "except MissingExtraError as error:\n"
        "    assert 'shard-gym[viz]' in str(error)\n"
        "else:\n"
        "    raise AssertionError('no error')\n",
    ],
    ids=["pyplot", "missing"],
)
def test_matplotlib_is_imported_for_pictures_alone(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@needs_matplotlib
def test_numbers_of_one_scale_have_equal_decimals() -> None:
    cases = [(0.7721, 8.0), (8.0, 8.0), (123.456, 150.0), (0.01234, 0.05), (12345.6, 2e4), (0.0, 1e-9), (1.5e9, 2e9)]
    written = ["0.77", "8.00", "123.5", "0.0123", "12,346", "0", "1.5e+09"]
    assert [format_like(value, scale) for value, scale in cases] == written


MODEL = make_cost_model(additive=True, splits=True)


def view_of(task: Task, plan: ShardingPlan) -> PlanView:
    cost = MODEL.estimate(plan, task.tables, task.topology)
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
