"""How tables are used: batch size, type of the weights, and the optimizer that trains them, if one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Never, override

from shard_gym.common.checks import as_indices, is_integer, is_iterable, is_one_of
from shard_gym.common.errors import DamagedFileError, InvalidTablesError, short_repr
from shard_gym.common.io.parsing import require_fields

WEIGHT_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "int8": 1}

SCALE_BYTES = {True: 8, False: 4}
"""Bytes of the scale and the bias of a row in INT8: FP32 where it is trained, FP16 where it is served (pytorch/FBGEMM
v1.8.0, `INT8_EMB_ROW_DIM_OFFSET` of split_table_batched_embeddings_ops_training.py, `unpadded_row_size_in_bytes` of
split_table_batched_embeddings_ops_inference.py)."""

FP8_OPTIMIZERS = ("adagrad", "rowwise_adagrad")
"""With which FBGEMM trains weights in FP8 (its NFP8; the file of training, `init_embedding_weights_uniform`)."""

STATE_BYTES = 4
"""Bytes of a number of the optimizer's state: FP32 whatever the weights are, FBGEMM's default."""


PerTable = int | NDArray[np.int64]
"""A number of all tables, or, where they have several workloads, (T,) int64, that of each table."""


LOOKUP_WEIGHT_BYTES = 4
"""Bytes of the weight of a lookup: FP32, to which FBGEMM v1.8.0 turns all others."""


class OptimizerState(NamedTuple):
    """The numbers that an optimizer keeps: for each row, and for each weight."""

    per_row: PerTable
    per_weight: PerTable


OPTIMIZER_STATES: Mapping[str, OptimizerState] = {
    "adagrad": OptimizerState(0, 1),
    "adam": OptimizerState(0, 2),
    "lamb": OptimizerState(0, 2),
    "partial_rowwise_adam": OptimizerState(1, 1),
    "rowwise_adagrad": OptimizerState(1, 0),
    "sgd": OptimizerState(0, 0),
}
"""The state of each optimizer: exact SGD none, rowwise Adagrad the mean square of a row's gradients, Adagrad a sum of
each weight, Adam and LAMB two moments of each weight, partial rowwise Adam one of each weight and one of each row.
`momentum1` and `momentum2` in pytorch/FBGEMM v1.8.0, split_table_batched_embeddings_ops_training.py, and, but for
Adagrad and LAMB, `state_size_table` in split_embedding_configs.py."""

WORKLOAD_KEYS: Mapping[str, type] = {"batch_size": int, "weight_dtype": str, "optimizer": str}
"""The keys of a `Workload` in files, with the type of each value."""

WORKLOAD_MAY_LACK: Mapping[str, type] = {"training": bool, "weighted": bool}
"""Keys that are left out where they have their default, and that files of earlier versions do not have."""

SHARED = ("batch_size", "training")
"""What all groups of tables have in common."""

PER_TABLE = ("weight_dtype", "optimizer", "weighted")
"""Keys that may have a list in files that people write."""

MAX_BATCH_SIZE = 2**30
"""Bytes of outputs, 4 * dim * num_features * batch size, stay below 2**63."""


@dataclass(frozen=True)
class Workload:
    """What a model does with its tables: of all tables of a task, or of one group of them (`Workload.mixed`).

    Attributes:
        batch_size: samples per iteration on all devices together (the global batch).
        weight_dtype: a name in `WEIGHT_BYTES`. INT8 has a scale and a bias for each row of every shard.
        optimizer: a name in `OPTIMIZER_STATES`, fused into FBGEMM's backward. Adam and those like it update the rows
            that a batch reads, and their moments, and leave all others as they are.
        training: False for serving: rows are read alone, so no optimizer keeps anything, whatever `optimizer` names.
        weighted: whether each lookup comes with a weight, FP32, by which its row is multiplied (TorchRec's
            `EmbeddingBagCollection(is_weighted=True)`). Tables with weights are a group beside those without.

    Raises:
        InvalidTablesError: `batch_size` is no integer from 1 to `MAX_BATCH_SIZE`, a name is not known, or `training` or
            `weighted` is no bool; or weights in FP8 are trained by another optimizer than `FP8_OPTIMIZERS`.
    """

    batch_size: int
    weight_dtype: str = "fp16"
    optimizer: str = "sgd"
    training: bool = True
    weighted: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not is_integer(self.batch_size) or not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise InvalidTablesError(
                f"batch_size must be an integer from 1 to {MAX_BATCH_SIZE:,}, not {short_repr(self.batch_size)}."
            )
        object.__setattr__(self, "batch_size", int(self.batch_size))
        for name, known in (("weight_dtype", WEIGHT_BYTES), ("optimizer", OPTIMIZER_STATES)):
            if not is_one_of(getattr(self, name), known):
                given = getattr(self, name)
                raise InvalidTablesError(
                    f"The {name.replace('_', ' ')} must be one of {', '.join(sorted(known))}, not {short_repr(given)}."
                )

        for name in WORKLOAD_MAY_LACK:
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise InvalidTablesError(f"{name} must be True or False, not {short_repr(getattr(self, name))}.")
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.training and self.weight_dtype == "fp8" and self.optimizer not in FP8_OPTIMIZERS:
            raise InvalidTablesError(
                f"FBGEMM trains weights in fp8 with {' and '.join(FP8_OPTIMIZERS)}, not with {self.optimizer}. Name "
                "one of these, or serve the tables (training=False)."
            )

    @staticmethod
    def mixed(workloads: Sequence[Workload], group: ArrayLike) -> Workload:
        """The workloads of G groups of tables that are used together; of one group, its workload itself.

        A group is a fused operator of its own on every device that has tables of it, as FBGEMM has one for each
        optimizer and dtype. `weight_bytes`, `state` and `row_bytes` of the result are those of each table, (T,), and
        `batch_size` and `training` those of all.

        Args:
            workloads: G workloads of one batch size, all of training or all of serving. Equal ones are groups, too.
            group: (T,) int64, the group of each table, from 0 to G - 1.

        Raises:
            InvalidTablesError: they are no such workloads, or a table has no such group.
        """
        if not is_iterable(workloads) or not workloads or not all(type(each) is Workload for each in workloads):
            raise InvalidTablesError(f"workloads must be a Workload for each group, not {short_repr(workloads)}.")
        first = workloads[0]
        for name in SHARED:
            other = next((each for each in workloads if getattr(each, name) != getattr(first, name)), first)
            if other is not first:
                raise InvalidTablesError(
                    f"The groups of a task share one {name.replace('_', ' ')}, but two have {getattr(first, name)} and "
                    f"{getattr(other, name)}. Give all workloads one, or plan for the groups one after the other."
                )
        return first if len(workloads) == 1 else _Mixed(tuple(workloads), group)

    @staticmethod
    def of_tables(workloads: Sequence[Workload]) -> Workload:
        """The workload of T tables that have these: equal ones are a group, in order of first tables; see `mixed`."""
        groups = list(dict.fromkeys(workloads))
        return Workload.mixed(groups, [groups.index(each) for each in workloads])

    @property
    def named(self) -> str:
        """Weight dtype and optimizer, or how many groups there are, for sentences."""
        return f"{self.weight_dtype}, {self.optimizer if self.training else 'served'}{', weighted' * self.weighted}"

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Those of the G groups; of one group, itself."""
        return (self,)

    def group_of(self, count: int) -> NDArray[np.int64]:
        """(T,) int64, the group of each of `count` tables; zeros for one group."""
        return np.zeros(count, np.int64)

    def select(self, tables: NDArray[np.integer[Any]]) -> Workload:
        """That of the tables at these indices, or of shards of them; of one group, itself."""
        return self

    def changed(self, **changes: Any) -> Workload:
        """The same with other values of some fields, in all groups."""
        return replace(self, **changes)

    def without_moments(self) -> Workload:
        """The same with what a fused operator does where it updates no moments: SGD for optimizers that have some.

        FP8 is no exception here, though nobody trains it with SGD.
        """
        if not self.state.per_weight:
            return self
        own = copy(self)
        object.__setattr__(own, "optimizer", "sgd")
        return own

    @property
    def weight_bytes(self) -> PerTable:
        """Bytes of one weight."""
        return WEIGHT_BYTES[self.weight_dtype]

    @property
    def scale_bytes(self) -> PerTable:
        """Bytes of the scale and the bias of a row; 0 where rows have none."""
        return SCALE_BYTES[self.training] if self.weight_dtype == "int8" else 0

    @property
    def lookup_weight_bytes(self) -> PerTable:
        """Bytes of the weight of a lookup; 0 where lookups have none."""
        return LOOKUP_WEIGHT_BYTES * self.weighted

    @property
    def state(self) -> OptimizerState:
        """The numbers that the optimizer keeps, `STATE_BYTES` each."""
        return OPTIMIZER_STATES[self.optimizer] if self.training else OPTIMIZER_STATES["sgd"]

    def to_json(self) -> dict[str, Any]:
        """Its values by name, for files; those of `WORKLOAD_MAY_LACK` only where they are not the default."""
        record = asdict(self)
        default = {each.name: each.default for each in fields(self)}
        return {key: record[key] for key in record if key in WORKLOAD_KEYS or record[key] != default[key]}

    @staticmethod
    def from_json(record: Any, source: str) -> Workload:
        """What `to_json` made, or with a list for `weight_dtype` or `optimizer`: that of each table.

        Raises:
            DamagedFileError: it has other keys, or values of other types; `source` begins the message.
            InvalidTablesError: a value is impossible.
        """
        if isinstance(record, dict) and (of_tables := [key for key in PER_TABLE if isinstance(record.get(key), list)]):
            if len({len(record[key]) for key in of_tables}) > 1:
                raise DamagedFileError(f"{source} has lists of different lengths: {' and '.join(of_tables)}.")
            own = zip(*(record[key] for key in of_tables), strict=True)
            return Workload.of_tables(
                [Workload.from_json(record | dict(zip(of_tables, each, strict=True)), source) for each in own]
            )
        if not isinstance(record, dict) or "groups" not in record:
            return Workload(**require_fields(record, WORKLOAD_KEYS, source, WORKLOAD_MAY_LACK))
        shared = {key: kind for key, kind in WORKLOAD_KEYS.items() if key in SHARED}
        may_lack = {key: kind for key, kind in WORKLOAD_MAY_LACK.items() if key in SHARED}
        require_fields(record, {**shared, "groups": list, "group": list}, source, may_lack)
        of_all = {key: value for key, value in record.items() if key in SHARED}
        for each in record["groups"]:
            if isinstance(each, dict) and (again := sorted(set(each) & set(SHARED))):
                raise DamagedFileError(f"A group of {source} has {again[0]}, which all groups share; leave it out.")
        workloads = [
            Workload.from_json({**each, **of_all} if isinstance(each, dict) else each, f"A group of {source}")
            for each in record["groups"]
        ]
        return Workload.mixed(workloads, record["group"])

    def row_bytes(self, columns: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Bytes of a row with so many columns, in a table or a shard of it: its weights and its optimizer state.

        What is kept for each weight splits with the columns; what is kept for each row, scale and bias among it, is in
        every column shard, as each is a table of its own for the optimizer.
        """
        state = STATE_BYTES * (self.state.per_row + self.state.per_weight * columns)
        return np.asarray(columns * self.weight_bytes + self.scale_bytes + state)


class _Mixed(Workload):
    """What `Workload.mixed` makes of several groups."""

    def __init__(self, workloads: tuple[Workload, ...], group: ArrayLike) -> None:
        chosen = as_indices("group", group, len(workloads), InvalidTablesError)
        chosen = chosen.copy()
        chosen.setflags(write=False)
        first = workloads[0]
        values = {"batch_size": first.batch_size, "training": first.training, "_workloads": workloads, "_group": chosen}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._group.setflags(write=False)  # NumPy's arrays are writable after `copy.deepcopy` and `pickle`

    _workloads: tuple[Workload, ...]
    _group: NDArray[np.int64]

    @override
    def __repr__(self) -> str:
        return f"Workload.mixed({list(self._workloads)}, {short_repr(self._group.tolist())})"

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Mixed):
            return NotImplemented
        return self._workloads == other._workloads and np.array_equal(self._group, other._group)

    @override
    def __hash__(self) -> int:
        return hash((self._workloads, self._group.tobytes()))

    @property
    def weight_dtype(self) -> Never:
        """None: each group has its own."""
        raise self._of_groups("weight dtype")

    @property
    def weighted(self) -> Never:
        """None: each group has its own."""
        raise self._of_groups("answer whether lookups have weights")

    @property
    def optimizer(self) -> Never:
        """None: each group has its own."""
        raise self._of_groups("optimizer")

    def _of_groups(self, what: str) -> InvalidTablesError:
        return InvalidTablesError(
            f"The tables have {len(self._workloads)} workloads, so there is no one {what}; each of `workloads` has one."
        )

    @property
    @override
    def named(self) -> str:
        return f"{len(self._workloads)} groups of tables: {'; '.join(each.named for each in self._workloads)}"

    @property
    @override
    def workloads(self) -> tuple[Workload, ...]:
        return self._workloads

    @override
    def group_of(self, count: int) -> NDArray[np.int64]:
        return self._group

    @override
    def select(self, tables: NDArray[np.integer[Any]]) -> Workload:
        return _Mixed(self._workloads, self._group[tables])

    @override
    def changed(self, **changes: Any) -> Workload:
        return Workload.mixed([replace(each, **changes) for each in self._workloads], self._group)

    @override
    def without_moments(self) -> Workload:
        return Workload.mixed([each.without_moments() for each in self._workloads], self._group)

    @property
    @override
    def weight_bytes(self) -> PerTable:
        return self._each([each.weight_bytes for each in self._workloads])

    @property
    @override
    def scale_bytes(self) -> PerTable:
        return self._each([each.scale_bytes for each in self._workloads])

    @property
    @override
    def lookup_weight_bytes(self) -> PerTable:
        return self._each([each.lookup_weight_bytes for each in self._workloads])

    @property
    @override
    def state(self) -> OptimizerState:
        states = [each.state for each in self._workloads]
        return OptimizerState(self._each([each.per_row for each in states]), self._each([each[1] for each in states]))

    def _each(self, of_groups: Sequence[PerTable]) -> NDArray[np.int64]:
        """(T,) int64, of the group of each table."""
        return np.array(of_groups, np.int64)[self._group]

    @override
    def to_json(self) -> dict[str, Any]:
        """What all groups share; `groups`, a record of what each has; and `group`, that of each table."""
        groups = [each.to_json() for each in self._workloads]
        of_all = {key: value for key, value in groups[0].items() if key in SHARED}
        own = [{key: value for key, value in each.items() if key not in SHARED} for each in groups]
        return of_all | {"groups": own, "group": self._group.tolist()}
