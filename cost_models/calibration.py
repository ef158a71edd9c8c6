"""Calibration: the numbers of a hardware profile with which the analytical model fits measurements; needs scipy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.cost_models.analytical import AnalyticalCostModel
from shard_gym.cost_models.base import COMMUNICATION, FloatArray
from shard_gym.cost_models.data.dataset import CostDataset
from shard_gym.cost_models.metrics import estimates_of
from shard_gym.errors import InvalidOptionError, missing_extra
from shard_gym.hardware import HardwareProfile

DEVICE = ("dram_gb_per_s", "l2_gb_per_s", "l2_bytes", "clock_ghz", "kernel_launch_us")
"""Calibrated numbers of a device. The model uses the product of clock and number of SMs, so the clock covers both."""

LINKS = ("intra_host_gb_per_s", "intra_host_latency_us")
"""Calibrated numbers of the links; their knees stay as they are."""

MAX_LOG_CHANGE = np.log(1000.0)  # bound of the change of a number, as a logarithm
OUTLIER = 0.1  # logarithmic errors beyond this are outliers (see soft L1)
STEP = 0.02  # step of the numerical derivatives; large, because costs change in steps with the size of the L2
MAX_EVALUATIONS = 60
LEAST_MS = 1e-6

PRIOR = 3.0
"""Weight of the change of a number, in devices with the same logarithmic error in one phase. It is small, but keeps
numbers that have no effect on the data at their initial values."""


def calibrated_profile(data: CostDataset, start: HardwareProfile | None = None) -> HardwareProfile:
    """The profile with which the analytical model fits `data`, measured on one kind of machine, best.

    Minimizes the squared errors of the logarithms of each device's time in each phase, with equal weight for each phase
    and less for outliers (soft L1). Numbers that have no effect on the data, such as links between hosts, keep their
    values, or nearly so (see `PRIOR`). `start` has the initial numbers; None is for those of the topologies.

    Raises:
        InvalidOptionError: no phase of any device took time.
        MissingExtraError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ModuleNotFoundError as error:
        raise missing_extra("scipy", "torch", "Calibrating a hardware profile") from error
    initial = start or profile_in(data)
    spent = data.phases_ms > 0
    if not spent.any():
        raise InvalidOptionError("Nothing can be calibrated: no phase of any device took time in these measurements.")
    model, measured = AnalyticalCostModel(), np.log(data.phases_ms[spent])
    weight = np.broadcast_to(1.0 / np.sqrt(np.maximum(spent.sum(axis=(0, 1)), 1)), spent.shape)[spent]

    def residuals(logarithms: FloatArray) -> FloatArray:
        estimated = estimates_of(model, data.on(_changed(initial, logarithms))).phases_ms[spent]
        errors: FloatArray = weight * (np.log(np.maximum(estimated, LEAST_MS)) - measured)
        return np.concatenate([errors, PRIOR * np.median(weight) * logarithms])

    has_all_to_alls = bool(spent[..., COMMUNICATION].any())
    count = len(DEVICE) + (len(LINKS) if has_all_to_alls else 0)
    found = least_squares(
        residuals,
        np.zeros(count),
        bounds=(-MAX_LOG_CHANGE, MAX_LOG_CHANGE),
        loss="soft_l1",
        f_scale=OUTLIER * float(np.median(weight)),
        diff_step=STEP,
        x_scale=1.0,
        max_nfev=MAX_EVALUATIONS,
    )
    return _changed(initial, found.x, f"[measured] calibrated on {len(data):,} placements of {data.source}")


def profile_in(data: CostDataset) -> HardwareProfile:
    """The device and links of the first topology of `data`."""
    first = data.topologies[0]
    return HardwareProfile(first.device.name, first.device, first.links, first.devices_per_host)


def _changed(start: HardwareProfile, logarithms: FloatArray, source: str = "") -> HardwareProfile:
    """`start` with its numbers multiplied by factors, given as logarithms; `source` describes the new numbers."""
    names = (*DEVICE, *LINKS)[: len(logarithms)]
    values = {
        name: getattr(start.device if name in DEVICE else start.links, name) * float(np.exp(logarithm))
        for name, logarithm in zip(names, logarithms, strict=True)
    }
    values["l2_bytes"] = round(values["l2_bytes"])
    device = {name: values[name] for name in names if name in DEVICE}
    links = {name: values[name] for name in names if name in LINKS}
    return replace(
        start,
        device=replace(start.device, **device, sources={**start.device.sources, **dict.fromkeys(device, source)}),
        links=replace(start.links, **links, sources={**start.links.sources, **dict.fromkeys(links, source)}),
    )
