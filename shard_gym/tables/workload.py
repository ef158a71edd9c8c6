"""How tables are used: batch size, type of the weights, and the optimizer that trains them, if one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer, is_one_of
from shard_gym.common.errors import InvalidTablesError, short_repr

WEIGHT_BYTES: Mapping[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4}

STATE_BYTES = 4
"""Bytes of a number of the optimizer's state: FP32 whatever the weights are, FBGEMM's default."""


class OptimizerState(NamedTuple):
    """The numbers that an optimizer keeps: for each row, and for each weight."""

    per_row: int
    per_weight: int


OPTIMIZER_STATES: Mapping[str, OptimizerState] = {
    "adam": OptimizerState(0, 2),
    "rowwise_adagrad": OptimizerState(1, 0),
    "sgd": OptimizerState(0, 0),
}
"""The state of each optimizer (pytorch/FBGEMM v1.8.0, split_embedding_configs.py, `state_size_table`): exact SGD none,
rowwise Adagrad the mean square of a row's gradients, Adam two moments of the dim of the row."""

WORKLOAD_KEYS: Mapping[str, type] = {"batch_size": int, "weight_dtype": str, "optimizer": str}
"""The keys of a `Workload` in files, with the type of each value."""

WORKLOAD_MAY_LACK: Mapping[str, type] = {"training": bool}
"""Keys that are left out where they have their default, and that files of earlier versions do not have."""

MAX_BATCH_SIZE = 2**30
"""Bytes of outputs, 4 * dim * num_features * batch size, stay below 2**63."""


@dataclass(frozen=True)
class Workload:
    """What a model does with its tables; all tables of a task share one workload.

    Attributes:
        batch_size: samples per iteration on all devices together (the global batch).
        weight_dtype: "bf16", "fp16" or "fp32".
        optimizer: "adam", "rowwise_adagrad" or "sgd", fused into FBGEMM's backward. Adam updates the rows that a batch
            reads, and their moments, and leaves all others as they are.
        training: False for serving: rows are read alone, so no optimizer keeps anything, whatever `optimizer` names.

    Raises:
        InvalidTablesError: `batch_size` is no integer from 1 to `MAX_BATCH_SIZE`, a name is not known, or `training` is
            no bool.
    """

    batch_size: int
    weight_dtype: str = "fp16"
    optimizer: str = "sgd"
    training: bool = True

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

        if not isinstance(self.training, (bool, np.bool_)):
            raise InvalidTablesError(f"training must be True or False, not {short_repr(self.training)}.")
        object.__setattr__(self, "training", bool(self.training))

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return WEIGHT_BYTES[self.weight_dtype]

    @property
    def state(self) -> OptimizerState:
        """The numbers that the optimizer keeps, `STATE_BYTES` each."""
        return OPTIMIZER_STATES[self.optimizer] if self.training else OPTIMIZER_STATES["sgd"]

    def to_json(self) -> dict[str, Any]:
        """Its values by name, for files; `training` only where it is False."""
        record = asdict(self)
        return record if not self.training else {key: record[key] for key in WORKLOAD_KEYS}

    def row_bytes(self, columns: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Bytes of a row with so many columns, in a table or a shard of it: its weights and its optimizer state.

        What is kept for each weight splits with the columns; what is kept for each row is in every column shard, as
        each is a table of its own for the optimizer.
        """
        state = STATE_BYTES * (self.state.per_row + self.state.per_weight * columns)
        return np.asarray(columns * self.weight_bytes + state)
