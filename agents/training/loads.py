"""Loads to measure in training: shards on devices, of random tables or of a plan that an agent proposes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.splits import SplitTables
from shard_gym.common.arrays import IntArray
from shard_gym.cost_models import AdditiveCostModel, CostEstimate
from shard_gym.cost_models.fitting import CostDataset
from shard_gym.cost_models.fitting.data.dataset import concatenate_tables
from shard_gym.cost_models.fitting.data.random_plans import (
    drawn_spread,
    halved,
    random_plan,
    spread_types,
    spreading,
)
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.cost_models.neural.host import host_megabytes
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import (
    COLUMN_WISE,
    DATA_PARALLEL,
    ROW_WISE,
    TABLE_ROW_WISE,
    TABLE_WISE,
    Groups,
    devices_of_hosts,
)
from shard_gym.plans.statistics import shard_tables
from shard_gym.tables import STATE_BYTES, Tables
from shard_gym.tasks import Task, TaskSuite
from shard_gym.tasks.groups import possible_groups, task_of_group

MANY_SPREAD = 0.5  # share of random loads with spread tables that have any number of them, up to all
MOST_SHARDS = 4_096  # of spread tables in a random load

FEWEST, MOST = 0.2, 2.0  # limits of the number of tables of a random load, in multiples of those of a task


class PlacedShards(NamedTuple):
    """S shards of one sharding type, as `shard_tables` describes them, and the (S,) device of each."""

    sharding_type: str
    tables: Tables
    devices: IntArray


@dataclass(frozen=True, eq=False)
class ShardLoad:
    """Shards on the devices of a topology; they need not make whole tables."""

    topology: Topology
    shards: tuple[PlacedShards, ...]
    plan: tuple[Tables, ShardingPlan] | None = None  # the whole tables and their plan, if they are those of one

    @property
    def placement(self) -> tuple[Tables, Topology, Placement] | None:
        """The tables, the topology and the device of each table, if no table is split."""
        only = self.shards[0]
        whole = len(self.shards) == 1 and only.sharding_type == TABLE_WISE
        return (only.tables, self.topology, only.devices) if whole else None

    @property
    def devices(self) -> IntArray:
        """(S,) int64, the device of each shard."""
        return np.concatenate([each.devices for each in self.shards])

    def inputs(self, network: type[NeuralCostModel], has_groups: bool = False) -> NDArray[np.float32]:
        """(S, F) float32, what `network` reads of each shard; see `NeuralCostModel.all_inputs`."""
        parts = [network.all_inputs(each.tables, each.sharding_type, has_groups) for each in self.shards]
        return np.concatenate(parts)

    def host_megabytes(self) -> NDArray[np.float64]:
        """(S, 2 + G) float64, what each shard has in host memory; (S, 0) if there is none."""
        parts = [host_megabytes(each.tables, each.sharding_type, self.topology) for each in self.shards]
        return np.concatenate(parts)

    def estimate(self, model: AdditiveCostModel) -> CostEstimate:
        """The cost under `model`."""
        loads = [model.loads(each.tables, self.topology, each.sharding_type) for each in self.shards]
        on_devices = model.reduce(np.concatenate(loads), self.devices, self.topology.num_devices)
        phases, cost = model.costs(on_devices, self.topology.cluster())
        return CostEstimate(phases, float(cost))


def whole_tables(tables: Tables, topology: Topology, placement: Placement) -> ShardLoad:
    """The load of a placement."""
    return ShardLoad(topology, (PlacedShards(TABLE_WISE, tables, placement),))


def loads_of_data(data: CostDataset) -> list[tuple[ShardLoad, CostEstimate]]:
    """The placements of a data set with their costs."""
    found = []
    for p, cost in enumerate(data.cost_ms.tolist()):
        topology = data.topologies[data.topology[p]]
        estimate = CostEstimate(data.phases_ms[p, : topology.num_devices].copy(), cost)
        one = data.take([p])
        shards = [
            PlacedShards(each.sharding_type, each.tables.select(each.which), one.devices[each.rows])
            for each in one.shards()
        ]
        found.append((ShardLoad(topology, tuple(shards)), estimate))
    return found


def load_of(split: SplitTables) -> ShardLoad:
    """The shards of a plan."""
    task = split.options.task
    if (split.level == 0).all() and len(split.table) == task.num_tables:
        placement = np.empty(task.num_tables, np.int64)
        placement[split.table] = split.device
        return whole_tables(task.tables, task.topology, placement)
    shards = []
    if len(split.table):
        parts = task.tables.select(split.table).with_dims(split.widths)
        shards.append(PlacedShards(COLUMN_WISE, parts, split.device))
    for number, spread in enumerate(split.options.spreads):
        tables = np.flatnonzero(split.spread == number)
        if len(tables):
            chosen = task.tables.select(tables)
            shards.append(_on_each(chosen, spread.sharding_type, task.topology, spread.devices))
    return ShardLoad(task.topology, tuple(shards))


def task_to_learn(suite: TaskSuite, rng: np.random.Generator) -> Task:
    """One of the tasks of the suite; where plans may have groups of devices, that of a group of one of the possible
    sizes, without the averaging of its replicas, which is no load of a device (`grouped.py`)."""
    task = suite.sample(rng)
    if not task.sync_every:
        return task
    possible = _groups_of(task)
    own = replace(task_of_group(task, possible[rng.integers(len(possible))]), sync_every=0)
    return replace(own, topology=replace(own.topology, replicas=None))


@lru_cache(maxsize=256)
def _groups_of(task: Task) -> tuple[Groups, ...]:
    return tuple(possible_groups(task))


def random_load(suite: TaskSuite, rng: np.random.Generator) -> ShardLoad:
    """Random tables of the training tasks, unevenly placed on some of a task's devices.

    Good placements are all alike: balanced, with as many tables as a task has. A surrogate trained on those alone does
    not learn what makes a device expensive, and a search ends where its estimates are too low. Uneven loads of all
    sizes show the cost of a device by itself.
    """
    task, other = task_to_learn(suite, rng), task_to_learn(suite, rng)
    count = max(1, round(task.num_tables * float(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST))))))
    tables = _some(task.tables, count, rng)
    if count > len(tables) and other.tables.workloads == tables.workloads:
        tables = concatenate_tables([tables, _some(other.tables, count - len(tables), rng)])
    devices = task.num_devices if rng.random() < 0.5 else int(rng.integers(1, task.num_devices + 1))
    topology = with_whole_memory(task.topology, devices)
    shares = rng.dirichlet(np.full(devices, np.exp(rng.uniform(-0.5, 3.0))))
    placement = _random_placement(tables, topology, shares, rng)
    placed = np.flatnonzero(placement >= 0)
    return whole_tables(tables.select(placed), topology, placement[placed])


def with_whole_memory(topology: Topology, devices: int) -> Topology:
    """So many of its devices, each with its whole memory, or with its HBM and all memory of the hosts."""
    most = topology.device.memory_bytes
    if topology.host is not None:
        most = int(topology.memory_cap_bytes.sum()) - (topology.num_devices - 1) * topology.host.hbm_bytes
    return topology.with_caps(np.full(devices, most, np.int64), devices)


def _some(tables: Tables, count: int, rng: np.random.Generator) -> Tables:
    return tables.select(rng.permutation(len(tables))[:count])


def _random_placement(tables: Tables, topology: Topology, shares: np.ndarray, rng: np.random.Generator) -> Placement:
    """(T,) int64, a device for each table, drawn by `shares` from those where it fits; -1 where it fits nowhere."""
    # The states of rows fit the HBM, too, where other rows are in host memory.
    states = STATE_BYTES * np.broadcast_to(tables.workload.state.per_row, len(tables)) * tables.num_embeddings
    of_states = topology.memory_cap_bytes if topology.host is None else topology.host.hbm_bytes
    free = np.stack([topology.memory_cap_bytes, np.broadcast_to(of_states, topology.num_devices)], axis=1)
    log_shares = np.log(np.maximum(shares, 1e-12))
    placement = np.full(len(tables), -1)
    for table, needed in enumerate(np.stack([tables.memory_bytes, states], axis=1)):
        fits = (free >= needed).all(axis=1)
        if fits.any():
            placement[table] = np.where(fits, log_shares + rng.gumbel(size=len(free)), -np.inf).argmax()
            free[placement[table]] -= needed
    return placement


def random_shards(
    suite: TaskSuite, max_halvings: int, sharding_types: Collection[str], rng: np.random.Generator
) -> ShardLoad:
    """Random parts of tables of the training tasks, unevenly placed, and in half of the loads spread tables.

    Tables are spread by those of row_wise, table_row_wise and data_parallel that are among the `sharding_types`.
    """
    drawn = random_load(suite, rng)
    topology, (_, tables, placement) = drawn.topology, drawn.shards[0]
    spread = drawn_spread(tables, sharding_types, rng)
    if spread.any() and rng.random() < MANY_SPREAD:
        most = min(len(tables), MOST_SHARDS // topology.num_devices)
        spread[rng.choice(len(tables), rng.integers(0, most + 1), replace=False)] = True
    shards = []
    parts = np.flatnonzero(~spread)
    if len(parts):
        shards.append(PlacedShards(COLUMN_WISE, halved(tables.select(parts), max_halvings, rng), placement[parts]))
    kinds = spread_types(tables, topology, spread, sharding_types, rng)
    for kind in spreading(sharding_types):
        chosen = np.flatnonzero(spread & (kinds == kind))
        if kind == ROW_WISE and TABLE_ROW_WISE in sharding_types and topology.num_devices > topology.devices_per_host:
            shards += _on_hosts(tables, chosen, topology, rng)
        elif len(chosen):
            shards.append(_on_each(tables.select(chosen), kind, topology, np.arange(topology.num_devices)))
    return ShardLoad(topology, tuple(shards))


def _on_each(tables: Tables, sharding_type: str, topology: Topology, devices: IntArray) -> PlacedShards:
    """One shard of each table on each of `devices`."""
    shards = shard_tables(tables, sharding_type, topology)
    rows = np.tile(np.arange(len(tables)), len(devices))
    return PlacedShards(sharding_type, shards.select(rows), np.repeat(devices, len(tables)))


def _on_hosts(tables: Tables, chosen: IntArray, topology: Topology, rng: np.random.Generator) -> list[PlacedShards]:
    """Of the `chosen` tables each row-wise on all devices, or on those of one host if all have equal hosts."""
    of_host, every = devices_of_hosts(topology), np.arange(topology.num_devices)
    hosts = every.reshape(-1, of_host) if of_host else every[None]
    shards = []
    for table in chosen:
        devices = hosts[rng.integers(len(hosts))] if of_host and rng.random() < 0.5 else every
        kind = TABLE_ROW_WISE if len(devices) < len(every) else ROW_WISE
        shards.append(_on_each(tables.select([table]), kind, topology, devices))
    return shards


def load_of_plan(plan: ShardingPlan, tables: Tables, topology: Topology) -> ShardLoad:
    """The shards of a valid plan, which are measured as that plan."""
    if plan.placement is not None:
        return whole_tables(tables, topology, plan.placement)
    arrays, found = plan.shard_arrays(), []
    types = [sharding.sharding_type for sharding in plan.tables]
    kinds = np.array([COLUMN_WISE if kind == TABLE_WISE else kind for kind in types])[arrays[:, 0]]
    for kind in (COLUMN_WISE, ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL):
        table, device, _, _, _, width = arrays[kinds == kind].T
        if len(table):
            widths = width if kind == COLUMN_WISE else None
            found.append(PlacedShards(kind, shard_tables(tables.select(table), kind, topology, widths), device))
    return ShardLoad(topology, tuple(found), (tables, plan))


def random_plan_load(
    suite: TaskSuite, max_halvings: int, sharding_types: Collection[str], rng: np.random.Generator
) -> ShardLoad:
    """A random plan of random tables of the training tasks: what `random_shards` draws, but all parts of each table."""
    drawn = random_load(suite, rng)
    topology, (_, tables, placement) = drawn.topology, drawn.shards[0]
    plan = random_plan(placement, tables, topology, rng, sharding_types, max_halvings)
    return load_of_plan(plan, tables, topology)
