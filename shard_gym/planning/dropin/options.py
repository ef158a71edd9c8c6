"""The sharding options that TorchRec's enumerator finds, as tables, the forms that each may have, and back.

An option is a `ShardingOption` of TorchRec: a sharding type and a compute kernel of one table, and its shards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidTablesError
from shard_gym.common.text import listed
from shard_gym.interop.torchrec import DEFAULT_OPTIMIZER, optimizer_classes
from shard_gym.plans import SHARDING_TYPES, Shard, TableSharding
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    GRID_SHARD,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    rows_per_block,
)
from shard_gym.tables import RowPopularity, Tables, Workload
from shard_gym.tables.tables import COLUMNS, LIMITS, MAX_ROWS, MAX_SEQUENCE
from shard_gym.tables.workload import OPTIMIZER_STATES, WEIGHT_BYTES

KERNELS = ("fused", "dense", "fused_triton")
"""The compute kernels with all rows in the memory of the device; of a sharding type the first of them is planned."""

IN_MEMORY = (*KERNELS, "quant")
"""All kernels of TorchRec that keep all rows there."""

KEPT = "their rows are kept in a device's memory by no kernel that they may have ({})"
SERVED = "their rows are quantized, to be served ({})"

Options = Sequence[Any]


@dataclass(frozen=True)
class TableOptions:
    """What one table may be."""

    name: str  #: for messages; with the path of its module where another table has the same name
    options: Options  #: all that the enumerator found
    forms: Mapping[str, Any]  #: those with rows in the device's memory, by sharding type
    features: tuple[str, ...]  #: that read it
    config: Any  #: in its collection; None if that has none of its name
    why_torchrec: str  #: why TorchRec plans it, a clause; empty if ShardGym does

    @property
    def first(self) -> Any:
        """One of its options, for what all have in common."""
        return self.options[0]

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self.first.tensor.shape[0])

    @property
    def dim(self) -> int:
        """Columns of the table."""
        return int(self.first.tensor.shape[1])


def by_table(options: Iterable[Any], ranks: int, ranks_of_host: int) -> list[TableOptions]:
    """The options of each table, in the order of the enumerator, and which tables are left to TorchRec."""
    found: dict[str, list[Any]] = {}
    for option in options:
        found.setdefault(option.fqn, []).append(option)
    names = [each[0].name for each in found.values()]
    tables = []
    for fqn, each in found.items():
        name = each[0].name if names.count(each[0].name) == 1 else fqn
        config = _config_of(each[0])
        features = tuple(getattr(config, "feature_names", ())) or (name,) * len(each[0].input_lengths)
        forms = _forms_of(each, ranks, ranks_of_host)
        tables.append(
            TableOptions(name, each, forms, features, config, _why_torchrec(each, config, forms, ranks, ranks_of_host))
        )
    return tables


def _config_of(option: Any) -> Any:
    """The config of a table in its collection; None if its module has none of that name."""
    for module in (option.module[1], *option.module[1].children()):
        for name in ("embedding_bag_configs", "embedding_configs"):
            configs = getattr(module, name, None)
            found = [each for each in configs() if each.name == option.name] if callable(configs) else []
            if found:
                return found[0]
    return None


def _forms_of(options: Options, ranks: int, ranks_of_host: int) -> dict[str, Any]:
    """The options of a table that a search may choose, by their sharding types."""
    found: dict[str, Any] = {}
    for kernel in KERNELS:
        for option in options:
            kind = option.sharding_type
            if option.compute_kernel == kernel and not _why_not(option, ranks, ranks_of_host):
                found.setdefault(kind, option)
    return found


def _why_not(option: Any, ranks: int, ranks_of_host: int) -> str:
    """Why no search may choose the sharding type of an option, a clause; empty if one may."""
    dim, kind = option.tensor.shape[1], option.sharding_type
    if kind not in SHARDING_TYPES:
        return "no search knows it"
    if kind == COLUMN_WISE and dim % COLUMNS:
        return f"the dim {dim} is no multiple of {COLUMNS}"
    if kind == TABLE_ROW_WISE and not option.is_pooled:
        return "for pooled tables alone"
    if kind == TABLE_ROW_WISE and ranks % ranks_of_host:
        return f"hosts of {ranks_of_host} do not divide {ranks} ranks"
    return ""


def _why_torchrec(options: Options, config: Any, forms: Mapping[str, Any], ranks: int, ranks_of_host: int) -> str:
    """Why TorchRec plans a table, a clause; empty if it does not."""
    from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

    first, kernels = options[0], sorted({option.compute_kernel for option in options})
    if isinstance(first.module[1], BaseManagedCollisionEmbeddingCollection):
        return "their ids are mapped to rows while they train (managed collision)"
    if getattr(config, "use_virtual_table", False) or any("virtual" in kernel for kernel in kernels):
        return "their rows are made when they are read (virtual tables)"
    if first.dependency is not None:
        return "they belong to towers, whose tables share a host"
    if forms:
        return ""
    if not any(kernel in KERNELS for kernel in kernels):
        return (SERVED if "quant" in kernels else KEPT).format(", ".join(kernels))
    types = {option.sharding_type: option for option in options if option.compute_kernel in KERNELS}
    each = "; ".join(f"{kind}: {_why_not(types[kind], ranks, ranks_of_host)}" for kind in sorted(types))
    return f"ShardGym plans no sharding type that they may have ({each})"


def probes_of(table: TableOptions, ranks: int, ranks_of_host: int) -> dict[str, Any]:
    """For each form of a table an option with the shards whose bytes say those of all: one part, and of column shards
    the narrowest and the widest."""
    rows, dim = table.rows, table.dim
    parts = {
        TABLE_WISE: [(rows, dim)],
        COLUMN_WISE: [(rows, COLUMNS), (rows, dim)],
        ROW_WISE: [(rows_per_block(rows, ranks), dim)],
        TABLE_ROW_WISE: [(rows_per_block(rows, ranks_of_host), dim)],
        DATA_PARALLEL: [(rows, dim)],
    }
    return {
        kind: with_shards(
            option, TableSharding(kind, tuple(Shard(0, 0, size, 0, width) for size, width in parts[kind]))
        )
        for kind, option in table.forms.items()
    }


def least_bytes(probes: Sequence[Mapping[str, Any]], memory: str) -> NDArray[np.int64]:
    """(T, 5, 2) int64, the bytes of a part of w columns of each form of T tables, [..., 0] + [..., 1] * w, as TorchRec
    estimates them; by `SHARDING_TYPES`, 0 for forms that a table has not.

    Args:
        probes: of each table (`probes_of`), whose storage is estimated.
        memory: "hbm" or "ddr", in which a device has its tables.
    """
    found = np.zeros((len(probes), len(SHARDING_TYPES), 2), np.int64)
    for table, forms in enumerate(probes):
        for kind, option in forms.items():
            (least, narrow), (most, wide) = (
                (getattr(shard.storage, memory), shard.size[1]) for shard in (option.shards[0], option.shards[-1])
            )
            each = -((least - most) // max(wide - narrow, 1)) if kind == COLUMN_WISE else 0  # rounded up
            found[table, SHARDING_TYPES.index(kind)] = max(least - each * narrow, most - each * wide), each
        if TABLE_WISE not in forms:  # a table that may have column shards alone may be whole in one
            found[table, SHARDING_TYPES.index(TABLE_WISE)] = found[table, SHARDING_TYPES.index(COLUMN_WISE)]
    return found


def kept_forms(table: TableOptions, types: Iterable[str]) -> TableOptions:
    """The same table with these sharding types alone."""
    return replace(table, forms={name: option for name, option in table.forms.items() if name in types})


# Tables


def lookups_of(table: TableOptions, constraint: Any) -> tuple[float, int, str]:
    """The mean lookups of a sample, its bags, and what is approximated, a clause or nothing."""
    features = len(table.features)
    lengths = [float(each) for each in table.first.input_lengths]
    said = "" if lengths else "pooling_factors without a number count as 1 for each feature"
    lengths = lengths or [1.0] * features
    poolings = [float(each) for each in getattr(constraint, "num_poolings", None) or [1.0] * len(lengths)]
    sizes = getattr(constraint, "batch_sizes", None)
    shares = [size / table.first.batch_size for size in sizes] if sizes else [1.0] * len(lengths)
    if not len(lengths) == len(poolings) == len(shares):
        raise InvalidTablesError(
            f"Table {table.name!r} has {len(lengths)} pooling_factors, {len(poolings)} num_poolings and {len(shares)} "
            "batch_sizes in its constraints; give one of each for every feature."
        )
    bags = [pooling * share for pooling, share in zip(poolings, shares, strict=True)]
    total, count = sum(length * bag for length, bag in zip(lengths, bags, strict=True)), sum(bags)
    if count != len(bags):
        said = "num_poolings and batch_sizes count as lookups and bags of whole batches"
    if len(lengths) != features:  # one number stands for all, as TorchRec's default does
        total, count = total / len(lengths) * features, count / len(lengths) * features
        if len(lengths) > 1:
            said = "the mean of the pooling_factors counts for each feature, as there are more or fewer features"
    return total, max(1, round(count)), said


def sizes_of(tables: Sequence[TableOptions], bags: Sequence[int], workload: Workload) -> dict[str, Any]:
    """What `Tables` are made of besides lookups; dims are rounded up to a multiple of 4 in costs."""
    return {
        "num_embeddings": [min(table.rows, MAX_ROWS) for table in tables],  # virtual tables may have any number
        "embedding_dim": [-(-table.dim // COLUMNS) * COLUMNS for table in tables],
        "num_features": list(bags),
        "names": [table.name for table in tables],
        "pooled": [bool(table.first.is_pooled) for table in tables],
        "workload": workload,
    }


def tables_of(
    tables: Sequence[TableOptions],
    constraints: Mapping[str, Any],
    workload: Workload,
    exponent: float,
    note: Callable[[str], None],
) -> Tables:
    """The tables of options, with lookups that follow Zipf's law.

    Args:
        constraints: TorchRec's, by the name of a table.
        note: is called with what is approximated.
    """
    lookups, bags, said = [], [], dict[str, list[str]]()
    for table in tables:
        total, count, approximated = lookups_of(table, constraints.get(table.first.name))
        if count > (most := int(LIMITS["num_features"][2])):
            count, approximated = most, f"more than {most:,} bags of a sample count as so many"
        if not table.first.is_pooled and total > MAX_SEQUENCE:
            total, approximated = MAX_SEQUENCE, f"sequences longer than {MAX_SEQUENCE:,} count as so long"
        lookups.append(total)
        bags.append(count)
        if approximated:
            said.setdefault(approximated, []).append(table.name)
    for sentence, names in said.items():
        note(f"{listed(names)}: {sentence}")
    if padded := [table.name for table in tables if table.dim % COLUMNS]:
        note(f"{listed(padded)}: dims are rounded up to a multiple of {COLUMNS} in costs")
    return Tables.from_popularity(
        pooling_factor=lookups,
        popularity=RowPopularity.zipf([exponent] * len(tables)),
        **sizes_of(tables, bags, workload),
    )


def workload_of(
    tables: Sequence[TableOptions], batch_size: int, fused_params: Mapping[str, Any], note: Callable[[str], None]
) -> Workload:
    """The workloads of the tables, a group for each dtype and optimizer, with weights of lookups and without; one that
    is not known is the nearest.

    Args:
        batch_size: samples of a batch, on all devices together.
        fused_params: of the sharder of each table, by the type of its module.
        note: is called with what is approximated.
    """
    own: list[Workload] = []
    said: dict[str, list[str]] = {}
    for table in tables:
        found = _dtype_of(table), _optimizer_of(table, fused_params)
        known = _nearest(found[0], WEIGHT_BYTES, _NEAREST_DTYPES), _nearest(found[1], OPTIMIZER_STATES, _NEAREST)
        if known != found:
            said.setdefault(f"{' and '.join(found)} are costed as {' and '.join(known)}", []).append(table.name)
        own.append(Workload(batch_size, *known, weighted=has_weights(table)))
    for sentence, names in said.items():
        note(f"{listed(names)}: {sentence}")
    return Workload.of_tables(own)


def has_weights(table: TableOptions) -> bool:
    """Whether each lookup of the table comes with a weight, or its feature processor makes one."""
    return bool(table.first.is_pooled and (table.first.is_weighted or table.first.has_feature_processor))


_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8"}
_DTYPES |= {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
_NEAREST_DTYPES = {"float64": "fp32"}
_NEAREST = {
    **{"LarsSGD": "adagrad", "lars_sgd": "adagrad", "PartialRowWiseLAMB": "partial_rowwise_adam"},
    **{"partial_row_wise_lamb": "partial_rowwise_adam"},
}
"""Optimizers with as much state."""

_OF_FBGEMM = {
    **{"sgd": "sgd", "exact_sgd": "sgd", "adagrad": "adagrad", "exact_adagrad": "adagrad", "adam": "adam"},
    **{"rowwise_adagrad": "rowwise_adagrad", "exact_row_wise_adagrad": "rowwise_adagrad", "lamb": "lamb"},
    **{"row_wise_adagrad": "rowwise_adagrad", "partial_row_wise_adam": "partial_rowwise_adam"},
}
"""By the values of FBGEMM's `EmbOptimType`."""


def _nearest(found: str, known: Mapping[str, Any], nearest: Mapping[str, str]) -> str:
    fallback = "fp16" if known is WEIGHT_BYTES else DEFAULT_OPTIMIZER
    return found if found in known else nearest.get(found, fallback)


def _dtype_of(table: TableOptions) -> str:
    name = str(table.first.tensor.dtype).removeprefix("torch.")
    return _DTYPES.get(name, name)


def _optimizer_of(table: TableOptions, fused_params: Mapping[str, Any]) -> str:
    """Of the backward, of a fused collection, or of its sharder; else `DEFAULT_OPTIMIZER`."""
    classes = list(getattr(table.first.tensor, "_optimizer_classes", []))
    if callable(own := getattr(table.first.module[1], "optimizer_type", None)):
        classes.append(own())
    if classes:
        return optimizer_classes().get(classes[0], str(classes[0].__name__))
    named = fused_params.get(table.first.module_type_key, {}).get("optimizer")
    if named is None:
        return DEFAULT_OPTIMIZER
    name = str(getattr(named, "value", named))
    return _OF_FBGEMM.get(name, name)


_SENT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "int8", "int8": "int8"}
_SENT |= {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


def communication_dtype(sharders: Iterable[Any], note: Callable[[str], None]) -> str | None:
    """The dtype in which sharders send pooled outputs and their gradients (`qcomm_codecs_registry`); None for FP32.

    Args:
        note: is called if several are sent in, and which of them is costed.
    """
    found: list[str] = []
    for sharder in sharders:
        codecs = (getattr(sharder, "qcomm_codecs_registry", None) or {}).get("POOLED_EMBEDDINGS_ALL_TO_ALL")
        if codecs is not None:
            dtypes = [str(each.quantized_dtype).removeprefix("torch.") for each in (codecs.forward, codecs.backward)]
            found += [_SENT.get(each, each) for each in dtypes]
    known = [each for each in dict.fromkeys(found) if each in _SENT.values()]
    if len(set(found)) > len(known[:1]):
        note(f"outputs are sent in {listed(list(dict.fromkeys(found)))}, and costed as {(known or ['fp32'])[0]}")
    return known[0] if known else None


# Shards


def outside_devices(options: Options) -> list[str]:
    """The names of the tables with rows outside the memory of their devices."""
    return [option.name for option in options if option.compute_kernel not in IN_MEMORY]


def has_equal_blocks_of_rows(option: Any, config: Any) -> bool:
    """Whether the blocks of rows of an option are those in which TorchRec looks rows up; True if it has none.

    It finds the block of a row by dividing by ceil(rows / blocks) (`rows_per_block`), or by whole buckets of virtual
    tables, but its enumerator cuts row_wise tables in proportion to the memory of ranks where a topology has a list of
    it; sums are then wrong.
    """
    from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

    if option.sharding_type not in (ROW_WISE, TABLE_ROW_WISE, GRID_SHARD):
        return True
    buckets = config.total_num_buckets if getattr(config, "use_virtual_table", False) else None
    of_columns: dict[int, list[tuple[int, int]]] = {}
    for shard in option.shards:
        of_columns.setdefault(int(shard.offset[1]), []).append((int(shard.offset[0]), int(shard.size[0])))
    for held in of_columns.values():
        sizes, offsets = calculate_shard_sizes_and_offsets(
            option.tensor, len(held), len(held), ROW_WISE, num_buckets=buckets
        )
        equal = [(offset[0], size[0]) for offset, size in zip(offsets, sizes, strict=True)]
        if sorted(each for each in held if each[1]) != [each for each in equal if each[1]]:
            return False
    return True


def sharding_of(option: Any) -> TableSharding:
    """The sharding of an option whose shards have ranks, in the forms of `shard_gym.plans`."""
    shards = tuple(
        Shard(int(each.rank), int(each.offset[0]), int(each.size[0]), int(each.offset[1]), int(each.size[1]))
        for each in option.shards
    )
    return TableSharding(option.sharding_type, shards)


def pieces_of(option: Any) -> list[tuple[int, TableSharding]]:
    """The column shards of an option whose shards have ranks, each as a table of so many columns by itself.

    Its costs are then in those of the devices, whatever its sharding type: rows are on one device, in blocks on
    several, or replicated.
    """
    kind = {GRID_SHARD: TABLE_ROW_WISE, ROW_WISE: ROW_WISE, TABLE_ROW_WISE: TABLE_ROW_WISE}.get(option.sharding_type)
    shards = sharding_of(option).shards
    if option.sharding_type == DATA_PARALLEL:
        return [(shards[0].num_columns, TableSharding(DATA_PARALLEL, shards))]
    if kind is None:
        return [(each.num_columns, TableSharding(TABLE_WISE, (each._replace(first_column=0),))) for each in shards]
    of_columns: dict[tuple[int, int], list[Shard]] = {}
    for each in shards:
        of_columns.setdefault((each.first_column, each.num_columns), []).append(each._replace(first_column=0))
    return [(width, TableSharding(kind, tuple(held))) for (_, width), held in of_columns.items()]


def with_shards(option: Any, sharding: TableSharding) -> Any:
    """A copy of an option with the shards of a sharding; storage and perf are still to be estimated."""
    from torchrec.distributed.planner.types import Shard as TorchRecShard

    made = copy.copy(option)
    dim = option.tensor.shape[1]
    made.shards = [
        TorchRecShard(
            size=[each.num_rows, min(each.num_columns, dim - each.first_column)],
            offset=[each.first_row, each.first_column],
            rank=each.device,
        )
        for each in sharding.shards
    ]
    return made
