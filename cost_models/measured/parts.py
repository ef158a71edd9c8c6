"""From a plan to what each device executes: its shards by collective and group, and the columns that are exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.measured.job import Part, Widths
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    devices_of_hosts,
)
from shard_gym.tables import Tables

KINDS = (COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL)  # in the order in which a device executes them
Parts = tuple[Part, ...]


def require_executable_plan(plan: ShardingPlan, tables: Tables, topology: Topology) -> None:
    """Refuse what is not executed; cost models refuse by themselves what they do not know.

    Raises:
        InvalidOptionError: the plan has blocks of rows, and a batch that the devices do not divide; or a block is
            empty.
    """
    shards = plan.shard_arrays()
    empty = np.flatnonzero(shards[:, 3] == 0)
    if empty.size:
        raise InvalidOptionError(
            f"Blocks without rows are not measured, and table {tables.names[shards[empty[0], 0]]!r} has too few rows "
            "for its blocks. Leave out --cost-model for an estimate."
        )
    batch_size, devices = tables.workload.batch_size, topology.num_devices
    blocks = any(sharding.shard_type in (ROW_WISE, TABLE_ROW_WISE) for sharding in plan.tables)
    if blocks and batch_size % devices:
        raise InvalidOptionError(
            f"Blocks of rows are executed with as many samples for each device, but {devices} devices do not divide a "
            f"batch of {batch_size:,}. Pass a batch_size that is a multiple of {devices}."
        )


def parts_of(plan: ShardingPlan, tables: Tables, topology: Topology) -> list[Parts]:
    """What each device executes of a checked plan: of each kind a part for each group of tables, one after the other.

    A table that one device has, and every table of a single device, is whole, whatever its sharding type. Where all
    devices are on one host, `table_row_wise` is `row_wise`.
    """
    arrays = plan.shard_arrays()
    kinds = np.array([_kind(sharding.shard_type, topology) for sharding in plan.tables])[arrays[:, 0]]
    groups = tables.group[arrays[:, 0]]
    return [
        tuple(
            _part(kind, tables, arrays[chosen], device, topology)
            for kind in KINDS
            for group in range(len(tables.workloads))
            if (chosen := (arrays[:, 1] == device) & (kinds == kind) & (groups == group)).any()
        )
        for device in range(topology.num_devices)
    ]


def _kind(sharding_type: str, topology: Topology) -> str:
    if sharding_type == TABLE_WISE or topology.num_devices == 1:
        return COLUMN_WISE
    one_host = topology.devices_per_host >= topology.num_devices
    return ROW_WISE if sharding_type == TABLE_ROW_WISE and one_host else sharding_type


def _part(kind: str, tables: Tables, shards: IntArray, device: int, topology: Topology) -> Part:
    table, _, first_row, num_rows, _, num_columns = shards.T
    samples = hosts = None
    if kind == DATA_PARALLEL:
        each, more = divmod(tables.workload.batch_size, topology.num_devices)  # the first devices have one more
        samples = device * each + min(device, more), each + (device < more)
    elif kind == TABLE_ROW_WISE:
        hosts = topology.num_devices, devices_of_hosts(topology)
    chosen = tables.select(table)
    if (chosen.embedding_dim != num_columns).any():
        chosen = chosen.with_dims(num_columns)
    if len(tables.workloads) > 1:
        chosen = replace(chosen, workload=tables.workloads[tables.group[table[0]]])
    return Part(kind, chosen, tuple(first_row.tolist()), tuple(num_rows.tolist()), samples, hosts)


def widths_of(parts: Sequence[Parts], topology: Topology) -> Widths:
    """What the devices exchange."""
    outputs, blocks, of_hosts = (
        tuple(sum(part.width for part in own if part.kind == kind) for own in parts)
        for kind in (COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE)
    )
    return Widths(outputs, blocks[0], of_hosts[:: devices_of_hosts(topology)] if any(of_hosts) else ())


def contents_of(parts: Sequence[Part]) -> Any:
    """All that decides the forward and the backward of a device; of whole tables and columns, the tables alone."""
    if not parts:
        return None
    return parts[0].to_key() if [part.kind for part in parts] == [COLUMN_WISE] else [part.to_key() for part in parts]


def exchange_of(parts: Sequence[Parts], widths: Widths, batch_size: int) -> Any:
    """All that decides the exchange: the widths of an all-to-all, sorted, and what there is besides."""
    outputs = widths.outputs if widths.host_partial else sorted(widths.outputs)
    # Gradients of replicas have the dtype of the weights.
    cells = [[_cells(part), part.tables.workload.weight_dtype] for part in parts[0] if part.kind == DATA_PARALLEL]
    more = [widths.partial, widths.host_partial, cells] if widths.partial or widths.host_partial or cells else []
    return [outputs, batch_size, *more]


def _cells(part: Part) -> int:
    return int((part.tables.num_embeddings * part.tables.embedding_dim).sum())
