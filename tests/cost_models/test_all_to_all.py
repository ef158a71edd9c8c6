"""The all-to-all, held against a sum over every single message, and the knees of links."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from shard_gym.cost_models.all_to_all import all_to_all_ms, least_all_to_all_ms, link_ms, plain_all_to_all_ms
from shard_gym.hardware import LINK_KINDS, LinkKind, hardware_profile
from shard_gym.topology import Cluster, Topology

PROFILES = ["rtx2080ti-pcie", "v100-nvlink", "h100-dgx", "cpu"]


def through(num_bytes: float, gb_per_s: float, knee_bytes: float, extra: float) -> float:
    """Ms of one link, written out: the first bytes at the lower bandwidth, the others at the higher one."""
    slow = min(num_bytes, knee_bytes)
    return slow * (1 + extra) / (gb_per_s * 1e6) + (num_bytes - slow) / (gb_per_s * 1e6)


def message_by_message(output_bytes: NDArray[np.float64], topology: Topology) -> list[float]:
    """Ms of each device: every device sends a D-th of its outputs to every other one; both directions work at once."""
    size, links = topology.num_devices, topology.links
    moved: dict[tuple[str, int, bool], float] = defaultdict(float)
    for source in range(size):
        for target in range(size):
            if source != target:
                crosses = source // topology.devices_per_host != target // topology.devices_per_host
                moved["sent", source, crosses] += output_bytes[source] / size
                moved["received", target, crosses] += output_bytes[source] / size
    if size == 1 or output_bytes.sum() == 0:
        return [0.0] * size
    crosses_hosts = size > topology.devices_per_host
    latency_us = links.inter_host_latency_us if crosses_hosts else links.intra_host_latency_us
    kinds = {
        False: (links.intra_host_gb_per_s, links.intra_host_knee_bytes, links.intra_host_knee_extra),
        True: (links.inter_host_gb_per_s, links.inter_host_knee_bytes, links.inter_host_knee_extra),
    }
    return [
        max(
            through(max(moved["sent", device, crosses], moved["received", device, crosses]), *kinds[crosses])
            for crosses in (False, True)
        )
        + latency_us / 1000
        for device in range(size)
    ]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("devices_per_host", [1, 3, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 5, 7])
def test_it_equals_the_sum_over_all_messages(name: str, num_devices: int, devices_per_host: int) -> None:
    topology = hardware_profile(name).topology(num_devices, devices_per_host=devices_per_host)
    rng = np.random.default_rng([num_devices, devices_per_host])
    outputs = np.floor(10 ** rng.uniform(3, 9, (20, num_devices))) * rng.integers(0, 2, (20, num_devices))
    outputs[0] = 0.0
    expected = [message_by_message(one, topology) for one in outputs]
    np.testing.assert_allclose(all_to_all_ms(outputs, topology.cluster()), expected, rtol=1e-12)
    for one, took in zip(outputs, expected, strict=True):
        assert least_all_to_all_ms(one.sum(), topology.cluster()) <= max(took) * (1 + 1e-12)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("devices_per_host", [1, 3, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 5, 8])
def test_plain_numbers_have_the_bits_of_the_arrays(name: str, num_devices: int, devices_per_host: int) -> None:
    topology = hardware_profile(name).topology(num_devices, devices_per_host=devices_per_host)
    cluster = Cluster.stack([topology.cluster(9)])
    rng = np.random.default_rng([3, num_devices, devices_per_host])
    for _ in range(20):
        outputs = np.zeros((1, 9))
        outputs[0, :num_devices] = np.floor(10 ** rng.uniform(3, 9, num_devices)) * rng.integers(0, 2, num_devices)
        assert plain_all_to_all_ms(outputs[0].tolist(), cluster) == all_to_all_ms(outputs, cluster)[0].tolist()


@pytest.mark.parametrize("kind", LINK_KINDS.values(), ids=LINK_KINDS)
def test_a_link_never_gets_faster_with_more_bytes_and_reaches_its_bandwidth(kind: LinkKind) -> None:
    num_bytes = np.geomspace(1, 1e12, 4000)
    ms = link_ms(num_bytes, 1e8, kind.knee_bytes, kind.knee_extra)
    assert (np.diff(ms) > 0).all()
    assert np.abs(np.diff(ms) / np.diff(num_bytes)).max() <= (1 + kind.knee_extra) / 1e8 * (1 + 1e-9)
    assert ms[-1] == pytest.approx(1e12 / 1e8, rel=1e-4)
    assert ms[0] == pytest.approx((1 + kind.knee_extra) / 1e8)


@pytest.mark.parametrize("num_devices", [9, 12, 15, 16])
def test_across_hosts_the_lower_bound_is_reached_by_equal_outputs(num_devices: int) -> None:
    """Also where the second host is smaller: its devices receive from all of the first."""
    topology = hardware_profile("a100-dgx").topology(num_devices)
    took = message_by_message(np.full(num_devices, 1e8), topology)
    assert least_all_to_all_ms(1e8 * num_devices, topology.cluster()) == pytest.approx(max(took), rel=1e-12)
