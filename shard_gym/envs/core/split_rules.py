"""The rules of splitting: which action means which variant of the current table on which devices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.checks import checked_count
from shard_gym.errors import InvalidOptionError, InvalidTaskError
from shard_gym.sharding.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, SHARDING_TYPES, TABLE_ROW_WISE
from shard_gym.sharding.variants import checked_sharding_types
from shard_gym.topology import Topology

NONE = -1


@dataclass(frozen=True)
class SplitRules:
    """How the tables of a problem may be split. It has as many actions as its largest tasks need:

    - 0 .. max_devices - 1: the current part to that device,
    - `halve`: halve the columns of the current part,
    - `row_wise`: a block of rows to every device,
    - `host_row_wise` .. + max_hosts - 1: a block of rows to every device of that host,
    - `data_parallel`: a replica to every device.

    Types that are not allowed have no action (-1). Variants are numbered as those of `variants_of`: the whole table,
    `max_halvings` times halved columns, then the other types.

    Attributes:
        sharding_types: the allowed ones, in the order of `SHARDING_TYPES`.
        max_devices: padding of the devices.
        max_hosts: padding of the hosts.
        max_halvings: how often a part is halved at most.
    """

    sharding_types: tuple[str, ...]
    max_devices: int
    max_hosts: int
    max_halvings: int

    @staticmethod
    def of(sharding_types: Collection[str], max_devices: int, max_hosts: int, max_shards: int = 8) -> SplitRules:
        """The rules for these types, with at most `max_shards` column shards of a table.

        Raises:
            UnknownNameError: there is no such sharding type.
            InvalidOptionError: table_wise is not included, or `max_shards` is no power of two.
        """
        types, shards = checked_sharding_types(sharding_types), checked_count("max_shards", max_shards)
        if shards & (shards - 1):
            raise InvalidOptionError(f"max_shards must be a power of two, because tables are halved; got {shards}.")
        return SplitRules(types, max_devices, max_hosts, shards.bit_length() - 1 if COLUMN_WISE in types else 0)

    @cached_property
    def num_variants(self) -> int:
        """V."""
        others = sum(name in self.sharding_types for name in (ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL))
        return 1 + self.max_halvings + others

    @cached_property
    def num_actions(self) -> int:
        """A, the number of actions."""
        return self._first_action(len(SHARDING_TYPES))

    @cached_property
    def halve(self) -> int:
        """The action that halves, or -1."""
        return self.max_devices if self.max_halvings else NONE

    @cached_property
    def row_wise(self) -> int:
        """The action for blocks on all devices, or -1."""
        return self._action(ROW_WISE)

    @cached_property
    def host_row_wise(self) -> int:
        """The action for blocks on the first host, or -1."""
        return self._action(TABLE_ROW_WISE)

    @cached_property
    def data_parallel(self) -> int:
        """The action for replicas on all devices, or -1."""
        return self._action(DATA_PARALLEL)

    def _action(self, name: str) -> int:
        return self._first_action(SHARDING_TYPES.index(name)) if name in self.sharding_types else NONE

    def _first_action(self, index: int) -> int:
        """The number of actions of the sharding types before the one at `index`."""
        before: int = self.max_devices + bool(self.max_halvings)
        for name in SHARDING_TYPES[SHARDING_TYPES.index(ROW_WISE) : index]:
            if name in self.sharding_types:
                before += self.max_hosts if name == TABLE_ROW_WISE else 1
        return before

    @cached_property
    def max_shards(self) -> int:
        """U, the most column shards of a table."""
        return 1 << self.max_halvings

    @cached_property
    def shares(self) -> NDArray[np.int64]:
        """(H + 1,) int64, what a part that is halved 0, 1, .. H times has of a table, in U-ths of its columns."""
        return self.max_shards >> np.arange(self.max_halvings + 1)

    @cached_property
    def on_several(self) -> tuple[tuple[int, int, int | None], ...]:
        """The actions that mean several devices: action, variant, and host or None for all devices."""
        found: list[tuple[int, int, int | None]] = []
        variant = 1 + self.max_halvings
        if self.row_wise != NONE:
            found.append((self.row_wise, variant, None))
            variant += 1
        if self.host_row_wise != NONE:
            found += [(self.host_row_wise + host, variant, host) for host in range(self.max_hosts)]
            variant += 1
        if self.data_parallel != NONE:
            found.append((self.data_parallel, variant, None))
        return tuple(found)

    @cached_property
    def variants_of_actions(self) -> NDArray[np.int64]:
        """(A,) int64, the variant of each action that means several devices; -1 for the others."""
        variants = np.full(self.num_actions, NONE)
        for action, variant, _ in self.on_several:
            variants[action] = variant
        return variants

    def receivers(
        self, actions: NDArray[np.integer[Any]], device_mask: NDArray[np.bool_], host: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """(E, D) bool, the devices that E actions with a set of devices mean.

        Args:
            actions: (E,) integers.
            device_mask: (E, D) bool, the devices that exist.
            host: (E, D) int64, the host of each.
        """
        if self.host_row_wise == NONE:
            return device_mask
        wanted = actions - self.host_row_wise
        of_host = (wanted >= 0) & (wanted < self.max_hosts)
        return np.asarray(device_mask & (~of_host[:, None] | (host == wanted[:, None])))

    def require_hosts(self, topology: Topology, name: str) -> None:
        """Refuse a task with more hosts than the padding.

        Raises:
            InvalidTaskError: it has more.
        """
        hosts = -(-topology.num_devices // topology.devices_per_host)
        if hosts > self.max_hosts:
            raise InvalidTaskError(
                f"Task {name!r} has {hosts} hosts, but this environment holds at most {self.max_hosts}. "
                "Raise max_hosts."
            )
