"""The linear form says what the cost model says, for every placement; models with other formulas have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import AnalyticalCostModel, counted
from shard_gym.cost_models.analytical import FITTED
from shard_gym.cost_models.base.linear import links_of
from shard_gym.hardware import PROFILES

MODELS = [AnalyticalCostModel(FITTED._replace(overlap_loss=loss)) for loss in (FITTED.overlap_loss, 0.0, 0.6, 1.0)]


@given(
    st.sampled_from(MODELS),
    st.sampled_from(sorted(PROFILES)),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([8, 2_048, 65_536]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_it_is_the_cost_model(
    random_task: Any,
    in_host: Any,
    model: AnalyticalCostModel,
    profile: str,
    devices: int,
    per_host: int,
    count: int,
    batch: int,
    host_memory: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    task = random_task(rng, count, devices, profile=profile, devices_per_host=per_host)
    if host_memory:
        task = in_host(task, rng.uniform(0.01, 1.1))
    tables, topology = task.tables.at_batch_size(batch), task.topology
    linear = model.linear_costs(tables, topology)
    assert linear is not None
    for used in (1, devices):
        placement = rng.integers(devices - used, devices, count)
        estimate = model.estimate(placement, tables, topology).total_ms
        assert linear.cost_ms(placement) == pytest.approx(estimate, rel=1e-12)


def test_equal_devices_can_be_exchanged_and_those_of_a_smaller_host_cannot(random_tables: Any) -> None:
    model, rng = MODELS[0], np.random.default_rng(0)
    tables = random_tables(rng, 9, dims=(64,))
    for devices, equal in ((4, True), (8, True), (6, False)):
        topology = PROFILES["a100-dgx"].topology(devices, devices_per_host=4)
        linear = model.linear_costs(tables, topology)
        assert linear is not None
        assert linear.interchangeable is equal
        placement = rng.integers(devices, size=9)
        costs = [linear.cost_ms(rng.permutation(devices)[placement]) for _ in range(20)]
        assert np.allclose(costs, costs[0], rtol=1e-12) is equal


def test_a_wrapped_model_has_the_form_and_one_with_too_large_a_loss_has_none(random_tables: Any) -> None:
    tables, topology = random_tables(np.random.default_rng(0), 3), PROFILES["a100-dgx"].topology(2)
    linear = counted(AnalyticalCostModel()).linear_costs(tables, topology)
    assert linear is not None
    assert linear.cost_ms(np.array([0, 1, 1])) > 0
    assert AnalyticalCostModel(FITTED._replace(overlap_loss=1.01)).linear_costs(tables, topology) is None


@given(st.sampled_from(sorted(PROFILES)), st.integers(2, 20), st.integers(1, 9), st.integers(0, 2**16))
def test_no_split_of_the_outputs_has_a_smaller_largest_message(
    profile: str, num_devices: int, devices_per_host: int, seed: int
) -> None:
    outputs = np.random.default_rng(seed).exponential(size=num_devices) ** 2
    hosts = {"devices_per_host": devices_per_host, "devices_per_domain": devices_per_host}
    topology = PROFILES[profile].topology(num_devices, **hosts)
    for link in links_of(topology.cluster()):
        for split in (outputs, np.full(num_devices, outputs.mean())):
            assert link.least_bytes(outputs.sum()) <= (link.shares @ split).max() * (1 + 1e-12)
        if (link.sent > 0).all() and (len(link.received) or np.ptp(link.sent) == 0):
            assert link.least_bytes(outputs.sum()) == pytest.approx((link.shares @ split).max())
