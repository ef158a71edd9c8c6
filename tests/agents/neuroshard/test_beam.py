"""NeuroShard's beam search and greedy grid, against a plain computation written here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents.neuroshard.beam import BeamSearch, _Parts, place_greedily
from shard_gym.agents.splits import SplitOptions
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.errors import NoPlacementFoundError
from shard_gym.sharding import check_plan
from shard_gym.tasks import Task

MODEL = make_sharding_cost_model("analytical")
COLUMNS = ("table_wise", "column_wise")


def options_of(task: Task, max_shards: int = 8) -> SplitOptions:
    return SplitOptions(task, MODEL, COLUMNS, max_shards)


def compute_ms(task: Task, parts: list[tuple[int, int]]) -> float:
    """Forward and backward of a device with these (table, columns)."""
    if not parts:
        return 0.0
    tables = task.tables.select([table for table, _ in parts]).with_dims([columns for _, columns in parts])
    estimate = MODEL.estimate(np.zeros(len(parts), np.int64), tables, whole(task))
    return float(estimate.phases_ms[0, [0, 3]].sum())


def plain_greedy(task: Task, parts: list[tuple[int, int]], limit: float) -> list[int] | None:
    """A device for each (table, columns): by descending cost alone, to the device with the shortest compute."""
    devices = range(task.num_devices)
    held: list[list[tuple[int, int]]] = [[] for _ in devices]
    features = task.tables.num_features
    most = limit * (task.tables.embedding_dim * features).sum() / task.num_devices
    alone = [
        MODEL.estimate(np.zeros(1, np.int64), task.tables.select([t]).with_dims([c]), whole(task)).total_ms
        for t, c in parts
    ]
    chosen = [0] * len(parts)
    for number in sorted(range(len(parts)), key=lambda each: -alone[each]):
        table, columns = parts[number]

        def memory(load: list[tuple[int, int]]) -> int:
            return sum(int(task.tables.select([t]).with_dims([c]).memory_bytes[0]) for t, c in load)

        fitting = [
            device
            for device in devices
            if memory([*held[device], parts[number]]) <= task.topology.memory_cap_bytes[device]
            and sum(c * features[t] for t, c in [*held[device], parts[number]]) <= most
        ]
        if not fitting:
            return None
        device = min(fitting, key=lambda each: (compute_ms(task, held[each]), memory(held[each])))
        held[device].append((table, columns))
        chosen[number] = device
    return chosen


def whole(task: Task) -> Any:
    """The devices with all of their memory."""
    return replace(task.topology, memory_cap_bytes=np.full(task.num_devices, 2**60))


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_grid_places_as_a_plain_loop_does(random_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, 7, 3, slack=3.0 if seed % 2 else None, dims=(8, 32, 64))
    level = np.zeros(7, np.int64)
    sets = [_Parts(np.arange(7), level)]
    sets.append(sets[0].halved(int(task.tables.embedding_dim.argmax())))
    limits = np.array([1.1, 1.5, 3.0])
    devices, costs = place_greedily(options_of(task), sets, limits)
    feasible = 0
    for number, parts in enumerate(sets):
        pairs = [
            (int(t), int(task.tables.embedding_dim[t]) >> h)
            for t, h in zip(parts.table, parts.level.tolist(), strict=True)
        ]
        for run, limit in enumerate(limits):
            plain = plain_greedy(task, pairs, float(limit))
            assert (plain is None) == (costs[number, run] == np.inf)
            if plain is not None:
                feasible += 1
                assert devices[number, run, : len(pairs)].tolist() == plain
    assert feasible


def test_splits_lower_the_cost_and_make_tables_fit(random_task: Any) -> None:
    task = random_task(np.random.default_rng(1), 5, 4, dims=(64, 128))
    options = options_of(task)
    unsplit = BeamSearch(max_splits=0).search(options)
    assert (unsplit.level == 0).all()
    found = BeamSearch().search(options)
    plan = check_plan(found.plan(), task.tables, task.topology)
    assert (found.level > 0).any()
    cost = MODEL.estimate_plan(plan, task.tables, task.topology).total_ms
    assert cost < MODEL.estimate_plan(unsplit.plan(), task.tables, task.topology).total_ms

    largest = int(task.tables.memory_bytes.max())
    caps = np.full(4, int(task.tables.memory_bytes.sum() / 4 * 1.2))
    assert largest > caps[0]
    tight = replace(task, topology=replace(task.topology, memory_cap_bytes=caps), splittable=True, known_placement=None)
    with pytest.raises(NoPlacementFoundError, match="Allow more"):
        BeamSearch(max_splits=0).search(options_of(tight))
    check_plan(BeamSearch().search(options_of(tight)).plan(), tight.tables, tight.topology)
