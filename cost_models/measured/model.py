"""`MeasuredCostModel`: a placement is executed, and what it costs is the time that took."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.all_to_all import all_to_all_ms
from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import AdditiveCostModel, CostEstimate, CostModel, FloatArray
from shard_gym.cost_models.measured.cache import MeasurementCache
from shard_gym.cost_models.measured.job import Job, Repeats, output_width, tables_to_json
from shard_gym.cost_models.measured.machine import Machine, this_machine
from shard_gym.cost_models.measured.memory import require_memory, require_room
from shard_gym.cost_models.measured.session import Session
from shard_gym.errors import DeviceMemoryError, InvalidOptionError, unknown_name
from shard_gym.placement import Placement
from shard_gym.pools.meta_file import require_unpacked
from shard_gym.system import usable_cpus
from shard_gym.tables import OPTIMIZER_BYTES_PER_ROW, WEIGHT_BYTES, Tables
from shard_gym.text import counted, format_bytes
from shard_gym.topology import Topology

DEVICES = ("cpu", "cuda")

EACH, IN_TURN = "each", "in-turn"
LAYOUTS = ("auto", EACH, IN_TURN)
"""`each`: one process for each device, which exchange their outputs. `in-turn`: one device stands for all of them;
their operators are measured one after the other, and the all-to-alls are modelled. `auto`: `in-turn` where there are
fewer GPUs than devices, else `each`."""

OUTPUT_BYTES = 4
PENALTY_MARGIN = 10.0
"""A penalty has to exceed what no estimate bounds; the estimate's upper bound this many times should."""

IQR = (25.0, 75.0)


@dataclass(frozen=True)
class Measurement(CostEstimate):
    """What one placement took.

    Attributes:
        phases_ms: (D, 4) float64, median over the iterations of what each device took in each phase.
        total_ms: the sum over the phases of the slowest device's median.
        iterations_ms: (n, D, 4) float64, what each device took in each phase of each of n iterations.
        spread: interquartile range of the iterations' costs, as a share of their median.
        seconds: wall-clock time of the measurement; 0 if it was remembered.
    """

    iterations_ms: FloatArray
    spread: float
    seconds: float

    @property
    def details(self) -> dict[str, float]:
        """See `CostEstimate`."""
        return {"spread": self.spread, "seconds": self.seconds}


class MeasuredCostModel(CostModel):
    """Executes placements with FBGEMM's fused operator and all-to-alls, and times them.

    Every iteration runs forward, all-to-all, all-to-all back, and backward with the fused optimizer; before each phase
    the devices wait for each other, so that no phase holds another one's waiting. Lookups are drawn to have the tables'
    statistics (`streams.HistogramStream`). Workers start with the first measurement; `close` ends them, the end of the
    program does too, and a measurement after it starts new ones.

    What was measured is remembered by (hardware, tables on the device): a placement is executed only if something in
    it is new.

    Args:
        device: "cpu" (processes that exchange by Gloo) or "cuda" (GPUs that exchange by NCCL).
        layout: see `LAYOUTS`.
        batch_size: samples of all devices together; None for that of the tables' workload.
        iterations: timed ones; their median counts.
        warmup: iterations before them.
        batches: different batches of lookups, used in turn, so that no batch finds its rows in a cache.
        seed: of the lookups.
        weight_dtype: "fp32" or "fp16"; None for FP32 on a CPU, and for that of the tables' workload on a GPU.
        optimizer: "rowwise_adagrad" or "sgd"; None for rowwise Adagrad on a CPU, where FBGEMM runs every other one in
            a scalar loop, and for that of the tables' workload on a GPU.
        threads: of each process on a CPU; None shares those there are.
        timeout_s: limit of one measurement.
        cache: file to remember measurements in; None for this object's memory.
        recorded: one of Meta's lookup files, unpacked, to take lookups from in place of drawing them; tables say by
            their names which of the file's they are, see `recorded.RecordedLookups`.

    Raises:
        InvalidOptionError: an argument means nothing, or there is no such device here.
        MissingExtraError: torch or FBGEMM is not installed.
        DamagedFileError, UnwritablePathError: `cache` or `recorded` cannot be used.
    """

    name = "measured"
    version = 1

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
        threads: int | None = None,
        timeout_s: float = 120.0,
        cache: str | Path | None = None,
        recorded: str | Path | None = None,
    ) -> None:
        for kind, value, known in (
            ("device", device, DEVICES),
            ("layout", layout, LAYOUTS),
            ("weight_dtype", weight_dtype or "fp32", WEIGHT_BYTES),
            ("optimizer", optimizer or "sgd", OPTIMIZER_BYTES_PER_ROW),
        ):
            if value not in known:
                raise unknown_name(kind, value, known)
        counts = {"iterations": iterations, "batches": batches, "batch_size": batch_size, "threads": threads}
        for name, count in (*counts.items(), ("warmup", warmup), ("seed", seed)):
            _require_whole(name, count, least=0 if name in ("warmup", "seed") else 1)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < float("inf"):
            raise InvalidOptionError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}.")
        self.device, self.batch_size = device, batch_size
        self.layout = EACH if (device, layout) == ("cpu", "auto") else layout
        self.repeats = Repeats(iterations, warmup, batches, seed)
        self.weight_dtype, self.optimizer = weight_dtype, optimizer
        self.threads, self.timeout_s = threads, float(timeout_s)
        self.recorded = None if recorded is None else Path(recorded).absolute()
        if self.recorded is not None:
            require_unpacked(self.recorded)
        self.guide: AdditiveCostModel = AnalyticalCostModel()
        self.machine: Machine = this_machine(device)
        self._cache = MeasurementCache(cache)
        self._session: Session | None = None

    @property
    def hardware(self) -> str:
        """Name of this machine's devices."""
        return self.machine.name

    @property
    def fingerprint(self) -> str:
        """Model, layout, and a hash of the hardware, the versions and how it measures."""
        return f"{super().fingerprint}-{self.layout}-{_digest([self.machine.fingerprint, self._manner()])}"

    def penalty_ms(self, tables: Tables, topology: Topology) -> float:
        """Ms charged for a task without a valid placement: PENALTY_MARGIN times what the analytical model charges."""
        return PENALTY_MARGIN * self.guide.penalty_ms(tables, topology)

    def estimate(self, placement: Placement, tables: Tables, topology: Topology) -> Measurement:
        """What a checked (T,) placement takes.

        Raises:
            InvalidOptionError: there are fewer GPUs than devices, and the layout is `each`.
            MeasurementError: see its subclasses; the message names the device, its tables and their bytes. The workers
                are gone then, and the next measurement starts new ones.
        """
        begin = time.perf_counter()
        trained = self.as_trained(tables)
        parts = [self._part(trained, np.flatnonzero(placement == device)) for device in range(topology.num_devices)]
        layout = self.layout_of(topology.num_devices)
        keys = [self._key(layout, "compute", part and tables_to_json(part)) for part in parts]
        widths = tuple(output_width(part) for part in parts)
        # Devices of one host are alike: which of them has which width does not matter to an all-to-all.
        order = np.argsort(widths, kind="stable")
        exchange_key = self._key(layout, "exchange", [sorted(widths), self._samples(tables)])
        measured = False
        if layout == IN_TURN:
            for device, (key, part) in enumerate(zip(keys, parts, strict=True)):
                if part is not None and self._cache.get(key) is None:
                    self._measure_alone(key, device, part, widths)
                    measured = True
            exchange = self._modelled(widths, topology, self._samples(tables))[order]
        else:
            wanted = [*(key for key, part in zip(keys, parts, strict=True) if part is not None), exchange_key]
            if any(self._cache.get(key) is None for key in wanted):
                self._measure_together(keys, exchange_key, order, parts, widths)
                measured = True
            exchange = np.array(self._cache.get(exchange_key)).reshape(self.repeats.iterations, -1, 2)
        ms = np.zeros((self.repeats.iterations, topology.num_devices, 4))
        ms[:, order, 1:3] = exchange
        for device, (key, part) in enumerate(zip(keys, parts, strict=True)):
            if part is not None:
                ms[:, device, ::3] = np.array(self._cache.get(key)).reshape(-1, 2)
        return _summary(ms, time.perf_counter() - begin if measured else 0.0)

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

    def as_trained(self, tables: Tables) -> Tables:
        """`tables` with the dtype and the optimizer they are executed with."""
        cpu = self.device == "cpu"
        return tables.with_training(
            weight_dtype=self.weight_dtype or ("fp32" if cpu else None),
            optimizer=self.optimizer or ("rowwise_adagrad" if cpu else None),
        )

    def layout_of(self, num_devices: int) -> str:
        """`each` or `in-turn`, for a task with that many devices."""
        if self.device == "cpu":
            return self.layout
        enough = self.machine.num_devices >= num_devices
        if self.layout == EACH and not enough:
            raise InvalidOptionError(
                f"This task has {num_devices} devices, but this machine has "
                f"{counted(self.machine.num_devices, 'GPU')}. Pass layout='in-turn' to let one GPU stand for all."
            )
        return EACH if enough and self.layout != IN_TURN else IN_TURN

    # Inside

    def _samples(self, tables: Tables) -> int:
        return self.batch_size or tables.workload.batch_size

    @staticmethod
    def _part(tables: Tables, rows: NDArray[np.int64]) -> Tables | None:
        return tables.select(rows) if len(rows) else None

    def _manner(self) -> dict[str, Any]:
        """All that decides a time beside the tables and the hardware."""
        names = ("layout", "batch_size", "weight_dtype", "optimizer", "threads")
        manner = {**{name: getattr(self, name) for name in names}, **asdict(self.repeats)}
        if self.recorded is not None:
            about = self.recorded.stat()
            manner["recorded"] = [self.recorded.name, about.st_size, about.st_mtime_ns]
        return manner

    def _key(self, layout: str, kind: str, what: Any) -> str:
        return _digest([self.machine.fingerprint, self._manner(), layout, kind, what])

    def _measure_alone(self, key: str, device: int, part: Tables, widths: tuple[int, ...]) -> None:
        """Measure the operator of one device on the one there is."""
        job = Job(part, self._samples(part), (widths[device],), self.repeats, exchange=False)
        subjects = [_subject(device, part)]
        self._require_memory([job], subjects)
        (answer,) = self._with_workers(1).ask([{"do": "measure", **job.to_json()}], subjects)
        self._cache.put(key, np.array(answer["ms"])[:, ::3].ravel().tolist())

    def _measure_together(
        self,
        keys: Sequence[str],
        exchange_key: str,
        order: NDArray[np.int64],
        parts: Sequence[Tables | None],
        widths: tuple[int, ...],
    ) -> None:
        """Execute a whole placement."""
        together = len(parts) > 1
        samples = next(self._samples(part) for part in parts if part is not None)
        jobs = [Job(part, samples, widths, self.repeats, exchange=together) for part in parts]
        subjects = [_subject(device, part) for device, part in enumerate(parts)]
        self._require_memory(jobs, subjects)
        answers = self._with_workers(len(parts)).ask(
            [{"do": "measure", **job.to_json()} for job in jobs], subjects, join=len(parts) if together else 0
        )
        ms = np.array([answer["ms"] for answer in answers]).swapaxes(0, 1)  # (iterations, D, 4)
        ms[:, :, 1:3] *= together
        for device, key in enumerate(keys):
            self._cache.put(key, ms[:, device, ::3].ravel().tolist())
        self._cache.put(exchange_key, ms[:, order, 1:3].ravel().tolist())

    def _require_memory(self, jobs: Sequence[Job], subjects: Sequence[str]) -> None:
        """Refuse what does not fit, when the workers no longer hold the tables of the last measurement."""
        try:
            require_memory(self.device, jobs, subjects)
        except DeviceMemoryError:
            self.close()
            require_memory(self.device, jobs, subjects)

    def _modelled(self, widths: tuple[int, ...], topology: Topology, samples: int) -> FloatArray:
        """(D, 2) ms of both all-to-alls, as the analytical model has them."""
        sent = np.array(widths, np.float64) * OUTPUT_BYTES * samples
        one_way = all_to_all_ms(sent, topology.cluster())
        return np.stack([one_way, one_way], axis=-1)

    def _with_workers(self, count: int) -> Session:
        """A session of at least `count` workers."""
        if self._session is None or self._session.size < count:
            self.close()
            require_room(self.device, count)
            threads = self.threads or max(1, usable_cpus() // count)
            recorded = None if self.recorded is None else str(self.recorded)
            self._session = Session(self.device, count, threads=threads, timeout_s=self.timeout_s, recorded=recorded)
        return self._session


def _summary(ms: FloatArray, seconds: float) -> Measurement:
    """Of (iterations, D, 4) ms."""
    phases = np.median(ms, axis=0)
    costs = ms.max(axis=1).sum(axis=1)
    low, high = np.percentile(costs, IQR)
    return Measurement(phases, float(phases.max(axis=0).sum()), ms, float((high - low) / np.median(costs)), seconds)


def _subject(device: int, part: Tables | None) -> str:
    """For error messages."""
    if part is None:
        return f"device {device} (no tables)"
    return f"device {device} ({counted(len(part), 'table')}, {format_bytes(int(part.memory_bytes.sum()))})"


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _require_whole(name: str, value: Any, least: int) -> None:
    none = value is None and name in ("batch_size", "threads")
    if not none and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least):
        raise InvalidOptionError(f"{name} must be an integer of at least {least}, not {value!r}.")
