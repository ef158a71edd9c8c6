"""Costing many variants of one placement at once: each changes a device or two, and only those are costed anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.topology import Cluster

Change = tuple[NDArray[np.int64], FloatArray]
"""For M variants: (M,) a device each, and (M, K) the loads it has there."""


class Candidates:
    """A placement whose variants are to be costed.

    Args:
        model: the cost model.
        cluster: the topology.
        device_loads: (D, K) float64, the placement's loads.
    """

    def __init__(self, model: AdditiveCostModel, cluster: Cluster, device_loads: FloatArray) -> None:
        self._model = model
        self._cluster = cluster
        self._own_phases = model.device_phases(device_loads)
        self._shared = device_loads[:, model.shared_loads]

    def costs(self, *changes: Change) -> tuple[FloatArray, FloatArray]:
        """The (M, D, 4) phases and the (M,) iteration costs, ms, of the variants with all of `changes` made."""
        model = self._model
        phases = _varied(self._own_phases, [(device, model.device_phases(loads)) for device, loads in changes])
        shared = _varied(self._shared, [(device, loads[:, model.shared_loads]) for device, loads in changes])
        model.fill_communication(phases, shared, self._cluster)
        return phases, model.iteration_cost(phases, shared, self._cluster)


def _varied(current: FloatArray, changes: list[Change]) -> FloatArray:
    """(M, D, X) copies of the (D, X) `current` with the changes made; they lie in memory device after device."""
    each = np.arange(len(changes[0][0]))
    copies = np.repeat(current[:, None], len(each), axis=1)
    for device, values in changes:
        copies[device, each] = values
    return copies.swapaxes(0, 1)
