"""Tasks as a machine measures them: on its devices, in the batch that is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import CostModel
from shard_gym.cost_models.measured import MeasuredCostModel, profile_of
from shard_gym.hardware import hardware_profile
from shard_gym.plans.needs import require_supported
from shard_gym.tasks import Suite, Task, TaskSource, TaskSuite
from shard_gym.tasks.task import num_groups_of

Source = TypeVar("Source", bound=TaskSource | Suite[Any])


def as_measured(source: Source, model: CostModel) -> Source:
    """The tasks of `source` as `model` measures them, so that features and estimates describe what is measured.

    Devices and links are those of the machine's hardware profile, if it has one, or those that were calibrated on it;
    memory caps stay. Lookups, distinct
    rows and histograms are those of the batch size that the model measures (`Tables.at_batch_size`). A suite stays a
    suite, so its tasks keep their numbers and names. A model that does not measure changes nothing.

    Raises:
        InvalidOptionError: a task needs something that is not executed: sequence tables, tables that are served, rows
            in host memory, fewer bytes across hosts, or plans for groups of devices.
    """
    if not isinstance(model, MeasuredCostModel):
        return source
    if isinstance(source, Suite) and not isinstance(source, TaskSuite):
        raise InvalidOptionError(
            f"Answers to tasks of {source.name!r} cannot be measured. Pass --cost-model analytical."
        )
    if isinstance(source, TaskSuite):
        return cast(Source, suite_as_measured(source, model.hardware, model.batch_size))
    return cast(Source, _SourceAsMeasured(cast(TaskSource, source), model.hardware, model.batch_size))


class _SourceAsMeasured:
    def __init__(self, source: TaskSource, hardware: str, batch_size: int | None) -> None:
        self.max_tables, self.max_devices = source.max_tables, source.max_devices
        self.num_groups = num_groups_of(source)
        self._source, self._hardware, self._batch_size = source, hardware, batch_size

    def sample(self, rng: np.random.Generator) -> Task:
        return _task_as_measured(self._source.sample(rng), self._hardware, self._batch_size)


@lru_cache(maxsize=32)
def suite_as_measured(suite: TaskSuite, hardware: str, batch_size: int | None) -> TaskSuite:
    """The tasks on a machine of that name, one suite for all who ask; `suite` itself if it fits."""
    tasks = tuple(_task_as_measured(task, hardware, batch_size) for task in suite)
    if all(new is old for new, old in zip(tasks, suite, strict=True)):
        return suite
    return replace(suite, tasks=tasks, sha256="")


def _task_as_measured(task: Task, machine: str, batch_size: int | None) -> Task:
    tables, topology = task.tables, task.topology
    who, of = f"The measurement of task {task.name!r}", (tables, topology)
    require_supported(who, task.needs, MeasuredCostModel.supports, of, costs=True)
    if batch_size is not None:
        tables = tables.at_batch_size(batch_size)
    profile = profile_of(machine)
    if profile is not None and topology.device.name != machine:  # that of a calibration of this machine stays
        hardware = hardware_profile(profile)
        if (topology.device, topology.links) != (hardware.device, hardware.links):
            topology = hardware.topology(
                task.num_devices,
                devices_per_host=topology.devices_per_host,
                devices_per_domain=topology.devices_per_domain,
                memory_cap_bytes=topology.memory_cap_bytes,
            )
    if tables is task.tables and topology is task.topology:
        return task
    return replace(task, tables=tables, topology=topology)
