"""What the loads of the analytical model need of a device."""

from __future__ import annotations

from typing import NamedTuple

from numpy.typing import ArrayLike

from shard_gym.topology import DeviceSpec


class Rates(NamedTuple):
    """What the loads need of a device; the fields may be arrays that broadcast against the counts."""

    dram_bytes_per_ms: ArrayLike
    l2_bytes_per_ms: ArrayLike
    cycles_per_ms: ArrayLike  # of all streaming multiprocessors together
    launch_ms: ArrayLike

    @staticmethod
    def of(device: DeviceSpec) -> Rates:
        """The rates of a device."""
        return Rates(
            device.dram_gb_per_s * 1e6,
            device.l2_gb_per_s * 1e6,
            device.num_sms * device.clock_ghz * 1e6,
            device.kernel_launch_us * 1e-3,
        )
