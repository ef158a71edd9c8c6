"""Placements: checked from tables and topology alone, counted to the byte, and the same in every form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidPlacementError, MemoryExceededError
from shard_gym.common.text import format_bytes
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans.placement import (
    check_placement,
    memory_used,
    pack_tightly,
    placement_from_json,
    placement_to_json,
    to_plan,
)

SEEDS = st.integers(0, 2**32 - 1)


def devices(caps: Any) -> Topology:
    return hardware_profile("a100-dgx").topology(len(caps), memory_cap_bytes=np.asarray(caps, np.int64))


@given(seed=SEEDS)
def test_a_placement_is_valid_if_and_only_if_every_device_holds_its_tables(random_tables: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, count = random_tables(rng, 6), int(rng.integers(1, 5))
    placement = rng.integers(count, size=6)
    needed = [
        sum(int(b) for b, device in zip(tables.memory_bytes, placement, strict=True) if device == d)
        for d in range(count)
    ]
    assert memory_used(placement, tables, count).tolist() == needed
    exact = np.maximum(needed, 1)
    checked = check_placement(placement, tables, devices(exact))
    assert np.array_equal(checked, check_placement(placement.tolist(), tables, devices(exact)))
    assert np.array_equal(checked, placement)
    assert not np.shares_memory(checked, placement)
    full = int(rng.choice(np.flatnonzero(needed)))
    exact[full] -= 1  # one byte less on one device
    with pytest.raises(
        MemoryExceededError, match=f"Device {full} is given .*{needed[full]} bytes.*{exact[full]} bytes"
    ):
        check_placement(placement, tables, devices(exact))


def test_memory_is_exact_beyond_what_floats_hold(random_tables: Any) -> None:
    one = random_tables(np.random.default_rng(0), 3, weight_dtype="fp32", optimizer="rowwise_adagrad")
    tables = replace(one, num_embeddings=2**38 + 1 + 2 * np.arange(3), embedding_dim=np.full(3, 2**16))
    exact = [sum(tables.memory_bytes.tolist()[:2]), tables.memory_bytes.tolist()[2]]
    assert int(float(exact[1])) != exact[1], "these numbers would survive a float, and the test shows nothing"
    assert memory_used(np.array([0, 0, 1]), tables, 2).tolist() == exact
    check_placement([0, 0, 1], tables, devices(exact))
    for device in range(2):
        short = list(exact)
        short[device] -= 1
        with pytest.raises(MemoryExceededError, match=str(exact[device])):
            check_placement([0, 0, 1], tables, devices(short))


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([0, 1], r"3 tables needs shape \(3,\).*got \(2,\)"),
        ([[0, 1, 0]], r"got \(1, 3\)"),
        (None, r"got \(\)"),
        ([0, [1, 1], 0], "one list of device numbers"),
        ([0.0, 1.0, 0.0], "integers.*not float64"),
        ([True, False, True], "integers.*not bool"),
        ([0, 1, 2], r"Table 2 \(table_2\) is on device 2, but the devices are 0 to 1"),
        ([0, -1, 1], r"Table 1 \(table_1\) is on device -1"),
        (np.array([0, 1, 2**63], np.uint64), f"device {2**63}"),
    ],
)
def test_what_is_no_placement_is_a_named_error(random_tables: Any, placement: Any, message: str) -> None:
    tables = random_tables(np.random.default_rng(0), 3)
    with pytest.raises(InvalidPlacementError, match=message):
        check_placement(placement, tables, devices([2**40, 2**40]))
    assert check_placement(np.zeros(3, np.uint8), tables, devices([2**40, 2**40])).dtype == np.int64


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_plans_and_json_say_the_same(placement: list[int]) -> None:
    array = np.array(placement)
    plan = to_plan(array, 7)
    assert [sorted(tables) for tables in plan] == plan
    assert all(placement[table] == device for device, tables in enumerate(plan) for table in tables)
    assert sum(map(len, plan)) == len(placement)
    assert json.loads(json.dumps(placement_to_json(array))) == placement


@pytest.mark.parametrize("value", [None, "010", [0, 1.0, 0], [0, True, 0], [0, 1, 2**63]])
def test_json_that_is_no_placement_is_a_named_error(random_tables: Any, value: Any) -> None:
    tables = random_tables(np.random.default_rng(0), 3)
    with pytest.raises(InvalidPlacementError):
        placement_from_json(value, tables, devices([2**40, 2**40]))
    assert placement_from_json([0, 1, 0], tables, devices([2**40, 2**40])).tolist() == [0, 1, 0]


@given(seed=SEEDS)
def test_memories_that_are_full_to_the_byte_are_packed(seed: int) -> None:
    """By as many bytes as a placement that is drawn needs on each device, and where it has them."""
    rng = np.random.default_rng(seed)
    count, size = int(rng.integers(1, 5)), int(rng.integers(1, 12))
    planted, sizes = rng.integers(count, size=size), np.exp(rng.uniform(0, 14, size)).astype(np.int64) + 1
    caps = np.bincount(planted, sizes, count).astype(np.int64)
    open_to = rng.random((size, count)) < 0.8
    open_to[np.arange(size), planted] = True
    found = pack_tightly(sizes, caps, open_to)
    assert found is not None
    assert open_to[np.arange(size), found].all()
    assert np.bincount(found, sizes, count).tolist() == caps.tolist()
    assert pack_tightly(sizes, caps - (np.arange(count) == planted[0]), open_to) is None  # a byte less in all


def test_packing_gives_up_after_so_many_trials() -> None:
    """Forty tables of nearly the same size, which would fit by their sum."""
    sizes = np.full(40, 1000) + np.arange(40)
    caps = np.array([sizes.sum() // 2 - 500, sizes.sum() // 2 + 500])
    assert pack_tightly(sizes + np.arange(40) % 2 * 10**6, caps + 10**7, np.ones((40, 2), np.bool_)) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (99_999, "99,999 bytes"),
        (2**17, "0.12 MiB"),
        (2**20, "1.00 MiB"),
        (2**30 - 2**20, "1023.00 MiB"),
        (3 * 2**29, "1.50 GiB"),
    ],
)
def test_bytes_are_written_as_a_person_reads_them(count: int, text: str) -> None:
    assert format_bytes(count) == text
