"""What placements cost when each device in turn gets one more table: the step of greedy placing."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.hardware import Cluster


class OneMore(Protocol):
    """M placements on D devices, which get one table after another."""

    def costs(self, loads: FloatArray) -> FloatArray:
        """(M, D) ms of iterations in which each device has one more table, with (M, K) `loads`."""

    def place(self, devices: NDArray[np.int64]) -> None:
        """The table that `costs` was last asked for is put on (M,) `devices`."""


class Formulas(Protocol):
    """What is needed of an `AdditiveCostModel`."""

    shared_loads: slice

    def add(self, device_loads: FloatArray, table_loads: FloatArray) -> FloatArray:
        """See `AdditiveCostModel`, as for the others."""

    def device_phases(self, loads: FloatArray) -> FloatArray:
        """Of devices."""

    def fill_communication(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> None:
        """Of all devices."""

    def iteration_cost(self, phases: FloatArray, shared: FloatArray, cluster: Cluster) -> FloatArray:
        """Of all devices."""


class OneMoreOnAll(OneMore):
    """`OneMore` by the formulas of any model: all devices are costed again.

    Args:
        model: its formulas.
        cluster: the topology, without a leading shape.
        device_loads: (M, D, K) loads of the devices before the first table.
    """

    def __init__(self, model: Formulas, cluster: Cluster, device_loads: FloatArray) -> None:
        self.model, self.cluster = model, cluster
        self.each = np.arange(len(device_loads))
        self._held = self._new = device_loads.copy()
        self._own = model.device_phases(self._held)
        self._source, self._target = np.divmod(np.arange(device_loads.shape[0] * device_loads.shape[1]), self._devices)

    @property
    def _devices(self) -> int:
        return int(self._held.shape[1])

    @override
    def costs(self, loads: FloatArray) -> FloatArray:
        model, changed = self.model, (np.arange(len(self._source)), self._target)
        self._new = model.add(self._held, loads[:, None])
        new = self._new.reshape(len(self._source), -1)
        phases, shared = self._own[self._source], self._held[self._source][..., model.shared_loads]
        phases[changed], shared[changed] = model.device_phases(new), new[:, model.shared_loads]
        model.fill_communication(phases, shared, self.cluster)
        return model.iteration_cost(phases, shared, self.cluster).reshape(-1, self._devices)

    @override
    def place(self, devices: NDArray[np.int64]) -> None:
        self._held[self.each, devices] = self._new[self.each, devices]
        self._own[self.each, devices] = self.model.device_phases(self._held[self.each, devices])


def largest_of_others(values: FloatArray) -> FloatArray:
    """(..., n) the largest of the others in each row of `values`; -inf in a row of one."""
    if values.shape[-1] == 1:
        return np.full(values.shape, -np.inf)
    second, first = np.moveaxis(np.partition(values, -2, axis=-1)[..., -2:], -1, 0)[..., None]
    return np.asarray(np.where(values == first, second, first))
