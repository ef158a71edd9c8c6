"""Splits: every table in one, no placement in two, equal tables together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts, split_tables, table_kinds

MODEL = AnalyticalCostModel()


@given(st.integers(0, 1_000), st.integers(3, 60))
def test_every_table_gets_one_split_and_every_split_a_table(random_tables: Any, seed: int, count: int) -> None:
    tables = random_tables(np.random.default_rng(seed), count)
    groups = split_tables(tables, seed)
    assert list(groups) == list(SPLITS)
    assert sorted(np.concatenate(list(groups.values()))) == list(range(count))
    sizes = [len(rows) for rows in groups.values()]
    assert min(sizes) >= 1
    assert sizes == pytest.approx([0.7 * count, 0.1 * count, 0.2 * count], abs=2)
    again = split_tables(tables, seed)
    assert all(np.array_equal(groups[split], again[split]) for split in SPLITS)


def test_tables_that_differ_in_name_and_dim_alone_stay_together(random_tables: Any) -> None:
    base = random_tables(np.random.default_rng(0), 10, dims=(16,))
    twins = base.select(np.tile(np.arange(10), 3)).with_dims(np.repeat([16, 32, 64], 10))
    kinds = table_kinds(twins)
    assert np.array_equal(kinds[:10], kinds[10:20])
    assert len(set(kinds[:10])) == 10
    for rows in split_tables(twins, 0).values():
        assert np.isin(kinds, kinds[rows]).sum() == len(rows)


def test_too_few_different_tables_are_refused(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 5)
    with pytest.raises(InvalidOptionError, match="too few"):
        split_tables(tables.select([0, 1, 0, 1]), 0)


def test_a_placement_belongs_to_the_split_of_its_tables(costs: SplitCosts) -> None:
    for number, split in enumerate(SPLITS):
        part = costs.part(split)
        assert len(part) == (costs.placement_split == number).sum() > 0
        assert set(costs.table_split[part.members]) == {number}
        assert costs.num_tables(split) == (costs.table_split == number).sum()
    with pytest.raises(UnknownNameError, match="Known: test, train, validation"):
        costs.part("tests")


def test_a_placement_and_each_of_its_tables_have_one_split(costs: SplitCosts) -> None:
    mixed = costs.table_split.copy()
    mixed[costs.data.members[costs.data.start[8] - 1]] = 2
    with pytest.raises(InvalidOptionError, match="Placement 7 mixes tables of two splits"):
        SplitCosts(costs.data, mixed)
    for wrong in (costs.table_split[1:], np.full_like(costs.table_split, 3), costs.table_split * 1.0):
        with pytest.raises(InvalidOptionError, match="table_split must hold"):
            SplitCosts(costs.data, wrong)


def test_parts_of_two_sources_or_two_opinions_are_not_joined(costs: SplitCosts, drawn: Any) -> None:
    other = SplitCosts(replace(costs.data, source="another"), costs.table_split)
    with pytest.raises(InvalidOptionError, match="one source"):
        SplitCosts.joined([costs, other])

    def recorded(split: int) -> SplitCosts:
        tables, topology, placement = drawn(3)
        recorder = CostRecorder(MODEL.fingerprint)
        recorder.add(tables, topology, placement, MODEL.estimate(placement, tables, topology))
        return SplitCosts.recorded(recorder, [split])

    with pytest.raises(InvalidOptionError, match="in placements of two splits"):
        SplitCosts.joined([recorded(0), recorded(2)])
