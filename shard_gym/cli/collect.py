"""`shard-gym collect`: measurements of random placements on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from shard_gym.cli.console import errors, heading, new_progress, new_table, output, print_table, sentence
from shard_gym.cli.measuring import machine_of, sigterm_is_ctrl_c
from shard_gym.cli.options import OptionalFloat, OptionalInt, OptionalStr
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.files import require_writable
from shard_gym.common.text import format_seconds
from shard_gym.cost_models.fitting import CollectionProgress, collect_here
from shard_gym.cost_models.fitting.data.collecting import PART_SIZE
from shard_gym.cost_models.fitting.data.folder import INDEX

MAX_REASONS = 5  # reasons of failed measurements that are shown

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


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
    given = {name: value for name, value in locals().items() if name not in ("out", "budget")}
    budget_s = parse_duration(budget)
    checked_count("--repeat-every", repeat_every, 0)
    require_writable(out / INDEX)
    machine = machine_of(hardware)
    given |= {"hardware": machine, "budget_s": budget_s, "repeat_every": repeat_every or None}
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

    try:
        with sigterm_is_ctrl_c(), bars:
            latest = collect_here(out, **given, on_progress=show)
    except KeyboardInterrupt:
        message = "Interrupted. All measurements are written; repeat the command to continue."
        raise KeyboardInterrupt(message) from None
    finally:
        if latest:
            _print_progress(machine.name, out, latest)


def parse_duration(text: str) -> float:
    """Seconds of a text such as 90s, 30m, 1.5h or 2d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidOptionError(f"--budget must be a duration such as 90s, 30m, 2h or 1d, not {text!r}.")
    return seconds


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
