"""The workload of a TorchRec model: the one weight dtype and the one optimizer of all its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shard_gym.checks import is_integer
from shard_gym.errors import InvalidTablesError, short_repr
from shard_gym.interop.torchrec_modules import configs_of, is_pooled
from shard_gym.workload import Workload

WEIGHT_DTYPES: Mapping[str, str] = {"BF16": "bf16", "FP16": "fp16", "FP32": "fp32"}
"""The weight dtypes by their names in TorchRec's `DataType`."""

DEFAULT_OPTIMIZER = "rowwise_adagrad"
"""Of models that do not say how their tables are trained."""

_NONE = "none in its backward"


def workload_of(collections: Iterable[Any], batch_size: int, optimizer: str | None) -> Workload:
    """The workload of the tables in some collections (`torchrec_modules.collections_of`).

    Args:
        collections: the collections; their tables have different names.
        batch_size: samples of a batch, on all devices together.
        optimizer: see `Workload`; None for the one that the model trains its tables with in the backward
            (`apply_optimizer_in_backward`), and for `DEFAULT_OPTIMIZER` where it does not say.

    Raises:
        InvalidTablesError: the tables have several dtypes or optimizers, one that is not known, or another than
            `optimizer`; or `batch_size` is no integer.
    """
    if not is_integer(batch_size):
        raise InvalidTablesError(f"batch_size must be an integer, not {short_repr(batch_size)}.")
    dtypes: dict[str, str] = {}
    trained: dict[str, str] = {}
    for collection in collections:
        for config in configs_of(collection):
            name = config.name
            dtypes[name] = _known(name, "weights in", config.data_type.value, WEIGHT_DTYPES)
            trained[name] = _optimizer(name, collection)
    dtype, found = _only(dtypes, "weight dtype"), _only(trained, "optimizer")
    if optimizer is not None and found and optimizer != found:
        raise InvalidTablesError(
            f"The optimizer is given as {optimizer}, but the model trains table {next(iter(trained))!r} with {found} "
            "in its backward. Leave the optimizer out, or give that of the model."
        )
    return Workload(int(batch_size), dtype, optimizer or found or DEFAULT_OPTIMIZER)


def _optimizer(name: str, collection: Any) -> str:
    """The name of the optimizer in the backward of a table, "" if there is none."""
    modules = getattr(collection, "embedding_bags" if is_pooled(collection) else "embeddings", {})
    weight = getattr(modules[name], "weight", None) if name in modules else None
    classes = getattr(weight, "_optimizer_classes", [])
    if len(classes) > 1:
        several = ", ".join(each.__name__ for each in classes)
        raise InvalidTablesError(f"Table {name!r} has several optimizers in its backward, {several}; give it one.")
    return _known(name, "the optimizer", classes[0], _optimizer_classes()) if classes else ""


def _optimizer_classes() -> dict[Any, str]:
    """The names of the optimizers that are known, by their classes in torch and in TorchRec."""
    from torch import optim
    from torchrec import optim as fused

    return {
        **{optim.Adam: "adam", fused.Adam: "adam"},
        **{optim.SGD: "sgd", fused.SGD: "sgd", fused.RowWiseAdagrad: "rowwise_adagrad"},
    }


def _known(table: str, what: str, given: Any, known: Mapping[Any, str]) -> str:
    if given not in known:
        raise InvalidTablesError(
            f"Table {table!r} has {what} {getattr(given, '__name__', given)}, which ShardGym does not know; known are "
            f"{', '.join(sorted(set(known.values())))}."
        )
    return known[given]


def _only(of_tables: Mapping[str, str], what: str) -> str:
    """The value that all tables have; of two that differ, the error names the first of each."""
    (first, value), *others = of_tables.items()
    for name, other in others:
        if other != value:
            raise InvalidTablesError(
                f"Tables have different {what}s: that of {first!r} is {value or _NONE}, that of {name!r} is "
                f"{other or _NONE}. All tables of a task share one, as those of a fused operator do; make tables of "
                f"each {what} by themselves."
            )
    return value
