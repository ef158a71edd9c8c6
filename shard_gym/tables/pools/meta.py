"""Import of Meta's published lookup files (facebookresearch/dlrm_datasets) as a pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shard_gym.tables.lookup_statistics import HISTOGRAM_DECIMALS, NUM_BINS, counted_statistics, read_counts
from shard_gym.tables.pools.meta_file import Progress, indices_of, open_lookups
from shard_gym.tables.pools.pool import DEFAULT_DIM, Pool, PoolCard
from shard_gym.tables.tables import Tables
from shard_gym.tables.workload import Workload

MIN_ROWS = 100
"""Smallest number of rows of an imported table, as in DreamShard's data tools."""


def import_meta(
    path: str | Path, name: str, *, tmp_dir: str | Path | None = None, progress: Progress | None = None
) -> Pool:
    """The pool measured from one of Meta's lookup files: `fbgemm_t856_bs65536.pt`, its `.pt.gz`, or one like it.

    The file holds (indices, offsets, lengths) of one batch: the rows of T tables that B samples read. It is
    memory-mapped and counted table by table on the CPU, so the memory needed depends on the largest table, not on the
    file. A gzip file is unpacked on the disk first; the unpacked file is removed at the end, also after an error.

    All statistics are measured except two. The data does not contain the number of rows, so it is the largest index
    plus 1, and at least 100. Nor does it contain embedding dims: every table has dim 16, and `load_pool` sets others
    when it reads the saved pool.

    Args:
        tmp_dir: folder to unpack a gzip file into, with room for several times its size; default is the file's folder.
        progress: called with (done, total), first in bytes while unpacking, then in tables.

    Raises:
        DamagedFileError: the file is missing, truncated, a git-LFS pointer, or does not hold such a batch.
        InvalidOptionError: a gzip file cannot be unpacked into `tmp_dir`.
        MissingExtraError: torch is not installed.
    """
    path = Path(path)
    report = progress or (lambda done, total: None)
    with open_lookups(path, None if tmp_dir is None else Path(tmp_dir), report) as lookups:
        num_tables, batch_size = lookups.lengths.shape
        rows = np.empty(num_tables)
        reads = np.empty(num_tables)
        counts = np.zeros((num_tables, 2, NUM_BINS))
        for table in range(num_tables):
            indices = indices_of(f"Table {table} of {path}", lookups.indices, *lookups.bags(table))
            rows[table], reads[table] = max(int(indices.max(initial=-1)) + 1, MIN_ROWS), len(indices)
            counts[table] = read_counts(indices)
            report(table + 1, num_tables)
            del indices  # no array may refer to the mapped file when it is removed
        del lookups
    stats = counted_statistics(counts)
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


def _card(path: Path, tables: Tables) -> PoolCard:
    return PoolCard(
        title=f"{len(tables)} tables measured in {path.name}",
        source=f"{path.name}, in the format of facebookresearch/dlrm_datasets (MIT licence)",
        how_made="Counted from the lookups of one batch, table by table (shard_gym/tables/pools/meta.py).",
        published_facts=(
            f"{len(tables)} tables, batch {tables.workload.batch_size}",
            f"{tables.lookups_per_batch.sum():.0f} lookups, {tables.distinct_rows.sum():.0f} distinct rows",
        ),
        assumptions=(
            f"Rows are not in the data: the largest index plus 1, and at least {MIN_ROWS}, stands for them.",
            f"Embedding dims are not in the data: they are synthetic, {DEFAULT_DIM} unless chosen otherwise.",
            "FP16 weights and SGD, as the sharding papers that use the data set train them.",
        ),
        how_close=(f"measured: shares are rounded to {HISTOGRAM_DECIMALS} decimals",),
    )
