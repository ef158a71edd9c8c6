"""The rules of splitting: which action means which variant of the current table on which devices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidTaskError
from shard_gym.hardware import Topology
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE
from shard_gym.plans.variants import checked_max_shards, checked_sharding_types

NONE = -1


class SpreadActions(NamedTuple):
    """The actions of a sharding type that gives a part to each of several devices: all, or those of a host."""

    sharding_type: str
    variant: int
    first: int  # action
    actions: int  # one for each host, or one for all devices


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
    """

    sharding_types: tuple[str, ...]  # the allowed ones, in the order of `SHARDING_TYPES`
    max_devices: int  # padding of the devices
    max_hosts: int  # padding of the hosts
    max_halvings: int  # how often a part is halved at most

    @staticmethod
    def of(sharding_types: Collection[str], max_devices: int, max_hosts: int, max_shards: int = 8) -> SplitRules:
        """The rules for these types, with at most `max_shards` column shards of a table."""
        types, shards = checked_sharding_types(sharding_types), checked_max_shards(max_shards)
        return SplitRules(types, max_devices, max_hosts, shards.bit_length() - 1 if COLUMN_WISE in types else 0)

    @cached_property
    def spreads(self) -> tuple[SpreadActions, ...]:
        """The actions that mean several devices, in their order."""
        found: list[SpreadActions] = []
        first = self.max_devices + bool(self.max_halvings)
        for name in (ROW_WISE, TABLE_ROW_WISE, DATA_PARALLEL):
            if name in self.sharding_types:
                count = self.max_hosts if name == TABLE_ROW_WISE else 1
                found.append(SpreadActions(name, 1 + self.max_halvings + len(found), first, count))
                first += count
        return tuple(found)

    @cached_property
    def num_variants(self) -> int:
        """V."""
        return 1 + self.max_halvings + len(self.spreads)

    @cached_property
    def num_actions(self) -> int:
        """A, the number of actions."""
        return self.max_devices + bool(self.max_halvings) + sum(spread.actions for spread in self.spreads)

    @cached_property
    def halve(self) -> int:
        """The action that halves, or -1."""
        return self.max_devices if self.max_halvings else NONE

    @cached_property
    def row_wise(self) -> int:
        """The action for blocks on all devices, or -1."""
        return self._first(ROW_WISE)

    @cached_property
    def host_row_wise(self) -> int:
        """The action for blocks on the first host, or -1."""
        return self._first(TABLE_ROW_WISE)

    @cached_property
    def data_parallel(self) -> int:
        """The action for replicas on all devices, or -1."""
        return self._first(DATA_PARALLEL)

    def _first(self, sharding_type: str) -> int:
        return next((spread.first for spread in self.spreads if spread.sharding_type == sharding_type), NONE)

    @cached_property
    def max_shards(self) -> int:
        """U, the most column shards of a table."""
        return 1 << self.max_halvings

    @cached_property
    def shares(self) -> NDArray[np.int64]:
        """(H + 1,) int64, what a part that is halved 0, 1, .. H times has of a table, in U-ths of its columns."""
        return self.max_shards >> np.arange(self.max_halvings + 1)

    @cached_property
    def variants_and_hosts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(A,) int64 each, the variant and the host of every action that means several devices; -1 for the others."""
        variants, hosts = np.full((2, self.num_actions), NONE)
        for name, variant, first, count in self.spreads:
            variants[first : first + count] = variant
            if name == TABLE_ROW_WISE:
                hosts[first : first + count] = np.arange(count)
        return variants, hosts

    def require_hosts(self, topology: Topology, name: str) -> None:
        """Raise InvalidTaskError for a task with more hosts than the padding."""
        hosts = -(-topology.num_devices // topology.devices_per_host)
        if hosts > self.max_hosts:
            raise InvalidTaskError(
                f"Task {name!r} has {hosts} hosts, but this environment holds at most {self.max_hosts}. "
                "Raise max_hosts."
            )
