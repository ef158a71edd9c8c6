"""Importer of Meta's published lookup files (facebookresearch/dlrm_datasets) into a pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shard_gym.pools.meta_file import Integers, Progress, indices_of, open_lookups
from shard_gym.pools.pool import DEFAULT_DIM, Pool, PoolCard
from shard_gym.pools.reuse import ReuseStatistics
from shard_gym.pools.rounding import HISTOGRAM_DECIMALS
from shard_gym.tables import BIN_UPPER_EDGES, NUM_BINS, Tables, Workload

MIN_ROWS = 100
"""Fewest rows an imported table is given, as DreamShard's data tools do."""

_DENSE = 4  # a table is counted in an array of its rows when it has at most this many rows per lookup


def import_meta(
    path: str | Path, name: str, *, tmp_dir: str | Path | None = None, progress: Progress | None = None
) -> Pool:
    """The pool measured from one of Meta's lookup files: `fbgemm_t856_bs65536.pt`, its `.pt.gz`, or one like it.

    The file holds (indices, offsets, lengths) of one batch: which rows of T tables B samples read. It is mapped into
    memory and counted table by table on the CPU, so the largest table decides the memory needed, not the file. A gzip
    file is first unpacked on the disk, and what was unpacked is removed at the end, also after an error.

    Everything is measured but two things. The number of rows is not in the data: the largest index plus 1 stands for
    it, and at least 100. Nor are embedding dims: every table gets 16, and `load_pool` gives others when the saved
    pool is read (`save_pool`).

    Args:
        path: the file.
        name: the pool's name.
        tmp_dir: where to unpack a gzip file; default beside it. It needs room for several times the file's size.
        progress: called with (done, total); first in bytes while unpacking, then in tables.

    Raises:
        DamagedFileError: the file is missing, truncated, a git-LFS pointer, or does not hold such a batch.
        InvalidOptionError: a gzip file cannot be unpacked into `tmp_dir`.
        MissingExtraError: torch is not installed.
    """
    path = Path(path)
    report = progress or _silent
    with open_lookups(path, None if tmp_dir is None else Path(tmp_dir), report) as lookups:
        num_tables, batch_size = lookups.lengths.shape
        rows = np.empty(num_tables)
        reads = np.empty(num_tables)
        stats = ReuseStatistics(np.zeros(num_tables), *np.zeros((2, num_tables, NUM_BINS)))
        for table in range(num_tables):
            indices = indices_of(f"Table {table} of {path}", lookups.indices, *lookups.bags(table))
            rows[table], reads[table] = max(_highest(indices) + 1, MIN_ROWS), len(indices)
            _measure(indices, table, stats)
            report(table + 1, num_tables)
            del indices  # nothing may hold on to the mapped file when it is removed
        del lookups
    tables = Tables(
        num_embeddings=rows.astype(np.int64),
        embedding_dim=np.full(num_tables, DEFAULT_DIM),
        pooling_factor=reads / batch_size,
        distinct_rows=stats.distinct_rows,
        reuse_histogram=np.round(stats.reuse_histogram, HISTOGRAM_DECIMALS),
        access_histogram=np.round(stats.access_histogram, HISTOGRAM_DECIMALS),
        workload=Workload(batch_size, "fp16", "sgd"),
    )
    return Pool(name, tables, _card(path, tables), dims_known=False)


def _silent(done: int, total: int) -> None:
    """Stands in for no progress callback."""


def _highest(indices: Integers) -> int:
    return int(indices.max()) if len(indices) else -1


def _measure(indices: Integers, table: int, stats: ReuseStatistics) -> None:
    """Write the distinct rows and the histograms of one table into `stats`; without lookups they stay zero."""
    if len(indices) == 0:
        return
    if _highest(indices) < _DENSE * len(indices):
        counts = np.bincount(indices)
        counts = counts[counts > 0]
    else:
        counts = np.unique(indices, return_counts=True)[1]
    bins = np.searchsorted(BIN_UPPER_EDGES, counts)
    stats.distinct_rows[table] = len(counts)
    stats.reuse_histogram[table] = np.bincount(bins, minlength=NUM_BINS) / len(counts)
    stats.access_histogram[table] = np.bincount(bins, weights=counts, minlength=NUM_BINS) / len(indices)


def _card(path: Path, tables: Tables) -> PoolCard:
    lookups = tables.lookups_per_batch.sum()
    return PoolCard(
        title=f"{len(tables)} tables measured in {path.name}",
        source=f"{path.name}, in the format of facebookresearch/dlrm_datasets (MIT licence)",
        how_made="Counted from the lookups of one batch, table by table (shard_gym/pools/meta.py).",
        published_facts=(
            f"{len(tables)} tables, batch {tables.workload.batch_size}",
            f"{lookups:.0f} lookups, {tables.distinct_rows.sum():.0f} distinct rows",
        ),
        assumptions=(
            f"Rows are not in the data: the largest index plus 1, and at least {MIN_ROWS}, stands for them.",
            f"Embedding dims are not in the data: they are synthetic, {DEFAULT_DIM} unless chosen otherwise.",
            "FP16 weights and SGD, as the sharding papers that use the data set train them.",
        ),
        how_close=(f"measured: shares are rounded to {HISTOGRAM_DECIMALS} decimals",),
    )
