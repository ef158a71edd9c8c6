"""The pools `dlrm-2021` and `dlrm-2022`: synthetic tables whose totals match those published of Meta's data set.

For each of its files, facebookresearch/dlrm_datasets publishes the lookups and distinct rows of a batch and two
histograms, summed over all tables. Numbers of single tables are only in the files, which are gigabytes. So every table
here gets rows, a pooling factor and a row popularity from a few distributions. Their parameters (`DISTRIBUTIONS`) were
fitted to the totals in November 2026: least squares on the 34 bins, the distinct rows and the mean rows, with weak
pulls to usual values, because the totals alone do not determine them. The shares of the kinds of tables were chosen by
hand. `python -m shard_gym.tables.pools.dlrm` writes the shipped files again, byte for byte.

There are three kinds of tables. *Flat* tables have a wide flat head and a steep tail: many rows are read about ten
times. *Zipf* tables have a narrow head and an exponent near one: every octave of popularity gets the same share of the
lookups. *Small* tables have few rows and many lookups.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.io.files import read_json
from shard_gym.tables.lookup_statistics import ReuseStatistics, round_significant
from shard_gym.tables.pools.pool import DATA, DEFAULT_DIM, Pool, PoolCard, ship_pools
from shard_gym.tables.row_popularity import RowPopularity
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload

MIN_ROWS, MAX_ROWS = 100, 50_000_000
MIN_POOLING, MAX_POOLING = 0.02, 300.0


@dataclass(frozen=True)
class PublishedTotals:
    """The published numbers of one batch, summed over all tables."""

    batch_size: int
    num_tables: int
    lookups: int
    distinct_rows: int
    unique_hist: FloatArray  # (17,) shares of the distinct rows by number of reads; they sum to one within rounding
    access_hist: FloatArray  # (17,) shares of the lookups by the same bins


@dataclass(frozen=True)
class Distributions:
    """The distributions from which the tables of a pool are sampled (natural logarithms)."""

    rows_log_mean: float  #: rows of flat and Zipf tables, lognormal
    rows_log_sd: float
    pooling_log_sd: float  #: pooling factors, lognormal; their mean follows from the published lookups
    rows_pooling_corr: float  #: correlation of the two logarithms
    flat_s: float  #: mean exponent of flat tables; small ones count as flat
    flat_log_q: float  #: log q = flat_log_q + flat_q_power log(pooling / 5) + noise
    flat_q_power: float
    flat_q_log_sd: float  #: deviation of the noise
    zipf_s: float  #: mean exponent of Zipf tables
    zipf_log_q: float  #: log q as of flat tables, with noise of 0.8
    zipf_q_power: float
    small_rows_log_mean: float  #: rows of small tables, lognormal
    small_rows_log_sd: float
    small_pooling_log_boost: float  #: small tables have this much more pooling, in logarithm
    zipf_share: float  #: share of Zipf tables; those that are neither Zipf nor small are flat
    small_share: float  #: share of small tables


_FITTED = {  # of dlrm-2021 and of dlrm-2022
    "rows_log_mean": (13.7883, 13.1856),
    "rows_log_sd": (1.8035, 1.8719),
    "pooling_log_sd": (1.1802, 1.5994),
    "rows_pooling_corr": (-0.1574, -0.1172),
    "flat_s": (2.3772, 2.3997),
    "flat_log_q": (10.6459, 10.0278),
    "flat_q_power": (0.5883, 1.407),
    "flat_q_log_sd": (0.7978, 0.5355),
    "zipf_s": (1.2263, 1.1771),
    "zipf_log_q": (2.3937, -0.9398),
    "zipf_q_power": (0.8336, 0.507),
    "small_rows_log_mean": (7.7279, 9.2961),
    "small_rows_log_sd": (0.6092, 1.0727),
    "small_pooling_log_boost": (0.8514, 1.9461),
    "zipf_share": (0.3, 0.25),
    "small_share": (0.07, 0.05),
}

DISTRIBUTIONS: dict[str, Distributions] = {
    name: Distributions(**{parameter: values[number] for parameter, values in _FITTED.items()})
    for number, name in enumerate(("dlrm-2021", "dlrm-2022"))
}


class SampledTables(NamedTuple):
    """Rows, pooling factors and row popularities (q, s) of T tables: (T,) float64 each."""

    rows: FloatArray
    pooling: FloatArray
    q: FloatArray
    s: FloatArray


def published_totals(name: str) -> PublishedTotals:
    """The totals behind the pool `name` ("dlrm-2021": one file; "dlrm-2022": the mean of 16 files)."""
    entries = read_json(DATA / "facts" / "dlrm_locality_stats.json")["pools"][name]

    def mean(key: str) -> Any:
        return np.mean([entry[key] for entry in entries], axis=0)

    return PublishedTotals(
        batch_size=entries[0]["batch_size"],
        num_tables=entries[0]["n_tables"],
        lookups=round(float(mean("avg_indices"))),
        distinct_rows=round(float(mean("avg_unique"))),
        unique_hist=mean("unique_hist"),
        access_hist=mean("access_hist"),
    )


def totals_of(stats: ReuseStatistics, lookups: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Distinct rows, unique_hist and access_hist over all tables, as the data set publishes them."""
    distinct = float(stats.distinct_rows.sum())
    unique_hist = stats.distinct_rows @ stats.reuse_histogram / distinct
    access_hist = lookups @ stats.access_histogram / lookups.sum()
    return distinct, np.asarray(unique_hist), np.asarray(access_hist)


def sample_tables(distributions: Distributions, totals: PublishedTotals, seed: int) -> SampledTables:
    """The tables before rounding; a continuous function of the numbers in `distributions`."""
    noise = _StratifiedNoise(totals.num_tables, seed)
    kind = noise.ranks()
    small = kind < distributions.small_share
    zipf = kind > 1 - distributions.zipf_share
    rows_z, pooling_z, s_z, q_z = (noise.normal() for _ in range(4))

    log_mean = np.where(small, distributions.small_rows_log_mean, distributions.rows_log_mean)
    log_sd = np.where(small, distributions.small_rows_log_sd, distributions.rows_log_sd)
    rows = np.clip(np.exp(log_mean + log_sd * rows_z), MIN_ROWS, MAX_ROWS)

    correlation = distributions.rows_pooling_corr
    mixed = correlation * rows_z + math.sqrt(1 - correlation**2) * pooling_z
    pooling = np.exp(distributions.pooling_log_sd * mixed + distributions.small_pooling_log_boost * small)
    for _ in range(30):  # alternate scaling to the published lookups and clipping
        pooling = np.clip(pooling * (totals.lookups / totals.batch_size / pooling.sum()), MIN_POOLING, MAX_POOLING)

    s = np.where(zipf, distributions.zipf_s + 0.10 * s_z, distributions.flat_s + 0.07 * s_z)
    log_pooling = np.log(pooling / 5.0)
    zipf_log_q = distributions.zipf_log_q + distributions.zipf_q_power * log_pooling + 0.8 * q_z
    flat_log_q = distributions.flat_log_q + distributions.flat_q_power * log_pooling + distributions.flat_q_log_sd * q_z
    return SampledTables(rows, pooling, np.minimum(np.exp(np.where(zipf, zipf_log_q, flat_log_q)), rows), s)


class _StratifiedNoise:
    """Samples that have exactly the quantiles of their distribution, in an order that depends on the seed.

    The order comes from PCG64's raw output, the part of NumPy's generators that is guaranteed not to change.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._bits = np.random.PCG64(seed)

    def ranks(self) -> FloatArray:
        """(count,) the midpoints of [0, 1) divided into `count` intervals, permuted."""
        order = np.argsort(self._bits.random_raw(self._count), kind="stable")
        return (order + 0.5) / self._count

    def normal(self) -> FloatArray:
        return np.array([NormalDist().inv_cdf(rank) for rank in self.ranks()])


def make_pool(name: str) -> Pool:
    """The pool `name` ("dlrm-2021" or "dlrm-2022"), computed from its distributions.

    Before they are stored, rows and lookups are rounded to integers (the lookups still add up to the published number)
    and the popularities to five digits.
    """
    totals = published_totals(name)
    sampled = sample_tables(DISTRIBUTIONS[name], totals, seed=int(name[-4:]))
    lookups = np.rint(sampled.pooling * totals.batch_size)
    lookups[np.argmax(lookups)] += totals.lookups - lookups.sum()
    popularity = RowPopularity(round_significant(sampled.q, 5), np.round(sampled.s, 4))
    tables = Tables.from_popularity(
        num_embeddings=np.rint(sampled.rows).astype(np.int64),
        embedding_dim=np.full(totals.num_tables, DEFAULT_DIM),
        pooling_factor=lookups / totals.batch_size,
        popularity=popularity,
        workload=Workload(totals.batch_size, "fp16", "sgd"),
    )
    return Pool(name, tables, _card(name, totals, tables), popularity, dims_known=False)


def _card(name: str, totals: PublishedTotals, tables: Tables) -> PoolCard:
    year, lookups = name[-4:], tables.lookups_per_batch
    stats = ReuseStatistics(tables.distinct_rows, tables.reuse_histogram, tables.access_histogram)
    distinct, unique_hist, access_hist = totals_of(stats, lookups)
    mean_rows = f"{tables.num_embeddings.mean():.3g}"
    which = {"2021": "the file fbgemm_t856_bs65536.pt", "2022": "the mean of the 16 files fbgemm_t788_bs131072_*.pt"}
    numbers = ", ".join(f"{key} {value:g}" for key, value in asdict(DISTRIBUTIONS[name]).items())
    return PoolCard(
        title=f"{totals.num_tables} synthetic tables that add up to Meta's {year} embedding lookups",
        source=f"facebookresearch/dlrm_datasets, embedding_bag/{year}/locality_stats.txt (MIT licence); {which[year]}",
        how_made="Rows, pooling factor and request law of every table are drawn from a few distributions whose "
        "parameters were fitted to the published totals; the statistics are expectations under those laws "
        f"(shard_gym/pools/dlrm.py). Parameters: {numbers}.",
        published_facts=(
            f"{totals.num_tables} tables, batch {totals.batch_size}",
            f"{totals.lookups} lookups, {totals.distinct_rows} distinct rows in a batch, all tables",
            "the published lookups are synthetic themselves: Meta made them from de-identified production traffic "
            "(README of the data set)",
            "unique_hist " + " ".join(f"{x:.4g}" for x in totals.unique_hist),
            "access_hist " + " ".join(f"{x:.4g}" for x in totals.access_hist),
        ),
        assumptions=(
            f"The data set has no embedding dims: they are synthetic, {DEFAULT_DIM} unless chosen otherwise.",
            "No row count, pooling factor or histogram of a single table is published: each is synthetic, only the "
            "totals are matched.",
            f"Mean rows {mean_rows}; 4.1 million is quoted for the 2021 data and could not be checked.",
            "Rows are requested independently of each other, by p(k) ~ (k + q)^-s.",
            "FP16 weights and SGD, as the sharding papers that use the data set train them.",
        ),
        how_close=(
            f"lookups: {lookups.sum() / totals.lookups - 1:+.3%}",
            f"distinct rows: {distinct / totals.distinct_rows - 1:+.3%}",
            f"unique_hist: largest difference of a bin {np.abs(unique_hist - totals.unique_hist).max():.4f}",
            f"access_hist: largest difference of a bin {np.abs(access_hist - totals.access_hist).max():.4f}",
        ),
    )


if __name__ == "__main__":
    ship_pools(map(make_pool, DISTRIBUTIONS))
