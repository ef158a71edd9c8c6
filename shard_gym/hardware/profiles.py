"""The named hardware profiles: devices and links, every number with its source.

Marks of the sources: [measured] a published measurement, [spec] the data sheet, [assumed] a choice, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from shard_gym.common.errors import unknown_name
from shard_gym.common.io.files import is_file_in
from shard_gym.hardware.profile_files import PROFILE_FILE, HardwareProfile, HostSpec, read_profile
from shard_gym.hardware.topology import DeviceSpec, LinkSpec, WorkRates

Sourced = tuple[Any, str]
"""A number and its source."""


def _device(name: str, **numbers: Sourced) -> DeviceSpec:
    return DeviceSpec(name, **_with_sources(**numbers))


def _with_sources(**numbers: Sourced) -> dict[str, Any]:
    values = {name: value for name, (value, _) in numbers.items()}
    return {**values, "sources": {name: source for name, (_, source) in numbers.items()}}


_GIB = 2**30
_MIB = 2**20

_LIN = "Lin et al., HiPC 2022, owensgroup/ml_perf_model analysis/utils.py HW_PARAMS"
_BOOST_CLOCK = "[spec] boost clock"
_CARD = "docs/cost-model.md"
_LAUNCH = (5.0, f"[measured] 5 us per kernel, {_LIN}")

_RTX_2080_TI = _device(
    "GeForce RTX 2080 Ti",
    memory_bytes=(11 * _GIB, "[spec] 11 GB"),
    dram_gb_per_s=(535.0, f"[measured] a copy of 1 GiB by NCCL, 534.7 GB/s of 616, {_CARD}"),
    l2_gb_per_s=(2440.0, "[assumed] V100's measured 2847 GB/s scaled by SMs and clock"),
    l2_bytes=(int(5.5 * _MIB), "[spec] 5.5 MB, also daochenzha/autoshard bench.py"),
    num_sms=(68, "[spec]"),
    clock_ghz=(1.545, _BOOST_CLOCK),
    kernel_launch_us=_LAUNCH,
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
)

_A100 = _device(
    "A100-SXM4-80GB",
    memory_bytes=(80 * _GIB, "[spec] 80 GB"),
    dram_gb_per_s=(
        1825.0,
        f"[assumed] 0.895 of the 2039 GB/s of the data sheet, the share measured on the 40 GB part, {_LIN}",
    ),
    l2_gb_per_s=(
        2640.0,
        f"[measured] fitted to FBGEMM's forward, {_CARD}; 2271 on the 40 GB part, {_LIN}; the data sheet says 7219",
    ),
    l2_bytes=(40 * _MIB, "[spec] 40 MB"),
    num_sms=(108, "[spec]"),
    clock_ghz=(1.41, _BOOST_CLOCK),
    kernel_launch_us=_LAUNCH,
)

_HOPPER: dict[str, Sourced] = {
    "l2_gb_per_s": (4020.0, "[assumed] the A100's fitted bandwidth for each cycle of an SM"),
    "l2_bytes": (50 * _MIB, "[spec] 50 MB"),
    "num_sms": (132, "[spec]"),
    "clock_ghz": (1.755, "[assumed] 1.755, between the base and the boost clock of the data sheet"),
    "kernel_launch_us": _LAUNCH,
}

_H100 = _device(
    "H100-SXM5-80GB",
    **_HOPPER,
    memory_bytes=(80 * _GIB, "[spec] 80 GB"),
    dram_gb_per_s=(
        3000.0,
        "[assumed] 0.895 of the 3350 GB/s of the data sheet; pytorch/torchrec pull requests 4634 and 4720 measured 89 "
        "to 91% of peak on an H100",
    ),
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
)

_GH200 = _device(
    "GH200-96GB",
    **{**_HOPPER, "clock_ghz": (1.755, "[assumed] as the H100")},
    memory_bytes=(96 * _GIB, "[spec] 96 GB"),
    dram_gb_per_s=(3580.0, "[assumed] 0.895 of the 4000 GB/s of the data sheet, as the H100"),
)

_H20 = _device(
    "H20-96GB",
    **{
        **_HOPPER,
        "l2_gb_per_s": (2370.0, _HOPPER["l2_gb_per_s"][1]),
        "l2_bytes": (60 * _MIB, "[assumed] 60 MB, as public tables say; NVIDIA publishes no data sheet"),
        "num_sms": (78, "[measured] as Geekbench reported"),
        "clock_ghz": (1.755, "[assumed] as the H100"),
    },
    memory_bytes=(97_871 * _MIB, "[measured] 97,871 MiB, as nvidia-smi showed; 96 GB as public tables say"),
    dram_gb_per_s=(3580.0, "[assumed] 0.895 of the 4000 GB/s that public tables say, as the H100"),
)

_BLACKWELL_REPORT = "as a device reported, pytorch/ao pull request 4002"
_BLACKWELL: dict[str, Sourced] = {
    "l2_bytes": (int(126.5 * _MIB), f"[measured] 126.5 MB, {_BLACKWELL_REPORT}"),
    "clock_ghz": (1.755, "[assumed] as the H100, whose clocks Chips and Cheese found similar"),
    "kernel_launch_us": _LAUNCH,
}

_B200 = _device(
    "B200-SXM-180GB",
    **_BLACKWELL,
    memory_bytes=(int(178.35 * _GIB), f"[measured] 178.35 GiB, {_BLACKWELL_REPORT}; the data sheet says 180 GB"),
    dram_gb_per_s=(
        6870.0,
        f"[assumed] 0.895 of 7672 GB/s, as the H100: bus and clock {_BLACKWELL_REPORT}; the data sheet says 8000",
    ),
    l2_gb_per_s=(4500.0, _HOPPER["l2_gb_per_s"][1]),
    num_sms=(148, f"[measured] {_BLACKWELL_REPORT}"),
)

_GB200 = _device(
    "GB200-186GB",
    **{**_BLACKWELL, "l2_bytes": (_BLACKWELL["l2_bytes"][0], "[assumed] as the B200")},
    memory_bytes=(189_471 * _MIB, "[measured] 189,471 MiB, as nvidia-smi showed; the data sheet says 13.4 TB for 72"),
    dram_gb_per_s=(7350.0, "[measured] 7.35 of 8 TB/s, Azure's report of its ND GB200 v6, 2025"),
    l2_gb_per_s=(4625.0, _HOPPER["l2_gb_per_s"][1]),
    num_sms=(152, "[measured] as public logs of devices show"),
)

_CALIBRATED = (
    "[measured] calibrated on 777 placements on an AMD EPYC, 2 threads, one for each process "
    "(docs/results/cost-model-cpu-amd-epyc-2-threads.md)"
)
_NO_LIMIT = "[assumed] such that it limits nothing; the rates count in its place"

_CPU = _device(
    "CPU process",
    memory_bytes=(8 * _GIB, "[assumed] a share of a server's memory"),
    dram_gb_per_s=(600.0, _NO_LIMIT),
    l2_gb_per_s=(6.89, _NO_LIMIT),
    l2_bytes=(16 * _MIB, "[assumed] half of the 32 MiB that two processes share"),
    num_sms=(1, "[assumed] one process"),
    clock_ghz=(0.82, _NO_LIMIT),
    kernel_launch_us=(4.45, _CALIBRATED),
    rates=(
        WorkRates(
            forward=(75.6, 2.10, 0.0433, 7.55, 0.429, 0.721),
            backward=(47.2, 7.27, 0.0184, 23.5, 0.733, 0.478),
            dense_update=1.6,
        ),
        f"{_CALIBRATED}; the dense update by shard-gym calibrate on another such machine, November 2026",
    ),
)


class LinkKind(NamedTuple):
    """How a kind of link serves an all-to-all, whatever its line rate."""

    share: float  #: of the line rate of one direction that large messages reach
    latency_us: float  #: fixed time of an all-to-all, microseconds
    knee_bytes: float  #: see `LinkSpec`
    knee_extra: float  #: see `LinkSpec`


LINK_KINDS: Mapping[str, LinkKind] = {
    "pcie": LinkKind(0.299, 13.1, 0.937e6, 0.407),
    "nvlink": LinkKind(0.735, 11.1, 3.70e6, 3.38),
    "network": LinkKind(0.639, 34.1, 0.938e6, 0.612),
}
"""Fitted by tools/fit_analytical.py to nccl-tests on the machines of `FITTED_ON`; other devices have the same shares of
their line rates. "pcie" is without peer-to-peer copies."""

FITTED_ON: Mapping[str, str] = {
    "pcie": "two RTX 2080 Ti",
    "nvlink": "hosts of 8 B200, 8 H20 and 4 H100",
    "network": "two hosts of B200, H20, V100, RTX 6000D and A100, and 8 of H800",
}
"""The machines of the measurements, by kind of link."""


def fitted_links(kind: str, intra_host_gb_per_s: float, inter_host_gb_per_s: float, lines: str = "") -> LinkSpec:
    """The links of devices from their line rates, 1e9 bytes per second of one direction; `kind` is "pcie" or "nvlink".

    `lines` says what the line rates are, for the sources.
    """
    numbers: dict[str, float] = {}
    for where, each, line_rate in (
        ("intra_host", LINK_KINDS[kind], intra_host_gb_per_s),
        ("inter_host", LINK_KINDS["network"], inter_host_gb_per_s),
    ):
        numbers[f"{where}_gb_per_s"] = round(each.share * line_rate, 6)
        numbers[f"{where}_latency_us"] = each.latency_us
        numbers[f"{where}_knee_bytes"], numbers[f"{where}_knee_extra"] = each.knee_bytes, each.knee_extra
    machines = {"intra_host": FITTED_ON[kind], "inter_host": FITTED_ON["network"]}
    sources = {
        name: f"[measured] on {machines[name[:10]]}, nccl-tests, {_CARD}{f'; {lines}' * name.endswith('gb_per_s')}"
        for name in numbers
    }
    return LinkSpec(**numbers, sources=sources)


_SPEED_SOURCE = "recsys-examples, dynamicemb benchmark_results.json: FBGEMM's UVM on an H100, distinct rows"
_PCIE5_HOST = HostSpec(
    memory_bytes=2 * 2**40,
    read_gb_per_s=28.0,
    update_gb_per_s=40.0,
    sources={
        "memory_bytes": "[spec] 2 TB, systems with 8 H100 or H200 of MLPerf",
        "read_gb_per_s": f"[measured] {_SPEED_SOURCE}: 222 MB in 7.93 ms",
        "update_gb_per_s": f"[measured] {_SPEED_SOURCE}: 222 MB each way in 5.63 ms; Adam's states at 42",
    },
)
_PCIE4_HOST = HostSpec(
    memory_bytes=2 * 2**40,
    read_gb_per_s=16.0,
    update_gb_per_s=20.0,
    sources={
        "memory_bytes": "[spec] 2 TB, DGX A100 with 640 GB",
        "read_gb_per_s": "[assumed] reads of large regions: nvbandwidth issue 42, 16.5 GB/s at 20 GiB, and "
        "HierarchicalKV README, 15.9 in rows of 256 B",
        "update_gb_per_s": "[assumed] nvbandwidth issue 53: reads at 11 while writes run at 25, together twice 18",
    },
)
_PCIE3_HOST = HostSpec(
    memory_bytes=512 * _GIB,
    read_gb_per_s=9.0,
    update_gb_per_s=9.0,
    sources={
        "memory_bytes": "[spec] 512 GB, DGX-1",
        "read_gb_per_s": "[assumed] between the 11.2 GB/s of 4 and the 5.0 of 8 V100, ugache logs of reads of rows",
        "update_gb_per_s": "[assumed] as reads",
    },
)
_B200_HOST = replace(
    _PCIE5_HOST,
    sources={
        "memory_bytes": "[spec] 2 TB, DGX B200 user guide",
        "read_gb_per_s": "[assumed] as the H100, whose link is PCIe 5.0, too",
        "update_gb_per_s": "[assumed] as the H100, whose link is PCIe 5.0, too",
    },
)
_H20_HOST = replace(
    _PCIE5_HOST, sources={**_B200_HOST.sources, "memory_bytes": "[assumed] 2 TB, as systems with 8 H100 or H200"}
)
_GRACE_HOST = HostSpec(
    memory_bytes=4 * 480 * _GIB,
    read_gb_per_s=280.0,
    update_gb_per_s=240.0,
    sources={
        "memory_bytes": "[spec] 480 GB for each device, and four devices; JUPITER and Alps have 120 and 128",
        "read_gb_per_s": "[assumed] 0.82 of the 342 GB/s of copies, nvbandwidth issue 23; they drop with 20 GB or more",
        "update_gb_per_s": "[assumed] 15% less, as copies to the host, nvbandwidth issue 41",
    },
    is_shared=False,
)
_GB200_HOST = HostSpec(
    memory_bytes=2 * 480 * _GIB,
    read_gb_per_s=172.0,
    update_gb_per_s=157.0,
    sources={
        "memory_bytes": "[spec] 480 GB for each Grace, which two devices share, and four devices",
        "read_gb_per_s": "[assumed] 0.82 of the 210 GB/s of copies on a GB300, sgl-project/sglang pull request 40278, "
        "as the GH200",
        "update_gb_per_s": "[assumed] 9% less, as copies to the host there, 192 GB/s",
    },
    is_shared=False,
)
_HOPPER_LINES = "450 GB/s by the data sheet, a 400 Gb/s card for each device"
_KNEES = [field.name for field in fields(LinkSpec) if "knee" in field.name]

_PROFILES = (
    HardwareProfile(
        "rtx2080ti-pcie",
        _RTX_2080_TI,
        fitted_links(
            "pcie", 15.75, 1.25, "PCIe 3.0 x16, as NVLink bridges join pairs only, and a 10 Gb/s card (assumed)"
        ),
        host=_PCIE3_HOST,
    ),
    HardwareProfile(
        "v100-nvlink",
        _V100,
        fitted_links("nvlink", 150.0, 12.5, "150 GB/s by the data sheet, a 100 Gb/s card for each device (assumed)"),
        host=_PCIE3_HOST,
    ),
    HardwareProfile(
        "a100-dgx",
        _A100,
        fitted_links("nvlink", 300.0, 25.0, "300 GB/s by the data sheet, a 200 Gb/s card for each device"),
        host=_PCIE4_HOST,
    ),
    HardwareProfile("h100-dgx", _H100, fitted_links("nvlink", 450.0, 50.0, _HOPPER_LINES), host=_PCIE5_HOST),
    HardwareProfile("h200-dgx", _H200, fitted_links("nvlink", 450.0, 50.0, _HOPPER_LINES), host=_PCIE5_HOST),
    HardwareProfile(
        "gh200-quad",
        _GH200,
        fitted_links("nvlink", 450.0, 25.0, "450 GB/s by the data sheet, a 200 Gb/s card for each device, as in Alps"),
        devices_per_host=4,
        host=_GRACE_HOST,
    ),
    HardwareProfile(
        "h20-hgx",
        _H20,
        fitted_links("nvlink", 450.0, 50.0, "450 GB/s as on an H100, a 400 Gb/s card for each device (assumed)"),
        host=_H20_HOST,
    ),
    HardwareProfile(
        "b200-dgx",
        _B200,
        fitted_links("nvlink", 900.0, 50.0, "900 GB/s by the data sheet, a 400 Gb/s card for each device"),
        host=_B200_HOST,
    ),
    HardwareProfile(
        "gb200-nvl72",
        _GB200,
        fitted_links(
            *("nvlink", 900.0, 50.0),
            "900 GB/s by the data sheet, and assumed as fast in a domain of 72 as in hosts of 8, a 400 Gb/s card for "
            "each device",
        ),
        devices_per_host=4,
        devices_per_domain=72,
        host=_GB200_HOST,
    ),
    HardwareProfile(
        "cpu",
        _CPU,
        LinkSpec(
            **_with_sources(
                intra_host_gb_per_s=(1.57, f"{_CALIBRATED}; Gloo over loopback"),
                inter_host_gb_per_s=(1.0, "[assumed] a 10 Gb/s card"),
                intra_host_latency_us=(275.0, f"{_CALIBRATED}; Gloo over loopback"),
                inter_host_latency_us=(600.0, "[assumed] twice that within a host"),
                **dict.fromkeys(_KNEES, (0, "[assumed] none; the measurements on CPUs do not say where one lies")),
            )
        ),
    ),
)

PROFILES: dict[str, HardwareProfile] = {profile.name: profile for profile in _PROFILES}


def hardware_profile(name: str | Path) -> HardwareProfile:
    """The hardware profile named `name`, or that of a folder of `shard-gym calibrate`.

    Raises:
        UnknownNameError: there is no such profile; the message lists the known names.
        DamagedFileError: the file in the folder is none, or was changed.
    """
    if isinstance(name, (str, Path)) and name not in PROFILES and is_file_in(name, PROFILE_FILE):
        return read_profile(Path(name) / PROFILE_FILE)
    if not isinstance(name, str) or name not in PROFILES:
        hint = f"{', '.join(PROFILES)}; or a folder that shard-gym calibrate made"
        raise unknown_name("hardware profile", name, PROFILES, hint)
    return PROFILES[name]
