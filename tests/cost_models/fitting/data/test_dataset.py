"""Measurements costs: recorded once each, taken apart and put together without loss, refused when impossible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.cost_models import AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.fitting import CostDataset
from shard_gym.cost_models.fitting.data.dataset import TABLE_ARRAYS, CostRecorder
from shard_gym.cost_models.fitting.data.shards import ShardRecorder
from shard_gym.hardware import HostMemory, Replicas
from shard_gym.hardware.topology import topologies_from_json, topology_to_json
from shard_gym.plans.needs import MIXED
from shard_gym.tables import Workload

MODEL = AnalyticalCostModel()
SameData = Callable[[CostDataset, CostDataset], bool]


@pytest.fixture
def recorder(drawn: Any) -> CostRecorder:
    recorder = CostRecorder(MODEL.fingerprint)
    for seed in (1, 2, 3, 2):
        tables, topology, placement = drawn(seed)
        recorder.add(tables, topology, placement, MODEL.estimate(placement, tables, topology))
    return recorder


def test_what_a_data_set_does_not_describe_is_refused(recorder: CostRecorder, drawn: Any) -> None:
    tables, topology, placement = drawn(1)
    estimate = MODEL.estimate(placement, tables, topology)
    tiered = replace(topology, host=HostMemory(2**20, 10.0, 10.0))
    with pytest.raises(InvalidOptionError, match="data set of costs does not support rows in host memory"):
        recorder.add(tables, tiered, placement, estimate)
    with pytest.raises(InvalidOptionError, match="does not support devices whose shards have replicas in other groups"):
        recorder.add(tables, replace(topology, replicas=Replicas(2, 1, 1)), placement, estimate)
    own = [tables.workload, replace(tables.workload, optimizer="adam")]
    mixed = replace(tables, workload=Workload.mixed(own, np.arange(len(tables)) % 2))
    with pytest.raises(InvalidOptionError, match="holds tables of one workload, or of the same groups"):
        recorder.add(mixed, topology, placement, estimate)
    assert len(recorder) == len(recorder.dataset()) == 4


def test_tables_of_the_same_groups_are_a_data_set(drawn: Any) -> None:
    """A table in two groups is two; and all comes back from arrays."""
    recorder, found = CostRecorder("analytical"), []
    for seed in range(3):
        tables, topology, placement = drawn(seed % 2)
        own = (tables.workload, replace(tables.workload, weight_dtype="fp32", optimizer="adam"))
        mixed = replace(tables, workload=Workload.mixed(own, (np.arange(len(tables)) + seed // 2) % 2))
        recorder.add(mixed, topology, placement, MODEL.estimate(placement, mixed, topology))
        found.append(mixed)
    data = recorder.dataset()
    assert len(data.tables) == len(found[0]) * 2 + len(found[1])  # those of the first and the third are in other groups
    assert MIXED in data.needs
    again = CostDataset.from_arrays(data.to_arrays())
    assert again.tables.workload == data.tables.workload
    for p, tables in enumerate(found):
        rows = data.members[data.start[p] : data.start[p + 1]]
        chosen = again.tables.select(rows)
        assert (chosen.workload, chosen.names) == (tables.workload, tables.names)


def test_a_topology_is_the_same_through_json(drawn: Any) -> None:
    for changes in ({}, {"cross_host_ratio": 0.5}, {"host": HostMemory(2**20, 10.0, 10.0)}):
        topology = replace(drawn(1)[1], **changes)
        record = topology_to_json(topology)
        assert topology_to_json(topologies_from_json([record])[0]) == record
        assert set(changes) == set(record) & {"cross_host_ratio", "host"}


def test_what_is_recorded_is_there(recorder: CostRecorder, drawn: Any) -> None:
    data = recorder.dataset()
    assert len(data) == len(recorder) == 4
    for placement, seed in enumerate((1, 2, 3, 2)):
        tables, topology, devices = drawn(seed)
        rows = slice(data.start[placement], data.start[placement + 1])
        found = data.tables.select(data.members[rows])
        assert all(np.array_equal(getattr(found, name), getattr(tables, name)) for name in TABLE_ARRAYS)
        assert np.array_equal(data.devices[rows], devices)
        assert data.num_devices[placement] == topology.num_devices
        estimate = MODEL.estimate(devices, tables, topology)
        assert np.array_equal(data.phases_ms[placement, : topology.num_devices], estimate.phases_ms)
        assert not data.phases_ms[placement, topology.num_devices :].any()
        assert data.cost_ms[placement] == estimate.total_ms
    # Equal tables and topologies are kept once.
    assert len(data.tables) == sum(len(drawn(seed)[0]) for seed in (1, 2, 3))
    assert data.topology[1] == data.topology[3]


def test_a_data_set_is_the_same_recorded_again_and_as_arrays(recorder: CostRecorder, same_data: SameData) -> None:
    data, twin = recorder.dataset(), CostRecorder(MODEL.fingerprint)
    twin.extend(data)
    assert same_data(twin.dataset(), data)
    twin.extend(data)
    assert (len(twin), len(twin.dataset().tables)) == (8, len(data.tables))
    assert same_data(CostDataset.from_arrays(data.to_arrays()), data)


def test_some_placements_can_be_taken(recorder: CostRecorder) -> None:
    data = recorder.dataset()
    taken = data.take([3, 0])
    assert np.array_equal(taken.cost_ms, data.cost_ms[[3, 0]])
    assert np.array_equal(taken.devices[: taken.start[1]], data.devices[data.start[3] : data.start[4]])
    assert len(taken.tables) == len(data.tables)
    assert len(data.take([])) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tables.num_embeddings", None),
        ("start", lambda array: array[:-1]),
        ("about", lambda _: np.frombuffer(b'{"workload": 3}', np.uint8)),
        ("about", lambda array: array[:-1]),
    ],
)
def test_damaged_arrays_are_refused(recorder: CostRecorder, name: str, change: Any) -> None:
    arrays = recorder.dataset().to_arrays()
    array = arrays.pop(name)
    with pytest.raises(DamagedFileError, match="measured costs are damaged"):
        CostDataset.from_arrays(arrays if change is None else {**arrays, name: change(array)})


def changed(array: np.ndarray, where: Any, value: float) -> np.ndarray:
    """A copy with another value at one place."""
    copy = array.copy()
    copy[where] = value
    return copy


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("topology", lambda data: data.topology.astype(np.int32), "topology must be int64"),
        ("cost_ms", lambda data: data.cost_ms[:-1], "must be .* of shape"),
        ("start", lambda data: changed(data.start, 1, 0), "start must rise"),
        ("topology", lambda data: data.topology + len(data.topologies), "number the topologies"),
        ("members", lambda data: data.members - 1, "number the tables"),
        ("devices", lambda data: changed(data.devices, 0, data.num_devices[0]), "devices of each placement"),
        ("cost_ms", lambda data: changed(data.cost_ms, 1, np.inf), "positive number"),
        ("phases_ms", lambda data: changed(data.phases_ms, (0, 0, 0), -1), "negative or infinite"),
        (
            "phases_ms",
            lambda data: changed(data.phases_ms, (int(data.num_devices.argmin()), -1, 0), 1),
            "where there is no device",
        ),
    ],
)
def test_what_is_impossible_is_refused(recorder: CostRecorder, field: str, change: Any, message: str) -> None:
    data = recorder.dataset()
    with pytest.raises(InvalidOptionError, match=message):
        replace(data, **{field: change(data)})


def test_a_data_set_needs_a_placement_and_one_workload(recorder: CostRecorder, drawn: Any) -> None:
    with pytest.raises(InvalidOptionError, match="Nothing was measured"):
        CostRecorder("x").dataset()
    tables, topology, placement = drawn(5)
    estimate = CostEstimate(np.ones((topology.num_devices, 4)), 4.0)
    with pytest.raises(InvalidOptionError, match="one workload"):
        recorder.add(tables.with_training(optimizer="rowwise_adagrad"), topology, placement, estimate)


# Shards


@pytest.fixture
def shards(random_task: Any) -> ShardRecorder:
    made, topology = ShardRecorder(), random_task(np.random.default_rng(0), 1, 2).topology
    for count in (3, 2):
        inputs, devices = np.full((count, 5), count, np.float32), np.arange(count) % 2
        made.add(inputs, devices, topology, CostEstimate(np.full((2, 4), float(count)), 1.0))
    return made


def test_restoring_replaces_the_recorded_shards(shards: ShardRecorder, same: Callable[[Any, Any], bool]) -> None:
    arrays = shards.to_arrays()
    shards.restore(arrays)
    assert same(shards.to_arrays(), arrays)
    shards.restore({})
    assert len(shards) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cost_ms", lambda array: array[:1]),
        ("inputs", lambda array: array[:-1]),
        ("inputs", lambda array: array.astype(np.float64)),
        ("devices", lambda array: array + 1),
        ("phases_ms", lambda array: array[..., :3]),
        ("start", lambda array: array + 1),
        ("topology", lambda array: array + 1),
        ("topologies", lambda array: array[:-1]),
    ],
)
def test_damaged_arrays_of_shards_are_refused(
    shards: ShardRecorder, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    arrays = shards.to_arrays()
    with pytest.raises(DamagedFileError, match="The measured costs are damaged"):
        shards.restore({**arrays, name: change(arrays[name])})
