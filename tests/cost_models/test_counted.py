from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.cost_models import AnalyticalCostModel, CountedCostModel
from shard_gym.envs.core.problem import prepare
from shard_gym.envs.core.state import advance, initial_state
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Tables

MODEL = AnalyticalCostModel()
TOPOLOGY = hardware_profile("a100-dgx").topology(3)


def test_a_counted_model_counts_placements_and_changes_no_number(four_tables: Tables) -> None:
    counted = CountedCostModel(MODEL)
    placement = np.array([0, 1, 2, 0])
    estimate = counted.estimate(placement, four_tables, TOPOLOGY)
    assert counted.queries == 1
    assert np.array_equal(estimate.phases_ms, MODEL.estimate(placement, four_tables, TOPOLOGY).phases_ms)
    loads = counted.table_loads(four_tables, TOPOLOGY)
    assert counted.cost_bounds(loads, TOPOLOGY) == MODEL.cost_bounds(loads, TOPOLOGY)
    assert counted.penalty_ms(four_tables, TOPOLOGY) == MODEL.penalty_ms(four_tables, TOPOLOGY)
    assert counted.queries == 1
    counted.device_costs(np.zeros((5, 2, 3, counted.num_loads)), TOPOLOGY.cluster())
    assert counted.queries == 11
    counted.single_table_costs(loads, TOPOLOGY)
    assert counted.queries == 11 + len(four_tables)
    assert counted.fingerprint == MODEL.fingerprint


class OnArrays(AnalyticalCostModel):
    """The same model without plain numbers."""

    plain_costs = None  # type: ignore[assignment]


def test_a_step_counts_the_same_on_plain_numbers_and_on_arrays(random_task: Any) -> None:
    problem = prepare(random_task(np.random.default_rng(0), 6, 3), MODEL, 6, 4)
    counts = []
    for model in (CountedCostModel(MODEL), CountedCostModel(OnArrays())):
        assert (model.plain_costs is None) == isinstance(model.model, OnArrays)
        state, counted = initial_state(problem, model), []
        for action in (0, 1, 1, 2, 3, 0):  # device 3 does not exist
            advance(problem, state, np.array([action]), model)
            counted.append(model.queries)
        counts.append(counted)
    assert counts[0] == counts[1]
    assert counts[0][:4] == [1, 2, 3, 4]
