"""How often each row of a table is read in a batch, in whole numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.pools.reuse import HISTOGRAM_DECIMALS
from shard_gym.tables import BIN_UPPER_EDGES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LOW = np.append(1.0, BIN_UPPER_EDGES[:-1] + 1.0)  # least and most accesses of a row of each bin
_HIGH = BIN_UPPER_EDGES


def whole_counts(lookups: int, distinct: int, reuse: Floats, access: Floats) -> Ints:
    """How often each row is read, in whole numbers, from the statistics of a table.

    Statistics are expectations or rounded shares, so whole numbers cannot always meet them all. The lookups are met
    exactly, then the distinct rows, then the histograms:

    1. The rows of each bin are reuse * distinct, moved as little as possible (least squares) so that the accesses of
       the bin, access * lookups, give each of its rows a number inside the bin's edges. Shares count as known to half a
       unit of their fifth decimal, as pools store them; what is rare among millions of rows is told by `access` alone.
    2. They are rounded by their running sum from the hottest bin down, so no running sum is off by more than half.
    3. If no counts inside the edges add up to `lookups`, as few rows as possible move to the next bin.
    4. The accesses of each bin are access * lookups, moved as little as possible (least squares) so that they fit its
       rows and add up, then rounded; the rows of a bin share them equally, within one.

    Args:
        lookups: accesses of all rows, at least `distinct`.
        distinct: rows, at least 1 if there are lookups.
        reuse: (17,) share of the rows by bin; sums to about 1.
        access: (17,) share of the accesses by bin.

    Returns:
        (distinct,) int64, each at least 1, hottest bin first; they add up to `lookups`.
    """
    if lookups == 0:
        return np.empty(0, np.int64)
    high: Floats = np.minimum(_HIGH, lookups)
    rows = _into_reach(_whole_rows(lookups, distinct, reuse, access), lookups, high)
    reads = _whole_reads(access / access.sum() * lookups, rows * _LOW, rows * high, lookups)
    each, more = np.divmod(reads, np.maximum(rows, 1))
    hottest_first = np.stack([each + 1, each], axis=1)[::-1]
    return np.repeat(hottest_first.ravel(), np.stack([more, rows - more], axis=1)[::-1].ravel())


def _whole_rows(lookups: int, distinct: int, reuse: Floats, access: Floats) -> Ints:
    """(17,) rows of each bin: the first two steps of `whole_counts`."""
    wanted = reuse / reuse.sum() * distinct
    tolerance = 0.5 * 10.0**-HISTOGRAM_DECIMALS
    fewest_reads, most_reads = np.maximum(access - tolerance, 0) * lookups, (access + tolerance) * lookups
    least, most = fewest_reads / _HIGH, np.where((access > 0) | (reuse > 0), most_reads / _LOW, 0)
    least[-1] = min(fewest_reads[-1] / _LOW[-1], 1)  # a bin without an upper edge: one row could take them all
    if least.sum() <= distinct <= most.sum():
        wanted = _project(wanted, least, most, distinct)
    ends = np.rint(np.cumsum(wanted[::-1]))  # the last is `distinct`, up to less than the half that rounding forgives
    rows: Floats = np.diff(ends, prepend=0.0)[::-1]
    return rows.astype(np.int64)


def _into_reach(rows: Ints, lookups: int, high: Floats) -> Ints:
    """`rows` (17,), some moved to the next bin if else their counts could not add up to `lookups`."""
    rows = rows.copy()
    down, up = np.append(0, np.diff(_LOW)), np.append(np.diff(high), 0)
    for edge, step, gain in ((_LOW, -1, down), (high, 1, up)):
        while (missing := step * (lookups - int(rows @ edge))) > 0:
            open_bins = np.flatnonzero((rows > 0) & (gain > 0))
            small = open_bins[gain[open_bins] <= missing]
            chosen = small[np.argmax(gain[small])] if small.size else open_bins[np.argmin(gain[open_bins])]
            moved = min(int(rows[chosen]), max(missing // int(gain[chosen]), 1))
            rows[chosen] -= moved
            rows[chosen + step] += moved
    return rows


def _whole_reads(wanted: Floats, least: Floats, most: Floats, lookups: int) -> Ints:
    """(17,) accesses of each bin: the last step of `whole_counts`. The largest fractions are rounded up."""
    numbers = _project(wanted, least, most, lookups)
    whole = np.floor(numbers)
    while (rest := lookups - int(whole.sum())) > 0:
        room = np.flatnonzero(whole < most)
        whole[room[np.argsort(whole[room] - numbers[room], kind="stable")[:rest]]] += 1
    return whole.astype(np.int64)


def _project(wanted: Floats, least: Floats, most: Floats, total: float) -> Floats:
    """The numbers nearest to `wanted` (least squares) from `least` to `most` that add up to `total`.

    They are `wanted` plus one number for all, clipped; that number is found by bisection.
    """
    low, high = float((least - wanted).min()), float((most - wanted).max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(wanted + middle, least, most).sum() < total else (low, middle)
    return np.clip(wanted + high, least, most)
