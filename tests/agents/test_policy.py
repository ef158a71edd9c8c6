"""Agents that play the environment with a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym import evaluate, load_suite
from shard_gym.agents import PolicyAgent
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.errors import InvalidOptionError, NoPlacementFoundError
from shard_gym.placement import check_placement
from shard_gym.tables import Tables
from shard_gym.topology import Topology


def first_legal(observation: dict[str, Any], mask: np.ndarray) -> int:
    assert np.array_equal(observation["action_mask"].astype(bool), mask)
    return int(mask.argmax())


def test_a_policy_places_in_the_order_of_the_environment() -> None:
    suite = load_suite("dlrm-20x4")
    agent = PolicyAgent("first", first_legal, max_tables=30, max_devices=6)
    placement = agent.place(suite[0])
    check_placement(placement, suite[0].tables, suite[0].topology)
    assert (placement == 0).sum() > (placement == 3).sum()  # the first device is filled first
    fingerprint = AnalyticalCostModel().fingerprint
    assert agent.true_cost_queries(fingerprint) >= 20  # every look at the estimate counts
    assert agent.true_cost_queries("another-model") == 0


class Refusing(AnalyticalCostModel):
    """A true cost that nobody may ask for."""

    def table_loads(self, tables: Tables, topology: Topology) -> Any:
        raise AssertionError("the true cost was asked for")

    device_phases = fill_communication = iteration_cost = estimate = cost_bounds = penalty_ms = table_loads


def test_a_policy_that_sees_features_never_asks_for_the_true_cost() -> None:
    suite = load_suite("dlrm-20x4")
    agent = PolicyAgent("first", first_legal, max_tables=20, max_devices=4, observation="features")
    assert [each.true_cost_queries for each in evaluate(agent, suite).tasks] == [0] * len(suite)
    blind, sighted = (
        PolicyAgent("first", first_legal, max_tables=20, max_devices=4, observation=observation, cost_model=Refusing())
        for observation in ("features", "compact")
    )
    assert np.array_equal(blind.place(suite[0]), agent.place(suite[0]))
    with pytest.raises(AssertionError, match="asked for"):
        sighted.place(suite[0])


def test_an_illegal_choice_and_a_task_that_is_too_large_are_failures_with_their_reason() -> None:
    agent = PolicyAgent("padding", lambda observation, mask: 5, max_tables=20, max_devices=6)
    with pytest.raises(NoPlacementFoundError, match="does not exist or has too little memory"):
        agent.place(load_suite("dlrm-20x4")[0])
    with pytest.raises(NoPlacementFoundError, match="at most 20 tables and 6 devices"):
        agent.place(load_suite("dlrm-50x4")[0])


@pytest.mark.parametrize("arguments", [{"policy": 5}, {"policy": dict}, {"max_tables": 0}, {"max_devices": "4"}])
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any]) -> None:
    right: dict[str, Any] = {"policy": lambda observation, mask: 0, "max_tables": 20, "max_devices": 4}
    with pytest.raises(InvalidOptionError, match=f"{next(iter(arguments))} must be"):
        PolicyAgent("mine", **(right | arguments))
