"""Variants: the forms in which a step can put a table, or a part of it, on devices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, unknown_name, wrong_kind
from shard_gym.hardware import Topology
from shard_gym.plans.column_levels import UNIT, ColumnLevels
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    SHARDING_TYPES,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
    filled_blocks,
)
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import MAX_DIM, Tables

MAX_SHARDS = 8  # column shards of a table at most, where one is not much larger than a device
FULL_WIDTH = 128  # columns that a warp reads at once; all that is rounded up, sectors and vectors, is even there


@dataclass(frozen=True, eq=False)
class Variants:
    """V variants of T tables.

    Variant 0 is the whole table, variant h its columns halved h times or another of its `ColumnLevels`, then the other
    types.
    """

    sharding_types: tuple[str, ...]  # V sharding types; those of columns are column_wise
    # (V,) int64, how many parts of a variant make the table: 2^h halves, D or W blocks, D replicas; of
    # `with_all_widths` (T, V) float64.
    parts: NDArray[np.int64] | NDArray[np.float64]
    tables: tuple[Tables, ...]  # V times what a part of each table is to its device (`shard_tables`)
    # (T, V) bool, whether the table has the variant: widths are multiples of 4, no block is empty, or may be, and
    # constraints permit it, for blocks on a host on some host.
    legal: NDArray[np.bool_]
    memory: NDArray[np.int64]  # (T, V) int64, bytes of one part; of blocks, the largest
    constraints: Constraints | None = None  # see `under`

    @property
    def num_variants(self) -> int:
        """V."""
        return len(self.sharding_types)

    def under(self, constraints: Constraints | None) -> Variants:
        """These variants, of which only those are legal that the constraints permit; blocks on a host if some host is.

        The variants are not those of `with_all_widths`.
        """
        if constraints is None:
            return self
        permitted = [
            constraints.may_have_parts(name, form.embedding_dim, parts, self.tables[0])
            for name, parts, form in zip(self.sharding_types, self.parts.tolist(), self.tables, strict=True)
        ]
        return replace(self, legal=self.legal & np.stack(permitted, axis=1), constraints=constraints)

    def fit_empty_devices(self, topology: Topology) -> NDArray[np.bool_]:
        """(T, V) bool, whether all parts of each variant of each table alone fit the memory of the devices."""
        caps, fits, limits = topology.memory_cap_bytes, self.legal.copy(), self.constraints
        for variant, (kind, parts) in enumerate(zip(self.sharding_types, self.parts.tolist(), strict=True)):
            memory = self.memory[:, variant]
            if kind in (TABLE_WISE, COLUMN_WISE):
                own_caps = caps if limits is None else np.where(limits.devices, caps, 0)
                fits[:, variant] &= _parts_fit(memory, np.full(len(memory), parts), own_caps)
            elif kind == TABLE_ROW_WISE:
                hosts = caps.reshape(-1, parts) if len(caps) % parts == 0 else caps[None]
                fits[:, variant] &= memory <= hosts.min(axis=1).max()
            else:
                fits[:, variant] &= memory <= caps.min()
        return fits


def checked_sharding_types(sharding_types: Collection[str]) -> tuple[str, ...]:
    """The sharding types in the order of `SHARDING_TYPES`; a text is names with commas, or "all". table_wise must be
    one.
    """
    if isinstance(sharding_types, str):
        sharding_types = SHARDING_TYPES if sharding_types == "all" else sharding_types.split(",")
    if not isinstance(sharding_types, Collection) or getattr(sharding_types, "ndim", 1) != 1:
        raise wrong_kind("sharding_types", sharding_types, "a list of sharding types, such as ('table_wise',)")
    for name in sharding_types:
        if name not in SHARDING_TYPES:
            raise unknown_name("sharding type", name, SHARDING_TYPES)
    if TABLE_WISE not in sharding_types:
        raise InvalidOptionError(f"sharding_types must contain 'table_wise'; got {tuple(sharding_types)}.")
    return tuple(name for name in SHARDING_TYPES if name in sharding_types)


def default_max_shards(tables: Tables, memory_bytes: int) -> int:
    """The most column shards of a table for searches that are not told, on devices that have `memory_bytes` at most.

    8, or 32 if the largest table needs more than 8 such devices.
    """
    return MAX_SHARDS if tables.memory_bytes.max() <= MAX_SHARDS * memory_bytes else 4 * MAX_SHARDS


def checked_max_shards(max_shards: int) -> int:
    """`max_shards`, the most column shards of a table, if it is a power of two."""
    shards = checked_count("max_shards", max_shards, most=MAX_DIM // 4)
    if shards & (shards - 1):
        raise InvalidOptionError(f"max_shards must be a power of two, because tables are halved; got {shards}.")
    return shards


def whole_tables(tables: Tables) -> Variants:
    """The only variant of tables that are not split."""
    one = np.ones(1, np.int64)
    return Variants((TABLE_WISE,), one, (tables,), np.ones((len(tables), 1), np.bool_), tables.memory_bytes[:, None])


def some_split_fits(tables: Tables, topology: Topology) -> NDArray[np.bool_]:
    """(T,) bool, whether each table alone fits the memory of the devices, whole or split in some way."""
    fits = variants_of(tables, topology, max_halvings=0).fit_empty_devices(topology).any(axis=1)
    # The columns of which one shard fits each device, in units: of one shard the states of rows are the fewest.
    columns = np.repeat(np.arange(2)[:, None], len(tables), axis=1)
    no_columns, one_column = tables.workload.row_bytes(columns)[..., None]
    row_bytes = topology.memory_cap_bytes // tables.num_embeddings[:, None]
    most = np.maximum((row_bytes - no_columns) // (one_column - no_columns) // UNIT, 0)
    units = tables.embedding_dim // UNIT
    return np.asarray(fits | (np.minimum(most, units[:, None]).sum(axis=1) >= units))


def _parts_fit(memory: NDArray[np.int64], parts: NDArray[np.int64], caps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(T,) bool, whether devices with these (D,) or (T, D) caps have room for all `parts` of each table, of `memory`
    bytes each.
    """
    if caps.ndim == 2:
        return np.asarray((caps // memory[:, None]).sum(axis=1) >= parts)
    sizes, devices = np.unique(caps, return_counts=True)
    places = np.minimum(sizes // memory[:, None], parts[:, None]) * devices
    return np.asarray(places.sum(axis=1) >= parts)


def variants_of(
    tables: Tables,
    topology: Topology,
    sharding_types: Collection[str] = SHARDING_TYPES,
    max_halvings: int = 3,
    levels: ColumnLevels | None = None,
    empty_blocks: bool = False,
) -> Variants:
    """The variants of `tables` on `topology`.

    With column_wise, a table is halved at most `max_halvings` times, or has the parts of `levels`. Where hosts differ
    in size, table_row_wise is legal for no table; it never is for sequence tables, for which TorchRec does not have it.
    With `empty_blocks`, tables of few rows may be in blocks of which the last ones are empty, and which count as much
    as the others.
    """
    types = checked_sharding_types(sharding_types)
    every = np.ones(len(tables), np.bool_)
    found = [(TABLE_WISE, 1, tables, every)]  # sharding type, parts, what a part is, which tables have it
    most = checked_count("max_halvings", max_halvings, 0, MAX_DIM.bit_length())
    if COLUMN_WISE in types and levels is not None:
        for level, parts in enumerate(levels.parts[1:].tolist(), start=1):
            part = shard_tables(tables, COLUMN_WISE, topology, levels.width[:, level])
            found.append((COLUMN_WISE, parts, part, levels.legal[:, level]))
    elif COLUMN_WISE in types:
        for halvings in range(1, most + 1):
            fits = tables.embedding_dim % (UNIT << halvings) == 0
            widths = np.where(fits, tables.embedding_dim >> halvings, tables.embedding_dim)
            found.append((COLUMN_WISE, 2**halvings, shard_tables(tables, COLUMN_WISE, topology, widths), fits))
    for name in (ROW_WISE, TABLE_ROW_WISE):
        if name in types:
            blocks = topology.num_devices if name == ROW_WISE else devices_of_hosts(topology)
            filled = filled_blocks(tables.num_embeddings, max(blocks, 1))
            part = shard_tables(tables, name, topology, blocks=filled if empty_blocks else None) if blocks else tables
            fits = (filled == blocks) | empty_blocks if blocks else ~every
            fits = fits & tables.pooled if name == TABLE_ROW_WISE else fits
            found.append((name, max(blocks, 1), part, fits))
    if DATA_PARALLEL in types:
        replicas = shard_tables(tables, DATA_PARALLEL, topology)
        found.append((DATA_PARALLEL, topology.num_devices, replicas, every))
    names, numbers, forms, legal = zip(*found, strict=True)
    return Variants(
        names,
        np.array(numbers, np.int64),
        forms,
        np.stack(legal, axis=1),
        np.stack([form.memory_bytes for form in forms], axis=1),
    )


def with_all_widths(variants: Variants, topology: Topology) -> Variants:
    """Those of `variants`, and column shards of every width: for bounds over all plans, not only those of halves.

    All up to `FULL_WIDTH`, and its largest multiple: what a column costs repeats from there on, and what a shard costs
    by itself counts less. `parts` is then (T, V) float64, the dim divided by the width, which is no integer for some.
    """
    tables = variants.tables[0]
    dims = tables.embedding_dim
    narrower = [np.minimum(dims, width) for width in range(4, min(int(dims.max()), FULL_WIDTH) + 1, 4)]
    narrower.append(np.where(dims > FULL_WIDTH, dims - dims % FULL_WIDTH, dims))
    forms = [shard_tables(tables, COLUMN_WISE, topology, each) for each in narrower]
    return Variants(
        variants.sharding_types + (COLUMN_WISE,) * len(narrower),
        np.concatenate(
            [
                np.broadcast_to(variants.parts, variants.legal.shape),
                np.stack([dims / each for each in narrower], axis=1),
            ],
            axis=1,
        ),
        variants.tables + tuple(forms),
        np.concatenate([variants.legal, np.ones((len(tables), len(narrower)), np.bool_)], axis=1),
        np.concatenate([variants.memory, np.stack([form.memory_bytes for form in forms], axis=1)], axis=1),
    )
