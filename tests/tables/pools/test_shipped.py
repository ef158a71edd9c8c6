"""The shipped pools: what their generators write, and what is published of them."""

from typing import Any

import numpy as np
import pytest

from shard_gym.common.io.files import read_json
from shard_gym.tables import Pool, load_pool
from shard_gym.tables.pools import dlrm, generative, merlin, pool, pool_names
from shard_gym.tables.row_popularity import RowSteps, reuse_statistics

FACTS = read_json(pool.DATA / "facts" / "merlin_synthetic_models.json")["models"]


def fp32_gib(name: str) -> float:
    tables = load_pool(name).tables
    return float((tables.num_embeddings * tables.row_bytes).sum()) / 2**30


@pytest.mark.parametrize("model", merlin.MERLIN_MODELS)
def test_table_count_and_size_are_the_published_ones(model: str) -> None:
    assert set(merlin.MERLIN_MODELS) == set(FACTS)
    assert len(load_pool(f"merlin-{model}")) == FACTS[model]["num_tables"]
    assert round(fp32_gib(f"merlin-{model}"), 1) == FACTS[model]["fp32_gib"]


def test_a_table_read_by_two_features_has_both_their_lookups() -> None:
    tables = load_pool("merlin-tiny").tables
    assert tables.num_features[:4].tolist() == [2, 2, 2, 1]
    assert tables.pooling_factor[:4].tolist() == [11, 11, 11, 1]
    assert tables.pooling_factor.sum() == 85


@pytest.mark.parametrize("rows", [10, 1000])
def test_the_popularity_is_that_of_the_published_generator(rows: int, row_probabilities: Any) -> None:
    # Inverse CDF of x^-1.05 on [1, rows + 1], rounded down: row k has the integral from k to k + 1.
    edge = np.arange(1, rows + 2) ** -0.05
    published = (edge[:-1] - edge[1:]) / (edge[0] - edge[-1])
    ours = row_probabilities(rows, 0.5, merlin.MERLIN_ALPHA)
    np.testing.assert_allclose(ours, published, rtol=0.035)
    np.testing.assert_allclose(np.cumsum(ours), np.cumsum(published), atol=0.01)


def test_mlperf_tables_are_the_published_ones_with_uniform_indices() -> None:
    loaded = load_pool("mlperf-dlrm-dcnv2")
    tables, popularity = loaded.tables, loaded.popularity
    assert len(tables) == 26
    assert tables.pooling_factor.sum() == 214
    assert (tables.embedding_dim == 128).all()
    assert fp32_gib("mlperf-dlrm-dcnv2") == pytest.approx(97.4, abs=0.05)
    assert popularity is not None
    assert not popularity.s.any()
    rows, lookups = tables.num_embeddings.astype(float), tables.lookups_per_batch
    np.testing.assert_allclose(tables.distinct_rows, rows * -np.expm1(-lookups / rows), rtol=1e-6)


@pytest.mark.parametrize("name", ["dlrm-2021", "dlrm-2022"])
def test_the_tables_add_up_to_the_published_totals(name: str) -> None:
    """From the stored rows, pooling factors and popularities, not from the stored statistics."""
    goal, loaded = dlrm.published_totals(name), load_pool(name)
    lookups, popularity = loaded.tables.lookups_per_batch, loaded.popularity
    assert popularity is not None
    stats = reuse_statistics(loaded.tables.num_embeddings, lookups, popularity.q, popularity.s)
    distinct, unique_hist, access_hist = dlrm.totals_of(stats, lookups)
    assert len(lookups) == goal.num_tables
    assert lookups.sum() == goal.lookups
    assert distinct == pytest.approx(goal.distinct_rows, rel=0.003)
    np.testing.assert_allclose(unique_hist, goal.unique_hist, atol=0.009)
    np.testing.assert_allclose(access_hist, goal.access_hist, atol=0.009)


def test_the_items_of_dlrm_v3_are_read_as_its_published_generator_draws_them() -> None:
    """Histories and candidates of 400 users, drawn step by step, against the shares of the pool."""
    rng, hundredths = np.random.default_rng(0), np.zeros(100)
    for user in range(400):
        now = 90 + user % 10  # the step of the request
        for step in (-1, *(np.flatnonzero(rng.random(now) < 0.7)), now):
            items = 2048 if step == now else max(round(rng.normal(100, 25)), 33)
            hundredths += np.bincount(rng.integers(0, max(step + 1, 1), items), minlength=100)
    tables = load_pool("mlperf-dlrm-v3").tables
    assert tables.pooling_factor[:2] == pytest.approx(hundredths.sum() / 400, rel=0.01)
    assert isinstance(tables.popularity, RowSteps)
    assert tables.popularity.shares[0] == pytest.approx(hundredths / hundredths.sum(), abs=2e-3)
    assert tables.popularity.shares[0, -10:].sum() == pytest.approx(hundredths[-10:].sum() / hundredths.sum(), rel=0.05)


def test_dlrm_v3_has_the_published_tables_and_is_served() -> None:
    tables = load_pool("mlperf-dlrm-v3").tables
    assert dict(zip(tables.names, tables.num_embeddings.tolist(), strict=True)) == {
        "item_id": 10**9,
        "item_category_id": 128,
        "user_id": 10**7,
    }
    assert (tables.embedding_dim == 512).all()
    assert not tables.pooled.any()
    assert not tables.workload.training
    assert tables.memory_bytes.sum() / 1e12 == pytest.approx(1.0, abs=0.05)  # the checkpoint has 1 TB


def test_kuairand_reads_as_many_videos_as_its_data_set_has() -> None:
    loaded = load_pool("hstu-kuairand")
    tables, law = loaded.tables, loaded.popularity
    assert law is not None
    assert sorted(tables.num_embeddings.tolist()) == [8, 8, 8, 9, 9, 10**7, 10**7]
    assert tables.workload.optimizer == "rowwise_adagrad"
    read = reuse_statistics([10**7], [11_713_045], law.q[:1], law.s[:1]).distinct_rows[0]
    assert read == pytest.approx(4_369_953, rel=1e-3)
    lengths = np.random.default_rng(0).exponential(11_703, 10**6)
    assert tables.pooling_factor[0] == pytest.approx(np.minimum(lengths, 16_368).mean() + 10, rel=2e-3)
    assert (tables.pooling_factor[1:] == 1).all()


MADE = {"mlperf-dlrm-v3": generative.make_mlperf_pool, "hstu-kuairand": generative.make_kuairand_pool}


def made(name: str) -> Pool:
    if name in MADE:
        return MADE[name]()
    if name.startswith("merlin-"):
        return merlin.make_merlin_pool(name.removeprefix("merlin-"))
    return merlin.make_mlperf_pool() if name.startswith("mlperf") else dlrm.make_pool(name)


@pytest.mark.parametrize("name", pool_names())
def test_the_generator_writes_the_shipped_file(name: str) -> None:
    assert pool.to_bytes(made(name)) == (pool.DATA / f"{name}.json").read_bytes()
