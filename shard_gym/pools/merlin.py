"""The pools whose tables are published one by one: Merlin's synthetic models and MLPerf's DLRM-DCNv2.

Sizes, lookups and dims are facts; only the statistics of a batch are computed, from the published index distribution.
`python -m shard_gym.pools.merlin` writes the shipped files again, byte for byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.io.files import read_json
from shard_gym.pools.pool import DATA, Pool, PoolCard, ship_pool
from shard_gym.pools.popularity import RowPopularity
from shard_gym.pools.reuse import reuse_statistics
from shard_gym.pools.rounding import rounded_statistics
from shard_gym.tables import Tables, Workload

MERLIN_MODELS = ("tiny", "small", "medium", "large", "jumbo", "colossal")
MERLIN_ALPHA = 1.05
BATCH_SIZE = 65536

_OPTIMIZER = (
    "Weights in FP32. The optimizer is rowwise Adagrad, which FBGEMM fuses; it stands in for the Adagrad of the "
    "published runs, whose state has one number per weight instead of one per row."
)


def make_merlin_pool(model: str) -> Pool:
    """The pool `merlin-<model>`, for one of `MERLIN_MODELS`.

    The published generator draws x = F^-1(u) of the density x^-1.05 on [1, E + 1] and rounds down, so row k = 1..E has
    the integral of x^-1.05 from k to k + 1: (k + 1/2)^-1.05 within 4.3 % for k = 1, 1.5 % for k = 2, 0.1 % from k = 10.
    """
    facts = read_json(DATA / "facts" / "merlin_synthetic_models.json")
    config = facts["models"][model]
    groups = config["groups"]
    count = np.array([group["num_tables"] for group in groups])

    def spread(values: list[Any]) -> Any:
        return np.repeat(np.array(values), count)

    rows = spread([group["num_rows"] for group in groups])
    tables = _tables(
        rows=rows,
        dims=spread([group["embedding_dim"] for group in groups]),
        pooling=spread([sum(group["nnz"]) for group in groups]),
        features=spread([len(group["nnz"]) for group in groups]),
        names=tuple(f"group{g}_table{i}" for g, group in enumerate(groups) for i in range(group["num_tables"])),
        law=(law := RowPopularity(np.full(len(rows), 0.5), np.full(len(rows), MERLIN_ALPHA))),
    )
    gib = float((tables.num_embeddings * tables.row_bytes).sum()) / 2**30
    times = facts["dgx_a100_iteration_ms"].get(model, {})
    card = PoolCard(
        title=f"The {len(tables)} tables of NVIDIA Merlin's synthetic model '{model}'",
        source=facts["source"],
        how_made="Tables as published; the statistics of a batch are expectations under p(k) ~ (k + 1/2)^-1.05 "
        "(shard_gym/pools/merlin.py).",
        published_facts=(
            f"{config['num_tables']} tables, {config['fp32_gib']} GiB in FP32",
            f"Indices follow a power law with exponent {MERLIN_ALPHA} over the rows, repeats allowed.",
            *(f"{ms} ms per iteration of the whole model on {gpus} A100" for gpus, ms in times.items()),
        ),
        assumptions=(_OPTIMIZER, "Lookups are independent; a table read by two features has the law once for both."),
        how_close=(
            f"tables: {len(tables)} of {config['num_tables']}",
            f"size: {gib:.2f} GiB, published as {config['fp32_gib']} GiB",
        ),
    )
    return Pool(f"merlin-{model}", tables, card, law)


def make_mlperf_pool() -> Pool:
    """The pool `mlperf-dlrm-dcnv2`: 26 tables, each row of a table equally likely."""
    facts = read_json(DATA / "facts" / "mlperf_dlrm_dcnv2.json")
    rows = np.array(facts["num_embeddings"])
    law = RowPopularity(np.zeros(len(rows)), np.zeros(len(rows)))
    tables = _tables(
        rows=rows,
        dims=np.full(len(rows), facts["embedding_dim"]),
        pooling=np.array(facts["pooling_factor"]),
        features=np.ones(len(rows), np.int64),
        names=tuple(f"cat_{i}" for i in range(len(rows))),
        law=law,
    )
    gib = float((tables.num_embeddings * tables.row_bytes).sum()) / 2**30
    card = PoolCard(
        title="The 26 tables of MLPerf's DLRM-DCNv2",
        source=facts["source"],
        how_made="Tables as published; the statistics of a batch are expectations under uniform indices "
        "(shard_gym/pools/merlin.py).",
        published_facts=(
            f"26 tables of dim {facts['embedding_dim']}, global batch {facts['global_batch_size']}",
            f"Indices: {facts['index_distribution']}.",
        ),
        assumptions=(
            "Weights in FP32; the optimizer is rowwise Adagrad.",
            "Every lookup is uniform and independent. The benchmark's bags start from the Criteo logs, so its popular "
            "rows are reused more than here.",
        ),
        how_close=(f"size: {gib:.1f} GiB",),
    )
    return Pool("mlperf-dlrm-dcnv2", tables, card, law)


def _tables(*, rows: Any, dims: Any, pooling: Any, features: Any, names: tuple[str, ...], law: RowPopularity) -> Tables:
    lookups = pooling * float(BATCH_SIZE)
    stats = rounded_statistics(reuse_statistics(rows, lookups, law.q, law.s), rows, lookups)
    return Tables(
        num_embeddings=rows,
        embedding_dim=dims,
        pooling_factor=pooling,
        distinct_rows=stats.distinct_rows,
        reuse_histogram=stats.reuse_histogram,
        access_histogram=stats.access_histogram,
        workload=Workload(BATCH_SIZE, "fp32", "rowwise_adagrad"),
        num_features=features,
        names=names,
    )


def main() -> None:
    """Write the pools and their checksums into the package."""
    for pool in (*map(make_merlin_pool, MERLIN_MODELS), make_mlperf_pool()):
        ship_pool(pool)
        print(f"{pool.name}: {len(pool)} tables, SHA-256 {pool.sha256}", *pool.card.how_close, sep="\n  ")


if __name__ == "__main__":
    main()
