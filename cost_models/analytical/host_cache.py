"""Rows in host memory behind a cache in HBM: what a batch pays for rows that the cache does not hold.

The policy `lru`: FBGEMM's MANAGED_CACHING, which TorchRec calls `fused_uvm_caching`. All rows of a device are in its
host's memory, and one cache of all its tables is in its HBM, in sets of 32 slots that are found by a hash of the row. A
slot has room for the widest row of the device. Before a batch is computed, its rows that are not in the cache are
copied in, and each replaces the row of its set that was read longest ago. A device whose tables fit into its HBM has
no cache and pays nothing.

Rows are read by batches independently, row k of table i with probability P_ik. Of all rows,

    a(t) = sum_ik 1 - (1 - P_ik)^t

are expected to be among those of the last t batches. Their sets are random, so 32 a(t) / slots of them are expected in
one set, with Poisson's distribution, and those above 32 have no slot. Let R(x) be their mean number, for a mean of x. A
row that was last read between t and t' batches ago is therefore not in the cache with probability

    (R(x') - R(x)) / (x' - x),    x = 32 a(t) / slots, x' = 32 a(t') / slots

With sets of any number of slots R has a sharp bend, and this is Che's approximation of an LRU cache (Che, Tung and
Wang, IEEE JSAC 2002), whose characteristic time is that t at which a(t) fills the slots. From `BATCHES` to the next,
the rows that a batch reads and their number among those of the last batches are sums over tables: the loads.

- Rows of a batch that find no slot beside those of the same batch, the share R(x) / x with t = 1, are read and updated
  in place, as in `host_rows.py`. A read takes at least as long as copying the row in and another one out.
- The others that are not in the cache are copied in and an old one is copied out, at the update bandwidth of
  `HostMemory`, which moves a row in each direction at once. That and looking up each index is the prefetch.
- The prefetch is hidden behind `HostMemory.dense_ms`; what is left of it adds to the forward. The backward of a row in
  the cache is that of a row in HBM.
- A state of each weight is not cached: it is updated in the host's memory for every row that a batch reads. A state of
  each row is in HBM for all rows. So is the index of the cache, 4 bytes for each row of a table and 16 for each slot
  (FBGEMM v1.8.0, split_table_batched_embeddings_ops_training.py; TorchRec 1.8.0 counts the same).
- The dense gradient of a replica updates all of its rows, so P is 1 for each of them.
- Tables that are kept in HBM (`Tables.rows_in`) leave the cache less of it, and are in no cache. All rows that a batch
  reads of tables that are kept in host memory are read and updated in place, like those that find no slot.

Left out: rows of the next batches that a pipeline locks in the cache; the start, when the cache is empty; rows whose
popularity changes. docs/cost-model.md compares it with measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import constant, joined, larger, smaller, where, whole
from shard_gym.common.errors import unknown_name
from shard_gym.cost_models.base.host_policy import HostPolicy
from shard_gym.cost_models.base.host_rows import STATIC
from shard_gym.hardware import Topology
from shard_gym.tables import STATE_BYTES, RowPopularity, Tables
from shard_gym.tables.tables import IN_HBM, IN_HOST

WAYS = 32
"""Slots of a set, on NVIDIA GPUs."""

LOOKUP_MS = 2.1e-6
"""Of one lookup in the prefetch, by two caches of FBGEMM on an H100 (recsys-examples, dynamicemb
benchmark_results.json); docs/cost-model.md says how. An upper bound is 2.9 ns, if no row were missed."""

INDEX_BYTES, SLOT_BYTES = 4, 16  # of the index of the cache, for a row of a table and for a slot


def _batches() -> NDArray[np.float64]:
    octaves = np.exp2(np.arange(1.0, 13.0))
    halves = np.sort(np.concatenate([octaves, 1.5 * octaves[:-1]]))
    return np.concatenate([[1.0], halves, np.exp2(np.arange(13.0, 25.0)), [np.inf]])


BATCHES = _batches()
"""(G,) float64, the numbers of batches t, half octaves to 2^12 and whole ones to 2^24; the last one is infinite."""

# The loads of a device: four maxima, then the sums.
HBM_BYTES = 0  # equal for all tables
ROW_BYTES = 1  # of the widest row, in a slot
READ_TIMES = 2  # the time to read a byte in place, in multiples of that to copy it; equal for all tables
DENSE_MS = 3  # equal for all tables
NUM_MAXIMA = 4
ALL_BYTES = 4  # of rows and states
INDEXED_BYTES = 5  # in HBM, for each row of a table
LOOKUPS_MS = 6  # of the prefetch
STATES_MS = 7  # to update the states of each weight
FIRST_ROWS = 8  # G loads: rows that are among those of the last t batches, and not of the number before
FIRST_MS = FIRST_ROWS + len(BATCHES)  # G loads: the time to copy the rows that a batch reads, by when they were last
KEPT_BYTES = FIRST_MS + len(BATCHES)  # of tables in HBM
KEPT_READ_MS, KEPT_UPDATE_MS = KEPT_BYTES + 1, KEPT_BYTES + 2  # to read and update, in place, tables in host memory
NUM_HOST_LOADS = KEPT_BYTES + 3

_KEPT = 2**15  # tables whose curves are kept, about 20 MB
_CELLS = 8  # of the table of R, for a step of 1
_MOST = 128  # the mean above which R is the mean minus the slots of a set


def overflow(mean: float) -> float:
    """E[max(X - 32, 0)] of a Poisson X: the rows of a set that have no slot."""
    if mean == 0.0:
        return 0.0
    counts = range(WAYS + 1)
    below = [math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in counts]
    return mean - WAYS + sum((WAYS - count) * each for count, each in zip(counts, below, strict=True))


_OVERFLOW = np.maximum.accumulate([max(overflow(cell / _CELLS), 0.0) for cell in range(_MOST * _CELLS + 1)])
_SLOPE = np.append(np.diff(_OVERFLOW) * _CELLS, 1.0)
_PLAIN_OVERFLOW: list[float] = _OVERFLOW.tolist()
_PLAIN_SLOPE: list[float] = _SLOPE.tolist()


class _LruCache(HostPolicy):
    """The policy described at the top of this file."""

    name = "lru"
    num_maxima = NUM_MAXIMA
    num_loads = num_mixed_loads = NUM_HOST_LOADS
    is_linear = False

    def loads(self, tables: Tables, topology: Topology, dense: bool = False) -> FloatArray:
        """(T, H) float64, the loads above: bytes, rows and ms."""
        host, workload = topology.host, tables.workload
        assert host is not None
        row = tables.embedding_dim * np.asarray(workload.weight_bytes, np.float64)
        copy_ms = 1.0 / (host.update_gb_per_s * 1e6)  # of a byte
        rows, read = _dense_curves(tables) if dense else curves(tables)
        loads = np.empty((len(tables), NUM_HOST_LOADS))
        loads[:, HBM_BYTES] = host.hbm_bytes
        loads[:, ROW_BYTES] = row + SLOT_BYTES
        loads[:, READ_TIMES] = max(1.0, host.update_gb_per_s / host.read_gb_per_s)
        loads[:, DENSE_MS] = host.dense_ms
        loads[:, ALL_BYTES] = tables.memory_bytes
        of_row = np.asarray(INDEX_BYTES + STATE_BYTES * workload.state.per_row, np.float64)
        loads[:, INDEXED_BYTES] = tables.num_embeddings * of_row
        loads[:, LOOKUPS_MS] = tables.lookups_per_batch * LOOKUP_MS
        states = tables.embedding_dim * np.asarray(STATE_BYTES * workload.state.per_weight, np.float64)
        loads[:, STATES_MS] = rows[:, 0] * states * copy_ms
        loads[:, FIRST_ROWS:FIRST_MS] = rows
        loads[:, FIRST_MS:KEPT_BYTES] = read * (row * copy_ms)[:, None]
        loads[:, KEPT_BYTES:] = 0.0
        if tables.rows_in is not None:
            _keep(loads, tables)
        return loads

    def added_ms(self, loads: FloatArray) -> tuple[FloatArray, FloatArray]:
        """What is left of the prefetch and the reads in place, and the updates in place; 0 without a cache."""
        hbm, copies = loads[..., HBM_BYTES], loads[..., FIRST_MS:KEPT_BYTES]
        in_set = loads[..., FIRST_ROWS:FIRST_MS] * (WAYS / slots_of(loads))[..., None]  # x' - x
        mean = in_set.cumsum(-1)
        cell = whole(smaller(mean * _CELLS, float(_MOST * _CELLS)))
        above = constant(_OVERFLOW, mean)[cell] + constant(_SLOPE, mean)[cell] * (mean - cell / _CELLS)
        below = joined([above[..., :1] * 0.0, above[..., :-1]])
        there = in_set > 0
        gone = where(there, (above - below) / where(there, in_set, 1.0), 0.0)
        missed, read = (copies * gone).cumsum(-1)[..., -1], copies.cumsum(-1)[..., -1]
        in_place = read * gone[..., 0]
        prefetch = loads[..., LOOKUPS_MS] + missed - in_place
        forward = larger(prefetch - loads[..., DENSE_MS], 0.0) + in_place * loads[..., READ_TIMES]
        cached = loads[..., ALL_BYTES] > hbm
        backward = in_place + loads[..., STATES_MS]
        return (
            where(cached, forward, 0.0) + loads[..., KEPT_READ_MS],
            where(cached, backward, 0.0) + loads[..., KEPT_UPDATE_MS],
        )

    def plain_added_ms(self, loads: list[float]) -> tuple[float, float]:
        """`added_ms` of one device on floats, with the same bits."""
        hbm = loads[HBM_BYTES]
        if loads[ALL_BYTES] <= hbm:
            return loads[KEPT_READ_MS], loads[KEPT_UPDATE_MS]
        share = WAYS / max((hbm - loads[INDEXED_BYTES] - loads[KEPT_BYTES]) / loads[ROW_BYTES], float(WAYS))
        mean = below = missed = read = in_place_share = 0.0
        for number, (rows, copy) in enumerate(zip(loads[FIRST_ROWS:FIRST_MS], loads[FIRST_MS:KEPT_BYTES], strict=True)):
            in_set = rows * share
            mean += in_set
            cell = int(min(mean * _CELLS, _MOST * _CELLS))
            above = _PLAIN_OVERFLOW[cell] + _PLAIN_SLOPE[cell] * (mean - cell / _CELLS)
            gone = (above - below) / in_set if in_set > 0 else 0.0
            below = above
            missed += copy * gone
            read += copy
            if number == 0:
                in_place_share = gone
        in_place = read * in_place_share
        prefetch = loads[LOOKUPS_MS] + missed - in_place
        forward = max(prefetch - loads[DENSE_MS], 0.0) + in_place * loads[READ_TIMES]
        return forward + loads[KEPT_READ_MS], in_place + loads[STATES_MS] + loads[KEPT_UPDATE_MS]


def _keep(loads: FloatArray, tables: Tables) -> None:
    """Change the (T, H) loads of tables that are kept in HBM or in host memory: no cache has their rows."""
    in_hbm, in_host = tables.are_in(IN_HBM), tables.are_in(IN_HOST)
    kept = in_hbm | in_host
    states = tables.num_embeddings * (STATE_BYTES * tables.workload.state.per_row)
    read_ms = loads[:, FIRST_MS:KEPT_BYTES].sum(axis=1)
    loads[:, KEPT_BYTES] = np.where(in_hbm, tables.memory_bytes, np.where(in_host, states, 0.0))
    loads[:, KEPT_READ_MS] = np.where(in_host, read_ms * loads[:, READ_TIMES], 0.0)
    loads[:, KEPT_UPDATE_MS] = np.where(in_host, read_ms + loads[:, STATES_MS], 0.0)
    loads[:, ALL_BYTES] = np.where(kept, loads[:, KEPT_BYTES], loads[:, ALL_BYTES])
    loads[:, ROW_BYTES] = np.where(kept, SLOT_BYTES, loads[:, ROW_BYTES])
    loads[kept, INDEXED_BYTES:KEPT_BYTES] = 0.0


LRU = _LruCache()


def slots_of(loads: FloatArray) -> FloatArray:
    """(...) slots of the caches of devices with (..., H) loads, at least one set."""
    free = loads[..., HBM_BYTES] - loads[..., INDEXED_BYTES] - loads[..., KEPT_BYTES]
    slots: FloatArray = larger(free / larger(loads[..., ROW_BYTES], 1.0), float(WAYS))
    return slots


def curves(tables: Tables) -> tuple[FloatArray, FloatArray]:
    """Two (T, G) float64 arrays of expected rows, by when they were last read.

    The first are the rows that were read in the last `BATCHES`, and not in the last of the number before; together they
    are all rows with lookups. The second are those of them that the next batch reads; together they are all rows that a
    batch reads.
    """
    popularity, lookups = tables.row_popularity, tables.lookups_per_batch
    if isinstance(popularity, RowPopularity):  # drawn tasks share tables
        given = (tables.num_embeddings, lookups, popularity.q, popularity.s)
        found = [_of_law(*table) for table in zip(*(each.tolist() for each in given), strict=True)]
    else:
        shares, rows = popularity.steps(tables.num_embeddings.astype(np.float64))
        steps = zip(shares, rows, lookups, strict=True)
        found = [_curves(share * reads, count) for share, count, reads in steps]
    both = np.stack(found)
    return both[:, 0], both[:, 1]


def _dense_curves(tables: Tables) -> tuple[FloatArray, FloatArray]:
    """`curves` of tables all of whose rows every batch updates."""
    rows = np.zeros((len(tables), len(BATCHES)))
    rows[:, 0] = tables.num_embeddings
    return rows, rows


@lru_cache(maxsize=_KEPT)
def _of_law(num_embeddings: float, lookups: float, q: float, s: float) -> FloatArray:
    shares, rows = RowPopularity(np.array([q]), np.array([s])).steps(np.array([float(num_embeddings)]))
    return _curves(shares[0] * lookups, rows[0])


def _curves(rates: FloatArray, rows: FloatArray) -> FloatArray:
    """(2, G) of one table whose rows have these expected reads; so many have each."""
    there = (rates > 0) & (rows > 0)
    rates, left = rates[there], rows[there]  # those that were not read in so many batches
    reads = -np.expm1(-rates)
    both = np.empty((2, len(BATCHES)))
    for number, (begin, end) in enumerate(pairwise([0.0, *BATCHES.tolist()])):
        last = left * -np.expm1(rates * (begin - end))
        left = left - last
        both[:, number] = last.sum(), last @ reads
    return both


HOST_POLICIES: Mapping[str, HostPolicy] = {policy.name: policy for policy in (STATIC, LRU)}
"""The best split of rows for good (host_rows.py), and a cache (host_cache.py)."""


def host_policy_named(name: str) -> HostPolicy:
    """The policy of that name; UnknownNameError if there is none."""
    if not isinstance(name, str) or name not in HOST_POLICIES:
        raise unknown_name("host policy", name, HOST_POLICIES)
    return HOST_POLICIES[name]
