"""What DreamShard asks the true cost of while it trains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.data.dataset import CostRecorder, concatenate_tables
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.tasks import TaskSuite
from shard_gym.topology import Topology

FEWEST, MOST = 0.2, 2.0
"""Random loads have from a fifth to twice the tables of a task, so that the network need not guess beyond the number of
tables it was trained on."""


def measure(
    recorder: CostRecorder, model: AdditiveCostModel, tables: Tables, topology: Topology, placement: Placement
) -> float:
    """Ask `model` what `placement` (checked) costs and record it; ms."""
    estimate = model.estimate(placement, tables, topology)
    recorder.add(tables, topology, placement, estimate)
    return estimate.total_ms


def random_load(suite: TaskSuite, rng: np.random.Generator) -> tuple[Tables, Topology, Placement]:
    """Random tables of the training tasks, unevenly spread over some of a task's devices.

    Good placements all look alike: balanced, with as many tables as a task has. A network that has seen nothing else
    does not know why they are good, and a search finds the places where it is wrong. Uneven loads of all sizes teach
    what a device costs by itself.
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
    devices_of = _drawn(tables, topology, shares, rng)
    return tables.select(np.flatnonzero(devices_of >= 0)), topology, devices_of[devices_of >= 0]


def _some(tables: Tables, count: int, rng: np.random.Generator) -> Tables:
    """`count` of `tables`, or all if there are fewer."""
    return tables.select(rng.permutation(len(tables))[:count])


def _drawn(tables: Tables, topology: Topology, shares: np.ndarray, rng: np.random.Generator) -> Placement:
    """(T,) int64, a device for each table, drawn by `shares` from those where it fits; -1 where it fits none."""
    free = topology.memory_cap_bytes.copy()
    log_shares = np.log(np.maximum(shares, 1e-12))
    devices = np.full(len(tables), -1)
    for table, needed in enumerate(tables.memory_bytes):
        fits = free >= needed
        if fits.any():
            devices[table] = np.where(fits, log_shares + rng.gumbel(size=len(free)), -np.inf).argmax()
            free[devices[table]] -= needed
    return devices
