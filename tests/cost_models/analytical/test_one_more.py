"""Tests of placing one table after another: the fast way has the bits of the plain one."""

from __future__ import annotations

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalShardingModel, InferenceCostModel
from shard_gym.cost_models.analytical.model import OUTPUT_BYTES_SENT
from shard_gym.cost_models.analytical.one_more_in_domain import OneMoreInDomain
from shard_gym.cost_models.analytical.sharding import GRADIENT_BYTES, HOST_PARTIAL_BYTES, PARTIAL_BYTES
from shard_gym.cost_models.base.one_more import OneMoreOnAll, largest_of_others
from shard_gym.hardware import hardware_profile


@pytest.mark.parametrize("num_devices", [1, 2, 3, 7, 8, 9, 17])
@pytest.mark.parametrize("spread", [(), (PARTIAL_BYTES,), (GRADIENT_BYTES,), (PARTIAL_BYTES, GRADIENT_BYTES)])
def test_placing_in_a_domain_has_the_bits_of_costing_all_devices(num_devices: int, spread: tuple[int, ...]) -> None:
    """Outputs are no whole bytes, as between nodes of a grid, so the order in which they are added up matters."""
    model = AnalyticalShardingModel()
    cluster = hardware_profile("h100-dgx").topology(num_devices, devices_per_host=num_devices).cluster()
    rng = np.random.default_rng([num_devices, *spread])
    held = np.zeros((5, num_devices, model.num_loads))
    for column in spread:
        held[..., column] = rng.uniform(1e3, 1e9, (5, 1))
    fast, plain = model.one_more(cluster, held), OneMoreOnAll(model, cluster, held)
    assert isinstance(fast, OneMoreInDomain)
    for _ in range(20):
        loads = rng.random((5, model.num_loads))
        loads[:, PARTIAL_BYTES : GRADIENT_BYTES + 2] = 0.0
        loads[:, OUTPUT_BYTES_SENT] = rng.choice([0.0, 1.0], 5) * 10 ** rng.uniform(0, 9, 5)
        if rng.random() < 0.3:
            loads[rng.integers(5)] = 0.0  # a table without lookups
        costs = fast.costs(loads)
        assert costs.tolist() == plain.costs(loads).tolist()
        devices = np.where(rng.random(5) < 0.5, costs.argmin(axis=1), rng.integers(num_devices, size=5))
        fast.place(devices)
        plain.place(devices)
    assert not held[..., OUTPUT_BYTES_SENT].any()  # the loads that were given are those of before


def test_what_a_domain_does_not_tell_is_costed_on_all_devices() -> None:
    model, profile = AnalyticalShardingModel(), hardware_profile("h100-dgx")
    one, two = profile.topology(8).cluster(), profile.topology(16).cluster()
    empty = np.zeros((2, 8, model.num_loads))
    uneven = empty.copy()
    uneven[:, 4:, HOST_PARTIAL_BYTES] = 1e6
    assert type(model.one_more(one, empty)) is OneMoreInDomain
    assert type(model.one_more(one, uneven)) is OneMoreOnAll
    assert type(model.one_more(two, np.zeros((2, 16, model.num_loads)))) is OneMoreOnAll
    assert type(InferenceCostModel().one_more(one, empty)) is OneMoreOnAll  # it has other formulas
    for other in (AnalyticalShardingModel("fp16"), AnalyticalShardingModel(index_exchange="exposed")):
        assert type(other.one_more(one, np.zeros((2, 8, other.num_loads)))) is OneMoreOnAll


def test_the_largest_of_others() -> None:
    values = np.array([[1.0, 5.0, 3.0], [4.0, 4.0, 2.0]])
    assert largest_of_others(values).tolist() == [[5.0, 3.0, 5.0], [4.0, 4.0, 4.0]]
    assert largest_of_others(np.array([[7.0]])).tolist() == [[-np.inf]]
