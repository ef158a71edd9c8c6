"""Calibration finds the rates and the links that gave the costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTopologyError, UnknownNameError
from shard_gym.common.io.files import sha256_of, write_json
from shard_gym.cost_models import AnalyticalShardingModel, make_cost_model
from shard_gym.cost_models.fitting import CostDataset
from shard_gym.cost_models.fitting.calibration import LAUNCH, LINKS, RATES, calibrated_profile
from shard_gym.cost_models.fitting.data.dataset import CostRecorder, joined_data
from shard_gym.cost_models.fitting.data.random_plans import random_plan
from shard_gym.cost_models.fitting.metrics import errors, estimates_of
from shard_gym.hardware import HardwareProfile, HostSpec, WorkRates, hardware_profile, read_profile, write_profile
from shard_gym.hardware.profile_files import PROFILE_FILE
from shard_gym.plans import ShardingPlan, table_row_wise

WRONG = hardware_profile("v100-nvlink")
TRUE = WorkRates((80.0, 2.0, 0.1, 8.0, 0.5, 0.7), (50.0, 7.0, 0.2, 20.0, 0.8, 0.4), dense_update=0.3)
RIGHT = replace(
    hardware_profile("h100-dgx"),
    device=replace(hardware_profile("h100-dgx").device, rates=TRUE, kernel_launch_us=4.0),
)


def measured(random_tables: Any, seed: int, devices: int, noise: float = 0.0, plans: bool = False) -> CostDataset:
    """200 placements, or plans, of random tables, costed on RIGHT."""
    rng, model = np.random.default_rng(seed), AnalyticalShardingModel()
    recorder = CostRecorder("made up")
    for _ in range(200):
        tables = random_tables(rng, int(rng.integers(2, 30)))
        placement, topology = rng.integers(devices, size=len(tables)), RIGHT.topology(devices)
        plan = random_plan(placement, tables, topology, rng)
        cost = model.estimate(plan, tables, topology) if plans else model.estimate(placement, tables, topology)
        phases = cost.phases_ms * np.exp(noise * rng.standard_normal(cost.phases_ms.shape))
        noisy = replace(cost, phases_ms=phases)
        if plans:
            recorder.add_plan(tables, topology, plan, noisy)
        else:
            recorder.add(tables, topology, placement, noisy)
    return recorder.dataset()


@pytest.mark.parametrize(("noise", "plans"), [(0.0, False), (0.0, True), (0.1, True)])
def test_the_rates_and_the_links_are_found(random_tables: Any, noise: float, plans: bool) -> None:
    unseen = measured(random_tables, 1, 3, plans=plans)
    found = calibrated_profile(measured(random_tables, 0, 3, noise, plans), WRONG)
    profile, model = found.profile, AnalyticalShardingModel()
    assert errors(model, unseen.on(WRONG)).cost.ratio > 0.5
    assert errors(model, unseen.on(profile)).cost.ratio < 0.02 + noise / 3
    assert all(error.ratio < 0.02 + noise / 3 for error in errors(model, unseen.on(profile)).phases.values())
    assert profile.links.intra_host_gb_per_s == pytest.approx(RIGHT.links.intra_host_gb_per_s, rel=0.05 + noise)
    assert profile.device.rates is not None
    if not noise:
        assert profile.device.rates.forward == pytest.approx(TRUE.forward, rel=1e-3, abs=1e-3)
        assert profile.device.rates.backward == pytest.approx(TRUE.backward, rel=1e-3, abs=1e-3)
        assert profile.device.rates.dense_update == (pytest.approx(0.3, rel=1e-3) if plans else None)
        assert profile.device.kernel_launch_us == pytest.approx(4.0, rel=1e-3)


def test_standard_errors_tell_what_the_data_say(random_tables: Any) -> None:
    """They grow with the noise, and hold the truth about as often as they say."""
    low, high = (calibrated_profile(measured(random_tables, 2, 2, noise), WRONG) for noise in (0.02, 0.2))
    common = low.errors.keys() & high.errors.keys()
    assert {LAUNCH, "forward.bags", "backward.lookups", *LINKS} <= common
    assert np.median([high.errors[name] / low.errors[name] for name in common]) > 4
    assert low.profile.device.rates is not None
    found = dict(zip(RATES, (*low.profile.device.rates.forward, *low.profile.device.rates.backward), strict=False))
    truth = dict(zip(RATES, (*TRUE.forward, *TRUE.backward), strict=False))
    off = [abs(found[name] / truth[name] - 1) / low.errors[name] for name in truth if name in low.errors]
    assert np.mean(np.array(off) < 3) > 0.8


def test_modelled_exchanges_leave_the_links_as_they_are(random_tables: Any) -> None:
    for found in (
        calibrated_profile(measured(random_tables, 3, 2), WRONG, links=False),
        calibrated_profile(measured(random_tables, 3, 1), WRONG),
    ):
        assert found.profile.links == WRONG.links
        assert not found.errors.keys() & set(LINKS)
        assert found.profile.device.num_sms == WRONG.device.num_sms
        assert "calibrated on 200 placements" in found.profile.device.sources["rates"]


def test_links_that_the_exchanges_do_not_tell_stay_as_they_are(random_tables: Any) -> None:
    """Exchanges of a few bytes take the latency, whatever the bandwidth."""
    small = replace(RIGHT, links=replace(RIGHT.links, intra_host_latency_us=5e3))
    data = measured(random_tables, 3, 2).on(small)
    estimated = estimates_of(AnalyticalShardingModel(), data)
    noise = np.exp(0.3 * np.random.default_rng(0).standard_normal(data.phases_ms.shape))
    found = calibrated_profile(replace(data, phases_ms=estimated.phases_ms * noise), WRONG)
    assert found.profile.links.intra_host_latency_us == pytest.approx(5e3, rel=0.1)
    assert "intra_host_gb_per_s" not in found.errors
    assert found.profile.links.intra_host_gb_per_s == WRONG.links.intra_host_gb_per_s


def test_other_hardware_keeps_the_hosts(random_tables: Any) -> None:
    rng, recorder, model = np.random.default_rng(0), CostRecorder("made up"), AnalyticalShardingModel()
    tables, topology = random_tables(rng, 6), RIGHT.topology(4, devices_per_host=2)
    plan = ShardingPlan(tuple(table_row_wise(tables, table, topology, table % 2) for table in range(6)))
    cost = model.estimate(plan, tables, topology)
    recorder.add_plan(tables, topology, plan, cost)
    assert estimates_of(model, recorder.dataset().on(RIGHT)).cost_ms[0] == pytest.approx(cost.total_ms)


def test_measurements_of_different_sources_are_not_joined(random_tables: Any) -> None:
    one = measured(random_tables, 5, 2)
    with pytest.raises(InvalidOptionError, match="made up and other"):
        joined_data([one, replace(one, source="other")])


def test_the_default_start_is_the_profile_of_the_data(random_tables: Any) -> None:
    data = measured(random_tables, 4, 2)
    found = calibrated_profile(data).profile
    assert found.name == RIGHT.device.name
    assert errors(AnalyticalShardingModel(), data.on(found)).cost.ratio < 1e-3


def test_costs_without_times_are_refused(random_tables: Any) -> None:
    data = measured(random_tables, 5, 2)
    with pytest.raises(InvalidOptionError, match="Nothing can be calibrated"):
        calibrated_profile(replace(data, phases_ms=np.zeros_like(data.phases_ms)))


@pytest.mark.parametrize("rates", [(1.0,) * 5, (1.0, 1.0, 1.0, 1.0, 1.0, -1.0), (float("nan"),) * 6, "fast"])
def test_impossible_rates_are_refused(rates: Any) -> None:
    with pytest.raises(InvalidTopologyError):
        WorkRates(rates, (1.0,) * 6)


# The file of a profile


def written(folder: Path, profile: HardwareProfile = RIGHT) -> Path:
    host = HostSpec(2**40, 50.0, 40.0, sources={"read_gb_per_s": "[measured] here"})
    write_profile(folder / PROFILE_FILE, replace(profile, name="mine", host=host), {"forward.bags": 0.03})
    return folder


def test_a_profile_is_read_as_it_was_written_and_named_by_its_folder(tmp_path: Path) -> None:
    found = hardware_profile(str(written(tmp_path)))
    assert (found.name, found.device, found.links) == ("mine", RIGHT.device, RIGHT.links)
    assert found.device.sources == RIGHT.device.sources
    assert found.host == HostSpec(2**40, 50.0, 40.0, sources={})
    assert found.topology(4, memory_cap_bytes=2**30, host_memory_bytes=2**30).host is not None


def test_a_changed_profile_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path) / PROFILE_FILE
    text = path.read_text()
    for old, new in (("50.0", "51.0"), ('"mine"', '"other"'), ("shard-gym-hardware/1", "shard-gym-hardware/2")):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(DamagedFileError):
            read_profile(path)
    path.write_text(text[:-20])
    with pytest.raises(DamagedFileError):
        read_profile(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "\x1b[31mred"},
        {"name": ""},
        {"devices_per_host": 0},
        {"host": {"memory_bytes": "x", "read_gb_per_s": 1.0, "update_gb_per_s": 1.0, "is_shared": True}},
        {"host": {"memory_bytes": 2**30, "read_gb_per_s": 1.0, "update_gb_per_s": None, "is_shared": True}},
        {"host": {"memory_bytes": 2**30, "read_gb_per_s": 1.0, "update_gb_per_s": 1.0, "is_shared": "no"}},
        {"device": {}},
        {"links": []},
    ],
)
def test_impossible_parts_of_a_profile_are_refused(tmp_path: Path, change: Any) -> None:
    path = written(tmp_path) / PROFILE_FILE
    record = json.loads(path.read_text()) | change
    del record["sha256"]
    write_json(path, {**record, "sha256": sha256_of(json.dumps(record, sort_keys=True).encode())})
    with pytest.raises(DamagedFileError):
        read_profile(path)


def test_names_that_no_folder_can_have_are_unknown(tmp_path: Path) -> None:
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(UnknownNameError):
            hardware_profile(name)
        with pytest.raises(UnknownNameError):
            make_cost_model(name)
    assert hardware_profile(written(tmp_path)).name == "mine"


def test_a_folder_without_a_profile_is_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="or a folder that shard-gym calibrate made"):
        hardware_profile(str(tmp_path))
