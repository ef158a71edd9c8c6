"""Random placements of random tables, costed by a cost model: the data that neural cost models are trained on.

Tables are split before anything is drawn, so no placement mixes tables of two splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.cost_models.base import CostModel
from shard_gym.cost_models.data.dataset import CostRecorder, IntArray
from shard_gym.cost_models.data.splits import SPLITS, Groups, SplitCosts, check_groups
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import HardwareProfile
from shard_gym.placement import Placement, memory_used
from shard_gym.tables import Tables
from shard_gym.topology import Topology

ATTEMPTS = 1_000
"""Draws before a sampler gives up on finding tables and devices whose memory goes together."""

CONCENTRATIONS = (0.5, 20.0)
"""Of the Dirichlet law of the devices' shares, log-uniform: from nearly all tables on one device to equal numbers."""

NOISE = 0.5
"""Spread of the natural logarithm of what a greedy placement balances."""


@dataclass(frozen=True, eq=False)
class PlacementSampler:
    """Draws tables, devices and a placement that fits their memory.

    Attributes:
        tables: to draw from.
        profile: the hardware.
        num_tables: fewest and most tables of a placement, log-uniform between them.
        num_devices: fewest and most devices, all equally likely.
        embedding_dims: widths to draw each table's from; empty keeps the tables' own.
        balanced: share of the placements that are greedy in noisy work; the others put each table on a device drawn
            by random shares.

    Raises:
        InvalidOptionError: a range or the share means nothing.
    """

    tables: Tables
    profile: HardwareProfile
    num_tables: tuple[int, int] = (5, 100)
    num_devices: tuple[int, int] = (1, 8)
    embedding_dims: Sequence[int] = ()
    balanced: float = 0.25

    def __post_init__(self) -> None:
        for name in ("num_tables", "num_devices"):
            given = getattr(self, name)
            pair = isinstance(given, (tuple, list)) and len(given) == 2 and all(type(end) is int for end in given)
            if not pair or not 1 <= given[0] <= given[1]:
                raise InvalidOptionError(f"{name} must be two integers, (fewest, most), from 1 up; not {given!r}.")
        if isinstance(self.balanced, bool) or not 0 <= self.balanced <= 1:
            raise InvalidOptionError(f"balanced is a share from 0 to 1, not {self.balanced!r}.")

    def task(self, rng: np.random.Generator, rows: IntArray) -> tuple[Tables, Topology]:
        """Random tables of those at `rows`, and devices for them; a table comes twice only if `rows` are too few."""
        low, high = np.log(self.num_tables)
        count = round(float(np.exp(rng.uniform(low, high))))
        tables = self.tables.select(rng.choice(rows, size=count, replace=count > len(rows)))
        if len(self.embedding_dims):
            tables = tables.with_dims(rng.choice(np.asarray(self.embedding_dims, np.int64), size=count))
        return tables, self.profile.topology(int(rng.integers(self.num_devices[0], self.num_devices[1] + 1)))

    def sample(self, rng: np.random.Generator, rows: IntArray) -> tuple[Tables, Topology, Placement]:
        """Random tables of those at `rows`, devices, and a (T,) placement.

        Raises:
            InvalidOptionError: the devices' memory is too small for nearly all of what was drawn.
        """
        for _ in range(ATTEMPTS):
            tables, topology = self.task(rng, rows)
            balanced = rng.random() < self.balanced
            placement = (greedy_placement if balanced else random_placement)(tables, topology, rng)
            if fits(placement, tables, topology):
                return tables, topology, placement
        raise InvalidOptionError(
            f"{ATTEMPTS} times in a row, {self.num_tables[0]} to {self.num_tables[1]} tables did not fit "
            f"{self.num_devices[0]} to {self.num_devices[1]} x {self.profile.device.name}. Draw fewer, or add devices."
        )


def fits(placement: Placement, tables: Tables, topology: Topology) -> bool:
    """Whether every device has the memory for its tables."""
    return bool((memory_used(placement, tables, topology.num_devices) <= topology.memory_cap_bytes).all())


def random_placement(tables: Tables, topology: Topology, rng: np.random.Generator) -> Placement:
    """(T,) int64, every table on a device drawn by random shares, which are anything between equal and one-sided."""
    low, high = np.log(CONCENTRATIONS)
    shares = rng.dirichlet(np.full(topology.num_devices, np.exp(rng.uniform(low, high))))
    return rng.choice(topology.num_devices, size=len(tables), p=shares)


def greedy_placement(tables: Tables, topology: Topology, rng: np.random.Generator) -> Placement:
    """(T,) int64, the table with the most work first, each to the device with the least.

    Work is a product of width, lookups and rows with random exponents, and noise: the placements of many heuristics,
    good and mediocre.
    """
    sizes = np.stack([tables.embedding_dim, tables.pooling_factor + 0.1, tables.num_embeddings], axis=1)
    exponents = rng.uniform(0, 1, 3) * (1, 1, 0.3)
    work = np.exp(np.log(sizes) @ exponents + NOISE * rng.random() * rng.standard_normal(len(tables)))
    placement, busy = np.empty(len(tables), np.int64), np.zeros(topology.num_devices)
    for table in np.argsort(-work):
        placement[table] = busy.argmin()
        busy[placement[table]] += work[table]
    return placement


def simulate(
    model: CostModel, sampler: PlacementSampler, groups: Groups, counts: Mapping[str, int], seed: int
) -> SplitCosts:
    """Random placements and what `model` says they cost.

    Args:
        model: any cost model; its fingerprint becomes the source of the data.
        sampler: what draws them.
        groups: the rows of the sampler's tables that belong to each split, see `split_tables`.
        counts: placements of each split; what a split draws does not depend on the others.
        seed: equal arguments give equal data.

    Raises:
        UnknownNameError: a group or a count is not named after a split.
        InvalidOptionError: the groups are not apart, or a count has no group or is negative.
    """
    check_groups(sampler.tables, groups)
    _check_counts(counts, groups)
    recorder, split_of = CostRecorder(model.fingerprint), []
    for number, split in enumerate(SPLITS):
        rng = np.random.default_rng([seed, number])
        for _ in range(counts.get(split, 0)):
            tables, topology, placement = sampler.sample(rng, groups[split])
            recorder.add(tables, topology, placement, model.estimate(placement, tables, topology))
            split_of.append(number)
    return SplitCosts.recorded(recorder, split_of)


def _check_counts(counts: Mapping[str, Any], groups: Groups) -> None:
    for split, count in counts.items():
        if split not in groups:
            raise InvalidOptionError(f"{count!r} placements of {split!r} are wanted, but no group has that name.")
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise InvalidOptionError(f"The count of {split!r} must be an integer of at least 0, not {count!r}.")
