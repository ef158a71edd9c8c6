"""Calibration of the machine at hand: it is measured, and a hardware profile and a cost model are fitted to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shard_gym.common.checks import checked_count, checked_positive, checked_seed
from shard_gym.common.errors import InvalidOptionError, RunsFailedError, wrong_kind
from shard_gym.common.io.files import require_writable, write_atomically
from shard_gym.common.system import usable_memory
from shard_gym.common.text import command_line, format_seconds
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.fitting import machine_folder
from shard_gym.cost_models.fitting.calibration import Calibration
from shard_gym.cost_models.fitting.card import make_card
from shard_gym.cost_models.fitting.data.collecting import CollectionProgress, collect
from shard_gym.cost_models.fitting.data.designed import DesignedSampler
from shard_gym.cost_models.fitting.data.folder import INDEX
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.fitting.data.sampling import PlacementSampler, Sampler
from shard_gym.cost_models.fitting.fit import FitOptions, fit_cost_model
from shard_gym.cost_models.fitting.machine_folder import LINKS, PLACEMENTS, WORK, Verdict
from shard_gym.cost_models.fitting.measuring import PLAN_SHARE, default_memory, measured_costs, workload_of
from shard_gym.cost_models.fitting.metrics import Estimates, errors_of, estimates_of
from shard_gym.cost_models.fitting.report import compare, page
from shard_gym.cost_models.measured import (
    PARALLEL,
    SEQUENTIAL,
    Machine,
    Session,
    machine_for,
    operator_failure,
    profile_of,
)
from shard_gym.cost_models.neural import NeuralCostModel
from shard_gym.hardware import MAX_DEVICES, HardwareProfile, HostSpec, hardware_profile, write_profile
from shard_gym.hardware.profile_files import PROFILE_FILE
from shard_gym.tables import Workload

DEFAULT_BATCH = {"cpu": 2_048, "cuda": 65_536}
DEFAULT_PROFILE = {"cpu": "cpu", "cuda": "a100-dgx"}
FIT_SHARE, LEAST_FIT_S, MOST_FIT_S = 0.15, 60.0, 180.0
"""The share of the time that is left for the fits; the least and the most seconds of it. A third is left at most."""

FIT_STEPS = 5_000
FEWEST = 40  # random placements that a network is fitted to at least: one cycle of the splits
EXCHANGE_DEVICES = 4  # processes of a CPU that exchange, at most

TRIAL, FIT = "trying FBGEMM", "fitting a network"
"""Stages of a calibration before and after those that measure, which have the names of their folders."""


class CalibrationProgress(NamedTuple):
    """State of a calibration.

    Attributes:
        stage: what it does: `TRIAL`, "links", "work", "placements" or `FIT`.
        done: the share of the stage that is done, from 0 to 1.
        measured: measurements of the stage so far, those of earlier runs among them.
        failed: those that failed.
    """

    stage: str
    done: float
    measured: int = 0
    failed: int = 0


OnProgress = Callable[[CalibrationProgress], None]


@dataclass(frozen=True)
class MachineCalibration:
    """What `calibrate` found; as text, what to trust, where it is, and how to plan with it.

    Attributes:
        folder: with everything; the name of a hardware profile and of a cost model.
        calibration: the calibrated hardware profile, and the standard errors of its numbers.
        model: the network that was fitted to the measurements.
        verdict: the errors of both on tables that no fit saw, and what to trust.
        num_devices: of the measured placements.
        measured: measurements that this run added.
        seconds: that it took.
    """

    folder: Path
    calibration: Calibration
    model: NeuralCostModel
    verdict: Verdict
    num_devices: int
    measured: int
    seconds: float

    def __str__(self) -> str:
        parts = "" if self.measured else "Nothing was measured, because the time was used before; raise `minutes`. "
        text = f"{self.verdict}\n{parts}Written to {self.folder}, in {format_seconds(self.seconds)}."
        if not self.verdict.trusted:
            return text
        given = {"tables": "my_tables.json", "num_devices": self.num_devices, "hardware": self.folder}
        given |= {"cost_model": self.folder} if self.verdict.trusted == machine_folder.NETWORK else {}
        return f"{text}\n\nNext: {command_line('place', **given, out='plan.json')}"


def calibrate(
    folder: str | Path,
    *,
    minutes: float = 15.0,
    hardware: str | Machine = "auto",
    devices: int = 4,
    batch_size: int | None = None,
    weight_dtype: str | None = None,
    optimizer: str | None = None,
    iterations: int = 10,
    seed: int = 0,
    on_progress: OnProgress = lambda state: None,
) -> MachineCalibration:
    """Measure this machine into `folder`; fit a hardware profile and a cost model to it: `shard-gym calibrate`.

    A call with the same arguments continues one that was stopped; with more `minutes` it measures more. Needs FBGEMM.

    Args:
        folder: for measurements, hardware profile, cost model and report; see `machine_folder`.
        minutes: time for all of it.
        hardware: what to calibrate: a machine, "cpu", "cuda", or "auto" for a CUDA GPU if there is one.
        devices: devices of a placement.
        batch_size: samples of an iteration, over all devices; 2,048 on CPUs and 65,536 on GPUs if not given.
        weight_dtype: "fp16" or "fp32"; if not given, "fp16" on GPUs and "fp32" on CPUs.
        optimizer: if not given, "sgd" on GPUs and "rowwise_adagrad" on CPUs.
        iterations: timed ones of a measurement.
        seed: of the placements.
        on_progress: called after every measurement, and as the network is fitted.

    Raises:
        InvalidOptionError: an argument is out of range, the operator of FBGEMM does not work here, or the folder was
            begun with other arguments or on another machine.
        RunsFailedError: too little was measured to fit to. What was measured is kept.
        DamagedFileError, UnwritablePathError: the folder is damaged, or the disk refuses.
        MissingExtraError: torch, scipy or pyarrow is not installed.
    """
    if not isinstance(folder, (str, Path)):
        raise wrong_kind("folder", folder, "a path")
    if not isinstance(hardware, (str, Machine)):
        raise wrong_kind("hardware", hardware, 'a Machine, "cpu", "cuda" or "auto"')
    if not callable(on_progress):
        raise wrong_kind("on_progress", on_progress, "a function of a CalibrationProgress")
    out, started = Path(folder), time.monotonic()
    checked_positive("minutes", minutes)
    seed = checked_seed(seed)
    checked_count("devices", devices, 2, MAX_DEVICES)
    machine = machine_for(hardware)[0] if isinstance(hardware, str) else hardware
    size = DEFAULT_BATCH[machine.kind] if batch_size is None else batch_size
    workload = workload_of(machine, size, weight_dtype, optimizer)
    if workload.batch_size % devices:
        raise InvalidOptionError(
            f"Plans have blocks of rows, which are executed with as many samples for each device, but {devices} "
            f"devices do not divide a batch of {workload.batch_size:,}. Pass another `batch_size` or `devices`."
        )
    require_writable(out / PROFILE_FILE)
    run = _Run(out, machine, workload, devices, iterations, minutes * 60.0, seed, on_progress)
    on_progress(CalibrationProgress(TRIAL, 0.0))
    if failure := operator_failure(machine.kind):
        raise InvalidOptionError(f"{failure} Run shard-gym doctor, which says what to install.")
    measured = run.measure(seed)
    count = 0 if measured.found is None else len(measured.found.first.data)
    if measured.found is None or count < FEWEST:
        raise RunsFailedError(
            f"{count} placements are too few to fit to, and to tell how far a fit is off; {FEWEST} are the least, and "
            "some hundreds are good. Repeat it with more `minutes`; what was measured is kept."
        )
    calibration, model, verdict = _fit(run, measured, measured.found, seed)
    seconds = time.monotonic() - started
    return MachineCalibration(out, calibration, model, verdict, devices, run.measured_now, seconds)


class _Measured(NamedTuple):
    """What was measured: the links, in a profile, with standard errors; the host of a GPU; random placements."""

    linked: HardwareProfile
    link_errors: dict[str, float]
    host: HostSpec | None
    found: Measurements | None


def _fit(
    run: _Run, measured: _Measured, found: Measurements, seed: int
) -> tuple[Calibration, NeuralCostModel, Verdict]:
    """Fit the profile and the network, write them and the report, and say what to trust."""
    out, linked = run.out, measured.linked
    work = load_measurements(out / WORK).costs.data
    calibration, calibrated = machine_folder.with_rates(linked, work, found, links=run.layout == PARALLEL)
    calibration = replace(calibration, errors={**measured.link_errors, **calibration.errors})
    machine_folder.write_calibration(out, calibration, measured.host)
    model = fit_cost_model(
        "pooled",
        found.first,
        seed=seed,
        options=FitOptions(steps=FIT_STEPS),
        on_progress=lambda state: run.on_progress(CalibrationProgress(FIT, state.step / state.steps)),
    )
    model.card = make_card(model, found.first, found.test_tasks, found.index.hardware)
    machine_folder.write_model(out, model)
    repeated = found.repeated
    again = None
    if repeated is not None:
        error = errors_of(repeated[0], Estimates(repeated[1].phases_ms, repeated[1].cost_ms)).cost
        again = error.mape, error.count
    shipped = estimates_of(AnalyticalShardingModel(), found.test.on(linked)).cost_ms
    verdict = Verdict(
        {
            machine_folder.NETWORK: machine_folder.held_out(estimates_of(model, found.test).cost_ms, found.test),
            machine_folder.CALIBRATED: calibrated,
            machine_folder.SHIPPED: machine_folder.held_out(shipped, found.test),
        },
        again,
    )
    comparison = compare(found, {"network": model}, linked, work)
    text = page([comparison], command_line("calibrate", out=out.name), [""])
    write_atomically(out / "report.md", text.replace("\n## ", f"\n{verdict}\n\n## ", 1).encode())
    return calibration, model, verdict


class _Run:
    """A calibration: what is measured on which machine, and how much time there is left for it."""

    def __init__(
        self,
        out: Path,
        machine: Machine,
        workload: Workload,
        devices: int,
        iterations: int,
        limit_s: float,
        seed: int,
        on_progress: OnProgress,
    ) -> None:
        self.out, self.machine, self.workload, self.devices = out, machine, workload, devices
        self.on_progress = on_progress
        self._iterations = checked_count("iterations", iterations)
        least = min(LEAST_FIT_S, limit_s / 3.0)
        self._limit_s = limit_s - min(max(FIT_SHARE * limit_s, least), MOST_FIT_S)
        self.measured_now = 0
        self._options = {
            **{"machine": machine.fingerprint, **workload.to_json()},
            **{"devices": devices, "iterations": iterations, "seed": seed},
        }
        self._seconds = machine_folder.seconds_of(out, self._options)
        # Processes of a CPU slow each other down, so each device is measured alone there.
        enough = machine.kind == "cuda" and machine.num_devices >= devices
        self.layout = PARALLEL if enough else SEQUENTIAL

    def measure(self, seed: int) -> _Measured:
        """Measure the links, designed loads under their profile, and random placements, in the time that is left."""
        out, workload, devices = self.out, self.workload, self.devices
        base = self._start_profile()
        host = self._host()
        exchanging = self._exchanging_devices()
        if exchanging:
            sampler = DesignedSampler(workload, base.name, exchanging, self.machine.kind, True)
            self._collect(LINKS, sampler, PARALLEL, 0.15)
        linked, link_errors = machine_folder.with_links(base, out)
        write_profile(out / LINKS / PROFILE_FILE, replace(linked, name=f"{out.resolve().name}-links"), link_errors)
        profile, memory = str(out / LINKS), default_memory(self.machine)
        self._collect(WORK, DesignedSampler(workload, profile, devices, self.machine.kind), self.layout, 0.4)
        sampled = PlacementSampler(workload, profile, devices, memory, seed, plan_share=PLAN_SHARE)
        self._collect(PLACEMENTS, sampled, self.layout, 1.0)
        found = load_measurements(out / PLACEMENTS) if (out / PLACEMENTS / INDEX).exists() else None
        return _Measured(linked, link_errors, host, found)

    def _start_profile(self) -> HardwareProfile:
        """The profile of the machine's kind, with the name and the memory of its devices."""
        base = hardware_profile(profile_of(self.machine.name) or DEFAULT_PROFILE[self.machine.kind])
        memory, sources = self.machine.memory_bytes, dict(base.device.sources)
        if self.machine.kind == "cpu":  # processes share it
            memory //= self.devices
        sources["memory_bytes"] = "[measured] of a GPU, or an equal part of the machine's for each process"
        device = replace(base.device, name=self.machine.name, memory_bytes=memory, sources=sources)
        profile = replace(base, name=self.machine.name, device=device)
        write_profile(self.out / "base" / PROFILE_FILE, profile, {})
        return replace(profile, name=str(self.out / "base"))

    def _exchanging_devices(self) -> int:
        """Devices whose exchanges can be measured; 0 with a single one."""
        most = self.devices if self.machine.kind == "cuda" else EXCHANGE_DEVICES
        count = min(most, self.machine.num_devices)
        while count > 1 and self.workload.batch_size % count:
            count -= 1
        return count if count > 1 else 0

    def _host(self) -> HostSpec | None:
        """The memory of the host of a GPU, and how fast the GPU reads and updates rows there; None for a CPU."""
        if self.machine.kind == "cpu":
            return None
        session = Session("cuda", 1, threads=1, timeout_s=120.0)
        try:
            ((read, update),) = session.ask([("host_speed", {})], ["rows in host memory"])
        finally:
            session.close()
        source = f"[measured] on {self.machine.name}, rows of 512 bytes, all of them different"
        sources = {"read_gb_per_s": source, "update_gb_per_s": source, "memory_bytes": "[measured]"}
        return HostSpec(usable_memory(), read, update, sources=sources)

    def _collect(self, name: str, sampler: Sampler, layout: str, until: float) -> None:
        """Measure placements of `sampler` into the folder `name`, until so much of the time has passed."""
        count = len(sampler) if isinstance(sampler, DesignedSampler) else None
        budget = self._limit_s * until - self._seconds
        if budget <= 0:
            return
        began, before = time.monotonic(), self._seconds

        def show(state: CollectionProgress) -> None:
            self._seconds = before + time.monotonic() - began
            self.measured_now += 1
            machine_folder.write_seconds(self.out, self._options, self._seconds)
            done = max(state.measured / count if count else 0.0, state.seconds / budget)
            self.on_progress(CalibrationProgress(name, min(done, 1.0), state.measured, state.failed))

        self.out.mkdir(parents=True, exist_ok=True)
        cache = self.out / "cache.sqlite"
        state = collect(
            partial(measured_costs, self.machine, self.workload, layout, self._iterations, cache),
            self.out / name,
            sampler,
            budget_s=budget,
            count=count,
            repeat_every=None if count else 10,
            on_progress=show,
        )
        self.on_progress(CalibrationProgress(name, 1.0, state.measured, state.failed))
        if not state.measured:
            reason = next(iter(state.reasons), "The time was up; allow more `minutes`.")
            raise RunsFailedError(f"Nothing of {name} was measured. {reason}")
