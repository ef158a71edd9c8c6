"""Devices, links and hosts: topologies, and the named hardware profiles with their files."""

from shard_gym.hardware.profile_files import HardwareProfile, HostSpec, read_profile, write_profile
from shard_gym.hardware.profiles import PROFILES, fitted_links, hardware_profile
from shard_gym.hardware.topology import (
    MAX_DEVICES,
    Cluster,
    DeviceSpec,
    HostMemory,
    LinkSpec,
    Replicas,
    Topology,
    WorkRates,
)

__all__ = [
    "MAX_DEVICES",
    "PROFILES",
    "Cluster",
    "DeviceSpec",
    "HardwareProfile",
    "HostMemory",
    "HostSpec",
    "LinkSpec",
    "Replicas",
    "Topology",
    "WorkRates",
    "fitted_links",
    "hardware_profile",
    "read_profile",
    "write_profile",
]
