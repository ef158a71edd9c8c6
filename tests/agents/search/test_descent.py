"""A descent leaves a local optimum by a few random moves."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from shard_gym.agents.search.descent import Budget, Descent
from shard_gym.agents.search.splits import SplitOptions, SplitTables
from shard_gym.cost_models import CountedCostModel, make_cost_model


def descent_of(task: Any, seed: int) -> Descent:
    model = CountedCostModel(make_cost_model("analytical"))
    start = SplitTables.whole(SplitOptions(task, model), np.zeros(task.num_tables, np.int64))
    return Descent(start, np.random.default_rng(seed), Budget(model, 1000))


def test_a_perturbation_makes_two_to_four_moves_and_the_plan_follows(random_task: Any) -> None:
    made = set()
    for seed in range(12):
        descent = descent_of(random_task(np.random.default_rng(seed), 8, 3), seed)
        with mock.patch.object(descent.current, "set_placement", wraps=descent.current.set_placement) as moved:
            assert descent.perturb()
        made.add(moved.call_count)
        assert np.array_equal(descent.split.device, descent.current.placement)
    assert made == {2, 3, 4}


def test_nothing_is_perturbed_where_no_move_is(random_task: Any) -> None:
    assert not descent_of(random_task(np.random.default_rng(0), 4, 1), 0).perturb()
