"""Explanation of a sharding plan: each device's phases, memory and shards, what splits and moves of shards gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.sharding import ShardingCostModel
from shard_gym.explain import Move, best_moves_of, critical_devices
from shard_gym.sharding import SHARDING_TYPES, ShardingPlan, check_plan, plan_memory_used
from shard_gym.sharding.plan import COLUMN_WISE, TABLE_WISE
from shard_gym.tables import Tables
from shard_gym.topology import Topology


@dataclass(frozen=True)
class Split:
    """A table with more than one shard.

    Attributes:
        table: index of the table.
        gain_ms: cost with the table whole on the best device where it fits, less the cost now; negative if the split
            makes the plan worse. None if the whole table fits nowhere.
        device: that device; None if there is none.
    """

    table: int
    gain_ms: float | None
    device: int | None


@dataclass(frozen=True, eq=False)
class PlanExplanation:
    """The costs of a plan of S shards of T tables on D devices.

    Attributes:
        tables: the T tables.
        topology: the D devices.
        plan: the plan.
        cost_model: fingerprint of the model that costed it.
        phases_ms: (D, 4) float64, ms each device takes in each phase (`shard_gym.cost_models.PHASES`).
        total_ms: its cost.
        sent_bytes: for each collective, by name, (D, 2) float64: bytes that each device sends inside its host, and to
            other hosts, in the forward; those of all-reduces in the backward.
        shards: (S, 6) int64, see `ShardingPlan.shard_arrays`.
        single_shard_ms: (S,) float64, cost of each shard alone on a device.
        splits: each split table and what its split gains; the largest gain first, then those that fit nowhere whole.
        moves: for each shard of whole and column-wise tables on a critical device that fits elsewhere, its best move;
            the largest gain first. `Move.table` is the number of the shard.
    """

    tables: Tables
    topology: Topology
    plan: ShardingPlan
    cost_model: str
    phases_ms: FloatArray
    total_ms: float
    sent_bytes: dict[str, FloatArray]
    shards: NDArray[np.int64]
    single_shard_ms: FloatArray
    splits: tuple[Split, ...]
    moves: tuple[Move, ...]

    @property
    def critical(self) -> NDArray[np.bool_]:
        """(D, 4) bool, the devices each phase waits for; none for a phase that takes no time."""
        return critical_devices(self.phases_ms)

    @property
    def memory_used(self) -> NDArray[np.int64]:
        """(D,) int64, bytes of the shards on each device."""
        return plan_memory_used(self.plan, self.tables, self.topology.num_devices)

    @property
    def shards_per_device(self) -> NDArray[np.int64]:
        """(D,) int64, shards on each device."""
        return np.bincount(self.shards[:, 1], minlength=self.topology.num_devices).astype(np.int64)

    def shards_on(self, device: int) -> NDArray[np.int64]:
        """Numbers (int64) of the shards on `device`, the costliest first."""
        shards = np.flatnonzero(self.shards[:, 1] == device)
        return shards[np.argsort(-self.single_shard_ms[shards], kind="stable")]


def explain_plan(
    plan: ShardingPlan, tables: Tables, topology: Topology, model: str | ShardingCostModel = "analytical"
) -> PlanExplanation:
    """Explain `plan` under `model`, or the model of that name.

    Raises:
        UnknownNameError, InvalidOptionError: there is no such model, or it does not estimate sharded tables.
        InvalidPlanError: the plan is not valid (see `check_plan`).
        MemoryExceededError: a device is over its memory cap.
    """
    model = make_sharding_cost_model(model)
    checked = check_plan(plan, tables, topology)
    loads, shards = model.each_shard(checked, tables, topology)
    devices = shards[:, 1]
    device_loads = model.reduce(loads, devices, topology.num_devices)
    phases, cost = model.costs(device_loads, topology.cluster())
    workload = tables.workload
    memory = shards[:, 3] * (shards[:, 5] * workload.weight_bytes + workload.optimizer_bytes_per_row)
    types = np.array([SHARDING_TYPES.index(sharding.sharding_type) for sharding in checked.tables])
    free_to_move = [SHARDING_TYPES.index(name) for name in (TABLE_WISE, COLUMN_WISE)]
    return PlanExplanation(
        tables=tables,
        topology=topology,
        plan=checked,
        cost_model=model.fingerprint,
        phases_ms=phases,
        total_ms=float(cost),
        sent_bytes=model.sent_bytes(device_loads, topology.cluster()),
        shards=shards,
        single_shard_ms=model.single_table_costs(loads, topology),
        splits=_splits(checked, tables, topology, model, loads, shards, memory, float(cost)),
        moves=best_moves_of(loads, devices, memory, topology, model, np.isin(types[shards[:, 0]], free_to_move)),
    )


def _splits(
    plan: ShardingPlan,
    tables: Tables,
    topology: Topology,
    model: ShardingCostModel,
    loads: FloatArray,
    shards: NDArray[np.int64],
    memory: NDArray[np.int64],
    cost_ms: float,
) -> tuple[Split, ...]:
    """Each split table, taken off all devices and put whole on each of them."""
    count, found = topology.num_devices, []
    split = plan.split_tables
    whole = model.table_loads(tables.select(split), topology) if split else np.empty((0, model.num_loads))
    for table, its_loads in zip(split, whole, strict=True):
        others = shards[:, 0] != table
        used = np.zeros(count, np.int64)
        np.add.at(used, shards[others, 1], memory[others])
        fits = np.flatnonzero(used + tables.memory_bytes[table] <= topology.memory_cap_bytes)
        if not fits.size:
            found.append(Split(table, None, None))
            continue
        rest = model.reduce(loads[others], shards[others, 1], count)
        tried = np.repeat(rest[None], fits.size, axis=0)
        tried[np.arange(fits.size), fits] = model.add(rest[fits], its_loads)
        costs = model.costs(tried, topology.cluster())[1]
        best = int(costs.argmin())
        found.append(Split(table, float(costs[best]) - cost_ms, int(fits[best])))
    return tuple(sorted(found, key=lambda one: -np.inf if one.gain_ms is None else one.gain_ms, reverse=True))
