"""Recorded shards: what is saved comes back, and damaged arrays are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import CostEstimate
from shard_gym.cost_models.data.shards import ShardRecorder
from shard_gym.errors import DamagedFileError
from shard_gym.tasks import Task


@pytest.fixture
def recorder(random_task: Callable[..., Task]) -> ShardRecorder:
    made, topology = ShardRecorder(), random_task(np.random.default_rng(0), 1, 2).topology
    for shards in (3, 2):
        inputs, devices = np.full((shards, 5), shards, np.float32), np.arange(shards) % 2
        made.add(inputs, devices, topology, CostEstimate(np.full((2, 4), float(shards)), 1.0))
    return made


def test_restoring_replaces_what_there_was(recorder: ShardRecorder, same: Callable[[Any, Any], bool]) -> None:
    arrays = recorder.to_arrays()
    recorder.restore(arrays)
    assert same(recorder.to_arrays(), arrays)
    recorder.restore({})
    assert len(recorder) == 0


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
def test_damaged_arrays_are_refused(
    recorder: ShardRecorder, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    arrays = recorder.to_arrays()
    with pytest.raises(DamagedFileError, match="The measured costs are damaged"):
        recorder.restore({**arrays, name: change(arrays[name])})
