"""Tasks as they stand on the machine that measures them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shard_gym.hardware import HardwareProfile, hardware_profile
from shard_gym.tasks import Task, TaskSource, TaskSuite


def task_on(task: Task, profile: HardwareProfile) -> Task:
    """`task` on the devices and links of `profile`; what each device may hold stays."""
    topology = profile.topology(
        task.num_devices,
        devices_per_host=task.topology.devices_per_host,
        memory_cap_bytes=task.topology.memory_cap_bytes,
    )
    return replace(task, topology=topology)


@dataclass(frozen=True)
class TasksOn:
    """The tasks of `source`, each as it stands on `profile`."""

    source: TaskSource
    profile: HardwareProfile

    @property
    def max_tables(self) -> int:
        """See `TaskSource`."""
        return self.source.max_tables

    @property
    def max_devices(self) -> int:
        """See `TaskSource`."""
        return self.source.max_devices

    def sample(self, rng: np.random.Generator) -> Task:
        """See `TaskSource`."""
        return task_on(self.source.sample(rng), self.profile)


def tasks_on(source: TaskSource, profile: HardwareProfile) -> TaskSource:
    """The tasks of `source` on `profile`; a suite stays a suite, so its tasks keep their numbers and names."""
    return _suite_on(source, profile.name) if isinstance(source, TaskSuite) else TasksOn(source, profile)


@lru_cache(maxsize=32)
def _suite_on(suite: TaskSuite, profile: str) -> TaskSuite:
    """Many environments of one suite share its tasks, and what was prepared for them."""
    there = hardware_profile(profile)
    return replace(suite, tasks=tuple(task_on(task, there) for task in suite), sha256="")
