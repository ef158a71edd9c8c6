"""Loads of plans under an additive cost model that supports splits: those of shards, and of variants."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shard_gym.hardware.topology import Topology
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.plan import COLUMN_WISE, TABLE_ROW_WISE, blocks_of_rows
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import Variants, variants_of, with_all_widths
from shard_gym.tables.tables import Tables

if TYPE_CHECKING:
    from shard_gym.cost_models.base.model import AdditiveCostModel

FloatArray = NDArray[np.float64]


def loads_of_shards(
    model: AdditiveCostModel, plan: ShardingPlan, tables: Tables, topology: Topology
) -> tuple[FloatArray, NDArray[np.int64]]:
    """(S, K) float64 loads of each shard of a checked plan, and the (S, 6) `shard_arrays` of the plan."""
    arrays = plan.shard_arrays()
    kinds = np.array([SHARDING_TYPES.index(sharding.shard_type) for sharding in plan.tables])[arrays[:, 0]]
    wanted = np.column_stack([arrays[:, [0, 5]], blocks_of_rows(arrays)])
    loads = np.empty((len(arrays), model.num_loads_with(topology.host is not None)))
    for kind in np.unique(kinds):
        name, chosen = SHARDING_TYPES[kind], np.flatnonzero(kinds == kind)
        # The shards of a table that differ in their device alone have equal loads, which are computed once.
        different, which = np.unique(wanted[chosen], axis=0, return_inverse=True)
        widths = different[:, 1] if name in (COLUMN_WISE, TABLE_ROW_WISE) else None
        shards = shard_tables(tables.select(different[:, 0]), name, topology, widths, different[:, 2])
        loads[chosen] = model.loads(shards, topology, name)[which.reshape(-1)]
    return loads, arrays


def loads_of_plan(model: AdditiveCostModel, plan: ShardingPlan, tables: Tables, topology: Topology) -> FloatArray:
    """(D, K) float64 loads of the devices under a checked plan."""
    loads, arrays = loads_of_shards(model, plan, tables, topology)
    return model.reduce(loads, arrays[:, 1], topology.num_devices)


def loads_of_variants(model: AdditiveCostModel, variants: Variants, topology: Topology) -> FloatArray:
    """(T, V, K) float64, the loads that one part of each variant adds to a device; also of those not legal."""
    pairs = zip(variants.tables, variants.sharding_types, strict=True)
    return np.stack([model.loads(tables, topology, kind) for tables, kind in pairs], axis=1)


@lru_cache(maxsize=1024)
def bounds_of_plans(model: AdditiveCostModel, tables: Tables, topology: Topology) -> tuple[float, float]:
    """Lower and upper bound in ms on the cost of every valid plan, without a solver."""
    dims = tables.embedding_dim
    variants = variants_of(tables, topology, max_halvings=int(dims.max() // 4).bit_length() - 1)
    if (dims & (dims - 1)).any():  # halves of other dims are not the cheapest and costliest columns
        variants = with_all_widths(variants, topology)
    return model.bounds(loads_of_variants(model, variants, topology), topology, variants)
