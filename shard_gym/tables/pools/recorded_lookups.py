"""Recorded lookups: which rows the samples of a log read, feature by feature, from NPZ and Parquet files.

Nothing is unpickled. A Parquet file has one row for each sample, and for each feature a column of integers (one
lookup) or of lists of integers. An NPZ file has for each feature an array `FEATURE` of (samples,) or (samples, lookups)
integers, or two: `FEATURE.values`, all lookups, sample after sample, and `FEATURE.lengths`, how many each sample has.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTablesError, short_repr
from shard_gym.common.io.files import is_file
from shard_gym.common.io.parquet import integer_lists
from shard_gym.tables.pools.lookup_counter import Batch, Integers, LookupCounter
from shard_gym.tables.tables import Tables

MAX_LOOKUPS = 2**28  # the most that are read of a file, 2 GiB as int64
MAX_SAMPLES = 2**24  # in an array that may have none of them

_VALUES, _LENGTHS = ".values", ".lengths"


@dataclass(frozen=True, eq=False)
class RecordedLookups:
    """The lookups of S samples, in the order in which they were recorded.

    Attributes:
        values: by feature, (N,) integers, the rows that are read, sample after sample.
        lengths: by feature, (S,) integers, the lookups of each sample.
        left_out: names of columns of the file that were not asked for.
        source: where they are from, for messages.

    Raises:
        InvalidTablesError: there are no samples, features have different numbers of them, values or lengths are no
            integers, or lengths are negative or do not sum to the number of values.
    """

    values: Mapping[str, Integers]
    lengths: Mapping[str, Integers]
    left_out: tuple[str, ...] = ()
    source: str = "Recorded lookups"

    def __post_init__(self) -> None:
        for feature, lengths in self.lengths.items():
            values = self.values[feature]
            for what, array in (("values", values), ("lengths", lengths)):
                if array.dtype.kind not in "iu" or array.ndim != 1:
                    raise InvalidTablesError(
                        f"The {what} of feature {feature!r} have shape {array.shape} and dtype {array.dtype}; they "
                        "must be a list of integers."
                    )
            wrong = lengths[(lengths < 0) | (lengths > len(values))]
            if len(wrong) or int(lengths.sum()) != len(values):
                found = f"one is {int(wrong[0]):,}" if len(wrong) else f"they sum up to {int(lengths.sum()):,}"
                raise InvalidTablesError(
                    f"The lengths of feature {feature!r} do not sum up to its {len(values):,} values: {found}."
                )
            if len(lengths) != self.num_samples:
                raise InvalidTablesError(
                    f"Feature {feature!r} has {len(lengths):,} samples, but {next(iter(self.lengths))!r} has "
                    f"{self.num_samples:,}."
                )
        if not self.num_samples:
            raise InvalidTablesError("There are no samples; record one batch at least.")

    @property
    def num_samples(self) -> int:
        """S."""
        return len(next(iter(self.lengths.values()), ()))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """Batches of so many samples, one after another; samples at the end that fill none are left out.

        Raises:
            InvalidTablesError: `batch_size` is no integer from 1 to the number of samples.
        """
        if not is_integer(batch_size) or not 1 <= batch_size <= self.num_samples:
            raise InvalidTablesError(
                f"A batch of {short_repr(batch_size)} samples cannot be taken from {self.num_samples:,} recorded ones; "
                f"choose a batch size from 1 to {self.num_samples:,}, or record more."
            )
        starts = {name: np.append(0, np.cumsum(lengths, dtype=np.int64)) for name, lengths in self.lengths.items()}
        for first in range(0, self.num_samples - batch_size + 1, batch_size):
            yield (
                batch_size,
                {
                    name: values[starts[name][first] : starts[name][first + batch_size]]
                    for name, values in self.values.items()
                },
            )


def tables_with_lookups(tables: Tables, lookups: Iterable[RecordedLookups], batch_size: int | None = None) -> Tables:
    """The same tables with the statistics of recorded lookups; the feature of a table is the one with its name.

    What a table that several features read is read for is recorded under its name together.

    Args:
        lookups: cut into batches, each by itself; see `LookupCounter` for how these are combined.
        batch_size: samples of a batch on all devices together; that of the tables if not given.

    Raises:
        InvalidTablesError: there are no lookups, a feature is missing, an id is not a row of its table, or fewer
            samples than a batch were recorded.
    """
    size = tables.workload.batch_size if batch_size is None else batch_size
    counter = LookupCounter(tables.names, tables.num_embeddings.tolist(), [[name] for name in tables.names])
    for each in lookups:
        try:
            for batch in each.batches(size):
                counter.add(*batch)
        except InvalidTablesError as error:
            raise InvalidTablesError(f"{each.source}: {error}") from error
    statistics = counter.statistics()
    return replace(tables, workload=tables.workload.changed(batch_size=size), **statistics)


def lookups_of_file(path: str | Path, features: Collection[str] | None = None) -> RecordedLookups:
    """The recorded lookups in an NPZ (.npz) or Parquet (.parquet) file; the docstring of the module says its layout.

    Args:
        features: the names of the features to read; all columns if not given.

    Raises:
        DamagedFileError: the file is missing, damaged, empty or too large, it lacks a feature, or a feature has other
            values than integers, or lengths that do not sum up.
        InvalidOptionError: the name of the file has another ending.
        MissingExtraError: pyarrow, which reads Parquet, is not installed.
    """
    path = Path(path)
    readers = {".npz": _npz, ".parquet": _parquet, ".pq": _parquet}
    if path.suffix.lower() not in readers:
        raise InvalidOptionError(f"Recorded lookups are read from .npz and .parquet files, not from {path}.")
    if not is_file(path):
        raise DamagedFileError(f"There is no file {path}.")
    values, lengths, left_out = readers[path.suffix.lower()](path, features)
    missing = [name for name in features or () if name not in values]
    if missing:
        raise DamagedFileError(
            f"{path} has no feature {missing[0]!r}; it has {short_repr(sorted({*values, *left_out}))}. Features are "
            "found by their names."
        )
    try:
        return RecordedLookups(values, lengths, left_out, str(path))
    except InvalidTablesError as error:
        raise DamagedFileError(f"{path}: {error}") from error


_Read = tuple[dict[str, Integers], dict[str, Integers], tuple[str, ...]]  # values, lengths, and what was left out


def _parquet(path: Path, features: Collection[str] | None) -> _Read:
    found, left_out = integer_lists(path, features, MAX_LOOKUPS)
    return (
        {name: values for name, (values, _) in found.items()},
        {name: lengths for name, (_, lengths) in found.items()},
        left_out,
    )


def _npz(path: Path, features: Collection[str] | None) -> _Read:
    try:
        with zipfile.ZipFile(path) as archive:
            members, size = archive.namelist(), sum(member.file_size for member in archive.infolist())
        if len({name.removesuffix(".npy") for name in members}) < len(members):
            raise DamagedFileError(f"{path} has two arrays of one name.")
        if size > 8 * MAX_LOOKUPS:
            raise DamagedFileError(
                f"{path} is too large: it unpacks to {size:,} bytes; the limit is {8 * MAX_LOOKUPS:,}. A few batches "
                "of samples suffice."
            )
        with np.load(path, allow_pickle=False) as file:
            return _of_arrays(path, file, features)
    except DamagedFileError:
        raise
    except Exception as error:  # neither NumPy nor zipfile documents which errors a damaged file raises
        raise DamagedFileError(
            f"{path} is damaged, or no NPZ file of plain arrays (pickled objects are not read): {error}."
        ) from error


def _of_arrays(path: Path, file: Mapping[str, NDArray[Any]], features: Collection[str] | None) -> _Read:
    """The lookups in arrays that are read when they are asked for."""
    values: dict[str, Integers] = {}
    lengths: dict[str, Integers] = {}
    left_out: list[str] = []
    for key in file:
        feature = key.removesuffix(_VALUES).removesuffix(_LENGTHS)
        if features is not None and feature not in features:
            left_out.append(key)
        elif feature == key:
            array = _array(path, file, key)
            if array.ndim not in (1, 2):
                raise DamagedFileError(
                    f"{path}: {key!r} has shape {array.shape}; it must be (samples,) or (samples, lookups)."
                )
            if feature in values:
                raise DamagedFileError(f"{path} has {feature!r} twice: as one array, and as values and lengths.")
            if len(array) > MAX_SAMPLES:
                raise DamagedFileError(
                    f"{path} is too large: {len(array):,} samples of {key!r}; the limit is {MAX_SAMPLES:,}. A few "
                    "batches of samples suffice."
                )
            values[feature] = array.reshape(-1)
            lengths[feature] = np.full(len(array), array[0].size if len(array) else 0)
        elif feature not in values:
            missing = {feature + _VALUES, feature + _LENGTHS} - set(file)
            if missing:
                raise DamagedFileError(f"{path} has {key!r}, but no {missing.pop()!r}.")
            values[feature] = _array(path, file, feature + _VALUES)
            lengths[feature] = _array(path, file, feature + _LENGTHS)
        elif feature in file:
            raise DamagedFileError(f"{path} has {feature!r} twice: as one array, and as values and lengths.")
    return values, lengths, tuple(left_out)


def _array(path: Path, file: Mapping[str, Any], key: str) -> NDArray[Any]:
    array = file[key]
    if not isinstance(array, np.ndarray):
        raise DamagedFileError(f"{path}: {key!r} is no array of NumPy.")
    return array
