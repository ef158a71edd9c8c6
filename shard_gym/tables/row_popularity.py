"""The popularity of the rows of tables, and the reuse statistics expected under it.

A table with E rows receives N lookups in a batch. Each lookup reads row k = 1..E with probability

    p(k) = (k + q)^-s / sum_j (j + q)^-s

the request model of FBGEMM's table-batched-embedding benchmark (pytorch/FBGEMM, fbgemm_gpu/tbe/bench). q = 0 is Zipf's
law, s = 0 the uniform distribution. The number of reads of row k is modelled as Poisson with rate N p(k), the limit of
independent lookups for large N where no row takes nearly all of them; N need not be an integer.

The sums over k are exact for k <= 512. Beyond, log-spaced Gauss-Legendre nodes approximate them (the sum from k = a to
b is the integral from a - 1/2 to b + 1/2, up to a 24th of the slope). The results are deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import ReadOnlyArrays, as_floats, as_indices
from shard_gym.common.errors import InvalidTablesError, short_repr
from shard_gym.tables.lookup_statistics import NUM_BINS, ReuseStatistics

EXACT_ROWS = 512
_CELLS = 256
EXACT_READS = 16  # recorded reads up to which rows are not put together with others
TAIL_STEPS = 24  # of rows that were not read
ENOUGH_READS = 4  # above, what a row will get is taken to be what it got

_KEPT = 2**15  # tables whose statistics are kept, about 20 MB

_KEPT_LAWS = 64  # tables whose densities are kept: the next one often differs in its lookups alone

_COARSE_CELLS = 64  # of the quadrature in which laws are fitted
_STEEPEST_ASSUMED = 16.0  # the largest exponent of a law that is fitted

_STEEPEST = 600.0  # s log(1 + q), of drifting exponents too; a float holds exp(-745)

_GRID_STEP = 1e-3  # of log(rate); the narrowest transition, at a rate of 32768, is 5.5e-3 wide
_GRID_LOW, _GRID_HIGH = math.log(1e-7), math.log(1e6)  # outside, all rows fall into the first or the last bin


@dataclass(frozen=True, eq=False)
class RowPopularity(ReadOnlyArrays):
    """The distributions of the lookups over the rows of T tables: p(k) ~ (k + q)^-s for rows k = 1..num_embeddings.

    FBGEMM's benchmark uses the same distribution but counts rows from 0 (fbgemm_gpu, src/tbe/eeg), so its q is larger
    by 1. Row k is the k-th most popular row; which row id that is is not specified.

    Attributes:
        q: (T,) float64, shift, at least 0; rows up to about q are equally popular.
        s: (T,) float64, exponent, at least 0; 0 is uniform.

    Raises:
        InvalidTablesError: the arrays differ in length or hold NaN or a negative number, or (1 + q)^-s is 0 as a float.
    """

    q: NDArray[np.float64]
    s: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("q", "s"):
            object.__setattr__(self, name, _checked(f"The row popularity's {name}", getattr(self, name)))
        if len(self.q) != len(self.s):
            raise InvalidTablesError(f"The row popularity has {len(self.q)} values of q but {len(self.s)} of s.")
        steep = self.s * np.log1p(self.q) > _STEEPEST
        if steep.any():
            table = int(steep.argmax())
            raise InvalidTablesError(
                f"Table {table} has the row popularity q = {self.q[table]:g} and s = {self.s[table]:g}, with which "
                "(1 + q)^-s is 0 as a float. Choose a smaller q or s."
            )

    @staticmethod
    def zipf(exponent: ArrayLike) -> RowPopularity:
        """Zipf's law, by the (T,) exponents; raises the error of the class."""
        exponents = _checked("exponent", exponent)
        return RowPopularity(np.zeros(len(exponents)), exponents)

    def __len__(self) -> int:
        return len(self.q)

    def select(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> RowPopularity:
        """Those of the tables at `indices`; raises InvalidTablesError for an index out of range."""
        chosen = as_indices("table", indices, len(self.q), InvalidTablesError)
        return self.derived(q=self.q[chosen], s=self.s[chosen])

    def of_blocks(self, blocks: ArrayLike) -> RowPopularity:
        """Those of a block of every n-th row, n of each table or of all in `blocks`: (n k + q)^-s ~ (k + q / n)^-s."""
        return RowPopularity(self.q / np.asarray(blocks), self.s)

    def steps(self, num_embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(T, n) the share of the lookups that one row gets, falling, and (T, n) how many rows get as much.

        Args:
            num_embeddings: (T,) float64, rows E.
        """
        node, multiplicity = _nodes(num_embeddings)
        density = (node + self.q[:, None]) ** np.broadcast_to(-self.s[:, None], node.shape)
        return density / (density * multiplicity).sum(axis=1, keepdims=True), multiplicity

    def statistics(self, num_embeddings: FloatArray, lookups: FloatArray) -> ReuseStatistics:
        """Those expected of a batch; the arguments are those of `reuse_statistics`."""
        return reuse_statistics(num_embeddings, lookups, self.q, self.s)


@dataclass(frozen=True, eq=False)
class RowSteps(ReadOnlyArrays):
    """The distributions of the lookups over the rows of T tables as J steps: rows, and the lookups that they get.

    It is the inverse cumulative distribution of RecShard (Sethi et al., ASPLOS 2022, section 3), as steps.

    Attributes:
        rows: (T, J) float64, rows of each step; those of a table are its `num_embeddings`.
        shares: (T, J) float64, the lookups of all rows of a step, as shares of those of the table. A row of a step gets
            at least as many as one of the next.

    Raises:
        InvalidTablesError: the arrays differ in shape, or hold NaN or a negative number, steps without rows have
            lookups, rows get more lookups than those of the step before, or the shares of a table do not sum to 1.
    """

    rows: NDArray[np.float64]
    shares: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("rows", "shares"):
            array = as_floats(f"The {name} of steps of popularity", getattr(self, name), InvalidTablesError)
            if array.ndim != 2 or not ((array >= 0) & (array <= 2**40)).all():
                raise InvalidTablesError(
                    f"The {name} of steps of popularity must be numbers of at least 0, J for each table, "
                    f"not {short_repr(array.tolist())}."
                )
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if self.rows.shape != self.shares.shape:
            raise InvalidTablesError(
                f"The steps of popularity have rows of shape {self.rows.shape} but shares of {self.shares.shape}."
            )
        each, least = np.where(self.rows > 0, self._of_a_row(), 0.0), np.minimum.accumulate(self._of_a_row(), axis=1)
        wrong = (each[:, 1:] > least[:, :-1] * (1 + 1e-9) + 1e-18).any(axis=1)
        wrong |= ((self.rows == 0) & (self.shares > 0)).any(axis=1) | (np.abs(self.shares.sum(axis=1) - 1.0) > 1e-6)
        if wrong.any():
            raise InvalidTablesError(
                f"The steps of popularity of table {int(wrong.argmax())} are none: shares must sum to 1, be 0 where a "
                "step has no rows, and a row must get no more lookups than one of the step before."
            )

    @staticmethod
    def of_reads(reads: Sequence[NDArray[np.integer[Any]]], num_embeddings: Sequence[int]) -> RowSteps:
        """The steps of T tables from recorded lookups.

        Rows read equally often are one step, above `EXACT_READS` those within half an octave. The lookups that rows
        without a read would get are about as many as were the only one of their row, and a row read c times gets about
        (c + 1) N(c + 1) / N(c), where N(c) rows were read c times (Good, Biometrika 1953). How rows without a read
        share theirs is assumed, not recorded: they fall as a power of their rank, from what a row read once gets.

        Args:
            reads: of each table, (n,) how often each row was read that was read at all.
            num_embeddings: rows of each table.
        """
        pairs = zip(reads, num_embeddings, strict=True)
        tables = [_steps_of_reads(np.asarray(each), int(rows)) for each, rows in pairs]
        length = max(len(rows) for rows, _ in tables)
        padded = [[np.pad(each, (0, length - len(each))) for each in table] for table in tables]
        return RowSteps(*(np.stack(arrays) for arrays in zip(*padded, strict=True)))

    def __len__(self) -> int:
        return len(self.rows)

    def _of_a_row(self) -> FloatArray:
        """(T, J) share of the lookups that one row of a step gets; infinity for a step without rows."""
        return np.divide(self.shares, self.rows, out=np.full_like(self.rows, np.inf), where=self.rows > 0)

    def select(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> RowSteps:
        """Those of the tables at `indices`; raises InvalidTablesError for an index out of range."""
        chosen = as_indices("table", indices, len(self.rows), InvalidTablesError)
        return self.derived(rows=self.rows[chosen], shares=self.shares[chosen])

    def of_blocks(self, blocks: ArrayLike) -> RowSteps:
        """Those of a block with an n-th of the rows of each step, n of each table or of all in `blocks`."""
        return RowSteps(self.rows / np.reshape(blocks, (-1, 1)), self.shares)

    def steps(self, num_embeddings: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(T, J) the share of the lookups that one row gets, falling, and (T, J) how many rows get as much."""
        most = np.where(self.rows > 0, self._of_a_row(), 0.0).max(axis=1, keepdims=True, initial=0.0)
        # A step without rows has the share of the one before, or else the largest.
        return np.minimum.accumulate(np.minimum(self._of_a_row(), most), axis=1), self.rows

    def statistics(self, num_embeddings: FloatArray, lookups: FloatArray) -> ReuseStatistics:
        """Those expected of a batch; the arguments are those of `reuse_statistics`."""
        share, rows = self.steps(num_embeddings)
        found = statistics_of_rates(share * lookups[:, None], rows)
        most = np.minimum(num_embeddings, lookups)
        return found._replace(distinct_rows=np.minimum(found.distinct_rows, most))


def _steps_of_reads(reads: NDArray[np.integer[Any]], num_embeddings: int) -> tuple[FloatArray, FloatArray]:
    """(J,) rows and (J,) shares of one table; see `RowSteps.of_reads`."""
    if not len(reads):
        return np.array([float(num_embeddings)]), np.ones(1)
    counts = np.bincount(np.minimum(reads, EXACT_READS + 1), minlength=EXACT_READS + 2)[1:].astype(np.float64)
    frequent = reads[reads > EXACT_READS]
    bins = np.floor(2.0 * np.log2(np.maximum(frequent, 1))).astype(np.int64)
    each, where = np.unique(-bins, return_inverse=True)
    rows, read = np.bincount(where, minlength=len(each)), np.bincount(where, frequent, len(each))
    number = np.arange(1.0, EXACT_READS + 1)
    seen, next_seen = counts[:-1], counts[1:]
    adjusted = np.where((next_seen > 0) & (seen > 0), (number + 1) * next_seen / np.maximum(seen, 1.0), number)
    adjusted[ENOUGH_READS:] = number[ENOUGH_READS:]  # of rows read often the reads themselves are better
    tail, tail_reads = _power_tail(len(reads), num_embeddings, adjusted[0], counts[0])
    of_a_row = np.concatenate([read / np.maximum(rows, 1), adjusted[::-1], tail_reads])
    count = np.concatenate([rows, seen[::-1], tail])
    there = count > 0
    of_a_row, count = np.minimum.accumulate(of_a_row[there]), count[there]
    shares = of_a_row * count
    return count, shares / shares.sum()


def _power_tail(seen: int, num_embeddings: int, first: float, total: float) -> tuple[FloatArray, FloatArray]:
    """Steps of rows that were not read: rows, and reads of a row, (k / seen)^-s times `first` with `total` together."""
    edges = np.geomspace(seen, num_embeddings, TAIL_STEPS + 1)
    rows = np.diff(edges)
    if rows.sum() < 1:
        return np.empty(0), np.empty(0)
    middle = np.log(np.sqrt(edges[1:] * edges[:-1]) / seen)
    low, high = 0.0, 50.0
    for _ in range(50):
        exponent = 0.5 * (low + high)
        more = first * (rows * np.exp(-exponent * middle)).sum() > total
        low, high = (exponent, high) if more else (low, exponent)
    reads = np.exp(-low * middle)
    return rows, reads * (total / (rows * reads).sum())


Popularity = RowPopularity | RowSteps
"""How the lookups are distributed over the rows of tables."""


def assumed_popularity(
    num_embeddings: NDArray[np.int64], lookups: FloatArray, distinct_rows: FloatArray, read_once: FloatArray
) -> RowPopularity:
    """Laws of T tables under which the rows that a batch reads, and those that it reads once, are those given.

    For tables of which the statistics of one batch are known, but not the popularity. The shift is 0 or a power of 2,
    the exponent is found for it, to the precision of a coarse quadrature. Distinct rows that no law has, because there
    are more than those of uniform lookups, give the uniform law.

    Args:
        num_embeddings: (T,) rows.
        lookups: (T,) of one batch.
        distinct_rows: (T,) expected rows that a batch reads.
        read_once: (T,) expected rows that it reads once.
    """
    given = zip(*(each.tolist() for each in (num_embeddings, lookups, distinct_rows, read_once)), strict=True)
    found = [_assumed(*map(float, table)) for table in given]
    return RowPopularity(*np.array(found).T)


@lru_cache(maxsize=_KEPT)
def _assumed(rows: float, lookups: float, distinct: float, once: float) -> tuple[float, float]:
    """(q, s) of one table."""
    if lookups <= 0:
        return 0.0, 0.0
    shifts = np.append(0.0, np.exp2(np.arange(0.0, math.log2(rows + 1.0))))[:, None]
    # Midpoints of cells of equal width in log(k), from the edge below the first row to that above the last.
    edges = 0.5 * (2.0 * rows + 1.0) ** np.linspace(0.0, 1.0, _COARSE_CELLS + 1)
    node, multiplicity = np.sqrt(edges[1:] * edges[:-1]), np.diff(edges)
    logs = np.log(node + shifts)

    def rates(exponent: FloatArray) -> FloatArray:
        density = np.exp(-exponent * (logs - logs[:, :1]))
        return np.asarray(density * (lookups / (density * multiplicity).sum(axis=1, keepdims=True)))

    low, high = np.zeros_like(shifts), np.minimum(_STEEPEST_ASSUMED, 0.5 * _STEEPEST / np.log1p(shifts + 1e-9))
    for _ in range(20):
        exponent = 0.5 * (low + high)
        fewer = (-np.expm1(-rates(exponent)) * multiplicity).sum(axis=1, keepdims=True) < distinct
        low, high = np.where(fewer, low, exponent), np.where(fewer, exponent, high)
    rate = rates(low)
    read = (-np.expm1(-rate) * multiplicity).sum(axis=1)
    read_once = (rate * np.exp(-rate) * multiplicity).sum(axis=1)
    unit = distinct or 1.0
    error = np.abs(read - distinct) / unit + np.abs(read_once - once) / unit
    best = int(error.argmin())
    return float(shifts[best, 0]), float(low[best, 0])


def _checked(name: str, values: ArrayLike) -> FloatArray:
    """`values` as a read-only (T,) array; messages call it `name`."""
    array = as_floats(name, values, InvalidTablesError)
    valid = (array >= 0) & (array <= 2**40)  # False for NaN too
    if array.ndim != 1 or not valid.all():
        raise InvalidTablesError(
            f"{name} must be one number from 0 to 2**40 for each table, not {short_repr(array.tolist())}."
        )
    array.setflags(write=False)
    return array


def reuse_statistics(num_embeddings: ArrayLike, lookups: ArrayLike, q: ArrayLike, s: ArrayLike) -> ReuseStatistics:
    """Expected distinct rows and histograms of T tables; zeros for a table without lookups.

    Args:
        num_embeddings: (T,) rows E, at least 1.
        lookups: (T,) lookups N of one batch, at least 0, integer or not.
        q: (T,) shift, above -1.
        s: (T,) exponent, at least 0.
    """
    given = (np.atleast_1d(np.asarray(each, dtype=np.float64)).tolist() for each in (num_embeddings, lookups, q, s))
    found = [_statistics(*each) for each in zip(*given, strict=True)]
    return ReuseStatistics(*(np.stack(arrays) for arrays in zip(*found, strict=True)))


@lru_cache(maxsize=_KEPT)
def _statistics(*table: float) -> ReuseStatistics:
    """That of one table, whose arguments are those of `reuse_statistics`; drawn tasks share tables."""
    rows, lookups, q, s = table
    density, multiplicity, total = _law(rows, q, s)
    found = statistics_of_rates(density * (lookups / total), multiplicity)
    distinct = np.minimum(found.distinct_rows, min(rows, lookups))
    is_read = 1.0 if lookups > 0 else 0.0
    return ReuseStatistics(distinct[0], (is_read * found.reuse_histogram)[0], (is_read * found.access_histogram)[0])


@lru_cache(maxsize=_KEPT_LAWS)
def _law(rows: float, q: float, s: float) -> tuple[FloatArray, FloatArray, np.float64]:
    """(1, n) densities at the nodes of one table, (1, n) their multiplicities, and the sum of all densities."""
    node, multiplicity = _nodes(np.array([rows]))
    density = (node + q) ** np.full_like(node, -s)  # equal shapes: numpy inverts where a lone exponent is -1
    return density, multiplicity, (density * multiplicity).sum(axis=1)[0]


def statistics_of_rates(rate: FloatArray, rows: FloatArray) -> ReuseStatistics:
    """Those of T tables that have `rows` with each expected number of reads `rate`, both (T, J)."""
    read, reads = -np.expm1(-rate) * rows, rate * rows
    some = (rows > 0).any(axis=0)  # the others add zeros
    in_bin, accessed_in_bin = _bin_shares(rate[:, some])
    reuse = np.einsum("tn,tnb->tb", read[:, some], in_bin)
    access = np.einsum("tn,tnb->tb", reads[:, some], accessed_in_bin)
    return ReuseStatistics(
        read.sum(axis=1),
        reuse / np.maximum(reuse.sum(axis=1, keepdims=True), 1e-300),
        access / np.maximum(access.sum(axis=1, keepdims=True), 1e-300),
    )


def _nodes(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(T, n) nodes and multiplicities of a quadrature: sum_k f(k) = sum_n multiplicity[n] * f(node[n])."""
    head = np.arange(1.0, EXACT_ROWS + 1)
    in_table = (head[None, :] <= rows[:, None]).astype(np.float64)
    # The tail from 512.5 to E + 0.5 in cells of equal width in log k, two Gauss-Legendre points in each.
    low = math.log(EXACT_ROWS + 0.5)
    width = np.maximum(np.log(rows + 0.5) - low, 0.0)[:, None] / _CELLS
    offset = 0.5 / math.sqrt(3.0)
    position = (np.arange(_CELLS)[:, None] + np.array([0.5 - offset, 0.5 + offset])).ravel()
    tail = np.exp(low + width * position)
    tail_multiplicity = 0.5 * width * tail  # dk = k dlog(k)
    nodes = np.concatenate([np.broadcast_to(head, in_table.shape), tail], axis=1)
    return nodes, np.concatenate([in_table, tail_multiplicity], axis=1)


def _bin_shares(rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For a Poisson count c of the given rate: P(c in bin | c > 0) and E[c; c in bin] / rate, each (..., 17)."""
    grid = _bin_share_table()
    with np.errstate(divide="ignore"):
        position = (np.clip(np.log(rate), _GRID_LOW, _GRID_HIGH) - _GRID_LOW) / _GRID_STEP
    index = np.minimum(position.astype(np.int64), len(grid) - 2)
    fraction = (position - index)[..., None]
    # grid[index] * (1 - fraction) + grid[index + 1] * fraction, with few copies: it is most of the work.
    low, high = grid.take(index, axis=0), grid.take(index + 1, axis=0)
    low *= 1 - fraction
    high *= fraction
    low += high
    return low[..., :NUM_BINS], low[..., NUM_BINS:]


@lru_cache(maxsize=1)
def _bin_share_table() -> FloatArray:
    """(G, 34), both `_bin_shares` on a grid of equal steps in log(rate); every row of either sums to one."""
    rate = np.exp(np.arange(_GRID_LOW, _GRID_HIGH + _GRID_STEP, _GRID_STEP))
    edges = [0] + [2**k for k in range(NUM_BINS - 1)]
    above = np.stack([_poisson_above(edge, rate) for edge in edges], axis=1)
    # c * P(c) at rate r is r * P(c - 1), so the accesses to rows with c > edge are r * P(c' > edge - 1).
    accessed_above = np.stack([_poisson_above(edge - 1, rate) for edge in edges], axis=1)
    reuse = np.maximum(-np.diff(above, axis=1, append=0.0), 0.0) / above[:, :1]
    return np.concatenate([reuse, np.maximum(-np.diff(accessed_above, axis=1, append=0.0), 0.0)], axis=1)


def _poisson_above(count: int, rate: FloatArray) -> FloatArray:
    """P(c > count) for Poisson counts c: a sum for small counts, a quadrature for large ones."""
    if count < 64:
        logs = np.log(rate)
        return 1.0 - sum(
            (np.exp(n * logs - rate - math.lgamma(n + 1)) for n in range(count + 1)), start=np.zeros_like(rate)
        )
    # d/dr P(c > n) = pmf(n; r): integrate that density of r (a gamma of shape n + 1) over +- 12 standard deviations.
    deviation = math.sqrt(count + 1)
    grid = np.linspace(max(1e-9, count - 12 * deviation), count + 14 * deviation, 8001)
    density = np.exp(count * np.log(grid) - grid - math.lgamma(count + 1))
    pair = 0.5 * (density[1:] + density[:-1]) * np.diff(grid)
    integral = np.concatenate([[0.0], np.cumsum(pair)])
    return np.asarray(np.interp(rate, grid, integral / integral[-1]), dtype=np.float64)
