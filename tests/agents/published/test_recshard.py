"""RecShard's integer program against brute force over its own objective, and what it does without host memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from shard_gym.agents import make_agent
from shard_gym.agents.published.recshard import device_ms, hbm_bytes
from shard_gym.common.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.hardware import hardware_profile
from shard_gym.plans.constraints import Constraints
from shard_gym.tables import RowSteps, Tables, Workload
from shard_gym.tasks import Task, problem_of


def tiered(random_tables: Any, seed: int, tables: int, devices: int, share: float) -> Task:
    """A task whose HBM has that share of the bytes, and whose devices have room for 1.4 times an even part."""
    drawn = random_tables(np.random.default_rng(seed), tables)
    even = int(drawn.memory_bytes.sum()) / devices
    topology = hardware_profile("a100-dgx").topology(
        devices, memory_cap_bytes=int(share * even), host_memory_bytes=2**40
    )
    caps = np.full(devices, max(int(1.4 * even), int(drawn.memory_bytes.max())))
    return Task(f"tiered/{seed}", drawn, replace(topology, memory_cap_bytes=caps))


def slowest_ms(task: Task, placement: np.ndarray, shares: np.ndarray) -> float:
    """The cost of the costliest device under the best step of each of its tables, of all of their combinations."""
    assert task.topology.host is not None
    costs, sizes = device_ms(task.tables, task.topology, shares), hbm_bytes(task.tables, shares)
    slowest = 0.0
    for device in range(task.num_devices):
        here = np.flatnonzero(placement == device)
        steps = np.array(list(product(range(len(shares)), repeat=len(here))), int).reshape(len(shares) ** len(here), -1)
        fits = sizes[here, steps].sum(axis=1) <= task.topology.host.hbm_bytes
        slowest = max(slowest, float(costs[here, steps].sum(axis=1)[fits].min()))
    return slowest


@pytest.mark.parametrize(
    ("seed", "tables", "devices", "steps"), [(0, 5, 2, 3), (1, 5, 3, 3), (2, 6, 2, 2), (3, 4, 4, 5)]
)
def test_no_placement_is_better_by_its_own_objective(
    random_tables: Any, valid_placements: Any, seed: int, tables: int, devices: int, steps: int
) -> None:
    task, shares = tiered(random_tables, seed, tables, devices, 0.3), np.linspace(0.0, 1.0, steps + 1)
    found = make_agent("recshard", steps=steps, gap=0.0).place(task)
    best = min(slowest_ms(task, placement, shares) for placement in valid_placements(task))
    assert slowest_ms(task, found, shares) == pytest.approx(best, rel=1e-5)


def test_the_most_popular_rows_come_first() -> None:
    """Two rows with 0.3 of the lookups each, then eight with 0.05 each; the shares need 0, 1, 2, 6 and 10 rows."""
    workload = Workload(1024, "fp32")
    popularity = RowSteps(np.array([[2.0, 8.0]]), np.array([[0.6, 0.4]]))
    tables = replace(Tables.from_zipf([10], 4, [2.0], 1.0, workload), popularity=popularity)
    found = hbm_bytes(tables, np.array([0.0, 0.3, 0.6, 0.8, 1.0]))
    np.testing.assert_allclose(found, [[0, 16, 32, 96, 160]], atol=1e-9)


def test_a_share_of_the_lookups_is_read_at_each_bandwidth() -> None:
    tables = Tables.from_zipf([1000], 16, [2.0], 1.0, Workload(1000, "fp32"))
    topology = hardware_profile("h100-dgx").topology(2, memory_cap_bytes=10_000, host_memory_bytes=10**6)
    dram = topology.device.dram_gb_per_s
    expected = 2000 * 64 / 1e6 * np.array([1 / 28, 0.25 / dram + 0.75 / 28, 1 / dram])
    np.testing.assert_allclose(device_ms(tables, topology, np.array([0.0, 0.25, 1.0]))[0], expected)


def test_without_host_memory_lookups_are_balanced(random_task: Any, valid_placements: Any) -> None:
    task = random_task(np.random.default_rng(1), 7, 3, slack=1.3)
    found = make_agent("recshard", gap=0.0).place(task)
    work = task.tables.pooling_factor * task.tables.embedding_dim
    most = [np.bincount(placement, work, task.num_devices).max() for placement in [found, *valid_placements(task)]]
    assert most[0] == pytest.approx(min(most[1:]), rel=1e-5)


def test_unequal_caps_are_kept(dead_end: Task) -> None:
    assert make_agent("recshard").place(dead_end).tolist() == [1, 0, 0]


def test_tables_that_do_not_fit_are_a_named_error(packing_task: Any) -> None:
    with pytest.raises(NoPlacementFoundError, match=r"no solution of RecShard's program.*max_seconds"):
        make_agent("recshard").place(packing_task((60, 60, 60), (100, 90), (1.0, 1.0, 1.0)))


@pytest.mark.parametrize(("option", "value"), [("steps", 0), ("gap", 1.0), ("max_seconds", 0)])
def test_options_out_of_range_are_named(option: str, value: float) -> None:
    with pytest.raises(InvalidOptionError, match=option):
        make_agent("recshard", **{option: value})


def test_constraints_are_part_of_the_program(random_task: Any, random_constraints: Any) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        task = random_task(rng, 8, 3, slack=2.0)
        task = replace(task, constraints=random_constraints(rng, task))
        problem_of(task).checked(make_agent("recshard", gap=0.1).place(task), task)


def test_tables_that_are_kept_in_a_memory_are_in_it() -> None:
    """Two tables that fill the HBM of a device, and two that a batch reads most of, in host memory."""
    tables = Tables.from_zipf([1000] * 4, [16] * 4, [1.0, 1.0, 9.0, 9.0], 1.05, Workload(256, "fp32"))
    size = int(tables.memory_bytes[0])
    topology = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=size, host_memory_bytes=2**30)
    limits = replace(Constraints.none(4, 2), in_hbm=(0, 1), in_host=(2, 3))
    task = Task("kept", tables, replace(topology, memory_cap_bytes=np.full(2, 3 * size)), constraints=limits)
    placement = problem_of(task).checked(make_agent("recshard").place(task), task)
    assert placement[0] != placement[1]
    assert placement[2] != placement[3]
