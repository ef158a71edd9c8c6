"""Devices and how they are wired: `DeviceSpec`, `Topology`, and `Cluster`, its form for batched arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.errors import InvalidTopologyError, short_repr


def _require_positive(owner: object, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
            raise InvalidTopologyError(
                f"{name} of {type(owner).__name__} must be a positive number, not {short_repr(value)}."
            )


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU, in the numbers the analytical cost model needs. Bandwidths are what kernels reach, not the data sheet.

    Attributes:
        name: for example "A100-SXM4-80GB".
        memory_bytes: device memory, in bytes.
        dram_gb_per_s: reachable DRAM bandwidth, 1e9 bytes per second.
        l2_gb_per_s: reachable L2 bandwidth, 1e9 bytes per second.
        l2_bytes: L2 capacity, in bytes.
        num_sms: streaming multiprocessors.
        clock_ghz: SM clock under load, GHz.
        kernel_launch_us: fixed time of one kernel, microseconds.
        ramp_bytes: traffic at which a kernel reaches half of dram_gb_per_s (Hockney's n_1/2), in bytes.
        sources: where each number comes from.
    """

    name: str
    memory_bytes: int
    dram_gb_per_s: float
    l2_gb_per_s: float
    l2_bytes: int
    num_sms: int
    clock_ghz: float
    kernel_launch_us: float
    ramp_bytes: float
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _require_positive(self, [f.name for f in fields(self) if f.name not in ("name", "sources")])


@dataclass(frozen=True)
class LinkSpec:
    """What connects the devices; bandwidths are per device and per direction, as an all-to-all reaches them.

    Attributes:
        intra_host_gb_per_s: between devices of one host, 1e9 bytes per second.
        inter_host_gb_per_s: between hosts (the device's network card), 1e9 bytes per second.
        intra_host_latency_us: fixed time of an all-to-all inside one host, microseconds.
        inter_host_latency_us: the same when it crosses hosts, microseconds.
        sources: where each number comes from.
    """

    intra_host_gb_per_s: float
    inter_host_gb_per_s: float
    intra_host_latency_us: float
    inter_host_latency_us: float
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _require_positive(self, [f.name for f in fields(self) if f.name != "sources"])


@dataclass(frozen=True, eq=False)
class Topology:
    """D equal devices, grouped into hosts in order: device d stands in host d // devices_per_host.

    Attributes:
        device: the device all D are.
        links: what connects them.
        num_devices: D.
        devices_per_host: devices of one host; the last host may be filled in part.
        memory_cap_bytes: (D,) int64, bytes that tables may take on each device; a single number serves for all;
            default is the device's memory.

    Raises:
        InvalidTopologyError: a number is impossible.
    """

    device: DeviceSpec
    links: LinkSpec
    num_devices: int
    devices_per_host: int = 8
    memory_cap_bytes: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __post_init__(self) -> None:
        for name, kind in (("device", DeviceSpec), ("links", LinkSpec)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidTopologyError(
                    f"{name} of a Topology must be a {kind.__name__}, not {short_repr(getattr(self, name))}. "
                    "A named one comes from hardware_profile(name).topology(num_devices)."
                )
        for name in ("num_devices", "devices_per_host"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise InvalidTopologyError(f"{name} must be an integer of at least 1, not {short_repr(value)}.")
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "memory_cap_bytes", self._caps(self.memory_cap_bytes))

    def _caps(self, given: ArrayLike) -> NDArray[np.int64]:
        try:
            caps = np.asarray(given)
        except ValueError as error:  # lists of different lengths
            raise InvalidTopologyError(
                f"memory_cap_bytes must be one number or one for each device, not {short_repr(given)}."
            ) from error
        if not caps.size:
            caps = np.asarray(self.device.memory_bytes)
        if caps.ndim > 1 or (caps.ndim == 1 and caps.shape != (self.num_devices,)):
            raise InvalidTopologyError(
                f"memory_cap_bytes must be one number or one for each of the {self.num_devices} devices, "
                f"not an array of shape {caps.shape}."
            )
        if not np.issubdtype(caps.dtype, np.integer) or (caps <= 0).any() or (caps > np.iinfo(np.int64).max).any():
            raise InvalidTopologyError(
                f"memory_cap_bytes must be positive int64 integers (bytes), not {short_repr(given)}."
            )
        caps = np.broadcast_to(caps, (self.num_devices,)).astype(np.int64)
        caps.setflags(write=False)
        return caps

    @property
    def host_of_device(self) -> NDArray[np.int64]:
        """(D,) int64, the host each device stands in."""
        return np.arange(self.num_devices) // self.devices_per_host

    def cluster(self, max_devices: int | None = None) -> Cluster:
        """This topology as arrays, padded to `max_devices` (default D)."""
        size = self.num_devices if max_devices is None else max_devices
        if size < self.num_devices:
            raise InvalidTopologyError(f"{self.num_devices} devices do not fit into max_devices={size}.")
        real = np.arange(size) < self.num_devices
        host = np.arange(size) // self.devices_per_host
        same_host = (host[:, None] == host[None, :]) & real[:, None] & real[None, :]
        np.fill_diagonal(same_host, False)
        crosses = self.num_devices > self.devices_per_host
        latency_us = self.links.inter_host_latency_us if crosses else self.links.intra_host_latency_us
        return Cluster(
            device_mask=real,
            host_peers=same_host.astype(np.float64),
            num_peers=same_host.sum(axis=1).astype(np.float64),
            num_devices=np.float64(self.num_devices),
            intra_bytes_per_ms=np.float64(self.links.intra_host_gb_per_s * 1e6),
            inter_bytes_per_ms=np.float64(self.links.inter_host_gb_per_s * 1e6),
            latency_ms=np.float64(latency_us * 1e-3 if self.num_devices > 1 else 0.0),
            crosses_hosts=np.bool_(crosses),
        )


@dataclass(frozen=True)
class Cluster:
    """Topologies as arrays with any leading batch shape `...`, padded to one number of devices D.

    Attributes:
        device_mask: (..., D) bool, True where there is a device.
        host_peers: (..., D, D) float64, 1 where two different devices share a host.
        num_peers: (..., D) float64, how many other devices share each device's host.
        num_devices: (...) float64, the true number of devices.
        intra_bytes_per_ms: (...) float64, see LinkSpec; bytes per ms.
        inter_bytes_per_ms: (...) float64, see LinkSpec; bytes per ms.
        latency_ms: (...) float64, fixed time of one all-to-all; 0 with one device.
        crosses_hosts: (...) bool, True where there is more than one host.
    """

    device_mask: NDArray[np.bool_]
    host_peers: NDArray[np.float64]
    num_peers: NDArray[np.float64]
    num_devices: NDArray[np.float64] | np.float64
    intra_bytes_per_ms: NDArray[np.float64] | np.float64
    inter_bytes_per_ms: NDArray[np.float64] | np.float64
    latency_ms: NDArray[np.float64] | np.float64
    crosses_hosts: NDArray[np.bool_] | np.bool_

    @staticmethod
    def stack(clusters: Sequence[Cluster]) -> Cluster:
        """N clusters of equal padding as one with the leading shape (N,)."""
        return Cluster(**{f.name: np.stack([getattr(c, f.name) for c in clusters]) for f in fields(Cluster)})
