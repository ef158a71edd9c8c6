"""Measuring on several machines at a time: many workers take turns, one program writes.

`SpreadOut` hands out the turns; what workers are, it does not care. `RayCrew` makes them actors of a Ray cluster, each
with devices of its own; it needs the package `ray`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from shard_gym.cost_models.base import CostModel
from shard_gym.cost_models.data.sampling import Draws
from shard_gym.cost_models.data.schedule import Here, Outcome, Turn
from shard_gym.errors import InvalidOptionError, missing_extra, wrong_kind

MAX_RESTARTS = 5
"""How often a worker that died is started anew; a load that is too large for its machine may kill it."""


class Crew(Protocol):
    """Workers by number, and what it takes to have them work at the same time."""

    def origins(self) -> list[tuple[str, str]]:
        """The fingerprint and the hardware of each worker's cost model."""

    def start(self, worker: int, turn: Turn) -> Any:
        """Have a worker that has nothing to do take a turn; what is returned stands for its outcome to come."""

    def first(self, tasks: Sequence[Any]) -> Any:
        """The one of `tasks` that is over, as soon as there is one."""

    def outcome(self, task: Any, turn: Turn) -> Outcome:
        """Of a task that is over; one whose worker died has no estimate."""

    def close(self) -> None:
        """End all workers."""


class SpreadOut:
    """A `turns.Measurer` that gives every worker of `crew` a turn, and the next as soon as it is done.

    Raises:
        InvalidOptionError: there is no worker, or the workers measure different things.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        origins = crew.origins()
        if len(set(origins)) != 1:
            crew.close()
            raise InvalidOptionError(
                "All workers of a collection must measure the same on the same hardware, but there are "
                f"{', '.join(sorted({f'{hardware} ({fingerprint})' for fingerprint, hardware in origins})) or 'none'}."
            )
        (self.fingerprint, self.hardware), self._size = origins[0], len(origins)

    def measure(self, turns: Iterator[Turn]) -> Iterator[Outcome]:
        """See `Measurer`; outcomes come in the order in which they are ready."""
        running: dict[Any, tuple[int, Turn]] = {}
        idle = list(range(self._size))
        while True:
            while idle and (turn := next(turns, None)) is not None:
                worker = idle.pop()
                running[self._crew.start(worker, turn)] = worker, turn
            if not running:
                return
            task = self._crew.first(list(running))
            worker, turn = running.pop(task)
            idle.append(worker)
            yield self._crew.outcome(task, turn)

    def close(self) -> None:
        """End all workers."""
        self._crew.close()


class RayCrew:
    """Workers that are actors of the Ray cluster whose address is in RAY_ADDRESS, or of one started on this machine.

    Args:
        make_model: makes the cost model, in the worker.
        draws: what the numbers mean.
        workers: how many; None for as many as the cluster has room for.
        cpus: that each worker takes.
        gpus: that each worker takes.

    Raises:
        MissingExtraError: ray is not installed.
        InvalidOptionError: there is no such cluster, or it has no room for that many.
    """

    def __init__(
        self,
        make_model: Callable[[], CostModel],
        draws: Draws,
        *,
        workers: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
    ) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise missing_extra("ray", "ray", "Measuring on several machines") from error
        if workers is not None and (type(workers) is not int or workers < 1):
            raise wrong_kind("workers", workers, "an integer of at least 1")
        self._ray, self._began = ray, not ray.is_initialized()
        if self._began:
            try:
                ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
            except ConnectionError as error:
                where = os.environ.get("RAY_ADDRESS", "this machine")
                raise InvalidOptionError(
                    f"There is no Ray cluster at {where}: {error}. Set RAY_ADDRESS to the address of one, or unset it "
                    "to have one started here."
                ) from error
        room = _room(ray.cluster_resources(), cpus, gpus)
        if room < (workers or 1):
            self.close()
            raise InvalidOptionError(
                f"The Ray cluster has room for {room} workers of {cpus:g} CPUs and {gpus:g} GPUs each, "
                f"not for {workers or 1}."
            )
        actor = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=MAX_RESTARTS)(_Worker)
        settings = replace(draws)  # without the tables it may have made
        self._actors: list[Any] = [actor.remote(make_model, settings) for _ in range(workers or room)]

    def origins(self) -> list[tuple[str, str]]:
        """See `Crew`.

        Raises:
            InvalidOptionError: a worker cannot make its cost model.
        """
        try:
            found: list[tuple[str, str]] = self._ray.get([actor.origin.remote() for actor in self._actors])
        except self._ray.exceptions.RayActorError as error:
            self.close()
            raise InvalidOptionError(f"A worker could not start: {error}") from error
        return found

    def start(self, worker: int, turn: Turn) -> Any:
        """See `Crew`."""
        return self._actors[worker].measured.remote(turn)

    def first(self, tasks: Sequence[Any]) -> Any:
        """See `Crew`."""
        return self._ray.wait(list(tasks), num_returns=1)[0][0]

    def outcome(self, task: Any, turn: Turn) -> Outcome:
        """See `Crew`."""
        try:
            found: Outcome = self._ray.get(task)
        except self._ray.exceptions.RayActorError:
            return Outcome(turn, None, reason="The worker died while it measured this.")
        return found

    def close(self) -> None:
        """See `Crew`; a cluster that was there before stays."""
        for actor in getattr(self, "_actors", ()):
            self._ray.kill(actor)
        if self._began:
            self._ray.shutdown()


class _Worker:
    """An actor."""

    def __init__(self, make_model: Callable[[], CostModel], draws: Draws) -> None:
        self._here = Here(make_model, draws)

    def origin(self) -> tuple[str, str]:
        return self._here.fingerprint, self._here.hardware

    def measured(self, turn: Turn) -> Outcome:
        return self._here.measured(turn)


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Workers that a cluster has resources for in all; on one machine less, if they do not divide evenly."""
    wanted = {"CPU": cpus, "GPU": gpus}
    return int(min(resources.get(name, 0.0) // each for name, each in wanted.items() if each))
