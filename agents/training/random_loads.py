"""Random placements of random tables, which the surrogate of `dream-search` is first trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.cost_models.data.dataset import concatenate_tables
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Topology

FEWEST, MOST = 0.2, 2.0  # limits of the number of tables of a random load, in multiples of those of a task


def random_load(suite: TaskSuite, rng: np.random.Generator) -> tuple[Tables, Topology, Placement]:
    """Random tables of the training tasks, unevenly placed on some of a task's devices.

    Good placements are all alike: balanced, with as many tables as a task has. A surrogate trained on those alone does
    not learn what makes a device expensive, and a search ends where its estimates are too low. Uneven loads of all
    sizes show the cost of a device by itself.
    """
    task, other = suite.sample(rng), suite.sample(rng)
    count = max(1, round(task.num_tables * float(np.exp(rng.uniform(np.log(FEWEST), np.log(MOST))))))
    tables = _some(task.tables, count, rng)
    if count > len(tables):
        tables = concatenate_tables([tables, _some(other.tables, count - len(tables), rng)])
    devices = task.num_devices if rng.random() < 0.5 else int(rng.integers(1, task.num_devices + 1))
    whole_memory = np.full(devices, task.topology.device.memory_bytes, np.int64)
    topology = replace(task.topology, num_devices=devices, memory_cap_bytes=whole_memory)
    shares = rng.dirichlet(np.full(devices, np.exp(rng.uniform(-0.5, 3.0))))
    placement = _random_placement(tables, topology, shares, rng)
    placed = np.flatnonzero(placement >= 0)
    return tables.select(placed), topology, placement[placed]


def _some(tables: Tables, count: int, rng: np.random.Generator) -> Tables:
    return tables.select(rng.permutation(len(tables))[:count])


def _random_placement(tables: Tables, topology: Topology, shares: np.ndarray, rng: np.random.Generator) -> Placement:
    """(T,) int64, a device for each table, drawn by `shares` from those where it fits; -1 where it fits nowhere."""
    free = topology.memory_cap_bytes.copy()
    log_shares = np.log(np.maximum(shares, 1e-12))
    placement = np.full(len(tables), -1)
    for table, needed in enumerate(tables.memory_bytes):
        fits = free >= needed
        if fits.any():
            placement[table] = np.where(fits, log_shares + rng.gumbel(size=len(free)), -np.inf).argmax()
            free[placement[table]] -= needed
    return placement
