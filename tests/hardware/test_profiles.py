from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.hardware import PROFILES, HardwareProfile, fitted_links, hardware_profile

GPUS = [profile for profile in PROFILES.values() if profile.name != "cpu"]
EVERY_GPU = pytest.mark.parametrize("profile", GPUS, ids=lambda profile: profile.name)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_number_says_where_it_comes_from(profile: HardwareProfile) -> None:
    for part in filter(None, (profile.device, profile.links, profile.host)):
        numbers = {field.name for field in fields(part) if getattr(part, field.name) is not None}
        numbers -= {"name", "sources", "is_shared"}
        assert set(part.sources) == numbers
        for name, source in part.sources.items():
            assert re.match(r"\[(measured|spec|assumed)\]", source), f"{name} of {profile.name}: {source}"
            assert source.startswith("[spec]") or len(source) > len("[measured] ") + 5


def test_profiles_of_gpus_and_of_cpus_have_their_device_type() -> None:
    of_type = {profile.name: profile.device.device_type for profile in PROFILES.values()}
    assert of_type == {**dict.fromkeys(of_type, "cuda"), "cpu": "cpu"}


@EVERY_GPU
def test_the_numbers_are_in_their_units(profile: HardwareProfile) -> None:
    """A slip of a thousand, or of bits for bytes, leaves these ranges."""
    device, links = profile.device, profile.links
    assert 8 * 2**30 <= device.memory_bytes <= 256 * 2**30
    assert 300 <= device.dram_gb_per_s <= 8000
    assert 1000 <= device.l2_gb_per_s <= 12000
    assert 2**20 <= device.l2_bytes <= 2**28
    assert 0.5 <= device.clock_ghz <= 3
    assert 1 <= device.kernel_launch_us <= 20
    assert 1e5 <= links.inter_host_knee_bytes <= links.intra_host_knee_bytes * 1.1 <= 1e8
    assert 0.1 < links.inter_host_knee_extra < 5
    assert 0.1 < links.intra_host_knee_extra < 5
    assert links.inter_host_gb_per_s < links.intra_host_gb_per_s < device.dram_gb_per_s
    assert profile.host is not None
    assert 2**38 <= profile.host.memory_bytes <= 2**42
    assert 0.8 <= profile.host.update_gb_per_s / profile.host.read_gb_per_s <= 1.5
    assert 5 <= profile.host.read_gb_per_s <= device.dram_gb_per_s / 10
    assert 1 <= links.intra_host_latency_us <= links.inter_host_latency_us <= 1000


@EVERY_GPU
def test_bandwidths_do_not_exceed_the_data_sheets(profile: HardwareProfile) -> None:
    """GB/s of DRAM, and of one direction of NVLink (PCIe for the RTX 2080 Ti)."""
    dram, link = {
        "rtx2080ti-pcie": (616, 15.75),
        "v100-nvlink": (900, 150),
        "a100-dgx": (2039, 300),
        "h100-dgx": (3350, 450),
        "h200-dgx": (4800, 450),
        "gh200-quad": (4000, 450),
        "h20-hgx": (4000, 450),
        "b200-dgx": (7672, 900),  # DRAM by bus and clock, which are less than the 8,000 of the data sheet
        "gb200-nvl72": (8000, 900),
    }[profile.name]
    assert 0.85 * dram < profile.device.dram_gb_per_s < dram
    least = 0.25 if profile.name.endswith("pcie") else 0.7  # without peer-to-peer copies data pass host memory twice
    assert least * link < profile.links.intra_host_gb_per_s < link


def test_l2_bandwidths_that_nobody_measured_follow_the_a100_by_cycles_of_sms() -> None:
    a100 = hardware_profile("a100-dgx").device
    of_cycle = a100.l2_gb_per_s / (a100.num_sms * a100.clock_ghz)
    for name in ("h100-dgx", "h200-dgx", "gh200-quad", "h20-hgx", "b200-dgx", "gb200-nvl72"):
        device = hardware_profile(name).device
        expected = of_cycle * device.num_sms * device.clock_ghz
        assert device.l2_gb_per_s == pytest.approx(expected, rel=0.002), name


def test_a_rack_of_gb200_is_one_domain_of_hosts_of_four() -> None:
    topology = hardware_profile("gb200-nvl72").topology(80)
    assert (topology.num_hosts, topology.num_domains, topology.fast_group) == (20, 2, "domain")
    pods = hardware_profile("gb200-nvl72").topology(16, devices_per_domain=8)
    assert (pods.num_hosts, pods.num_domains) == (4, 2)


def test_links_come_from_line_rates_and_the_numbers_of_their_kind() -> None:
    links = fitted_links("pcie", 10.0, 100.0, "both invented")
    assert (links.intra_host_gb_per_s, links.intra_host_latency_us) == (2.99, 13.1)
    assert (links.intra_host_knee_bytes, links.intra_host_knee_extra) == (0.937e6, 0.407)
    assert (links.inter_host_gb_per_s, links.inter_host_latency_us) == (63.9, 34.1)
    assert (links.inter_host_knee_bytes, links.inter_host_knee_extra) == (0.938e6, 0.612)
    assert links.sources["inter_host_gb_per_s"].endswith("; both invented")
    assert "invented" not in links.sources["inter_host_latency_us"]
    assert hardware_profile("cpu").links.intra_host_knee_extra == 0


def test_a_profile_makes_topologies_of_its_own_or_the_given_hosts_and_caps() -> None:
    with pytest.raises(UnknownNameError, match=r"no hardware profile named 'a100'.* Known: .*a100-dgx"):
        hardware_profile("a100")
    profile = hardware_profile("a100-dgx")
    plain = profile.topology(12)
    assert (plain.device, plain.links) == (profile.device, profile.links)
    assert plain.devices_per_host == 8
    assert plain.memory_cap_bytes.tolist() == [80 * 2**30] * 12
    given = profile.topology(2, devices_per_host=1, memory_cap_bytes=np.array([5, 7]))
    assert given.devices_per_host == 1
    assert given.memory_cap_bytes.tolist() == [5, 7]
    assert profile.topology(3, memory_cap_bytes=9).memory_cap_bytes.tolist() == [9, 9, 9]


def test_each_device_has_an_equal_part_of_its_hosts_memory() -> None:
    """Three devices are on one host, two on the other."""
    profile = hardware_profile("a100-dgx")
    topology = profile.topology(5, devices_per_host=3, memory_cap_bytes=100, host_memory_bytes=600)
    assert topology.memory_cap_bytes.tolist() == [300, 300, 300, 400, 400]
    assert topology.host is not None
    assert profile.host is not None
    assert topology.host.hbm_bytes == 100
    assert (topology.host.read_gb_per_s, topology.host.update_gb_per_s) == (16.0, 20.0)
    assert topology.host.sources == profile.host.sources
    full = profile.topology(8, host_memory_bytes=2**40)
    assert full.memory_cap_bytes.tolist() == [80 * 2**30 + 2**37] * 8
    assert profile.topology(8).host is None


def test_memory_that_each_device_owns_is_not_lent_to_others() -> None:
    topology = hardware_profile("gh200-quad").topology(5, memory_cap_bytes=100, host_memory_bytes=800)
    assert topology.memory_cap_bytes.tolist() == [300] * 5


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("cpu", {"host_memory_bytes": 10}, "'cpu' has no host memory for tables. Name another, such as 'a100-dgx'"),
        ("a100-dgx", {"host_memory_bytes": -1}, "host_memory_bytes must be an integer from 0"),
        ("a100-dgx", {"host_memory_bytes": 2**51}, "host_memory_bytes must be an integer from 0"),
        ("a100-dgx", {"host_memory_bytes": 1.5}, "host_memory_bytes must be an integer from 0"),
        (
            "a100-dgx",
            {"host_memory_bytes": 10, "memory_cap_bytes": np.array([5, 7])},
            r"all devices have one memory cap, that of their HBM, not \[5, 7\]",
        ),
    ],
)
def test_impossible_host_memory_is_refused(name: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        hardware_profile(name).topology(2, **arguments)
