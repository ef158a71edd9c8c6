"""How the tables of an episode are split: not at all, or in the cheapest form whose parts have room on all days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel, make_sharding_cost_model
from shard_gym.drift.levels import GROWING, SPOT, STRONG, DriftLevel
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replanning.parts import Parts
from shard_gym.envs.replanning.planner import Planner
from shard_gym.envs.replanning.split import split_of
from shard_gym.errors import InvalidTaskError
from shard_gym.forms import FINER, FORMS, SplitTask, forms_of

MakeDriftTask = Callable[..., DriftTask]
MODEL = make_sharding_cost_model("analytical")


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
    loads = MODEL.table_loads(parts, topology)[None]
    greedy = Planner(MODEL, topology).greedy(
        loads, form.loads(MODEL)[None], parts.memory_bytes, topology.memory_cap_bytes
    )
    return MODEL.estimate_plan(form.plan(greedy[0]), form.origin.tables, form.origin.topology).total_ms


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
