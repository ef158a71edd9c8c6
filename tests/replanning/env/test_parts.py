"""How the tables of an episode are split, and their parts: bytes and loads on each day, and known placements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models import AnalyticalCostModel, AnalyticalShardingModel, make_cost_model
from shard_gym.plans.placement import memory_used
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE
from shard_gym.plans.statistics import shard_tables
from shard_gym.replanning import DriftTask
from shard_gym.replanning.drift.levels import GROWING, SPOT, STRONG, DriftLevel
from shard_gym.replanning.drift.load_grid import drifted_tables
from shard_gym.replanning.drift.tasks import DAYS, HEADROOM_DAYS, HISTORY_DAYS
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.planner import Planner
from shard_gym.replanning.env.split import split_of
from shard_gym.replanning.env.windows import window_means
from shard_gym.tables import Tables
from shard_gym.tasks.forms import FINER, FORMS, NO_LIMIT, Form, SplitTask, formed, forms_of, whole

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_cost_model(additive=True, splits=True)
SEED = 4
"""One of the five tables of this task is heavy."""


def test_tables_that_drift_beyond_their_limits_are_told_with_the_task(drift_task: MakeDriftTask) -> None:
    task = drift_task(level=STRONG)
    tables = replace(task.task.tables, pooling_factor=np.full(len(task.task.tables), 1e6))
    task = replace(task, task=replace(task.task, tables=tables))
    parts = Parts(task, whole(task.task), MODEL, task.num_devices)
    with pytest.raises(InvalidTaskError, match=r"task 'drift 0' drift beyond what tables may be: pooling_factor of"):
        parts.loads(0, np.ones(task.num_tables))


def form_of(task: DriftTask, kind: str, widest: int = NO_LIMIT) -> SplitTask:
    found = formed(task.task, Form(widest, kind))
    assert found is not None
    return found


def tables_on(task: DriftTask, day: int, lookups: np.ndarray | None = None) -> Tables:
    drift = task.drift
    given = np.ones(task.task.num_tables) if lookups is None else lookups
    return drifted_tables(task.task.tables, task.popularity, given, drift.rows[day], drift.exponent[day])


def test_bytes_follow_growth_and_pruning(drift_task: MakeDriftTask) -> None:
    task = drift_task(level=replace(GROWING, pruned=0.3, age_days=(5.0, 9.0)))
    parts = Parts(task, whole(task.task), MODEL, 2)
    every = np.stack([parts.bytes_of(day) for day in range(HISTORY_DAYS + DAYS)])
    for day, found in enumerate(every):
        assert found.tolist() == tables_on(task, day).memory_bytes.tolist()
    assert every[0].tolist() == task.task.tables.memory_bytes.tolist()
    steps = np.diff(every, axis=0)
    assert (steps > 0).any(axis=0).all()
    assert (steps < 0).any(axis=0).all()  # each has a pruning day
    assert parts.free(3).tolist() == task.task.topology.memory_cap_bytes.tolist()


def test_a_table_without_rows_keeps_one(drift_task: MakeDriftTask) -> None:
    task = drift_task(level=DriftLevel(pruned=1.0))
    last = HISTORY_DAYS + DAYS - 1
    assert (
        Parts(task, whole(task.task), MODEL, 2).bytes_of(last).tolist()
        == (task.task.tables.memory_bytes // task.task.tables.num_embeddings).tolist()
    )


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("kind", [ROW_WISE, DATA_PARALLEL])
def test_spread_tables_take_memory_of_every_device(drift_task: MakeDriftTask, kind: str, devices: int) -> None:
    task = drift_task(5, 3, SEED, GROWING)
    form = form_of(task, kind)
    parts = Parts(task, form, MODEL, devices)
    for day in (0, 7, 16):
        tables = tables_on(task, day)
        shards = shard_tables(tables.select(form.spread[kind]), kind, parts.topology)
        taken = task.task.topology.memory_cap_bytes[:devices] - parts.free(day)
        assert taken.tolist() == [shards.memory_bytes.sum()] * devices
        assert parts.bytes_of(day).tolist() == tables.select(form.table).memory_bytes.tolist()
    assert parts.free(16)[0] < parts.free(0)[0]


def test_column_parts_have_the_rows_of_their_table(drift_task: MakeDriftTask) -> None:
    task = drift_task(5, 3, SEED, GROWING)
    form = form_of(task, TABLE_WISE, 32)
    parts = Parts(task, form, MODEL, 3)
    assert parts.count == len(form.table) > 5
    dims = form.task.tables.embedding_dim
    for day in (0, 9):
        expected = tables_on(task, day).select(form.table).with_dims(dims).memory_bytes
        assert parts.bytes_of(day).tolist() == expected.tolist()


def test_growth_goes_on_as_in_the_last_three_days(drift_task: MakeDriftTask) -> None:
    task = drift_task(5, 3, SEED, replace(GROWING, age_days=(5.0, 9.0), pruned=0.3))
    form = form_of(task, DATA_PARALLEL)
    parts, origin = Parts(task, form, MODEL, 3), task.task.tables
    fell = 0
    for day in range(HISTORY_DAYS, HISTORY_DAYS + DAYS):
        now, before = task.drift.rows[[day, day - 3]]
        rows = []
        for table in range(5):
            grown = max(now[table] - before[table], 0.0) / 3 * HEADROOM_DAYS
            fell += bool(now[table] < before[table])
            rows.append(round(int(origin.num_embeddings[table]) * (now[table] + grown)))
        ahead = np.array(rows) * (origin.memory_bytes // origin.num_embeddings)
        bytes_of, free = parts.bytes_ahead(day)
        assert bytes_of.tolist() == ahead[form.table].tolist()
        spread = int(ahead[form.spread[DATA_PARALLEL]].sum())
        assert free.tolist() == (task.task.topology.memory_cap_bytes - spread).tolist()
    assert fell


@pytest.mark.parametrize("seed", range(2))
def test_the_known_placement_has_room_on_all_days(
    drift_task: MakeDriftTask, short: Callable[..., DriftTask], seed: int
) -> None:
    task = short(drift_task(8, 2, seed, replace(GROWING, age_days=(5.0, 9.0))), 1.2)
    known = Parts(task, whole(task.task), MODEL, 2).known
    for day in range(HISTORY_DAYS + DAYS):
        assert (memory_used(known, tables_on(task, day), 2) <= task.task.topology.memory_cap_bytes).all()


def test_tables_that_outgrow_all_devices_are_refused(drift_task: MakeDriftTask) -> None:
    task = drift_task(6, 2, level=replace(GROWING, age_days=(5.0, 9.0), pruned=0.0), cap=0.9)
    with pytest.raises(
        InvalidTaskError, match=r"task 'drift 0' need up to .*GiB.* on 2 devices with .*Raise memory_ca"
    ):
        Parts(task, whole(task.task), MODEL, 2).known  # noqa: B018


def test_fewer_devices_have_the_least_cap(drift_task: MakeDriftTask) -> None:
    task = drift_task(4, 3)
    caps = task.task.topology.memory_cap_bytes - np.array([0, 7, 3])
    task = replace(task, task=replace(task.task, topology=replace(task.task.topology, memory_cap_bytes=caps)))
    assert Parts(task, whole(task.task), MODEL, 3).free(0).tolist() == caps.tolist()
    assert Parts(task, whole(task.task), MODEL, 2).free(0).tolist() == [caps.min()] * 2


@pytest.mark.parametrize(
    ("kind", "widest"), [(TABLE_WISE, NO_LIMIT), (TABLE_WISE, 32), (ROW_WISE, NO_LIMIT), (DATA_PARALLEL, 64)]
)
def test_costs_are_those_of_the_drifted_tables(drift_task: MakeDriftTask, kind: str, widest: int) -> None:
    task, rng = drift_task(5, 3, SEED, GROWING), np.random.default_rng(0)
    form = form_of(task, kind, widest)
    for devices, day in ((2, HISTORY_DAYS), (3, 12)):
        parts = Parts(task, form, MODEL, devices)
        means = window_means(task.drift.lookups, day * 24, 24)[rng.integers(24)]
        for lookups in (*means, *task.drift.lookups[day * 96 + rng.integers(96, size=3)]):
            placement = rng.integers(devices, size=parts.count)
            found = Planner(MODEL, parts.topology).costs(*parts.loads(day, lookups), placement)
            tables = tables_on(task, day, lookups)
            parted = tables.select(form.table).with_dims(form.task.tables.embedding_dim)
            held = MODEL.reduce(MODEL.loads(parted, parts.topology), placement, devices)
            for spread, some in form.spread.items():
                shards = shard_tables(tables.select(some), spread, parts.topology)
                for loads in MODEL.loads(shards, parts.topology, spread):
                    held = MODEL.add(held, loads)
            exact = MODEL.costs(held, parts.topology.cluster())[1]
            assert float(found) == pytest.approx(float(exact), rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "level", "model"),
    [
        (TABLE_WISE, GROWING, MODEL),
        (ROW_WISE, STRONG, AnalyticalShardingModel("fp16")),
        (DATA_PARALLEL, GROWING, AnalyticalShardingModel("fp16")),
    ],
)
def test_no_placement_costs_more_than_the_highest(
    drift_task: MakeDriftTask, kind: str, level: DriftLevel, model: AnalyticalShardingModel
) -> None:
    task = drift_task(5, 3, SEED, level)
    parts = Parts(task, form_of(task, kind), model, 3)
    highest, worst = parts.highest_ms(), 0.0
    placements = np.stack(np.meshgrid(*[np.arange(3)] * parts.count, indexing="ij"), axis=-1).reshape(-1, parts.count)
    for day in range(HISTORY_DAYS, HISTORY_DAYS + DAYS, 3):
        loads, everywhere = parts.loads(day, task.drift.lookups[day * 96 : (day + 1) * 96 : 12])
        costs = Planner(model, parts.topology).costs(loads[:, None], everywhere[:, None], placements[None])
        worst = max(worst, float(costs.max()))
    assert 0.3 * highest < worst <= highest


def with_caps(task: DriftTask, share: float) -> DriftTask:
    """The task with so much of its tables' memory at the beginning on each device."""
    caps = np.full(task.task.num_devices, int(share * task.task.tables.memory_bytes.sum()))
    topology = replace(task.task.topology, memory_cap_bytes=caps)
    return replace(task, task=replace(task.task, topology=topology))


def has_room(task: DriftTask, form: SplitTask, devices: int) -> bool:
    try:
        Parts(task, form, MODEL, devices).known  # noqa: B018
    except InvalidTaskError:
        return False
    return True


def cost_of(form: SplitTask) -> float:
    """ms under the cost model of the plan of the greedy placement."""
    parts, topology = form.task.tables, form.task.topology
    loads = MODEL.loads(parts, topology)[None]
    greedy = Planner(MODEL, topology).greedy(
        loads, form.loads(MODEL)[None], parts.memory_bytes, topology.memory_cap_bytes
    )
    return MODEL.estimate(form.plan(greedy[0]), form.origin.tables, form.origin.topology).total_ms


def same_form(one: SplitTask, other: SplitTask) -> bool:
    return (
        np.array_equal(one.table, other.table)
        and one.spread.keys() == other.spread.keys()
        and all(np.array_equal(one.spread[kind], other.spread[kind]) for kind in one.spread)
    )


def test_tables_stay_whole_where_they_may_not_be_split(drift_task: MakeDriftTask) -> None:
    task = drift_task(7, 3)
    for model in (MODEL, AnalyticalCostModel()):
        form = split_of(task, model)
        assert form.table.tolist() == list(range(7))
        assert not form.spread
        assert form.task is task.task


@pytest.mark.parametrize("seed", range(3))
def test_the_form_is_the_cheapest_with_room(drift_task: MakeDriftTask, seed: int) -> None:
    task = drift_task(5, 3, seed, splittable=True)
    forms = forms_of(task.task, FORMS)
    assert len(forms) > 1
    chosen = split_of(task, MODEL)
    assert cost_of(chosen) == pytest.approx(min(map(cost_of, forms)), rel=1e-9)
    assert cost_of(chosen) < max(map(cost_of, forms))


@pytest.mark.parametrize(("level", "share"), [(GROWING, 0.75), (SPOT, 0.55), (STRONG, 0.36)])
def test_a_form_without_room_on_all_days_is_not_chosen(
    drift_task: MakeDriftTask, level: DriftLevel, share: float
) -> None:
    """With all devices and with the fewest that are ever there."""
    differ = 0
    for seed in range(6):
        task = with_caps(drift_task(5, 3, seed, level, splittable=True), share)
        numbers = {int(task.available.sum(axis=1).min()), 3}
        forms = forms_of(task.task, FORMS)
        good = [form for form in forms if all(has_room(task, form, devices) for devices in numbers)]
        differ += 0 < len(good) < len(forms)
        try:
            chosen = split_of(task, MODEL)
        except InvalidTaskError:
            assert not good
            continue
        assert all(has_room(task, chosen, devices) for devices in numbers)
        if good:
            assert any(same_form(chosen, form) for form in good)
        else:
            assert any(same_form(chosen, form) for form in forms_of(task.task, FINER))
    assert differ


def test_tables_that_fit_in_no_form_are_refused(drift_task: MakeDriftTask) -> None:
    grows = drift_task(5, 2, level=DriftLevel(growth=1.0, age_days=(3.0, 3.0)), splittable=True)
    with pytest.raises(
        InvalidTaskError, match=r"split, they have no room on 2 devices on all days.*let them grow less"
    ):
        split_of(with_caps(grows, 1.0), MODEL)


def test_a_model_without_shards_is_refused_for_tables_that_may_be_split(drift_task: MakeDriftTask) -> None:
    model = AnalyticalCostModel()
    with pytest.raises(InvalidTaskError, match=f"cost model '{model.fingerprint}' knows no shards"):
        split_of(drift_task(splittable=True), model)
