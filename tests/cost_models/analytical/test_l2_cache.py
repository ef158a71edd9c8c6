from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models.analytical.l2_cache import USABLE_L2, l2_bytes_per_table, l2_hits, state_sectors
from shard_gym.hardware import hardware_profile
from shard_gym.tables import NUM_BINS, Tables, Workload

A100 = hardware_profile("a100-dgx").device


def with_room_for(rows: float, row_bytes: int) -> Any:
    """A device whose L2 holds that many rows of a table that has it alone."""
    return replace(A100, l2_bytes=max(1, round(rows * row_bytes / USABLE_L2)))


def ten_hot_rows() -> Tables:
    """10 rows read 8 times and 90 rows read once in a batch of 65536; a row takes one sector."""
    reuse, access = np.zeros((1, NUM_BINS)), np.zeros((1, NUM_BINS))
    reuse[0, [3, 0]] = 0.1, 0.9
    access[0, [3, 0]] = 80 / 170, 90 / 170
    return Tables(
        num_embeddings=np.array([1000]),
        embedding_dim=np.array([16]),
        pooling_factor=np.array([170 / 65536]),
        distinct_rows=np.array([100.0]),
        reuse_histogram=reuse,
        access_histogram=access,
        workload=Workload(65536, "fp16", "sgd"),
    )


@pytest.mark.parametrize(("room", "hits"), [(0, 0), (1, 7), (5, 35), (10, 70), (1e6, 70)])
def test_the_hottest_rows_stay_and_each_costs_one_miss(room: float, hits: float) -> None:
    assert l2_hits(ten_hot_rows(), with_room_for(room, 32))[0] == pytest.approx(hits, abs=0.2)


@given(
    rows=st.integers(1, 10**8),
    dim=st.sampled_from([4, 16, 64, 256]),
    pooling=st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    s=st.sampled_from([0.0, 0.7, 1.05, 1.6]),
    batch_size=st.sampled_from([4, 1_000, 65_536]),
    l2_bytes=st.integers(1, 10**9),
)
def test_hits_lie_between_none_and_all_but_the_first_reads(
    zipf_tables: Any, rows: int, dim: int, pooling: float, s: float, batch_size: int, l2_bytes: int
) -> None:
    tables = zipf_tables([rows], dim, pooling, s=s, batch_size=batch_size)
    hits, more = (l2_hits(tables, replace(A100, l2_bytes=size)) for size in (l2_bytes, 2 * l2_bytes))
    assert hits.shape == (1,)
    assert (hits >= 0).all()
    assert (hits <= (tables.lookups_per_batch - tables.distinct_rows) * (1 + 1e-6) + 1e-3).all()
    assert (more >= hits).all()


def test_tables_share_the_cache_when_the_batch_is_small(zipf_tables: Any) -> None:
    """108 SMs x 45 warps in flight are 4860 bags: one table of 65536 samples, five of 1000."""
    whole = USABLE_L2 * A100.l2_bytes
    assert l2_bytes_per_table(zipf_tables([10], batch_size=65_536), A100) == pytest.approx([whole])
    assert l2_bytes_per_table(zipf_tables([10], batch_size=1_000), A100) == pytest.approx([whole / 5])
    assert l2_bytes_per_table(zipf_tables([10], features=2, batch_size=1_000), A100) == pytest.approx([whole / 3])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("sgd", [0, 0, 0]), ("rowwise_adagrad", [32, 32, 32]), ("adam", [2 * 32, 2 * 64, 2 * 512])],
)
def test_the_state_of_a_row_is_whole_sectors_of_each_of_its_arrays(optimizer: str, expected: list[int]) -> None:
    """Of 4, 12 and 128 columns: a moment has 16, 48 and 512 bytes, FP32 whatever the weights are."""
    for dtype in ("bf16", "fp32"):
        tables = Tables.from_zipf([1000] * 3, [4, 12, 128], 2.0, 1.0, Workload(64, dtype, optimizer))
        assert state_sectors(tables).tolist() == expected
