"""The contract of cost models, for every network and for any weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models.base import COMPUTE, placement_order
from shard_gym.cost_models.neural import NETWORKS, NeuralCostModel
from shard_gym.cost_models.neural.base import LEAST_MS
from shard_gym.hardware import hardware_profile

TOLERANCE = 1e-4
"""Loads are summed in float64, whose order of addition moves the last bits, and read as float32: a network amplifies
one part in 10^7 a few hundred times."""

Untrained = Callable[..., NeuralCostModel]

every_network = pytest.mark.parametrize("architecture", NETWORKS)
some = settings(max_examples=25)
seeds = st.integers(0, 10_000)
wildness = st.sampled_from([0.3, 1.0, 4.0])


@every_network
@some
@given(seeds, wildness)
def test_placing_table_by_table_costs_what_the_estimate_says(
    architecture: str, untrained: Untrained, drawn: Any, seed: int, wild: float
) -> None:
    model, (tables, topology, placement) = untrained(architecture, seed, wild=wild), drawn(seed)
    loads, cluster = model.loads(tables, topology), topology.cluster()
    devices = np.zeros((topology.num_devices, model.num_loads))
    for table in np.random.default_rng(seed).permutation(len(tables)):
        devices[placement[table]] = model.add(devices[placement[table]], loads[table])
    phases = model.device_phases(devices)
    model.fill_communication(phases, devices[:, model.shared_loads], cluster)
    once = phases.copy()
    model.fill_communication(phases, devices[:, model.shared_loads], cluster)
    assert np.array_equal(once, phases)  # filling again overwrites
    cost = model.iteration_cost(phases, devices[:, model.shared_loads], cluster)
    order = np.random.default_rng(seed).permutation(len(tables))  # that of the tables does not matter
    estimate = model.estimate(placement[order], tables.select(order), topology)
    scale = max(1.0, np.abs(estimate.phases_ms).max())
    np.testing.assert_allclose(phases, estimate.phases_ms, rtol=TOLERANCE, atol=TOLERANCE * scale)
    np.testing.assert_allclose(cost, estimate.total_ms, rtol=TOLERANCE, atol=TOLERANCE * scale)


@every_network
@some
@given(seeds, wildness)
def test_loads_times_and_costs_are_within_their_bounds(
    architecture: str, untrained: Untrained, drawn: Any, seed: int, wild: float
) -> None:
    model, (tables, topology, placement) = untrained(architecture, seed, wild=wild), drawn(seed)
    loads, estimate = model.loads(tables, topology), model.estimate(placement, tables, topology)
    assert loads.shape == (len(tables), model.num_loads)
    assert loads.dtype == np.float64
    assert (loads >= 0).all()
    assert (loads[:, model.alone] >= LEAST_MS).all()
    order = placement_order(loads, topology, model)
    assert (np.diff(loads[order, model.alone]) <= 0).all()
    assert np.isfinite(estimate.phases_ms).all()
    assert (estimate.phases_ms >= 0).all()
    empty = np.setdiff1d(np.arange(topology.num_devices), placement)
    assert not estimate.phases_ms[empty][:, COMPUTE].any()  # it may receive outputs of others
    low, high = model.bounds(loads, topology)
    assert 0 < low <= estimate.total_ms <= high < model.penalty_ms(tables, topology) < np.inf


@every_network
def test_the_bounds_are_reached_where_a_network_is_wrong(architecture: str, untrained: Untrained, drawn: Any) -> None:
    """Otherwise clipping is not tested."""
    clipped = 0
    for seed in range(40):
        model, (tables, topology, placement) = untrained(architecture, seed, wild=4.0), drawn(seed)
        bounds = model.bounds(model.loads(tables, topology), topology)
        clipped += model.estimate(placement, tables, topology).total_ms in [pytest.approx(b, rel=1e-6) for b in bounds]
    assert 0 < clipped < 40


@every_network
@some
@given(seeds)
def test_padding_and_batches_change_nothing(architecture: str, untrained: Untrained, drawn: Any, seed: int) -> None:
    model, (tables, topology, placement) = untrained(architecture, seed), drawn(seed)
    size, wide = topology.num_devices, topology.num_devices + 3
    loads = np.zeros((4, wide, model.num_loads))
    loads[1:3, :size] = model.reduce(model.loads(tables, topology), placement, size)
    phases, cost = model.costs(loads, topology.cluster(wide))
    estimate = model.estimate(placement, tables, topology)
    scale = max(1.0, np.abs(estimate.phases_ms).max())
    for row in (1, 2):
        np.testing.assert_allclose(phases[row, :size], estimate.phases_ms, rtol=TOLERANCE, atol=TOLERANCE * scale)
        assert not phases[row, size:].any()
        assert cost[row] == pytest.approx(estimate.total_ms, rel=TOLERANCE, abs=TOLERANCE * scale)
    assert not phases[[0, 3]].any()  # nothing placed costs nothing
    assert not cost[[0, 3]].any()


@pytest.mark.parametrize("architecture", ["neuroshard", "pooled"])
def test_a_cost_alone_is_that_of_a_task_of_one_table(architecture: str, untrained: Untrained, drawn: Any) -> None:
    """DreamShard's is not: its authors sort by the heads' times, and another head says the cost."""
    compared = 0
    for seed in range(8):
        model, (tables, topology, _) = untrained(architecture, seed), drawn(seed)
        alone = model.loads(tables, topology)[:, model.alone]
        for table in np.flatnonzero(alone > LEAST_MS):
            estimate = model.estimate(np.zeros(1, np.int64), tables.select([table]), topology).total_ms
            assert estimate == pytest.approx(alone[table], rel=TOLERANCE)
            compared += 1
    assert compared > 10


@every_network
def test_the_fingerprint_names_the_weights(architecture: str, untrained: Untrained) -> None:
    one, same, other = (untrained(architecture, seed) for seed in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.fingerprint.startswith(f"neural-{architecture}-v{NETWORKS[architecture].version}-")


def test_tables_of_another_workload_are_warned_of_once(untrained: Untrained, random_tables: Any) -> None:
    plain = untrained("pooled")
    tables, topology = random_tables(np.random.default_rng(0), 4), hardware_profile("a100-dgx").topology(2)
    other = asdict(replace(tables.workload, batch_size=tables.workload.batch_size + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for card in ({}, {"data": {"workload": asdict(tables.workload)}}, {"data": "x"}):
            type(plain)(plain.weights, card).loads(tables, topology)
    strange = type(plain)(plain.weights, {"data": {"workload": other}})
    with pytest.warns(UserWarning, match=r"was fitted to \{'batch_size': .* are guesses"):
        strange.loads(tables, topology)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strange.loads(tables, topology)
