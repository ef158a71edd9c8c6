"""`shard-gym collect`: placements measured on this machine, or on many, into a data set."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from shard_gym.checks import checked_count
from shard_gym.cli import INTERRUPTED_EXIT_CODE
from shard_gym.cli.console import errors, heading, new_progress, new_table, output, print_table, sentence
from shard_gym.cli.options import OptionalFloat, OptionalInt, OptionalStr
from shard_gym.cost_models.base import CostModel
from shard_gym.cost_models.data.collecting import PART
from shard_gym.cost_models.data.collecting import collect as collect_draws
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.sampling import Draws
from shard_gym.cost_models.data.schedule import Here, Measurer
from shard_gym.cost_models.data.writer import Tally
from shard_gym.cost_models.measured.machine import profile_of
from shard_gym.errors import InvalidOptionError, MissingExtraError
from shard_gym.io.files import require_writable
from shard_gym.tables import Workload
from shard_gym.text import format_seconds

DEFAULT_BATCH_SIZE = 65_536
TRAINED = {"cpu": ("fp32", "rowwise_adagrad"), "cuda": ("fp16", "sgd")}
"""Weights and optimizer by kind of device, if not told otherwise: what FBGEMM is fast in."""

MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Of the memory there is, what the tables of a draw may take; the rest is for lookups and outputs."""

STAND_IN = "a100-dgx"
"""Profile whose topology is named where the device has none of its own."""

MAX_REASONS = 5
"""Reasons for what was skipped that are shown."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_GIB = 2**30

OnTally = Callable[[Tally], None]


class Hardware(NamedTuple):
    """What measures: its kind, its name, the bytes of memory of one device, and what makes the cost model."""

    kind: str
    name: str
    memory_bytes: int
    make_model: Callable[[], CostModel]


def collect(
    out: Path,
    batch_size: Annotated[list[int], tyro.conf.UseAppendAction, tyro.conf.arg(help_behavior_hint="(default: 65536)")],
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
    ray: bool = False,
    workers: OptionalInt = None,
    gpus_per_worker: int = 1,
) -> int:
    """Measure random placements, as many as there is time for; needs FBGEMM.

    All is written in small parts; the same command goes on where it stopped.

    Args:
        out: folder for the data set, or for one sub-folder for each batch size.
        batch_size: samples of an iteration, over all devices; give it again for each further one.
        hardware: what to measure on; auto takes CUDA GPUs if there are any.
        devices: devices of a placement.
        budget: time after which nothing further is begun, such as 90s, 30m or 2h.
        count: draws that each data set shall have, if the time suffices.
        repeat_every: every so many draws, one is measured again later, to see how exact measurements are; 0 for never.
        memory_gib: what the tables of a placement may take together; a share of what one device has if not given.
        weight_dtype: fp16 or fp32; if not given, fp16 on GPUs and fp32 on CPUs.
        optimizer: sgd or rowwise_adagrad; if not given, sgd on GPUs and rowwise_adagrad on CPUs.
        profile: the hardware profile that describes devices and links; found by the device's name if not given, and
            a100-dgx for a GPU that has none.
        layout: parallel (a process for each device), sequential (one stands for all), or auto.
        iterations: timed ones of a measurement.
        seed: of the draws.
        ray: measure on all machines of the Ray cluster whose address is in RAY_ADDRESS; needs the extra `ray`.
        workers: how many of them measure at a time; as many as there is room for if not given.
        gpus_per_worker: as many as --devices to have all-to-alls measured too.
    """
    sizes = list(dict.fromkeys(batch_size)) or [DEFAULT_BATCH_SIZE]
    seconds = parse_duration("--budget", budget)
    for option, value in (("--devices", devices), ("--iterations", iterations), ("--gpus-per-worker", gpus_per_worker)):
        checked_count(option, value, 1)
    checked_count("--repeat-every", repeat_every, 0)
    if memory_gib is not None and not 0 < memory_gib < 2**20:
        raise InvalidOptionError(f"--memory-gib must be a positive number of GiB, not {memory_gib:g}.")
    require_writable(out / INDEX)
    if (out / INDEX).exists() and len(sizes) > 1:
        raise InvalidOptionError(
            f"{out} is a data set of its own, of one batch size. Name another folder for several, or one size at a "
            "time."
        )
    several = len(sizes) > 1 or any(out.glob(f"*/{INDEX}"))
    gpus = gpus_per_worker if ray else None
    found = find_hardware(hardware, layout, devices, gpus, iterations, weight_dtype, optimizer)
    usual, name = TRAINED[found.kind], profile or profile_of(found.name) or STAND_IN
    memory = _default_memory(found) if memory_gib is None else round(memory_gib * _GIB)
    every = {
        out / f"batch-{size}" if several else out: Draws(
            Workload(size, weight_dtype or usual[0], optimizer or usual[1]), name, devices, memory, seed
        )
        for size in sizes
    }
    crew = partial(_over_ray, found, workers, gpus_per_worker) if ray else partial(Here, found.make_model)
    tallies: dict[Path, Tally] = {}
    # Schedulers and containers end programs by SIGTERM; what was measured until then is written, too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number, (folder, draws) in enumerate(every.items()):
            left = seconds - sum(tally.seconds for tally in tallies.values())
            share = max(left, 0.0) / (len(every) - number)
            _collect_one(crew, folder, draws, share, count, repeat_every or None, tallies)
    except KeyboardInterrupt:
        message = "Interrupted. What was measured is safe; give the same command to go on."
        errors().print(sentence(message, "bold red"))
        return INTERRUPTED_EXIT_CODE
    finally:
        signal.signal(signal.SIGTERM, before)
        _print_tallies(found.name, tallies)
    return 0


def _collect_one(
    crew: Callable[[Draws], Measurer],
    folder: Path,
    draws: Draws,
    budget_s: float,
    count: int | None,
    repeat_every: int | None,
    tallies: dict[Path, Tally],
) -> None:
    """One data set; how it stands is kept in `tallies` all the while."""
    with closing(crew(draws)) as measurer, _shown(folder, budget_s, count) as show:

        def keep(tally: Tally) -> None:
            tallies[folder] = tally
            show(tally)

        tallies[folder] = collect_draws(
            measurer,
            folder,
            draws,
            budget_s=max(budget_s, 1e-9),
            count=count,
            repeat_every=repeat_every,
            on_tally=keep,
        )


def parse_duration(option: str, text: str) -> float:
    """Seconds of a text such as 90s, 30m, 1.5h or 2d.

    Raises:
        InvalidOptionError: it is no such text, or means no time at all.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidOptionError(f"{option} wants a duration such as 90s, 30m, 2h or 1d, not {text!r}.")
    return seconds


def find_hardware(
    hardware: str,
    layout: str,
    devices: int,
    gpus: int | None,
    iterations: int,
    weight_dtype: str | None,
    optimizer: str | None,
) -> Hardware:
    """What `--hardware` names on this machine, to measure placements on so many `devices`.

    Args:
        gpus: those that a worker has; None for all of this machine.

    Raises:
        InvalidOptionError: there is no such device here, or an option means nothing.
        MissingExtraError: torch or FBGEMM is not installed.
    """
    from shard_gym.cost_models.measured.machine import this_machine
    from shard_gym.cost_models.measured.model import PARALLEL, SEQUENTIAL, MeasuredCostModel

    kind = _kind_here() if hardware == "auto" else hardware
    machine = this_machine(kind)
    if layout == "auto" and kind == "cuda":
        # Now, so that one data set has one layout, however many GPUs there are when it goes on.
        layout = PARALLEL if (machine.num_devices if gpus is None else gpus) >= devices else SEQUENTIAL
    make_model = partial(
        MeasuredCostModel,
        kind,
        layout=layout,
        iterations=iterations,
        weight_dtype=weight_dtype or TRAINED[kind][0],
        optimizer=optimizer or TRAINED[kind][1],
    )
    return Hardware(kind, machine.name, machine.memory_bytes, make_model)


def _kind_here() -> str:
    from shard_gym.cost_models.measured.machine import this_machine

    try:
        this_machine("cuda")
    except (InvalidOptionError, MissingExtraError):
        return "cpu"
    return "cuda"


def _over_ray(found: Hardware, workers: int | None, gpus: int, draws: Draws) -> Measurer:
    """Workers of a Ray cluster: with GPUs of their own, or with a machine like this one each."""
    from shard_gym.cost_models.data.ray_workers import RayCrew, SpreadOut

    cuda = found.kind == "cuda"
    cpus = 1 if cuda else os.cpu_count() or 1
    return SpreadOut(RayCrew(found.make_model, draws, workers=workers, cpus=cpus, gpus=gpus if cuda else 0))


def _default_memory(found: Hardware) -> int:
    """Whole GiB, so that it is the same whenever the command is given again."""
    share = int(found.memory_bytes * MEMORY_SHARE[found.kind]) // _GIB * _GIB
    if not share:
        raise InvalidOptionError(
            "How much memory this machine has is not known; say what tables may take, --memory-gib."
        )
    return share


@contextmanager
def _shown(folder: Path, budget_s: float, count: int | None) -> Iterator[OnTally]:
    """Show on standard error how a collection goes: a bar on a terminal, else a line now and then."""
    console = errors()
    if not console.is_terminal:

        def tell(tally: Tally) -> None:
            if tally.new % PART == 0:
                console.print(sentence(f"{folder}: {_said(tally)}"), soft_wrap=True)

        yield tell
        return
    with new_progress() as progress:
        bar = progress.add_task(str(folder), total=1.0)

        def move(tally: Tally) -> None:
            done = (tally.measured - tally.repeats + tally.skipped) / count if count else 0.0
            progress.update(bar, description=_said(tally), completed=max(done, tally.seconds / budget_s))

        yield move


def _said(tally: Tally) -> str:
    return f"{tally.measured:,} measured, {tally.skipped:,} skipped"


def _print_tallies(hardware: str, tallies: dict[Path, Tally]) -> None:
    if not tallies:
        return
    table = new_table()
    table.add_column("data set")
    for header in ("measured", "of them again", "new", "skipped", "time"):
        table.add_column(header, justify="right")
    for folder, tally in tallies.items():
        numbers = (tally.measured, tally.repeats, tally.new, tally.skipped)
        table.add_row(str(folder), *(f"{number:,}" for number in numbers), format_seconds(tally.seconds))
    console = output()
    heading(console, f"Measured on {hardware}")
    print_table(console, table)
    for folder, tally in tallies.items():
        reasons = list(tally.reasons.items())
        for reason, times in reasons[:MAX_REASONS]:
            console.print(sentence(f"Skipped in {folder}, {times} x: {reason}", "dim"), soft_wrap=True)
        if len(reasons) > MAX_REASONS:
            console.print(sentence(f"... and for {len(reasons) - MAX_REASONS} other reasons; see {INDEX}.", "dim"))
