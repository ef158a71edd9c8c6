"""The named hardware profiles: devices and links, every number with its source.

Marks of the sources: [measured] a published measurement, [spec] the data sheet, [assumed] a choice, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import unknown_name
from shard_gym.topology import DeviceSpec, LinkSpec, Topology


@dataclass(frozen=True)
class HardwareProfile:
    """A type of machine: its devices, their links, and the number of devices per host."""

    name: str
    device: DeviceSpec
    links: LinkSpec
    devices_per_host: int = 8

    def topology(
        self,
        num_devices: int,
        *,
        devices_per_host: int | None = None,
        memory_cap_bytes: int | NDArray[np.int64] | None = None,
    ) -> Topology:
        """A topology of `num_devices` of these devices; see `Topology` for the arguments and errors."""
        return Topology(
            device=self.device,
            links=self.links,
            num_devices=num_devices,
            devices_per_host=self.devices_per_host if devices_per_host is None else devices_per_host,
            memory_cap_bytes=np.asarray(self.device.memory_bytes if memory_cap_bytes is None else memory_cap_bytes),
        )


Sourced = tuple[Any, str]
"""A number and its source."""


def _device(name: str, **numbers: Sourced) -> DeviceSpec:
    return DeviceSpec(name, **_with_sources(numbers))


def _links(**numbers: Sourced) -> LinkSpec:
    return LinkSpec(**_with_sources(numbers))


def _with_sources(numbers: dict[str, Sourced]) -> dict[str, Any]:
    values = {name: value for name, (value, _) in numbers.items()}
    return {**values, "sources": {name: source for name, (_, source) in numbers.items()}}


_GIB = 2**30
_MIB = 2**20

_LIN = "Lin et al., HiPC 2022, owensgroup/ml_perf_model analysis/utils.py HW_PARAMS"
_BOOST_CLOCK = "[spec] boost clock"
_LAUNCH = (5.0, f"[measured] 5 us per kernel, {_LIN}")

_RTX_2080_TI = _device(
    "GeForce RTX 2080 Ti",
    memory_bytes=(11 * _GIB, "[spec] 11 GB"),
    dram_gb_per_s=(554.0, "[assumed] 0.90 of the 616 GB/s of the data sheet, the share measured on V100 and A100"),
    l2_gb_per_s=(2440.0, "[assumed] V100's measured 2847 GB/s scaled by SMs and clock"),
    l2_bytes=(int(5.5 * _MIB), "[spec] 5.5 MB, also daochenzha/autoshard bench.py"),
    num_sms=(68, "[spec]"),
    clock_ghz=(1.545, _BOOST_CLOCK),
    kernel_launch_us=_LAUNCH,
    ramp_bytes=(9e6, "[assumed] as V100"),
)

_V100 = _device(
    "V100-SXM2-32GB",
    memory_bytes=(32 * _GIB, "[spec] 32 GB"),
    dram_gb_per_s=(817.0, f"[measured] 816.95 GB/s of 900, {_LIN}"),
    l2_gb_per_s=(2847.5, f"[measured] {_LIN}"),
    l2_bytes=(6 * _MIB, "[spec] 6 MB"),
    num_sms=(80, "[spec]"),
    clock_ghz=(1.53, _BOOST_CLOCK),
    kernel_launch_us=_LAUNCH,
    ramp_bytes=(
        9e6,
        "[measured] half-performance length of the fitted V100 DRAM curve, 2^20 to 2^26 bytes (8 to 12 MB), "
        "ml_perf_model analysis/memory_bw_utils.py",
    ),
)

_A100 = _device(
    "A100-SXM4-80GB",
    memory_bytes=(80 * _GIB, "[spec] 80 GB"),
    dram_gb_per_s=(
        1825.0,
        f"[assumed] 0.895 of the 2039 GB/s of the data sheet, the share measured on the 40 GB part, {_LIN}",
    ),
    l2_gb_per_s=(2271.0, f"[measured] 2270.9 GB/s on the 40 GB part, {_LIN}; the data sheet says 7219"),
    l2_bytes=(40 * _MIB, "[spec] 40 MB"),
    num_sms=(108, "[spec]"),
    clock_ghz=(1.41, _BOOST_CLOCK),
    kernel_launch_us=_LAUNCH,
    ramp_bytes=(
        11e6,
        "[measured] half-performance length of the fitted A100 DRAM curve, 2^22 to 2^28 bytes (10 to 12 MB), "
        "ml_perf_model analysis/memory_bw_utils.py",
    ),
)

_HOPPER: dict[str, Sourced] = {
    "l2_gb_per_s": (
        5500.0,
        "[assumed] 0.61 of the 8986 GB/s of the data sheet, between the shares measured on V100 (0.91) and A100 "
        "(0.31); pytorch/torchrec pull request 2365 reaches 4200 GB/s of row traffic at D=64, if its unnamed GPU is "
        "an H100",
    ),
    "l2_bytes": (50 * _MIB, "[spec] 50 MB"),
    "num_sms": (132, "[spec]"),
    "clock_ghz": (1.755, "[assumed] 1.755, between the base and the boost clock of the data sheet"),
    "kernel_launch_us": _LAUNCH,
}
_HOPPER_RAMP = "[assumed] A100's 11 MB scaled by DRAM bandwidth: the same latency covers more bytes"

_H100 = _device(
    "H100-SXM5-80GB",
    **_HOPPER,
    memory_bytes=(80 * _GIB, "[spec] 80 GB"),
    dram_gb_per_s=(
        3000.0,
        "[assumed] 0.895 of the 3350 GB/s of the data sheet; pytorch/torchrec pull requests 4634 and 4720 measured 89 "
        "to 91% of peak on an H100",
    ),
    ramp_bytes=(18e6, _HOPPER_RAMP),
)

_H200 = _device(
    "H200-SXM-141GB",
    **{
        **_HOPPER,
        # The gpu suites name this profile: other numbers would change the estimated costs of their version.
        "l2_bytes": (50 * _MIB, "[spec] 50 MB; a device reported 60 MB, which a new version of the gpu suites may use"),
        "clock_ghz": (1.755, f"{_HOPPER['clock_ghz'][1]}; a device ran at 1.98"),
    },
    memory_bytes=(int(140.4 * _GIB), "[measured] 140.4 GiB, as a device reported; the data sheet says 141 GB"),
    dram_gb_per_s=(4300.0, "[assumed] 0.895 of the 4800 GB/s of the data sheet"),
    ramp_bytes=(26e6, _HOPPER_RAMP),
)

_CALIBRATED = (
    "[measured] calibrated on 777 placements on an AMD EPYC, 2 threads, one for each process "
    "(docs/results/cost-model-cpu-amd-epyc-2-threads.md); includes effects that the model leaves out"
)

_CPU = _device(
    "CPU process",
    memory_bytes=(8 * _GIB, "[assumed] a share of a server's memory"),
    dram_gb_per_s=(16.8, _CALIBRATED),
    l2_gb_per_s=(40.0, "[assumed] typical of a server core; the measurements do not determine it"),
    l2_bytes=(
        16 * _MIB,
        "[assumed] half of the 32 MiB that two processes share; the measurements do not determine it",
    ),
    num_sms=(1, "[assumed] one; clock_ghz is the rate that its lanes reach"),
    clock_ghz=(0.559, _CALIBRATED),
    kernel_launch_us=(1.3, _CALIBRATED),
    ramp_bytes=(6.8e6, _CALIBRATED),
)

_NVLINK_SHARE = "[assumed] 0.80 of one direction; NVIDIA/nccl-tests issue 212 measured 0.82 on H100"
_NIC_SHARE = "NVIDIA/nccl-tests issue 267 measured 48 to 49 of 50 GB/s on a 400 Gb/s card"
_LATENCY = "[assumed] launch and handshake of a small NCCL all-to-all"
_NVLINK_LATENCIES: dict[str, Sourced] = {
    "intra_host_latency_us": (25.0, _LATENCY),
    "inter_host_latency_us": (50.0, _LATENCY),
}

_PROFILES = (
    HardwareProfile(
        "rtx2080ti-pcie",
        _RTX_2080_TI,
        _links(
            intra_host_gb_per_s=(
                12.0,
                "[assumed] 0.76 of the 15.75 GB/s of one direction of PCIe 3.0 x16; NVLink bridges join pairs only",
            ),
            inter_host_gb_per_s=(1.2, "[assumed] a 10 Gb/s card"),
            intra_host_latency_us=(50.0, _LATENCY),
            inter_host_latency_us=(100.0, _LATENCY),
        ),
    ),
    HardwareProfile(
        "v100-nvlink",
        _V100,
        _links(
            intra_host_gb_per_s=(120.0, f"{_NVLINK_SHARE}; 150 GB/s on V100"),
            inter_host_gb_per_s=(12.0, f"[assumed] 100 Gb/s card; {_NIC_SHARE}"),
            **_NVLINK_LATENCIES,
        ),
    ),
    HardwareProfile(
        "a100-dgx",
        _A100,
        _links(
            intra_host_gb_per_s=(240.0, f"{_NVLINK_SHARE}; 300 GB/s on A100"),
            inter_host_gb_per_s=(24.0, f"[assumed] 200 Gb/s card; {_NIC_SHARE}"),
            **_NVLINK_LATENCIES,
        ),
    ),
    HardwareProfile(
        "h100-dgx",
        _H100,
        _links(
            intra_host_gb_per_s=(335.0, "[measured] all-to-all of 500 MB on 4 H100, 335 GB/s, NVIDIA/nccl issue 2169"),
            inter_host_gb_per_s=(48.0, f"[measured] {_NIC_SHARE}"),
            **_NVLINK_LATENCIES,
        ),
    ),
    HardwareProfile(
        "h200-dgx",
        _H200,
        _links(
            intra_host_gb_per_s=(335.0, "[assumed] as h100-dgx, which has the same links"),
            inter_host_gb_per_s=(48.0, f"[measured] {_NIC_SHARE}"),
            **_NVLINK_LATENCIES,
        ),
    ),
    HardwareProfile(
        "cpu",
        _CPU,
        _links(
            intra_host_gb_per_s=(1.57, f"{_CALIBRATED}; Gloo over loopback"),
            inter_host_gb_per_s=(1.0, "[assumed] a 10 Gb/s card"),
            intra_host_latency_us=(275.0, f"{_CALIBRATED}; Gloo over loopback"),
            inter_host_latency_us=(600.0, "[assumed] twice that within a host"),
        ),
    ),
)

PROFILES: dict[str, HardwareProfile] = {profile.name: profile for profile in _PROFILES}


def hardware_profile(name: str) -> HardwareProfile:
    """The hardware profile named `name`.

    Raises:
        UnknownNameError: there is no such profile; the message lists the known names.
    """
    if not isinstance(name, str) or name not in PROFILES:
        raise unknown_name("hardware profile", name, PROFILES)
    return PROFILES[name]
