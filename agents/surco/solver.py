"""The linear problem of SurCo: the assignment of tables to devices of the least linear cost, within their memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import NoPlacementFoundError
from shard_gym.placement import Placement
from shard_gym.tasks import Task

NODES = 1_000
"""Limit of the solver's tree for one problem; the best assignment it found until then counts. A limit of seconds would
make the answer depend on the machine's load."""

UNITS = 100_000
"""The integer program counts memory in about so many parts of the largest device."""


def assign(costs: FloatArray, task: Task) -> Placement:
    """The placement of `task` with the least sum of the (T, D) `costs` of its tables on their devices.

    Where each table can have the device that costs it least, that is the answer; otherwise HiGHS solves the integer
    program, to within its relative gap of 0.01%.

    Raises:
        NoPlacementFoundError: HiGHS found none.
    """
    cheapest = np.asarray(costs.argmin(axis=1), np.int64)
    needed, caps = task.tables.memory_bytes, task.topology.memory_cap_bytes
    if _fits(cheapest, needed, caps):
        return cheapest
    unit = max(int(caps.max()) // UNITS, 1)
    try:
        return _solved(costs, -(-needed // unit), caps // unit, task.name)
    except NoPlacementFoundError:
        # Rounded up, tables that fill a device to the last byte are too large; rounded down, they may be.
        placement = _solved(costs, needed // unit, caps // unit, task.name)
        if not _fits(placement, needed, caps):
            raise
        return placement


def _fits(placement: Placement, needed: NDArray[np.int64], caps: NDArray[np.int64]) -> bool:
    """Whether no device has more than its memory."""
    used = np.zeros(len(caps), np.int64)
    np.add.at(used, placement, needed)
    return bool((used <= caps).all())


def _solved(costs: FloatArray, needed: NDArray[np.int64], caps: NDArray[np.int64], name: str) -> Placement:
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
        options={"node_limit": NODES},
    )
    if found.x is None:
        raise NoPlacementFoundError(f"HiGHS found no assignment of the tables of {name!r} to devices: {found.message}")
    placement: NDArray[np.int64] = found.x.reshape(tables, devices).argmax(axis=1)
    return placement
