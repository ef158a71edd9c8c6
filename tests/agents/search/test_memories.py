"""Searches on tasks in which tables, or states of rows, must be in one of two memories; and rules short of memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.hardware import HostMemory, hardware_profile
from shard_gym.plans import plan_of_placement
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import PROBLEMS, Task

PROBLEM = PROBLEMS["sharding"]


def cost_of(name: str, task: Task, **options: object) -> float:
    """The cost in ms of a plan that passes all checks."""
    plan = PROBLEM.checked(make_agent(name, **options).plan(task), task)
    model = "analytical" if task.tables.workload.training else "analytical-inference"
    return PROBLEM.cost_ms(plan, task, make_cost_model(model, splits=True))


def with_kept_tables(seed: int, unequal: bool = False) -> tuple[Task, Placement]:
    """Tables that must be in HBM, in host memory or in either, with little more room than a placement needs; and it."""
    rng = np.random.default_rng([seed, 78])
    count, devices = int(rng.integers(6, 20)), int(rng.integers(2, 6))
    rows = np.exp(rng.uniform(np.log(1e4), np.log(1e6), count)).astype(np.int64)
    dims, lookups = rng.choice([16, 32, 64, 128], count), np.exp(rng.uniform(-1, 4, count))
    optimizer = str(rng.choice(["sgd", "adam"]))
    tables = Tables.from_zipf(rows, dims, lookups, 1.0, Workload(8192, "fp32", optimizer))
    kind = rng.choice(4, count, p=[0.35, 0.35, 0.05, 0.25])
    known = rng.integers(devices, size=count) if rng.random() < 0.5 else np.argsort(rng.random(count)) % devices
    slack = float(rng.choice([1.02, 1.1, 1.3]))

    def used(chosen: np.ndarray) -> np.ndarray:
        return np.bincount(known[chosen], tables.memory_bytes[chosen], minlength=devices)

    hbm = int(used(kind == 0).max() * slack) + 2**16
    hosts, both = used(kind == 1) * slack, used(kind >= 0) * slack
    if not unequal:
        hosts, both = np.full(devices, hosts.max()), np.full(devices, both.max())
    caps = np.maximum(hbm + hosts.astype(np.int64) + 2**16, both.astype(np.int64))
    hardware = hardware_profile(str(rng.choice(["a100-dgx", "h100-dgx"])))
    topology = replace(hardware.topology(devices, memory_cap_bytes=caps), host=hardware.host_memory(hbm))
    kept = {name: tuple(np.flatnonzero(kind == place)) for place, name in enumerate(("in_hbm", "in_host", "cached"))}
    limits = replace(Constraints.none(count, devices), **kept)
    return Task(f"kept {seed}", tables, topology, splittable=True, constraints=limits), known


@pytest.mark.parametrize(("seed", "unequal"), [(213, False), (54, False), (3, False), (1029, True), (1025, True)])
def test_longer_searches_find_no_dearer_plan_and_none_without_room(seed: int, unequal: bool) -> None:
    """A plan without room may be cheaper; it stands in for none that has room."""
    task, known = with_kept_tables(seed, unequal)
    PROBLEM.checked(plan_of_placement(known, task.tables), task)
    costs = [cost_of("plan-search", task, max_queries=most) for most in (100, 400, 1_500, 6_000)]
    assert all(longer <= cost * (1 + 1e-9) for cost, longer in pairwise(costs))


@pytest.mark.parametrize("agent", ["plan-search", "moldable"])
def test_states_of_rows_have_room_in_hbm(agent: str) -> None:
    """Memory has much more room than HBM has for these, a tenth more than they take where they are even."""
    rng, count, devices = np.random.default_rng(2), 32, 4
    rows = np.exp(rng.uniform(np.log(1e5), np.log(3e6), count)).astype(np.int64)
    dims, lookups = rng.choice([4, 16, 64, 128], count), np.exp(rng.uniform(-1, 4, count))
    tables = Tables.from_zipf(rows, dims, lookups, 1.0, Workload(8192, "fp32", "rowwise_adagrad"))
    states, even = np.zeros(devices, np.int64), np.zeros(count, np.int64)
    for table in np.argsort(-rows).tolist():
        even[table] = states.argmin()
        states[even[table]] += 4 * rows[table]
    caps = int(np.bincount(even, tables.memory_bytes, minlength=devices).max() * 1.5)
    hardware = hardware_profile("a100-dgx")
    host = hardware.host_memory(int(1.1 * states.max()))
    topology = replace(hardware.topology(devices, memory_cap_bytes=caps), host=host)
    task = Task("states", tables, topology, splittable=True)
    PROBLEM.checked(plan_of_placement(even, tables), task)
    options = {"max_queries": 1_500} if agent == "plan-search" else {}
    assert cost_of(agent, task, **options) > 0.0


def test_more_memory_on_some_devices_does_not_make_the_rule_dearer() -> None:
    rng, count = np.random.default_rng(0), 60
    rows = np.exp(rng.uniform(np.log(1e4), np.log(3e6), count)).astype(np.int64)
    dims, lookups = rng.choice([32, 64, 128], count), np.exp(rng.uniform(0, 3, count))
    tables = Tables.from_zipf(rows, dims, lookups, 1.0, Workload(65_536, "fp32", "sgd"))
    tables = replace(tables, pooled=rng.random(count) < 0.7).with_training(training=False)
    hardware, total = hardware_profile("rtx2080ti-pcie"), tables.memory_bytes.sum()
    even, uneven = (
        cost_of(
            "moldable",
            Task(
                "caps",
                tables,
                hardware.topology(4, devices_per_host=2, memory_cap_bytes=(np.array(shares) * total).astype(np.int64)),
                splittable=True,
            ),
        )
        for shares in ([0.7] * 4, [0.7, 0.95, 1.05, 0.9])
    )
    assert uneven <= even


def test_the_rule_searches_where_none_of_its_plans_has_room() -> None:
    """Memory is nearly full, so the wide tables fit in few ways."""
    dims, lookups = [256, 32, 12, 16, 36, 512], [54.0, 9.4, 0.12, 3.1, 39.7, 0.44]
    tables = Tables.from_zipf([1, 1, 4734, 1, 9583, 5674], dims, lookups, 1.0, Workload(8192, "fp32", "sgd"))
    tables = replace(tables, pooled=np.array([False, True, True, True, False, True]))
    cap = -(-int(tables.memory_bytes.sum() * 1.02) // 9)
    topology = hardware_profile("a100-dgx").topology(9, devices_per_host=3, memory_cap_bytes=cap)
    task = Task("full", tables, topology, splittable=True)
    assert cost_of("moldable", task) < 1.2 * cost_of("plan-search", task, max_queries=4_000)


@pytest.mark.parametrize(("agent", "options"), [("moldable", {}), ("plan-search", {"max_queries": 3_000})])
def test_host_memory_leaves_one_group_which_is_planned_as_without_groups(agent: str, options: dict[str, int]) -> None:
    """States of rows must be in HBM, which is short; rows in host memory are not averaged, so groups are none."""
    tables = Tables.from_zipf(
        [2_000_000, 1_000_000, 500_000, 500_000], [64] * 4, 1.0, 1.1, Workload(64, "fp32", "rowwise_adagrad")
    )
    topology = replace(
        hardware_profile("a100-dgx").topology(4, memory_cap_bytes=2**31), host=HostMemory(5_600_000, 16.0, 20.0)
    )
    alone, grouped = (Task("states", tables, topology, splittable=True, sync_every=every) for every in (0, 10))
    assert cost_of(agent, grouped, **options) == cost_of(agent, alone, **options)
