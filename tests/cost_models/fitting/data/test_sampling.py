"""Sampled placements: a function of seed and number, within the memory, and never of tables of two splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models.fitting import PlacementSampler
from shard_gym.cost_models.fitting.data.sampling import CYCLE, SampledPlacement, split_of
from shard_gym.cost_models.fitting.data.splits import SPLITS
from shard_gym.plans.placement import check_placement
from shard_gym.tables import Workload, load_pool

GIB = 2**30
SAMPLER = PlacementSampler(Workload(4096), "h200-dgx", 4, 4 * GIB)
NUMBERS = st.integers(0, 5_000)


def same(one: SampledPlacement, other: SampledPlacement) -> bool:
    return (
        one.split == other.split
        and one.tables.names == other.tables.names
        and np.array_equal(one.tables.embedding_dim, other.tables.embedding_dim)
        and np.array_equal(one.placement, other.placement)
    )


@given(NUMBERS)
def test_a_placement_depends_on_seed_and_number_alone(number: int) -> None:
    again = replace(SAMPLER)
    again.sample(number + 1)  # earlier samples have no effect
    assert same(SAMPLER.sample(number), again.sample(number))
    assert not same(SAMPLER.sample(number), replace(SAMPLER, seed=1).sample(number))


@given(NUMBERS)
def test_a_placement_fits_one_device_and_keeps_its_rows(number: int) -> None:
    sampled = SAMPLER.sample(number)
    check_placement(sampled.placement, sampled.tables, sampled.topology)
    assert sampled.topology.num_devices == 4
    assert 1 <= len(sampled.tables) <= 4 * SAMPLER.tables_per_device
    assert sampled.tables.memory_bytes.sum() <= 4 * GIB
    assert ((sampled.tables.embedding_dim >= 4) & (sampled.tables.embedding_dim <= 128)).all()
    assert len(set(sampled.tables.names)) == len(sampled.tables)
    rows = dict(zip(SAMPLER.tables.names, SAMPLER.tables.num_embeddings, strict=True))
    assert [rows[name] for name in sampled.tables.names] == sampled.tables.num_embeddings.tolist()


@given(NUMBERS, st.integers(0, 3), st.sampled_from([512, 65_536]))
def test_a_table_has_one_split_whatever_the_seed_and_the_batch_size(number: int, seed: int, size: int) -> None:
    sampled = replace(SAMPLER, seed=seed, workload=Workload(size)).sample(number)
    split_by_name = {SAMPLER.tables.names[row]: split for split in SPLITS for row in SAMPLER.groups[split]}
    assert {split_by_name[name] for name in sampled.tables.names} == {sampled.split} == {split_of(number)}


def test_placements_of_all_kinds_occur() -> None:
    sampled = [SAMPLER.sample(number) for number in range(200)]
    assert [sum(each.split == split for each in sampled) for split in SPLITS] == [140, 20, 40]
    counts = [len(each.tables) for each in sampled]
    assert min(counts) == 1
    assert max(counts) > 100
    empty = [4 - len(set(each.placement.tolist())) for each in sampled if len(each.tables) > 8]
    assert 0 in empty
    assert max(empty) >= 2
    widths = [set(each.tables.embedding_dim.tolist()) for each in sampled]
    assert {4, 128} <= set().union(*widths)
    assert any(len(each) > 10 for each in widths)
    assert any(each == {128} for each in widths)


def test_test_tables_are_placed_several_times() -> None:
    sampled = [SAMPLER.sample(number) for number in range(2 * CYCLE) if split_of(number) == "test"]
    one, other = sampled[:8], sampled[8:]
    assert len(other) == 8
    assert {each.tables.names for each in one} != {each.tables.names for each in other}
    for group in (one, other):
        assert len({each.tables.names for each in group}) == 1
        assert len({each.tables.embedding_dim.tobytes() for each in group}) == 1
        assert len({each.placement.tobytes() for each in group}) == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"profile": "h300"}, "There is no hardware profile named 'h300'"),
        ({"num_devices": 0}, "num_devices"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"seed": -1}, "seed"),
        ({"tables_per_device": 0}, "tables_per_device"),
        ({"max_bytes": 1}, "allow more memory"),
        ({"pools": ("dlrm-2020",)}, "There is no .*'dlrm-2020'"),
        ({"pools": ("dlrm-2021", "dlrm-2021")}, "pools"),
        ({"pools": ()}, "pools"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises((InvalidOptionError, UnknownNameError), match=words):
        replace(SAMPLER, **change).sample(0)


def test_tables_have_the_statistics_of_the_workload() -> None:
    workload = Workload(512, "fp32", "rowwise_adagrad")
    small, pool = replace(SAMPLER, workload=workload, pools=("dlrm-2021",)).tables, load_pool("dlrm-2021")
    assert small.workload == workload
    assert small.pooling_factor.tolist() == pool.tables.pooling_factor.tolist()
    expected = pool.tables.at_batch_size(512).distinct_rows
    assert small.distinct_rows == pytest.approx(expected, rel=0.02, abs=1e-3)
