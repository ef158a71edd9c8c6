"""Many placements of one task, from careless to searched: can a model tell the good ones from the others?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.cost_models.base import CostEstimate, CostModel
from shard_gym.cost_models.data.dataset import CostDataset, CostRecorder, IntArray
from shard_gym.cost_models.data.random_placements import PlacementSampler, fits, greedy_placement, random_placement
from shard_gym.placement import Placement
from shard_gym.tables import Tables
from shard_gym.topology import Topology

Rival = tuple[Placement, CostEstimate]


@dataclass(frozen=True)
class RivalCounts:
    """How many rivals a task gets; those that do not fit the memory are left out.

    Attributes:
        random: placements by random shares of the devices.
        greedy: placements that balance noisy work.
        proposals: random moves and swaps tried by a search from the best of those.
        searched: how many of the last placements that search went through.
    """

    random: int = 100
    greedy: int = 10
    proposals: int = 300
    searched: int = 10


def rival_tasks(
    model: CostModel,
    sampler: PlacementSampler,
    rows: IntArray,
    count: int,
    seed: int,
    rivals: RivalCounts | None = None,
) -> list[CostDataset]:
    """For each of `count` random tasks of at least two devices, its rivals and what `model` says they cost.

    Args:
        model: what their cost is measured by.
        sampler: draws the tasks' tables and devices.
        rows: the tables to draw from: those of a split, as in `simulate`.
        count: number of tasks.
        seed: equal arguments give equal data.
        rivals: how many.

    Raises:
        InvalidOptionError: the devices' memory is too small for nearly all of what was drawn.
    """
    low, high = sampler.num_devices
    several = replace(sampler, num_devices=(max(2, low), max(2, high)))
    rng = np.random.default_rng(seed)
    return [_measured(model, *several.sample(rng, rows), rng=rng, counts=rivals or RivalCounts()) for _ in range(count)]


def _measured(
    model: CostModel,
    tables: Tables,
    topology: Topology,
    first: Placement,
    *,
    rng: np.random.Generator,
    counts: RivalCounts,
) -> CostDataset:
    """The rivals of one task, `first` among them."""
    drawn = [first, *(random_placement(tables, topology, rng) for _ in range(counts.random))]
    drawn += [greedy_placement(tables, topology, rng) for _ in range(counts.greedy)]
    found = [
        (placement, model.estimate(placement, tables, topology))
        for placement in drawn
        if fits(placement, tables, topology)
    ]
    best = min(found, key=lambda rival: rival[1].total_ms)
    if counts.searched:
        found += list(_descent(model, tables, topology, best, rng, counts.proposals))[-counts.searched :]
    recorder = CostRecorder(model.fingerprint)
    for placement, estimate in found:
        recorder.add(tables, topology, placement, estimate)
    return recorder.dataset()


def _descent(
    model: CostModel, tables: Tables, topology: Topology, start: Rival, rng: np.random.Generator, proposals: int
) -> Iterator[Rival]:
    """From `start`, every random change that makes the placement cheaper."""
    placement, estimate = start
    for _ in range(proposals):
        changed = _changed(placement, topology.num_devices, rng)
        if fits(changed, tables, topology):
            said = model.estimate(changed, tables, topology)
            if said.total_ms < estimate.total_ms:
                placement, estimate = changed, said
                yield placement, estimate


def _changed(placement: Placement, num_devices: int, rng: np.random.Generator) -> Placement:
    """One random table moved to a random device, or two tables swapped."""
    changed = placement.copy()
    one, other = rng.integers(len(placement), size=2)
    if rng.random() < 0.5:
        changed[one] = rng.integers(num_devices)
    else:
        changed[[one, other]] = placement[[other, one]]
    return changed
