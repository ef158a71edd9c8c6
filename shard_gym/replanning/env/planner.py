"""Greedy placements of many windows at once, and their costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.hardware import Topology

NO_PLACEMENT = -1  # all devices of a window in which a part found no room
MAX_NUMBERS = 2**22  # numbers in the largest array at once
ROUNDING = 1e-12  # relative difference of loads that are equal but for rounding


@dataclass(frozen=True, eq=False)
class Planner:
    """Places P parts of tables on D devices in each of M windows, which differ in the loads of the parts."""

    model: AdditiveCostModel
    topology: Topology

    def greedy(self, loads: FloatArray, everywhere: FloatArray, bytes_of: IntArray, free: IntArray) -> IntArray:
        """(M, P) int64 devices; `NO_PLACEMENT` in all of a row if a part found no room.

        The part comes first that is the costliest alone (DreamShard, section 3.2), and each goes where the cost grows
        least. How many windows are placed at once changes nothing. Arguments are (M, P, K) loads of the parts, (M, K)
        loads that every device has besides, (M, P) bytes of the parts, and (M, D) bytes free for them; the bytes may be
        (P,) and (D,), the same in all windows.
        """
        bytes_of, free = np.broadcast_to(bytes_of, loads.shape[:2]), np.broadcast_to(free, (len(loads), free.shape[-1]))
        at_once = max(1, MAX_NUMBERS // (loads.shape[2] * self.topology.num_devices**2))
        firsts = range(0, len(loads), at_once)
        chunks = [slice(first, first + at_once) for first in firsts]
        return np.concatenate(
            [self._greedy(loads[some], everywhere[some], bytes_of[some], free[some]) for some in chunks]
        )

    def _greedy(self, loads: FloatArray, everywhere: FloatArray, bytes_of: IntArray, free: IntArray) -> IntArray:
        model, devices = self.model, self.topology.num_devices
        windows, parts, columns = loads.shape
        each = np.arange(windows)
        alone = model.single_table_costs(loads.reshape(-1, columns), self.topology).reshape(windows, parts)
        placement, found = np.zeros((windows, parts), np.int64), np.ones(windows, np.bool_)
        left = free.copy()
        placed = model.one_more(self.topology.cluster(), np.repeat(everywhere[:, None], devices, axis=1))
        for part in np.argsort(-alone, axis=1, kind="stable").T:
            needed = bytes_of[each, part]
            costs = np.where(left < needed[:, None], np.inf, placed.costs(loads[each, part]))
            device = costs.argmin(axis=1)
            found &= np.isfinite(costs[each, device])
            placement[each, part] = device
            placed.place(device)
            left[each, device] -= needed
        placement[~found] = NO_PLACEMENT
        return placement

    def device_loads(self, loads: FloatArray, everywhere: FloatArray, placements: IntArray) -> FloatArray:
        """(..., D, K) loads of the devices with (..., P, K) loads of the parts and (..., K) on every device; they
        broadcast.
        """
        split, devices = self.model.num_sum_loads, np.arange(self.topology.num_devices)
        on = (placements[..., None] == devices).astype(np.float64)
        sums = np.matmul(on.swapaxes(-1, -2), loads[..., :split])
        here = np.ascontiguousarray(on.swapaxes(-1, -2))  # parts are the last axis: so maxima take least time
        maxima = np.stack(
            [(here * loads[..., None, :, column]).max(axis=-1) for column in range(split, loads.shape[-1])], axis=-1
        )
        return self.model.add(np.concatenate([sums, maxima], axis=-1), everywhere[..., None, :])

    def costs(self, loads: FloatArray, everywhere: FloatArray, placements: IntArray) -> FloatArray:
        """(...) ms of (..., P) placements; the arguments are those of `device_loads`."""
        return self.model.costs(self.device_loads(loads, everywhere, placements), self.topology.cluster())[1]

    def many_costs(self, loads: FloatArray, everywhere: FloatArray, placements: IntArray) -> FloatArray:
        """(n, M) ms of (n, P) placements with each of (M, P, K) loads: `costs` of all pairs, by one matrix product."""
        split, devices = self.model.num_sum_loads, self.topology.num_devices
        windows, parts, columns = loads.shape
        on = placements[:, None] == np.arange(devices)[:, None]  # (n, D, P)
        flat = loads[..., :split].transpose(1, 0, 2).reshape(parts, windows * split)
        sums = (on.reshape(-1, parts).astype(np.float64) @ flat).reshape(len(placements), devices, windows, split)
        held = np.zeros((len(placements), windows, devices, columns))
        held[..., :split] = sums.swapaxes(1, 2)
        for column in range(split, columns):
            each, most = loads[..., column], held[..., column]
            if np.ptp(each, axis=0).max() <= ROUNDING * np.abs(each).max():  # as where it depends on the width alone
                most[...] = np.where(on, each[0], 0.0).max(axis=-1)[:, None]
                continue
            for part in range(parts):
                np.maximum(most, on[:, None, :, part] * each[:, part, None], out=most)
        return self.model.costs(self.model.add(held, everywhere[:, None]), self.topology.cluster())[1]
