"""Fixtures shared by the tests of all cost models: tables, small data sets of costs, and networks fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data.dataset import TABLE_ARRAYS, CostDataset, topology_to_json
from shard_gym.cost_models.data.random_placements import PlacementSampler, simulate
from shard_gym.cost_models.data.splits import SplitCosts, split_tables
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel
from shard_gym.cost_models.neural.fit import FitOptions, fit_cost_model
from shard_gym.cost_models.neural.network import NORMALIZATION, FloatWeights
from shard_gym.cost_models.neural.training import Samples, with_normalization
from shard_gym.hardware import hardware_profile
from shard_gym.placement import Placement
from shard_gym.pools import load_pool
from shard_gym.pools.reuse import reuse_statistics
from shard_gym.tables import Tables, Workload
from shard_gym.topology import Topology

MakeTables = Callable[..., Tables]


@pytest.fixture(scope="session")
def zipf_tables() -> MakeTables:
    """Tables read by a Zipf law of exponent s; s = 0 is uniform. One number serves for all tables."""

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
        def each(value: float | Sequence[float]) -> np.ndarray:
            return np.broadcast_to(np.asarray(value), (len(rows),))

        statistics = reuse_statistics(rows, each(pooling) * float(batch_size), np.zeros(len(rows)), each(s))
        return Tables(
            num_embeddings=np.asarray(rows),
            embedding_dim=each(dims),
            pooling_factor=each(pooling),
            distinct_rows=statistics.distinct_rows,
            reuse_histogram=statistics.reuse_histogram,
            access_histogram=statistics.access_histogram,
            workload=Workload(batch_size, weight_dtype, optimizer),
            num_features=each(features),
        )

    return make


COUNTS = {"train": 400, "validation": 60, "test": 120}


class Drawn(NamedTuple):
    tables: Tables
    topology: Topology
    placement: Placement


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
def drawn(random_tables: Any) -> Callable[[int], Drawn]:
    """Random tables, one to six devices on one to three hosts, and any placement."""

    def draw(seed: int) -> Drawn:
        rng = np.random.default_rng(seed)
        count, devices = int(rng.integers(1, 15)), int(rng.integers(1, 7))
        topology = hardware_profile("a100-dgx").topology(
            devices, devices_per_host=int(rng.integers(-(-devices // 3), 7))
        )
        return Drawn(random_tables(rng, count), topology, rng.integers(devices, size=count))

    return draw


@pytest.fixture(scope="session")
def sampler() -> PlacementSampler:
    tables = load_pool("dlrm-2021").tables.select(np.arange(200)).with_training(weight_dtype="fp32")
    return PlacementSampler(tables, hardware_profile("a100-dgx"), (3, 30), (1, 4), (16, 64))


@pytest.fixture(scope="session")
def groups(sampler: PlacementSampler) -> dict[str, np.ndarray]:
    return split_tables(sampler.tables, seed=0)


@pytest.fixture(scope="session")
def costs(sampler: PlacementSampler, groups: dict[str, np.ndarray]) -> SplitCosts:
    return simulate(AnalyticalCostModel(), sampler, groups, COUNTS, seed=0)


@pytest.fixture(scope="session")
def fitted(costs: SplitCosts) -> Callable[[str], NeuralCostModel]:
    """A network after a short fit to the shared data."""
    return cache(
        lambda architecture: fit_cost_model(
            architecture, costs, seed=0, options=FitOptions(steps=400, batch_size=32, check_every=50)
        )
    )


def _same_data(one: CostDataset, other: CostDataset) -> bool:
    """Equal in every number, name and topology."""
    arrays = [f.name for f in fields(CostDataset) if f.name not in ("tables", "topologies", "source")]
    return (
        all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and all(np.array_equal(getattr(one.tables, name), getattr(other.tables, name)) for name in TABLE_ARRAYS)
        and (one.tables.names, one.tables.workload) == (other.tables.names, other.tables.workload)
        and list(map(topology_to_json, one.topologies)) == list(map(topology_to_json, other.topologies))
        and one.source == other.source
    )


@pytest.fixture(scope="session")
def same_data() -> Callable[[CostDataset, CostDataset], bool]:
    return _same_data
