"""Which weights and optimizers FBGEMM's fused operator trains, on each kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shard_gym.errors import InvalidOptionError


class Executable(NamedTuple):
    """The weight dtypes and the optimizers that a kind of device executes."""

    weight_dtypes: tuple[str, ...]
    optimizers: tuple[str, ...]


EXECUTED: Mapping[str, Executable] = {
    "cpu": Executable(("fp16", "fp32"), ("rowwise_adagrad", "sgd")),
    "cuda": Executable(("fp16", "fp32"), ("adam", "rowwise_adagrad", "sgd")),
}
"""Of the names in `shard_gym.workload`. pytorch/FBGEMM v1.8.0, split_table_batched_embeddings_ops_training.py, asserts
the optimizers of each, and documents weights in FP32 and FP16; include/fbgemm_gpu/utils/dispatch_macros.h (commit
042505b3) has no case for weights in BF16, and on a CPU the operator says that it is not implemented."""


def require_executable(device: str, weight_dtype: str, optimizer: str) -> None:
    """Refuse a known dtype or optimizer that the operator does not train on `device`, "cpu" or "cuda".

    Raises:
        InvalidOptionError: it names what is not executed, and what is.
    """
    executed = EXECUTED[device]
    for what, name, names in (
        ("weights in", weight_dtype, executed.weight_dtypes),
        ("the optimizer", optimizer, executed.optimizers),
    ):
        if name not in names:
            where = "a CPU" if device == "cpu" else "a GPU"
            raise InvalidOptionError(
                f"FBGEMM's operator does not train with {what} {name} on {where}, so nobody can measure it "
                f"there; it trains with {what} {' and '.join(names)}. The analytical cost model estimates {name}."
            )
