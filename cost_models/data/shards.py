"""Data sets of shards on devices and their costs, in memory: what neural cost models of plans are trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import PHASES, CostEstimate, FloatArray
from shard_gym.cost_models.data.dataset import TOPOLOGY_KEYS, IntArray, topology_from_json, topology_to_json
from shard_gym.errors import DamagedFileError
from shard_gym.io.arrays import Arrays
from shard_gym.io.parsing import parse_json, require_fields
from shard_gym.topology import Topology


@dataclass(frozen=True, eq=False)
class ShardDataset:
    """P sets of shards on devices, and the ms of each phase on each of their devices.

    Unlike a `CostDataset` it has the inputs of one network in place of tables: what a shard is to its device depends on
    its sharding type and on the number of devices.

    Attributes:
        inputs: (R, F) float32, of each shard.
        topologies: the different topologies.
        topology: (P,) int64, the number of the topology of each set.
        start: (P + 1,) int64; set p has the shards from `start[p]` to before `start[p + 1]`.
        members: (R,) int64, rows of `inputs`: 0 to R - 1.
        devices: (R,) int64, the device of each shard.
        phases_ms: (P, D, 4) float64, D that of the largest topology; 0 beyond the devices of a set.
        cost_ms: (P,) float64, ms of the iteration.
    """

    inputs: NDArray[np.float32]
    topologies: tuple[Topology, ...]
    topology: IntArray
    start: IntArray
    devices: IntArray
    phases_ms: FloatArray
    cost_ms: FloatArray

    @property
    def members(self) -> IntArray:
        """See the attributes."""
        return np.arange(len(self.inputs))


_ARRAYS = ("inputs", "topology", "start", "devices", "phases_ms", "cost_ms")


class ShardRecorder:
    """Builds a `ShardDataset` set by set; equal topologies are kept once."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._topologies: dict[str, Topology] = {}
        self._records: list[tuple[int, NDArray[np.float32], IntArray, CostEstimate]] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, inputs: NDArray[np.float32], devices: IntArray, topology: Topology, estimate: CostEstimate) -> None:
        """Record the cost of shards with (R, F) `inputs` on the (R,) `devices` of `topology`."""
        key = json.dumps(topology_to_json(topology), sort_keys=True)
        self._topologies.setdefault(key, topology)
        number = list(self._topologies).index(key)
        self._records.append((number, inputs, devices, estimate))

    def dataset(self) -> ShardDataset:
        """All that was recorded, at least one."""
        widest = max(topology.num_devices for topology in self._topologies.values())
        phases = np.zeros((len(self), widest, 4))
        for p, (_, _, _, estimate) in enumerate(self._records):
            phases[p, : len(estimate.phases_ms)] = estimate.phases_ms
        return ShardDataset(
            inputs=np.concatenate([inputs for _, inputs, _, _ in self._records]),
            topologies=tuple(self._topologies.values()),
            topology=np.array([number for number, _, _, _ in self._records], np.int64),
            start=np.cumsum([0, *(len(devices) for _, _, devices, _ in self._records)]),
            devices=np.concatenate([devices for _, _, devices, _ in self._records]),
            phases_ms=phases,
            cost_ms=np.array([estimate.total_ms for _, _, _, estimate in self._records]),
        )

    def to_arrays(self) -> Arrays:
        """Everything as arrays, for a file; topologies as JSON in bytes."""
        if not self._records:
            return {}
        data = self.dataset()
        topologies = json.dumps([topology_to_json(topology) for topology in data.topologies])
        return {
            **{name: getattr(data, name).copy() for name in _ARRAYS},
            "topologies": np.frombuffer(topologies.encode(), np.uint8).copy(),
        }

    def restore(self, arrays: Arrays) -> None:
        """Forget everything, and record what `to_arrays` returned.

        Raises:
            DamagedFileError: an array is missing or impossible.
        """
        self._clear()
        if not arrays:
            return
        try:
            _require_shapes(arrays)
            records = parse_json(arrays["topologies"].tobytes(), "The topologies")
            topologies = [topology_from_json(require_fields(each, TOPOLOGY_KEYS, "A topology")) for each in records]
            start, inputs, devices = (arrays[name] for name in ("start", "inputs", "devices"))
            for p, cost in enumerate(arrays["cost_ms"].tolist()):
                rows, topology = slice(start[p], start[p + 1]), topologies[arrays["topology"][p]]
                phases = arrays["phases_ms"][p, : topology.num_devices].astype(np.float64)
                if not 0 <= devices[rows].min() <= devices[rows].max() < topology.num_devices:
                    raise DamagedFileError("a shard is on a device that is not there")
                self.add(inputs[rows], devices[rows], topology, CostEstimate(phases, cost))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DamagedFileError(f"The measured costs are damaged: {error}") from error


def _require_shapes(arrays: Arrays) -> None:
    """Check that the arrays of a data set fit each other.

    Raises:
        KeyError: one is missing.
        ValueError: they do not.
    """
    inputs, start, phases = arrays["inputs"], arrays["start"], arrays["phases_ms"]
    sets = len(arrays["cost_ms"])
    for name, shape, kind in (
        ("inputs", (len(inputs), *inputs.shape[1:2]), np.float32),
        ("topology", (sets,), np.int64),
        ("start", (sets + 1,), np.int64),
        ("devices", (len(inputs),), np.int64),
        ("phases_ms", (sets, *phases.shape[1:2], len(PHASES)), np.float64),
        ("cost_ms", (sets,), np.float64),
    ):
        array = arrays[name]
        if array.shape != shape or array.dtype != kind or array.ndim != len(shape):
            raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}")
    if inputs.ndim != 2 or start[0] != 0 or start[-1] != len(inputs) or (np.diff(start) < 1).any():
        raise ValueError("start does not divide the shards into sets")
