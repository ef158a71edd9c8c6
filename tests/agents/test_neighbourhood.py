"""Moves and swaps: every feasible one, once, and each at the cost a fresh estimate gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.agents.neighbourhood import NOBODY, Changes, Neighbourhood
from shard_gym.cost_models import make_cost_model
from shard_gym.placement import memory_used

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)


def after(placement: np.ndarray, changes: Changes, which: int) -> np.ndarray:
    """The placement after one change, written out."""
    changed = placement.copy()
    table, device, partner = (int(a[which]) for a in (changes.table, changes.device, changes.partner))
    if partner != NOBODY:
        changed[partner] = placement[table]
    changed[table] = device
    return changed


def cost_of(task: Any, placement: np.ndarray) -> float:
    return MODEL.estimate(placement, task.tables, task.topology).total_ms


@given(seed=SEEDS)
def test_every_change_costs_what_a_fresh_estimate_says(random_task: Any, seed: int) -> None:
    """With few tables on many devices, so that devices become empty and lose the table that held a maximum."""
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 10)), int(rng.integers(1, 6)), devices_per_host=int(rng.integers(1, 6)))
    around = Neighbourhood(task, MODEL, task.known_placement)
    changes = around.around(np.arange(task.num_tables))
    fresh = [cost_of(task, after(task.known_placement, changes, i)) for i in range(len(changes))]
    assert around.costs_after(changes).exact == pytest.approx(np.array(fresh), rel=1e-9)
    assert around.costs.exact == pytest.approx(cost_of(task, task.known_placement), rel=1e-12)


@given(seed=SEEDS)
def test_the_smoothed_cost_is_a_norm_just_above_the_exact_one(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 10)), int(rng.integers(1, 6)), devices_per_host=int(rng.integers(1, 6)))
    around = Neighbourhood(task, MODEL, task.known_placement)
    changes = around.around(np.arange(task.num_tables))
    costs = around.costs_after(changes)
    for which in range(len(changes)):
        placement = after(task.known_placement, changes, which)
        phases = MODEL.estimate(placement, task.tables, task.topology).phases_ms
        norms = [sum(ms**16 for ms in phase) ** (1 / 16) for phase in phases.T.tolist()]
        assert costs.smoothed[which] == pytest.approx(sum(norms), rel=1e-9)
    assert (costs.smoothed >= costs.exact * (1 - 1e-12)).all()
    assert (costs.smoothed <= costs.exact * task.num_devices ** (1 / 16) * (1 + 1e-12)).all()


def test_the_changes_tested_empty_devices_and_lower_maxima(random_task: Any) -> None:
    """The property above would say little if no change did."""
    task = random_task(np.random.default_rng(1), 6, 4, dims=(4, 128))
    around = Neighbourhood(task, MODEL, np.array([0, 0, 1, 1, 2, 3]))
    changes = around.around(np.arange(6))
    emptied = sum(set(after(around.placement, changes, i).tolist()) != {0, 1, 2, 3} for i in range(len(changes)))
    assert emptied > 2
    widest = [max(task.tables.embedding_dim[around.placement == d]) for d in range(4)]
    lowered = 0
    for i in range(len(changes)):
        placement = after(around.placement, changes, i)
        lowered += any(0 < max(task.tables.embedding_dim[placement == d], default=0) < widest[d] for d in range(4))
    assert lowered > 2
    assert {bool(partner == NOBODY) for partner in changes.partner} == {True, False}


def test_equal_tables_hold_a_maximum_together(planted_task: Any) -> None:
    """When one of two equally wide tables leaves, the maximum stays."""
    task, planted = planted_task(np.random.default_rng(0), 3, 2)
    around = Neighbourhood(task, MODEL, planted)
    changes = around.around(np.arange(6))
    fresh = [cost_of(task, after(planted, changes, i)) for i in range(len(changes))]
    assert around.costs_after(changes).exact == pytest.approx(np.array(fresh), rel=1e-9)
    assert min(fresh) >= around.costs.exact * (1 - 1e-12)


@given(seed=SEEDS)
def test_around_lists_exactly_the_feasible_moves_and_swaps(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 8)), int(rng.integers(1, 4)), slack=1.3)
    placement, tables = task.known_placement, task.num_tables
    asked = np.flatnonzero(rng.random(tables) < 0.7)
    expected = set()
    for table in asked.tolist():
        options = [(device, NOBODY) for device in range(task.num_devices)]
        options += [(int(placement[partner]), partner) for partner in range(tables)]
        for device, partner in options:
            changed = placement.copy()
            changed[table] = device
            if partner != NOBODY:
                changed[partner] = placement[table]
            used = memory_used(changed, task.tables, task.num_devices)
            if device != placement[table] and (used <= task.topology.memory_cap_bytes).all():
                expected.add((table, device, partner))
    changes = Neighbourhood(task, MODEL, placement).around(asked)
    listed = list(zip(changes.table.tolist(), changes.device.tolist(), changes.partner.tolist(), strict=True))
    assert len(listed) == len(set(listed)) == len(changes)
    assert set(listed) == expected


@given(seed=SEEDS)
def test_applying_a_change_is_starting_from_there(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 7, 3, slack=1.8)
    around = Neighbourhood(task, MODEL, task.known_placement)
    for _ in range(6):
        changes = around.around(np.arange(7))
        if not len(changes):
            return
        which = int(rng.integers(len(changes)))
        expected, costs = after(around.placement, changes, which), around.costs_after(changes)
        before = around.placement
        kept = before.copy()
        around.set_placement(around.placement_after(changes, which))
        assert np.array_equal(around.placement, expected)
        assert np.array_equal(before, kept)  # a placement handed out is never written to
        assert around.costs.exact == pytest.approx(costs.exact[which], rel=1e-9)
        assert around.costs.smoothed == pytest.approx(costs.smoothed[which], rel=1e-9)
        fresh = Neighbourhood(task, MODEL, expected)
        assert (fresh.costs.exact, fresh.costs.smoothed) == (around.costs.exact, around.costs.smoothed)
        again, other = around.around(np.arange(7)), fresh.around(np.arange(7))
        assert np.array_equal(around.costs_after(again).exact, fresh.costs_after(other).exact)


def test_the_placement_given_is_copied(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 5, 2)
    placement = np.array([0, 1, 0, 1, 0])
    around = Neighbourhood(task, MODEL, placement)
    placement[:] = 0
    assert around.placement.tolist() == [0, 1, 0, 1, 0]


def test_no_tables_no_changes(random_task: Any) -> None:
    task = random_task(np.random.default_rng(0), 5, 2)
    around = Neighbourhood(task, MODEL, np.zeros(5, np.int64))
    assert len(around.around(np.empty(0, np.int64))) == 0
    alone = random_task(np.random.default_rng(0), 5, 1)
    assert len(Neighbourhood(alone, MODEL, np.zeros(5, np.int64)).around(np.arange(5))) == 0


def test_critical_tables_are_those_of_the_slowest_devices(random_task: Any) -> None:
    task = random_task(np.random.default_rng(4), 9, 4)
    placement = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0])
    around = Neighbourhood(task, MODEL, placement)
    phases = MODEL.estimate(placement, task.tables, task.topology).phases_ms
    slowest = {int(phases[:, phase].argmax()) for phase in range(4)}
    assert around.critical_tables().tolist() == [t for t in range(9) if placement[t] in slowest]
    assert len(around.critical_tables()) < 9
