"""Data sets of shards on devices and their costs, in memory: what neural cost models of plans are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from shard_gym.common.arrays import IntArray
from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.io.parsing import parse_json
from shard_gym.cost_models.base import CostEstimate
from shard_gym.cost_models.base.host_rows import NUM_HOST_LOADS
from shard_gym.cost_models.fitting.data.dataset import (
    PlacementCosts,
    PlacementRecorder,
    has_form,
    json_array,
)
from shard_gym.hardware import Topology
from shard_gym.hardware.topology import topologies_from_json, topology_to_json


@dataclass(frozen=True, eq=False)
class ShardDataset(PlacementCosts):
    """Sets of shards on devices and their costs.

    Unlike a `CostDataset` it has the inputs of one network in place of tables: what a shard is to its device depends on
    its sharding type and on the number of devices.
    """

    inputs: NDArray[np.float32]  # (R, F) float32, of each shard
    host: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """(R, 2 + G) float32, what each shard has in host memory (`neural/host.py`); (0, 0) if no device has any."""

    def _requirements(self) -> Iterator[tuple[str, bool]]:
        yield from super()._requirements()
        yield has_form("inputs", self.inputs, np.float32, (len(self.devices), *self.inputs.shape[1:2]))
        yield "inputs must have two axes", self.inputs.ndim == 2
        if self.host.size:
            yield has_form("host", self.host, np.float32, (len(self.devices), NUM_HOST_LOADS))


_ARRAYS = ("inputs", "topology", "start", "devices", "phases_ms", "cost_ms")
_HOST = "host"  # an array where a device had host memory


class ShardRecorder(PlacementRecorder):
    """Builds a `ShardDataset` set by set; equal topologies are kept once."""

    @override
    def _clear(self) -> None:
        super()._clear()
        self._inputs: list[NDArray[np.float32]] = []
        self._host: list[NDArray[np.floating[Any]]] = []

    def add(
        self,
        inputs: NDArray[np.float32],
        devices: IntArray,
        topology: Topology,
        estimate: CostEstimate,
        host: NDArray[np.floating[Any]] | None = None,
    ) -> None:
        """Record the cost of shards with (R, F) `inputs` on the (R,) `devices` of `topology`.

        With host memory, (R, 2 + G) `host` are their loads there.
        """
        self._inputs.append(inputs)
        self._host.append(np.zeros((len(inputs), 0)) if host is None else host)
        self._record(topology, devices, estimate)

    def dataset(self) -> ShardDataset:
        """All that was recorded, at least one."""
        widest = max(each.shape[1] for each in self._host)
        padded = [np.pad(each, ((0, 0), (0, widest - each.shape[1]))) for each in self._host]
        host = np.concatenate(padded, dtype=np.float32) if widest else np.zeros((0, 0), np.float32)
        return ShardDataset(**self._recorded(), inputs=np.concatenate(self._inputs), host=host)

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; topologies as JSON in bytes."""
        if not len(self):
            return {}
        data = self.dataset()
        topologies = json_array([topology_to_json(topology) for topology in data.topologies])
        names = (*_ARRAYS, _HOST) if data.host.size else _ARRAYS
        return {**{name: getattr(data, name).copy() for name in names}, "topologies": topologies}

    def restore(self, arrays: Arrays) -> None:
        """Forget everything, and record what `to_arrays` returned; DamagedFileError if it is something else."""
        self._clear()
        if not arrays:
            return
        try:
            topologies = topologies_from_json(parse_json(arrays["topologies"].tobytes(), "The topologies"))
            names = (*_ARRAYS, _HOST) if _HOST in arrays else _ARRAYS
            data = ShardDataset(**{name: arrays[name] for name in names}, topologies=topologies)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(f"The measured costs are damaged: {error}") from error
        for p, cost in enumerate(data.cost_ms.tolist()):
            rows, topology = slice(data.start[p], data.start[p + 1]), data.topologies[data.topology[p]]
            phases = data.phases_ms[p, : topology.num_devices].copy()
            host = data.host[rows] if data.host.size else None
            self.add(data.inputs[rows], data.devices[rows], topology, CostEstimate(phases, cost), host)
