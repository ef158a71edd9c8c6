"""The analytical model's numbers for a machine, found from what was measured on it; needs scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.metrics import predictions
from shard_gym.errors import InvalidOptionError, missing_extra
from shard_gym.hardware import HardwareProfile

DEVICE = ("dram_gb_per_s", "l2_gb_per_s", "l2_bytes", "clock_ghz", "kernel_launch_us", "ramp_bytes")
"""What is found of a device. The clock stands for what its lanes reach: number of SMs times clock enters as one."""

LINKS = ("intra_host_gb_per_s", "intra_host_latency_us")

REACH = np.log(1000.0)
"""No number moves by more than this factor."""

OUTLIER = 0.1
"""Logarithmic errors beyond this weigh less than their square."""

STEP = 0.02
"""By which numbers are moved to see what that changes; the L2's size enters in steps."""

MOST_EVALUATIONS = 60
LEAST_MS = 1e-6

PRIOR = 3.0
"""Every number that moves weighs as much as so many devices off by the same factor in one phase: next to nothing, but
numbers of which the data say nothing stay where they were."""


def calibrated_profile(data: CostDataset, start: HardwareProfile | None = None) -> HardwareProfile:
    """`start` with the numbers that make the analytical model fit `data` best.

    What is made small is the squared error of the logarithm of every device's time in every phase, each phase weighing
    the same, outliers less (soft L1). Numbers that the data say nothing about, such as links between hosts, stay, or
    nearly so (see `PRIOR`).

    Args:
        data: measured placements on one kind of machine.
        start: where the search begins; None for the devices and links that the data name.

    Raises:
        InvalidOptionError: no phase of any device took time.
        MissingExtraError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ModuleNotFoundError as error:
        raise missing_extra("scipy", "torch", "Calibrating a hardware profile") from error
    begin = start or profile_in(data)
    spent = data.phases_ms > 0
    if not spent.any():
        raise InvalidOptionError("Nothing can be calibrated: no phase of any device took time in these measurements.")
    model, measured = AnalyticalCostModel(), np.log(data.phases_ms[spent])
    weight = np.broadcast_to(1.0 / np.sqrt(np.maximum(spent.sum(axis=(0, 1)), 1)), spent.shape)[spent]

    def misses(moves: FloatArray) -> FloatArray:
        said = predictions(model, data.on(_moved(begin, moves)))[0][spent]
        misses: FloatArray = weight * (np.log(np.maximum(said, LEAST_MS)) - measured)
        return np.concatenate([misses, PRIOR * np.median(weight) * moves])

    exchanged = bool(spent[..., 1:3].any())
    free = len(DEVICE) + (len(LINKS) if exchanged else 0)
    found = least_squares(
        misses,
        np.zeros(free),
        bounds=(-REACH, REACH),
        loss="soft_l1",
        f_scale=OUTLIER * float(np.median(weight)),
        diff_step=STEP,
        x_scale=1.0,
        max_nfev=MOST_EVALUATIONS,
    )
    return _moved(begin, found.x, f"[measured] calibrated on {len(data):,} placements of {data.source}")


def profile_in(data: CostDataset) -> HardwareProfile:
    """The devices and links that the data name."""
    first = data.topologies[0]
    return HardwareProfile(first.device.name, first.device, first.links, first.devices_per_host)


def _moved(start: HardwareProfile, moves: FloatArray, source: str = "") -> HardwareProfile:
    """`start` with each number times exp of its move; `source` is where they come from."""
    names = (*DEVICE, *LINKS)[: len(moves)]
    values = {
        name: getattr(start.device if name in DEVICE else start.links, name) * float(np.exp(move))
        for name, move in zip(names, moves, strict=True)
    }
    values["l2_bytes"] = round(values["l2_bytes"])
    device = {name: values[name] for name in names if name in DEVICE}
    links = {name: values[name] for name in names if name in LINKS}
    return replace(
        start,
        device=replace(start.device, **device, sources={**start.device.sources, **dict.fromkeys(device, source)}),
        links=replace(start.links, **links, sources={**start.links.sources, **dict.fromkeys(links, source)}),
    )
