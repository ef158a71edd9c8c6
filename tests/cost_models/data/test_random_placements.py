"""Simulated data: reproducible, varied, within the memory, and no placement across two splits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data.random_placements import PlacementSampler, fits, simulate
from shard_gym.cost_models.data.splits import SPLITS, SplitCosts
from shard_gym.cost_models.neural.rivals import RivalCounts, rival_tasks
from shard_gym.errors import InvalidOptionError, UnknownNameError
from shard_gym.placement import check_placement
from shard_gym.tables import Tables

MODEL = AnalyticalCostModel()
FEW = {"train": 8, "validation": 4, "test": 6}

Groups = dict[str, np.ndarray]


def placements_of(costs: SplitCosts) -> Any:
    """Tables, topology and placement of every placement."""
    data = costs.data
    for p in range(len(data)):
        rows = slice(data.start[p], data.start[p + 1])
        yield data.tables.select(data.members[rows]), data.topologies[data.topology[p]], data.devices[rows]


def test_costs_are_those_of_the_model(costs: SplitCosts) -> None:
    data = costs.data
    assert data.source == MODEL.fingerprint
    for p, (tables, topology, placement) in enumerate(placements_of(costs)):
        said = MODEL.estimate(check_placement(placement, tables, topology), tables, topology)
        assert data.cost_ms[p] == said.total_ms
        assert np.array_equal(data.phases_ms[p, : topology.num_devices], said.phases_ms)


def test_every_split_has_its_own_tables(costs: SplitCosts, sampler: PlacementSampler, groups: Groups) -> None:
    assert [len(costs.part(split)) for split in SPLITS] == [400, 60, 120]
    for split in SPLITS:
        own = {sampler.tables.names[row] for row in groups[split]}
        part = costs.part(split)
        assert {part.tables.names[row] for row in part.members} <= own


def test_sizes_widths_and_shapes_vary(costs: SplitCosts) -> None:
    part = costs.part("train")
    counts = np.diff(part.start)
    assert (counts.min(), counts.max()) == (3, 30)
    assert set(part.num_devices) == {1, 2, 3, 4}
    assert set(part.tables.embedding_dim) == {16, 64}
    busiest = [np.bincount(devices).max() / len(devices) for _, topology, devices in placements_of(costs)]
    widths = costs.data.num_devices
    crowded = np.array(busiest)[widths == 4]
    assert crowded.min() < 0.35  # nearly even
    assert crowded.max() > 0.8  # nearly all on one


def test_equal_seeds_give_equal_data_and_no_split_hangs_on_another(
    sampler: PlacementSampler, groups: Groups, same_data: Any
) -> None:
    one, same, other = (simulate(MODEL, sampler, groups, FEW, seed) for seed in (1, 1, 2))
    assert same_data(one.data, same.data)
    assert np.array_equal(one.table_split, same.table_split)
    assert not same_data(one.data, other.data)
    fewer = simulate(MODEL, sampler, groups, {"train": 2, "test": 6}, 1)
    assert np.array_equal(fewer.part("test").cost_ms, one.part("test").cost_ms)


def test_a_small_group_serves_large_placements(sampler: PlacementSampler) -> None:
    groups = {"train": np.array([3, 4])}
    data = simulate(MODEL, replace(sampler, num_tables=(6, 6)), groups, {"train": 5}, 0).part("train")
    assert set(np.diff(data.start)) == {6}


def sized(tables: Tables, gib: float) -> Tables:
    """`tables`, each with about so many GiB."""
    rows = (gib * 2**30 / tables.row_bytes).astype(np.int64)
    return replace(tables, num_embeddings=np.maximum(rows, tables.num_embeddings.max()))


@settings(max_examples=10)
@given(st.integers(0, 1_000))
def test_the_memory_is_kept(sampler: PlacementSampler, seed: int) -> None:
    tight = replace(sampler, tables=sized(sampler.tables.with_dims(64), 20.0), num_tables=(3, 9), embedding_dims=())
    rng = np.random.default_rng(seed)
    for _ in range(5):
        tables, topology, placement = tight.sample(rng, np.arange(20))
        assert fits(placement, tables, topology)
        check_placement(placement, tables, topology)


def test_what_never_fits_is_refused(sampler: PlacementSampler) -> None:
    vast = replace(sampler, tables=sized(sampler.tables.with_dims(64), 100.0), embedding_dims=())
    with pytest.raises(InvalidOptionError, match="did not fit 1 to 4 x A100"):
        vast.sample(np.random.default_rng(0), np.arange(20))


@pytest.mark.parametrize(
    "change",
    [
        {"num_tables": (0, 3)},
        {"num_tables": (4, 3)},
        {"num_devices": 4},
        {"num_devices": (1.0, 2)},
        {"balanced": 1.5},
        {"balanced": True},
    ],
    ids=str,
)
def test_samplers_that_mean_nothing_are_refused(sampler: PlacementSampler, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(change))):
        replace(sampler, **change)


def test_counts_and_groups_must_go_together(sampler: PlacementSampler, groups: Groups) -> None:
    with pytest.raises(InvalidOptionError, match="no group has that name"):
        simulate(MODEL, sampler, {"train": groups["train"]}, FEW, 0)
    with pytest.raises(InvalidOptionError, match="at least 0"):
        simulate(MODEL, sampler, groups, {"train": -1}, 0)
    with pytest.raises(InvalidOptionError, match="must be apart"):
        simulate(MODEL, sampler, {**groups, "test": groups["train"][:3]}, FEW, 0)
    with pytest.raises(UnknownNameError, match="no split named 'tests'"):
        simulate(MODEL, sampler, {**groups, "tests": groups["test"]}, FEW, 0)


# Rivals


def test_rivals_are_placements_of_one_task_and_the_searched_are_best(sampler: PlacementSampler, groups: Groups) -> None:
    tasks = rival_tasks(MODEL, sampler, groups["test"], 3, seed=0)
    for task in tasks:
        assert len(task.topologies) == 1
        assert task.num_devices.min() >= 2
        assert all(np.array_equal(np.sort(rows), np.sort(task.members[: task.start[1]])) for rows in _members(task))
        assert 100 <= len(task) <= 121
        assert task.cost_ms[-1] <= task.cost_ms.min() * (1 + 1e-12)  # the search's last
        assert np.median(task.cost_ms) > 1.05 * task.cost_ms.min()
    again = rival_tasks(MODEL, sampler, groups["test"], 3, seed=0)
    assert all(np.array_equal(one.cost_ms, other.cost_ms) for one, other in zip(tasks, again, strict=True))
    assert not np.array_equal(tasks[0].cost_ms, tasks[1].cost_ms)


def _members(task: Any) -> list[np.ndarray]:
    return [task.members[task.start[p] : task.start[p + 1]] for p in range(len(task))]


def test_fewer_rivals_can_be_had(sampler: PlacementSampler, groups: Groups) -> None:
    counts = RivalCounts(random=4, greedy=2, proposals=50, searched=0)
    (task,) = rival_tasks(MODEL, sampler, groups["test"], 1, seed=0, rivals=counts)
    assert len(task) <= 7
