"""How tables are trained: batch size, type of the weights, and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shard_gym.checks import is_integer
from shard_gym.errors import InvalidTablesError, short_repr

WEIGHT_BYTES: Mapping[str, int] = {"fp16": 2, "fp32": 4}
OPTIMIZER_BYTES_PER_ROW: Mapping[str, int] = {"sgd": 0, "rowwise_adagrad": 4}
"""State per row (pytorch/FBGEMM, split_embedding_configs.py): exact SGD none, rowwise Adagrad one float."""

WORKLOAD_KEYS: Mapping[str, type] = {"batch_size": int, "weight_dtype": str, "optimizer": str}
"""The keys of a `Workload` in files, with the type of each value."""

MAX_BATCH_SIZE = 2**30
"""Bytes of outputs, 4 * dim * num_features * batch size, stay below 2**63."""


@dataclass(frozen=True)
class Workload:
    """The training settings of tables; all tables of a task share one workload.

    Attributes:
        batch_size: samples per iteration on all devices together (the global batch).
        weight_dtype: "fp16" or "fp32".
        optimizer: "sgd" or "rowwise_adagrad"; both are fused into FBGEMM's backward.
    """

    batch_size: int
    weight_dtype: str = "fp16"
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        if not is_integer(self.batch_size) or not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise InvalidTablesError(
                f"batch_size must be an integer from 1 to {MAX_BATCH_SIZE:,}, not {short_repr(self.batch_size)}."
            )
        object.__setattr__(self, "batch_size", int(self.batch_size))
        for name, known in (("weight_dtype", WEIGHT_BYTES), ("optimizer", OPTIMIZER_BYTES_PER_ROW)):
            if getattr(self, name) not in list(known):
                raise InvalidTablesError(f"{name} must be one of {sorted(known)}, not {getattr(self, name)!r}.")

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        return WEIGHT_BYTES[self.weight_dtype]

    @property
    def optimizer_bytes_per_row(self) -> int:
        """Bytes of optimizer state kept for one row."""
        return OPTIMIZER_BYTES_PER_ROW[self.optimizer]
