"""--lookups: tables with the statistics of recorded lookups, and notes about what was left out or is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray

from shard_gym.cli.console import warn
from shard_gym.cli.options import CostModelOptions
from shard_gym.cli.pools import pool_source
from shard_gym.pools import Pool, load_pool
from shard_gym.pools.recorded_lookups import RecordedLookups, lookups_of_file, tables_with_lookups
from shard_gym.tables import Tables
from shard_gym.text import counted

Lookups = Annotated[list[Path], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")]


def with_lookups(
    source: str, tables: Tables, files: Sequence[Path], cost: CostModelOptions
) -> tuple[Tables, CostModelOptions]:
    """The tables with the statistics of the files, in batches of --batch-size, and the options of the cost model.

    Without files, the tables stay, and a note says where their statistics are from.

    Args:
        source: name or path of the pool of the tables.
        cost: with --batch-size, which is that of the lookups; only costs that are measured need it, too.
    """
    if not files:
        warn(statistics_note(source, load_pool(pool_source(source))), "dim")
        return tables, cost
    size = tables.workload.batch_size if cost.batch_size is None else cost.batch_size
    recorded = tables_with_lookups(tables, _read(files, tables, size), size)
    return recorded, cost if cost.measures else replace(cost, batch_size=None)


def _read(files: Sequence[Path], tables: Tables, size: int) -> Iterator[RecordedLookups]:
    """The lookups of each file; a note names the columns and the samples that are not counted."""
    for path in files:
        lookups = lookups_of_file(path, tables.names)
        if lookups.left_out:
            columns = counted(len(lookups.left_out), "column")
            warn(f"{path}: no table reads {columns}: {', '.join(lookups.left_out)}.", "dim")
        yield lookups
        rest = lookups.num_samples % size
        if rest:
            warn(f"{path}: {counted(rest, 'sample')} at the end fill no batch of {size:,} and are not counted.", "dim")


def statistics_note(source: str, pool: Pool) -> str:
    """Where the lookup statistics of a pool are from: the law that is assumed, or what its card says."""
    law = pool.popularity
    if law is None:
        return f"Lookup statistics are those of {source}, whose card says: {pool.card.how_made}"
    shape = f"(k + q)^-s with q {_range(law.q)} and" if law.q.any() else "k^-s with"
    return (
        f"Lookup statistics are assumed, not recorded: row k of a table is read with probability ~ {shape} s "
        f"{_range(law.s)}. --lookups counts recorded ones."
    )


def _range(values: NDArray[np.float64]) -> str:
    low, high = f"{values.min():.4g}", f"{values.max():.4g}"
    return low if low == high else f"{low} to {high}"
