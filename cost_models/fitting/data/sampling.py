"""Which placements are measured: random tables on random devices, each a function of the seed and its number alone.

Of every `CYCLE` numbers in a row, the test placements (see `split_of`) place the same tables, each in another way, so
that models can be compared by how they rank placements of one task. All other placements have tables of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from shard_gym.common.arrays import IntArray
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import format_bytes
from shard_gym.cost_models.fitting.data.dataset import concatenate_tables
from shard_gym.cost_models.fitting.data.random_plans import random_plan
from shard_gym.cost_models.fitting.data.splits import SPLITS, Groups, split_tables
from shard_gym.hardware import PROFILES, Topology, hardware_profile
from shard_gym.plans import ShardingPlan
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables, Workload, load_pool, rounded_statistics
from shard_gym.tables.row_popularity import reuse_statistics

CYCLE, TEST_EVERY, VALIDATION_EVERY = 40, 5, 10
"""The cycle of the splits: of 40 placements, eight are for the test (numbers 4, 9, 14, ...) and four for validation
(2, 12, 22, 32)."""

WIDTHS = (4, 8, 16, 32, 64, 128)
"""Dims of the widest table of a placement, all equally likely; the dims of the others are multiples of 4 up to that.
The widest table of a fused op slows down the others, so placements without any wide table are needed too."""

SAME_WIDTH_SHARE = 0.25  # share of the placements whose tables all have the same dim
GREEDY_SHARE = 0.25  # share of the placements that `greedy_placement` makes; `random_placement` makes the others

CONCENTRATIONS = (0.5, 20.0)
"""Range of the Dirichlet concentration of the devices' shares, log-uniform: from nearly all tables on one device to
nearly equal numbers of tables."""

NOISE = 0.5  # largest standard deviation of the logarithm of the work that `greedy_placement` balances
MAX_ATTEMPTS = 1_000  # random sets of tables tried before the sampler gives up because none fits the memory
_SPLIT_SEED = 0  # the same in all collections, so that a test table is a test table everywhere


class SampledPlacement(NamedTuple):
    """A placement to measure."""

    split: str  # the one of `SPLITS` that all its tables belong to
    tables: Tables  # T tables
    topology: Topology  # D devices
    placement: Placement  # (T,) int64; some devices may be empty
    plan: ShardingPlan | None = None  # in its place, of a sampler with plans


def profile_name(profile: str) -> str:
    """The name of a profile; of the folder of a calibrated one without its path, so that it can be moved."""
    return profile if profile in PROFILES else Path(profile).name


class Sampler(Protocol):
    """Gives placements by number, each a function of the settings and the number alone."""

    @property
    def workload(self) -> Workload:
        """How the tables are trained."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Everything but the workload, as JSON values."""
        ...

    def sample(self, number: int) -> SampledPlacement:
        """The placement of that number, from 0 up."""
        ...


@dataclass(frozen=True)
class PlacementSampler:
    """Random placements by number.

    Raises:
        InvalidOptionError: a number is out of range, or a pool is named twice.
        UnknownNameError: there is no such profile.
    """

    workload: Workload  # how the tables are trained; lookups, distinct rows and histograms follow its batch size
    profile: str  # name of the hardware profile whose device and links the topologies have; their memory is `max_bytes`
    num_devices: int  # D
    max_bytes: int  # memory of all tables of a placement together, so that it fits one device; others are left out
    seed: int = 0  # of all placements
    tables_per_device: int = 40  # most tables of a placement, divided by D
    pools: tuple[str, ...] = ("dlrm-2021", "dlrm-2022")  # of the tables; each knows the popularity law of its rows
    plan_share: float = 0.0  # of the placements in whose place plans are, which split tables

    def __post_init__(self) -> None:
        for name, least in (("num_devices", 1), ("max_bytes", 1), ("seed", 0), ("tables_per_device", 1)):
            checked_count(name, getattr(self, name), least)
        hardware_profile(self.profile)
        if not 0 <= self.plan_share <= 1:
            raise InvalidOptionError(f"plan_share is a share, from 0 to 1, not {self.plan_share!r}.")
        if self.plan_share and self.workload.batch_size % self.num_devices:
            raise InvalidOptionError(
                f"Plans have blocks of rows, which are executed with as many samples for each device, but "
                f"{self.num_devices} devices do not divide a batch of {self.workload.batch_size:,}. Give another batch."
            )
        if not self.pools or len(set(self.pools)) != len(self.pools):
            raise InvalidOptionError(f"pools must be different names, one at least, not {self.pools!r}.")

    def to_json(self) -> dict[str, Any]:
        """Everything but the workload, as JSON values; the share of plans if there are any."""
        left_out = ("workload",) if self.plan_share else ("workload", "plan_share")
        found = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {**found, "profile": profile_name(self.profile)}

    @property
    def tables(self) -> Tables:
        """The tables of all pools, with the dims that they have there."""
        return _pool_tables(self.pools, self.workload)[0]

    @property
    def groups(self) -> Groups:
        """The rows of `tables` of each of `SPLITS`; they do not depend on the workload or the seed."""
        return _pool_tables(self.pools, self.workload)[1]

    def sample(self, number: int) -> SampledPlacement:
        """The placement of that number, from 0 up; equal settings and numbers give equal placements.

        Raises:
            InvalidOptionError: nearly no table fits `max_bytes`, or a pool has no popularity law.
            UnknownNameError: there is no such pool.
        """
        split = split_of(number)
        rng = np.random.default_rng([self.seed, number])
        # All test placements of a cycle place the same tables.
        tables_rng = np.random.default_rng([self.seed, number // CYCLE, 1]) if split == "test" else rng
        tables = self._sample_tables(split, tables_rng)
        topology = hardware_profile(self.profile).topology(self.num_devices, memory_cap_bytes=self.max_bytes)
        place = greedy_placement if rng.random() < GREEDY_SHARE else random_placement
        placement = place(tables, topology, rng)
        planned = self.plan_share > 0 and rng.random() < self.plan_share
        plan = random_plan(placement, tables, topology, rng) if planned else None
        return SampledPlacement(split, tables, topology, placement, plan)

    def _sample_tables(self, split: str, rng: np.random.Generator) -> Tables:
        """Random tables of a split that fit `max_bytes`; their number is log-uniform before others are left out."""
        rows, most = self.groups[split], self.num_devices * self.tables_per_device
        fewest = min(most, 2 * self.num_devices) if split == "test" else 1
        for _ in range(MAX_ATTEMPTS):
            count = min(len(rows), round(float(np.exp(rng.uniform(*np.log((fewest, most)))))))
            tables = self.tables.select(rng.choice(rows, size=count, replace=False)).with_dims(_dims(count, rng))
            fitting = _fitting_tables(tables.memory_bytes, self.max_bytes)
            if fitting:
                return tables.select(fitting)
        raise InvalidOptionError(
            f"None of {MAX_ATTEMPTS} random sets of tables had one that fits into {format_bytes(self.max_bytes)}; "
            "allow more memory."
        )


def split_of(number: int) -> str:
    """The split that the placement of that number belongs to."""
    if number % TEST_EVERY == TEST_EVERY - 1:
        return "test"
    return "validation" if number % VALIDATION_EVERY == 2 else "train"


def random_placement(tables: Tables, topology: Topology, rng: np.random.Generator) -> Placement:
    """(T,) int64, every table on a random device; the devices' shares are between equal and one-sided."""
    low, high = np.log(CONCENTRATIONS)
    shares = rng.dirichlet(np.full(topology.num_devices, np.exp(rng.uniform(low, high))))
    return rng.choice(topology.num_devices, size=len(tables), p=shares)


def greedy_placement(tables: Tables, topology: Topology, rng: np.random.Generator) -> Placement:
    """(T,) int64, the table with the most work first, each to the device with the least.

    Work is a product of dim, lookups and rows with random exponents, and noise. This gives placements like those of
    many heuristics, good and mediocre.
    """
    sizes = np.stack([tables.embedding_dim, tables.pooling_factor + 0.1, tables.num_embeddings], axis=1)
    exponents = rng.uniform(0, 1, 3) * (1, 1, 0.3)
    work = np.exp(np.log(sizes) @ exponents + NOISE * rng.random() * rng.standard_normal(len(tables)))
    placement, busy = np.empty(len(tables), np.int64), np.zeros(topology.num_devices)
    for table in np.argsort(-work):
        placement[table] = busy.argmin()
        busy[placement[table]] += work[table]
    return placement


def _dims(count: int, rng: np.random.Generator) -> IntArray:
    """(count,) int64: multiples of 4 up to one of `WIDTHS`, or all equal to it."""
    widest = int(rng.choice(WIDTHS))
    if rng.random() < SAME_WIDTH_SHARE:
        return np.full(count, widest)
    return 4 * rng.integers(1, widest // 4 + 1, count)


def _fitting_tables(table_bytes: IntArray, max_bytes: int) -> Sequence[int]:
    """Tables that fit if each is added, in order, unless it exceeds the memory that is left."""
    chosen, free = [], max_bytes
    for table, size in enumerate(table_bytes.tolist()):
        if size <= free:
            chosen.append(table)
            free -= size
    return chosen


@lru_cache(maxsize=16)
def _pool_tables(names: tuple[str, ...], workload: Workload) -> tuple[Tables, Groups]:
    """The tables of pools with another workload, and their splits; row statistics follow from the popularity laws."""
    parts: list[Tables] = []
    groups: dict[str, list[IntArray]] = {split: [] for split in SPLITS}
    for pool in map(load_pool, names):
        tables, popularity = pool.tables, pool.popularity
        if popularity is None:
            raise InvalidOptionError(
                f"The pool {pool.name!r} has no popularity law, so row statistics of other batch sizes are unknown."
            )
        for split, chosen in split_tables(tables, _SPLIT_SEED).items():
            groups[split].append(chosen + sum(map(len, parts)))
        rows, lookups = tables.num_embeddings.astype(np.float64), tables.pooling_factor * workload.batch_size
        statistics = rounded_statistics(reuse_statistics(rows, lookups, popularity.q, popularity.s), rows, lookups)
        names_in_pool = tuple(f"{pool.name}/{name}" for name in tables.names)
        parts.append(replace(tables, **statistics._asdict(), workload=workload, names=names_in_pool))
    return concatenate_tables(parts), {split: np.concatenate(rows) for split, rows in groups.items()}
