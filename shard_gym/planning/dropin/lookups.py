"""Recorded lookups of a model, counted in the batches that are planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidTablesError
from shard_gym.interop.torchrec import batch_of
from shard_gym.tables import Tables
from shard_gym.tables.pools.lookup_counter import Batch, LookupCounter
from shard_gym.tables.pools.recorded_lookups import lookups_of_file


def with_lookups(tables: Tables, features: Mapping[int, Sequence[str]], lookups: Any) -> Tables:
    """The tables with the statistics of recorded lookups; those that are not in `features` stay as they are.

    Args:
        features: of each table that is counted, the names of the features that read it.
        lookups: paths of NPZ or Parquet files, or batches, `KeyedJaggedTensor`s, one or several. Batches of the samples
            of one rank are joined until they have those of all.

    Raises:
        InvalidTablesError: the lookups do not fit the tables, or there are fewer samples than in a batch.
        DamagedFileError: a file cannot be read.
    """
    size = tables.workload.batch_size
    which = np.array(list(features), np.int64)
    counter = LookupCounter(
        [tables.names[table] for table in which],
        tables.num_embeddings[which].tolist(),
        [list(features[int(table)]) for table in which],
    )
    for batch in _batches(lookups, size):
        counter.add(*batch)
    statistics = counter.statistics()
    changed: dict[str, Any] = {"popularity": statistics.pop("popularity")}
    if len(which) < len(tables):
        changed["popularity"] = None  # there is one kind of laws for all tables
    for name, counted in statistics.items():
        values: NDArray[Any] = np.array(getattr(tables, name), np.float64)
        values[which] = counted
        changed[name] = values
    return replace(tables, **changed)


def _batches(lookups: Any, size: int) -> Iterator[Batch]:
    """Batches of `size` samples."""
    given = [lookups] if isinstance(lookups, (str, Path)) or hasattr(lookups, "to_dict") else list(lookups)
    for path in (each for each in given if isinstance(each, (str, Path))):
        yield from lookups_of_file(path).batches(size)
    yield from _joined((batch_of(each) for each in given if not isinstance(each, (str, Path))), size)


def _joined(batches: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Batches of `size` samples from those of smaller ones, one after the other; samples at the end are left out."""
    held: list[Batch] = []
    for batch in batches:
        if size % batch[0]:
            raise InvalidTablesError(
                f"A batch of the lookups has {batch[0]:,} samples, which do not divide the {size:,} of a batch on all "
                f"ranks (batch_size of the planner, times its ranks). Record batches of one rank, or of all."
            )
        held.append(batch)
        if sum(samples for samples, _ in held) == size:
            yield size, {name: np.concatenate([read[name] for _, read in held]) for name in held[0][1]}
            held = []
    if held:
        samples = sum(each for each, _ in held)
        raise InvalidTablesError(
            f"The last {samples:,} samples of the lookups fill no batch of {size:,} (batch_size of the planner, times "
            "its ranks); record more, or leave them out."
        )
