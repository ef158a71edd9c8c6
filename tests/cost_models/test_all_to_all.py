"""The all-to-all, held against a sum over every single message."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from shard_gym.cost_models.all_to_all import all_to_all_ms, plain_all_to_all_ms
from shard_gym.hardware import hardware_profile
from shard_gym.topology import Cluster, Topology


def message_by_message(output_bytes: NDArray[np.float64], topology: Topology) -> list[float]:
    """Ms of each device: every device sends a D-th of its outputs to every other one; both directions work at once."""
    size, links = topology.num_devices, topology.links
    sent: dict[tuple[int, bool], float] = defaultdict(float)
    received: dict[tuple[int, bool], float] = defaultdict(float)
    for source in range(size):
        for target in range(size):
            if source != target:
                crosses = source // topology.devices_per_host != target // topology.devices_per_host
                sent[source, crosses] += output_bytes[source] / size
                received[target, crosses] += output_bytes[source] / size
    if size == 1 or output_bytes.sum() == 0:
        return [0.0] * size
    latency_us = links.inter_host_latency_us if size > topology.devices_per_host else links.intra_host_latency_us
    bandwidth = {False: links.intra_host_gb_per_s * 1e6, True: links.inter_host_gb_per_s * 1e6}
    return [
        max(max(sent[device, link], received[device, link]) / bandwidth[link] for link in (False, True))
        + latency_us / 1000
        for device in range(size)
    ]


@pytest.mark.parametrize("devices_per_host", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 3, 5, 6, 7])
def test_it_equals_the_sum_over_all_messages(num_devices: int, devices_per_host: int) -> None:
    topology = hardware_profile("h100-dgx").topology(num_devices, devices_per_host=devices_per_host)
    rng = np.random.default_rng([num_devices, devices_per_host])
    outputs = rng.integers(0, 10**9, (20, num_devices)) * rng.integers(0, 2, (20, num_devices)).astype(float)
    outputs[0] = 0.0
    expected = [message_by_message(one, topology) for one in outputs]
    np.testing.assert_allclose(all_to_all_ms(outputs, topology.cluster()), expected, rtol=1e-12)


def test_across_hosts_the_card_is_the_limit() -> None:
    """With N hosts, (N - 1) / N of the outputs pass the network card (NVIDIA/nccl-tests, issue 130)."""
    topology = hardware_profile("a100-dgx").topology(16)
    took = all_to_all_ms(np.full(16, 1e9), topology.cluster())
    assert took == pytest.approx(np.full(16, 0.5e9 / (topology.links.inter_host_gb_per_s * 1e6) + 0.050))


@pytest.mark.parametrize("devices_per_host", [1, 2, 3, 8])
@pytest.mark.parametrize("num_devices", [1, 2, 5, 7, 8])
def test_plain_numbers_have_the_bits_of_the_arrays(num_devices: int, devices_per_host: int) -> None:
    topology = hardware_profile("v100-nvlink").topology(num_devices, devices_per_host=devices_per_host)
    cluster = Cluster.stack([topology.cluster(9)])
    rng = np.random.default_rng([num_devices, devices_per_host])
    outputs = np.zeros((40, 9))
    outputs[1:, :num_devices] = rng.integers(0, 10**11, (39, num_devices)) * rng.integers(0, 2, (39, num_devices))
    for each in outputs:
        plain = plain_all_to_all_ms(each.tolist(), cluster)
        assert np.array(plain).tobytes() == all_to_all_ms(each[None], cluster).tobytes()
