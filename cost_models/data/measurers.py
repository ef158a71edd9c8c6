"""What measures sampled placements: this process, or a pool of workers, such as those of a Ray cluster."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from shard_gym.checks import checked_count
from shard_gym.cost_models.base import CostEstimate, CostModel
from shard_gym.cost_models.data.sampling import PlacementSampler
from shard_gym.errors import InvalidOptionError, ShardGymError, missing_extra

MAX_RESTARTS = 5
"""How often a Ray worker that died is started again. A load too large for its machine may kill it."""


class MeasurementId(NamedTuple):
    """What to measure: the number of a sampled placement, and how often it was measured before (0 or 1)."""

    number: int
    repeat: int


class MeasurementResult(NamedTuple):
    """What a measurement gave: an estimate, or the reason why there is none.

    `spread` is that of the measurement; NaN where the model does not give it.
    """

    id: MeasurementId
    estimate: CostEstimate | None
    spread: float = float("nan")
    reason: str = ""


class Measurer(ABC):
    """Measures sampled placements with one cost model on one kind of machine.

    Attributes:
        fingerprint: that of the cost model.
        hardware: name of the machine; the name of a model that does not measure.
    """

    fingerprint: str
    hardware: str

    @abstractmethod
    def measure(self, ids: Iterator[MeasurementId]) -> Iterator[MeasurementResult]:
        """A result for each of `ids`, in any order; the next id is taken only when something is free to measure it."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""


class LocalMeasurer(Measurer):
    """Measures one placement after the other in this process.

    Args:
        make_model: makes the cost model. A model may cache what it measured, so repeated measurements use another one.
        sampler: gives the placements.
    """

    def __init__(self, make_model: Callable[[], CostModel], sampler: PlacementSampler) -> None:
        self._make_model, self._sampler = make_model, sampler
        model = make_model()
        self._models: dict[int, CostModel] = {0: model}
        self.fingerprint, self.hardware = model.fingerprint, str(getattr(model, "hardware", model.name))

    def measure(self, ids: Iterator[MeasurementId]) -> Iterator[MeasurementResult]:
        """A result for each of `ids`, in their order."""
        return map(self.measure_one, ids)

    def measure_one(self, id: MeasurementId) -> MeasurementResult:
        """The result of one measurement; errors of this project become its reason."""
        if id.repeat not in self._models:
            self._models[id.repeat] = self._make_model()
        sampled = self._sampler.sample(id.number)
        try:
            estimate = self._models[id.repeat].estimate(sampled.placement, sampled.tables, sampled.topology)
        except ShardGymError as error:
            return MeasurementResult(id, None, reason=str(error))
        return MeasurementResult(id, estimate, float(getattr(estimate, "spread", np.nan)))

    def close(self) -> None:
        """End the workers of the models that have any."""
        for model in self._models.values():
            getattr(model, "close", lambda: None)()


class WorkerPool(Measurer):
    """Keeps several workers busy.

    Args:
        origins: fingerprint and hardware of the cost model of each worker.

    Raises:
        InvalidOptionError: there is no worker, or the workers measure different things.
    """

    def __init__(self, origins: Sequence[tuple[str, str]]) -> None:
        if len(set(origins)) != 1:
            self.close()
            names = sorted({f"{hardware} ({fingerprint})" for fingerprint, hardware in origins})
            raise InvalidOptionError(
                "All workers of a collection must measure the same on the same hardware, but there are "
                f"{', '.join(names) or 'none'}."
            )
        self.fingerprint, self.hardware = origins[0]
        self._size = len(origins)

    def measure(self, ids: Iterator[MeasurementId]) -> Iterator[MeasurementResult]:
        """A result for each of `ids`, as soon as it is there."""
        running: dict[Any, tuple[int, MeasurementId]] = {}
        idle = list(range(self._size))
        while True:
            while idle and (id := next(ids, None)) is not None:
                worker = idle.pop()
                running[self.start(worker, id)] = worker, id
            if not running:
                return
            task = self.first_done(list(running))
            worker, id = running.pop(task)
            idle.append(worker)
            yield self.result(task, id)

    @abstractmethod
    def start(self, worker: int, id: MeasurementId) -> Any:
        """Have an idle worker measure; returns the task, which is hashable."""

    @abstractmethod
    def first_done(self, tasks: Sequence[Any]) -> Any:
        """Wait until one of `tasks` is done; returns it."""

    @abstractmethod
    def result(self, task: Any, id: MeasurementId) -> MeasurementResult:
        """The result of a task that is done; a worker that died gives a reason instead of an estimate."""


class RayWorkerPool(WorkerPool):
    """Actors of the Ray cluster whose address is in RAY_ADDRESS, or of one started on this machine.

    Args:
        make_model: makes the cost model, in the worker.
        sampler: gives the placements.
        workers: how many; None for as many as the cluster has room for.
        cpus: CPUs of each worker.
        gpus: GPUs of each worker.

    Raises:
        MissingExtraError: ray is not installed.
        InvalidOptionError: there is no such cluster, it has no room for so many workers, a worker cannot make its cost
            model, or the workers measure different things.
    """

    def __init__(
        self,
        make_model: Callable[[], CostModel],
        sampler: PlacementSampler,
        *,
        workers: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
    ) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise missing_extra("ray", "ray", "Measuring on several machines") from error
        if workers is not None:
            checked_count("workers", workers)
        self._ray, self._owns_cluster, self._actors = ray, not ray.is_initialized(), list[Any]()
        if self._owns_cluster:
            self._init()
        room = _room(ray.cluster_resources(), cpus, gpus)
        if room < (workers or 1):
            self.close()
            raise InvalidOptionError(
                f"The Ray cluster has room for {room} workers of {cpus:g} CPUs and {gpus:g} GPUs each, "
                f"not for {workers or 1}."
            )
        actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=MAX_RESTARTS)(_Actor)
        settings = replace(sampler)  # without the tables that it may have loaded
        self._actor_of: dict[Any, Any] = {}
        self._actors += [actor.remote(make_model, settings) for _ in range(workers or room)]
        try:
            origins = ray.get([actor.origin.remote() for actor in self._actors])
        except ray.exceptions.RayActorError as error:
            self.close()
            raise InvalidOptionError(f"A worker could not start: {error}") from error
        super().__init__(origins)

    def _init(self) -> None:
        try:
            self._ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        except ConnectionError as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise InvalidOptionError(
                f"There is no Ray cluster at {where}: {error}. Set RAY_ADDRESS to the address of one, or unset it "
                "to have one started here."
            ) from error

    def start(self, worker: int, id: MeasurementId) -> Any:
        """See `WorkerPool`."""
        task = self._actors[worker].measure_one.remote(id)
        self._actor_of[task] = self._actors[worker]
        return task

    def first_done(self, tasks: Sequence[Any]) -> Any:
        """See `WorkerPool`."""
        return self._ray.wait(list(tasks), num_returns=1)[0][0]

    def result(self, task: Any, id: MeasurementId) -> MeasurementResult:
        """See `WorkerPool`; waits until a worker that died is started again, because until then its tasks fail."""
        actor = self._actor_of.pop(task)
        try:
            result: MeasurementResult = self._ray.get(task)
        except self._ray.exceptions.RayActorError:
            with suppress(self._ray.exceptions.RayActorError):  # it was started too often
                self._ray.get(actor.origin.options(max_task_retries=-1).remote())
            return MeasurementResult(id, None, reason="The worker died while it measured this.")
        return result

    def close(self) -> None:
        """End all workers, and the cluster if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns_cluster:
            self._ray.shutdown()


class _Actor(LocalMeasurer):
    """A `LocalMeasurer` whose attributes are available remotely."""

    def origin(self) -> tuple[str, str]:
        return self.fingerprint, self.hardware


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Workers for which the cluster has resources in total; fewer fit if a machine's do not divide evenly."""
    needed = {"CPU": cpus, "GPU": gpus}
    return int(min(resources.get(name, 0.0) // each for name, each in needed.items() if each))
