"""Calibration finds the numbers of the profile that gave the costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.calibration import DEVICE, LINKS, calibrated_profile
from shard_gym.cost_models.data.dataset import CostDataset, CostRecorder
from shard_gym.cost_models.metrics import errors
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.hardware_profile import HardwareProfile

WRONG = hardware_profile("v100-nvlink")
RIGHT = hardware_profile("h100-dgx")


def placements(random_tables: Any, seed: int, profile: HardwareProfile, devices: int, noise: float = 0.0) -> Any:
    """60 placements of random tables, costed on `profile`."""
    rng, model = np.random.default_rng(seed), AnalyticalCostModel()
    recorder = CostRecorder("made up")
    for _ in range(60):
        tables = random_tables(rng, int(rng.integers(2, 30)))
        placement, topology = rng.integers(devices, size=len(tables)), profile.topology(devices)
        cost = model.estimate(placement, tables, topology)
        phases = cost.phases_ms * np.exp(noise * rng.standard_normal(cost.phases_ms.shape))
        recorder.add(tables, topology, placement, replace(cost, phases_ms=phases))
    return recorder.dataset()


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_profile_is_found(random_tables: Any, noise: float) -> None:
    seen = placements(random_tables, 0, RIGHT, 3, noise)
    unseen = placements(random_tables, 1, RIGHT, 3)
    found = calibrated_profile(seen, WRONG)
    before, after = (errors(AnalyticalCostModel(), unseen.on(profile)) for profile in (WRONG, found))
    assert before.cost.ratio > 0.5
    assert after.cost.ratio < 0.03 + noise / 4
    assert all(error.ratio < 0.06 + noise / 4 for error in after.phases.values())
    assert found.device.dram_gb_per_s == pytest.approx(RIGHT.device.dram_gb_per_s, rel=0.1 + noise)
    assert found.links.intra_host_gb_per_s == pytest.approx(RIGHT.links.intra_host_gb_per_s, rel=0.05 + noise)


def test_numbers_without_effect_keep_their_value_and_source(random_tables: Any) -> None:
    found = calibrated_profile(placements(random_tables, 2, RIGHT, 1), WRONG)
    assert found.links == WRONG.links
    assert found.links.sources == WRONG.links.sources
    assert found.device.num_sms == WRONG.device.num_sms
    assert {name for name, text in found.device.sources.items() if "calibrated on 60 placements" in text} == set(DEVICE)
    both = calibrated_profile(placements(random_tables, 2, RIGHT, 2), WRONG)
    assert {name for name, text in both.links.sources.items() if "calibrated" in text} == set(LINKS)


def test_the_default_start_is_the_profile_of_the_data(random_tables: Any) -> None:
    data = placements(random_tables, 3, RIGHT, 2)
    found = calibrated_profile(data)
    assert found.name == RIGHT.device.name
    assert errors(AnalyticalCostModel(), data.on(found)).cost.ratio < 1e-3


def test_costs_without_times_are_refused(random_tables: Any) -> None:
    data: CostDataset = placements(random_tables, 4, RIGHT, 2)
    with pytest.raises(InvalidOptionError, match="Nothing can be calibrated"):
        calibrated_profile(replace(data, phases_ms=np.zeros_like(data.phases_ms)))
