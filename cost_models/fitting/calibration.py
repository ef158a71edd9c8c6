"""Calibration: the measured rates of a device's work, and its links, as a hardware profile; needs scipy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidOptionError, missing_extra
from shard_gym.cost_models.analytical import FITTED, AnalyticalShardingModel
from shard_gym.cost_models.analytical.work_rates import MS, work_amounts
from shard_gym.cost_models.base import COMMUNICATION
from shard_gym.cost_models.base.model import BACKWARD, FORWARD
from shard_gym.cost_models.fitting.data.dataset import CostDataset
from shard_gym.cost_models.fitting.metrics import estimates_of
from shard_gym.hardware import HardwareProfile, WorkRates
from shard_gym.hardware.topology import WORK_NAMES
from shard_gym.plans.plan import has_dense_gradient

LINKS = ("intra_host_gb_per_s", "intra_host_latency_us")
"""Calibrated numbers of the links; their knees stay as they are."""

RATES = (*(f"{phase}.{name}" for phase in ("forward", "backward") for name in WORK_NAMES), "dense_update")
LAUNCH = "kernel_launch_us"
"""The calibrated numbers of a device: the rates of its work, ns, and the fixed time of a kernel."""

LEAST_ERROR = 0.05  # relative errors below it count alike, those above by their size: half squares, half absolute
ROUNDS = 12  # of the weights, which depend on the errors
MAX_LOG_CHANGE = np.log(1000.0)  # bound of the change of a number of the links, as a logarithm
MOST_ERROR = 1.0  # relative standard error of a number of the links beyond which the exchanges do not tell it
OUTLIER = 0.1  # logarithmic errors of exchanges beyond this are outliers (see soft L1)
STEP = 0.02  # step of the numerical derivatives
MAX_EVALUATIONS = 60
LEAST_MS = 1e-6


@dataclass(frozen=True)
class Calibration:
    """A hardware profile that was calibrated.

    Attributes:
        profile: with the measured numbers.
        errors: the standard error of each number, as a share of it; those that are 0, or that the measurements do not
            tell, have none.
    """

    profile: HardwareProfile
    errors: Mapping[str, float] = field(default_factory=dict)


def calibrated_profile(data: CostDataset, start: HardwareProfile | None = None, *, links: bool = True) -> Calibration:
    """The profile with which the analytical model fits `data`, measured on one kind of machine, best.

    The times of all devices are sums of `topology.WORK_NAMES` times rates, and of the launches of the two operators:
    non-negative least squares of relative errors, in which larger errors count by their size only. With plans there is
    the dense update of replicas. Links are fitted to the times of the exchanges, logarithmically (soft L1).

    Args:
        data: measurements of one workload.
        start: has the other numbers, and the first ones of the links; None for those of the topologies.
        links: whether the exchanges were measured, not modelled.

    Raises:
        InvalidOptionError: no phase of any device took time.
        MissingExtraError: scipy is not installed.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra("scipy", "torch", "Calibrating a hardware profile") from error
    initial = start or profile_in(data)
    if not (data.phases_ms > 0).any():
        raise InvalidOptionError("Nothing can be calibrated: no phase of any device took time in these measurements.")
    source = f"[measured] calibrated on {len(data):,} placements of {data.source}"
    values, errors = _fitted_rates(data)
    forward, backward = tuple((values[:6] / MS).tolist()), tuple((values[6:12] / MS).tolist())
    update = float(values[12] / MS) if _device_work(data)[1].any() else None
    device = replace(
        initial.device,
        kernel_launch_us=max(float(values[-1]) / MS * 1e-3, 1e-6),
        rates=WorkRates(forward, backward, update),
        sources={**initial.device.sources, LAUNCH: source, "rates": source},
    )
    found = replace(initial, device=device)
    known = {name: error for name, error in zip((*RATES, LAUNCH), errors.tolist(), strict=True) if np.isfinite(error)}
    if links and bool((data.phases_ms[..., COMMUNICATION] > 0).any()):
        found, of_links = _with_links(data, found, source)
        known |= of_links
    return Calibration(found, known)


def profile_in(data: CostDataset) -> HardwareProfile:
    """The device and links of the first topology of `data`."""
    first = data.topologies[0]
    return HardwareProfile(
        *(first.device.name, first.device, first.links, first.devices_per_host),
        devices_per_domain=first.devices_per_domain,
    )


def _device_work(data: CostDataset) -> tuple[FloatArray, FloatArray]:
    """(P, D, 6) amounts of each device, and (P, D) cells of its replicas."""
    shape = data.phases_ms.shape[:2]
    placement = np.repeat(np.arange(len(data)), np.diff(data.start))
    amounts, cells = np.zeros((*shape, len(WORK_NAMES))), np.zeros(shape)
    for topology, sharding_type, rows, tables, which in data.shards():
        where = placement[rows], data.devices[rows]
        np.add.at(amounts, where, work_amounts(tables)[which])
        if has_dense_gradient(sharding_type, tables, data.topologies[topology].num_devices):
            np.add.at(cells, where, (tables.num_embeddings * tables.embedding_dim).astype(np.float64)[which])
    return amounts, cells


def _fitted_rates(data: CostDataset) -> tuple[FloatArray, FloatArray]:
    """(14,) ms of each of `RATES` and of a kernel, and their relative standard errors; infinite for zeros."""
    amounts, cells = _device_work(data)
    forward, backward = (data.phases_ms[..., phase] for phase in (FORWARD, BACKWARD))
    rows, measured = [], []
    for phase, took in enumerate((forward, backward)):
        used = took > 0
        work = np.zeros((int(used.sum()), 14))
        work[:, 6 * phase : 6 * phase + 6] = amounts[used]
        work[:, 12] = cells[used] * phase
        work[:, 13] = (FITTED.forward_launches, FITTED.backward_launches)[phase]
        rows.append(work)
        measured.append(took[used])
    return _nonnegative(np.concatenate(rows), np.concatenate(measured))


def _nonnegative(work: FloatArray, measured: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(K,) non-negative times of one of each column of work, and their relative standard errors."""
    from scipy.optimize import nnls

    scale = np.maximum(work.max(axis=0), 1e-300)
    relative = work / scale / measured[:, None]
    weight, found = np.ones(len(measured)), np.zeros(work.shape[1])
    for _ in range(ROUNDS):
        found = nnls(relative * weight[:, None], weight)[0]
        weight = 1.0 / np.sqrt(np.maximum(np.abs(relative @ found - 1.0), LEAST_ERROR))
    errors = np.full(work.shape[1], np.inf)
    active = found > 0
    weighted = relative[:, active] * weight[:, None]
    freedom = max(len(measured) - int(active.sum()), 1)
    variance = float((weight**2 * (relative @ found - 1.0) ** 2).sum()) / freedom
    spread = np.sqrt(np.maximum(variance * np.diag(np.linalg.pinv(weighted.T @ weighted)), 0.0))
    errors[active] = spread / found[active]
    return found / scale, errors


def _with_links(data: CostDataset, start: HardwareProfile, source: str) -> tuple[HardwareProfile, dict[str, float]]:
    """`start` with the links that fit the exchanges best, and the relative standard error of each number; numbers that
    the exchanges do not tell stay as they are."""
    from scipy.optimize import least_squares

    spent = data.phases_ms[..., COMMUNICATION] > 0
    model, measured = AnalyticalShardingModel(), np.log(data.phases_ms[..., COMMUNICATION][spent])

    def changed(logarithms: FloatArray) -> HardwareProfile:
        values = {
            name: getattr(start.links, name) * float(np.exp(logarithm))
            for name, logarithm in zip(LINKS, logarithms, strict=True)
        }
        return replace(start, links=replace(start.links, **values))

    def residuals(logarithms: FloatArray) -> FloatArray:
        estimated = estimates_of(model, data.on(changed(logarithms))).phases_ms[..., COMMUNICATION][spent]
        errors: FloatArray = np.log(np.maximum(estimated, LEAST_MS)) - measured
        return errors

    found = least_squares(
        residuals,
        np.zeros(len(LINKS)),
        bounds=(-MAX_LOG_CHANGE, MAX_LOG_CHANGE),
        loss="soft_l1",
        f_scale=OUTLIER,
        diff_step=STEP,
        x_scale=1.0,
        max_nfev=MAX_EVALUATIONS,
    )
    variance = float((found.fun**2).sum()) / max(len(found.fun) - len(LINKS), 1)
    spread = np.sqrt(np.maximum(variance * np.diag(np.linalg.pinv(found.jac.T @ found.jac)), 0.0))
    known = (spread < MOST_ERROR) & (np.abs(found.x) < 0.99 * MAX_LOG_CHANGE)
    fitted = changed(np.where(known, found.x, 0.0))
    names = [name for name, is_known in zip(LINKS, known.tolist(), strict=True) if is_known]
    sources = {**start.links.sources, **dict.fromkeys(names, source)}
    errors = {name: float(spread[LINKS.index(name)]) for name in names}
    return replace(fitted, links=replace(fitted.links, sources=sources)), errors
