"""Embedding tables as a struct of arrays: sizes, lookup statistics, features and memory use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.checks import (
    ReadOnlyArrays,
    as_array,
    as_floats,
    as_indices,
    holds_integers,
    is_iterable,
    is_number,
    require_name,
)
from shard_gym.common.errors import InvalidTablesError, short_repr
from shard_gym.common.io.html import card
from shard_gym.common.text import counted, format_bytes
from shard_gym.tables.lookup_statistics import NUM_BINS, ReuseStatistics, part_of_batch, rounded_statistics
from shard_gym.tables.row_popularity import Popularity, RowPopularity, RowSteps, assumed_popularity
from shard_gym.tables.workload import Workload

MAX_ROWS = 2**40
MAX_DIM = 2**16
MAX_BYTES = 2**62
"""The most bytes of all tables together: sums are int64, which ends at 2**63."""

FEATURE_NAMES: tuple[str, ...] = (
    "embedding_dim",
    "num_embeddings",
    "pooling_factor",
    "table_size",
    *(f"reuse_bin_{k}" for k in range(NUM_BINS)),
)
"""DreamShard's 21 table features (daochenzha/dreamshard, dreamshard/utils.py), in its order."""

FEATURE_MEAN = (4.0875, 19.28, 3.23, 0.127)
FEATURE_STD = (1.0, 3.36, 1.46, 0.233)
"""Mean and std of log2(1 + x) of the first four features, table_size in GiB: rounded numbers of the pool `dlrm-2021` at
dim 16 in FP16 (its dims are constant, so their std is set to 1). One scale serves all pools and tasks, so that equal
tables have equal features everywhere and a task of equal tables yields no NaN."""


def scaled(sizes: ArrayLike) -> NDArray[np.float64]:
    """(..., 4) dim, rows, pooling factor and GiB of a table as its first features."""
    return np.asarray((np.log2(1.0 + np.asarray(sizes)) - np.asarray(FEATURE_MEAN)) / np.asarray(FEATURE_STD))


_BINS = np.repeat([[0.0], [1.0]], NUM_BINS, axis=1)
_SIZES = [(4, 1, 0, 0), (MAX_DIM, MAX_ROWS, 1e6, MAX_BYTES / 2**30)]
FEATURE_BOUNDS: NDArray[np.float32] = np.concatenate([scaled(_SIZES), _BINS], axis=1).astype(np.float32)
"""(2, 21) float32, the least and the largest value of each of `FEATURE_NAMES` that tables can have."""


LIMITS: Mapping[str, tuple[type[Any], float, float]] = {
    "num_embeddings": (np.int64, 1, MAX_ROWS),
    "embedding_dim": (np.int64, 4, MAX_DIM),
    "num_features": (np.int64, 1, 4096),
    "pooling_factor": (np.float64, 0, 1e6),
    "distinct_rows": (np.float64, 0, MAX_ROWS),
    "reuse_histogram": (np.float64, 0, 1),
    "access_histogram": (np.float64, 0, 1),
}
"""Dtype, smallest and largest value of each array of `Tables`."""

COLUMNS = 4
"""What divides an embedding dim: FBGEMM (v1.8.0, `construct_split_state`) and TorchRec 1.8 (`batched_embedding_kernel`,
`_assert_local_cols_divisible_by_4`) assert it of tables that are trained in the backward, on GPUs and CPUs."""

MAX_SEQUENCE = 2**14
"""The longest mean sequence of a sample; so the bytes of outputs stay below 2**63."""


def as_table_array(name: str, value: Any, shape: tuple[int, ...] = ()) -> NDArray[Any]:
    """`value` as an array of any shape, one number as one of `shape`; lists of different lengths are refused."""
    array = as_array(name, value, InvalidTablesError)
    return array if array.ndim else np.full(shape, array)


def dim_refused(names: Sequence[str], table: int, dim: Any) -> str:
    """Why an embedding dim is refused: out of range, or to be padded, by whom and to what."""
    which = f"table {table} ({names[table]})"
    if not is_number(dim) or dim != int(dim) or not 0 < dim <= MAX_DIM:
        most = f"{COLUMNS} to {MAX_DIM}"
        return f"embedding_dim of {which} is {short_repr(dim)}; it must be a multiple of {COLUMNS} from {most}."
    padded = -(-int(dim) // COLUMNS) * COLUMNS
    return (
        f"embedding_dim of {which} is {int(dim)}. FBGEMM trains {COLUMNS} columns at a time, and neither it nor "
        f"TorchRec pads. Give it dim {padded} here and in the model; use {counted(int(dim), 'column')} of its output."
    )


def checked_table_array(name: str, given: Any, names: Sequence[str]) -> NDArray[Any]:
    """The array `name` of the tables with these names as a read-only copy of its dtype; `LIMITS` says what it may hold.

    Raises:
        InvalidTablesError: it has a wrong shape, or a value that is impossible.
    """
    dtype, low, high = LIMITS[name]
    shape = (len(names), NUM_BINS) if name.endswith("histogram") else (len(names),)
    values = as_table_array(name, given)
    raw = as_floats(name, values, InvalidTablesError)
    if raw.shape != shape:
        raise InvalidTablesError(f"{name} must have shape {shape}, not {raw.shape}.")
    valid = (raw >= low) & (raw <= high)  # False for NaN too
    if dtype is np.int64:
        valid &= raw == np.floor(raw)
    if name == "embedding_dim":
        valid &= np.where(valid, raw, 0) % COLUMNS == 0
    if not valid.all():
        where = tuple(int(i) for i in np.argwhere(~valid)[0])
        if name == "embedding_dim":
            raise InvalidTablesError(dim_refused(names, where[0], values[where]))
        kind, most = ("an integer", str(high)) if dtype is np.int64 else ("a number", f"{high:g}")
        raise InvalidTablesError(
            f"{name} of table {where[0]} ({names[where[0]]}) is {short_repr(values[where])}; "
            f"it must be {kind} from {low:g} to {most}."
        )
    array = raw.astype(dtype)
    array.setflags(write=False)
    return array


def pooled_of(given: Any, count: int) -> NDArray[np.bool_]:
    """`given` as (T,) bool; one truth value is that of all tables, and none is True."""
    array = as_table_array("pooled", given, (count,))
    if array.size == 0:
        array = np.ones(count, np.bool_)
    if array.shape != (count,) or array.dtype != np.bool_:
        raise InvalidTablesError(f"pooled must be a truth value for each of {count} tables, not {short_repr(given)}.")
    array = array.copy()
    array.setflags(write=False)
    return array


def names_of(given: Any, count: int) -> tuple[str, ...]:
    """`given` as T names; without any, "table_0", "table_1", ..."""
    names = tuple(given) if is_iterable(given) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTablesError(f"names must be a list of {count} texts, one for each table, not {short_repr(given)}.")
    for name in names:
        require_name("A name of a table", name, InvalidTablesError)
    if names and len(names) != count:
        raise InvalidTablesError(f"There are {count} tables but {len(names)} names.")
    return names or tuple(f"table_{i}" for i in range(count))


ANYWHERE, IN_HBM, IN_HOST, CACHED = range(4)
"""Where rows of a table may be on devices with host memory (`Tables.rows_in`): those that are read most in HBM, and the
others in host memory; all in HBM; all in host memory, without a cache; as ANYWHERE, but TorchRec gives the table a
cache even if all of its rows are in HBM."""


def _rows_in_of(given: Any, count: int) -> NDArray[np.int64] | None:
    """`given` as (T,) int64, or None if rows of all tables may be anywhere."""
    if given is None:
        return None
    array = as_table_array("rows_in", given)
    if array.shape != (count,) or not holds_integers(array) or array.min() < ANYWHERE or array.max() > CACHED:
        raise InvalidTablesError(
            f"rows_in must be an integer from {ANYWHERE} to {CACHED} for each of {count} tables, "
            f"not {short_repr(given)}."
        )
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array if array.any() else None


AMOUNT_NAMES: tuple[str, ...] = ("tables", "lookups", "values_read", "values_updated", "values_sent")
"""What adds up over the tables of a device, see `Tables.amounts`."""

MAX_ROWS_SHOWN = 20
"""Tables that a notebook shows."""

NO_TABLES = "Tables needs at least one table, and none was given."

_SHARE_TOLERANCE = 5e-3


@dataclass(frozen=True, eq=False)
class Tables(ReadOnlyArrays):
    """T embedding tables and their lookup statistics in one batch of `workload.batch_size` samples.

    Attributes:
        num_embeddings: (T,) int64, rows of each table.
        embedding_dim: (T,) int64, columns; a multiple of 4. TorchRec 1.8 and FBGEMM assert this, and pad nothing.
        pooling_factor: (T,) float64, mean lookups per sample, summed over the features that read the table.
        distinct_rows: (T,) float64, expected number of distinct rows read in one batch.
        reuse_histogram: (T, 17) float64, shares of those distinct rows by number of reads (bins: see
            `lookup_statistics.NUM_BINS`).
        access_histogram: (T, 17) float64, shares of the lookups by the same bins.
        workload: batch size, weight dtype and optimizer; of tables in several groups, `Workload.mixed`.
        num_features: (T,) int64, features that read the table; each has its own pooled output (default 1).
        pooled: (T,) bool, whether the rows of a sample are added up (default), as in TorchRec's
            `EmbeddingBagCollection`; a sequence table, of an `EmbeddingCollection`, has an output for each lookup.
        names: T names, used in messages and plans (default "table_0", "table_1", ...). Tables may share a name, as the
            column shards of a table do.
        popularity: which share of the lookups each row gets, for rows in host memory; None if it is not known, and
            then one that gives the distinct rows and histograms is assumed (`row_popularity`).
        rows_in: (T,) int64, where rows of each table may be on devices with host memory, one of `ANYWHERE`, `IN_HBM`,
            `IN_HOST` and `CACHED`; None, the default, if all may be anywhere. The constraints of a `Task` say it.

    Raises:
        InvalidTablesError: an array has a wrong shape, holds NaN or an impossible value, or the tables need more than
            `MAX_BYTES`.
    """

    num_embeddings: NDArray[np.int64]
    embedding_dim: NDArray[np.int64]
    pooling_factor: NDArray[np.float64]
    distinct_rows: NDArray[np.float64]
    reuse_histogram: NDArray[np.float64]
    access_histogram: NDArray[np.float64]
    workload: Workload
    num_features: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    names: tuple[str, ...] = ()
    popularity: Popularity | None = None
    pooled: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    rows_in: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.workload, Workload):
            raise InvalidTablesError(
                f"workload must be a Workload, for example Workload(batch_size=65536), not {short_repr(self.workload)}."
            )
        count = as_table_array("num_embeddings", self.num_embeddings).size
        if count == 0:
            raise InvalidTablesError(NO_TABLES)
        if len(self.workload.group_of(count)) != count:
            raise InvalidTablesError(
                f"There are {count} tables, but the workload has the group of {len(self.workload.group_of(count))}."
            )
        object.__setattr__(self, "names", names_of(self.names, count))
        if as_table_array("num_features", self.num_features).size == 0:
            object.__setattr__(self, "num_features", np.ones(count, np.int64))
        for name in LIMITS:
            object.__setattr__(self, name, checked_table_array(name, getattr(self, name), self.names))
        object.__setattr__(self, "pooled", pooled_of(self.pooled, count))
        object.__setattr__(self, "rows_in", _rows_in_of(self.rows_in, count))
        if self.popularity is not None:
            if not isinstance(self.popularity, Popularity):
                raise InvalidTablesError(
                    "popularity must be a RowPopularity or RowSteps, such as RowPopularity.zipf([1.0]), "
                    f"not {short_repr(self.popularity)}."
                )
            if len(self.popularity) != count:
                raise InvalidTablesError(f"There are {count} tables, but row popularities of {len(self.popularity)}.")
        self._check_consistency()

    def _changed(self, **changes: Any) -> Tables:
        """These tables with other values of some fields, each valid by itself; the others are not checked again."""
        made = self.derived(**changes)
        made._check_memory()
        return made

    def _check_memory(self) -> None:
        needed = float(self.memory_bytes.sum(dtype=np.float64))
        if needed > MAX_BYTES:
            raise InvalidTablesError(f"All tables together need {needed:.3g} bytes; the limit is {MAX_BYTES:.3g}.")

    def _check_consistency(self) -> None:
        self._check_memory()
        lookups = self.lookups_per_batch
        self._refuse(
            self.distinct_rows > np.minimum(self.num_embeddings, lookups) * (1 + 1e-6) + 1e-6,
            lambda i: (
                f"reads {self.distinct_rows[i]:g} distinct rows, more than its {self.num_embeddings[i]} rows "
                f"or its {lookups[i]:g} lookups per batch"
            ),
        )
        self._refuse(
            ~self.pooled & (self.pooling_factor > MAX_SEQUENCE),
            lambda i: (
                f"is a sequence table with {self.pooling_factor[i]:g} lookups of a sample; "
                f"the limit is {MAX_SEQUENCE:,}"
            ),
        )
        self._refuse(
            ~self.pooled & (self.workload.lookup_weight_bytes > np.zeros(len(self))),
            lambda i: "is a sequence table, whose rows are not added up, so lookups have no weights",
        )
        if isinstance(self.popularity, RowSteps):
            known = self.popularity.rows.sum(axis=1)  # of a block of rows, less than one below
            self._refuse(
                (known > self.num_embeddings * (1 + 1e-9)) | (known < self.num_embeddings - 0.9999),
                lambda i: f"has {self.num_embeddings[i]} rows, but its popularity has {known[i]:g}",
            )
        for name in ("reuse_histogram", "access_histogram"):
            total = getattr(self, name).sum(axis=1)
            wanted = (lookups > 0).astype(np.float64)
            self._refuse(
                np.abs(total - wanted) > _SHARE_TOLERANCE,
                lambda i, n=name, t=total, w=wanted: f"has an invalid {n}: it sums to {t[i]:.4f} instead of {w[i]:.0f}",
            )

    def _refuse(self, bad: NDArray[np.bool_], reason: Any) -> None:
        """Raise if a table is `bad`; `reason` makes the message from its index."""
        if bad.any():
            index = int(np.argmax(bad))
            raise InvalidTablesError(f"Table {index} ({self.names[index]}) {reason(index)}.")

    @classmethod
    def from_popularity(
        cls,
        *,
        num_embeddings: ArrayLike,
        embedding_dim: ArrayLike,
        pooling_factor: ArrayLike,
        popularity: Popularity,
        workload: Workload,
        num_features: ArrayLike = (),
        names: Sequence[str] = (),
        pooled: ArrayLike = (),
    ) -> Tables:
        """Tables whose lookup statistics are those expected under a row popularity, rounded as pool files store them.

        Args:
            popularity: of the rows of each table.
            num_embeddings, embedding_dim, pooling_factor, workload, num_features, names, pooled: as for `Tables`.

        Raises:
            InvalidTablesError: an array has a wrong shape or holds an impossible value.
        """
        none, no_shares = np.zeros(np.shape(num_embeddings)), np.zeros((*np.shape(num_embeddings), NUM_BINS))
        sizes = cls(
            num_embeddings=num_embeddings,  # type: ignore[arg-type]
            embedding_dim=embedding_dim,  # type: ignore[arg-type]
            pooling_factor=none,
            distinct_rows=none,
            reuse_histogram=no_shares,
            access_histogram=no_shares,
            workload=workload,
            num_features=num_features,  # type: ignore[arg-type]
            names=names,  # type: ignore[arg-type]
            pooled=pooled,  # type: ignore[arg-type]
        )
        pooling = checked_table_array("pooling_factor", pooling_factor, sizes.names)
        object.__setattr__(sizes, "pooling_factor", pooling)
        if len(popularity) != len(sizes):
            raise InvalidTablesError(f"There are {len(sizes)} tables, but row popularities of {len(popularity)}.")
        rows, lookups = sizes.num_embeddings.astype(np.float64), sizes.lookups_per_batch
        exact = popularity.statistics(rows, lookups)
        return replace(sizes, **rounded_statistics(exact, rows, lookups)._asdict(), popularity=popularity)

    @classmethod
    def from_zipf(
        cls,
        num_embeddings: ArrayLike,
        embedding_dim: ArrayLike,
        pooling_factor: ArrayLike,
        exponent: ArrayLike,
        workload: Workload,
        num_features: ArrayLike = (),
        names: Sequence[str] = (),
        pooled: ArrayLike = (),
    ) -> Tables:
        """Tables whose lookups follow Zipf's law: row k = 1, 2, ... of a table is read with probability ~ k^-exponent.

        For who has no recorded lookups. An exponent of 0 is uniform; about 1 is usual for users and items.

        Args:
            num_embeddings: (T,) rows.
            embedding_dim: (T,) columns, multiples of 4; or one number for all tables.
            pooling_factor: (T,) mean lookups of a sample; or one number for all tables.
            exponent: (T,) at least 0; or one number for all tables.
            workload, num_features, names, pooled: as for `Tables`.

        Raises:
            InvalidTablesError: an array has a wrong shape or holds an impossible value.
        """
        rows = as_table_array("num_embeddings", num_embeddings)
        if rows.ndim != 1:
            raise InvalidTablesError(f"num_embeddings must be a list of rows, not {short_repr(num_embeddings)}.")
        return cls.from_popularity(
            num_embeddings=rows,
            embedding_dim=as_table_array("embedding_dim", embedding_dim, rows.shape),
            pooling_factor=as_table_array("pooling_factor", pooling_factor, rows.shape),
            popularity=RowPopularity.zipf(as_table_array("exponent", exponent, rows.shape)),
            workload=workload,
            num_features=num_features,
            names=names,
            pooled=pooled,
        )

    def __len__(self) -> int:
        return len(self.num_embeddings)

    def __repr__(self) -> str:
        sequences = f"{np.count_nonzero(~self.pooled)} of them sequences, " * (not self.pooled.all())
        workload = self.workload if len(self.workloads) == 1 else list(self.workloads)
        return f"Tables({len(self)} tables, {sequences}{self.memory_bytes.sum() / 2**30:.2f} GiB, {workload})"

    def _repr_html_(self) -> str:
        shown = min(len(self), MAX_ROWS_SHOWN)
        rows = [
            [
                self.names[table],
                f"{self.num_embeddings[table]:,}",
                str(self.embedding_dim[table]),
                f"{self.pooling_factor[table]:.3g}",
                f"{self.distinct_rows[table]:,.0f}",
                format_bytes(self.memory_bytes[table]),
            ]
            for table in range(shown)
        ]
        if shown < len(self):
            rows.append([f"and {len(self) - shown:,} more", *[""] * 5])
        workload = self.workload
        facts = {
            "memory": format_bytes(self.memory_bytes.sum()),
            "batch": f"{workload.batch_size:,} samples, {self.lookups_per_batch.sum():,.0f} lookups",
            "training": workload.named,
        }
        header = ("table", "rows", "dim", "pooling factor", "distinct rows of a batch", "memory")
        return card(counted(len(self), "table"), facts, header, rows)

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Those of the G groups of the tables."""
        return self.workload.workloads

    @property
    def group(self) -> NDArray[np.int64]:
        """(T,) int64, the group of each table, from 0 to G - 1; 0 where all have one workload."""
        return self.workload.group_of(len(self))

    @property
    def lookups_per_batch(self) -> NDArray[np.float64]:
        """(T,) float64, expected lookups of one batch: batch_size * pooling_factor."""
        return self.pooling_factor * self.workload.batch_size

    @property
    def outputs_per_batch(self) -> NDArray[np.float64]:
        """(T,) float64, vectors that a table returns for one batch: one for each bag, of each feature and sample; of a
        sequence table one for each lookup, and one at least.
        """
        bags = (self.workload.batch_size * self.num_features).astype(np.float64)
        return np.where(self.pooled, bags, np.maximum(self.lookups_per_batch, 1.0))

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """(T,) int64, bytes of the weights of one row, with its scale and bias if it has them."""
        return self.embedding_dim * self.workload.weight_bytes + self.workload.scale_bytes

    @property
    def memory_bytes(self) -> NDArray[np.int64]:
        """(T,) int64, bytes of a table on its device: weights and optimizer state."""
        return self.num_embeddings * self.workload.row_bytes(self.embedding_dim)

    @cached_property
    def row_popularity(self) -> Popularity:
        """`popularity`, or if it is None, laws whose expected distinct rows, and rows read once, are those of a batch.

        Of rows that a batch does not read, histograms say only how many there are, so the tail is then assumed.
        """
        if self.popularity is not None:
            return self.popularity
        once = self.distinct_rows * self.reuse_histogram[:, 0]
        return assumed_popularity(self.num_embeddings, self.lookups_per_batch, self.distinct_rows, once)

    def features(self) -> NDArray[np.float32]:
        """(T, 21) float32, DreamShard's features in the order of `FEATURE_NAMES`.

        The first four are (log2(1 + x) - FEATURE_MEAN) / FEATURE_STD, with table_size in GiB; the 17 reuse bins are
        shares and stay as they are. DreamShard standardises the raw values within a task, which divides by zero for
        equal tables and loses the absolute scale.
        """
        sizes = np.stack(
            [
                self.embedding_dim,
                self.num_embeddings,
                self.pooling_factor,
                self.num_embeddings * self.row_bytes / 2**30,
            ],
            axis=1,
        )
        return np.concatenate([scaled(sizes), self.reuse_histogram], axis=1).astype(np.float32)

    def amounts(self) -> NDArray[np.float64]:
        """(T, 5) float64, in the order of `AMOUNT_NAMES`: what a batch asks of each table, numbers that add up.

        One table; lookups; values read (lookups * embedding_dim); values updated (distinct rows * embedding_dim);
        values sent, those of the outputs (outputs_per_batch * embedding_dim).
        """
        rows = [self.lookups_per_batch, self.distinct_rows, self.outputs_per_batch]
        values = [each * self.embedding_dim for each in rows]
        return np.stack([np.ones(len(self)), self.lookups_per_batch, *values], axis=1)

    def select(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> Tables:
        """The tables at `indices`, in that order; indices may repeat.

        Raises:
            InvalidTablesError: an index is out of range.
        """
        chosen = as_indices("table", indices, len(self), InvalidTablesError)
        if not chosen.size:
            raise InvalidTablesError(NO_TABLES)
        return self._changed(
            **{name: getattr(self, name)[chosen] for name in LIMITS},
            workload=self.workload.select(chosen),
            names=tuple(self.names[i] for i in chosen.tolist()),
            pooled=self.pooled[chosen],
            popularity=None if self.popularity is None else self.popularity.select(chosen),
            rows_in=None if self.rows_in is None else self.rows_in[chosen],
        )

    def with_dims(self, embedding_dim: ArrayLike) -> Tables:
        """The same tables with other embedding dims: one for all, or (T,) ints."""
        dims = as_table_array("embedding_dim", embedding_dim)
        if dims.ndim == 0:
            dims = np.full(len(self), dims)
        return self._changed(embedding_dim=checked_table_array("embedding_dim", dims, self.names))

    def are_in(self, *places: int) -> NDArray[np.bool_]:
        """(T,) bool, whether `rows_in` of each table is one of these."""
        if self.rows_in is None:
            return np.full(len(self), ANYWHERE in places)
        return np.isin(self.rows_in, places)

    def with_rows_in(self, rows_in: NDArray[np.int64]) -> Tables:
        """The same tables with these `rows_in`, (T,) int64."""
        return self._changed(rows_in=_rows_in_of(rows_in, len(self)))

    def with_training(
        self, *, weight_dtype: str | None = None, optimizer: str | None = None, training: bool | None = None
    ) -> Tables:
        """The same tables with these values of their workloads, and the batch size of their statistics."""
        given = {"weight_dtype": weight_dtype, "optimizer": optimizer, "training": training}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return self._changed(workload=self.workload.changed(**changes))

    def without_moments(self) -> Tables:
        """The same tables with `Workload.without_moments`."""
        return self._changed(workload=self.workload.without_moments())

    def at_batch_size(self, batch_size: int) -> Tables:
        """The same tables in batches of `batch_size` samples: random parts of the batch that their statistics describe.

        Distinct rows and histograms follow from the histograms of the whole batch (`lookup_statistics.part_of_batch`),
        rounded as pool files store them. A measurement with another batch size measures these tables.

        Ask for a batch at once rather than step by step, because every step spreads and rounds the statistics again: on
        the pools `dlrm-2021` and `dlrm-2022`, distinct rows are up to 1% off after one step between, and up to 2% after
        four. Collections compute their tables from the popularity law of a pool instead (`row_popularity`), which is
        exact and also gives larger batches; tables without a known law have this method only.

        Raises:
            InvalidTablesError: `batch_size` is no batch size, or larger than that of the statistics: what a larger
                batch reads does not follow from them.
        """
        workload = self.workload.changed(batch_size=batch_size)
        share = batch_size / self.workload.batch_size
        if share == 1:
            return self
        if share > 1:
            raise InvalidTablesError(
                f"The statistics of these tables are those of batches of {self.workload.batch_size:,} samples; what a "
                f"batch of {batch_size:,} reads does not follow from them. Ask for a smaller batch, or describe the "
                "tables by a larger one."
            )
        whole = ReuseStatistics(self.distinct_rows, self.reuse_histogram, self.access_histogram)
        rows, lookups = self.num_embeddings.astype(np.float64), self.lookups_per_batch
        part = rounded_statistics(part_of_batch(lookups, whole, share), rows, share * lookups)
        return replace(self, workload=workload, **part._asdict())
