"""`HardwareProfile`: a type of machine, and its file, as `shard-gym calibrate` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.checks import as_array, checked_count, checked_positive, is_not_negative, require_name
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, InvalidTopologyError, short_repr, wrong_kind
from shard_gym.common.io.files import read_json, sha256_of, write_json
from shard_gym.common.io.parsing import require_fields, require_schema
from shard_gym.hardware.topology import (
    MAX_DEVICES,
    DeviceSpec,
    HostMemory,
    LinkSpec,
    Topology,
    device_from_json,
    device_to_json,
    links_from_json,
    links_to_json,
)

RESERVE = 0.15
"""Share of a device's memory that is kept for what is neither a table nor its buffers (see `training_memory`)."""

MAX_HOST_BYTES = 2**50
"""The most bytes of a host's memory for tables."""


@dataclass(frozen=True)
class HostSpec:
    """The memory of a host, and how fast each of its devices reads and updates rows there; see `HostMemory`."""

    memory_bytes: int
    read_gb_per_s: float
    update_gb_per_s: float
    sources: Mapping[str, str] = field(compare=False, repr=False)
    is_shared: bool = True  #: between the devices of a host; or each has an equal part of its own

    def __post_init__(self) -> None:
        checked_count("memory_bytes of a host", self.memory_bytes, most=MAX_HOST_BYTES)
        for name in ("read_gb_per_s", "update_gb_per_s"):
            checked_positive(f"{name} of a host", getattr(self, name))
        if not isinstance(self.is_shared, bool):
            raise wrong_kind("is_shared of a host", self.is_shared, "True or False")


@dataclass(frozen=True)
class HardwareProfile:
    """A type of machine: its devices, their links, the devices of a host, and its memory if rows can be there.

    Attributes:
        devices_per_domain: devices of a domain of fast links (see `Topology`); None for those of a host.
    """

    name: str
    device: DeviceSpec
    links: LinkSpec
    devices_per_host: int = 8
    host: HostSpec | None = None
    devices_per_domain: int | None = None

    def __post_init__(self) -> None:
        require_name("The name of a hardware profile", self.name, InvalidOptionError)
        checked_count("devices_per_host", self.devices_per_host, most=MAX_DEVICES)
        if self.devices_per_domain is not None:
            checked_count("devices_per_domain", self.devices_per_domain, most=MAX_DEVICES)

    def topology(
        self,
        num_devices: int,
        *,
        devices_per_host: int | None = None,
        devices_per_domain: int | None = None,
        memory_cap_bytes: int | NDArray[np.int64] | None = None,
        reserve: float | None = None,
        host_memory_bytes: int = 0,
    ) -> Topology:
        """A topology of `num_devices` of these devices; see `Topology` for the other arguments and errors.

        Args:
            host_memory_bytes: of each host, for rows that the HBM has no room for; all rows are in HBM by default. The
                memory caps are then those of the HBM, one number, and each device gets an equal part of its host's
                memory besides; where devices share it, a plan may use it unequally (`HostMemory.total_bytes`).
            reserve: share of each device's memory, 0 <= reserve < 1, that is left free for what is neither a table nor
                its buffers (`shard_gym.plans.memory`); none by default, while `shard-gym place` leaves 0.15 free.

        Raises:
            InvalidOptionError: the reserve is no such share, or a memory cap is given, too; or there is host memory,
                and the hardware has none for tables, or the caps of the devices differ.
        """
        if reserve is not None:
            if memory_cap_bytes is not None:
                raise InvalidOptionError("Give memory_cap_bytes or reserve, not both: each says what tables may take.")
            memory_cap_bytes = usable_bytes(self.device.memory_bytes, reserve)
        topology = Topology(
            device=self.device,
            links=self.links,
            num_devices=num_devices,
            devices_per_host=self.devices_per_host if devices_per_host is None else devices_per_host,
            devices_per_domain=self.devices_per_domain if devices_per_domain is None else devices_per_domain,
            memory_cap_bytes=as_array(
                "memory_cap_bytes",
                self.device.memory_bytes if memory_cap_bytes is None else memory_cap_bytes,
                InvalidTopologyError,
            ),
        )
        return self._with_host(topology, checked_count("host_memory_bytes", host_memory_bytes, 0, MAX_HOST_BYTES))

    def _with_host(self, topology: Topology, host_bytes: int) -> Topology:
        """`topology`, whose caps are those of the HBM, and so many bytes of each host besides."""
        if not host_bytes:
            return topology
        hbm = topology.memory_cap_bytes
        if (hbm != hbm[0]).any():
            raise InvalidOptionError(
                f"With host memory all devices have one memory cap, that of their HBM, not {short_repr(hbm.tolist())}."
            )
        host = self.host_memory(int(hbm[0]))
        assert self.host is not None  # otherwise there is no host memory
        if not self.host.is_shared:
            return replace(topology, memory_cap_bytes=hbm + host_bytes // self.devices_per_host, host=host)
        parts = host_bytes // np.bincount(topology.hosts)[topology.hosts]
        return replace(topology, memory_cap_bytes=hbm + parts, host=replace(host, total_bytes=host_bytes))

    def host_memory(self, hbm_bytes: int) -> HostMemory:
        """The host memory of its devices, of which tables may use so many bytes of HBM each.

        Raises:
            InvalidOptionError: its hosts have no memory for tables.
        """
        if self.host is None:
            raise InvalidOptionError(
                f"The hardware {self.name!r} has no host memory for tables. Name another, such as 'a100-dgx', or plan "
                "without host memory."
            )
        return HostMemory(hbm_bytes, self.host.read_gb_per_s, self.host.update_gb_per_s, sources=self.host.sources)


PROFILE_FILE = "hardware.json"
"""Name of the file of a profile in a folder that `shard-gym calibrate` made."""

SCHEMA = "shard-gym-hardware/1"
_KEYS: dict[str, type | tuple[type, ...]] = {
    **{"schema": str, "name": str, "device": dict, "links": dict, "devices_per_host": int},
    **{"host": (dict, type(None)), "sources": dict, "errors": dict, "sha256": str},
}


def write_profile(path: Path, profile: HardwareProfile, errors: Mapping[str, float]) -> None:
    """Write a profile, with the relative standard error of each measured number, as a file with a checksum."""
    host = None if profile.host is None else asdict(profile.host)
    sources = {"host": {} if host is None else host.pop("sources")}
    for part in ("device", "links"):
        sources[part] = dict(getattr(profile, part).sources)
    record = {
        "schema": SCHEMA,
        "name": profile.name,
        "device": device_to_json(profile.device),
        "links": links_to_json(profile.links),
        "devices_per_host": profile.devices_per_host,
        **({} if profile.devices_per_domain is None else {"devices_per_domain": profile.devices_per_domain}),
        "host": host,
        "sources": sources,
        "errors": dict(errors),
    }
    write_json(path, {**record, "sha256": _digest(record)})


def read_profile(path: Path) -> HardwareProfile:
    """The profile in a file that `write_profile` wrote.

    Raises:
        DamagedFileError: there is no such file, or it was changed or damaged.
    """
    known = require_schema(read_json(path), SCHEMA, str(path))
    record = dict(require_fields(known, _KEYS, str(path), {"devices_per_domain": int}))
    if record.pop("sha256") != _digest(record):
        raise DamagedFileError(
            f"{path} was changed or damaged: its content is not what its SHA-256 says. Calibrate again into its "
            "folder; what was measured is still there."
        )
    try:
        sources, host = record["sources"], record["host"]
        return HardwareProfile(
            name=record["name"],
            device=device_from_json(record["device"], sources["device"]),
            links=links_from_json(record["links"], sources["links"]),
            devices_per_host=record["devices_per_host"],
            devices_per_domain=record.get("devices_per_domain"),
            host=None if host is None else HostSpec(**host, sources=sources["host"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path} is no hardware profile: {error}") from error


def _digest(record: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(record, sort_keys=True, allow_nan=False).encode())


def usable_bytes(memory_bytes: int, reserve: float = RESERVE, name: str = "reserve") -> int:
    """Bytes that tables and their buffers may take of a device: (1 - reserve) of its memory, rounded down.

    Args:
        reserve: share that is kept, at least 0 and below 1; messages call it `name`.

    Raises:
        InvalidOptionError: the reserve is no such share, or leaves no byte.
    """
    usable = int((1.0 - reserve) * memory_bytes) if is_not_negative(reserve) and reserve < 1 else 0
    if usable < 1:
        raise InvalidOptionError(
            f"{name} must be a share of a device's memory of at least 0 and below 1, such as {RESERVE}, "
            f"not {short_repr(reserve)}."
        )
    return usable
