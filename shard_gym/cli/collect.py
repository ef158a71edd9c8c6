"""`shard-gym collect`: measurements of random placements on this machine."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path
from typing import Literal

from shard_gym.cli.console import errors, heading, new_progress, new_table, output, print_table, sentence, warn
from shard_gym.cli.options import OptionalFloat, OptionalInt, OptionalStr
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, MissingExtraError, RunsFailedError
from shard_gym.common.io.files import require_writable
from shard_gym.common.text import format_seconds
from shard_gym.cost_models.fitting.data import collecting
from shard_gym.cost_models.fitting.data.collecting import PART_SIZE, CollectionProgress
from shard_gym.cost_models.fitting.data.folder import INDEX
from shard_gym.cost_models.fitting.data.sampling import PlacementSampler
from shard_gym.cost_models.measured.machine import Machine, profile_of, this_machine
from shard_gym.cost_models.measured.model import PARALLEL, SEQUENTIAL, MeasuredCostModel
from shard_gym.hardware.topology import MAX_DEVICES
from shard_gym.tables.workload import Workload

DEFAULT_TRAINING = {"cpu": ("fp32", "rowwise_adagrad"), "cuda": ("fp16", "sgd")}
"""Default weight dtype and optimizer by kind of device: those that FBGEMM is fast in."""

MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Default share of a device's memory for the tables of a placement; the rest is for lookups and outputs."""

DEFAULT_PROFILE = "a100-dgx"  # hardware profile of the topologies where the device has none of its own
PLAN_SHARE = 0.5  # of the placements in whose place plans are, if plans are asked for
MAX_REASONS = 5  # reasons of failed measurements that are shown

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_GIB = 2**30


def collect(
    out: Path,
    batch_size: int = 65_536,
    hardware: Literal["auto", "cpu", "cuda"] = "auto",
    devices: int = 4,
    budget: str = "30m",
    count: OptionalInt = None,
    repeat_every: int = 10,
    memory_gib: OptionalFloat = None,
    weight_dtype: OptionalStr = None,
    optimizer: OptionalStr = None,
    profile: OptionalStr = None,
    layout: str = "auto",
    iterations: int = 10,
    seed: int = 0,
    plans: bool = False,
) -> None:
    """Measure random placements until the time is up; needs FBGEMM.

    Measurements are written in small parts; the same command continues a run.

    Args:
        out: folder for the data set.
        batch_size: samples of an iteration, over all devices.
        hardware: what to measure on; auto takes CUDA GPUs if there are any.
        devices: devices of a placement.
        budget: time after which no measurement begins, such as 90s, 30m or 2h.
        count: placements that the data set shall have, if the time suffices.
        repeat_every: every so many placements, one is measured again later, to show the noise; 0 for never.
        memory_gib: memory for the tables of a placement; a share of what one device has if not given.
        weight_dtype: fp16 or fp32; if not given, fp16 on GPUs and fp32 on CPUs.
        optimizer: rowwise_adagrad or sgd, or adam on GPUs; if not given, sgd on GPUs and rowwise_adagrad on CPUs.
        profile: the hardware profile of devices and links, or a folder of shard-gym calibrate; found by the device's
            name if not given, and a100-dgx for a GPU that has none.
        layout: parallel (a process for each device), sequential (one stands for all), or auto.
        iterations: timed ones of a measurement.
        seed: of the placements.
        plans: measure sharding plans, which split tables, in place of every second placement.
    """
    budget_s = parse_duration(budget)
    checked_count("--devices", devices, most=MAX_DEVICES)
    checked_count("--iterations", iterations)
    checked_count("--repeat-every", repeat_every, 0)
    if memory_gib is not None and not 0 < memory_gib < 2**20:
        raise InvalidOptionError(f"--memory-gib must be a positive number of GiB, not {memory_gib:g}.")
    require_writable(out / INDEX)
    machine = machine_of(hardware)
    default_dtype, default_optimizer = DEFAULT_TRAINING[machine.kind]
    dtype = default_dtype if weight_dtype is None else weight_dtype
    workload = Workload(batch_size, dtype, default_optimizer if optimizer is None else optimizer)
    if layout == "auto":
        # Fixed here, because one data set has one layout, even if the number of devices changes later.
        layout = PARALLEL if machine.num_devices >= devices else SEQUENTIAL
    make_model = partial(
        MeasuredCostModel,
        machine.kind,
        layout=layout,
        iterations=iterations,
        weight_dtype=workload.weight_dtype,
        optimizer=workload.optimizer,
    )
    sampler = PlacementSampler(
        workload,
        profile or profile_of(machine.name) or DEFAULT_PROFILE,
        devices,
        default_memory(machine) if memory_gib is None else round(memory_gib * _GIB),
        seed,
        plan_share=PLAN_SHARE if plans else 0.0,
    )
    console, bars = errors(), new_progress()
    bar = bars.add_task(str(out), total=1.0)
    latest: CollectionProgress | None = None

    def show(state: CollectionProgress) -> None:
        nonlocal latest
        latest = state
        counts = f"{state.measured:,} measured, {state.failed:,} failed"
        done = (state.measured - state.repeats + state.failed) / count if count else 0.0
        bars.update(bar, description=counts, completed=max(done, state.seconds / budget_s))
        if not console.is_terminal and state.new % PART_SIZE == 0:
            console.print(sentence(f"{out}: {counts}"), soft_wrap=True)

    # Schedulers and containers end programs by SIGTERM; it is handled like Ctrl-C, so measurements are written.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with bars:
            latest = collecting.collect(
                make_model,
                out,
                sampler,
                budget_s=budget_s,
                count=count,
                repeat_every=repeat_every or None,
                on_progress=show,
            )
    except KeyboardInterrupt:
        message = "Interrupted. All measurements are written; repeat the command to continue."
        raise KeyboardInterrupt(message) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if latest:
            _print_progress(machine.name, out, latest)
    if not latest.measured:
        reason = next(iter(latest.reasons), "The time was up before the first measurement; allow more with --budget.")
        raise RunsFailedError(f"Nothing was measured. {reason}")


def parse_duration(text: str) -> float:
    """Seconds of a text such as 90s, 30m, 1.5h or 2d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidOptionError(f"--budget must be a duration such as 90s, 30m, 2h or 1d, not {text!r}.")
    return seconds


def machine_of(hardware: str) -> Machine:
    """The machine to measure on; `auto` is its GPUs if it has some."""
    if hardware == "auto":
        try:
            return this_machine("cuda")
        except (InvalidOptionError, MissingExtraError) as error:
            warn(f"Measuring on CPUs. {error}", "dim")
            return this_machine("cpu")
    return this_machine(hardware)


def default_memory(machine: Machine) -> int:
    """Bytes in whole GiB, so that it is equal when the command is repeated."""
    share = int(machine.memory_bytes * MEMORY_SHARE[machine.kind]) // _GIB * _GIB
    if not share:
        raise InvalidOptionError("The memory of this machine is unknown; give the memory for tables, --memory-gib.")
    return share


def _print_progress(hardware: str, folder: Path, state: CollectionProgress) -> None:
    table = new_table()
    table.add_column("data set")
    for header in ("measured", "of them again", "new", "failed", "time"):
        table.add_column(header, justify="right")
    numbers = (state.measured, state.repeats, state.new, state.failed)
    table.add_row(str(folder), *(f"{number:,}" for number in numbers), format_seconds(state.seconds))
    console = output()
    heading(console, f"Measured on {hardware}")
    print_table(console, table)
    reasons = list(state.reasons.items())
    for reason, times in reasons[:MAX_REASONS]:
        console.print(sentence(f"Failed, {times} x: {reason}", "dim"), soft_wrap=True)
    if len(reasons) > MAX_REASONS:
        console.print(sentence(f"... and for {len(reasons) - MAX_REASONS} other reasons; see {INDEX}.", "dim"))
