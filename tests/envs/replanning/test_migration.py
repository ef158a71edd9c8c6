"""Migration: a written-out case, and what follows from symmetry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.envs.replanning.migration import migration_seconds
from shard_gym.hardware import hardware_profile
from shard_gym.topology import LinkSpec

GB = 10**9


def test_a_written_out_case() -> None:
    """Two hosts of two devices, 100 GB/s inside a host and 10 GB/s between.

    Inside host 0 device 0 sends 3 GB to device 1: 0.03 s. Device 1 sends 1 GB to device 2 and 1 GB to device 3, so 2 GB
    between hosts: 0.2 s. Device 3 receives 1 + 4 GB from host 0 (4 from device 0): 0.5 s, the longest.
    """
    links = LinkSpec(100.0, 10.0, 1.0, 1.0)
    topology = replace(hardware_profile("a100-dgx").topology(4, devices_per_host=2), links=links)
    before = np.array([0, 1, 1, 0, 2])
    after = np.array([1, 2, 3, 3, 2])
    sizes = np.array([3, 1, 1, 4, 50]) * GB
    assert migration_seconds(before, after, sizes, topology) == pytest.approx(0.5)
    assert migration_seconds(before[:3], after[:3], sizes[:3], topology) == pytest.approx(0.2)
    assert migration_seconds(before[:1], after[:1], sizes[:1], topology) == pytest.approx(0.03)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_way_back_takes_as_long_and_nothing_takes_no_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = hardware_profile("a100-dgx").topology(int(rng.integers(1, 17)))
    before, after = rng.integers(topology.num_devices, size=(2, 9))
    sizes = rng.integers(1, 10**10, 9)
    there = migration_seconds(before, after, sizes, topology)
    assert there == pytest.approx(migration_seconds(after, before, sizes, topology))
    assert migration_seconds(before, before, sizes, topology) == 0.0
    assert (there > 0) == (before != after).any()


def test_many_plans_at_once_take_as_long_as_each() -> None:
    rng = np.random.default_rng(0)
    topology = hardware_profile("a100-dgx").topology(6, devices_per_host=4)
    before, after, sizes = rng.integers(6, size=(3, 4, 9)), rng.integers(6, size=9), rng.integers(1, 10**10, 9)
    before[0, 0] = after
    found = migration_seconds(before, after, sizes, topology)
    assert found.shape == (3, 4)
    assert found.ravel().tolist() == [
        pytest.approx(float(migration_seconds(each, after, sizes, topology))) for each in before.reshape(12, 9)
    ]
    assert found[0, 0] == 0.0
    assert np.count_nonzero(found) == 11
