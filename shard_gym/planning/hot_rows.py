"""Sequence tables whose often-read rows are tables of their own, which can have a copy on every device (FlexShard).

In serving no gradient is reduced, and what HBM holds decides: see `served_rows.py`. In training:

A row-wise sequence table sends a row for each lookup. A copy of a row on each device sends nothing, but all rows that
are copied have a dense gradient, which is all-reduced and applied in every iteration, read or not. With D devices, W of
them in a domain of fast links (by default a host), and bandwidths b_in and b_out inside and across domains, a copy pays
from ::

    c = [ max(2 (W - 1) / (W b_in), 2 (D - W) / (D W b_out)) + P / DRAM ] /
        [ 2 max((W - 1) / (D b_in), (D - W) / (D b_out)) / D ]

expected reads in a batch: the time of a byte of copies (all-reduce, and P passes of the dense update) over that of a
byte of lookups (to the device and back, a D-th of them on each link). If ids are deduplicated, a row with L reads is
sent D (1 - exp(-L / D)) times, so the copy pays from L = -D ln(1 - c / D), and never if c is D or more. The idea is
FlexShard's (arXiv 2301.02959), which replicates rows by probability; the threshold is this project's.

Domains are equal: where the last one has fewer devices, its links are slower than W says, and more reads would be
better.
Latency, and what else is on the links, are left out; so are other tables, and whether the exchange is what an iteration
waits for. Plans are those of all tables: which type hot and cold tables get is still the agent's choice. To train with
such a plan, ids must be mapped so that the rows that are read most come first, and both tables looked up.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import is_positive
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.cost_models.analytical.sharding import DENSE_UPDATE_PASSES
from shard_gym.hardware import Topology
from shard_gym.planning.served_rows import copied_shares
from shard_gym.tables import ReuseStatistics, RowSteps, Tables, rounded_statistics
from shard_gym.tables.row_popularity import statistics_of_rates

HOT, COLD = ":hot", ":cold"
"""Ends of the names of the two tables."""


def least_hot_reads(topology: Topology, dedup: bool = False) -> float:
    """The c above: expected reads of a row in a batch from which a copy on each device costs less than sending it.

    Args:
        dedup: whether a device asks for a row once in a batch (`shard_gym.planning.index_dedup`).

    Infinity where no copy pays, as on one device.
    """
    devices, linked = topology.num_devices, min(topology.domain_size, topology.num_devices)
    inside, across = topology.links.intra_host_gb_per_s, topology.links.inter_host_gb_per_s
    sent = 2.0 * max((linked - 1) / inside, (devices - linked) / across * topology.cross_host_ratio) / devices**2
    if not sent:
        return math.inf
    reduced = max(2.0 * (linked - 1) / linked / inside, 2.0 * (devices - linked) / devices / linked / across)
    reads = (reduced + DENSE_UPDATE_PASSES / topology.device.dram_gb_per_s) / sent
    if not dedup:
        return reads
    return -devices * math.log1p(-reads / devices) if reads < devices else math.inf


def with_hot_tables(
    tables: Tables, topology: Topology, dedup: bool = False, least_reads: float | None = None
) -> Tables:
    """`tables`, each sequence table with rows that are read `least_reads` times or more as two: NAME:hot and NAME:cold.

    Without a number, that is `least_hot_reads` in training; of tables that are served, hot rows are those of
    `served_rows.copied_shares`, which fill the HBM of `topology`. The two tables follow each other in the place of the
    one. Tables whose rows are all hot are NAME:hot; pooled ones, and those without hot rows, stay as they are. Which
    rows are read how often is that of `Tables.row_popularity`; `popularity` becomes steps. With dedup, the tables are
    those before `deduplicated`.

    Raises:
        InvalidOptionError: `least_reads` is no positive number.
    """
    if least_reads is not None and not is_positive(least_reads):
        raise InvalidOptionError(f"least_reads must be a positive number or None, not {short_repr(least_reads)}.")
    share, count = tables.row_popularity.steps(tables.num_embeddings.astype(np.float64))
    count = count * (tables.num_embeddings / count.sum(axis=1))[:, None]  # steps of quadratures are no whole rows
    expected = share * tables.lookups_per_batch[:, None]
    if least_reads is None and not tables.workload.training:
        copied = copied_shares(tables, expected, count, topology, dedup)
        hot, rows = _in_whole_rows(count, copied)
        rows = np.where((copied == 1.0).all(axis=1), tables.num_embeddings, rows)
    else:
        least = least_hot_reads(topology, dedup) if least_reads is None else least_reads
        hot = (expected >= least).astype(np.float64)
        rows = np.ceil((count * hot).sum(axis=1) - 1e-9).astype(np.int64)
    split = ~tables.pooled & (rows > 0) & (rows < tables.num_embeddings)
    whole = ~tables.pooled & (rows == tables.num_embeddings)
    if whole.any():
        named = [name + HOT * int(all_hot) for name, all_hot in zip(tables.names, whole, strict=True)]
        tables = replace(tables, names=tuple(named))
    if not split.any():
        return tables
    source = np.repeat(np.arange(len(tables)), 1 + split)
    is_hot = np.append(source[1:] == source[:-1], False)
    is_cold = np.append(False, is_hot[:-1])
    parts = tables.select(source)
    there = np.where(is_hot[:, None], hot[source], np.where(is_cold[:, None], 1.0 - hot[source], 1.0))
    counts, reads = there * count[source], share[source] * parts.lookups_per_batch[:, None]
    every = np.where(is_hot, rows[source], parts.num_embeddings - np.where(is_cold, rows[source], 0))
    counts *= (every / counts.sum(axis=1))[:, None]
    lookups = parts.lookups_per_batch.copy()
    of_part = (counts * reads).sum(axis=1)
    lookups[is_hot] = of_part[is_hot]
    lookups[is_cold] = np.maximum(parts.lookups_per_batch - np.append(0.0, lookups[:-1]), 0.0)[is_cold]
    changed = is_hot | is_cold
    exact = statistics_of_rates(reads, counts)
    exact = exact._replace(distinct_rows=np.minimum(exact.distinct_rows, np.minimum(every, lookups)))
    found = rounded_statistics(exact, every.astype(np.float64), lookups)
    known = ReuseStatistics(parts.distinct_rows, parts.reuse_histogram, parts.access_histogram)
    kept = [
        np.where(changed.reshape(-1, *[1] * (old.ndim - 1)), new, old) for old, new in zip(known, found, strict=True)
    ]
    shares = counts * share[source]
    shares = np.where(shares.any(axis=1, keepdims=True), shares, counts)  # rows that are never read, one like another
    return replace(
        parts,
        num_embeddings=every,
        pooling_factor=lookups / parts.workload.batch_size,
        names=tuple(
            name + (HOT if first else COLD if second else "")
            for name, first, second in zip(parts.names, is_hot, is_cold, strict=True)
        ),
        popularity=RowSteps(counts, shares / shares.sum(axis=1, keepdims=True)),
        **ReuseStatistics(*kept)._asdict(),
    )


def _in_whole_rows(count: FloatArray, hot: FloatArray) -> tuple[FloatArray, NDArray[np.int64]]:
    """The (T, J) shares `hot` of steps of `count` rows, the partial ones less so that rows are whole; the (T,) rows."""
    total = (count * hot).sum(axis=1)
    rows = np.floor(total * (1.0 + 1e-12) + 1e-9)
    partial = (hot > 0) & (hot < 1) & (count > 0)
    there = np.maximum((count * partial).sum(axis=1), 1e-300)
    less = np.where(partial, np.clip(hot - (np.maximum(total - rows, 0.0) / there)[:, None], 0.0, 1.0), hot)
    return less, rows.astype(np.int64)
