"""The curves of tables and devices with host memory, against counts of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidTaskError
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.base.host_rows import THRESHOLDS
from shard_gym.cost_models.base.no_costs import NoCosts
from shard_gym.envs.core.hbm_curves import NUM_CURVE, READS, bounded, hbm_curves
from shard_gym.envs.core.problem import prepare
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import variants_of, whole_tables
from shard_gym.tables import RowPopularity
from shard_gym.tasks import Task


def with_popularity(task: Task, rng: np.random.Generator, rows: int = 400) -> Task:
    """`task` with few rows, so that their probabilities can be listed."""
    tables = task.tables
    law = RowPopularity(rng.uniform(0, 20, len(tables)), rng.uniform(0, 1.5, len(tables)))
    few = replace(
        tables,
        num_embeddings=rng.integers(4, rows, len(tables)) * 8,
        distinct_rows=np.minimum(tables.distinct_rows, 4),
        popularity=law,
    )
    return replace(task, tables=few, known_placement=None)


def counted(table: Any, threshold: float) -> float:
    """Bytes of the rows of one table, each counted min(P / threshold, 1); no optimizer state."""
    rows = np.arange(1, int(table.num_embeddings[0]) + 1)
    share = (rows + table.row_popularity.q[0]) ** -table.row_popularity.s[0]
    read = -np.expm1(-share / share.sum() * table.lookups_per_batch[0])
    return float(np.minimum(read / threshold, 1.0).sum() * table.row_bytes[0])


def test_the_thresholds_are_among_those_of_the_loads() -> None:
    assert np.abs(THRESHOLDS[:, None] + np.expm1(-READS)).min(axis=0) == pytest.approx(np.zeros(NUM_CURVE), abs=1e-15)


@given(seed=st.integers(0, 2**32 - 1))
def test_curves_count_the_rows_of_tables_and_shards(tiered_task: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task = with_popularity(tiered_task(rng, 3, 2), rng)
    hbm, tables, topology = task.topology.host.hbm_bytes, task.tables, task.topology
    curves = hbm_curves(whole_tables(tables), topology)[:, 0]
    for table in range(3):
        expected = [counted(tables.select([table]), float(-np.expm1(-reads))) / hbm for reads in READS]
        assert curves[table] == pytest.approx(expected, rel=2e-3)  # the tail is a quadrature
    assert (np.diff(curves, axis=1) >= -1e-12).all()  # the lower the threshold, the more rows have it

    variants = variants_of(tables, topology)
    parts = hbm_curves(variants, topology)
    for variant, kind in enumerate(variants.sharding_types):
        legal = variants.legal[:, variant]
        assert not parts[~legal, variant].any()
        if kind == "column_wise":
            assert parts[legal, variant] * variants.parts[variant] == pytest.approx(curves[legal], rel=1e-9)
        elif kind == "data_parallel":  # all rows are updated
            full = (
                shard_tables(tables, kind, topology).num_embeddings
                * tables.embedding_dim
                * tables.workload.weight_bytes
                / hbm
            )
            assert parts[:, variant] == pytest.approx(np.repeat(full[:, None], NUM_CURVE, axis=1))


def test_bounded_is_a_half_where_the_hbm_is_full() -> None:
    found = bounded(np.array([0.0, 1.0, 3.0, 1e30]))
    assert found.dtype == np.float32
    assert found.tolist() == [0.0, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("model", [make_cost_model("analytical", additive=True), NoCosts()])
def test_a_task_with_host_memory_needs_room_for_it(tiered_task: Any, random_task: Any, model: Any) -> None:
    rng = np.random.default_rng(0)
    tiered, plain = tiered_task(rng, 3, 2), random_task(rng, 3, 2)
    with pytest.raises(InvalidTaskError, match=r"made for tasks without it.*host_memory = True"):
        prepare(tiered, model, 3, 2, host_memory=False)
    assert prepare(tiered, model, 3, 2).tables.hbm_curves.any()
    assert prepare(plain, model, 3, 2).tables.hbm_curves.shape[-1] == prepare(plain, model, 3, 2).hbm_bytes[0] == 0
    roomy = prepare(plain, model, 3, 2, host_memory=True).tables
    assert roomy.hbm_curves.shape[-1] == NUM_CURVE
    assert not roomy.hbm_curves.any()
    assert roomy.loads.shape[-1] == model.num_loads_with(True)
