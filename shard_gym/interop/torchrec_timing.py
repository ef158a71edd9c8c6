"""Training steps of TorchRec timed on processes of this machine, beside the phases that `MeasuredCostModel` measures.

Both execute the same plans on the same lookups, with one process for each device, on the same CPUs. A step of TorchRec
is wall-clock time from the indices of each device's own samples to the updated weights. So it has what a cost leaves
out: the exchange of the indices (input dist), and copies.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import is_integer
from shard_gym.common.errors import (
    InvalidOptionError,
    MeasurementError,
    MeasurementTimeoutError,
    WorkerDiedError,
    missing_torchrec,
)
from shard_gym.cost_models.fitting import PlacementSampler
from shard_gym.cost_models.fitting.data.folder import MeasurementIndex
from shard_gym.cost_models.fitting.data.measurements import MIN_TASK_PLACEMENTS
from shard_gym.cost_models.fitting.data.sampling import CYCLE, TEST_EVERY
from shard_gym.cost_models.fitting.metrics import kendall_tau
from shard_gym.cost_models.measured import PARALLEL, MeasuredCostModel
from shard_gym.cost_models.measured.cpus import CpuShare
from shard_gym.cost_models.measured.job import FAILED, OK, Repeats
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan
from shard_gym.tables import Tables

MAX_BYTES = 2 * 2**30
"""Most memory for the tables of a plan, because ShardGym's workers and TorchRec's processes have them at the same time;
larger tables are left out."""

TIMEOUT_S = 120.0  # of the steps of one plan, and of starting the processes

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""That of ShardGym's workers on CPUs, see `cost_models.measured.session`: new pages would take longer than a step."""


def require_torchrec() -> None:
    """Raise MissingExtraError, which says how to install TorchRec, if it is not installed."""
    if find_spec("torchrec") is None:
        raise missing_torchrec("Timing a step of TorchRec")


class TorchRecProcesses:
    """Processes that train with TorchRec, one for each device of a topology; a context manager.

    Args:
        topology: the devices; only their number, and that of the devices of a host, matter.
        timeout_s: limit of one plan.

    Raises:
        MissingExtraError: TorchRec is not installed.
    """

    def __init__(self, topology: Topology, timeout_s: float = TIMEOUT_S) -> None:
        require_torchrec()
        self._timeout_s, self._count = timeout_s, topology.num_devices
        self._share = CpuShare(self._count)
        folder = tempfile.mkdtemp(prefix="shard-gym-")
        self._links: list[Connection] = []
        processes: list[SpawnProcess] = []
        self._close = weakref.finalize(self, _end, processes, self._links, folder)
        context = multiprocessing.get_context("spawn")
        with _environment(_ENVIRONMENT):
            for device in range(self._count):
                ours, theirs = context.Pipe()
                own = self._share.cpus[device : device + 1]
                arguments = (theirs, own, device, self._count, topology.devices_per_host, folder)
                processes.append(context.Process(target=_serve, args=arguments, daemon=True))
                processes[-1].start()
                theirs.close()
                self._links.append(ours)

    def step_ms(self, plan: ShardingPlan, tables: Tables, topology: Topology, repeats: Repeats) -> FloatArray:
        """(iterations,) ms of the timed steps of a checked plan, each until the last device is done.

        Raises:
            MeasurementError, WorkerDiedError, MeasurementTimeoutError: a process failed, ended, or gave no answer in
                time. All are ended then, and this object is of no more use.
        """
        own: FloatArray = np.array(self._ask("step_ms", plan, tables, topology, repeats))
        return np.asarray(own.max(axis=0))

    def run_step(
        self, plan: ShardingPlan, tables: Tables, topology: Topology, repeats: Repeats, weights: Sequence[Any]
    ) -> list[Any]:
        """What `torchrec_step.run_step` returns on each device; errors as in `step_ms`."""
        return self._ask("run_step", plan, tables, topology, repeats, weights=weights)

    def close(self) -> None:
        """End the processes."""
        self._close()

    def __enter__(self) -> TorchRecProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, name: str, *arguments: Any, **options: Any) -> list[Any]:
        try:
            for device, link in enumerate(self._links):
                try:
                    link.send((name, arguments, options))
                except OSError:
                    raise _death_error(device) from None
            return self._answers()
        except BaseException:  # the others may wait for the one that failed
            self.close()
            raise

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + self._timeout_s
        while len(found) < self._count:
            waiting = {link: device for device, link in enumerate(self._links) if device not in found}
            ready = wait(list(waiting), max(deadline - time.monotonic(), 0))
            if not ready:
                raise MeasurementTimeoutError(
                    f"TorchRec gave no answer within {self._timeout_s:g} s. Its collectives are stuck, or there is too "
                    "much to measure: take a data set of a smaller batch or of fewer tables."
                )
            for link in ready:
                assert isinstance(link, Connection)
                device = waiting[link]
                try:
                    kind, content = link.recv()
                except (EOFError, OSError):
                    raise _death_error(device) from None
                if kind == FAILED:
                    raise MeasurementError(
                        f"TorchRec failed on device {device}: {content}. Look for this message in its issues; "
                        "ShardGym is tested with TorchRec 1.8."
                    )
                found[device] = content
        return [found[device] for device in range(self._count)]


def _death_error(device: int) -> WorkerDiedError:
    return WorkerDiedError(
        f"The process of device {device} ended while TorchRec executed a plan. Linux ends processes when memory runs "
        "out; free some, or take a data set of smaller tables."
    )


def _serve(
    link: Connection, cpus: Sequence[int], device: int, num_devices: int, devices_per_host: int, folder: str
) -> None:
    """A process: answer messages until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which then ends this process
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        from shard_gym.interop import torchrec_step

        torchrec_step.join_group(device, num_devices, devices_per_host, folder)
        while True:
            name, arguments, options = link.recv()
            link.send((OK, getattr(torchrec_step, name)(*arguments, device=device, **options)))
    except EOFError:  # Python would end while threads of Gloo run, which C++ reports as an error
        os._exit(0)
    except Exception as error:
        link.send((FAILED, f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]))


def _end(processes: Sequence[SpawnProcess], links: Sequence[Connection], folder: str) -> None:
    for process in processes:
        process.kill()
        process.join()
    for link in links:
        link.close()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Variables that the processes started in here get."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# Plans of a data set


@dataclass(frozen=True)
class PlanTimes:
    """What one plan takes."""

    number: int  # of the plan in its sampler
    plan: ShardingPlan
    phases_ms: float  # the measured cost: the sum of the phases, each on its slowest device
    step_ms: float  # a training step of TorchRec, median

    @property
    def ratio(self) -> float:
        """TorchRec's step in multiples of the phases."""
        return self.step_ms / self.phases_ms


def plans_like(index: MeasurementIndex, profile: str | None = None) -> PlacementSampler:
    """Gives plans of the tables and the devices that a data set has, all of them `MAX_BYTES` large at most.

    Args:
        index: of the data set.
        profile: the hardware profile of the devices, a name or a folder; that of the data set if it is None.

    Raises:
        InvalidOptionError: the data set was not made by a `PlacementSampler`, or the batch cannot be split.
        UnknownNameError: there is no such profile.
    """
    sampling = {**index.sampling, "plan_share": 1.0}
    names = {field.name for field in fields(PlacementSampler)} - {"workload"}
    if (
        set(sampling) != names
        or not is_integer(sampling["max_bytes"])
        or not isinstance(sampling["pools"], (list, tuple))
    ):
        raise InvalidOptionError(
            "The placements of this data set were not drawn at random, so there are no random plans of its tables. "
            "Take one that `shard-gym collect` made."
        )
    sampling |= {"pools": tuple(sampling["pools"]), "max_bytes": min(sampling["max_bytes"], MAX_BYTES)}
    if profile is not None:
        sampling["profile"] = profile
    return PlacementSampler(index.workload, **sampling)


def timed_plans(sampler: PlacementSampler, count: int) -> Iterator[PlanTimes]:
    """The times of the first `count` test plans of a sampler, one after the other; see `tau_within_tables` for why.

    Raises:
        MissingExtraError: TorchRec or FBGEMM is not installed.
        InvalidOptionError: FBGEMM does not execute the dtype or the optimizer on a CPU.
        MeasurementError: see `TorchRecProcesses.step_ms` and `MeasuredCostModel.estimate`.
    """
    require_torchrec()
    workload, first = sampler.workload, sampler.sample(TEST_EVERY - 1)
    model = MeasuredCostModel("cpu", layout=PARALLEL, weight_dtype=workload.weight_dtype, optimizer=workload.optimizer)
    with model, TorchRecProcesses(first.topology) as torchrec:
        for number in range(TEST_EVERY - 1, TEST_EVERY * count, TEST_EVERY):
            sampled = sampler.sample(number)
            assert sampled.plan is not None
            what = sampled.plan, sampled.tables, sampled.topology
            phases_ms = model.estimate(*what).total_ms
            step_ms = float(np.median(torchrec.step_ms(*what, model.repeats)))
            yield PlanTimes(number, sampled.plan, phases_ms, step_ms)


def tau(times: Sequence[PlanTimes]) -> float:
    """Kendall's tau-b between the phases and TorchRec's steps; needs scipy."""
    return kendall_tau(np.array([each.phases_ms for each in times]), np.array([each.step_ms for each in times]))


def tau_within_tables(times: Sequence[PlanTimes]) -> float | None:
    """The mean of `tau` over sets of plans of the same tables; None if no set is large enough to rank.

    Test plans of a cycle of a sampler have the same tables, see `data.sampling`. Plans of different tables are easy to
    rank, because some tables are much more work than others.
    """
    sets = [[each for each in times if each.number // CYCLE == cycle] for cycle in {t.number // CYCLE for t in times}]
    found = [tau(each) for each in sets if len(each) >= MIN_TASK_PLACEMENTS]
    return float(np.mean(found)) if found else None
