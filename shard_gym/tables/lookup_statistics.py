"""Lookup statistics of tables: distinct rows, histograms of reuse, and what they become in a part of the batch.

A row that is read k times in a batch is read binomially often, with k trials and probability r, in a part that holds a
share r of its samples. So the statistics of a smaller batch, or of the samples of one device, follow from the
histograms of the whole one, without knowing the popularity of the rows.

The histograms say how many rows are read k times only up to a bin; the rows of a bin share its reads equally, within
one, as in the streams that measurements draw. Compared with the exact statistics of the 856 tables of the pool
`dlrm-2021`, whose popularity is known, distinct rows of a 32nd of a batch are within 1%.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray

NUM_BINS = 17  # bins of the number of reads of a row in one batch: (0,1], (1,2], (2,4], ..., (16384,32768], (32768,inf)

BIN_UPPER_EDGES: FloatArray = np.append(2.0 ** np.arange(NUM_BINS - 1), np.inf)

BIN_LEAST: FloatArray = np.append(
    1.0, BIN_UPPER_EDGES[:-1] + 1.0
)  # (17,) the least number of reads of a row in each bin

EXACT_READS = 64
"""Binomial probabilities of at most this many reads are summed; above, the normal distribution approximates them."""

DENSE = 4  # tables with at most this many rows per lookup are counted in an array of all rows

HISTOGRAM_DECIMALS = 5
DISTINCT_DIGITS = 7


class ReuseStatistics(NamedTuple):
    """Lookup statistics of one batch for T tables; see `shard_gym.tables.tables.Tables`."""

    distinct_rows: FloatArray  # (T,) float64, rows read at least once, at most min(rows, lookups)
    reuse_histogram: FloatArray  # (T, 17) float64, shares of those rows by number of reads
    access_histogram: FloatArray  # (T, 17) float64, shares of the lookups by the same bins


def read_counts(rows: NDArray[np.integer[Any]]) -> FloatArray:
    """(2, 17) rows of each bin, and their reads, of one table's (N,) `rows` read in a batch; batches add up."""
    if not len(rows):
        return np.zeros((2, NUM_BINS))
    if int(rows.max()) < DENSE * len(rows):
        counts = np.bincount(rows)
        counts = counts[counts > 0]
    else:
        counts = np.unique(rows, return_counts=True)[1]
    bins = np.searchsorted(BIN_UPPER_EDGES, counts)
    return np.stack([np.bincount(bins, minlength=NUM_BINS), np.bincount(bins, weights=counts, minlength=NUM_BINS)])


def counted_statistics(counts: FloatArray, batches: int = 1) -> ReuseStatistics:
    """The statistics of one batch from the (T, 2, 17) `read_counts` of T tables, summed over so many batches."""
    rows, reads = counts.sum(axis=2).T[..., None]  # each (T, 1)
    return ReuseStatistics(
        rows[:, 0] / batches, counts[:, 0] / np.maximum(rows, 1.0), counts[:, 1] / np.maximum(reads, 1.0)
    )


def rounded_statistics(stats: ReuseStatistics, rows: FloatArray, lookups: FloatArray) -> ReuseStatistics:
    """`stats` as pool files store them: small, and independent of the last bits.

    Shares have five decimals and distinct rows seven digits; distinct rows still do not exceed rows or lookups.
    """
    distinct = round_significant(stats.distinct_rows, DISTINCT_DIGITS)
    return ReuseStatistics(
        np.minimum(distinct, np.minimum(rows, lookups)),
        np.round(stats.reuse_histogram, HISTOGRAM_DECIMALS),
        np.round(stats.access_histogram, HISTOGRAM_DECIMALS),
    )


def round_significant(values: FloatArray, digits: int) -> FloatArray:
    """`values` with `digits` significant decimal digits."""
    return np.array([float(f"{value:.{digits}g}") for value in values])


def part_of_batch(lookups: FloatArray, stats: ReuseStatistics, share: float) -> ReuseStatistics:
    """Expected statistics of a random `share` of the samples of a batch with (T,) `lookups`."""
    rows, reads_of_row = _rows_and_reads(lookups, stats)
    whole = np.floor(reads_of_row)
    distinct, accesses = np.zeros((2, len(lookups), NUM_BINS))
    for reads, weight in ((whole, 1.0 - (reads_of_row - whole)), (whole + 1.0, reads_of_row - whole)):
        number = (rows * weight)[..., None]
        distinct += (number * _in_bins(reads, share)).sum(axis=1)
        # k times P(k reads of n) is n r times P(k - 1 of n - 1): the accesses that fall on rows of a bin.
        accesses += (number * (reads * share)[..., None] * _in_bins(reads - 1.0, share, shift=1)).sum(axis=1)
    return ReuseStatistics(np.minimum(distinct.sum(axis=1), stats.distinct_rows), _shares(distinct), _shares(accesses))


def _rows_and_reads(lookups: FloatArray, stats: ReuseStatistics) -> tuple[FloatArray, FloatArray]:
    """(T, 17) rows of each bin, and the mean reads of one of them; the reads of a bin are those of the histogram.

    Where the share of a bin's few rows was rounded to 0, their number follows from their reads.
    """
    rows = stats.reuse_histogram * stats.distinct_rows[:, None]
    reads = stats.access_histogram * lookups[:, None]
    lost = 0.5 * 10.0**-HISTOGRAM_DECIMALS * stats.distinct_rows[:, None]
    rows = np.where(rows > 0, rows, np.minimum(reads / BIN_LEAST, lost))
    mean = np.clip(reads / np.maximum(rows, 1e-9), BIN_LEAST, BIN_UPPER_EDGES)
    return reads / mean, mean


def _shares(numbers: FloatArray) -> FloatArray:
    """Numbers as shares of the sum of their row; a row of zeros stays."""
    return np.asarray(numbers / np.maximum(numbers.sum(axis=-1, keepdims=True), 1e-300))


def _in_bins(trials: FloatArray, share: float, shift: int = 0) -> FloatArray:
    """(..., 17) probability that a binomial number plus `shift` lies in each bin.

    Many bins of many tables have the same number of trials; it is computed for each once.
    """
    different, which = np.unique(trials, return_inverse=True)
    edges = np.append(0.0, BIN_UPPER_EDGES[:-1]) - shift
    probability = _at_most(different, share, edges[edges < EXACT_READS])
    above = np.concatenate([1.0 - probability, _normal_above(different, share, edges[edges >= EXACT_READS])], axis=-1)
    in_bins = np.maximum(-np.diff(above, axis=-1, append=0.0), 0.0)
    found: FloatArray = in_bins[which.reshape(trials.shape)]
    return found


def _at_most(trials: FloatArray, share: float, edges: FloatArray) -> FloatArray:
    """(..., E) probability that a binomial number is at most each of E edges below `EXACT_READS`."""
    if share == 1.0:
        return np.where(trials[..., None] <= edges, 1.0, 0.0)
    counts = np.arange(EXACT_READS)
    with np.errstate(divide="ignore"):  # of more successes than trials: probability 0
        steps = np.log(np.maximum(trials[..., None] - counts, 0.0)) - np.log(counts + 1.0)
    steps += math.log(share) - math.log1p(-share)
    first = trials[..., None] * math.log1p(-share)
    probability = np.exp(first + np.concatenate([np.zeros_like(first), np.cumsum(steps, axis=-1)], axis=-1))
    cumulated = np.concatenate([np.zeros_like(first), np.cumsum(probability, axis=-1)], axis=-1)
    return np.asarray(np.minimum(cumulated[..., np.int64(edges) + 1], 1.0))


def _normal_above(trials: FloatArray, share: float, edges: FloatArray) -> FloatArray:
    """(..., E) probability that a binomial number is above each of E edges, by the normal distribution."""
    deviation = np.sqrt(np.maximum(trials * share * (1.0 - share), 1e-12))[..., None]
    distance = (trials[..., None] * share - edges - 0.5) / (deviation * math.sqrt(2.0))
    error_function = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 + 0.5 * error_function(distance))
