"""Tasks as a machine measures them: on its devices, in the batch that is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, overload

import numpy as np

from shard_gym.cost_models import CostModel
from shard_gym.cost_models.measured.machine import profile_of
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.tasks import Suite, Task, TaskSource, TaskSuite


@overload
def as_measured(source: Suite[Any], model: CostModel) -> Suite[Any]: ...


@overload
def as_measured(source: TaskSource, model: CostModel) -> TaskSource: ...


def as_measured(source: TaskSource | Suite[Any], model: CostModel) -> TaskSource | Suite[Any]:
    """The tasks of `source` as `model` measures them, so that features and estimates describe what is measured.

    Devices and links are those of the machine's hardware profile, if it has one; memory caps stay. Lookups, distinct
    rows and histograms are those of the batch size that the model measures (`Tables.at_batch_size`). A suite stays a
    suite, so its tasks keep their numbers and names. A model that does not measure changes nothing.

    Raises:
        InvalidTablesError: the model measures a larger batch than the tables' statistics describe.
        InvalidOptionError: the model measures, and the suite is of replanning.
    """
    if not isinstance(model, MeasuredCostModel):
        return source
    if isinstance(source, Suite) and not isinstance(source, TaskSuite):
        raise InvalidOptionError(
            f"Answers to tasks of {source.name!r} cannot be measured. Pass --cost-model analytical."
        )
    if isinstance(source, TaskSuite):
        return suite_as_measured(source, model.hardware, model.batch_size)
    return _SourceAsMeasured(source, profile_of(model.hardware), model.batch_size)


class _SourceAsMeasured:
    """The tasks of another source as a machine measures them; see `as_measured`."""

    def __init__(self, source: TaskSource, profile: str | None, batch_size: int | None) -> None:
        self.max_tables, self.max_devices = source.max_tables, source.max_devices
        self._source, self._profile, self._batch_size = source, profile, batch_size

    def sample(self, rng: np.random.Generator) -> Task:
        return _task_as_measured(self._source.sample(rng), self._profile, self._batch_size)


@lru_cache(maxsize=32)
def suite_as_measured(suite: TaskSuite, hardware: str, batch_size: int | None) -> TaskSuite:
    """See `as_measured`: the tasks on a machine of that name; `suite` itself if it fits.

    All who ask get one suite, so that they share what is prepared for its tasks.
    """
    profile = profile_of(hardware)
    tasks = tuple(_task_as_measured(task, profile, batch_size) for task in suite)
    if all(new is old for new, old in zip(tasks, suite, strict=True)):
        return suite
    return replace(suite, tasks=tasks, sha256="")


def _task_as_measured(task: Task, profile: str | None, batch_size: int | None) -> Task:
    tables, topology = task.tables, task.topology
    if batch_size is not None:
        tables = tables.at_batch_size(batch_size)
    if profile is not None:
        hardware = hardware_profile(profile)
        if (topology.device, topology.links) != (hardware.device, hardware.links):
            topology = hardware.topology(
                task.num_devices,
                devices_per_host=topology.devices_per_host,
                memory_cap_bytes=topology.memory_cap_bytes,
            )
    if tables is task.tables and topology is task.topology:
        return task
    return replace(task, tables=tables, topology=topology)
