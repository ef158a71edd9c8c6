"""The arithmetic of N environments with nothing around it: what a vector environment cannot be faster than.

One loop over the steps of an episode, all environments in the same NumPy calls: a random legal device for everyone,
the table's loads added, the device's phases, both all-to-alls, the cost, the next mask, a compact observation copied
out. No resets, no infos, no checks, no tasks of different sizes.
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.cost_models.analytical import model as a
from shard_gym.cost_models.base import placement_order
from shard_gym.tasks import TaskSuite


class BareLoop:
    """N environments, all of one size and on one host."""

    def __init__(self, suite: TaskSuite, num_envs: int) -> None:
        model, rng = a.AnalyticalCostModel(), np.random.default_rng(0)
        tasks = list(suite)
        loads = [model.loads(task.tables, task.topology) for task in tasks]
        orders = [placement_order(each, task.topology, model) for each, task in zip(loads, tasks, strict=True)]
        pick = np.arange(num_envs) % len(tasks)
        self.loads = np.stack([each[order] for each, order in zip(loads, orders, strict=True)], axis=1)[:, pick]
        self.memory = np.stack([t.tables.memory_bytes[o] for t, o in zip(tasks, orders, strict=True)], axis=1)[:, pick]
        self.features = np.stack([t.tables.features()[o] for t, o in zip(tasks, orders, strict=True)], axis=1)[:, pick]
        self.cap = np.stack([task.topology.memory_cap_bytes for task in tasks], axis=1)[:, pick]
        self.devices, self.tables = tasks[0].num_devices, tasks[0].num_tables
        links = tasks[0].topology.links
        self.rate = links.intra_host_gb_per_s * 1e6
        self.knee, self.extra = links.intra_host_knee_bytes, links.intra_host_knee_extra
        self.loss = model.constants.overlap_loss
        self.launches = (model.constants.forward_launches, model.constants.backward_launches)
        self.sums = model.num_sum_loads
        self.latency = links.intra_host_latency_us * 1e-3
        self.noise = [rng.random((self.devices, num_envs)) for _ in range(8)]
        self.num_envs = num_envs

    def episode(self) -> int:
        """Run one episode of every environment; the number of steps."""
        n, d = self.num_envs, self.devices
        loads = np.zeros((d * n, self.loads.shape[2]))
        memory = np.zeros(d * n, np.int64)
        phases = np.zeros((d * n, 4))
        fits = np.ones((d, n), np.bool_)
        each = np.arange(n)
        for step in range(self.tables):
            chosen = (self.noise[step % 8] * fits).argmax(axis=0) * n + each
            joined = loads.take(chosen, axis=0)
            joined[:, : self.sums] += self.loads[step, :, : self.sums]
            np.maximum(joined[:, self.sums :], self.loads[step, :, self.sums :], out=joined[:, self.sums :])
            loads[chosen] = joined
            memory[chosen] += self.memory[step]
            share = joined[:, a.LANE_SHARE]
            forward = self.limits(
                joined[:, a.FORWARD_DRAM_MS], joined[:, a.FORWARD_L2_MS], joined[:, a.FORWARD_LANE_MS] * share
            )
            backward = self.limits(
                joined[:, a.BACKWARD_DRAM_MS], joined[:, a.BACKWARD_L2_MS], joined[:, a.BACKWARD_LANE_MS] * share
            )
            phases[chosen, 0] = forward + self.launches[0] * joined[:, a.LAUNCH_MS]
            phases[chosen, 3] = backward + joined[:, a.SORT_MS] + self.launches[1] * joined[:, a.LAUNCH_MS]
            output = loads[:, a.OUTPUT_BYTES_SENT].reshape(d, n)
            moved = np.maximum(output * (d - 1), output.sum(axis=0) - output)
            exchange = (moved + np.minimum(moved, self.knee * d) * self.extra) / (self.rate * d) + self.latency
            phases[:, 1] = phases[:, 2] = exchange.reshape(-1)
            by_device = phases.reshape(d, n, 4)
            slowest = by_device.max(axis=0)
            cost = slowest[:, 0] + slowest[:, 1] + slowest[:, 2] + slowest[:, 3]
            following = min(step + 1, self.tables - 1)
            fits = memory.reshape(d, n) + self.memory[following] <= self.cap
            self.seen = (
                self.features[following].copy(),
                by_device.swapaxes(0, 1).astype(np.float32, order="C"),
                (memory.reshape(d, n) / self.cap).T.astype(np.float32, order="C"),
                fits.T.astype(np.int8, order="C"),
                cost.copy(),
            )
        return n * self.tables

    def limits(self, dram: FloatArray, l2: FloatArray, lanes: FloatArray) -> FloatArray:
        """The slowest of three limits, and a share of the others."""
        slowest = np.maximum(np.maximum(dram, l2), lanes)
        return slowest + self.loss * (dram + l2 + lanes - slowest)
