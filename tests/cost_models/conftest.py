"""Fixtures shared by the tests of all cost models: tables, small data sets of costs, and networks fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel, CostEstimate, CostModel
from shard_gym.cost_models.fitting import (
    CostDataset,
    FitOptions,
    Measurements,
    PlacementSampler,
    collect,
    fit_cost_model,
    load_measurements,
)
from shard_gym.cost_models.fitting.data.dataset import CostRecorder
from shard_gym.cost_models.fitting.data.sampling import CYCLE, greedy_placement, random_placement
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts, split_tables
from shard_gym.cost_models.fitting.training import Samples, with_normalization
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel
from shard_gym.cost_models.neural.network import NORMALIZATION, FloatWeights
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.hardware.topology import topology_to_json
from shard_gym.plans.placement import Placement
from shard_gym.tables import Tables, Workload, load_pool
from shard_gym.tables.row_popularity import reuse_statistics

MakeTables = Callable[..., Tables]
MakeCosts = Callable[..., SplitCosts]


@pytest.fixture(scope="session")
def zipf_tables() -> MakeTables:
    """Tables read by a Zipf law of exponent s, with statistics that are not rounded. One number serves for all."""

    def make(
        rows: Sequence[int],
        dims: Sequence[int] | int = 16,
        pooling: Sequence[float] | float = 10.0,
        *,
        s: Sequence[float] | float = 0.0,
        features: Sequence[int] | int = 1,
        batch_size: int = 4096,
        weight_dtype: str = "fp32",
        optimizer: str = "sgd",
    ) -> Tables:
        workload = Workload(batch_size, weight_dtype, optimizer)
        tables = Tables.from_zipf(rows, dims, pooling, s, workload, np.broadcast_to(features, len(rows)))
        laws = np.zeros(len(rows)), np.broadcast_to(np.asarray(s, float), len(rows))
        exact = reuse_statistics(tables.num_embeddings.astype(float), tables.lookups_per_batch, *laws)
        return replace(tables, **exact._asdict())

    return make


COUNTS = {"train": 400, "validation": 60, "test": 120}


@pytest.fixture(scope="session")
def untrained(costs: SplitCosts) -> Callable[..., NeuralCostModel]:
    """A network that reads its inputs as a trained one does, with random weights. `wild` makes the weights so large
    that estimates are negative, or beyond all bounds."""

    @cache
    def normalization(architecture: str) -> FloatWeights:
        network = NETWORKS[architecture]
        weights = with_normalization(
            Samples(costs.part("test"), network), network.new_weights(np.random.default_rng(0))
        )
        return {name: array for name, array in weights.items() if name.endswith(NORMALIZATION)}

    def make(architecture: str, seed: int = 0, *, wild: float = 1.0) -> NeuralCostModel:
        rng, network = np.random.default_rng(seed), NETWORKS[architecture]
        weights = {name: array * np.float32(wild) for name, array in network.new_weights(rng).items()}
        for name in (name for name in weights if ".shortcut." in name):
            weights[name] = rng.normal(0, wild / 10, weights[name].shape).astype(np.float32)
        return network({**weights, **normalization(architecture)})

    return make


@pytest.fixture(scope="session")
def drawn(random_tables: Any) -> Callable[[int], tuple[Tables, Topology, Placement]]:
    """Random tables, one to six devices on one to three hosts, and any placement."""

    def draw(seed: int) -> tuple[Tables, Topology, Placement]:
        rng = np.random.default_rng(seed)
        count, devices = int(rng.integers(1, 15)), int(rng.integers(1, 7))
        topology = hardware_profile("a100-dgx").topology(
            devices, devices_per_host=int(rng.integers(-(-devices // 3), 7))
        )
        return random_tables(rng, count), topology, rng.integers(devices, size=count)

    return draw


@pytest.fixture(scope="session")
def random_topology() -> Callable[..., Topology]:
    """One to `most` devices, one to four on a host, of which half of the topologies have several in a domain of fast
    links; links between domains have a knee, too."""

    def draw(rng: np.random.Generator, most: int = 6) -> Topology:
        profile = hardware_profile("a100-dgx")
        links = replace(profile.links, inter_host_knee_bytes=3e5, inter_host_knee_extra=0.7)
        devices, of_host = int(rng.integers(1, most + 1)), int(rng.integers(1, 5))
        of_domain = of_host * int(rng.integers(1, 4)) if rng.random() < 0.5 else None
        return Topology(profile.device, links, devices, of_host, devices_per_domain=of_domain)

    return draw


@pytest.fixture(scope="session")
def make_costs() -> MakeCosts:
    """Random placements of random tables and what a cost model says they cost; `counts` are by split."""
    pool = load_pool("dlrm-2021").tables.select(np.arange(200)).with_training(weight_dtype="fp32")
    groups, profile = split_tables(pool, seed=0), hardware_profile("a100-dgx")

    def make(model: CostModel, counts: dict[str, int], seed: int = 0, placements_per_task: int = 1) -> SplitCosts:
        recorder, splits = CostRecorder(model.fingerprint), []
        for number, split in enumerate(SPLITS):
            rng = np.random.default_rng([seed, number])
            for _ in range(counts.get(split, 0)):
                size, rows = round(float(np.exp(rng.uniform(*np.log((3, 30)))))), groups[split]
                tables = pool.select(rng.choice(rows, size, replace=size > len(rows)))
                tables = tables.with_dims(rng.choice(np.array([16, 64]), size))
                topology = profile.topology(int(rng.integers(min(2, placements_per_task), 5)))
                for _ in range(placements_per_task):
                    place = greedy_placement if rng.random() < 0.25 else random_placement
                    placement = place(tables, topology, rng)
                    recorder.add(tables, topology, placement, model.estimate(placement, tables, topology))
                    splits.append(number)
        return SplitCosts.recorded(recorder, splits)

    return make


@pytest.fixture(scope="session")
def costs(make_costs: MakeCosts) -> SplitCosts:
    return make_costs(AnalyticalCostModel(), COUNTS)


@pytest.fixture(scope="session")
def ranked_tasks(make_costs: MakeCosts) -> list[CostDataset]:
    """Four tasks of test tables with 25 placements each."""
    data = make_costs(AnalyticalCostModel(), {"test": 4}, seed=1, placements_per_task=25).data
    return [data.take(range(first, first + 25)) for first in range(0, 100, 25)]


@pytest.fixture(scope="session")
def fitted(costs: SplitCosts) -> Callable[[str], NeuralCostModel]:
    """A network after a short fit to the shared data."""
    return cache(
        lambda architecture: fit_cost_model(
            architecture, costs, seed=0, options=FitOptions(steps=160, batch_size=32, check_every=40)
        )
    )


@pytest.fixture(scope="session")
def same_data(same: Callable[[Any, Any], bool]) -> Callable[[CostDataset, CostDataset], bool]:
    """Equal in every number, name and topology, but for the sources of its numbers."""

    def parts(data: CostDataset) -> dict[str, Any]:
        return {**asdict(data), "topologies": list(map(topology_to_json, data.topologies))}

    return lambda one, other: same(parts(one), parts(other))


MEASURED = PlacementSampler(Workload(2048), "a100-dgx", 3, 2**30, tables_per_device=8)
"""What `measure` samples by default."""


@pytest.fixture(scope="session")
def measure() -> Callable[..., Measurements]:
    """Collects placements on a machine that takes `factors` times as long in each phase as the analytical model says,
    and `again` times as long as that where it measures again; the measurements in the folder."""

    def make(
        folder: Path,
        sampler: PlacementSampler = MEASURED,
        count: int = 2 * CYCLE,
        *,
        factors: Any = 1.0,
        again: float = 1.1,
        repeat_every: int | None = 10,
        name: str = "fake-device",
    ) -> Measurements:
        class Scaled(AnalyticalCostModel):
            hardware = name

            def estimate(self, *args: Any) -> CostEstimate:
                phases = super().estimate(*args).phases_ms * factors
                return CostEstimate(phases, float(phases.max(axis=0).sum()))

            def measure_again(self, *args: Any) -> CostEstimate:
                first = self.estimate(*args)
                return CostEstimate(again * first.phases_ms, again * first.total_ms)

        collect(Scaled, folder, sampler, count=count, repeat_every=repeat_every)
        return load_measurements(folder)

    return make
