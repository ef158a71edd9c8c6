"""Memory caps of devices: what they may be, alone and beside the memory of a host that its devices share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shard_gym.common.checks import holds_integers
from shard_gym.common.errors import InvalidTopologyError, short_repr


def checked_caps(given: ArrayLike, num_devices: int, default: int) -> NDArray[np.int64]:
    """(D,) int64, read-only: `given` as a memory cap of each device in bytes; `default` for no numbers.

    Raises:
        InvalidTopologyError: they are not one positive integer, or one for each device.
    """
    try:
        caps = np.asarray(given)
    except ValueError as error:  # lists of different lengths
        raise InvalidTopologyError(
            f"memory_cap_bytes must be one number or one for each device, not {short_repr(given)}."
        ) from error
    if not caps.size:
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


def require_allotted(caps: NDArray[np.int64], hosts: NDArray[np.int64], hbm_bytes: int, total_bytes: int) -> None:
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
