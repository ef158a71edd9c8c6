"""The agents of the package: tasks of all kinds that they answer, and those that they leave to a rule."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.dreamshard.pretrained import PRETRAINED, PretrainedDreamShard, outside
from shard_gym.cost_models import make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import TABLE_WISE
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tasks import PROBLEMS, Task

PROBLEM = PROBLEMS["sharding"]
GIB = 2**30


def task_on(profile: str, devices: int = 4, count: int = 12, host: bool = False) -> Task:
    """Tables of mixed dims that may be split; with `host` the HBM holds a fifth of them."""
    rng, pool, hardware = np.random.default_rng(devices), load_pool("dlrm-2021").tables, hardware_profile(profile)
    tables = pool.select(rng.choice(len(pool), count, replace=False)).with_dims(rng.choice([8, 16, 64, 128], count))
    topology = hardware.topology(devices, memory_cap_bytes=32 * GIB)
    if host:
        share = int(tables.memory_bytes.sum()) // (5 * devices)
        topology = replace(topology, host=hardware.host_memory(share))
    return Task("drawn", tables, topology, splittable=True)


def of_tables(task: Task, tables: Tables) -> Task:
    return replace(task, tables=tables)


def mixed(task: Task) -> Task:
    batch, count = task.tables.workload.batch_size, task.num_tables
    several = [Workload(batch, "fp16", "adam"), Workload(batch, "fp32", "sgd", weighted=True)]
    return of_tables(task, replace(task.tables, workload=Workload.mixed(several, np.arange(count) % 2)))


def kind_of_task(kind: str, profile: str) -> Task:
    task = task_on(profile, host=kind in ("host memory", "serving"))
    if kind == "sequences":
        return of_tables(task, replace(task.tables, pooled=np.arange(task.num_tables) % 4 > 0))
    if kind == "serving":
        return of_tables(task, task.tables.with_training(training=False))
    if kind == "mixed":
        return mixed(task)
    if kind == "groups":
        return replace(task, sync_every=100)
    if kind == "constraints":
        limits = Constraints.none(task.num_tables, task.num_devices)
        devices = limits.devices.copy()
        devices[0] = [True, False, False, False]
        return replace(task, constraints=replace(limits, devices=devices, together=((1, 2),)))
    return task


KINDS = ("plain", "sequences", "host memory", "serving", "mixed", "groups", "constraints")


@pytest.mark.parametrize("profile", PRETRAINED)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_answered_for_less_than_by_a_rule_without_a_query(kind: str, profile: str) -> None:
    task = kind_of_task(kind, profile)
    name = "analytical-inference" if kind == "serving" else "analytical"
    model = make_cost_model(name, additive=True, splits=True)
    agent = PretrainedDreamShard(queries=3_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = agent.plan(task)
    assert agent.answered_by == "dreamshard"
    PROBLEM.checked(plan, task)
    rule = PROBLEM.cost_ms(make_agent("lane-greedy").plan(task), task, model)
    assert PROBLEM.cost_ms(plan, task, model) < 1.1 * rule


def test_estimates_of_served_tables_are_the_forward_alone() -> None:
    task = task_on("a100-dgx", host=True)
    served = of_tables(task, task.tables.with_training(training=False))
    agent = PretrainedDreamShard(queries=100)
    agent.place(task)
    network = next(iter(agent._agents.values())).cost_model
    placement = np.arange(task.num_tables) % task.num_devices
    trained = network.estimate(placement, served.tables, served.topology).phases_ms
    alone = network.forward_alone().estimate(placement, served.tables, served.topology).phases_ms
    assert np.array_equal(alone[:, :2], trained[:, :2])
    assert (trained[:, 2:] > 0).any()
    assert not alone[:, 2:].any()


def test_groups_are_chosen_where_the_exchange_is_slow_and_averaging_rare() -> None:
    small = task_on("v100-nvlink", devices=16, count=20)
    often, rarely = (replace(small, sync_every=every) for every in (1, 10_000))
    agent = PretrainedDreamShard(queries=2_000)
    assert agent.plan(often).groups.count == 1
    assert agent.plan(rarely).groups.count > 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda task: replace(task, topology=replace(task.topology, cross_host_ratio=0.5)), "fewer bytes"),
        (
            lambda task: replace(
                task, topology=replace(task.topology, host=replace(task.topology.host, read_gb_per_s=1.0))
            ),
            "other bandwidths",
        ),
        (lambda task: of_tables(task, task.tables.at_batch_size(1_024)), "samples in a batch, and it has 1,024"),
    ],
)
def test_other_tasks_are_left_to_a_rule(change: object, says: str) -> None:
    task = change(task_on("h100-dgx", host=True))  # type: ignore[operator]
    assert says in outside(task)
    agent = PretrainedDreamShard(queries=500)
    with pytest.warns(UserWarning, match=says):
        plan = agent.plan(task)
    assert agent.answered_by == "moldable"
    PROBLEM.checked(plan, task)


def test_whole_tables_stay_whole() -> None:
    task = replace(task_on("h200-dgx"), splittable=False)
    plan = PretrainedDreamShard(queries=500).plan(replace(task, splittable=True))
    placement = PretrainedDreamShard(queries=500).place(task)
    assert placement.shape == (task.num_tables,)
    assert {each.sharding_type for each in plan.tables} >= {TABLE_WISE} or plan.placement is None
