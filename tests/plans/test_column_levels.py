"""Levels of columns: parts cover a table once, in multiples of four, also after any halvings and mergers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.plans.column_levels import NONE, ColumnLevels, near_equal_widths, part_counts

DIMS = st.lists(st.integers(1, 80).map(lambda units: 4 * units), min_size=1, max_size=5)
SHARDS = st.sampled_from([1, 2, 4, 8, 16, 64])


def forms(dim: int, max_shards: int) -> list[list[int]]:
    """The widths of every form of a table with `dim` columns, by its number of parts."""
    levels = ColumnLevels.of(np.array([dim]), max_shards)
    possible = np.flatnonzero(levels.is_form[0])
    found = [levels.width[levels.in_form(np.array([0]), np.array([level]))].tolist() for level in possible.tolist()]
    return sorted(found, key=len)


@pytest.mark.parametrize(
    ("dim", "max_shards", "wanted"),
    [
        (128, 8, [[128], [64] * 2, [32] * 4, [16] * 8]),
        (96, 8, [[96], [48] * 2, [24] * 4, [12] * 8]),
        (96, 2, [[96], [48] * 2]),
        (16, 8, [[16], [8] * 2, [4] * 4]),
        (4, 8, [[4]]),
        (12, 8, [[12], [8, 4], [4] * 3]),
        (36, 4, [[36], [20, 16], [12] * 3, [12, 8, 8, 8]]),
        (124, 4, [[124], [64, 60], [44, 40, 40], [32, 32, 32, 28]]),
        (200, 4, [[200], [100] * 2, [68, 68, 64], [52, 52, 48, 48]]),
        (200, 2, [[200], [100] * 2]),
        (100, 1, [[100]]),
    ],
)
def test_columns_are_halved_and_cut_nearly_equally_where_they_cannot_be(
    dim: int, max_shards: int, wanted: list[list[int]]
) -> None:
    assert forms(dim, max_shards) == wanted


def test_a_hundred_columns_can_be_five_times_twenty() -> None:
    assert [len(form) for form in forms(100, 8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [20] * 5 in forms(100, 8)


def test_every_number_of_parts_may_be_asked_for_where_columns_can_be_halved() -> None:
    assert part_counts(96, 8) == [1, 2, 4, 8]
    assert part_counts(96, 8, every=True) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert part_counts(16, 8, every=True) == [1, 2, 3, 4]
    assert near_equal_widths(96, 5) == [20, 20, 20, 20, 16]


def test_numbers_of_parts_stay_few_where_many_are_allowed() -> None:
    assert part_counts(4 * 99, 32) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    assert len(part_counts(4 * 9_999, 4096)) < 50


@given(dims=DIMS, max_shards=SHARDS, every=st.booleans())
def test_forms_cover_all_columns_once_in_multiples_of_four(dims: list[int], max_shards: int, every: bool) -> None:
    levels = ColumnLevels.of(np.array(dims), max_shards, every)
    for table, dim in enumerate(dims):
        counts = []
        for level in np.flatnonzero(levels.is_form[table]).tolist():
            table_of, own = levels.in_form(np.array([table]), np.array([level]))
            widths = levels.width[table_of, own].tolist()
            assert widths == near_equal_widths(dim, len(widths))
            assert sum(widths) == dim
            assert len(widths) <= max_shards
            assert max(widths) - min(widths) in (0, 4)
            assert not any(width % 4 for width in widths)
            assert (levels.parts[own] == len(widths)).all()
            assert levels.legal[table_of, own].all()
            counts.append(len(widths))
        assert sorted(counts) == part_counts(dim, max_shards, every)


@given(dims=DIMS, max_shards=SHARDS, every=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_halves_and_mergers_keep_all_columns_and_at_most_so_many_parts(
    dims: list[int], max_shards: int, every: bool, seed: int
) -> None:
    """However parts are halved and merged, and a part that was halved can be merged again."""
    rng, levels = np.random.default_rng(seed), ColumnLevels.of(np.array(dims), max_shards, every)
    for table, dim in enumerate(dims):
        level = int(rng.choice(np.flatnonzero(levels.is_form[table])))
        parts = levels.in_form(np.array([table]), np.array([level]))[1].tolist()
        for _ in range(20):
            part = int(rng.integers(len(parts)))
            merged = [
                (other, int(levels.merged(table, parts[part], np.array(parts[other]))))
                for other in range(len(parts))
                if other != part
            ]
            merged = [(other, whole) for other, whole in merged if whole != NONE]
            halves = levels.halves[table, parts[part]].tolist()
            if NONE not in halves and (not merged or rng.random() < 0.5):
                assert levels.merged(table, halves[1], np.array(halves[0])) == parts[part]
                assert levels.width[table, halves[0]] >= levels.width[table, halves[1]]
                parts[part : part + 1] = halves
            elif merged:
                other, whole = merged[int(rng.integers(len(merged)))]
                parts = [each for number, each in enumerate(parts) if number not in (part, other)] + [whole]
            assert levels.legal[table, parts].all()
            assert levels.width[table, parts].sum() == dim
            assert (levels.width[table, parts] % 4 == 0).all()
            assert len(parts) <= max_shards


@given(units=st.integers(0, 8), max_shards=SHARDS)
def test_a_power_of_two_of_columns_has_halves_alone(units: int, max_shards: int) -> None:
    """Level h is h halvings, also beside tables that have other levels: the answers for published suites rest on it."""
    dim, halvings = 4 << units, min(units, max_shards.bit_length() - 1)
    alone, beside = (ColumnLevels.of(np.array(dims), max_shards) for dims in ([dim], [100, dim, 124]))
    assert len(alone) == max_shards.bit_length()
    for levels, table in ((alone, 0), (beside, 1)):
        assert np.flatnonzero(levels.legal[table]).tolist() == list(range(halvings + 1))
        for h in range(halvings + 1):
            assert levels.width[table, h] == dim >> h
            assert levels.counts[table, h].tolist() == [1 << h, 0]
            assert levels.halves[table, h].tolist() == ([h + 1] * 2 if h < halvings else [NONE] * 2)
            assert levels.merged(table, h, np.array(h)) == (h - 1 if h else NONE)


def test_the_fewest_parts_that_fit_are_chosen_by_number_not_by_level() -> None:
    levels = ColumnLevels.of(np.array([100, 128]), 8)
    chosen = levels.fewest_parts(levels.width <= 40)
    assert levels.parts[chosen].tolist() == [3, 4]
    assert levels.fewest_parts(levels.width < 4).tolist() == [NONE, NONE]
