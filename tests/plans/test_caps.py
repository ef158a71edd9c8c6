"""Host memory that devices share: which uses of it are valid, and how it is allotted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError, InvalidTopologyError, MemoryExceededError
from shard_gym.hardware import HostMemory, Topology, hardware_profile
from shard_gym.plans import check_plan, plan_of_placement
from shard_gym.plans.caps import allotted_caps, devices_over, packed_caps
from shard_gym.plans.placement import check_placement
from shard_gym.tables import Tables, Workload

HBM = 1_000


def devices(count: int, hardware: str = "a100-dgx") -> Topology:
    """HBM of 1,000 bytes each, and 4,000 bytes for tables on each host of four."""
    profile = hardware_profile(hardware)
    return profile.topology(count, devices_per_host=4, memory_cap_bytes=HBM, host_memory_bytes=4_000)


def tables(*num_bytes: int) -> Tables:
    """Tables of so many bytes: rows of four FP32 weights without states."""
    return Tables.from_zipf([each // 16 for each in num_bytes], 4, 1.0, 1.05, Workload(16, "fp32", "sgd"))


@pytest.mark.parametrize(
    ("used", "caps"),
    [
        ([5_000, 0, 0, 0], [5_000, 1_000, 1_000, 1_000]),  # one device has all of the host's memory
        ([3_000, 0, 2_000, 400], [3_250, 1_250, 2_250, 1_250]),  # two share it; the rest in equal parts
        ([900, 900, 900, 900], [2_000] * 4),
        ([5_001, 0, 0, 0], None),
        ([3_001, 3_001, 0, 0], None),
    ],
)
def test_a_host_gives_its_devices_what_they_need_and_equal_parts_of_the_rest(
    used: list[int], caps: list[int] | None
) -> None:
    topology = devices(4)
    found = allotted_caps(np.array(used), topology)
    assert (None if found is None else found.tolist()) == caps
    assert (devices_over(np.array(used), topology).size == 0) == (caps is not None)


def test_a_host_gives_nothing_to_devices_of_another() -> None:
    """The last host has two devices for its 4,000 bytes."""
    topology = devices(6)
    assert topology.memory_cap_bytes.tolist() == [2_000] * 4 + [3_000] * 2
    assert devices_over(np.array([4_000, 2_000, 0, 0, 3_500, 2_500]), topology).size == 0
    assert devices_over(np.array([4_000, 2_001, 0, 0, 0, 0]), topology).tolist() == [0, 1]
    assert devices_over(np.array([0, 0, 0, 0, 4_000, 2_100]), topology).tolist() == [4]


def test_placements_and_plans_use_the_memory_of_a_host_unequally() -> None:
    topology, some = devices(4), tables(4_800, 640, 640)
    assert check_placement([1, 0, 3], some, topology).tolist() == [1, 0, 3]
    plan = plan_of_placement([1, 0, 3], some)
    assert check_plan(plan, some, topology) == plan
    for placement in ([1, 1, 1], [1, 0, 1]):
        with pytest.raises(MemoryExceededError, match="Device 1 is given"):
            check_placement(placement, some, topology)
        with pytest.raises(MemoryExceededError, match="Device 1 is given"):
            check_plan(plan_of_placement(placement, some), some, topology)


def test_devices_with_a_part_of_their_own_get_no_more() -> None:
    own, some = devices(4, "gh200-quad"), tables(4_800)
    assert own.host is not None
    assert own.host.total_bytes is None
    assert allotted_caps(np.array([4_800, 0, 0, 0]), own) is None
    assert packed_caps(some, own) is None
    with pytest.raises(MemoryExceededError, match="its cap is 2000 bytes"):
        check_placement([0], some, own)


def test_tables_are_packed_where_the_hosts_have_room() -> None:
    """Of two tables of 4,000 bytes one is on each host; two of 6,400 fit none."""
    topology = devices(8)
    caps = packed_caps(tables(4_000, 4_000, 800, 800), topology)
    assert caps is not None
    assert np.sort(caps)[-2:].tolist() == [4_250, 4_250]
    assert set((np.flatnonzero(caps == 4_250) // 4).tolist()) == {0, 1}
    assert packed_caps(tables(6_400, 6_400), topology) is None


def test_a_share_of_a_host_is_whole_bytes() -> None:
    host = devices(4).host
    assert host is not None
    assert replace(host, total_bytes=np.int64(7)).total_bytes == 7
    for bad in (0, -5, 1.5, True):
        with pytest.raises((InvalidOptionError, ValueError), match="total_bytes of HostMemory must be"):
            replace(host, total_bytes=bad)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 12),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
)
def test_no_valid_placement_takes_more_of_a_host_than_it_has(
    above: list[int], per_host: int, hbm: int, total: int, sizes: list[int]
) -> None:
    """Rows of 16 bytes. All placements: the valid ones are those whose hosts hold what their devices' HBM does not."""
    profile, count = hardware_profile("a100-dgx"), len(above)
    host = HostMemory(16 * hbm, read_gb_per_s=16.0, update_gb_per_s=20.0, total_bytes=16 * total)
    caps = 16 * (np.array(above) + hbm - 1)  # some are below the HBM
    hosts, some = np.arange(count) // per_host, tables(*(16 * size for size in sizes))
    allotted = np.bincount(hosts, caps - host.hbm_bytes)
    arguments = (profile.device, profile.links, count, per_host, np.maximum(caps, 1), host)
    if (caps < host.hbm_bytes).any() or (allotted > 16 * total).any():
        with pytest.raises(InvalidTopologyError, match=r"Host \d|on host \d"):
            Topology(*arguments)
        return
    topology = Topology(*arguments)
    for placement in product(range(count), repeat=len(sizes)):
        away = np.maximum(np.bincount(placement, some.memory_bytes, count) - host.hbm_bytes, 0)
        try:
            check_placement(placement, some, topology)
            check_plan(plan_of_placement(placement, some), some, topology)
            valid = True
        except MemoryExceededError:
            valid = False
        assert valid == bool((np.bincount(hosts, away) <= 16 * total).all())
