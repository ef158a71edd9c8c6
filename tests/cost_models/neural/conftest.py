"""Networks with random weights, random placements, and a small simulated data set that several files share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel
from shard_gym.cost_models.neural.dataset import TABLE_ARRAYS, CostDataset, topology_to_json
from shard_gym.cost_models.neural.fit import FitOptions, fit_cost_model
from shard_gym.cost_models.neural.network import MEASURED, FloatWeights
from shard_gym.cost_models.neural.simulate import PlacementSampler, simulate
from shard_gym.cost_models.neural.splits import SplitCosts, split_tables
from shard_gym.cost_models.neural.training import Samples, calibrated
from shard_gym.hardware import hardware_profile
from shard_gym.placement import Placement
from shard_gym.pools import load_pool
from shard_gym.tables import Tables
from shard_gym.topology import Topology

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
    def calibration(architecture: str) -> FloatWeights:
        network = NETWORKS[architecture]
        weights = calibrated(Samples(costs.part("test"), network), network.new_weights(np.random.default_rng(0)))
        return {name: array for name, array in weights.items() if name.endswith(MEASURED)}

    def make(architecture: str, seed: int = 0, *, wild: float = 1.0) -> NeuralCostModel:
        rng, network = np.random.default_rng(seed), NETWORKS[architecture]
        weights = {name: array * np.float32(wild) for name, array in network.new_weights(rng).items()}
        for name in (name for name in weights if ".shortcut." in name):
            weights[name] = rng.normal(0, wild / 10, weights[name].shape).astype(np.float32)
        return network({**weights, **calibration(architecture)})

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
