"""Networks and rows in host memory: the bytes are arithmetic, the ms of a byte are learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import DamagedFileError, InvalidOptionError
from shard_gym.common.system import one_thread
from shard_gym.cost_models import AdditiveCostModel, AnalyticalCostModel, CostEstimate
from shard_gym.cost_models.analytical.model import LOADS
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.host_rows import HBM_MS, NUM_HOST_LOADS, host_read_ms
from shard_gym.cost_models.fitting.data.shards import ShardRecorder
from shard_gym.cost_models.fitting.training import (
    Samples,
    as_arrays,
    estimates,
    new_optimizer,
    train_network,
    trainable,
    with_normalization,
)
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel, load_cost_model, save_cost_model
from shard_gym.cost_models.neural.host import RATE, host_megabytes, host_ms, megabytes, new_rates
from shard_gym.cost_models.neural.pooled import PooledCostModel
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.plans.needs import HOST_MEMORY
from shard_gym.plans.plan import DATA_PARALLEL, TABLE_WISE
from shard_gym.tables import Tables, Workload

LEARN = pytest.mark.parametrize("architecture", [name for name, each in NETWORKS.items() if each.learns_host_memory])
some = settings(max_examples=20)
seeds = st.integers(0, 10_000)
PLANTED = {RATE: np.array([0.1, -0.05], np.float32), "host.scale": np.array([0.3, 0.7], np.float32)}


@pytest.fixture(scope="session")
def knowing(untrained: Any) -> Any:
    """A network with random weights that learned host memory, with `PLANTED` rates."""

    def make(architecture: str, seed: int = 0) -> NeuralCostModel:
        model = untrained(architecture, seed)
        return NETWORKS[architecture]({**model.weights, **PLANTED})

    return make


def with_host(tables: Tables, devices: int, share: float) -> Topology:
    """A100 whose HBM has this share of an even part of the tables."""
    hbm = max(int(share * tables.memory_bytes.sum() / devices), 1)
    return hardware_profile("a100-dgx").topology(devices, memory_cap_bytes=hbm, host_memory_bytes=2**40)


@LEARN
@some
@given(seed=seeds)
def test_without_host_memory_no_bit_changes(architecture: str, knowing: Any, drawn: Any, seed: int) -> None:
    model, (tables, topology, placement) = knowing(architecture), drawn(seed)
    own = {name: array for name, array in model.weights.items() if name not in new_rates()}
    plain = type(model)(own)
    assert np.array_equal(plain.loads(tables, topology), model.loads(tables, topology))
    one, other = (each.estimate(placement, tables, topology) for each in (plain, model))
    assert np.array_equal(one.phases_ms, other.phases_ms)
    assert "host-memory" not in plain.supports
    assert "host-memory" in model.supports
    assert plain.num_loads_with(True) == model.num_loads_with(False) == model.num_loads


@LEARN
@some
@given(seed=seeds, share=st.floats(0.02, 1.5))
def test_a_device_adds_what_its_bytes_take_at_the_learned_rates(
    architecture: str, knowing: Any, drawn: Any, seed: int, share: float
) -> None:
    """The bytes are those of the analytical model, at the rates that its topology gives them."""
    model, (tables, topology, placement) = knowing(architecture), drawn(seed)
    placed = with_host(tables, topology.num_devices, share)
    loads = model.reduce(model.loads(tables, placed), placement, placed.num_devices)
    assert loads.shape[1] == model.num_loads_with(True)
    host = placed.host
    assert host is not None
    own = AdditiveCostModel.reduce(
        AnalyticalCostModel(), AnalyticalCostModel().loads(tables, placed), placement, placed.num_devices
    )[:, LOADS:]
    read_mb = host_read_ms(own) * host.read_gb_per_s
    workload = tables.workload
    update = (workload.weight_bytes + 4 * workload.state.per_weight) / workload.weight_bytes
    rates = np.log1p(np.exp(10.0 * PLANTED[RATE])) * PLANTED["host.scale"]
    expected = model.device_phases(loads[:, : model.num_loads])
    expected[:, COMPUTE] += read_mb[:, None] * rates * [1.0, update]
    np.testing.assert_allclose(model.device_phases(loads), expected, rtol=1e-4, atol=1e-6)


@some
@given(seed=seeds, share=st.floats(0.02, 1.5))
def test_more_tables_and_less_hbm_never_take_less(random_tables: Any, seed: int, share: float) -> None:
    tables = random_tables(np.random.default_rng(seed), 8)
    loads = host_megabytes(tables, TABLE_WISE, with_host(tables, 1, share))
    held = np.cumsum(loads, axis=0)
    held[:, :2] = loads[0, :2]
    took = host_ms(PLANTED, held)
    assert (np.diff(took, axis=0) >= -1e-9).all()
    assert not took[:, 1:3].any()
    held[:, HBM_MS] *= 0.7
    assert (host_ms(PLANTED, held) >= took - 1e-9).all()


def test_replicas_update_all_of_their_rows(random_tables: Any) -> None:
    tables = random_tables(np.random.default_rng(1), 3)
    topology = with_host(tables, 2, 0.1)
    sparse, dense = (host_megabytes(tables, kind, topology) for kind in (TABLE_WISE, DATA_PARALLEL))
    assert (dense[:, 2:] >= sparse[:, 2:] * (1 - 1e-12)).all()
    assert (dense[:, 2] > sparse[:, 2]).all()


def test_several_workloads_have_the_loads_of_one(random_tables: Any) -> None:
    """The same if they are equal; with Adam beside SGD as many, and what moments change."""
    tables = random_tables(np.random.default_rng(1), 8)
    own, adam = replace(tables.workload, optimizer="sgd"), replace(tables.workload, optimizer="adam")
    one = replace(tables, workload=own)
    topology = with_host(one, 2, 0.2)
    twice, other = (replace(one, workload=Workload.mixed([own, each], np.arange(8) % 2)) for each in (own, adam))
    loads, same, several = (host_megabytes(each, TABLE_WISE, topology) for each in (one, twice, other))
    np.testing.assert_allclose(same, loads, rtol=1e-12)
    assert several.shape == loads.shape
    np.testing.assert_allclose(several[::2], loads[::2], rtol=1e-12)
    # Weights are read alike, and a row with moments takes more HBM.
    assert (several[1::2, 2:] >= loads[1::2, 2:] * (1 - 1e-9)).all()
    assert (several[1::2, -1] > loads[1::2, -1]).all()


@LEARN
def test_tensors_give_the_estimates_of_arrays(architecture: str, knowing: Any, random_tables: Any) -> None:
    model = knowing(architecture)
    recorder, expected = measured(model, random_tables, 12)
    samples = Samples(recorder.dataset(), type(model))
    with torch.no_grad():
        phases, cost = estimates(trainable(model.weights), samples, np.arange(12))
    with torch.no_grad():
        loads = samples.loads(samples.latents(trainable(model.weights)), np.arange(12))
    own = model.own_phases(model.weights, loads[..., : model.num_loads].numpy())
    for number, each in enumerate(expected):
        for device, phase in zip(*np.nonzero(own[number, : len(each.phases_ms)] > 0), strict=True):
            if phase in COMPUTE:  # estimates that are not clipped
                assert phases[number, device, phase] == pytest.approx(each.phases_ms[device, phase], rel=1e-3, abs=1e-4)
    assert torch.isfinite(cost).all()


def measured(model: Any, random_tables: Any, count: int) -> tuple[ShardRecorder, list[CostEstimate]]:
    """Random placements and what `model` says of them; every third without host memory."""
    recorder, found = ShardRecorder(), []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        tables, devices = random_tables(rng, int(rng.integers(2, 16))), int(rng.integers(1, 4))
        topology = with_host(tables, devices, float(rng.uniform(0.05, 0.6)))
        if seed % 3 == 2:
            topology = replace(topology, host=None)
        placement = rng.integers(devices, size=len(tables))
        estimate = model.estimate(placement, tables, topology)
        host = host_megabytes(tables, TABLE_WISE, topology)
        network = type(model) if isinstance(model, NeuralCostModel) else PooledCostModel
        recorder.add(network.describe(tables), placement, topology, estimate, host)
        found.append(estimate)
    return recorder, found


def test_training_finds_the_rates_of_the_hardware(random_tables: Any) -> None:
    """Those of an A100, from measured phases of the analytical model, in which tables take time for HBM, too."""
    recorder, _ = measured(AnalyticalCostModel(), random_tables, 40)
    samples, rng = Samples(recorder.dataset(), PooledCostModel), np.random.default_rng(0)
    with one_thread():
        weights = trainable(with_normalization(samples, PooledCostModel.first_weights(rng, {HOST_MEMORY})))
        train_network(weights, new_optimizer(weights, 0.5), samples, rng, steps=60, learning_rate=6e-3, batch_size=32)
    learned = as_arrays(weights)
    one = np.zeros((1, NUM_HOST_LOADS))
    one[0, 1:3] = 1.0  # a megabyte is read and updated
    assert megabytes(one).tolist() == [[1.0, 1.0]]
    host = hardware_profile("a100-dgx").host
    assert host is not None
    expected = [1.0 / host.read_gb_per_s, 1.0 / host.update_gb_per_s]
    np.testing.assert_allclose(host_ms(learned, one)[0, COMPUTE], expected, rtol=0.1)


def test_recorded_loads_come_back_from_arrays(random_tables: Any) -> None:
    recorder, _ = measured(AnalyticalCostModel(), random_tables, 4)
    arrays, again = recorder.to_arrays(), ShardRecorder()
    again.restore(arrays)
    for name, array in again.to_arrays().items():
        assert np.array_equal(array, arrays[name]), name
    with pytest.raises(DamagedFileError, match="host"):
        again.restore({**arrays, "host": arrays["host"][:-1]})


def test_a_network_that_did_not_learn_host_memory_refuses_it(untrained: Any, random_tables: Any) -> None:
    model, tables = untrained("pooled", 1), random_tables(np.random.default_rng(0), 6)
    with pytest.raises(InvalidOptionError, match="'neural-pooled' does not support rows in host memory"):
        model.loads(tables, with_host(tables, 2, 0.1))


def test_a_network_without_phases_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="'dreamshard' cannot learn from tasks with host memory"):
        NETWORKS["dreamshard"].first_weights(np.random.default_rng(0), {HOST_MEMORY})


@LEARN
def test_files_keep_the_rates(architecture: str, knowing: Any, tmp_path: Path) -> None:
    model = knowing(architecture)
    save_cost_model(model, tmp_path / "model.safetensors")
    again = load_cost_model(tmp_path / "model.safetensors")
    assert "host-memory" in again.supports
    assert again.fingerprint == model.fingerprint


@LEARN
@some
@given(seed=seeds, share=st.floats(0.02, 1.5))
def test_costs_with_host_memory_are_within_their_bounds(
    architecture: str, knowing: Any, drawn: Any, seed: int, share: float
) -> None:
    model, (tables, topology, placement) = knowing(architecture, seed), drawn(seed)
    placed = with_host(tables, topology.num_devices, share)
    loads, cost = model.loads(tables, placed), model.estimate(placement, tables, placed).total_ms
    low, high = model.bounds(loads, placed)
    assert 0 < low <= cost <= high < np.inf
    assert (model.single_table_costs(loads, placed) <= loads[:, model.alone] * (1 + 1e-9)).all()
