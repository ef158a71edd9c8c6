"""Moves and swaps: every feasible one is listed once, with the cost that a fresh estimate gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.agents.items import Items
from shard_gym.agents.neighbourhood import NO_TABLE, Moves, Neighbourhood
from shard_gym.cost_models import make_cost_model
from shard_gym.placement import memory_used

MODEL = make_cost_model("analytical")
SEEDS = st.integers(0, 2**32 - 1)


def after(placement: np.ndarray, moves: Moves, which: int) -> np.ndarray:
    """The placement after one move, written out."""
    changed = placement.copy()
    table, device, partner = (int(a[which]) for a in (moves.table, moves.device, moves.partner))
    if partner != NO_TABLE:
        changed[partner] = placement[table]
    changed[table] = device
    return changed


def cost_of(task: Any, placement: np.ndarray) -> float:
    return MODEL.estimate(placement, task.tables, task.topology).total_ms


@given(seed=SEEDS)
def test_every_move_costs_what_a_fresh_estimate_says(random_task: Any, seed: int) -> None:
    """With few tables on many devices, so that devices become empty and lose the table with the maximum.

    The smoothed cost is the sum of the 16-norms of the phases, just above the exact one.
    """
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 10)), int(rng.integers(1, 6)), devices_per_host=int(rng.integers(1, 6)))
    current = Neighbourhood(Items.of_tables(task, MODEL), task.known_placement)
    moves = current.moves(np.arange(task.num_tables))
    costs = current.costs_after(moves)
    for which in range(len(moves)):
        fresh = MODEL.estimate(after(task.known_placement, moves, which), task.tables, task.topology)
        assert costs.exact[which] == pytest.approx(fresh.total_ms, rel=1e-9)
        norms = [sum(ms**16 for ms in phase) ** (1 / 16) for phase in fresh.phases_ms.T.tolist()]
        assert costs.smoothed[which] == pytest.approx(sum(norms), rel=1e-9)
    assert current.costs.exact == pytest.approx(cost_of(task, task.known_placement), rel=1e-12)
    assert (costs.smoothed >= costs.exact * (1 - 1e-12)).all()
    assert (costs.smoothed <= costs.exact * task.num_devices ** (1 / 16) * (1 + 1e-12)).all()


@given(seed=SEEDS)
def test_moves_lists_exactly_the_feasible_moves_and_swaps(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, int(rng.integers(1, 8)), int(rng.integers(1, 4)), slack=1.3)
    placement, tables = task.known_placement, task.num_tables
    asked = np.flatnonzero(rng.random(tables) < 0.7)
    expected = set()
    for table in asked.tolist():
        options = [(device, NO_TABLE) for device in range(task.num_devices)]
        options += [(int(placement[partner]), partner) for partner in range(tables)]
        for device, partner in options:
            changed = placement.copy()
            changed[table] = device
            if partner != NO_TABLE:
                changed[partner] = placement[table]
            used = memory_used(changed, task.tables, task.num_devices)
            if device != placement[table] and (used <= task.topology.memory_cap_bytes).all():
                expected.add((table, device, partner))
    moves = Neighbourhood(Items.of_tables(task, MODEL), placement).moves(asked)
    listed = list(zip(moves.table.tolist(), moves.device.tolist(), moves.partner.tolist(), strict=True))
    assert len(listed) == len(set(listed)) == len(moves)
    assert set(listed) == expected


@given(seed=SEEDS)
def test_applying_a_move_is_starting_from_there(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 7, 3, slack=1.8)
    given = task.known_placement.copy()
    current = Neighbourhood(Items.of_tables(task, MODEL), given)
    given[:] = 0  # copied
    assert np.array_equal(current.placement, task.known_placement)
    for _ in range(6):
        moves = current.moves(np.arange(7))
        if not len(moves):
            return
        which = int(rng.integers(len(moves)))
        expected, costs = after(current.placement, moves, which), current.costs_after(moves)
        before = current.placement
        kept = before.copy()
        current.set_placement(current.placement_after(moves, which))
        assert np.array_equal(current.placement, expected)
        assert np.array_equal(before, kept)  # a placement handed out is never written to
        assert current.costs.exact == pytest.approx(costs.exact[which], rel=1e-9)
        assert current.costs.smoothed == pytest.approx(costs.smoothed[which], rel=1e-9)
        fresh = Neighbourhood(Items.of_tables(task, MODEL), expected)
        assert (fresh.costs.exact, fresh.costs.smoothed) == (current.costs.exact, current.costs.smoothed)
        again, other = current.moves(np.arange(7)), fresh.moves(np.arange(7))
        assert np.array_equal(current.costs_after(again).exact, fresh.costs_after(other).exact)


def test_critical_tables_are_those_of_the_slowest_devices(random_task: Any) -> None:
    task = random_task(np.random.default_rng(4), 9, 4)
    placement = np.array([0, 1, 2, 3, 0, 1, 2, 3, 0])
    current = Neighbourhood(Items.of_tables(task, MODEL), placement)
    phases = MODEL.estimate(placement, task.tables, task.topology).phases_ms
    slowest = {int(phases[:, phase].argmax()) for phase in range(4)}
    assert current.critical_tables().tolist() == [t for t in range(9) if placement[t] in slowest]
    assert len(current.critical_tables()) < 9
