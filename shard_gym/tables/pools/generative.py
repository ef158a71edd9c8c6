"""The pools of generative recommenders: MLPerf's DLRMv3, which is served, and HSTU on KuaiRand, which is trained.

Their tables are published one by one. They are those of an `EmbeddingCollection`, so all are sequence tables: a history
of a user and the candidates that are ranked for it read one table. What a batch reads of DLRMv3 follows from the
published generator of its data set, of KuaiRand from the totals of the data set and from assumptions.
`python -m shard_gym.tables.pools.generative` writes the shipped files again, byte for byte.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.io.files import read_json
from shard_gym.tables.pools.pool import DATA, Pool, PoolCard, ship_pools
from shard_gym.tables.row_popularity import Popularity, RowPopularity, RowSteps, reuse_statistics
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload

OF_BOTH = "history_and_candidates"  # what reads the tables of items
KUAIRAND_DEVICES = 8


def make_mlperf_pool() -> Pool:
    """The pool `mlperf-dlrm-v3`: three tables that 8 GPUs serve."""
    facts = read_json(DATA / "facts" / "mlperf_dlrm_v3.json")
    made, candidates = facts["generator"], facts["candidates"]
    lookups = lookups_of_steps(made, candidates)
    history = lookups.sum() - candidates
    workload = Workload(
        facts["requests_in_batch"] * facts["num_devices"], facts["weight_dtype"], "rowwise_adagrad", False
    )
    steps, users = made["time_steps"], made["users"]
    rows, shares = np.zeros((2, len(facts["tables"]), steps))
    for number, table in enumerate(facts["tables"]):
        rows[number, 0], shares[number, 0] = table["num_embeddings"], 1.0
        if table["name"] == "item_id":
            rows[number], shares[number] = made["items"] / steps, lookups / lookups.sum()
        elif table["name"] == "user_id":
            rows[number, :2] = users, table["num_embeddings"] - users
    tables = _tables(facts, lookups.sum(), RowSteps(rows, shares), workload)
    card = PoolCard(
        title="The 3 tables of MLPerf's DLRMv3, served",
        source=facts["source"],
        how_made="Tables as published; the statistics of a batch are expectations under the law of the published "
        "generator of the data set (shard_gym/tables/pools/generative.py).",
        published_facts=(
            *_table_facts(facts),
            f"A request ranks {candidates:,} candidates; the default is {facts['requests_in_batch']} requests to a "
            f"batch, on each of {facts['num_devices']} GPUs.",
            f"Of the generator: {users:,} users, {made['items']:,} items in {made['categories']} categories, "
            f"{steps} time steps; at a step a user takes {made['mean_items']} items on average with the probability "
            f"{made['user_share']}, evenly from the items that are there so far. Requests are those of the last "
            f"{steps - made['training_steps']} steps.",
            f"So a history has {history:,.0f} items on average, and the newest hundredth of the items gets "
            f"1/{lookups[0] / lookups[-1]:.0f} of the lookups of the oldest.",
            "The reference implementation keeps all tables in the memory of the host.",
        ),
        assumptions=(
            "Lookups are independent: that a user stays with four categories is left out.",
            f"Users are all {users:,} of the data set, one as often as another; the benchmark takes 1% of them.",
            "Rowwise Adagrad, if the tables are trained, as the training configuration of Meta's repository has it.",
        ),
        how_close=(f"size: {_gib(tables):.1f} GiB of weights; the checkpoint is published as 1 TB",),
    )
    return Pool("mlperf-dlrm-v3", tables, card)


def lookups_of_steps(made: dict[str, Any], candidates: int) -> FloatArray:
    """(time_steps,) mean lookups of a request by the generator `made`, of the items that each time step adds.

    The mean is that over the steps that requests are from.
    """
    lookups, first = np.zeros(made["time_steps"]), made["training_steps"]
    requests = range(first, made["time_steps"])
    items = made["mean_items"]

    def add(step: int, amount: float) -> None:
        there = max(step, 0) + 1
        lookups[:there] += amount / there / len(requests)

    for now in requests:
        add(-1, items)
        for step in range(now):
            add(step, items * made["user_share"])
        add(now, candidates)
    return lookups


def make_kuairand_pool() -> Pool:
    """The pool `hstu-kuairand`: two tables of 10 million rows and five small ones, which 8 GPUs train."""
    facts = read_json(DATA / "facts" / "hstu_kuairand.json")
    data, tables = facts["data"], facts["tables"]
    once = sum(table["read_by"] != OF_BOTH for table in tables)
    longest = facts["max_seq_len"] - facts["candidates"] - once
    published = data["interactions"] / data["users"]
    whole = published - facts["candidates"]
    history = round(whole * -math.expm1(-longest / whole))
    exponent = round(_exponent(tables[0]["num_embeddings"], data["interactions"], data["videos"]), 4)
    law = RowPopularity.zipf([exponent if table["read_by"] == OF_BOTH else 0.0 for table in tables])
    workload = Workload(facts["batch_of_a_process"] * KUAIRAND_DEVICES, facts["weight_dtype"], facts["optimizer"])
    made = _tables(facts, history + facts["candidates"], law, workload)
    card = PoolCard(
        title=f"The {len(tables)} tables of Meta's generative recommender (HSTU) on KuaiRand, trained",
        source=facts["source"],
        how_made="Tables as published; the statistics of a batch are expectations under Zipf's law, with lengths and "
        "an exponent that are assumed from totals of the data set (shard_gym/tables/pools/generative.py).",
        published_facts=(
            *_table_facts(facts),
            f"{facts['batch_of_a_process']} samples in a batch of a process; rowwise Adagrad.",
            f"A sample has {facts['candidates']} candidates, and {longest:,} items of history at most.",
            f"KuaiRand-1K: {data['users']:,} users, {data['videos']:,} videos, {data['interactions']:,} interactions.",
        ),
        assumptions=(
            f"Histories have {history:,} items on average: {published:,.0f} interactions of a user, with lengths that "
            f"follow an exponential law, cut at {longest:,}. No distribution of the lengths is published.",
            f"Videos follow Zipf's law with the exponent {exponent}, by which {data['interactions']:,} lookups read "
            f"{data['videos']:,} of {tables[0]['num_embeddings']:,} rows. No popularity of a row is published.",
            "Users and the values of the small tables are read evenly, and lookups are independent.",
            f"A global batch of {workload.batch_size}, of {KUAIRAND_DEVICES} processes.",
        ),
        how_close=(f"size: {_gib(made):.2f} GiB of weights",),
    )
    return Pool("hstu-kuairand", made, card, law)


def _tables(facts: dict[str, Any], lookups: float, popularity: Popularity, workload: Workload) -> Tables:
    """The published tables; those of items have so many `lookups` of a sample, the others one."""
    of_items = np.array([table["read_by"] == OF_BOTH for table in facts["tables"]])
    return Tables.from_popularity(
        num_embeddings=[table["num_embeddings"] for table in facts["tables"]],
        embedding_dim=np.full(len(of_items), facts["embedding_dim"]),
        pooling_factor=np.where(of_items, lookups, 1.0),
        num_features=np.where(of_items, 2, 1),
        popularity=popularity,
        workload=workload,
        names=[table["name"] for table in facts["tables"]],
        pooled=np.zeros(len(of_items), np.bool_),
    )


def _table_facts(facts: dict[str, Any]) -> tuple[str, ...]:
    tables = ", ".join(f"{table['name']} {table['num_embeddings']:,}" for table in facts["tables"])
    both = " and ".join(table["name"] for table in facts["tables"] if table["read_by"] == OF_BOTH)
    return (
        f"Rows: {tables}; all of dim {facts['embedding_dim']}, in {facts['weight_dtype'].upper()}.",
        f"History and candidates read {both}; the other tables are read once in a sample.",
    )


def _exponent(rows: int, lookups: int, distinct: int) -> float:
    """The exponent of Zipf's law by which so many lookups are expected to read `distinct` rows."""
    low, high = 0.0, 4.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        more = reuse_statistics([rows], [lookups], [0.0], [middle]).distinct_rows[0] > distinct
        low, high = (middle, high) if more else (low, middle)
    return low


def _gib(tables: Tables) -> float:
    return float((tables.num_embeddings * tables.row_bytes).sum()) / 2**30


if __name__ == "__main__":
    ship_pools([make_mlperf_pool(), make_kuairand_pool()])
