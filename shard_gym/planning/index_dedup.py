"""Sequence tables whose ids are deduplicated before they travel (TorchRec's `use_index_dedup`): fewer lookups.

Each of D devices asks for a row once, however often its samples read it, and copies the answer afterwards. A row with L
expected reads in the batch is then asked for by D (1 - exp(-L / D)) devices (reads are Poisson, samples are spread
evenly). So lookups, outputs and gradients are those of a table that is read so often, and so are its costs. The copies
that every device makes of what it asked for are the same for all plans and in no cost.

With host memory, the probability that a batch reads a row follows from these fewer lookups, so it is too low for rows
that are asked for by all devices: 4% on 8 devices, 17% on 2. `distinct_rows` are right.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count
from shard_gym.hardware import MAX_DEVICES
from shard_gym.tables import BIN_UPPER_EDGES, NUM_BINS, ReuseStatistics, RowSteps, Tables, rounded_statistics


def deduplicated(tables: Tables, num_devices: int) -> Tables:
    """`tables`, the sequence tables with the lookups that are left where each of `num_devices` asks for a row once.

    Pooled tables stay as they are: TorchRec deduplicates the ids of sequence tables only. Which rows are read how often
    is that of `Tables.row_popularity`, of which `Tables.popularity`, where it is known, becomes steps.

    Raises:
        InvalidOptionError: `num_devices` is no number of devices.
    """
    devices = checked_count("num_devices", num_devices, most=MAX_DEVICES)
    chosen = np.flatnonzero(~tables.pooled & (tables.lookups_per_batch > 0))
    if not chosen.size:
        return tables
    rows = tables.num_embeddings.astype(np.float64)
    share, count = tables.row_popularity.steps(rows)
    count = count * (rows / count.sum(axis=1))[:, None]  # steps of quadratures are no whole rows
    asked = share * tables.lookups_per_batch[:, None]  # (T, J), of each row
    asked[chosen] = -devices * np.expm1(-asked[chosen] / devices)
    lookups = tables.lookups_per_batch.copy()
    lookups[chosen] = np.minimum((count * asked)[chosen].sum(axis=1), lookups[chosen])
    known = ReuseStatistics(tables.distinct_rows.copy(), tables.reuse_histogram.copy(), tables.access_histogram.copy())
    for table in chosen.tolist():
        for whole, part in zip(known, _statistics(asked[table] / devices, count[table], devices), strict=True):
            whole[table] = part
    rounded = rounded_statistics(known, rows, lookups)
    changed = [
        np.where(tables.pooled.reshape(-1, *[1] * (old.ndim - 1)), old, new)
        for old, new in zip(
            (tables.distinct_rows, tables.reuse_histogram, tables.access_histogram), rounded, strict=True
        )
    ]
    popularity = tables.popularity
    if popularity is not None:
        read = count * np.where(tables.lookups_per_batch[:, None] > 0, asked, share)
        popularity = RowSteps(count, read / read.sum(axis=1, keepdims=True))
    return replace(
        tables,
        pooling_factor=lookups / tables.workload.batch_size,
        popularity=popularity,
        **ReuseStatistics(*changed)._asdict(),
    )


def _statistics(asks: FloatArray, count: FloatArray, devices: int) -> ReuseStatistics:
    """Those of one table: each of `devices` asks for `count` rows with the probability `asks`, both (J,)."""
    number = np.arange(1.0, devices + 1)
    ways = np.array([math.lgamma(devices + 1) - math.lgamma(k + 1) - math.lgamma(devices - k + 1) for k in number])
    likely, never = np.clip(asks, 1e-300, 1.0)[:, None], np.clip(1.0 - asks, 1e-300, 1.0)[:, None]
    exactly = np.exp(ways + number * np.log(likely) + (devices - number) * np.log(never))  # (J, D) so many devices ask
    rows = count @ exactly
    in_bin = np.searchsorted(BIN_UPPER_EDGES, number)
    of_rows, of_reads = (np.bincount(in_bin, each, NUM_BINS) for each in (rows, rows * number))
    return ReuseStatistics(rows.sum(), of_rows / of_rows.sum(), of_reads / of_reads.sum())
