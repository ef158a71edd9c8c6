"""What is measured: random tables on random devices, numbered, each draw by its number alone.

Of every `CYCLE` numbers in a row, the `TEST_EVERY`-th ones place the same test tables, each in another way, so that
models can be judged by how they order placements of one task; all others place tables of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from shard_gym.cost_models.data.dataset import IntArray, concatenate_tables
from shard_gym.cost_models.data.random_placements import ATTEMPTS, greedy_placement, random_placement
from shard_gym.cost_models.data.splits import SPLITS, Groups, check_groups, split_tables
from shard_gym.errors import InvalidOptionError, wrong_kind
from shard_gym.hardware import hardware_profile
from shard_gym.placement import Placement
from shard_gym.pools import load_pool
from shard_gym.pools.reuse import reuse_statistics, rounded_statistics
from shard_gym.tables import Tables, Workload
from shard_gym.text import format_bytes
from shard_gym.topology import Topology

CYCLE, TEST_EVERY, VALIDATION_EVERY = 40, 5, 10
"""Of 40 draws, eight are for the test (numbers 4, 9, 14, ...) and four for validation (2, 12, 22, 32)."""

WIDTHS = (4, 8, 16, 32, 64, 128)
"""Widest tables of a draw, all equally likely; the dims of the others are multiples of 4 up to that. The widest table
of a fused op slows down the others, so draws without any wide table are needed too."""

ONE_WIDTH = 0.25
"""Share of the draws whose tables are all equally wide."""

BALANCED = 0.25
"""Share of the draws that are greedy in noisy work; the others are as uneven as chance has it."""

_SPLITTING = 0
"""Seed of the groups of tables: the same in all collections, so that a table for the test is one everywhere."""


class Draw(NamedTuple):
    """One thing to measure.

    Attributes:
        split: the one of `SPLITS` that all its tables belong to.
        tables: T tables.
        topology: D devices.
        placement: (T,) int64; some devices may be empty.
    """

    split: str
    tables: Tables
    topology: Topology
    placement: Placement


@dataclass(frozen=True)
class Draws:
    """All that draws depend on besides their number.

    Attributes:
        workload: how the tables are trained; lookups, distinct rows and histograms follow its batch size.
        profile: name of the hardware profile whose device and links stand in the topologies; the memory is `max_bytes`.
        num_devices: D.
        max_bytes: what all tables of a draw may take together, so that any placement fits where this fits on one
            device. A table that would take more is left out of the draw; none is made smaller.
        seed: of all draws.
        tables_per_device: most tables of a draw, divided by D.
        pools: names of the pools that tables come from; each must know the law of its requests.

    Raises:
        InvalidOptionError: a number means nothing, or a pool stands there twice.
        UnknownNameError: there is no such profile.
    """

    workload: Workload
    profile: str
    num_devices: int
    max_bytes: int
    seed: int = 0
    tables_per_device: int = 40
    pools: tuple[str, ...] = ("dlrm-2021", "dlrm-2022")

    def __post_init__(self) -> None:
        for name, least in (("num_devices", 1), ("max_bytes", 1), ("seed", 0), ("tables_per_device", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise wrong_kind(name, value, f"an integer of at least {least}")
        hardware_profile(self.profile)
        if not self.pools or len(set(self.pools)) != len(self.pools):
            raise InvalidOptionError(f"pools must be different names, one at least, not {self.pools!r}.")

    def to_json(self) -> dict[str, Any]:
        """Everything but the workload, as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "workload"}

    @cached_property
    def tables(self) -> Tables:
        """All tables there are to draw, of any dim."""
        return concatenate_tables([_pool_at(name, self.workload).tables for name in self.pools])

    @cached_property
    def groups(self) -> Groups:
        """For each of `SPLITS`, its rows of `tables`; they do not depend on the workload or the seed."""
        groups: dict[str, list[IntArray]] = {split: [] for split in SPLITS}
        before = 0
        for name in self.pools:
            pool = _pool_at(name, self.workload)
            for split, rows in pool.groups.items():
                groups[split].append(rows + before)
            before += len(pool.tables)
        return {split: np.concatenate(rows) for split, rows in groups.items()}

    def prepare(self) -> None:
        """Make the tables now instead of with the first draw, which would seem to take long.

        Raises:
            InvalidOptionError: a pool has no law of its requests, or two pools share tables.
            UnknownNameError: there is no such pool.
        """
        check_groups(self.tables, self.groups)

    def draw(self, number: int) -> Draw:
        """The draw of that number, from 0 up; equal settings and numbers give equal draws.

        Raises:
            InvalidOptionError: nearly no table fits `max_bytes`.
        """
        split = split_of(number)
        rng = np.random.default_rng([self.seed, number])
        # All test draws of a cycle place the same tables.
        of_tables = np.random.default_rng([self.seed, number // CYCLE, 1]) if split == "test" else rng
        tables = self._some_tables(split, of_tables)
        topology = hardware_profile(self.profile).topology(self.num_devices, memory_cap_bytes=self.max_bytes)
        place = greedy_placement if rng.random() < BALANCED else random_placement
        return Draw(split, tables, topology, place(tables, topology, rng))

    def _some_tables(self, split: str, rng: np.random.Generator) -> Tables:
        """Random tables of a split, as many as are drawn and fit; their number is log-uniform before that.

        Loads of all sizes, down to one table, teach what a device costs by itself. Tables for the test are placed
        several times, so there are at least two for each device.
        """
        rows, most = self.groups[split], self.num_devices * self.tables_per_device
        fewest = min(most, 2 * self.num_devices) if split == "test" else 1
        for _ in range(ATTEMPTS):
            count = min(len(rows), round(float(np.exp(rng.uniform(*np.log((fewest, most)))))))
            tables = self.tables.select(rng.choice(rows, size=count, replace=False)).with_dims(_dims(count, rng))
            fitting = _that_fit(tables.memory_bytes, self.max_bytes)
            if fitting:
                return tables.select(fitting)
        raise InvalidOptionError(
            f"{ATTEMPTS} times in a row, no table drawn fitted into {format_bytes(self.max_bytes)}; allow more memory."
        )


def split_of(number: int) -> str:
    """The split that the draw of that number belongs to."""
    if number % TEST_EVERY == TEST_EVERY - 1:
        return "test"
    return "validation" if number % VALIDATION_EVERY == 2 else "train"


def _dims(count: int, rng: np.random.Generator) -> IntArray:
    """(count,) int64, multiples of 4 up to one of `WIDTHS`; or all as wide as it."""
    widest = int(rng.choice(WIDTHS))
    if rng.random() < ONE_WIDTH:
        return np.full(count, widest)
    return 4 * rng.integers(1, widest // 4 + 1, count)


def _that_fit(needed: IntArray, max_bytes: int) -> Sequence[int]:
    """Which tables are taken if each is, in turn, unless it no longer fits."""
    taken, free = [], max_bytes
    for table, size in enumerate(needed.tolist()):
        if size <= free:
            taken.append(table)
            free -= size
    return taken


class _PoolAt(NamedTuple):
    tables: Tables
    groups: Groups


@lru_cache(maxsize=16)
def _pool_at(name: str, workload: Workload) -> _PoolAt:
    """A pool's tables trained in another way, and their split; what a batch reads follows from the law of requests.

    Raises:
        UnknownNameError: there is no such pool.
        InvalidOptionError: the pool has no such law.
    """
    pool = load_pool(name)
    tables, popularity = pool.tables, pool.popularity
    if popularity is None:
        raise InvalidOptionError(
            f"The pool {pool.name!r} has no law of its requests, so nothing is known of batches of another size."
        )
    rows, lookups = tables.num_embeddings.astype(np.float64), tables.pooling_factor * workload.batch_size
    statistics = rounded_statistics(reuse_statistics(rows, lookups, popularity.q, popularity.s), rows, lookups)
    changed = Tables(
        num_embeddings=tables.num_embeddings,
        embedding_dim=tables.embedding_dim,
        pooling_factor=tables.pooling_factor,
        **statistics._asdict(),
        workload=workload,
        num_features=tables.num_features,
        names=tuple(f"{pool.name}/{name}" for name in tables.names),
    )
    return _PoolAt(changed, split_tables(tables, _SPLITTING))
