"""Devices, links and topologies as JSON values, without the sources of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from shard_gym.errors import DamagedFileError, short_repr
from shard_gym.io.parsing import require_fields
from shard_gym.topology import DeviceSpec, HostMemory, LinkSpec, Topology, WorkRates

_DEVICE_KEYS, _LINK_KEYS, _HOST_KEYS = (
    tuple(field.name for field in fields(kind) if field.name not in ("rates", "sources", "total_bytes"))
    for kind in (DeviceSpec, LinkSpec, HostMemory)
)
_RATES = "rates"  # a further key of devices that were calibrated
_TOTAL = "total_bytes"  # a further key of host memory that its devices share

TOPOLOGY_KEYS: dict[str, type] = {
    **{"device": dict, "links": dict, "num_devices": int, "devices_per_host": int, "memory_cap_bytes": list}
}
"""The keys of `topology_to_json`."""

TOPOLOGY_OPTIONS: dict[str, type | tuple[type, ...]] = {
    **{"host": dict, "cross_host_ratio": float, "devices_per_domain": int}
}
"""Further keys, of topologies with other values than the defaults."""


def device_to_json(device: DeviceSpec) -> dict[str, Any]:
    """The numbers of a device."""
    found: dict[str, Any] = {name: getattr(device, name) for name in _DEVICE_KEYS}
    if device.rates is not None:
        rates = asdict(device.rates)
        found[_RATES] = {**rates, "forward": list(rates["forward"]), "backward": list(rates["backward"])}
    return found


def device_from_json(record: Any, sources: Mapping[str, str] | None = None) -> DeviceSpec:
    """The inverse of `device_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    _require_keys("device", record, _DEVICE_KEYS, _RATES)
    rates = record.get(_RATES)
    if rates is not None:
        _require_keys("rates", rates, tuple(field.name for field in fields(WorkRates)))
        rates = WorkRates(**rates)
    return DeviceSpec(**{**record, _RATES: rates}, sources=sources or {})


def links_to_json(links: LinkSpec) -> dict[str, Any]:
    """The numbers of links."""
    return {name: getattr(links, name) for name in _LINK_KEYS}


def links_from_json(record: Any, sources: Mapping[str, str] | None = None) -> LinkSpec:
    """The inverse of `links_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    _require_keys("links", record, _LINK_KEYS)
    return LinkSpec(**record, sources=sources or {})


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """`topology` as JSON values, without the sources of its numbers."""
    host = {} if topology.host is None else {"host": asdict(replace(topology.host, sources={}))}
    for part in host.values():
        del part["sources"]
        if part[_TOTAL] is None:
            del part[_TOTAL]
    return {
        "device": device_to_json(topology.device),
        "links": links_to_json(topology.links),
        "num_devices": topology.num_devices,
        "devices_per_host": topology.devices_per_host,
        "memory_cap_bytes": topology.memory_cap_bytes.tolist(),
        **({} if topology.fast_group == "host" else {"devices_per_domain": topology.domain_size}),
        **({} if topology.cross_host_ratio == 1.0 else {"cross_host_ratio": topology.cross_host_ratio}),
        **host,
    }


def topology_from_json(record: dict[str, Any]) -> Topology:
    """The inverse of `topology_to_json`; raises DamagedFileError, or InvalidTopologyError for impossible numbers."""
    if "host" in record:
        _require_keys("host", record["host"], _HOST_KEYS, _TOTAL)
    caps = record["memory_cap_bytes"]
    if not all(type(cap) is int and 0 <= cap < 2**63 for cap in caps):
        raise DamagedFileError("memory_cap_bytes of a topology must be whole numbers.")
    return Topology(
        device=device_from_json(record["device"]),
        links=links_from_json(record["links"]),
        num_devices=record["num_devices"],
        devices_per_host=record["devices_per_host"],
        memory_cap_bytes=np.array(caps, np.int64),
        host=HostMemory(**record["host"]) if "host" in record else None,
        cross_host_ratio=record.get("cross_host_ratio", 1.0),
        devices_per_domain=record.get("devices_per_domain"),
    )


def topologies_from_json(records: Sequence[Any]) -> tuple[Topology, ...]:
    """Topologies from what `topology_to_json` made of each; raises the errors of `topology_from_json`."""
    checked = (require_fields(record, TOPOLOGY_KEYS, "A topology", TOPOLOGY_OPTIONS) for record in records)
    return tuple(map(topology_from_json, checked))


def _require_keys(part: str, record: Any, known: tuple[str, ...], *options: str) -> None:
    if not isinstance(record, dict) or set(record) - set(options) != set(known):
        given = short_repr(sorted(record) if isinstance(record, dict) else record)
        raise DamagedFileError(f"The {part} of a topology must have the keys {', '.join(known)}, not {given}.")
