"""Groups of devices that each hold all tables and train on a part of the batch: 2D sparse parallelism.

D devices are G groups of D / G. A group holds every table, sharded by one plan, and trains on B / G samples of the
batch; all groups have the same plan. Every `Task.sync_every` iterations the G replicas of each shard, weights and
optimizer state, are averaged. TorchRec has it as `DMPCollection` (torchrec/distributed/model_parallel.py); the paper is
"Two-dimensional sparse parallelism for large scale deep learning recommendation model training", arXiv 2508.03854.

So a task with groups is the task of one group (`task_of_group`), on a topology that says what averaging costs. The
device i of the group g is

- strided: device i G + g, so replicas are neighbours. With G of at most the W devices of a host they share a host
  (TorchRec's default).
- contiguous: device g D / G + i, so the devices of a group are neighbours (TorchRec's `use_inter_host_allreduce`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import is_integer
from shard_gym.common.errors import InvalidPlanError, InvalidTaskError, short_repr
from shard_gym.hardware import Replicas, Topology
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import CONTIGUOUS, LAYOUTS, STRIDED, Groups
from shard_gym.plans.statistics import in_batches
from shard_gym.tasks.task import Task


def device_numbers(groups: Groups, num_devices: int) -> NDArray[np.int64]:
    """(G, D / G) int64, the devices of each group."""
    size = num_devices // groups.count
    if groups.layout == STRIDED:
        return np.arange(num_devices).reshape(size, groups.count).T
    return np.arange(num_devices).reshape(groups.count, size)


def caps_in(groups: Groups, caps: NDArray[np.int64]) -> NDArray[np.int64]:
    """(D / G,) int64, the memory caps of the devices of each group: the least of the devices with the same shards.

    Args:
        caps: (D,) int64, those of all devices.
    """
    return np.asarray(caps[device_numbers(groups, len(caps))].min(axis=0))


def problem_of_groups(groups: Groups, task: Task) -> str:
    """Why the devices of `task` cannot be grouped so, the end of a sentence; empty if they can."""
    topology, count = task.topology, groups.count
    devices = topology.num_devices
    if count == 1:
        return ""
    if not task.sync_every:
        return "the task has no groups: its sync_every is 0"
    if topology.host is not None:
        return "its devices have host memory, whose rows are not averaged"
    members = {"hosts": min(topology.devices_per_host, devices), "domains": min(topology.domain_size, devices)}
    for name, of_one in members.items():
        if devices % count or devices % of_one:
            return f"{count} does not divide its {devices} devices, or {name} of {of_one} do not"
    if task.tables.workload.batch_size % count:
        return f"{count} does not divide its batch of {task.tables.workload.batch_size:,} samples"
    size = devices // count if groups.layout == CONTIGUOUS else count
    for name, of_one in members.items():
        if of_one % size and size % of_one:
            return f"groups would have different numbers of devices on its {name} of {of_one}"
    return ""


def may_have_groups(task: Task) -> bool:
    """Whether plans of `task` may have several groups of devices: rows of host memory are not averaged."""
    return bool(task.sync_every) and task.topology.host is None


def possible_groups(task: Task) -> Iterator[Groups]:
    """All groups of the devices of `task` whose memory may hold the tables, from one to the most; one group first."""
    for count in range(1, task.num_devices + 1):
        seen = set()
        for layout in LAYOUTS:
            groups = Groups(count, layout)
            try:
                topology = task_of_group(task, groups).topology
            except (InvalidPlanError, InvalidTaskError):
                continue
            same = (topology.devices_per_host, topology.domain_size, topology.replicas)
            if same not in seen:  # otherwise the layout makes no difference
                seen.add(same)
                yield groups


@lru_cache(maxsize=1024)
def task_of_group(task: Task, groups: Groups) -> Task:
    """The task of one of the groups, the same object each time; `task` itself for one group.

    Raises:
        InvalidPlanError: its devices cannot be grouped so.
        InvalidTaskError: the tables do not fit the devices of a group.
    """
    if groups.count == 1:
        return task
    if problem := problem_of_groups(groups, task):
        raise InvalidPlanError(
            f"Task {task.name!r} cannot be in {groups.count} {groups.layout} groups, because {problem}."
        )
    tables = in_batches(task.tables, task.tables.workload.batch_size // groups.count)
    topology = topology_of_group(groups, task.topology, task.sync_every)
    limits = task.constraints
    if limits is not None:
        limits = limits.on_replicas(device_numbers(groups, task.num_devices))
    return replace(task, tables=tables, topology=topology, known_placement=None, sync_every=0, constraints=limits)


def task_of_plan(plan: ShardingPlan, task: Task) -> Task:
    """The task of one of the groups of `plan`; raises the errors of `task_of_group`.

    Raises:
        InvalidPlanError: its groups are none.
    """
    groups: Any = plan.groups
    if not isinstance(groups, Groups) or not is_integer(groups.count) or groups.count < 1:
        raise InvalidPlanError(f"The groups of a plan are Groups(count, layout), not {short_repr(groups)}.")
    if groups.layout not in LAYOUTS:
        raise InvalidPlanError(f"Groups are {' or '.join(LAYOUTS)}, not {short_repr(groups.layout)}.")
    return task_of_group(task, groups)


def tasks_of_groups(task: Task) -> list[Task]:
    """The task of one group, for all `possible_groups`; that of all devices comes first."""
    return [task_of_group(task, groups) for groups in possible_groups(task)] if task.sync_every else [task]


def topology_of_group(groups: Groups, topology: Topology, sync_every: int) -> Topology:
    """The devices of one of several groups, each of which has the least memory cap of its replicas.

    The number of groups must divide that of the devices.
    """
    numbers = device_numbers(groups, topology.num_devices)
    hosts, domains = topology.hosts[numbers], topology.domains[numbers]
    in_domain = int((domains[:, 0] == domains[0, 0]).sum())
    several = topology.devices_per_domain is not None
    return replace(
        topology,
        num_devices=numbers.shape[1],
        devices_per_host=int((hosts[0] == hosts[0, 0]).sum()),
        devices_per_domain=int((domains[0] == domains[0, 0]).sum()) if several else None,
        memory_cap_bytes=caps_in(groups, topology.memory_cap_bytes),
        replicas=Replicas(groups.count, in_domain, sync_every),
    )
