from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.card import (
    BLOCK,
    MEASUREMENTS,
    PAGE,
    Comparison,
    Group,
    compare,
    longest_first,
    render,
    tables_of,
)
from shard_gym.errors import NoPlacementFoundError
from shard_gym.hardware import hardware_profile
from shard_gym.io.files import read_json
from shard_gym.io.markdown import with_block
from shard_gym.placement import check_placement
from shard_gym.pools import load_pool
from shard_gym.pools.pool import DATA

MODEL = AnalyticalCostModel()


@cache
def groups() -> tuple[Group, ...]:
    return compare(MODEL)


def rows(title: str) -> dict[str, Comparison]:
    (group,) = [group for group in groups() if group.title.startswith(title)]
    return {row.label: row for row in group.rows}


def test_the_page_shows_all_measurements_with_current_predictions() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_block(PAGE, BLOCK, render(groups(), MODEL)), "Run python -m shard_gym.cost_models.card."
    for group in read_json(MEASUREMENTS)["groups"]:
        section = page.partition(f"### {group['title']}\n")[2].partition("\n### ")[0]
        assert all(f"| {row['label']} | " in section for row in group["rows"])


def test_every_row_has_a_prediction_or_a_reason() -> None:
    for group in groups():
        for row in group.rows:
            assert (row.predicted is None) == bool(row.not_comparable)
            assert row.predicted is None or (row.predicted > 0 and math.isfinite(row.ratio))
            assert group.quantity != "iteration" or not row.ratio >= 1  # the embedding part is a share


def test_every_published_merlin_timing_is_on_the_card() -> None:
    published = read_json(DATA / "facts" / "merlin_synthetic_models.json")["dgx_a100_iteration_ms"]
    del published["conditions"]
    expected = {(model, int(gpus)): ms for model, times in published.items() for gpus, ms in times.items()}
    found = {
        (label.split(",")[0], int(label.split()[1])): row.measured for label, row in rows("Merlin's synthetic").items()
    }
    assert found == expected


def test_predictions_come_from_the_model() -> None:
    class Doubled(AnalyticalCostModel):
        def device_costs(self, loads: Any, cluster: Any) -> Any:
            return 2 * super().device_costs(loads, cluster)

    titles = ("SplitTBE, large batch", "DLRM, one-hot")
    before = [row for group in groups() if group.title.startswith(titles) for row in group.rows]
    after = [row for group in compare(Doubled()) if group.title.startswith(titles) for row in group.rows]
    pairs = [(one.predicted, two.predicted) for one, two in zip(before, after, strict=True) if one.predicted]
    assert len(pairs) == 10
    assert all(two == pytest.approx(2 * one) for one, two in pairs)


def test_rates_are_turned_into_times_by_the_bytes_their_source_counts() -> None:
    assert rows("Ramp of the DRAM bandwidth, A100")["n = 2^24"].measured == pytest.approx(2**24 / 865e6)
    nccl = rows("All-to-all alone")["500 MiB on 4 H100, 335 GB/s of bus bandwidth"]
    assert nccl.measured == pytest.approx(524288000 * 3 / 4 / 335e6)


def test_tables_are_built_as_the_row_says() -> None:
    one = hardware_profile("v100-nvlink").topology(1)
    spec = {"embedding_dim": 64, "pooling_factor": 32, "batch_size": 64, "weight_dtype": "fp32", "optimizer": "sgd"}
    tables = tables_of({**spec, "num_tables": 3, "num_embeddings": 1024}, one)
    assert tables.num_embeddings.tolist() == [1024] * 3
    assert tables.distinct_rows == pytest.approx([1024 * (1 - math.exp(-2))] * 3, rel=1e-3)  # 2048 reads of 1024 rows
    pool = tables_of({"pool": "merlin-large"}, hardware_profile("a100-dgx").topology(32))
    assert len(pool) > len(load_pool("merlin-large"))  # tables larger than a device are split
    criteo = tables_of({**spec, "criteo_divided_by": 32}, one)
    assert len(criteo) == 26
    assert sorted(criteo.num_embeddings)[-1] == 1_572_176  # the largest table that was not divided
    assert 48_937_457 // 32 in criteo.num_embeddings


def test_the_placement_is_valid_balanced_and_refused_when_memory_does_not_suffice(zipf_tables: Any) -> None:
    tables = zipf_tables([100_000] * 8, 64, 10.0)
    size = int(tables.memory_bytes[0])
    profile = hardware_profile("a100-dgx")
    tight = profile.topology(4, memory_cap_bytes=np.array([5 * size, size, size, size]))
    placement = check_placement(longest_first(tables, tight, MODEL), tables, tight)
    assert np.bincount(placement).tolist() == [5, 1, 1, 1]
    assert np.bincount(longest_first(tables, profile.topology(4), MODEL)).tolist() == [2, 2, 2, 2]
    with pytest.raises(NoPlacementFoundError, match="no device has them left"):
        longest_first(tables, profile.topology(4, memory_cap_bytes=size), MODEL)
