"""Rows in host memory: what reading and updating them costs a device, in additive-load form.

A device keeps the rows that a batch is most likely to read in its HBM, and reads and updates the others in its host's
memory (a static split, as in RecShard, Sethi et al., ASPLOS 2022, executed as FBGEMM's UVM). Row k of table i is read
by a batch with probability P_ik = 1 - exp(-its expected reads), and takes m_i bytes of HBM, of C bytes on the device.
The best split puts the rows in HBM whose P is above a threshold that all tables of the device share. By duality the
bytes that a batch reads from the host are

    max over l from 0 to 1 of ( sum_i h_i(l) - l C ),    h_i(l) = m_i sum_k min(P_ik, l)

which is 0 where all rows fit. For a fixed threshold l that is a sum over the tables, so the loads are h_i at the
`THRESHOLDS`, and the device takes the largest of linear functions. Between thresholds the function is concave, so the
largest at the thresholds is a lower bound of the exact one; docs/host-memory.md says how close it is.

- Forward: those bytes of weights at the read bandwidth of `HostMemory`; backward: the bytes of weights and of states of
  each weight at its update bandwidth. Both add to the time of their phase, as FBGEMM's kernels wait for the rows.
- A state of each weight lies where its row is. A state of each row (4 bytes) is in HBM for all rows of a table (FBGEMM
  v1.8.0, split_table_batched_embeddings_ops_training.py, where the tables are managed), so it takes l times its bytes.
- The dense gradient of a replica updates all of its rows, so P is 1 for each of them.
- A table that is kept in HBM (`Tables.rows_in`) leaves C less its bytes to the others: its h is l times its bytes, as
  if every batch read all of its rows. Of one that is kept in host memory, h is at every l the bytes that a batch reads;
  where the other rows fit, the largest at the thresholds is 2^-24 C below them.
- Of tables of several workloads, w_i / m_i of the bytes of a row are weights, which the forward reads. So each phase
  has loads of its own, those of the forward with sum_k min(P_ik w_i / m_i, l), and takes what the best split for it
  leaves. Where these shares differ, no split is the best for both phases.
- What the HBM serves less, because the host serves it, is not taken off: it is a hundredth of what the host adds.

All loads are sums or maxima over the tables of a device, and time never falls when a table is added.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.either import any_of, larger, largest, outer, turned, turned_copy, where
from shard_gym.cost_models.base.host_policy import HostPolicy
from shard_gym.cost_models.base.linear import HostReads
from shard_gym.hardware import Topology
from shard_gym.tables import STATE_BYTES, RowPopularity, Tables, Workload
from shard_gym.tables.tables import IN_HBM, IN_HOST


def _thresholds() -> FloatArray:
    """1, then those of rows with 4 expected reads and less: half octaves to 2^-12, and whole ones to 2^-24."""
    octaves = np.concatenate([np.arange(2.0, -12.5, -0.5), np.arange(-13.0, -24.5, -1.0)])
    return np.concatenate([[1.0], -np.expm1(-np.exp2(octaves))])


THRESHOLDS = _thresholds()
"""(G,) float64, the thresholds l, falling. Rows with many reads have nearly equal P, so the first are close."""

# The loads of a device with host memory: two maxima, then the sums.
HBM_MS = 0  # the time to read all bytes of its HBM from the host instead; equal for all tables
UPDATE_TIMES = 1  # the time to update a byte, in multiples of that to read it; equal for all tables
NUM_MAXIMA = 2
NUM_HOST_LOADS = NUM_MAXIMA + len(THRESHOLDS)
NUM_MIXED_LOADS = NUM_HOST_LOADS + len(THRESHOLDS)  # of tables of several workloads: updates behind reads

ROUNDING = 1e-12  # share by which the HBM is more, so that sums of tables that fill it to the last byte fit

_KEPT = 2**15  # tables whose curves are kept, about 11 MB


def host_loads(tables: Tables, topology: Topology, dense: bool = False) -> FloatArray:
    """(T, 2 + G) float64, the loads above, ms but for `UPDATE_TIMES`; of a topology with host memory.

    (T, 2 + 2 G) of tables of several workloads: the sums of reads, then those of updates.

    Args:
        dense: whether a batch updates every row, as those of a replica with its dense gradient; then P is 1.
    """
    host, workload = topology.host, tables.workload
    assert host is not None
    weight, states = workload.weight_bytes, STATE_BYTES * workload.state.per_weight
    if len(tables.workloads) > 1:
        share, update_ms = np.asarray(weight / (weight + states)), 1e-6 / host.update_gb_per_s
        most = max(_share_of_weights(each) for each in tables.workloads)  # of all tables of the task
        fastest_ms = most / (host.read_gb_per_s * 1e6)
        loads = np.empty((len(tables), NUM_MIXED_LOADS))
        loads[:, HBM_MS] = host.hbm_bytes * fastest_ms * (1.0 + ROUNDING)
        loads[:, UPDATE_TIMES] = update_ms / fastest_ms
        loads[:, NUM_MAXIMA:NUM_HOST_LOADS] = host_bytes(tables, dense, share / most) * fastest_ms
        loads[:, NUM_HOST_LOADS:] = host_bytes(tables, dense) * update_ms
        return loads
    read_ms = weight / (weight + states) / (host.read_gb_per_s * 1e6)  # of a byte of HBM that is in the host instead
    loads = np.empty((len(tables), NUM_HOST_LOADS))
    loads[:, HBM_MS] = host.hbm_bytes * read_ms * (1.0 + ROUNDING)
    loads[:, UPDATE_TIMES] = (weight + states) / weight * host.read_gb_per_s / host.update_gb_per_s
    loads[:, NUM_MAXIMA:] = host_bytes(tables, dense) * read_ms
    return loads


def _share_of_weights(workload: Workload) -> float:
    """Of the bytes of a row with its states of each weight."""
    weight = float(np.max(workload.weight_bytes))
    return weight / (weight + STATE_BYTES * float(np.max(workload.state.per_weight)))


def host_bytes(tables: Tables, dense: bool = False, share: FloatArray | None = None) -> FloatArray:
    """(T, G) float64, the h of each table at the thresholds: bytes of HBM; `dense` as in `host_loads`.

    Args:
        share: (T,) of the bytes of a row, how many count where it is in the host, at most 1; all of them if None.
    """
    workload, every = tables.workload, tables.num_embeddings[:, None]
    in_hbm = tables.embedding_dim * (workload.weight_bytes + STATE_BYTES * workload.state.per_weight)  # bytes of a row
    part = np.ones(1) if share is None else share[:, None]
    if dense:
        rows = every * (THRESHOLDS if share is None else np.minimum(part, THRESHOLDS))
    else:
        rows = rows_by_threshold(tables) if share is None else _rows_by_share(tables, share)
    if tables.rows_in is not None:
        # Of rows in the host all that a batch reads, as at l = 1.
        rows = np.where(tables.are_in(IN_HOST)[:, None], rows[:, :1], rows)
        rows = np.where(tables.are_in(IN_HBM)[:, None], every * THRESHOLDS, rows)
    states = STATE_BYTES * np.reshape(workload.state.per_row, (-1, 1)) * every
    return in_hbm[:, None] * rows + states * THRESHOLDS


def host_read_ms(loads: FloatArray) -> FloatArray:
    """(...) ms that a batch reads from the host, from the (..., 2 + G) loads of a device."""
    columns = turned_copy(loads[..., :NUM_HOST_LOADS])  # contiguous, so that each operation runs over many devices
    above = columns[NUM_MAXIMA:]
    above -= outer(THRESHOLDS, columns[HBM_MS])
    took: FloatArray = turned(larger(largest(above, 0), 0.0))
    return took


def plain_host_read_ms(loads: list[float]) -> float:
    """`host_read_ms` of one device on floats, with the same bits."""
    hbm, sums = loads[HBM_MS], loads[NUM_MAXIMA:NUM_HOST_LOADS]
    return max(0.0, *[load - threshold * hbm for load, threshold in zip(sums, _PLAIN, strict=True)])


_PLAIN: list[float] = THRESHOLDS.tolist()


class _StaticSplit(HostPolicy):
    """The policy described at the top of this file."""

    name = "static"
    num_maxima = NUM_MAXIMA
    num_loads = NUM_HOST_LOADS
    num_mixed_loads = NUM_MIXED_LOADS
    is_linear = True

    def loads(self, tables: Tables, topology: Topology, dense: bool = False) -> FloatArray:
        """`host_loads`."""
        return host_loads(tables, topology, dense)

    def added_ms(self, loads: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The time to read from the host, and to update there."""
        read_ms = host_read_ms(loads)
        update_ms = read_ms * loads[..., UPDATE_TIMES]
        if loads.shape[-1] > NUM_HOST_LOADS:
            columns = turned(loads)
            hbm_ms = outer(THRESHOLDS, columns[HBM_MS] * columns[UPDATE_TIMES])
            own = turned(larger(largest(columns[NUM_HOST_LOADS:] - hbm_ms, 0), 0.0))
            # Without updates of their own, tables have one workload, beside tasks with several.
            update_ms = where(any_of(loads[..., NUM_HOST_LOADS:], -1)[..., 0], own, update_ms)
        return read_ms, update_ms

    def plain_added_ms(self, loads: list[float]) -> tuple[float, float]:
        """`added_ms` of one device on floats, with the same bits."""
        read_ms = plain_host_read_ms(loads)
        return read_ms, read_ms * loads[UPDATE_TIMES]

    def reads_of(self, loads: FloatArray) -> HostReads | None:
        """The (T, 2 + G) loads of tables as linear functions; None for (T, 0), those without host memory.

        Of tables of several workloads they are lower bounds of updates: at each threshold these have no fewer bytes.
        """
        if not loads.shape[1]:
            return None
        hbm, updates = loads[0, [HBM_MS, UPDATE_TIMES]]
        return HostReads(loads[:, NUM_MAXIMA:NUM_HOST_LOADS].T, THRESHOLDS * hbm, np.array([1.0, updates]))


STATIC = _StaticSplit()


def rows_by_threshold(tables: Tables) -> FloatArray:
    """(T, G) float64, sum_k min(P_k, l) of each table: expected rows that a batch reads, each counted l at most."""
    popularity, lookups = tables.row_popularity, tables.lookups_per_batch
    if isinstance(popularity, RowPopularity):  # drawn tasks share tables
        given = (tables.num_embeddings, lookups, popularity.q, popularity.s)
        return np.stack([_of_law(*table) for table in zip(*(each.tolist() for each in given), strict=True)])
    shares, rows = popularity.steps(tables.num_embeddings.astype(np.float64))
    return np.stack([_curve(share * reads, count) for share, count, reads in zip(shares, rows, lookups, strict=True)])


def _rows_by_share(tables: Tables, share: FloatArray) -> FloatArray:
    """(T, G) float64, sum_k min(share P_k, l) of each table; that of `rows_by_threshold` for a share of 1."""
    popularity, found = tables.row_popularity, rows_by_threshold(tables)
    some = np.flatnonzero(share < 1.0)
    if some.size:
        shares, rows = popularity.select(some).steps(tables.num_embeddings[some].astype(np.float64))
        of_tables = zip(shares, rows, tables.lookups_per_batch[some], share[some], strict=True)
        found[some] = [part * _curve(each * reads, count, THRESHOLDS / part) for each, count, reads, part in of_tables]
    return found


@lru_cache(maxsize=_KEPT)
def _of_law(num_embeddings: float, lookups: float, q: float, s: float) -> FloatArray:
    shares, rows = RowPopularity(np.array([q]), np.array([s])).steps(np.array([float(num_embeddings)]))
    return _curve(shares[0] * lookups, rows[0])


def _curve(rates: FloatArray, rows: FloatArray, thresholds: FloatArray = THRESHOLDS) -> FloatArray:
    """(G,) of one table whose rows have these expected reads, falling; so many have each."""
    read = -np.expm1(-rates)
    above = np.searchsorted(-read, -thresholds)  # the number of steps with a higher probability
    counted = np.append(0.0, np.cumsum(rows))[above]
    less = np.append(np.cumsum((read * rows)[::-1])[::-1], 0.0)[above]
    return np.asarray(less + thresholds * counted)
