"""The linear problem of SurCo: the assignment of tables to devices of the least linear cost, within their memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.tasks import Task

SECONDS = 5.0
"""Limit of the solver for one problem; the best assignment it found until then counts."""

UNITS = 100_000
"""The integer program counts memory in parts of the largest device; a table's is rounded up."""


def assign(costs: FloatArray, task: Task) -> Placement:
    """The placement of `task` with the least sum of the (T, D) `costs` of its tables on their devices.

    Where each table can have the device that costs it least, that is the answer; otherwise HiGHS solves the integer
    program.

    Raises:
        NoPlacementFoundError: HiGHS found none.
    """
    cheapest = np.asarray(costs.argmin(axis=1), np.int64)
    needed, caps = task.tables.memory_bytes, task.topology.memory_cap_bytes
    if (np.bincount(cheapest, needed, task.num_devices) <= caps).all():
        return cheapest
    unit = caps.max() / UNITS
    return _solved(costs, np.ceil(needed / unit), np.floor(caps / unit), task.name)


def _solved(costs: FloatArray, needed: FloatArray, caps: FloatArray, name: str) -> Placement:
    """The same with HiGHS; `needed` and `caps` are whole numbers, so they are exact to it."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    tables, devices = costs.shape
    variable = np.arange(tables * devices)  # table t on device d is t * D + d
    once = csr_array((np.ones(len(variable)), (variable // devices, variable)))
    memory = csr_array((np.repeat(needed, devices), (variable % devices, variable)))
    found = milp(
        costs.reshape(-1),
        integrality=np.ones(len(variable)),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(memory, -np.inf, caps)],
        options={"time_limit": SECONDS},
    )
    if found.x is None:
        raise NoPlacementFoundError(f"HiGHS found no assignment of the tables of {name!r} to devices: {found.message}")
    placement: NDArray[np.int64] = found.x.reshape(tables, devices).argmax(axis=1)
    return placement
