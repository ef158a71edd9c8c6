"""`shard-gym calibrate`: measure this machine, and fit a hardware profile and a cost model to it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.progress import Progress, TaskID

from shard_gym.cli.console import as_options, errors, new_progress, say
from shard_gym.cli.measuring import machine_of, sigterm_is_ctrl_c, warn_of_load
from shard_gym.cli.options import OptionalInt, OptionalStr
from shard_gym.common.text import command_line, counted
from shard_gym.cost_models import fitting
from shard_gym.cost_models.fitting import CalibrationProgress
from shard_gym.cost_models.fitting.calibrating import FIT, TRIAL


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
    again = command_line("calibrate", out=out, minutes=f"{minutes:g}", **given)
    machine = machine_of(hardware)
    try:
        with sigterm_is_ctrl_c(), new_progress() as bars:
            shown = _Shown(bars, machine.name)
            found = fitting.calibrate(out, **{**given, "hardware": machine}, minutes=minutes, on_progress=shown)
    except KeyboardInterrupt:
        message = f"Interrupted. What was measured is kept; continue with:\n{again}"
        raise KeyboardInterrupt(message) from None
    say(as_options(f"\n{found}"))


class _Shown:
    """Shows the progress of a calibration: a bar for each stage; a line where standard error is no terminal."""

    def __init__(self, bars: Progress, machine: str) -> None:
        self._bars, self._machine = bars, machine
        self._bar: TaskID | None = None
        self._stage = ""

    def __call__(self, state: CalibrationProgress) -> None:
        if state.stage == TRIAL:
            say(f"Trying FBGEMM on {self._machine} ...", "dim")
            warn_of_load()
            return
        if state.stage != self._stage:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._stage, self._bar = state.stage, self._bars.add_task(state.stage, total=1.0)
        assert self._bar is not None
        counts = f": {state.measured:,} measured, {state.failed:,} failed" if state.stage != FIT else ""
        self._bars.update(self._bar, description=f"{state.stage}{counts}", completed=state.done)
        if counts and state.done == 1.0 and not errors().is_terminal:
            say(f"{state.stage}: {counted(state.measured, 'measurement')}, {state.failed:,} failed", "dim")
