"""The folder that `shard-gym calibrate` makes: what it measured, and what it fitted to that. Needs torch and scipy.

links/, work/, placements/   measurements: of exchanges, of designed loads, of random placements and plans
links.json                   the hardware profile with calibrated links, under which the others were measured
hardware.json                the calibrated hardware profile, for --hardware
cost-model.safetensors       the fitted network, for --cost-model; with its card, cost-model.md
seconds.json                 how long was measured so far
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.parsing import require_fields
from shard_gym.common.text import format_percent
from shard_gym.cost_models import MODEL_FILE
from shard_gym.cost_models.analytical import AnalyticalShardingModel
from shard_gym.cost_models.fitting.calibration import Calibration, calibrated_profile
from shard_gym.cost_models.fitting.card import card_page
from shard_gym.cost_models.fitting.data.dataset import CostDataset, joined_data
from shard_gym.cost_models.fitting.data.measurements import Measurements, load_measurements
from shard_gym.cost_models.fitting.metrics import Estimates, errors_of, estimates_of, kendall_tau
from shard_gym.cost_models.neural import NeuralCostModel, save_cost_model
from shard_gym.hardware import HardwareProfile, HostSpec, write_profile
from shard_gym.hardware.profile_files import PROFILE_FILE

LINKS, WORK, PLACEMENTS = "links", "work", "placements"
SECONDS_FILE = "seconds.json"
NETWORK, CALIBRATED, SHIPPED = "the network", "the calibrated hardware", "the hardware as it ships"
NOISY = 0.2  # error of second measurements beyond which the machine was busy
FEW = 40  # test placements and plans below which errors say little


@dataclass(frozen=True)
class HeldOut:
    """How far a cost model is from the placements, or the plans, of tables that no fit saw.

    Attributes:
        count: of them.
        error: mean of |estimate / measured - 1| of an iteration.
        tau: Kendall's tau over all of them.
    """

    count: int
    error: float
    tau: float

    @staticmethod
    def of(data: CostDataset, cost_ms: FloatArray) -> HeldOut:
        """Of (P,) estimated ms."""
        error = errors_of(data, Estimates(data.phases_ms, cost_ms)).cost.mape
        return HeldOut(len(data), error, kendall_tau(data.cost_ms, cost_ms))

    def __str__(self) -> str:
        return f"{format_percent(self.error)} off, tau {self.tau:.2f}"


def held_out(model_ms: FloatArray, test: CostDataset) -> dict[str, HeldOut]:
    """Of the (P,) estimates of test placements: of placements and of plans, as far as there are any."""
    planned = test.planned
    parts = {"placements": ~planned, "plans": planned}
    return {
        name: HeldOut.of(test.take(rows.nonzero()[0]), model_ms[rows]) for name, rows in parts.items() if rows.any()
    }


def with_links(start: HardwareProfile, folder: Path) -> tuple[HardwareProfile, dict[str, float]]:
    """`start` with the links that were measured in the folder, and their standard errors; as it is without any."""
    if not (folder / LINKS / "index.json").exists():
        return start, {}
    found = calibrated_profile(load_measurements(folder / LINKS).costs.data, start)
    errors = {name: error for name, error in found.errors.items() if name.startswith("intra_host")}
    return replace(start, links=found.profile.links), errors


def with_rates(
    start: HardwareProfile, work: CostDataset, placements: Measurements, *, links: bool
) -> tuple[Calibration, dict[str, HeldOut]]:
    """`start` with rates of work, fitted to designed loads and to placements of training tables; the errors on test
    placements are in the source of the rates. With `links`, the exchanges of the placements were measured."""
    train, test = placements.first.part("train"), placements.test
    found = calibrated_profile(joined_data([work, train]), start, links=links)
    own = held_out(estimates_of(AnalyticalShardingModel(), test.on(found.profile)).cost_ms, test)
    said = "; ".join(f"{each} on {each.count:,} {name}" for name, each in own.items())
    device = found.profile.device
    sources = {**device.sources, "rates": f"{device.sources['rates']}; {said} of tables that it was not fitted to"}
    return replace(found, profile=replace(found.profile, device=replace(device, sources=sources))), own


def write_calibration(folder: Path, calibration: Calibration, host: HostSpec | None) -> None:
    """Write the hardware profile, whose name is that of the folder."""
    profile = replace(calibration.profile, name=folder.resolve().name, host=host)
    write_profile(folder / PROFILE_FILE, profile, calibration.errors)


def write_model(folder: Path, model: NeuralCostModel) -> None:
    """Write the fitted network and its card."""
    save_cost_model(model, folder / MODEL_FILE)
    write_atomically((folder / MODEL_FILE).with_suffix(".md"), card_page(model.card).encode())


@dataclass(frozen=True)
class Verdict:
    """What to trust after a calibration.

    Attributes:
        errors: of `NETWORK`, `CALIBRATED` and `SHIPPED` on placements and on plans of tables that no fit saw.
        again: how far a second measurement is off, as a share, and of how many; None if nothing was measured twice.
    """

    errors: Mapping[str, Mapping[str, HeldOut]]
    again: tuple[float, int] | None

    @property
    def trusted(self) -> str | None:
        """The one with the smallest error; None if that is the hardware as it ships, or if the machine was busy."""
        best = min(self.errors, key=lambda name: _mean(self.errors[name]))
        return None if best == SHIPPED or self.is_noisy else best

    @property
    def is_noisy(self) -> bool:
        """Whether second measurements differ so much that nothing can be fitted."""
        return self.again is not None and self.again[0] > NOISY

    def __str__(self) -> str:
        parts = []
        for name, found in self.errors[NETWORK].items():
            others = [f"{which} {self.errors[which][name]}" for which in (CALIBRATED, SHIPPED)]
            parts.append(
                f"On {found.count:,} {name} of tables that no fit saw, the network is {found}, {' and '.join(others)}."
            )
        if self.again is not None:
            off, times = format_percent(self.again[0]), f"{self.again[1]:,}"
            parts.append(f"Measuring a placement again gives a cost that is {off} off ({times} were).")
        count = sum(each.count for each in self.errors[NETWORK].values())
        if self.is_noisy:
            parts.append("That is too much: other programs ran. Calibrate into another folder on an idle machine.")
        elif self.trusted is None:
            parts.append(
                "The calibration is no better than the profile as it ships: measure more, with more `minutes`."
            )
        else:
            parts.append(
                f"Trust {self.trusted} most, and differences that are smaller than these errors not at all: race plans "
                "that are close."
            )
        if count < FEW:
            parts.append(f"{count} are few to judge by; more `minutes` measure more.")
        return " ".join(parts)


def _mean(found: Mapping[str, HeldOut]) -> float:
    return sum(each.error * each.count for each in found.values()) / sum(each.count for each in found.values())


def seconds_of(folder: Path, options: Mapping[str, Any]) -> float:
    """How long was measured into a folder so far, with these options; 0 for a new one.

    Raises:
        InvalidOptionError: it was begun with other options, or on another machine.
        DamagedFileError: its file is damaged.
    """
    path = folder / SECONDS_FILE
    if not path.exists():
        return 0.0
    record = require_fields(read_json(path), {"options": dict, "seconds": float}, str(path))
    if not 0 <= record["seconds"] < 1e9:
        raise DamagedFileError(f"{path} is damaged: seconds cannot be {record['seconds']!r}.")
    for name, value in options.items():
        if record["options"].get(name) != value:
            raise InvalidOptionError(
                f"{folder} was calibrated with {name.replace('_', ' ')} {record['options'].get(name)!r}, not "
                f"{value!r}. Name another folder, or repeat the command as it was."
            )
    return float(record["seconds"])


def write_seconds(folder: Path, options: Mapping[str, Any], seconds: float) -> None:
    """Keep how long was measured."""
    write_json(folder / SECONDS_FILE, {"options": dict(options), "seconds": float(seconds)})
