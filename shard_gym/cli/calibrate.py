"""`shard-gym calibrate`: measure this machine, and fit a hardware profile and a cost model to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from shard_gym.cli.collect import DEFAULT_TRAINING, PLAN_SHARE, default_memory, machine_of
from shard_gym.cli.console import errors, new_progress, output, say, sentence
from shard_gym.cli.measuring import warn_of_load
from shard_gym.cli.options import OptionalInt, OptionalStr, command_line
from shard_gym.common.checks import checked_count, checked_positive
from shard_gym.common.errors import InvalidOptionError, RunsFailedError
from shard_gym.common.io.files import require_writable, write_atomically
from shard_gym.common.system import usable_memory
from shard_gym.common.text import counted, format_seconds
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.fitting import machine_folder
from shard_gym.cost_models.fitting.data import collecting
from shard_gym.cost_models.fitting.data.collecting import CollectionProgress
from shard_gym.cost_models.fitting.data.designed import DesignedSampler
from shard_gym.cost_models.fitting.data.folder import INDEX
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.fitting.data.sampling import PlacementSampler, Sampler
from shard_gym.cost_models.fitting.machine_folder import LINKS, PLACEMENTS, WORK, Verdict
from shard_gym.cost_models.fitting.metrics import Estimates, errors_of
from shard_gym.cost_models.measured.diagnostics.diagnosis import operator_failure
from shard_gym.cost_models.measured.machine import Machine, profile_of
from shard_gym.cost_models.measured.model import PARALLEL, SEQUENTIAL, MeasuredCostModel
from shard_gym.cost_models.measured.session import Session
from shard_gym.hardware.profile_files import PROFILE_FILE, HardwareProfile, HostSpec, write_profile
from shard_gym.hardware.profiles import hardware_profile
from shard_gym.hardware.topology import MAX_DEVICES
from shard_gym.tables.workload import Workload

DEFAULT_BATCH = {"cpu": 2_048, "cuda": 65_536}
DEFAULT_PROFILE = {"cpu": "cpu", "cuda": "a100-dgx"}
FIT_SHARE, LEAST_FIT_S, MOST_FIT_S = 0.15, 60.0, 180.0
"""The share of the time that is left for the fits; the least and the most seconds of it. A third is left at most."""

FIT_STEPS = 5_000
FEWEST = 40  # random placements that a network is fitted to at least: one cycle of the splits
EXCHANGE_DEVICES = 4  # processes of a CPU that exchange, at most


def calibrate(
    out: Path,
    minutes: float = 15.0,
    hardware: Literal["auto", "cpu", "cuda"] = "auto",
    devices: int = 4,
    batch_size: OptionalInt = None,
    weight_dtype: OptionalStr = None,
    optimizer: OptionalStr = None,
    iterations: int = 10,
    seed: int = 0,
) -> None:
    """Measure this machine; fit a hardware profile and a cost model to it.

    Name the folder as --hardware and as --cost-model of other commands.

    The same command continues a run that was stopped; more --minutes measure more.

    Needs FBGEMM.

    Args:
        out: folder for the machine: measurements, hardware profile, cost model and report.
        minutes: time for all of it.
        hardware: what to calibrate; auto takes a CUDA GPU if there is one.
        devices: devices of a placement.
        batch_size: samples of an iteration, over all devices; 2,048 on CPUs and 65,536 on GPUs if not given.
        weight_dtype: fp16 or fp32; if not given, fp16 on GPUs and fp32 on CPUs.
        optimizer: rowwise_adagrad or sgd, or adam on GPUs; if not given, sgd on GPUs and rowwise_adagrad on CPUs.
        iterations: timed ones of a measurement.
        seed: of the placements.
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "minutes")}
    checked_positive("--minutes", minutes)
    checked_count("--devices", devices, 2, MAX_DEVICES)
    machine, started = machine_of(hardware), time.monotonic()
    dtype, default_optimizer = DEFAULT_TRAINING[machine.kind]
    workload = Workload(
        DEFAULT_BATCH[machine.kind] if batch_size is None else batch_size,
        dtype if weight_dtype is None else weight_dtype,
        default_optimizer if optimizer is None else optimizer,
    )
    if workload.batch_size % devices:
        raise InvalidOptionError(
            f"Plans have blocks of rows, which are executed with as many samples for each device, but {devices} "
            f"devices do not divide a batch of {workload.batch_size:,}. Pass another --batch-size or --devices."
        )
    require_writable(out / PROFILE_FILE)
    run = _Run(out, machine, workload, devices, iterations, minutes * 60.0, seed)
    say(f"Trying FBGEMM on {machine.name} ...", "dim")
    if failure := operator_failure(machine.kind):
        raise InvalidOptionError(f"{failure} Run shard-gym doctor, which says what to install.")
    warn_of_load()
    with _stopped_by_sigterm(command_line("calibrate", out=out, minutes=f"{minutes:g}", **given)):
        base = run.start_profile()
        host = run.host(base)
        exchanging = run.exchanging_devices()
        if exchanging:
            run.collect(LINKS, DesignedSampler(workload, base.name, exchanging, machine.kind, True), PARALLEL, 0.15)
        linked, link_errors = machine_folder.with_links(base, out)
        write_profile(out / LINKS / PROFILE_FILE, replace(linked, name=f"{out.resolve().name}-links"), link_errors)
        profile, layout = str(out / LINKS), run.layout
        run.collect(WORK, DesignedSampler(workload, profile, devices, machine.kind), layout, 0.4)
        memory = default_memory(machine)
        sampler = PlacementSampler(workload, profile, devices, memory, seed, plan_share=PLAN_SHARE)
        run.collect(PLACEMENTS, sampler, layout, 1.0)
    found = load_measurements(out / PLACEMENTS) if (out / PLACEMENTS / INDEX).exists() else None
    count = 0 if found is None else len(found.first.data)
    if found is None or count < FEWEST:
        raise RunsFailedError(
            f"{count} placements are too few to fit to, and to tell how far a fit is off; {FEWEST} are the least, and "
            "some hundreds are good. Repeat the command with more --minutes; what was measured is kept."
        )
    verdict = _fit(run, found, linked, link_errors, host, seed)
    took = format_seconds(time.monotonic() - started)
    measured = "" if run.measured_now else "Nothing was measured, because the time was used before; raise --minutes. "
    say(f"{measured}Written to {out}, in {took}.", "dim")
    if verdict.trusted:
        place = {"tables": "my_tables.json", "num_devices": devices, "hardware": out}
        place |= {"cost_model": out} if verdict.trusted == machine_folder.NETWORK else {}
        say(f"\nNext: {command_line('place', **place, out='plan.json')}")


def _fit(
    run: _Run,
    found: Measurements,
    linked: HardwareProfile,
    link_errors: dict[str, float],
    host: HostSpec | None,
    seed: int,
) -> Verdict:
    """Fit the profile and the network, write them and the report, and say what to trust."""
    from shard_gym.cost_models.fitting.card import make_card
    from shard_gym.cost_models.fitting.fit import FitOptions, fit_cost_model
    from shard_gym.cost_models.fitting.metrics import estimates_of
    from shard_gym.cost_models.fitting.report import compare, page

    out, measured_links = run.out, run.layout == PARALLEL
    work = load_measurements(out / WORK).costs.data
    calibration, calibrated = machine_folder.with_rates(linked, work, found, links=measured_links)
    calibration = replace(calibration, errors={**link_errors, **calibration.errors})
    machine_folder.write_calibration(out, calibration, host)
    with new_progress() as progress:
        bar = progress.add_task("fitting a network", total=FIT_STEPS)
        model = fit_cost_model(
            "pooled",
            found.first,
            seed=seed,
            options=FitOptions(steps=FIT_STEPS),
            on_progress=lambda state: progress.update(bar, completed=state.step),
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
    output().print(sentence(f"\n{verdict}"))
    return verdict


class _Run:
    """A calibration: what is measured on which machine, and how much time there is left for it."""

    def __init__(
        self, out: Path, machine: Machine, workload: Workload, devices: int, iterations: int, limit_s: float, seed: int
    ) -> None:
        self.out, self.machine, self.workload, self.devices = out, machine, workload, devices
        self._iterations = checked_count("--iterations", iterations)
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

    def start_profile(self) -> HardwareProfile:
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

    def exchanging_devices(self) -> int:
        """Devices whose exchanges can be measured; 0 with a single one."""
        most = self.devices if self.machine.kind == "cuda" else EXCHANGE_DEVICES
        count = min(most, self.machine.num_devices)
        while count > 1 and self.workload.batch_size % count:
            count -= 1
        return count if count > 1 else 0

    def host(self, base: HardwareProfile) -> HostSpec | None:
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

    def collect(self, name: str, sampler: Sampler, layout: str, until: float) -> None:
        """Measure placements of `sampler` into the folder `name`, until so much of the time has passed."""
        count = len(sampler) if isinstance(sampler, DesignedSampler) else None
        budget = self._limit_s * until - self._seconds
        if budget <= 0:
            return
        make = partial(
            MeasuredCostModel,
            self.machine.kind,
            layout=layout,
            iterations=self._iterations,
            weight_dtype=self.workload.weight_dtype,
            optimizer=self.workload.optimizer,
            cache=self.out / "cache.sqlite",
        )
        began, before = time.monotonic(), self._seconds
        with new_progress() as bars:
            bar = bars.add_task(name, total=1.0)

            def show(state: CollectionProgress) -> None:
                self._seconds = before + time.monotonic() - began
                self.measured_now += 1
                machine_folder.write_seconds(self.out, self._options, self._seconds)
                done = state.measured / count if count else 0.0
                said = f"{name}: {state.measured:,} measured, {state.failed:,} failed"
                bars.update(bar, description=said, completed=max(done, state.seconds / budget))

            self.out.mkdir(parents=True, exist_ok=True)
            state = collecting.collect(
                make,
                self.out / name,
                sampler,
                budget_s=budget,
                count=count,
                repeat_every=None if count else 10,
                on_progress=show,
            )
        if not errors().is_terminal:
            say(f"{name}: {counted(state.measured, 'measurement')}, {state.failed:,} failed", "dim")
        if not state.measured:
            reason = next(iter(state.reasons), "The time was up; allow more --minutes.")
            raise RunsFailedError(f"Nothing of {name} was measured. {reason}")


@contextmanager
def _stopped_by_sigterm(command: str) -> Iterator[None]:
    """SIGTERM is handled like Ctrl-C, whose message says how to continue."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        message = f"Interrupted. What was measured is kept; continue with:\n{command}"
        raise KeyboardInterrupt(message) from None
    finally:
        signal.signal(signal.SIGTERM, before)
