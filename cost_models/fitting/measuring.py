"""What is measured on the machine at hand: its defaults, and random placements and plans of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, RunsFailedError
from shard_gym.cost_models.fitting.data.collecting import CollectionProgress, collect
from shard_gym.cost_models.fitting.data.sampling import PlacementSampler
from shard_gym.cost_models.measured import PARALLEL, SEQUENTIAL, Machine, MeasuredCostModel, machine_for, profile_of
from shard_gym.hardware import MAX_DEVICES
from shard_gym.tables import Workload

DEFAULT_TRAINING = {"cpu": ("fp32", "rowwise_adagrad"), "cuda": ("fp16", "sgd")}
"""Default weight dtype and optimizer by kind of device: those that FBGEMM is fast in."""

MEMORY_SHARE = {"cpu": 0.25, "cuda": 0.5}
"""Default share of a device's memory for the tables of a placement; the rest is for lookups and outputs."""

DEFAULT_PROFILE = "a100-dgx"  # hardware profile of the topologies where the device has none of its own
PLAN_SHARE = 0.5  # of the placements in whose place plans are, if plans are asked for
GIB = 2**30


def workload_of(machine: Machine, batch_size: int, weight_dtype: str | None, optimizer: str | None) -> Workload:
    """A workload with the dtype and the optimizer that are fast on the machine where none is given."""
    default_dtype, default_optimizer = DEFAULT_TRAINING[machine.kind]
    dtype = default_dtype if weight_dtype is None else weight_dtype
    return Workload(batch_size, dtype, default_optimizer if optimizer is None else optimizer)


def default_memory(machine: Machine) -> int:
    """Bytes in whole GiB, so that it is equal when a collection is repeated."""
    share = int(machine.memory_bytes * MEMORY_SHARE[machine.kind]) // GIB * GIB
    if not share:
        raise InvalidOptionError("The memory of this machine is unknown; give the memory for tables, `memory_gib`.")
    return share


def measured_costs(
    machine: Machine, workload: Workload, layout: str, iterations: int, cache: Path | None = None
) -> MeasuredCostModel:
    """The cost model that measures a workload on the machine."""
    more: dict[str, Any] = {} if cache is None else {"cache": cache}
    more |= {"weight_dtype": workload.weight_dtype, "optimizer": workload.optimizer}
    return MeasuredCostModel(machine.kind, layout=layout, iterations=iterations, **more)


def collect_here(
    folder: str | Path,
    *,
    budget_s: float | None = None,
    count: int | None = None,
    batch_size: int = 65_536,
    hardware: str | Machine = "auto",
    devices: int = 4,
    repeat_every: int | None = 10,
    memory_gib: float | None = None,
    weight_dtype: str | None = None,
    optimizer: str | None = None,
    profile: str | None = None,
    layout: str = "auto",
    iterations: int = 10,
    seed: int = 0,
    plans: bool = False,
    on_progress: Callable[[CollectionProgress], None] | None = None,
) -> CollectionProgress:
    """Measure random placements on this machine into `folder`, until the time is up: what `shard-gym collect` does.

    Args:
        folder, budget_s, count, repeat_every, on_progress: see `collect`.
        batch_size: samples of an iteration, over all devices.
        hardware: what to measure on: a machine, "cpu", "cuda", or "auto" for CUDA GPUs if there are any.
        devices: devices of a placement.
        memory_gib: memory for the tables of a placement; a share of what one device has if not given.
        weight_dtype: "fp16" or "fp32"; if not given, "fp16" on GPUs and "fp32" on CPUs.
        optimizer: if not given, "sgd" on GPUs and "rowwise_adagrad" on CPUs.
        profile: name or folder of the hardware profile of devices and links; that of the device if not given.
        layout: of the measured costs; "auto" is "parallel" if there are as many devices.
        iterations: timed ones of a measurement.
        seed: of the placements.
        plans: whether plans, which split tables, are in place of every second placement.

    Raises:
        InvalidOptionError, UnknownNameError: an argument is out of range, or see `collect` and `PlacementSampler`.
        RunsFailedError: nothing was measured.
        MissingExtraError, DamagedFileError, UnwritablePathError: see `collect` and `this_machine`.
    """
    checked_count("devices", devices, most=MAX_DEVICES)
    checked_count("iterations", iterations)
    if memory_gib is not None and not 0 < memory_gib < 2**20:
        raise InvalidOptionError(f"memory_gib must be a positive number of GiB, not {memory_gib:g}.")
    machine = machine_for(hardware)[0] if isinstance(hardware, str) else hardware
    workload = workload_of(machine, batch_size, weight_dtype, optimizer)
    if layout == "auto":
        # Fixed here, because one data set has one layout, even if the number of devices changes later.
        layout = PARALLEL if machine.num_devices >= devices else SEQUENTIAL
    sampler = PlacementSampler(
        workload,
        profile or profile_of(machine.name) or DEFAULT_PROFILE,
        devices,
        default_memory(machine) if memory_gib is None else round(memory_gib * GIB),
        seed,
        plan_share=PLAN_SHARE if plans else 0.0,
    )
    make = partial(measured_costs, machine, workload, layout, iterations)
    limits: dict[str, Any] = {"budget_s": budget_s, "count": count, "repeat_every": repeat_every}
    state = collect(make, folder, sampler, **limits, on_progress=on_progress)
    if not state.measured:
        reason = next(iter(state.reasons), "The time was up before the first measurement; allow more of it.")
        raise RunsFailedError(f"Nothing was measured. {reason}")
    return state
