"""`OneMore` of the analytical model on one domain: what placing a table changes, without costing all devices again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical.all_to_all import link_ms
from shard_gym.cost_models.base.one_more import OneMore, largest_of_others
from shard_gym.hardware import Cluster

_MOST = 4  # numbers of which the largest of all devices counts: forward and backward ms, outputs, outputs less than 0


class OneMoreInDomain(OneMore):
    """The bits of `OneMoreOnAll`, where tables change nothing but computing and the all-to-all of outputs.

    The slowest device of the all-to-all is that with the most or with the least outputs, because floats round
    monotonically. Other exchanges take all devices equally long.

    Args:
        cluster: the topology, of one domain.
        device_loads: (M, D, K) loads of the devices before the first table.
        num_sum_loads: how many of them are summed; the others are maxima.
        outputs: which of them is the bytes of outputs.
        compute_ms: from (K, ...) loads, (2, ...) ms of forward and backward.
        scatters: (M, 1) ms of the other exchanges of both the forward and the backward, in their order.
        gathers: the same of those in the backward alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        device_loads: FloatArray,
        num_sum_loads: int,
        outputs: int,
        compute_ms: Callable[[FloatArray], FloatArray],
        scatters: Sequence[FloatArray],
        gathers: Sequence[FloatArray],
    ) -> None:
        self._cluster, self._outputs, self._compute_ms = cluster, outputs, compute_ms
        self._scatters, self._gathers = scatters, gathers
        count = device_loads.shape[-1]
        self._maxima = slice(num_sum_loads, count)
        self._begin = np.arange(len(device_loads)) * device_loads.shape[1]
        # Loads, then what the largest counts of: the first axis is that of the columns, and all are contiguous.
        self._state = np.empty((count + _MOST, *device_loads.shape[:2]))
        self._state[:count] = np.moveaxis(device_loads, -1, 0)
        self._fill(self._state)
        self._next = np.empty_like(self._state)

    def _fill(self, state: FloatArray) -> None:
        """Write the `_MOST` columns that follow from the others."""
        most = state[-_MOST:]
        most[:2] = self._compute_ms(state[:-_MOST])
        most[2] = state[self._outputs]
        np.negative(most[2], out=most[3])

    @override
    def costs(self, loads: FloatArray) -> FloatArray:
        cluster, state, new, maxima = self._cluster, self._state, self._next, self._maxima
        columns = loads.T[..., None]
        np.add(state[:-_MOST], columns, out=new[:-_MOST])
        np.maximum(state[maxima], columns[maxima], out=new[maxima])
        self._fill(new)
        forward, backward, most, least = np.maximum(largest_of_others(state[-_MOST:]), new[-_MOST:])
        windows, devices = most.shape
        outputs = np.repeat(state[-2], devices, axis=0)
        outputs.reshape(windows, -1)[:, :: devices + 1] = new[-2]
        total = outputs.sum(axis=-1).reshape(windows, devices)  # in the order of `all_to_all_ms`
        moved = np.maximum(most * cluster.num_peers, total + least)
        bandwidth, knee = cluster.intra_bytes_per_ms * devices, cluster.intra_knee_bytes * devices
        took = np.where(total > 0, link_ms(moved, bandwidth, knee, cluster.intra_knee_extra) + cluster.latency_ms, 0.0)
        took = sum(self._scatters, took)
        back = sum(self._gathers, took)
        return np.asarray(forward + took + back + backward)

    @override
    def place(self, devices: NDArray[np.int64]) -> None:
        where, shape = self._begin + devices, (len(self._state), -1)
        self._state.reshape(shape)[:, where] = self._next.reshape(shape)[:, where]
