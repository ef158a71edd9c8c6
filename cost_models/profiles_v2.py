"""The hardware profiles with the numbers of version 2 of the analytical model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shard_gym.hardware import HardwareProfile, hardware_profile

LINE_RATES: Mapping[str, tuple[float, float]] = {
    "rtx2080ti-pcie": (15.75, 1.25),
    "v100-nvlink": (150.0, 12.5),
    "a100-dgx": (300.0, 25.0),
    "h100-dgx": (450.0, 50.0),
    "h200-dgx": (450.0, 50.0),
}
"""GB/s of one direction of the links of a device, by their data sheets: inside its host (PCIe 3.0 x16 or all NVLinks),
and its network card (10, 100, 200 or 400 Gb/s; one for each device is assumed)."""

LINE_SHARES = {"pcie": 0.299, "nvlink": 0.735, "network": 0.639}
"""Shares of the line rate that an all-to-all of large messages reaches, by the kind of link; fitted."""

LATENCIES_US = {"pcie": 13.1, "nvlink": 11.1, "network": 34.1}
"""Time of an all-to-all without bytes, by the kind of link; fitted."""

_FIT = "[measured] fitted to nccl-tests on named machines, docs/cost-model-v2.md"
_DEVICES: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "rtx2080ti-pcie": {
        "dram_gb_per_s": (535.0, "[measured] a copy of 1 GiB by NCCL, 534.7 GB/s of 616, docs/cost-model-v2.md"),
    },
    "a100-dgx": {
        "l2_gb_per_s": (2640.0, "[measured] fitted to FBGEMM's forward, docs/cost-model-v2.md; Lin et al. have 2271"),
    },
    "h100-dgx": {"l2_gb_per_s": (4020.0, "[assumed] the A100's fitted bandwidth for each cycle of an SM")},
    "h200-dgx": {"l2_gb_per_s": (4020.0, "[assumed] the A100's fitted bandwidth for each cycle of an SM")},
}


def profile_v2(name: str) -> HardwareProfile:
    """The hardware profile named `name` with the numbers that version 2 was fitted with; `cpu` is as in version 1.

    Raises:
        UnknownNameError: there is no such profile; the message lists the known names.
    """
    profile = hardware_profile(name)
    device, links = profile.device, profile.links
    changed = _DEVICES.get(name, {})
    numbers: dict[str, Any] = {field: value for field, (value, _) in changed.items()}
    sources = {field: source for field, (_, source) in changed.items()}
    device = replace(device, **numbers, sources={**device.sources, **sources})
    if name in LINE_RATES:
        inside, card = LINE_RATES[name]
        kind = "pcie" if name.endswith("pcie") else "nvlink"
        rates: dict[str, Any] = {
            "intra_host_gb_per_s": LINE_SHARES[kind] * inside,
            "inter_host_gb_per_s": LINE_SHARES["network"] * card,
            "intra_host_latency_us": LATENCIES_US[kind],
            "inter_host_latency_us": LATENCIES_US["network"],
        }
        links = replace(links, **rates, sources=dict.fromkeys(rates, _FIT))
    return replace(profile, device=device, links=links)
