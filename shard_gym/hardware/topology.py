"""Devices, their links and host memory: a `Topology`; topologies as arrays, a `Cluster`; and both as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.checks import (
    ReadOnlyArrays,
    holds_integers,
    is_integer,
    is_not_negative,
    is_positive,
    require_kinds,
    require_name,
)
from shard_gym.common.errors import DamagedFileError, InvalidTopologyError, short_repr
from shard_gym.common.io.html import card
from shard_gym.common.io.parsing import require_fields
from shard_gym.common.text import format_bytes


@dataclass(frozen=True)
class Cluster:
    """Topologies as arrays with any leading batch shape `...`, padded to D devices."""

    device_mask: NDArray[np.bool_]  #: (..., D) bool, False for padding
    domain_begin: NDArray[np.int64]  #: (..., D) int64, the first device of each device's domain; 0 for padding
    domain_end: NDArray[np.int64]  #: (..., D) int64, the device after the last one of its domain; 0 for padding
    num_peers: NDArray[np.float64]  #: (..., D) float64, number of other devices in each device's domain
    num_devices: NDArray[np.float64] | np.float64  #: (...) float64, number of devices without padding
    host_size: NDArray[np.float64] | np.float64  #: (...) float64, devices of a host, which `table_row_wise` is over
    #: (...) float64, bandwidth inside a domain (see LinkSpec), bytes per ms.
    intra_bytes_per_ms: NDArray[np.float64] | np.float64
    #: (...) float64, bandwidth between domains (see LinkSpec), bytes per ms, of bytes of which a model sends a share.
    inter_bytes_per_ms: NDArray[np.float64] | np.float64
    #: (...) float64, bytes up to which links inside a domain are slower (see LinkSpec).
    intra_knee_bytes: NDArray[np.float64] | np.float64
    #: (...) float64, additional time of these bytes (see LinkSpec), a share.
    intra_knee_extra: NDArray[np.float64] | np.float64
    inter_knee_bytes: NDArray[np.float64] | np.float64  #: (...) float64, as `intra_knee_bytes`, before the share
    inter_knee_extra: NDArray[np.float64] | np.float64  #: (...) float64, as `intra_knee_extra`, between domains
    latency_ms: NDArray[np.float64] | np.float64  #: (...) float64, fixed time of one all-to-all; 0 for one device
    crosses_domains: NDArray[np.bool_] | np.bool_  #: (...) bool, True for more than one domain
    cross_host_ratio: NDArray[np.float64] | np.float64  #: (...) float64, that share; replicas send whole gradients

    @staticmethod
    def stack(clusters: Sequence[Cluster]) -> Cluster:
        """N clusters with the same padding as one cluster with leading shape (N,)."""
        return Cluster(**{f.name: np.stack([getattr(c, f.name) for c in clusters]) for f in fields(Cluster)})

    def tensors(self, device: Any = "cpu") -> Cluster:
        """The same as tensors of torch, for costs of tensors of float64; `crosses_domains` stays False if none does."""
        import torch

        made: dict[str, Any] = {f.name: torch.as_tensor(getattr(self, f.name), device=device) for f in fields(Cluster)}
        if not np.any(self.crosses_domains):
            made["crosses_domains"] = False
        return Cluster(**made)


MAX_DEVICES = 4096
"""The most devices of a topology."""

MIN_RATIO = 1e-3
"""The least share of the bytes across domains that a model sends."""

LEAST, MOST = 1e-9, 2.0**63
"""Limits of the numbers of a device or a link. The costs of any tables are then finite, and bytes fit an int64."""


OPTION = {"option": True}
"""Metadata of a field with a default, which files leave out where it has that; a number that comes later is one."""


def _require_valid(spec: DeviceSpec | LinkSpec | HostMemory) -> None:
    """Raise if a number is not positive, or beyond the limits; those whose default is 0 may be 0."""
    kind = type(spec).__name__
    for field_ in fields(spec):
        value, may_be_zero = getattr(spec, field_.name), field_.default == 0
        if field_.name in ("name", "rates", "sources") or (value is None and field_.default is None):
            continue
        if not (is_not_negative if may_be_zero else is_positive)(value):
            raise InvalidTopologyError(
                f"{field_.name} of {kind} must be a positive number{' or 0' * may_be_zero}, not {short_repr(value)}."
            )
        if value != 0 and not LEAST <= value < MOST:
            raise InvalidTopologyError(
                f"{field_.name} of {kind} must be from {LEAST:g} to {MOST:.3g}, not {short_repr(value)}."
            )
    sources = spec.sources
    if not isinstance(sources, Mapping) or not all(isinstance(each, str) for pair in sources.items() for each in pair):
        raise InvalidTopologyError(
            f"sources of {kind} must map names of its numbers to texts, not {short_repr(sources)}."
        )


WORK_NAMES = ("bags", "lookups", "lookup_values", "distinct_rows", "distinct_values", "output_values")
"""What a batch does with a table, and what `WorkRates` are rates of: outputs, lookups, columns of all lookups, distinct
rows, columns of these, and columns of the outputs."""


@dataclass(frozen=True)
class WorkRates:
    """How long the work of a device takes, as it was measured.

    Attributes:
        forward, backward: ns for each of `WORK_NAMES`, six numbers.
        dense_update: ns for each cell of a replica, whose dense gradient updates all rows; None, the default, if it was
            not measured: the DRAM then limits it, as on devices without rates.

    Raises:
        InvalidTopologyError: there are not six numbers, or one is negative or no number.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    dense_update: float | None = None

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)) or len(given) != len(WORK_NAMES):
                raise InvalidTopologyError(
                    f"{name} of WorkRates must be {len(WORK_NAMES)} ns, not {short_repr(given)}."
                )
        for value in (*self.forward, *self.backward, 0.0 if self.dense_update is None else self.dense_update):
            if not is_not_negative(value) or not value < MOST:
                raise InvalidTopologyError(f"Rates are ns from 0 up, not {short_repr(value)}.")
        for name in ("forward", "backward"):  # as they are read from a file
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))


@dataclass(frozen=True)
class DeviceSpec:
    """The numbers of a device that the analytical cost model uses; bandwidths are those that kernels reach.

    Attributes:
        name: for example "A100-SXM4-80GB".
        dram_gb_per_s: reachable DRAM bandwidth, 1e9 bytes per second.
        l2_gb_per_s: reachable L2 bandwidth, 1e9 bytes per second.
        num_sms: streaming multiprocessors; 1 of a process of a CPU, which no GPU has (see `device_type`).
        clock_ghz: SM clock under load, GHz.
        kernel_launch_us: fixed time of one kernel, microseconds.
        rates: measured rates of its work, which the analytical model then uses in place of bandwidths and clock; None,
            the default, of a device that nobody calibrated.

    Raises:
        InvalidTopologyError: the name or a number is impossible.
    """

    name: str
    memory_bytes: int
    dram_gb_per_s: float
    l2_gb_per_s: float
    l2_bytes: int
    num_sms: int
    clock_ghz: float
    kernel_launch_us: float
    rates: WorkRates | None = field(default=None, metadata=OPTION)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_name("The name of a device", self.name, InvalidTopologyError)
        _require_valid(self)
        if not (self.rates is None or isinstance(self.rates, WorkRates)):
            raise InvalidTopologyError(f"rates of DeviceSpec must be WorkRates, or None, not {short_repr(self.rates)}.")

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """What PyTorch calls the device: "cpu" of a process of a CPU, whose memory is a share of the machine's."""
        return "cpu" if self.num_sms == 1 else "cuda"


@dataclass(frozen=True)
class LinkSpec:
    """The links of devices; bandwidths are per device and direction, as an all-to-all of large messages reaches them.

    A domain of fast links, such as of NVLink, is one host unless the topology says otherwise (`devices_per_domain`).

    Small messages get less of a link: the first `knee_bytes` that a device moves through it take 1 + `knee_extra` times
    as long as those that follow. The defaults mean that there is no knee.

    Attributes:
        intra_host_gb_per_s: between devices of one domain, 1e9 bytes per second.
        inter_host_gb_per_s: between domains (the device's network card), 1e9 bytes per second.
        intra_host_latency_us: fixed time of an all-to-all inside one domain, microseconds.
        inter_host_latency_us: fixed time of an all-to-all across domains, microseconds.
        intra_host_knee_bytes: bytes of a device up to which its link inside the domain is slower.
        intra_host_knee_extra: additional time of these bytes, as a share of their time at the full bandwidth.
        inter_host_knee_bytes: bytes of a device up to which its network card is slower.
        inter_host_knee_extra: additional time of these bytes, as a share of their time at the full bandwidth.

    Raises:
        InvalidTopologyError: a number is impossible.
    """

    intra_host_gb_per_s: float
    inter_host_gb_per_s: float
    intra_host_latency_us: float
    inter_host_latency_us: float
    intra_host_knee_bytes: float = 0
    intra_host_knee_extra: float = 0
    inter_host_knee_bytes: float = 0
    inter_host_knee_extra: float = 0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        _require_valid(self)


@dataclass(frozen=True)
class HostMemory:
    """Memory of the hosts that holds the rows of tables for which a device has no room in its HBM.

    A device reads and updates such rows in place, over its link to the host (FBGEMM's UVM).

    Attributes:
        hbm_bytes: bytes that tables may use in the HBM of each device; what `Topology.memory_cap_bytes` has above it is
            the device's part of its host's memory.
        read_gb_per_s: bandwidth at which one device reads scattered rows from its host, 1e9 bytes per second.
        update_gb_per_s: bandwidth at which it updates them, bytes of rows and states, each counted once: they are read
            and written at once, as the link has two directions.
        dense_ms: ms of an iteration in which the dense layers keep the device busy, behind which a pipeline hides the
            prefetch of rows into a cache (`host_policy="lru"` of the analytical models); 0, the default, hides none.
        total_bytes: bytes of a host, of which each device may use what the others leave; caps are then one way to allot
            them (`shard_gym.plans.caps.allotted_caps`). None, the default, if each device has a part of its own.

    Raises:
        InvalidTopologyError: a number is impossible.
    """

    hbm_bytes: int
    read_gb_per_s: float
    update_gb_per_s: float
    dense_ms: float = 0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    total_bytes: int | None = field(default=None, metadata=OPTION)

    def __post_init__(self) -> None:
        _require_valid(self)
        for name in ("hbm_bytes", "total_bytes"):
            if (value := getattr(self, name)) is not None:
                if not is_integer(value):
                    raise InvalidTopologyError(f"{name} of HostMemory must be an integer, not {short_repr(value)}.")
                object.__setattr__(self, name, int(value))
        for name in ("read_gb_per_s", "update_gb_per_s", "dense_ms"):
            object.__setattr__(self, name, float(getattr(self, name)))


@dataclass(frozen=True)
class Replicas:
    """The copies of a device's shards in other groups of devices, which are averaged every so often (`grouping`).

    Attributes:
        count: G, copies of every shard, its own included.
        in_host: how many of them are in one domain of fast links, by default a host.
        sync_every: iterations from one averaging to the next.

    Raises:
        InvalidTopologyError: a number is no integer of at least 1, or `in_host` does not divide `count`.
    """

    count: int
    in_host: int
    sync_every: int

    def __post_init__(self) -> None:
        for name in ("count", "in_host", "sync_every"):
            value = getattr(self, name)
            if not is_integer(value) or not 1 <= value < MOST:
                raise InvalidTopologyError(
                    f"{name} of Replicas must be an integer of at least 1, not {short_repr(value)}."
                )
            object.__setattr__(self, name, int(value))
        if self.count % self.in_host:
            raise InvalidTopologyError(
                f"Hosts hold equal numbers of replicas, so in_host must divide count; got {self.in_host} and "
                f"{self.count}."
            )


_OWN_MEMORY: NDArray[np.int64] = np.empty(0, np.int64)
"""Stands for the devices' own memory in place of caps that are not given."""


@dataclass(frozen=True, eq=False, repr=False)
class Topology(ReadOnlyArrays):
    """D equal devices; device d is on host d // devices_per_host.

    A host has its memory, and the local ranks of its devices; `table_row_wise` is over one host. A domain has the fast
    links, so costs count domains. Most often it is a host; a GB200 NVL72 has 18 hosts of 4 in one domain.

    Attributes:
        num_devices: D, at most `MAX_DEVICES`.
        devices_per_host: devices of one host, at most `MAX_DEVICES`; the last host may have fewer.
        devices_per_domain: devices of one domain of fast links, a multiple of `devices_per_host`; the last domain may
            have fewer. None, the default, is a domain for each host.
        memory_cap_bytes: (D,) int64, bytes that tables may use on each device, or one number for all; default is the
            device's memory. With `host`, those in its HBM and in its part of the host's memory together; where the host
            has `total_bytes`, these parts are within it.
        host: the host memory for rows that the HBM has no room for; None if all rows are in HBM.
        cross_host_ratio: how much is sent of the bytes of outputs, partial sums and their gradients that leave a
            domain, above 0 and at most 1. A model that compresses them has less than 1: with tower modules on each host
            (DMT), or by leaving out small values (DCT).
        replicas: copies of the shards of these devices in other groups (`shard_gym.tasks.groups`); None if there are
        none.

    Raises:
        InvalidTopologyError: a number is impossible, or the caps allot more of a host's memory than it has.
    """

    device: DeviceSpec
    links: LinkSpec
    num_devices: int
    devices_per_host: int = 8
    memory_cap_bytes: NDArray[np.int64] = field(default_factory=lambda: _OWN_MEMORY)
    host: HostMemory | None = None
    cross_host_ratio: float = 1.0
    replicas: Replicas | None = None
    devices_per_domain: int | None = None

    def __post_init__(self) -> None:
        hint = " A profile has both: hardware_profile(name).topology(num_devices)."
        require_kinds(self, "a Topology", InvalidTopologyError, hint, device=DeviceSpec, links=LinkSpec)
        for name in ("num_devices", "devices_per_host", "devices_per_domain"):
            value = getattr(self, name)
            if value is None and name == "devices_per_domain":
                continue
            if not is_integer(value) or not 1 <= value <= MAX_DEVICES:
                raise InvalidTopologyError(
                    f"{name} must be an integer of at least 1 and at most {MAX_DEVICES:,}, not {short_repr(value)}."
                )
            object.__setattr__(self, name, int(value))
        if self.domain_size % self.devices_per_host:
            raise InvalidTopologyError(
                f"A domain of fast links has whole hosts, so devices_per_domain must be a multiple of the "
                f"{self.devices_per_host} devices of a host, not {self.devices_per_domain}."
            )
        caps = _checked_caps(self.memory_cap_bytes, self.num_devices, self.device.memory_bytes)
        object.__setattr__(self, "memory_cap_bytes", caps)
        if self.host is not None:
            require_kinds(self, "a Topology", InvalidTopologyError, host=HostMemory)
            if self.host.total_bytes is not None:
                _require_allotted(caps, self.hosts, self.host.hbm_bytes, self.host.total_bytes)
        if self.replicas is not None:
            require_kinds(self, "a Topology", InvalidTopologyError, replicas=Replicas)
            if self.host is not None:
                raise InvalidTopologyError("Rows in host memory are not averaged: give host or replicas, not both.")
        if not is_positive(self.cross_host_ratio) or not MIN_RATIO <= self.cross_host_ratio <= 1.0:
            raise InvalidTopologyError(
                f"cross_host_ratio must be a number from {MIN_RATIO:g} to 1, not {short_repr(self.cross_host_ratio)}."
            )
        object.__setattr__(self, "cross_host_ratio", float(self.cross_host_ratio))

    def __repr__(self) -> str:
        return f"Topology({self.num_devices} x {self.device.name!r}, {self._memory})"

    def _repr_html_(self) -> str:
        return card(
            f"{self.num_devices} x {self.device.name}",
            {
                "hosts": str(self.num_hosts),
                **({"domains": str(self.num_domains)} if self.fast_group == "domain" else {}),
                "memory for tables": self._memory,
                **({} if self.host is None else {"of it in HBM": format_bytes(self.host.hbm_bytes)}),
                "DRAM": f"{self.device.dram_gb_per_s:g} GB/s",
                f"all-to-all in a {self.fast_group}": f"{self.links.intra_host_gb_per_s:g} GB/s",
                f"all-to-all across {self.fast_group}s": f"{self.links.inter_host_gb_per_s:g} GB/s",
            },
        )

    @property
    def num_hosts(self) -> int:
        """Number of hosts; the last one may have fewer devices."""
        return -(-self.num_devices // self.devices_per_host)

    @property
    def hosts(self) -> NDArray[np.int64]:
        """(D,) int64, the host of each device."""
        return np.arange(self.num_devices) // self.devices_per_host

    @property
    def domain_size(self) -> int:
        """Devices of a domain of fast links; the last one may have fewer."""
        return self.devices_per_host if self.devices_per_domain is None else self.devices_per_domain

    @property
    def num_domains(self) -> int:
        """Number of domains of fast links; the last one may have fewer devices."""
        return -(-self.num_devices // self.domain_size)

    @property
    def domains(self) -> NDArray[np.int64]:
        """(D,) int64, the domain of fast links of each device."""
        return np.arange(self.num_devices) // self.domain_size

    @property
    def fast_group(self) -> str:
        """What texts call the devices with fast links between them: "host", or "domain" where one has several hosts."""
        return "host" if self.domain_size == self.devices_per_host else "domain"

    @property
    def _memory(self) -> str:
        least, most = self.memory_cap_bytes.min(), self.memory_cap_bytes.max()
        return format_bytes(most) if least == most else f"{format_bytes(least)} to {format_bytes(most)}"

    def with_caps(self, caps: ArrayLike, num_devices: int | None = None) -> Topology:
        """These devices, or so many, with other memory caps, of which each is the limit of its device alone.

        So a host's memory is no longer shared: `HostMemory.total_bytes` is left out, beyond which caps may then go.
        """
        host = None if self.host is None else replace(self.host, total_bytes=None)
        count = self.num_devices if num_devices is None else num_devices
        return replace(self, num_devices=count, memory_cap_bytes=np.asarray(caps), host=host)

    def cluster(self, max_devices: int | None = None) -> Cluster:
        """This topology as arrays, padded to `max_devices` (default D)."""
        size = self.num_devices if max_devices is None else max_devices
        if size < self.num_devices:
            raise InvalidTopologyError(f"{self.num_devices} devices do not fit into max_devices={size}.")
        real = np.arange(size) < self.num_devices
        domain = np.arange(size) // self.domain_size
        begin = np.where(real, domain * self.domain_size, 0)
        end = np.where(real, np.minimum(begin + self.domain_size, self.num_devices), 0)
        crosses = self.num_devices > self.domain_size
        latency_us = self.links.inter_host_latency_us if crosses else self.links.intra_host_latency_us
        return Cluster(
            device_mask=real,
            domain_begin=begin,
            domain_end=end,
            num_peers=np.where(real, end - begin - 1.0, 0.0),
            num_devices=np.float64(self.num_devices),
            host_size=np.float64(min(self.devices_per_host, self.num_devices)),
            intra_bytes_per_ms=np.float64(self.links.intra_host_gb_per_s * 1e6),
            inter_bytes_per_ms=np.float64(self.links.inter_host_gb_per_s * 1e6 / self.cross_host_ratio),
            intra_knee_bytes=np.float64(self.links.intra_host_knee_bytes),
            intra_knee_extra=np.float64(self.links.intra_host_knee_extra),
            inter_knee_bytes=np.float64(self.links.inter_host_knee_bytes / self.cross_host_ratio),
            inter_knee_extra=np.float64(self.links.inter_host_knee_extra),
            latency_ms=np.float64(latency_us * 1e-3 if self.num_devices > 1 else 0.0),
            crosses_domains=np.bool_(crosses),
            cross_host_ratio=np.float64(self.cross_host_ratio),
        )


def _checked_caps(given: ArrayLike, num_devices: int, default: int) -> NDArray[np.int64]:
    """(D,) int64, read-only: `given` as a memory cap of each device in bytes; `default` for `_OWN_MEMORY`.

    Raises:
        InvalidTopologyError: they are not one positive integer, or one for each device.
    """
    try:
        caps = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise InvalidTopologyError(
            f"memory_cap_bytes must be one number or one for each device, not {short_repr(given)}."
        ) from error
    if caps is _OWN_MEMORY:
        caps = np.asarray(default)
    if caps.ndim > 1 or (caps.ndim == 1 and caps.shape != (num_devices,)):
        raise InvalidTopologyError(
            f"memory_cap_bytes must be one number or one for each of the {num_devices} devices, "
            f"not an array of shape {caps.shape}."
        )
    if not holds_integers(caps) or (caps <= 0).any() or (caps > np.iinfo(np.int64).max).any():
        raise InvalidTopologyError(
            f"memory_cap_bytes must be positive int64 integers (bytes), not {short_repr(given)}."
        )
    caps = np.broadcast_to(caps, (num_devices,)).astype(np.int64)
    caps.setflags(write=False)
    return caps


def _require_allotted(caps: NDArray[np.int64], hosts: NDArray[np.int64], hbm_bytes: int, total_bytes: int) -> None:
    """Raise InvalidTopologyError unless caps allot no more than the `total_bytes` of each host to its devices.

    What a cap has above `hbm_bytes` is of the host; a cap below would be none, as its device may use more.

    Args:
        caps: (D,) int64, bytes.
        hosts: (D,) int64, the host of each device.
    """
    way_out = "or leave out total_bytes of HostMemory, so that each device has a part of its own (Topology.with_caps)."
    device = int(caps.argmin())
    if caps[device] < hbm_bytes:
        raise InvalidTopologyError(
            f"The memory cap of device {device} on host {hosts[device]}, {caps[device]:,} bytes, is below its "
            f"hbm_bytes, {hbm_bytes:,}, but it may use all that its host has besides. Give it at least hbm_bytes, "
            f"{way_out}"
        )
    allotted = np.zeros(int(hosts[-1]) + 1, object)  # sums of Python's integers, which do not overflow
    np.add.at(allotted, hosts, (caps - hbm_bytes).astype(object))
    host = int(allotted.argmax())
    if allotted[host] > total_bytes:
        raise InvalidTopologyError(
            f"Host {host} has {total_bytes:,} bytes (total_bytes), but memory_cap_bytes allots {allotted[host]:,} of "
            f"it: what its devices have above {hbm_bytes:,} of HBM each. Lower their caps, {way_out}"
        )


TOPOLOGY_KEYS: dict[str, type] = {
    **{"device": dict, "links": dict, "num_devices": int, "devices_per_host": int, "memory_cap_bytes": list}
}
"""The keys of `topology_to_json`."""

TOPOLOGY_OPTIONS: dict[str, type | tuple[type, ...]] = {
    **{"host": dict, "cross_host_ratio": float, "devices_per_domain": int, "replicas": dict}
}
"""Further keys, of topologies with other values than the defaults."""


def _numbers(spec: DeviceSpec | LinkSpec | HostMemory | Replicas) -> dict[str, Any]:
    """The fields of a specification by name, but its sources, and options that have their defaults."""
    return {
        each.name: getattr(spec, each.name)
        for each in fields(spec)
        if each.name != "sources" and not (each.metadata == OPTION and getattr(spec, each.name) == each.default)
    }


def device_to_json(device: DeviceSpec) -> dict[str, Any]:
    """The numbers of a device."""
    found = _numbers(device)
    if device.rates is not None:
        rates = asdict(device.rates)
        found["rates"] = {**rates, "forward": list(rates["forward"]), "backward": list(rates["backward"])}
    return found


def device_from_json(record: Any, sources: Mapping[str, str] | None = None) -> DeviceSpec:
    """The inverse of `device_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    _require_keys("device", record, DeviceSpec)
    rates = record.get("rates")
    if rates is not None:
        _require_keys("rates", rates, WorkRates)
        rates = WorkRates(**rates)
    return DeviceSpec(**{**record, "rates": rates}, sources=sources or {})


def links_to_json(links: LinkSpec) -> dict[str, Any]:
    """The numbers of links."""
    return _numbers(links)


def links_from_json(record: Any, sources: Mapping[str, str] | None = None) -> LinkSpec:
    """The inverse of `links_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    _require_keys("links", record, LinkSpec)
    return LinkSpec(**record, sources=sources or {})


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """`topology` as JSON values, without the sources of its numbers."""
    host = {} if topology.host is None else {"host": _numbers(topology.host)}
    replicas = {} if topology.replicas is None else {"replicas": _numbers(topology.replicas)}
    return {
        "device": device_to_json(topology.device),
        "links": links_to_json(topology.links),
        "num_devices": topology.num_devices,
        "devices_per_host": topology.devices_per_host,
        "memory_cap_bytes": topology.memory_cap_bytes.tolist(),
        **({} if topology.fast_group == "host" else {"devices_per_domain": topology.domain_size}),
        **({} if topology.cross_host_ratio == 1.0 else {"cross_host_ratio": topology.cross_host_ratio}),
        **host,
        **replicas,
    }


def topology_from_json(record: Any) -> Topology:
    """The inverse of `topology_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    require_fields(record, TOPOLOGY_KEYS, "A topology", TOPOLOGY_OPTIONS)
    if "host" in record:
        _require_keys("host", record["host"], HostMemory)
    if "replicas" in record:
        _require_keys("replicas", record["replicas"], Replicas)
    caps = record["memory_cap_bytes"]
    if not caps or not all(type(cap) is int and 0 <= cap < 2**63 for cap in caps):
        raise DamagedFileError("memory_cap_bytes of a topology must be whole numbers, one for each device.")
    return Topology(
        device=device_from_json(record["device"]),
        links=links_from_json(record["links"]),
        num_devices=record["num_devices"],
        devices_per_host=record["devices_per_host"],
        memory_cap_bytes=np.array(caps, np.int64),
        host=HostMemory(**record["host"]) if "host" in record else None,
        replicas=Replicas(**record["replicas"]) if "replicas" in record else None,
        cross_host_ratio=record.get("cross_host_ratio", 1.0),
        devices_per_domain=record.get("devices_per_domain"),
    )


def topologies_from_json(records: Sequence[Any]) -> tuple[Topology, ...]:
    """Topologies from what `topology_to_json` made of each; raises the errors of `topology_from_json`."""
    if not isinstance(records, (list, tuple)):
        raise DamagedFileError(f"Topologies must be a list, not {short_repr(records)}.")
    return tuple(map(topology_from_json, records))


def _require_keys(part: str, record: Any, kind: type) -> None:
    named = [each for each in fields(kind) if each.name != "sources"]
    known = [each.name for each in named if each.metadata != OPTION]
    options = {each.name for each in named if each.metadata == OPTION}
    if not isinstance(record, dict) or set(record) - options != set(known):
        given = short_repr(sorted(record) if isinstance(record, dict) else record)
        raise DamagedFileError(f"The {part} of a topology must have the keys {', '.join(known)}, not {given}.")
