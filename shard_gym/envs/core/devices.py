"""What the devices of N episodes hold and what it costs, and the functions that change it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.envs.core.problem import TableRows
from shard_gym.hardware import Cluster

State = TypeVar("State", bound="DeviceState")

AT_ONCE = 768
"""Rows with the loads of host memory that are added at once: they fit in the cache of a core, which takes a quarter
less time at N=4096."""


@dataclass
class DeviceState:
    """The devices of N episodes, as arrays."""

    by_device: ClassVar[tuple[str, ...]] = ("device_loads", "memory_used", "phases_ms", "hbm_curves")
    """The (N, D, ...) arrays. They have the memory layout of `problem.by_device`, which `flat` relies on."""

    device_loads: FloatArray  # (N, D, K) float64, loads of the cost model
    memory_used: IntArray  # (N, D) int64, bytes
    phases_ms: FloatArray  # (N, D, 4) float64, ms of each phase with what the devices hold
    cost_ms: FloatArray  # (N,) float64, its cost
    hbm_curves: FloatArray  # (N, D, C) float64, sums of `TableRows.hbm_curves`; C is 0 without host memory

    def __post_init__(self) -> None:
        self._lay_by_device()

    def __setstate__(self, arrays: dict[str, Any]) -> None:
        self.__dict__.update(arrays)
        self._lay_by_device()  # pickling does not keep the memory layout of an array

    def _lay_by_device(self) -> None:
        for name in self.by_device:
            array = getattr(self, name)
            setattr(self, name, np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1))

    def put(self: State, env: int, state: State) -> None:
        """Set the state of environment `env` to `state` (N = 1)."""
        for f in fields(self):
            getattr(self, f.name)[env] = getattr(state, f.name)[0]

    def require_same_shapes(self, other: DeviceState) -> None:
        """Raise InvalidOptionError unless one environment of `other` can be put here."""
        for f in fields(self):
            own, given = getattr(self, f.name).shape[1:], np.shape(getattr(other, f.name, ()))[1:]
            if given != own:
                raise InvalidOptionError(
                    f"The snapshot's {f.name} has shape {given}, but this environment's has {own}: it was taken from "
                    "one with another padding or cost model. Make both with the same arguments."
                )

    def copy(self: State) -> State:
        """A copy that shares no memory with this one."""
        return type(self)(**{f.name: getattr(self, f.name).copy(order="K") for f in fields(self)})


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """An (N, D, ...) array made by `by_device` as (D * N, ...) rows: environment i on device d is row d * N + i; a
    view.
    """
    return array.swapaxes(0, 1).reshape(-1, *array.shape[2:])


def merged(array: NDArray[Any]) -> NDArray[Any]:
    """An (S, R, n) array of tables as (S * R, n); a view."""
    return array.reshape(-1, array.shape[-1])


def add(
    state: DeviceState, rows: NDArray[np.integer[Any]], tables: TableRows, parts: IntArray, model: AdditiveCostModel
) -> None:
    """Add a table or a part of one to M different `rows` of `flat` arrays, in place.

    The (M,) `parts` are rows of the arrays of `tables` with axes S and R merged.
    """
    flat(state.memory_used)[rows] += tables.memory.reshape(-1).take(parts)
    at_once = len(rows)
    if state.hbm_curves.size:
        flat(state.hbm_curves)[rows] += merged(tables.hbm_curves).take(parts, axis=0)
        at_once = AT_ONCE
    of_devices, of_tables, phases = flat(state.device_loads), merged(tables.loads), flat(state.phases_ms)
    for first in range(0, len(rows), max(at_once, 1)):
        some = rows[first : first + at_once]
        joined = model.add(of_devices.take(some, axis=0), of_tables.take(parts[first : first + at_once], axis=0))
        of_devices[some] = joined
        phases[some] = model.device_phases(joined)


def update_costs(state: DeviceState, cluster: Cluster, model: AdditiveCostModel) -> None:
    """Compute the communication and the costs of all N episodes, in place."""
    shared = state.device_loads[..., model.shared_loads]
    model.fill_communication(state.phases_ms, shared, cluster)
    state.cost_ms[:] = model.iteration_cost(state.phases_ms, shared, cluster)
