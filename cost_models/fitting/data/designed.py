"""Designed loads: small measurements that tell the rates of a device's work apart, and the speed of its links.

Random placements have few tables with one lookup in a bag, or with rows that all batches read. These have each kind of
work without the others, as far as an operator can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from shard_gym.cost_models.fitting.data.sampling import SampledPlacement, profile_name
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans import ShardingPlan, data_parallel, row_wise
from shard_gym.tables import Tables, Workload

DIMS, POOLING, EXPONENTS = (4, 16, 64, 128), (1, 8, 40), (0.0, 1.2)
TABLES = 4  # of the same size on a device
SMALL_ROWS = 2**12
LARGE_ROWS = {"cpu": 2**17, "cuda": 2**21}
"""Rows of tables that fit into caches, and of those that do not, by kind of device."""

WIDTHS = (4, 32, 128, 512, 2048)
"""Columns of the outputs of a device in an exchange, in multiples of 4."""

EXCHANGES = ("all_to_all", "row_wise", "data_parallel")
WIDEST = 128  # columns of a table of an exchange


@dataclass(frozen=True)
class DesignedSampler:
    """Designed loads by number, with the interface of a `PlacementSampler`; none is for tests.

    Attributes:
        kind: of the devices, "cpu" or "cuda".
        exchange: loads of the links, which all devices have at once; otherwise every device has a load of its own.
    """

    workload: Workload
    profile: str
    num_devices: int
    kind: str
    exchange: bool = False

    def to_json(self) -> dict[str, Any]:
        """What tells these loads from others, as JSON values."""
        loads = "exchanges" if self.exchange else "work"
        return {
            **{
                "designed": loads,
                "profile": profile_name(self.profile),
                "num_devices": self.num_devices,
                "kind": self.kind,
            },
            **({"plan_share": 1.0} if self.exchange else {}),
        }

    def __len__(self) -> int:
        if self.exchange:
            return len(WIDTHS) * len(EXCHANGES)
        return -(-len(self._loads) // self.num_devices)

    @cached_property
    def _topology(self) -> Topology:
        return hardware_profile(self.profile).topology(self.num_devices)

    @cached_property
    def _loads(self) -> list[Tables]:
        """Those of single devices; large tables first, because the operators of small ones fit beside them."""
        found = []
        for rows in (LARGE_ROWS[self.kind], SMALL_ROWS):
            for dim in DIMS:
                for pooling in POOLING:
                    for exponent in EXPONENTS if pooling > 1 else EXPONENTS[:1]:
                        names = [f"designed/{rows}-{dim}-{pooling}-{exponent}-{table}" for table in range(TABLES)]
                        made = Tables.from_zipf([rows] * TABLES, dim, pooling, exponent, self.workload, names=names)
                        found.append(made)
        return found

    def sample(self, number: int) -> SampledPlacement:
        """The loads of that number, from 0 up to the number of them less 1."""
        return self._exchange(number) if self.exchange else self._work(number)

    def _work(self, number: int) -> SampledPlacement:
        own = self._loads[number * self.num_devices : (number + 1) * self.num_devices]
        placement = np.repeat(np.arange(len(own)), TABLES)
        return SampledPlacement("train", _joined(own), self._topology, placement)

    def _exchange(self, number: int) -> SampledPlacement:
        width, kind = WIDTHS[number // len(EXCHANGES)], EXCHANGES[number % len(EXCHANGES)]
        dim, features = min(width, WIDEST), max(width // WIDEST, 1)
        count = self.num_devices if kind == "all_to_all" else 1
        # As many cells of replicas as numbers that the others exchange.
        rows = SMALL_ROWS if kind != "data_parallel" else max(self.workload.batch_size * features, 64)
        names = [f"designed/{kind}-{width}-{table}" for table in range(count)]
        tables = Tables.from_zipf([rows] * count, dim, features, 0.0, self.workload, [features] * count, names)
        placement, plan = np.arange(count), None
        if kind != "all_to_all":
            split = row_wise if kind == "row_wise" else data_parallel
            plan = ShardingPlan(tuple(split(tables, table, self._topology) for table in range(count)))
        return SampledPlacement("train", tables, self._topology, placement, plan)


def _joined(parts: Sequence[Tables]) -> Tables:
    from shard_gym.cost_models.fitting.data.dataset import concatenate_tables

    return concatenate_tables([replace(part, popularity=None) for part in parts])
