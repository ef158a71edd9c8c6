"""Which hardware a `Topology` of TorchRec is, and the devices that plans are costed on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import listed
from shard_gym.hardware import PROFILES, HardwareProfile, Topology, hardware_profile

BANDWIDTHS: Mapping[str, tuple[str, str, str]] = {
    "hbm_mem_bw": ("HBM_MEM_BW", "device", "dram_gb_per_s"),
    "intra_host_bw": ("INTRA_NODE_BANDWIDTH", "links", "intra_host_gb_per_s"),
    "inter_host_bw": ("CROSS_NODE_BANDWIDTH", "links", "inter_host_gb_per_s"),
}
"""The bandwidths of a `Topology` of TorchRec, bytes per ms: the name of each default in TorchRec's
`planner/constants.py`, and the number of a profile that it is, 1e9 bytes per second."""

_PER_GB_PER_S = 1e6  # bytes per ms


def devices_of(topology: Any, caps: NDArray[np.int64], hardware: Any = None) -> tuple[Topology, str]:
    """The devices of a topology of TorchRec with these memory caps, and how their hardware was found, a clause.

    The hosts are TorchRec's groups of fast links (`Topology.intra_group_size`), over which its `table_row_wise` is.

    Args:
        topology: TorchRec's.
        caps: (D,) int64, bytes that tables may take of each device; where a reservation leaves none, tables get none.
        hardware: the name of a profile, the folder of a calibration, or a profile; None for the first of these that
            says it: the devices are CPUs; the name of the CUDA device of this process; the bandwidths of `topology`.

    Raises:
        InvalidOptionError: nothing says what the hardware is.
        UnknownNameError, DamagedFileError: there is no such profile.
    """
    profile, why = _profile_of(topology, hardware)
    per_host = min(topology.intra_group_size, topology.world_size)
    return profile.topology(
        topology.world_size,
        devices_per_host=per_host,
        devices_per_domain=per_host,
        memory_cap_bytes=np.maximum(caps, 1),
    ), why


def _profile_of(topology: Any, hardware: Any) -> tuple[HardwareProfile, str]:
    if isinstance(hardware, HardwareProfile):
        return hardware, f"{hardware.name}, as given"
    if isinstance(hardware, (str, Path)):
        return hardware_profile(hardware), f"{hardware}, as given"
    if hardware is not None:
        raise InvalidOptionError(
            f"`hardware` is the name of a profile, the folder of a calibration, or a profile, not {hardware!r}."
        )
    if topology.compute_device == "cpu":
        return PROFILES["cpu"], "cpu, as the topology is one of CPUs"
    device = _cuda_device()
    if device and (name := profile_of_device(device)) is not None:
        return PROFILES[name], f"{name}, as the CUDA device is {device}"
    return _nearest(topology, device)


def _cuda_device() -> str:
    """The name of the CUDA device of this process; empty if there is none."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def profile_of_device(device: str) -> str | None:
    """The profile whose model is in the name of a CUDA device, such as H100 in "NVIDIA H100 80GB HBM3"; or None."""
    for name, profile in PROFILES.items():
        model = re.split(r"-|(?<=Ti)", profile.device.name.removeprefix("GeForce "))[0]
        if profile.device.device_type == "cuda" and re.search(rf"\b{re.escape(model)}\b", device):
            return name
    return None


def _nearest(topology: Any, device: str) -> tuple[HardwareProfile, str]:
    """The profile whose bandwidths are nearest to those that a user gave to the topology, with these in it."""
    from torchrec.distributed.planner import constants

    given = {
        name: getattr(topology, name) / _PER_GB_PER_S
        for name, (default, _, _) in BANDWIDTHS.items()
        if not math.isclose(getattr(topology, name), getattr(constants, default), rel_tol=1e-6)
    }
    if not given:
        known = f"The CUDA device is {device}, which no profile has, and the" if device else "The"
        raise InvalidOptionError(
            f"{known} topology has TorchRec's default bandwidths, which say nothing about the hardware. Give "
            f"`hardware`, such as ShardGymPlanner(hardware='h100-dgx'): {', '.join(PROFILES)}, or the folder of "
            "shard-gym calibrate."
        )

    for name, value in given.items():
        if not 0 < value < math.inf:
            raise InvalidOptionError(
                f"{name} of the topology is {getattr(topology, name)!r}, and a bandwidth is a positive number of bytes "
                "per ms. Give it, or `hardware`."
            )

    def distance(profile: HardwareProfile) -> float:
        return sum(abs(math.log(value / _number(profile, name))) for name, value in given.items())

    nearest = min((each for each in PROFILES.values() if each.device.device_type == "cuda"), key=distance)
    parts: dict[str, dict[str, Any]] = {"device": {}, "links": {}}
    for name, value in given.items():
        _, part, number = BANDWIDTHS[name]
        parts[part][number] = value
    profile = replace(
        nearest, device=replace(nearest.device, **parts["device"]), links=replace(nearest.links, **parts["links"])
    )
    return profile, f"{nearest.name} with {listed(list(given))} of the topology, as their nearest profile"


def _number(profile: HardwareProfile, name: str) -> float:
    _, part, number = BANDWIDTHS[name]
    return float(getattr(getattr(profile, part), number))
