"""Checks of the arguments of `ShardGymPlanner` and its `plan`; importing this module imports TorchRec.

All raise InvalidOptionError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder, ShardingType

from shard_gym.common.checks import checked_count, is_integer, is_iterable, is_not_negative
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.common.text import listed

NAMES = {
    "sharding_types": [each.value for each in ShardingType],
    "compute_kernels": [each.value for each in EmbeddingComputeKernel],
}
"""What the lists of names of a `ParameterConstraints` may have."""

DEVICE_GROUPS = ("cpu", "cuda", "mtia")


def check_topology(topology: Any, batch_size: Any) -> None:
    """The topology is one of TorchRec, or None, and the batch has a sample."""
    if not isinstance(topology, (Topology, type(None))):
        raise InvalidOptionError(
            f"`topology` is a Topology of torchrec.distributed.planner, or None, not {short_repr(topology)}."
        )
    if topology is not None:
        checked_count("world_size of `topology`", topology.world_size)
    if batch_size is not None:
        checked_count("`batch_size`", batch_size)


def check_constraints(constraints: Any) -> None:
    """Each table has a `ParameterConstraints`, or None, whose names and numbers mean something."""
    if constraints is None:
        return
    if not isinstance(constraints, Mapping):
        raise InvalidOptionError(
            "`constraints` has a ParameterConstraints by the name of each table, such as "
            f"{{'user': ParameterConstraints()}}, not {short_repr(constraints)}."
        )
    for table, given in constraints.items():
        if given is not None:
            _check_constraint(f"`constraints` of table {table!r}", given)


def _check_constraint(of_table: str, given: Any) -> None:
    if not isinstance(given, ParameterConstraints):
        raise InvalidOptionError(f"{of_table} must be a ParameterConstraints, not {short_repr(given)}.")
    for name, known in NAMES.items():
        values = getattr(given, name)
        if values is None:
            continue
        if not is_iterable(values):
            raise InvalidOptionError(f"{name} in {of_table} must be a list of names, not {short_repr(values)}.")
        for value in values:
            if not isinstance(value, str) or value not in known:
                raise InvalidOptionError(
                    f"{name} in {of_table} has {short_repr(value)}, which is none of them: {', '.join(known)}."
                )
    for name, what, is_right in (
        ("pooling_factors", "numbers", is_not_negative),
        ("num_poolings", "numbers", is_not_negative),
        ("batch_sizes", "integers", lambda value: is_integer(value) and value >= 0),
    ):
        values = getattr(given, name)
        if values is not None and not (is_iterable(values) and all(map(is_right, values))):
            raise InvalidOptionError(
                f"{name} in {of_table} must be a list of {what} of at least 0, one for each feature, not "
                f"{short_repr(values)}."
            )
    if given.pooling_factors is None:
        raise InvalidOptionError(f"pooling_factors in {of_table} must be a list of numbers, not None.")
    if given.min_partition is not None:
        checked_count(f"min_partition in {of_table}", given.min_partition, 0)
    if given.device_group not in (None, *DEVICE_GROUPS):
        raise InvalidOptionError(
            f"device_group in {of_table} must be one of {', '.join(DEVICE_GROUPS)}, or None, not "
            f"{short_repr(given.device_group)}."
        )


def checked_ranks(ranks: Any) -> dict[str, list[Any]]:
    """The ranks of each table as lists, which are checked where the model is known."""
    if not isinstance(ranks, (Mapping, type(None))):
        raise InvalidOptionError(
            "`ranks` has a list of ranks by the name of each table, such as {'user': [0, 1]}, not "
            f"{short_repr(ranks)}."
        )
    found = {}
    for name, given in (ranks or {}).items():
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise InvalidOptionError(f"`ranks` of table {name!r} must be a list of ranks, not {short_repr(given)}.")
        found[name] = list(given)
    return found


def checked_lookups(lookups: Any) -> Any:
    """Lookups of which several, also those of a generator, are a list, as each plan counts them."""
    if lookups is None or isinstance(lookups, (str, Path)) or hasattr(lookups, "to_dict"):
        return lookups
    if not isinstance(lookups, Iterable):
        raise InvalidOptionError(
            "`lookups` are `KeyedJaggedTensor`s, or paths of NPZ or Parquet files, one or several, not "
            f"{short_repr(lookups)}."
        )
    return list(lookups)


def check_callbacks(callbacks: Any) -> None:
    """Each can be called."""
    if callbacks is not None and not (is_iterable(callbacks) and all(map(callable, callbacks))):
        raise InvalidOptionError(
            "`callbacks` are functions that take and return the chosen options, in a list, not "
            f"{short_repr(callbacks)}."
        )


def check_model(module: Any, sharders: Any) -> None:
    """The module is one, and the sharders are."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidOptionError(f"`module` must be a torch.nn.Module, not {short_repr(module)}.")
    if not is_iterable(sharders) or not all(isinstance(each, ModuleSharder) for each in sharders):
        raise InvalidOptionError(
            "`sharders` must be a list of sharders, such as torchrec.distributed.sharding_plan.get_default_sharders() "
            f"makes, not {short_repr(sharders)}."
        )


def unused_constraints(constraints: Mapping[str, Any], tables: Iterable[str], device: str) -> str:
    """Which constraints are of no table of the model, a sentence; empty if none. Those of other devices may be.

    Args:
        tables: the names of the tables of the plan.
        device: what the topology is of, such as "cuda".
    """
    known = set(tables)
    unused = [
        name
        for name, given in constraints.items()
        if name not in known and getattr(given, "device_group", None) in (None, device)
    ]
    if not unused:
        return ""
    return (
        f"`constraints` has {listed(unused)}, and the plan has no such table; names are those of tables, without the "
        "path of their module."
    )
