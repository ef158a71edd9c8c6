"""The pools whose tables are published one by one: Merlin's synthetic models and MLPerf's DLRM-DCNv2.

Sizes, lookups and dims are facts. Only the statistics of a batch are computed, from the published index distribution.
`python -m shard_gym.tables.pools.merlin` writes the shipped files again, byte for byte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.io.files import read_json
from shard_gym.tables.pools.pool import DATA, Pool, PoolCard, ship_pools
from shard_gym.tables.row_popularity import RowPopularity
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload

MERLIN_MODELS = ("tiny", "small", "medium", "large", "jumbo", "colossal")
MERLIN_ALPHA = 1.05
WORKLOAD = Workload(65536, "fp32", "rowwise_adagrad")

_OPTIMIZER = (
    "Weights in FP32. The optimizer is rowwise Adagrad, which FBGEMM fuses; it stands in for the Adagrad of the "
    "published runs, whose state has one number per weight instead of one per row."
)


def make_merlin_pool(model: str) -> Pool:
    """The pool `merlin-<model>`, for one of `MERLIN_MODELS`.

    The published generator computes x = F^-1(u) of the density x^-1.05 on [1, E + 1] and rounds down, so row k = 1..E
    has the integral of x^-1.05 from k to k + 1: (k + 1/2)^-1.05 within 4.3 % for k = 1, 1.5 % for k = 2, 0.1 % from
    k = 10.
    """
    facts = read_json(DATA / "facts" / "merlin_synthetic_models.json")
    config = facts["models"][model]
    groups = config["groups"]
    group_of_table = np.repeat(np.arange(len(groups)), [group["num_tables"] for group in groups])

    def per_table(values: list[int]) -> NDArray[np.int64]:
        return np.array(values)[group_of_table]

    popularity = RowPopularity(np.full(len(group_of_table), 0.5), np.full(len(group_of_table), MERLIN_ALPHA))
    tables = Tables.from_popularity(
        num_embeddings=per_table([group["num_rows"] for group in groups]),
        embedding_dim=per_table([group["embedding_dim"] for group in groups]),
        pooling_factor=per_table([sum(group["nnz"]) for group in groups]).astype(np.float64),
        num_features=per_table([len(group["nnz"]) for group in groups]),
        popularity=popularity,
        workload=WORKLOAD,
        names=tuple(f"group{g}_table{i}" for g, group in enumerate(groups) for i in range(group["num_tables"])),
    )
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
            f"size: {_weights_gib(tables):.2f} GiB, published as {config['fp32_gib']} GiB",
        ),
    )
    return Pool(f"merlin-{model}", tables, card, popularity)


def make_mlperf_pool() -> Pool:
    """The pool `mlperf-dlrm-dcnv2`: 26 tables with uniform lookups."""
    facts = read_json(DATA / "facts" / "mlperf_dlrm_dcnv2.json")
    rows = np.array(facts["num_embeddings"])
    popularity = RowPopularity(np.zeros(len(rows)), np.zeros(len(rows)))
    tables = Tables.from_popularity(
        num_embeddings=rows,
        embedding_dim=np.full(len(rows), facts["embedding_dim"]),
        pooling_factor=np.array(facts["pooling_factor"], np.float64),
        popularity=popularity,
        workload=WORKLOAD,
        names=tuple(f"cat_{i}" for i in range(len(rows))),
    )
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
        how_close=(f"size: {_weights_gib(tables):.1f} GiB",),
    )
    return Pool("mlperf-dlrm-dcnv2", tables, card, popularity)


def _weights_gib(tables: Tables) -> float:
    return float((tables.num_embeddings * tables.row_bytes).sum()) / 2**30


if __name__ == "__main__":
    ship_pools([*map(make_merlin_pool, MERLIN_MODELS), make_mlperf_pool()])
