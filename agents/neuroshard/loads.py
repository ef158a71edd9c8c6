"""Shards on devices to measure in training: as the paper draws them, more varied random ones, and those of a plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.splits import SplitTables
from shard_gym.agents.training.random_loads import random_load
from shard_gym.cost_models import CostEstimate, ShardingCostModel
from shard_gym.cost_models.base import IntArray
from shard_gym.cost_models.data.dataset import concatenate_tables
from shard_gym.cost_models.neural.base import NeuralCostModel
from shard_gym.errors import InvalidOptionError
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE
from shard_gym.sharding.statistics import shard_tables
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.text import counted
from shard_gym.topology import Topology

PAPER_DIMS = (4, 8, 16, 32, 64, 128)
MAX_ON_ONE, ON_ALL = 15, (10, 60)
"""The paper's numbers of tables of a load: at most on one device, and from and to before on all devices."""

MAX_DRAWS = 10_000  # draws of a load as the paper draws it, at most, until one fits the memory

WIDEST = (8, 16, 32, 64, 128)
"""Limits of the width of all parts of a random load; a good plan often has one, and all its devices run faster."""

MAX_SPREAD = 5
"""Tables of a random load that are spread over all its devices at most, in half of the loads; busy ones rather."""

SHARE_REPLICATED = 0.7  # the share of the small ones among them that is data-parallel; the others are row-wise


class Shards(NamedTuple):
    """S shards of one sharding type, as `shard_tables` describes them, and the (S,) device of each."""

    sharding_type: str
    tables: Tables
    devices: IntArray


@dataclass(frozen=True, eq=False)
class ShardLoad:
    """Shards on the devices of a topology; they need not make whole tables."""

    topology: Topology
    shards: tuple[Shards, ...]

    @property
    def devices(self) -> IntArray:
        """(S,) int64, the device of each shard."""
        return np.concatenate([each.devices for each in self.shards])

    def inputs(self, network: type[NeuralCostModel]) -> NDArray[np.float32]:
        """(S, F) float32, what `network` reads of each shard."""
        return np.concatenate([network.describe_shards(each.tables, each.sharding_type) for each in self.shards])

    def estimate(self, model: ShardingCostModel) -> CostEstimate:
        """The cost under `model`."""
        loads = [model.shard_loads(each.tables, each.sharding_type, self.topology) for each in self.shards]
        on_devices = model.reduce(np.concatenate(loads), self.devices, self.topology.num_devices)
        phases, cost = model.costs(on_devices, self.topology.cluster())
        return CostEstimate(phases, float(cost))


def load_of(split: SplitTables) -> ShardLoad:
    """The shards of a plan."""
    task = split.options.task
    widths = task.tables.embedding_dim[split.table] >> split.level
    shards = []
    if len(split.table):
        parts = task.tables.select(split.table).with_dims(widths)
        shards.append(Shards(COLUMN_WISE, parts, split.device))
    for number, spread in enumerate(split.options.spreads):
        tables = np.flatnonzero(split.spread == number)
        if len(tables):
            chosen = task.tables.select(tables)
            shards.append(_on_each(chosen, spread.sharding_type, task.topology, spread.devices))
    return ShardLoad(task.topology, tuple(shards))


def random_shards(
    suite: TaskSuite, max_halvings: int, sharding_types: Collection[str], rng: np.random.Generator
) -> ShardLoad:
    """Random parts of tables of the training tasks, unevenly placed, and in half of the loads spread tables.

    Tables are spread by those of row_wise and data_parallel that are among the `sharding_types`.
    """
    ways = [kind for kind in (ROW_WISE, DATA_PARALLEL) if kind in sharding_types]
    tables, topology, placement = random_load(suite, rng)
    spread = np.zeros(len(tables), np.bool_)
    if ways and rng.random() < 0.5:
        weights = np.maximum(tables.lookups_per_batch, 1.0) ** rng.random()
        most = min(MAX_SPREAD, len(tables))
        spread[rng.choice(len(tables), rng.integers(1, most + 1), replace=False, p=weights / weights.sum())] = True
    shards = []
    parts = np.flatnonzero(~spread)
    if len(parts):
        halved = _halved(tables.select(parts), max_halvings, rng)
        shards.append(Shards(COLUMN_WISE, halved, placement[parts]))
    small = tables.memory_bytes * (10 * spread.sum()) <= topology.memory_cap_bytes.min()
    replicated = small & (rng.random(len(tables)) < SHARE_REPLICATED)
    kinds = np.where(replicated, ways[-1], ways[0]) if ways else None
    for kind in ways:
        chosen = np.flatnonzero(spread & (kinds == kind))
        if len(chosen):
            shards.append(_on_each(tables.select(chosen), kind, topology, np.arange(topology.num_devices)))
    return ShardLoad(topology, tuple(shards))


def paper_load(suite: TaskSuite, one_device: bool, rng: np.random.Generator) -> ShardLoad:
    """Tables drawn with replacement from the training tasks, with random dims, placed as the paper places them.

    On one device: up to 15 tables, drawn again until they fit it. On all: 10 to 59 tables, by descending dim; each goes
    to a random device with a probability that is drawn once, else to the one with the fewest columns so far.
    """
    pool = concatenate_tables([suite.sample(rng).tables for _ in range(2)])
    topology = suite.sample(rng).topology
    dims = np.array([dim for dim in PAPER_DIMS if dim <= pool.embedding_dim.max()] or pool.embedding_dim[:1])
    devices = 1 if one_device else topology.num_devices
    whole_memory = np.full(devices, topology.device.memory_bytes, np.int64)
    topology = replace(topology, num_devices=devices, memory_cap_bytes=whole_memory)
    for _ in range(MAX_DRAWS):
        count = int(rng.integers(1, MAX_ON_ONE + 1) if one_device else rng.integers(*ON_ALL))
        tables = pool.select(rng.integers(len(pool), size=count)).with_dims(np.sort(rng.choice(dims, count))[::-1])
        placement = np.zeros(count, np.int64)
        if not one_device:
            at_random, columns = rng.random(count) < rng.random(), np.zeros(devices)
            for table, width in enumerate(tables.embedding_dim):
                placement[table] = rng.integers(devices) if at_random[table] else columns.argmin()
                columns[placement[table]] += width
        held = np.bincount(placement, tables.memory_bytes, devices)
        if (held <= whole_memory).all():
            return ShardLoad(topology, (Shards(COLUMN_WISE, tables, placement),))
    raise InvalidOptionError(
        f"{MAX_DRAWS:,} random loads of tables of {suite.name!r} did not fit {counted(devices, 'device')}. Train with "
        "the preset 'search', which draws loads that fit."
    )


def _on_each(tables: Tables, sharding_type: str, topology: Topology, devices: IntArray) -> Shards:
    """One shard of each table on each of `devices`."""
    shards = shard_tables(tables, sharding_type, topology)
    rows = np.tile(np.arange(len(tables)), len(devices))
    return Shards(sharding_type, shards.select(rows), np.repeat(devices, len(tables)))


def _halved(tables: Tables, max_halvings: int, rng: np.random.Generator) -> Tables:
    """Parts of `tables`: whole in a third of the loads, halved at random, or until none is wider than a limit."""
    dims = tables.embedding_dim
    possible = np.array([(dim & -dim).bit_length() - 3 for dim in dims.tolist()])  # halves stay multiples of 4
    possible = np.clip(possible, 0, max_halvings)
    draw = rng.random()
    if draw < 1 / 3:
        return tables
    if draw < 2 / 3:
        return tables.with_dims(dims >> rng.integers(0, possible + 1))
    limit = int(rng.choice(WIDEST))
    needed = np.ceil(np.log2(np.maximum(dims / limit, 1.0))).astype(np.int64)
    return tables.with_dims(dims >> np.minimum(needed, possible))
