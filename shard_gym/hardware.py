"""The named hardware profiles: a device and its links, every number with its source.

Marks: [measured] published measurement, [spec] data sheet, [assumed] our choice, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import unknown_name
from shard_gym.topology import DeviceSpec, LinkSpec, Topology

_GIB = 2**30
_MIB = 2**20

_LIN = "Lin et al., HiPC 2022, owensgroup/ml_perf_model analysis/utils.py HW_PARAMS"
_LAUNCH = f"[measured] 5 us per kernel, {_LIN}"
_HOPPER_L2 = (
    "[assumed] 0.61 of the 8986 GB/s of the data sheet, between the shares measured on V100 (0.91) and A100 (0.31); "
    "pytorch/torchrec pull request 2365 reaches 4200 GB/s of row traffic at D=64, if its unnamed GPU is an H100"
)


@dataclass(frozen=True)
class HardwareProfile:
    """A machine type by name: the device, the links, and how many devices one host holds."""

    name: str
    device: DeviceSpec
    links: LinkSpec
    devices_per_host: int

    def topology(
        self,
        num_devices: int,
        *,
        devices_per_host: int | None = None,
        memory_cap_bytes: int | NDArray[np.int64] | None = None,
    ) -> Topology:
        """A topology of `num_devices` of this machine's devices; see `Topology` for arguments and errors."""
        return Topology(
            device=self.device,
            links=self.links,
            num_devices=num_devices,
            devices_per_host=self.devices_per_host if devices_per_host is None else devices_per_host,
            memory_cap_bytes=np.asarray(self.device.memory_bytes if memory_cap_bytes is None else memory_cap_bytes),
        )


_RTX_2080_TI = DeviceSpec(
    name="GeForce RTX 2080 Ti",
    memory_bytes=11 * _GIB,
    dram_gb_per_s=554.0,
    l2_gb_per_s=2440.0,
    l2_bytes=int(5.5 * _MIB),
    num_sms=68,
    clock_ghz=1.545,
    kernel_launch_us=5.0,
    ramp_bytes=9e6,
    sources={
        "memory_bytes": "[spec] 11 GB",
        "dram_gb_per_s": "[assumed] 0.90 of the 616 GB/s of the data sheet, the share measured on V100 and A100",
        "l2_gb_per_s": "[assumed] V100's measured 2847 GB/s scaled by SMs and clock",
        "l2_bytes": "[spec] 5.5 MB, also daochenzha/autoshard bench.py",
        "num_sms": "[spec]",
        "clock_ghz": "[spec] boost clock",
        "kernel_launch_us": _LAUNCH,
        "ramp_bytes": "[assumed] as V100",
    },
)

_V100 = DeviceSpec(
    name="V100-SXM2-32GB",
    memory_bytes=32 * _GIB,
    dram_gb_per_s=817.0,
    l2_gb_per_s=2847.5,
    l2_bytes=6 * _MIB,
    num_sms=80,
    clock_ghz=1.53,
    kernel_launch_us=5.0,
    ramp_bytes=9e6,
    sources={
        "memory_bytes": "[spec] 32 GB",
        "dram_gb_per_s": f"[measured] 816.95 GB/s of 900, {_LIN}",
        "l2_gb_per_s": f"[measured] {_LIN}",
        "l2_bytes": "[spec] 6 MB",
        "num_sms": "[spec]",
        "clock_ghz": "[spec] boost clock",
        "kernel_launch_us": _LAUNCH,
        "ramp_bytes": "[measured] half-performance length of the fitted V100 DRAM curve, 2^20 to 2^26 bytes "
        "(8 to 12 MB), ml_perf_model analysis/memory_bw_utils.py",
    },
)

_A100 = DeviceSpec(
    name="A100-SXM4-80GB",
    memory_bytes=80 * _GIB,
    dram_gb_per_s=1825.0,
    l2_gb_per_s=2271.0,
    l2_bytes=40 * _MIB,
    num_sms=108,
    clock_ghz=1.41,
    kernel_launch_us=5.0,
    ramp_bytes=11e6,
    sources={
        "memory_bytes": "[spec] 80 GB",
        "dram_gb_per_s": "[assumed] 0.895 of the 2039 GB/s of the data sheet, the share measured on the 40 GB part, "
        f"{_LIN}",
        "l2_gb_per_s": f"[measured] 2270.9 GB/s on the 40 GB part, {_LIN}; the data sheet says 7219",
        "l2_bytes": "[spec] 40 MB",
        "num_sms": "[spec]",
        "clock_ghz": "[spec] boost clock",
        "kernel_launch_us": _LAUNCH,
        "ramp_bytes": "[measured] half-performance length of the fitted A100 DRAM curve, 2^22 to 2^28 bytes "
        "(10 to 12 MB), ml_perf_model analysis/memory_bw_utils.py",
    },
)

_HOPPER_SOURCES = {
    "l2_gb_per_s": _HOPPER_L2,
    "l2_bytes": "[spec] 50 MB",
    "num_sms": "[spec]",
    "clock_ghz": "[assumed] 1.755, between the base and the boost clock of the data sheet",
    "kernel_launch_us": _LAUNCH,
    "ramp_bytes": "[assumed] A100's 11 MB scaled by DRAM bandwidth: the same latency covers more bytes",
}

_H100 = DeviceSpec(
    name="H100-SXM5-80GB",
    memory_bytes=80 * _GIB,
    dram_gb_per_s=3000.0,
    l2_gb_per_s=5500.0,
    l2_bytes=50 * _MIB,
    num_sms=132,
    clock_ghz=1.755,
    kernel_launch_us=5.0,
    ramp_bytes=18e6,
    sources={
        **_HOPPER_SOURCES,
        "memory_bytes": "[spec] 80 GB",
        "dram_gb_per_s": "[assumed] 0.895 of the 3350 GB/s of the data sheet; pytorch/torchrec pull requests 4634 and "
        "4720 measured 89 to 91% of peak on an H100",
    },
)

_H200 = DeviceSpec(
    name="H200-SXM-141GB",
    memory_bytes=141 * _GIB,
    dram_gb_per_s=4300.0,
    l2_gb_per_s=5500.0,
    l2_bytes=50 * _MIB,
    num_sms=132,
    clock_ghz=1.755,
    kernel_launch_us=5.0,
    ramp_bytes=26e6,
    sources={
        **_HOPPER_SOURCES,
        "memory_bytes": "[spec] 141 GB",
        "dram_gb_per_s": "[assumed] 0.895 of the 4800 GB/s of the data sheet",
    },
)

_CPU_FITTED = (
    "[measured] calibrated on 777 placements on an AMD EPYC, 2 threads, one for each process "
    "(docs/results/cost-model-cpu-amd-epyc-2-threads.md); it stands for whatever the model leaves out, too"
)
_CPU = DeviceSpec(
    name="CPU process",
    memory_bytes=8 * _GIB,
    dram_gb_per_s=16.8,
    l2_gb_per_s=40.0,
    l2_bytes=16 * _MIB,
    num_sms=1,
    clock_ghz=0.559,
    kernel_launch_us=1.3,
    ramp_bytes=6.8e6,
    sources={
        "memory_bytes": "[assumed] a share of a server's memory",
        "dram_gb_per_s": _CPU_FITTED,
        "l2_gb_per_s": "[assumed] of the size of a server core's; the measurements say nothing of it",
        "l2_bytes": "[assumed] half of the 32 MiB that two processes share; the measurements say nothing of it",
        "num_sms": "[assumed] one; the clock stands for what its lanes reach",
        "clock_ghz": _CPU_FITTED,
        "kernel_launch_us": _CPU_FITTED,
        "ramp_bytes": _CPU_FITTED,
    },
)
_CPU_LINKS = LinkSpec(
    intra_host_gb_per_s=1.57,
    inter_host_gb_per_s=1.0,
    intra_host_latency_us=275.0,
    inter_host_latency_us=600.0,
    sources={
        "intra_host_gb_per_s": f"{_CPU_FITTED}; Gloo over loopback",
        "inter_host_gb_per_s": "[assumed] a 10 Gb/s card",
        "intra_host_latency_us": f"{_CPU_FITTED}; Gloo over loopback",
        "inter_host_latency_us": "[assumed] twice that within a host",
    },
)

_NVLINK_SHARE = "[assumed] 0.80 of one direction; NVIDIA/nccl-tests issue 212 measured 0.82 on H100"
_NIC_SHARE = "NVIDIA/nccl-tests issue 267 measured 48 to 49 of 50 GB/s on a 400 Gb/s card"
_LATENCY = "[assumed] launch and handshake of a small NCCL all-to-all"


def _links(intra: float, inter: float, intra_us: float, inter_us: float, intra_src: str, inter_src: str) -> LinkSpec:
    return LinkSpec(
        intra_host_gb_per_s=intra,
        inter_host_gb_per_s=inter,
        intra_host_latency_us=intra_us,
        inter_host_latency_us=inter_us,
        sources={
            "intra_host_gb_per_s": intra_src,
            "inter_host_gb_per_s": inter_src,
            "intra_host_latency_us": _LATENCY,
            "inter_host_latency_us": _LATENCY,
        },
    )


_PROFILES = (
    HardwareProfile(
        "rtx2080ti-pcie",
        _RTX_2080_TI,
        _links(
            12.0,
            1.2,
            50.0,
            100.0,
            "[assumed] 0.76 of the 15.75 GB/s of one direction of PCIe 3.0 x16; NVLink bridges join pairs only",
            "[assumed] a 10 Gb/s card",
        ),
        devices_per_host=8,
    ),
    HardwareProfile(
        "v100-nvlink",
        _V100,
        _links(120.0, 12.0, 25.0, 50.0, f"{_NVLINK_SHARE}; 150 GB/s on V100", f"[assumed] 100 Gb/s card; {_NIC_SHARE}"),
        devices_per_host=8,
    ),
    HardwareProfile(
        "a100-dgx",
        _A100,
        _links(240.0, 24.0, 25.0, 50.0, f"{_NVLINK_SHARE}; 300 GB/s on A100", f"[assumed] 200 Gb/s card; {_NIC_SHARE}"),
        devices_per_host=8,
    ),
    HardwareProfile(
        "h100-dgx",
        _H100,
        _links(
            335.0,
            48.0,
            25.0,
            50.0,
            "[measured] all-to-all of 500 MB on 4 H100, 335 GB/s, NVIDIA/nccl issue 2169",
            f"[measured] {_NIC_SHARE}",
        ),
        devices_per_host=8,
    ),
    HardwareProfile(
        "h200-dgx",
        _H200,
        _links(335.0, 48.0, 25.0, 50.0, "[assumed] as h100-dgx, the links are the same", f"[measured] {_NIC_SHARE}"),
        devices_per_host=8,
    ),
    HardwareProfile("cpu", _CPU, _CPU_LINKS, devices_per_host=8),
)

PROFILES: dict[str, HardwareProfile] = {profile.name: profile for profile in _PROFILES}


def hardware_profile(name: str) -> HardwareProfile:
    """The hardware profile named `name`.

    Raises:
        UnknownNameError: there is none; the message lists those there are.
    """
    if name not in PROFILES:
        raise unknown_name("hardware profile", name, PROFILES)
    return PROFILES[name]
