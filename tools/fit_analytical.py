"""Fits the analytical cost model to the public measurements; cost_model_card.py writes the results.

Robust least squares (soft L1) on the logarithms of predicted / measured, with weak pulls to start values. Rows are
fitted whose GPU is published or follows from the source's own numbers, and which time the GPU and not the host; the
others are only compared. The constants of the model are those of the fit to all rows, rounded. How well it predicts is
tested on three splits: all rows of one origin are in the same half, each half is predicted by a fit to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from published import MEASUREMENTS, NO_CARD_GB_PER_S, link_kind, measured_value, settings_of, tables_of, topology_of
from scipy.optimize import least_squares

from shard_gym.common.io.files import read_json
from shard_gym.cost_models.analytical import FITTED, AnalyticalCostModel
from shard_gym.cost_models.analytical.all_to_all import link_ms
from shard_gym.cost_models.analytical.l2_cache import to_sectors
from shard_gym.cost_models.analytical.model import BAGS, GROUP_SHARE, Constants, Rates, loads_of, table_counts
from shard_gym.cost_models.base.model import BACKWARD, FORWARD
from shard_gym.hardware import hardware_profile
from shard_gym.hardware.profiles import LINK_KINDS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SEEDS = (0, 1, 2)  # seeds of the splits: the first three
ERROR = 0.15  # logarithmic errors beyond this are outliers (see soft L1)
PULL = 0.7  # weight of the pull to the start values
SMALL_LOOKUPS = 100_000  # operators with fewer lookups are a kind of their own: launches and the host dominate them


class Parameter(NamedTuple):
    """Where a constant starts, how freely it moves (standard deviation of its logarithm), and why it starts there."""

    start: float
    spread: float
    reason: str


PARAMETERS: dict[str, Parameter] = {
    "cycles_per_row": Parameter(26, 0.4, "a first estimate, from one row of pytorch/torchrec, pull request 2365"),
    "cycles_per_bag": Parameter(35, 0.7, "three dependent reads of about 500 cycles, 45 warps in flight"),
    "overlap_loss": Parameter(0.1, 0.7, "a guess: limits overlap almost fully"),
    "cycles_per_gradient": Parameter(26, 0.6, "as a row: the same loads and additions"),
    "cycles_per_update": Parameter(100, 0.6, "four dependent accesses of about 600 cycles, 24 warps in flight"),
    "sort_efficiency": Parameter(0.58, 0.4, "Onesweep: 29.4e9 keys/s of 36 bytes on an A100, of 1825 GB/s"),
    "random_update_efficiency": Parameter(0.55, 0.2, "V100 rows of Lin et al.: 446 to 466 of 817 GB/s"),
    "forward_launches": Parameter(6, 0.5, "two kernels of 5 us and 20 us of PyTorch's dispatch"),
    "backward_launches": Parameter(20, 0.5, "twelve kernels of 5 us and two dispatches of 20 us"),
    "a100_l2_gb_per_s": Parameter(2271, 0.3, "Lin et al., ml_perf_model"),
    "pcie_latency_us": Parameter(15, 0.7, "p2pBandwidthLatencyTest of the same machine: 15 us"),
    "pcie_share": Parameter(0.5, 0.7, "a guess: data pass host memory twice"),
    "pcie_knee_bytes": Parameter(1e6, 1.5, "a guess"),
    "pcie_extra": Parameter(0.5, 0.7, "a guess"),
    "nvlink_latency_us": Parameter(12, 0.7, "two launches of 5 us"),
    "nvlink_share": Parameter(0.8, 0.2, "NVIDIA/nccl-tests, issue 212: 0.82 on H100"),
    "nvlink_knee_bytes": Parameter(1e7, 1.5, "a guess"),
    "nvlink_extra": Parameter(1.7, 0.7, "a guess"),
    "network_latency_us": Parameter(34, 0.7, "an all-reduce of 8 bytes over two hosts: 35 us"),
    "network_share": Parameter(0.8, 0.4, "between 0.97 for one pair and congested ones"),
    "network_knee_bytes": Parameter(1e6, 1.5, "a guess"),
    "network_extra": Parameter(1.0, 0.7, "a guess"),
}
"""Start values were written down with all rows at hand: the splits are blind to the fit, not to these choices."""

NAMES = list(PARAMETERS)
START = np.log([parameter.start for parameter in PARAMETERS.values()])
SPREAD = np.array([parameter.spread for parameter in PARAMETERS.values()])

EXCHANGES = ("PCIe", "NVLink", "network")
LARGE_KINDS = ("forward", "backward", *EXCHANGES)


class Row(NamedTuple):
    """One measurement: its settings in the file, ms, its kind, and why it is not fitted ("" if it is)."""

    settings: Mapping[str, Any]
    measured: float
    kind: str
    not_fitted: str


def read_rows() -> list[Row]:
    """The rows that the model can be compared with: no whole iterations, no ratios of fused to unfused."""
    rows = []
    for group in read_json(MEASUREMENTS)["groups"]:
        for own in group["rows"]:
            row = settings_of(group, own)
            if "not_comparable" in row or row["quantity"] in ("iteration", "unfused/fused"):
                continue
            rows.append(Row(row, measured_value(row), _kind(row), _not_fitted(row)))
    return rows


def _kind(row: Mapping[str, Any]) -> str:
    if row["quantity"] == "dram":
        return "copy"
    if row["quantity"] == "all-to-all":
        if row["num_devices"] > row.get("devices_per_host", 8):
            return "network"
        return "PCIe" if row.get("link") == "pcie" else "NVLink"
    spec = row["tables"]
    lookups = spec.get("num_tables", 26) * spec["batch_size"] * spec["pooling_factor"]
    if lookups < SMALL_LOOKUPS:
        return "small operators"
    return "forward" if row["quantity"] == "forward" else "backward"


def _not_fitted(row: Mapping[str, Any]) -> str:
    if "host_bound" in row:
        return "bound by the host"
    if row["gpu"] == "not published":
        return "GPU not published"
    if row["tables"].get("optimizer") == "adam":
        return "Adam: held out from all fits"
    return "no constant depends on it" if row["quantity"] == "dram" else ""


class Problem:
    """All rows as arrays, so that a prediction of all of them is a few array operations."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.measured = np.array([row.measured for row in rows])
        self.kinds = np.array([row.kind for row in rows])
        self.origins = np.array([str(row.settings["origin"]) for row in rows])
        self.fitted = np.array([not row.not_fitted for row in rows])
        on_hopper = [row.settings.get("hardware") in ("h100-dgx", "h200-dgx") for row in rows]
        self.hopper = np.isin(self.kinds, ("forward", "backward")) & on_hopper
        self.links = np.isin(self.kinds, EXCHANGES)
        # Rows of different classes share no parameter, so each class is split by itself.
        self.classes = np.where(self.links, self.kinds, "compute")
        self.copies = self.kinds == "copy"
        self.compute = ~self.links & ~self.copies

    def predict(self, logarithms: Array) -> Array:
        """(R,) ms of every row under the parameters with these logarithms."""
        values = dict(zip(NAMES, np.exp(logarithms).tolist(), strict=True))
        predicted = np.empty(len(self.rows))
        predicted[self.compute] = self._compute(values)
        predicted[self.links] = self._exchange(values)
        predicted[self.copies] = [copy_ms(row.settings) for row in self.rows if row.kind == "copy"]
        return predicted

    @cached_property
    def _operators(self) -> tuple[Array, Array, list[Row], Mask, Array]:
        """Counts, dram / l2 / cycles / launch, the rows, which run on an A100, and bytes of atomic updates."""
        rows = [row for row, chosen in zip(self.rows, self.compute, strict=True) if chosen]
        counts, rates, atomic = [], [], []
        for row in rows:
            topology = topology_of(row.settings)
            device, tables = topology.device, tables_of(row.settings["tables"], topology)
            each = table_counts(tables, device)
            total = np.append(each[:, :GROUP_SHARE].sum(axis=0), each[:, GROUP_SHARE].max())
            total[BAGS] /= row.settings.get("bag_lookups", 1)
            if "thread_group" in row.settings:
                total[GROUP_SHARE] = row.settings["thread_group"] / 32
            counts.append(total)
            rates.append(Rates.of(device))
            atomic.append((2 * tables.lookups_per_batch * to_sectors(tables.row_bytes)).sum())
        is_a100 = np.array([row.settings["hardware"] == "a100-dgx" for row in rows])
        return np.array(counts), np.array(rates, float), rows, is_a100, np.array(atomic)

    def _compute(self, values: Mapping[str, float]) -> Array:
        counts, rates, rows, is_a100, atomic = self._operators
        constants = Constants(**{name: values[name] for name in Constants._fields})
        dram, l2, cycles, launch = rates.T
        l2 = np.where(is_a100, values["a100_l2_gb_per_s"] * 1e6, l2)
        launch = np.where([row.settings.get("launch") == "excluded" for row in rows], 0.0, launch)
        loads = loads_of(counts, Rates(dram, l2, cycles, launch), constants)
        phases = AnalyticalCostModel(constants).device_phases(loads)
        ms = np.array([phase_ms(row.settings["quantity"], *one) for row, one in zip(rows, phases, strict=True)])
        is_atomic = np.array([row.settings.get("updates") == "atomic" for row in rows])
        return np.where(is_atomic, atomic / (constants.random_update_efficiency * dram), ms)

    @cached_property
    def _messages(self) -> tuple[Array, Array, list[str]]:
        """(R, 2) bytes of a device through the links inside its host and across, (R, 2) line rates, kinds inside."""
        num_bytes, line, kinds = [], [], []
        for row in (row for row, chosen in zip(self.rows, self.links, strict=True) if chosen):
            settings, size = row.settings, row.settings["num_devices"]
            on_host = min(size, settings.get("devices_per_host", 8))
            part = settings["num_bytes"] / size
            num_bytes.append((part * (on_host - 1), part * (size - on_host)))
            rates = settings["line_rates"]
            line.append((rates["intra_host"] * 1e6, rates.get("inter_host", NO_CARD_GB_PER_S) * 1e6))
            kinds.append(link_kind(settings))
        return np.array(num_bytes), np.array(line), kinds

    def _exchange(self, values: Mapping[str, float]) -> Array:
        num_bytes, line, kinds = self._messages

        def each(name: str) -> Array:
            return np.array([values[f"{kind}_{name}"] for kind in kinds])

        inside = link_ms(num_bytes[:, 0], each("share") * line[:, 0], each("knee_bytes"), each("extra"))
        card = values["network_share"] * line[:, 1]
        across = link_ms(num_bytes[:, 1], card, values["network_knee_bytes"], values["network_extra"])
        crosses = num_bytes[:, 1] > 0
        latency_us = np.where(crosses, values["network_latency_us"], each("latency_us"))
        return np.where(crosses, np.maximum(inside, across), inside) + latency_us * 1e-3

    def fit(self, chosen: Mask, start: Array = START) -> Array:
        weights = self._weights(chosen)[chosen]
        measured = np.log(self.measured[chosen])

        def residuals(logarithms: Array) -> Array:
            errors = weights * (np.log(self.predict(logarithms)[chosen]) - measured) / ERROR
            return np.concatenate([errors, PULL * (logarithms - start) / SPREAD])

        found: Any = least_squares(residuals, start, loss="soft_l1", x_scale=0.3, max_nfev=200)
        return np.asarray(found.x)

    def _weights(self, chosen: Mask) -> Array:
        """(R,) a row of n with the same origin and kind has weight n^-1/4, so a sweep does not outweigh all others."""
        weights = np.ones(len(self.rows))
        for origin in set(self.origins[chosen]):
            for kind in set(self.kinds[chosen]):
                same = chosen & (self.origins == origin) & (self.kinds == kind)
                weights[same] = max(int(same.sum()), 1) ** -0.25
        return weights

    def spreads(self, logarithms: Array) -> Array:
        """Standard deviations of the logarithms of the parameters from the fitted rows alone, without the pulls."""
        weights, step = self._weights(self.fitted)[self.fitted], 1e-4

        def errors(at: Array) -> Array:
            return np.asarray(weights * np.log(self.predict(at)[self.fitted]) / ERROR)

        slopes = [
            (errors(logarithms + move) - errors(logarithms - move)) / (2 * step) for move in step * np.eye(len(START))
        ]
        information = np.array(slopes) @ np.array(slopes).T
        return np.sqrt(np.diag(np.linalg.pinv(information + 1e-6 * np.eye(len(START)))))

    def halves(self, seed: int) -> NDArray[np.int64]:
        """(R,) 0 or 1: which half a row is in. Rows of one origin go together, but where a class has but one origin."""
        rng, half = np.random.default_rng(seed), np.zeros(len(self.rows), np.int64)
        for name in ("compute", "NVLink", "network", "PCIe"):
            rows = self.fitted & (self.classes == name)
            origins = sorted(set(self.origins[rows]))
            if len(origins) == 1:
                half[rows] = np.arange(rows.sum()) % 2
                continue
            shuffled = rng.permutation(origins).tolist()
            first = shuffled[: (len(shuffled) + int(rng.integers(2))) // 2]
            half[rows] = [int(origin not in first) for origin in self.origins[rows]]
        return half


def copy_ms(row: Mapping[str, Any]) -> float:
    """Ms of a copy in the memory of a device, with its launch."""
    device = topology_of(row).device
    return float(row["num_bytes"] / (device.dram_gb_per_s * 1e6) + device.kernel_launch_us * 1e-3)


def phase_ms(quantity: str, *phases: float) -> float:
    """Of (4,) ms, those that a row of this quantity measures."""
    forward, backward = phases[FORWARD], phases[BACKWARD]
    return {"forward": forward, "backward": backward, "forward+backward": forward + backward}[quantity]


class Error(NamedTuple):
    mean: float
    worst: float


def error_of(errors: Array) -> Error:
    sizes = np.abs(errors)
    return Error(float(np.exp(sizes.mean())), float(np.exp(sizes.max())))


def errors_by_kind(problem: Problem, errors: Array, chosen: Mask) -> dict[str, tuple[int, Error]]:
    """Rows and error of every kind, of H100 and H200 compute, and of all kinds but small operators."""
    groups = {kind: problem.kinds == kind for kind in (*LARGE_KINDS, "small operators")}
    groups["H100 and H200, forward and backward"] = problem.hopper
    groups["all but small operators"] = np.isin(problem.kinds, LARGE_KINDS)
    return {
        name: (int((mask & chosen).sum()), error_of(errors[mask & chosen]))
        for name, mask in groups.items()
        if (mask & chosen).any()
    }


def held_out(problem: Problem, seed: int, start: Array = START) -> tuple[Array, Array]:
    """(R,) errors of the fitted rows in the half that they were fitted in, and when the other half was fitted."""
    half, inside, outside = problem.halves(seed), np.zeros(len(problem.rows)), np.zeros(len(problem.rows))
    for number in (0, 1):
        mine, other = problem.fitted & (half == number), problem.fitted & (half != number)
        errors = np.log(problem.predict(problem.fit(mine, start)) / problem.measured)
        inside[mine], outside[other] = errors[mine], errors[other]
    return inside, outside


def current_parameters() -> Array:
    a100 = hardware_profile("a100-dgx").device.l2_gb_per_s
    values = {**FITTED._asdict(), "a100_l2_gb_per_s": a100}
    for kind, numbers in LINK_KINDS.items():
        values[f"{kind}_share"], values[f"{kind}_latency_us"] = numbers.share, numbers.latency_us
        values[f"{kind}_knee_bytes"], values[f"{kind}_extra"] = numbers.knee_bytes, numbers.knee_extra
    return np.log([values[name] for name in NAMES])
