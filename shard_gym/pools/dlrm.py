"""The pools `dlrm-2021` and `dlrm-2022`: synthetic tables whose sum matches what is published of Meta's data set.

facebookresearch/dlrm_datasets publishes, for each of its files, the number of lookups and of distinct rows of a batch
and two histograms, all tables taken together. Numbers of single tables are only in the files, which are gigabytes. Here
every table gets rows, a pooling factor and a request law from a few distributions; their parameters (`SHAPES`) were
fitted by `python -m shard_gym.pools.dlrm_fit` so that the totals agree. `python -m shard_gym.pools.dlrm` writes the
shipped files again, byte for byte.

There are three kinds of tables. *Flat* ones have a wide flat head and a steep tail: many rows are read some ten
times. *Zipf* ones have a narrow head and an exponent near one: every octave of popularity gets the same share
of the lookups. *Small* ones have few rows and many lookups.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.io.files import read_json
from shard_gym.pools.pool import DATA, DEFAULT_DIM, Pool, PoolCard, ship_pool
from shard_gym.pools.popularity import RowPopularity
from shard_gym.pools.reuse import ReuseStatistics, reuse_statistics
from shard_gym.pools.rounding import round_significant, rounded_statistics
from shard_gym.tables import Tables, Workload

Floats = NDArray[np.float64]

MIN_ROWS, MAX_ROWS = 100, 50_000_000
MIN_POOLING, MAX_POOLING = 0.02, 300.0


@dataclass(frozen=True)
class Target:
    """What is published of one batch, all tables together.

    Attributes:
        batch_size: samples.
        num_tables: tables.
        lookups: row reads of the batch, all tables.
        distinct_rows: distinct rows read, all tables.
        unique_hist: (17,) share of the distinct rows by how often they are read; sums to one within rounding.
        access_hist: (17,) share of the lookups by the same bins.
    """

    batch_size: int
    num_tables: int
    lookups: int
    distinct_rows: int
    unique_hist: Floats
    access_hist: Floats


@dataclass(frozen=True)
class Shape:
    """The distributions the tables of a pool are drawn from (natural logarithms).

    Attributes:
        rows_log_mean, rows_log_sd: rows of flat and Zipf tables, lognormal.
        pooling_log_sd: pooling factors, lognormal; their mean follows from the published lookups.
        rows_pooling_corr: correlation of the two logarithms.
        flat_s, zipf_s: mean exponents of the two kinds (small tables count as flat).
        flat_log_q, flat_q_power, flat_q_log_sd: log q = flat_log_q + flat_q_power log(pooling / 5) + noise.
        zipf_log_q, zipf_q_power: the same for Zipf tables, with noise of 0.8.
        small_rows_log_mean, small_rows_log_sd: rows of small tables, lognormal.
        small_pooling_log_boost: small tables have this much more pooling, in logarithm.
        zipf_share, small_share: shares of the tables that are of these kinds; the rest is flat.
    """

    rows_log_mean: float
    rows_log_sd: float
    pooling_log_sd: float
    rows_pooling_corr: float
    flat_s: float
    flat_log_q: float
    flat_q_power: float
    flat_q_log_sd: float
    zipf_s: float
    zipf_log_q: float
    zipf_q_power: float
    small_rows_log_mean: float
    small_rows_log_sd: float
    small_pooling_log_boost: float
    zipf_share: float
    small_share: float


SHAPES: dict[str, Shape] = {
    "dlrm-2021": Shape(
        rows_log_mean=13.7883,
        rows_log_sd=1.8035,
        pooling_log_sd=1.1802,
        rows_pooling_corr=-0.1574,
        flat_s=2.3772,
        flat_log_q=10.6459,
        flat_q_power=0.5883,
        flat_q_log_sd=0.7978,
        zipf_s=1.2263,
        zipf_log_q=2.3937,
        zipf_q_power=0.8336,
        small_rows_log_mean=7.7279,
        small_rows_log_sd=0.6092,
        small_pooling_log_boost=0.8514,
        zipf_share=0.3,
        small_share=0.07,
    ),
    "dlrm-2022": Shape(
        rows_log_mean=13.1856,
        rows_log_sd=1.8719,
        pooling_log_sd=1.5994,
        rows_pooling_corr=-0.1172,
        flat_s=2.3997,
        flat_log_q=10.0278,
        flat_q_power=1.407,
        flat_q_log_sd=0.5355,
        zipf_s=1.1771,
        zipf_log_q=-0.9398,
        zipf_q_power=0.507,
        small_rows_log_mean=9.2961,
        small_rows_log_sd=1.0727,
        small_pooling_log_boost=1.9461,
        zipf_share=0.25,
        small_share=0.05,
    ),
}


@dataclass(frozen=True)
class Draw:
    """Rows, pooling factors and laws of T tables: (T,) float64 each."""

    rows: Floats
    pooling: Floats
    q: Floats
    s: Floats


def target(name: str) -> Target:
    """The published numbers behind the pool `name` ("dlrm-2021": one file; "dlrm-2022": mean of its 16 repeats)."""
    entries = read_json(DATA / "facts" / "dlrm_locality_stats.json")["pools"][name]

    def mean(key: str) -> Any:
        return np.mean([entry[key] for entry in entries], axis=0)

    return Target(
        batch_size=entries[0]["batch_size"],
        num_tables=entries[0]["n_tables"],
        lookups=round(float(mean("avg_indices"))),
        distinct_rows=round(float(mean("avg_unique"))),
        unique_hist=mean("unique_hist"),
        access_hist=mean("access_hist"),
    )


def draw_tables(shape: Shape, goal: Target, seed: int) -> Draw:
    """Rows, pooling factors and laws of the tables, before rounding; continuous in the numbers of `shape`."""
    noise = _Noise(goal.num_tables, seed)
    kind = noise.ranks()
    small = kind < shape.small_share
    zipf = kind > 1 - shape.zipf_share
    rows_z, pooling_z, s_z, q_z = (noise.normal() for _ in range(4))

    log_mean = np.where(small, shape.small_rows_log_mean, shape.rows_log_mean)
    log_sd = np.where(small, shape.small_rows_log_sd, shape.rows_log_sd)
    rows = np.clip(np.exp(log_mean + log_sd * rows_z), MIN_ROWS, MAX_ROWS)

    mixed = shape.rows_pooling_corr * rows_z + math.sqrt(1 - shape.rows_pooling_corr**2) * pooling_z
    pooling = np.exp(shape.pooling_log_sd * mixed + shape.small_pooling_log_boost * small)
    for _ in range(30):  # scaling to the published lookups and clipping, by turns
        pooling = np.clip(pooling * (goal.lookups / goal.batch_size / pooling.sum()), MIN_POOLING, MAX_POOLING)

    s = np.where(zipf, shape.zipf_s + 0.10 * s_z, shape.flat_s + 0.07 * s_z)
    log_pooling = np.log(pooling / 5.0)
    log_q = np.where(
        zipf,
        shape.zipf_log_q + shape.zipf_q_power * log_pooling + 0.8 * q_z,
        shape.flat_log_q + shape.flat_q_power * log_pooling + shape.flat_q_log_sd * q_z,
    )
    return Draw(rows, pooling, np.minimum(np.exp(log_q), rows), s)


class _Noise:
    """Stratified noise: each draw has exactly the quantiles of its distribution, in an order that the seed decides.

    The order comes from PCG64's raw output, the part of numpy's generators that never changes.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._bits = np.random.PCG64(seed)

    def ranks(self) -> Floats:
        """(count,) a permutation of the mid-points of [0, 1) cut in `count` parts."""
        order = np.argsort(self._bits.random_raw(self._count), kind="stable")
        return (order + 0.5) / self._count

    def normal(self) -> Floats:
        """(count,) standard normal quantiles."""
        inverse = NormalDist().inv_cdf
        return np.array([inverse(rank) for rank in self.ranks()])


def rounded(draw: Draw, goal: Target) -> Draw:
    """`draw` as it is stored: whole rows, whole lookups that add up to the published number, laws of five digits."""
    lookups = np.rint(draw.pooling * goal.batch_size)
    lookups[np.argmax(lookups)] += goal.lookups - lookups.sum()
    return Draw(
        rows=np.rint(draw.rows),
        pooling=lookups / goal.batch_size,
        q=round_significant(draw.q, 5),
        s=np.round(draw.s, 4),
    )


def pooled(stats: ReuseStatistics, lookups: Floats) -> tuple[float, Floats, Floats]:
    """Distinct rows, unique histogram and access histogram of all tables together, as the data set publishes them."""
    distinct = float(stats.distinct_rows.sum())
    unique_hist = stats.distinct_rows @ stats.reuse_histogram / distinct
    access_hist = lookups @ stats.access_histogram / lookups.sum()
    return distinct, np.asarray(unique_hist), np.asarray(access_hist)


def make_pool(name: str) -> Pool:
    """The pool `name` ("dlrm-2021" or "dlrm-2022"), made anew from its shape."""
    goal, shape = target(name), SHAPES[name]
    draw = rounded(draw_tables(shape, goal, seed=int(name[-4:])), goal)
    lookups = draw.pooling * goal.batch_size
    exact = reuse_statistics(draw.rows, lookups, draw.q, draw.s)
    stats = rounded_statistics(exact, draw.rows, lookups)
    tables = Tables(
        num_embeddings=draw.rows.astype(np.int64),
        embedding_dim=np.full(goal.num_tables, DEFAULT_DIM),
        pooling_factor=draw.pooling,
        distinct_rows=stats.distinct_rows,
        reuse_histogram=stats.reuse_histogram,
        access_histogram=stats.access_histogram,
        workload=Workload(goal.batch_size, "fp16", "sgd"),
    )
    card = _card(name, goal, shape, draw, stats)
    return Pool(name, tables, card, RowPopularity(draw.q, draw.s), dims_known=False)


def _card(name: str, goal: Target, shape: Shape, draw: Draw, stats: ReuseStatistics) -> PoolCard:
    year, lookups = name[-4:], draw.pooling * goal.batch_size
    distinct, unique_hist, access_hist = pooled(stats, lookups)
    which = {"2021": "the file fbgemm_t856_bs65536.pt", "2022": "the mean of the 16 files fbgemm_t788_bs131072_*.pt"}
    numbers = ", ".join(f"{key} {value:g}" for key, value in asdict(shape).items())
    return PoolCard(
        title=f"{goal.num_tables} synthetic tables that add up to Meta's {year} embedding lookups",
        source=f"facebookresearch/dlrm_datasets, embedding_bag/{year}/locality_stats.txt (MIT licence); {which[year]}",
        how_made="Rows, pooling factor and request law of every table are drawn from a few distributions whose "
        "parameters were fitted to the published totals; the statistics are expectations under those laws "
        f"(shard_gym/pools/dlrm.py). Parameters: {numbers}.",
        published_facts=(
            f"{goal.num_tables} tables, batch {goal.batch_size}",
            f"{goal.lookups} lookups, {goal.distinct_rows} distinct rows in a batch, all tables",
            "the published lookups are synthetic themselves: Meta made them from de-identified production traffic "
            "(README of the data set)",
            "unique_hist " + " ".join(f"{x:.4g}" for x in goal.unique_hist),
            "access_hist " + " ".join(f"{x:.4g}" for x in goal.access_hist),
        ),
        assumptions=(
            f"The data set has no embedding dims: they are synthetic, {DEFAULT_DIM} unless chosen otherwise.",
            "No row count, pooling factor or histogram of a single table is published: each is synthetic, only the "
            "totals are matched.",
            f"Mean rows {draw.rows.mean():.3g}; 4.1 million is quoted for the 2021 data and could not be checked.",
            "Rows are requested independently of each other, by p(k) ~ (k + q)^-s.",
            "FP16 weights and SGD, as the sharding papers that use the data set train them.",
        ),
        how_close=(
            f"lookups: {lookups.sum() / goal.lookups - 1:+.3%}",
            f"distinct rows: {distinct / goal.distinct_rows - 1:+.3%}",
            f"unique_hist: largest difference of a bin {np.abs(unique_hist - goal.unique_hist).max():.4f}",
            f"access_hist: largest difference of a bin {np.abs(access_hist - goal.access_hist).max():.4f}",
        ),
    )


def main() -> None:
    """Write both pools and their checksums into the package."""
    for name in SHAPES:
        pool = make_pool(name)
        ship_pool(pool)
        print(f"{name}: {len(pool)} tables, SHA-256 {pool.sha256}", *pool.card.how_close, sep="\n  ")


if __name__ == "__main__":
    main()
