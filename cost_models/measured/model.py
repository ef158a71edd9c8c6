"""`MeasuredCostModel`: executes placements and measures how long they take."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import checked_count, checked_positive, checked_seed, is_one_of
from shard_gym.common.errors import DeviceMemoryError, InvalidOptionError, unknown_name
from shard_gym.common.text import counted, format_bytes
from shard_gym.cost_models.analytical import AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.base import COMMUNICATION, COMPUTE, CostEstimate, CostModel, loads_of_plan
from shard_gym.cost_models.measured.cache import MeasurementCache
from shard_gym.cost_models.measured.job import Command, Job, Part, Repeats, Timing, Widths
from shard_gym.cost_models.measured.machine import Machine, this_machine
from shard_gym.cost_models.measured.memory import require_memory
from shard_gym.cost_models.measured.parts import (
    contents_of,
    exchange_of,
    parts_of,
    require_executable_plan,
    widths_of,
)
from shard_gym.cost_models.measured.session import Session
from shard_gym.hardware import Topology
from shard_gym.plans import ShardingPlan, check_plan, plan_of_placement
from shard_gym.plans.needs import MIXED, SPLITS, TRAINING, WEIGHTED
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import COLUMN_WISE
from shard_gym.tables import Tables
from shard_gym.tables.pools.meta_file import require_unpacked
from shard_gym.tables.workload import OPTIMIZER_STATES, WEIGHT_BYTES


class Executable(NamedTuple):
    """The weight dtypes and the optimizers that a kind of device executes."""

    weight_dtypes: tuple[str, ...]
    optimizers: tuple[str, ...]


EXECUTED: Mapping[str, Executable] = {
    "cpu": Executable(("fp16", "fp32"), ("adagrad", "rowwise_adagrad", "sgd")),
    "cuda": Executable(("fp16", "fp32"), ("adagrad", "adam", "rowwise_adagrad", "sgd")),
}
"""Of the names in `shard_gym.tables.workload`. pytorch/FBGEMM v1.8.0,
split_table_batched_embeddings_ops_training.py, asserts the optimizers of each (of a GPU LAMB and partial rowwise Adam,
too, which nobody has measured here), and documents weights in FP32 and FP16;
include/fbgemm_gpu/utils/dispatch_macros.h (commit 042505b3) has no case for weights in BF16, and on a CPU the operator
says that it is not implemented."""


def require_executable(device: str, weight_dtype: str, optimizer: str) -> None:
    """Refuse a known dtype or optimizer that is not executed on `device`, "cpu" or "cuda".

    Raises:
        InvalidOptionError: it names what is not executed, and what is.
    """
    executed = EXECUTED[device]
    for what, name, names in (
        ("weights in", weight_dtype, executed.weight_dtypes),
        ("the optimizer", optimizer, executed.optimizers),
    ):
        if name not in names:
            where = "a CPU" if device == "cpu" else "a GPU"
            trained = device == "cuda" and name in OPTIMIZER_STATES  # all of them, says FBGEMM
            who = "ShardGym" if trained else "FBGEMM's operator"
            why = "; a measurement trains with" if trained else ", so nobody can measure it there; it trains with"
            *most, last = names
            known = f"{', '.join(most)} and {last}" if most else last
            raise InvalidOptionError(
                f"{who} does not train with {what} {name} on {where}{why} "
                f"{what} {known}. The analytical cost model estimates {name}."
            )


DETAIL_NAMES = ("spread", "seconds", "clock_ghz", "late")  # names of `Measurement.details`
IQR = (25.0, 75.0)
CONFIDENCE = 0.95

LATE = (
    "The program could not stay ahead of the GPU in some iterations, so their times contain the time of Python; "
    "Measurement.late counts them. Other programs may use the CPUs, or FBGEMM waits for the GPU within an iteration."
)


@dataclass(frozen=True)
class Measurement(CostEstimate):
    """The measured cost of one placement; `phases_ms` are medians over the iterations."""

    iterations_ms: FloatArray  # (n, D, 4) float64, each device's time in each phase of each of n iterations
    spread: float  # interquartile range of the iterations' costs, as a share of their median
    seconds: float  # wall-clock time of the measurement; 0 if it comes from the cache
    clock_ghz: float = math.nan  # lowest SM clock of the GPUs; NaN on a CPU, and if all comes from the cache
    late: int = 0  # iterations on a GPU whose times contain time of the host, see `clock.GpuClock`

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """A 95% interval of the placement's cost in ms; None for fewer than 6 iterations, which are too few for one.

        It is the order-statistics interval of the median of the iterations' costs, each on the slowest devices of the
        phases. Which are the slowest is noisy, too, and its noise would lift both ends where devices are equally slow.
        So for the lower end the slowest devices of an iteration are those of the other iterations, which its own noise
        did not choose. `total_ms`, a maximum of noisy medians, has that bias, and lies near the upper end then.
        Simulated noise that is symmetric and independent: the interval holds the true cost in 95% to 99% of the
        measurements of 10 iterations, on 1 to 8 devices.
        """
        ms, n = self.iterations_ms, len(self.iterations_ms)
        rank = _median_rank(n)
        if not rank:
            return None
        others = [np.median(np.delete(ms, each, axis=0), axis=0).argmax(axis=0) for each in range(n)]
        low = np.sort(_costs_on(ms, np.array(others)))[rank - 1]
        high = np.sort(_costs_on(ms, np.tile(self.phases_ms.argmax(axis=0), (n, 1))))[-rank]
        return float(low), float(high)

    @property
    def details(self) -> dict[str, float]:
        """The clock of a CPU is 0."""
        clock = 0.0 if math.isnan(self.clock_ghz) else self.clock_ghz
        return dict(zip(DETAIL_NAMES, (self.spread, self.seconds, clock, self.late), strict=True))


def _median_rank(n: int) -> int:
    """r: the r-th smallest and largest of n numbers hold the median between them with at least 95%; 0 if none do."""
    tails = np.cumsum([math.comb(n, below) for below in range(n)]) / 2.0**n
    return int(np.count_nonzero(2 * tails <= 1 - CONFIDENCE))


def _costs_on(ms: FloatArray, devices: NDArray[np.intp]) -> FloatArray:
    """(n,) ms of n iterations, (n, D, 4) ms, on a device for each iteration and phase, (n, 4)."""
    return np.asarray(np.take_along_axis(ms, devices[:, None], axis=1).sum(axis=(1, 2)))


def summary(ms: FloatArray, seconds: float, timings: Sequence[Timing]) -> Measurement:
    """The measurement of (iterations, D, 4) ms; `timings` are what workers answered about it now."""
    phases = np.median(ms, axis=0)
    costs = ms.max(axis=1).sum(axis=1)
    low, high = np.percentile(costs, IQR)
    late = sum(timing.late for timing in timings)
    if late:
        warnings.warn(LATE, stacklevel=2)
    return Measurement(
        phases,
        float(phases.max(axis=0).sum()),
        iterations_ms=ms,
        spread=float((high - low) / np.median(costs)),
        seconds=seconds,
        clock_ghz=min((timing.clock_ghz for timing in timings if timing.clock_ghz is not None), default=math.nan),
        late=late,
    )


DEVICES = ("cpu", "cuda")
PARALLEL, SEQUENTIAL = "parallel", "sequential"
LAYOUTS = ("auto", PARALLEL, SEQUENTIAL)
"""`parallel`: one process for each device; they exchange their outputs. `sequential`: one device stands for all of
them; their operators are measured one after the other, and the all-to-alls are modelled. `auto`: `sequential` if there
are fewer GPUs (or CPUs) than devices, else `parallel`."""

PENALTY_MARGIN = 10.0
"""A penalty must exceed measured costs, which have no upper bound; this many times the estimate's bound should."""

DIGEST_LENGTH = 24  # hexadecimal digits of a hash in a fingerprint

BEYOND_PENALTY = (
    "A valid placement was measured at {:,.3f} ms, and a task without one is charged {:,.3f} ms only, so failing looks "
    "as good. Measure a larger batch (batch_size, now {:,}), whose cost is less overhead, or on an idle machine."
)


def penalty_ms(tables: Tables, topology: Topology, *, splits: bool = False) -> float:
    """Ms charged for a task without a valid answer: PENALTY_MARGIN times what the analytical model charges."""
    model = AnalyticalShardingModel() if splits else AnalyticalCostModel()
    return PENALTY_MARGIN * model.penalty_ms(tables, topology, splits=splits)


def modelled_exchange_ms(plan: ShardingPlan, tables: Tables, topology: Topology) -> FloatArray:
    """(D, 2) ms of the exchange of a plan and of that of its gradients, under the analytical model."""
    model = AnalyticalShardingModel()
    phases = model.costs(loads_of_plan(model, plan, tables, topology), topology.cluster())[0]
    return np.asarray(phases[:, COMMUNICATION])


class MeasuredCostModel(CostModel):
    """Executes placements with FBGEMM's fused operator and all-to-alls, and measures the time.

    Every iteration runs forward, all-to-all, all-to-all of the gradients, and backward with the fused optimizer. The
    devices wait for each other before each phase, so that no phase includes waiting for another one. Lookups have the
    tables' statistics (`streams.HistogramStream`). Workers start with the first measurement. `close` ends them, and so
    does the end of the program; a measurement after it starts new ones.

    Times are cached by (hardware, settings, tables on the device): a placement is executed only if something in it is
    new.

    Args:
        device: "cpu" (processes that exchange by Gloo) or "cuda" (GPUs that exchange by NCCL).
        layout: see `LAYOUTS`.
        batch_size: samples of all devices together; None for that of the tables' workload. A smaller one measures the
            tables that `Tables.at_batch_size` makes.
        iterations: timed iterations; their median counts.
        warmup: iterations before them; on a GPU at least as many, until its clock is up.
        batches: different batches of lookups, used one after the other, so that no batch finds its rows in a cache.
        seed: of the lookups.
        weight_dtype: "fp32" or "fp16", of all tables; None for that of the tables' workload, but FP32 on a CPU if they
            have one workload.
        optimizer: "adagrad", "rowwise_adagrad" or "sgd", or "adam" on a GPU, of all tables; None for that of the
            tables' workload, but rowwise Adagrad on a CPU if they have one, because FBGEMM runs every other optimizer
            there in a scalar loop.
        threads: of each process on a CPU. With more than one, other load on the machine slows a process down many
            times, because its threads wait for each other.
        timeout_s: limit of one measurement.
        cache: file that keeps measurements; None keeps them in this object's memory.
        recorded: one of Meta's lookup files, unpacked, whose lookups are used instead of drawn ones; the names of the
            tables say which of the file's they are, see `streams.LookupFile`.

    Raises:
        InvalidOptionError: an argument has no meaning, there is no such device here, or FBGEMM does not execute the
            dtype or the optimizer on it (`executable.EXECUTED`).
        MissingExtraError: torch or FBGEMM is not installed.
        DamagedFileError, UnwritablePathError: `cache` or `recorded` cannot be used.
    """

    name = "measured"
    version = 2
    detail_names = DETAIL_NAMES
    supports = frozenset({TRAINING, WEIGHTED, MIXED, SPLITS})

    def __init__(
        self,
        device: str = "cpu",
        *,
        layout: str = "auto",
        batch_size: int | None = None,
        iterations: int = 10,
        warmup: int = 3,
        batches: int = 4,
        seed: int = 0,
        weight_dtype: str | None = None,
        optimizer: str | None = None,
        threads: int = 1,
        timeout_s: float = 120.0,
        cache: str | Path | None = None,
        recorded: str | Path | None = None,
    ) -> None:
        for kind, value, known in (
            ("device", device, DEVICES),
            ("layout", layout, LAYOUTS),
            ("weight_dtype", "fp32" if weight_dtype is None else weight_dtype, WEIGHT_BYTES),
            ("optimizer", "sgd" if optimizer is None else optimizer, OPTIMIZER_STATES),
        ):
            if not is_one_of(value, known):
                raise unknown_name(kind, value, known)
        require_executable(device, weight_dtype or "fp32", optimizer or "sgd")
        self.device = device
        self.layout = layout
        self.batch_size = None if batch_size is None else checked_count("batch_size", batch_size)
        self.repeats = Repeats(
            checked_count("iterations", iterations),
            checked_count("warmup", warmup, least=0),
            checked_count("batches", batches),
            checked_seed(seed),
        )
        self.weight_dtype, self.optimizer = weight_dtype, optimizer
        self.threads = checked_count("threads", threads)
        self.timeout_s = checked_positive("timeout_s", timeout_s)
        self.recorded = None if recorded is None else Path(recorded).absolute()
        if self.recorded is not None:
            require_unpacked(self.recorded)
        self.machine: Machine = this_machine(device)
        self._cache = MeasurementCache(cache)
        self._session: Session | None = None
        self._warned_of_penalty = False
        self._timings: list[Timing] = []  # what workers answered about the placement that is measured

    @property
    def hardware(self) -> str:
        """Name of this machine's devices."""
        return self.machine.name

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a time besides the tables and the hardware, as JSON values."""
        names = ("layout", "batch_size", "weight_dtype", "optimizer", "threads")
        settings = {**{name: getattr(self, name) for name in names}, **asdict(self.repeats)}
        if self.recorded is not None:
            about = self.recorded.stat()
            settings["recorded"] = [self.recorded.name, about.st_size, about.st_mtime_ns]
        return settings

    @property
    def fingerprint(self) -> str:
        """Model, layout as it was asked for, and a hash of the hardware, the versions and the settings.

        If all-to-alls may be modelled, the hash covers the version of the analytical model, too.
        """
        return self._fingerprint(self.settings)

    def fingerprint_for(self, num_devices: Collection[int]) -> str:
        """The fingerprint with the layouts that `auto` is for tasks with so many devices; see `layout_of`."""
        return self._fingerprint(self.settings_for(num_devices))

    def settings_for(self, num_devices: Collection[int]) -> dict[str, Any]:
        """The settings with the layout of tasks with so many devices, or a list of layouts; see `layout_of`."""
        layouts = sorted(set(map(self.layout_of, num_devices)))
        return {**self.settings, "layout": layouts[0] if len(layouts) == 1 else layouts}

    def _fingerprint(self, settings: Mapping[str, Any]) -> str:
        layouts = settings["layout"] if isinstance(settings["layout"], str) else "+".join(settings["layout"])
        modelled = [] if settings["layout"] == PARALLEL else [AnalyticalCostModel().fingerprint]  # its all-to-alls
        return f"{super().fingerprint}-{layouts}-{_digest([self.machine.fingerprint, settings, *modelled])}"

    @classmethod
    def can_have_fingerprint(cls, fingerprint: str, layouts: str | Sequence[str]) -> bool:
        """Whether a model of this version, which measured in these layouts, can have this fingerprint."""
        measured_in = [layouts] if isinstance(layouts, str) else list(layouts)
        if not measured_in or not set(measured_in) <= {PARALLEL, SEQUENTIAL}:
            return False
        asked = "|".join(map(re.escape, ("auto", "+".join(measured_in))))
        pattern = f"{cls.name}-v{cls.version}-({asked})-[0-9a-f]{{{DIGEST_LENGTH}}}"
        return re.fullmatch(pattern, fingerprint) is not None

    def penalty_ms(self, tables: Tables, topology: Topology, *, splits: bool = False) -> float:
        """Ms charged for a task without a valid answer, see `penalty_ms`."""
        return penalty_ms(tables, topology, splits=splits)

    def estimate(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> Measurement:
        """Measure a checked (T,) placement or a plan, or what of it was not measured before.

        Raises:
            InvalidPlanError, MemoryExceededError: the plan is not valid; see `check_plan`.
            InvalidOptionError: there are fewer GPUs than devices, and the layout is `parallel`; or a plan has blocks of
                rows, and a batch that the devices do not divide.
            InvalidTablesError: the batch size is larger than that of the tables' workload.
            MeasurementError: see its subclasses; the message names the device, its tables and their bytes. The workers
                are terminated then, and the next measurement starts new ones.
        """
        if isinstance(answer, ShardingPlan):
            plan = check_plan(answer, tables, topology)
        else:
            plan = plan_of_placement(answer, tables)
        return self._measured(plan, tables, topology, again=False)

    def measure_again(self, answer: Placement | ShardingPlan, tables: Tables, topology: Topology) -> Measurement:
        """Measure a checked placement or plan, whether or not it was measured before; for errors see `estimate`."""
        plan = answer if isinstance(answer, ShardingPlan) else plan_of_placement(answer, tables)
        return self._measured(plan, tables, topology, again=True)

    def _measured(self, plan: ShardingPlan, tables: Tables, topology: Topology, *, again: bool) -> Measurement:
        begin = time.perf_counter()
        num_devices, trained = topology.num_devices, self.as_measured(tables)
        batch_size = trained.workload.batch_size
        require_executable_plan(plan, trained, topology)
        parts = parts_of(plan, trained, topology)
        widths = widths_of(parts, topology)
        layout = self.layout_of(num_devices)
        keys = [self._key(layout, "compute", contents_of(own)) for own in parts]
        # Devices of one host are alike: which of them has which width does not matter to an all-to-all.
        order = np.arange(num_devices) if widths.host_partial else np.argsort(widths.outputs, kind="stable")
        exchange_key = self._key(layout, "exchange", exchange_of(parts, widths, batch_size))
        # Devices with the same shards, such as halves of a table, have one time; what is cached is that, too.
        first = {keys[device]: device for device in reversed(range(num_devices)) if parts[device]}
        compute = {key: None if again else self._cached(key, 1) for key in first}
        new = sorted(first[key] for key, ms in compute.items() if ms is None)
        self._timings = []
        if layout == SEQUENTIAL:  # only new devices run, and the exchange is modelled
            for device in new:
                alone = Widths((widths.outputs[device],))
                job = Job(parts[device], num_devices, batch_size, alone, self.repeats, exchange=False)
                compute[keys[device]] = self._keep(keys[device], self._measure([job], [device])[:, :1, COMPUTE])
            exchange = modelled_exchange_ms(plan, trained, topology)[order]
        else:  # if anything is new, all devices run together, because processes on a CPU slow each other down
            kept = self._cached(exchange_key, num_devices)
            if new or kept is None:
                new, together = list(range(num_devices)), num_devices > 1
                jobs = [Job(own, num_devices, batch_size, widths, self.repeats, exchange=together) for own in parts]
                measured = self._measure(jobs, new)
                measured[..., COMMUNICATION] *= together
                for key, device in first.items():
                    compute[key] = self._keep(key, measured[:, [device]][..., COMPUTE])
                kept = self._keep(exchange_key, measured[:, order, COMMUNICATION])
            exchange = kept
        ms = np.zeros((self.repeats.iterations, num_devices, 4))
        ms[:, order, COMMUNICATION] = exchange
        for device, own in enumerate(parts):
            if own:
                ms[:, device, COMPUTE] = np.asarray(compute[keys[device]])[:, 0]
        measurement = summary(ms, time.perf_counter() - begin if new else 0.0, self._timings)
        penalty = self.penalty_ms(tables, topology, splits=plan.placement is None)
        self._compare_with_penalty(measurement.total_ms, penalty, tables)
        return measurement

    def _compare_with_penalty(self, cost_ms: float, penalty_ms: float, tables: Tables) -> None:
        """Warn, once, that a valid placement costs as much as a failure."""
        if self._warned_of_penalty or cost_ms < penalty_ms:
            return
        self._warned_of_penalty = True
        batch_size = self.batch_size or tables.workload.batch_size
        warnings.warn(BEYOND_PENALTY.format(cost_ms, penalty_ms, batch_size), stacklevel=2)

    def close(self) -> None:
        """End the workers."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> MeasuredCostModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def as_measured(self, tables: Tables) -> Tables:
        """`tables` with the batch, the dtypes and the optimizers they are executed with, in groups as they are.

        Raises:
            InvalidOptionError: FBGEMM does not execute those of the tables' workloads on this device.
        """
        cpu = self.device == "cpu" and len(tables.workloads) == 1
        in_batch = tables if self.batch_size is None else tables.at_batch_size(self.batch_size)
        executed = in_batch.with_training(
            weight_dtype=self.weight_dtype or ("fp32" if cpu else None),
            optimizer=self.optimizer or ("rowwise_adagrad" if cpu else None),
        )
        for each in executed.workloads:
            require_executable(self.device, each.weight_dtype, each.optimizer)
        return executed

    def layout_of(self, num_devices: int) -> str:
        """`parallel` or `sequential`, for a task with that many devices.

        Raises:
            InvalidOptionError: there are fewer GPUs than devices, and the layout is `parallel`.
        """
        enough = self.machine.num_devices >= num_devices
        if self.device == "cpu" and self.layout == PARALLEL:
            return PARALLEL
        if self.layout == PARALLEL and not enough:
            raise InvalidOptionError(
                f"This task has {num_devices} devices, but this machine has "
                f"{counted(self.machine.num_devices, 'GPU')}. Pass layout='sequential' to let one GPU stand for all."
            )
        return PARALLEL if enough and self.layout != SEQUENTIAL else SEQUENTIAL

    def _key(self, layout: str, kind: str, what: Any) -> str:
        return _digest([self.machine.fingerprint, self.settings, layout, kind, what])

    def _cached(self, key: str, num_devices: int) -> FloatArray | None:
        """(iterations, devices, 2) ms of two phases that were measured before; or None."""
        shape = (self.repeats.iterations, num_devices, 2)
        ms = self._cache.get(key, math.prod(shape))
        return None if ms is None else np.array(ms).reshape(shape)

    def _keep(self, key: str, ms: FloatArray) -> FloatArray:
        self._cache.put(key, ms.ravel().tolist())
        return ms

    def _measure(self, jobs: Sequence[Job], devices: Sequence[int]) -> FloatArray:
        """(iterations, n, 4) ms of n jobs that run at the same time on a worker each; `devices` are named in errors."""
        subjects = [_subject(device, job.parts) for device, job in zip(devices, jobs, strict=True)]
        session = self._workers(len(jobs))
        if self.device == "cpu":  # a GPU reports by itself that its memory is full
            try:
                require_memory(jobs, subjects, new_workers=0 if session.pids else session.size)
            except DeviceMemoryError:
                session.close()  # frees the tables of the last measurement
                require_memory(jobs, subjects, new_workers=session.size)
        commands: list[Command] = [("measure", {"job": job}) for job in jobs]
        answers = session.ask(commands, subjects, join=(len(jobs), jobs[0].hosts) if jobs[0].exchange else None)
        self._timings += [Timing(**answer) for answer in answers]
        return np.array([answer["ms"] for answer in answers]).swapaxes(0, 1)

    def _workers(self, count: int) -> Session:
        if self._session is None or self._session.size < count:
            self.close()
            recorded = None if self.recorded is None else str(self.recorded)
            self._session = Session(
                self.device, count, threads=self.threads, timeout_s=self.timeout_s, recorded=recorded
            )
        return self._session


def _subject(device: int, parts: Sequence[Part]) -> str:
    if not parts:
        return f"device {device} (no tables)"
    count = sum(len(part.tables) for part in parts)
    what = "table" if all(part.kind == COLUMN_WISE for part in parts) else "shard"
    return f"device {device} ({counted(count, what)}, {format_bytes(sum(part.memory_bytes for part in parts))})"


def _digest(what: Any) -> str:
    text = json.dumps(what, sort_keys=True, default=np.ndarray.tolist)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
