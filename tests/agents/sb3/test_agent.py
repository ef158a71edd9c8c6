"""Trained policies as agents: tasks of every size, dead ends tried again, damaged files refused, no SB3 needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents import load_agent
from shard_gym.agents.sb3.agent import SetPlanAgent, SetPolicyAgent, load_policy
from shard_gym.agents.sb3.network import ILLEGAL, INPUTS, DeviceScorer, DeviceSet
from shard_gym.agents.training.torch_arrays import module_arrays
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, NoPlacementFoundError
from shard_gym.common.io.arrays import save_arrays
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.plans import check_plan
from shard_gym.plans.placement import check_placement
from shard_gym.tasks import Task

ABOUT = {"agent": "ppo", "width": 8}


class FirstLegal(DeviceScorer):
    """Fills one device after the other."""

    def __init__(self, observation: str = "compact") -> None:
        super().__init__(1, observation)

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        falling = -torch.arange(devices.legal.shape[1], dtype=torch.float32)
        return torch.where(devices.legal, falling, ILLEGAL)


def test_a_dead_end_is_tried_again_with_some_devices_drawn(packing_task: Callable[..., Task]) -> None:
    """Filled in order, the first device holds 4 + 4 MiB, the second 6, and the second table of 6 finds no room."""
    task = packing_task((4, 4, 6, 6), (10, 10))
    with pytest.raises(NoPlacementFoundError, match="fit"):
        SetPolicyAgent("first", FirstLegal(), retries=0).place(task)
    placements = [SetPolicyAgent("first", FirstLegal(), retries=300, seed=1).place(task) for _ in range(2)]
    check_placement(placements[0], task.tables, task.topology)
    assert np.array_equal(*placements)
    with pytest.raises(NoPlacementFoundError, match="fit"):  # nothing does
        SetPolicyAgent("first", FirstLegal(), retries=3).place(packing_task((6, 6, 6), (10, 10)))


def test_a_network_for_another_observation_is_rejected() -> None:
    arrays = module_arrays(DeviceScorer(8))
    for observation, message in (("full", "'full'; known are compact, features, splits"), ("features", "shape")):
        with pytest.raises(InvalidCheckpointError, match=message):
            load_policy(arrays, {**ABOUT, "observation": observation}, AnalyticalCostModel(), 0)


def test_options_for_placing_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "agent.safetensors"
    save_arrays(path, "agent", module_arrays(DeviceScorer(8)), ABOUT)
    assert load_agent(path, retries=2).name == "ppo"
    with pytest.raises(InvalidOptionError, match="retries"):
        load_agent(path, retries=-1)


def test_placing_needs_no_sb3_and_training_says_that_it_does(forks: Any, tmp_path: Path) -> None:
    """In a fork of a process that has imported torch, and not SB3."""
    path = tmp_path / "agent.safetensors"
    save_arrays(path, "agent", module_arrays(DeviceScorer(8)), ABOUT)
    script = f"""
import sys
assert "stable_baselines3" not in sys.modules
sys.modules.update(dict.fromkeys(("stable_baselines3", "sb3_contrib")))
from shard_gym import load_suite
from shard_gym.agents.training import load_agent, make_learner
from shard_gym.common.errors import MissingExtraError
task = load_suite("dlrm-20x4")[0]
assert load_agent({str(path)!r}).place(task).shape == (20,)
try:
    make_learner("ppo", "dlrm-20x4")
except MissingExtraError as error:
    assert "shard-gym[sb3]" in str(error), error
else:
    raise SystemExit("trained without SB3")
"""
    process = forks.CONTEXT.Process(target=exec, args=(script, {}))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0


@pytest.mark.parametrize("observation", INPUTS)
def test_only_a_policy_that_sees_costs_asks_for_them(observation: str, packing_task: Callable[..., Task]) -> None:
    kind = SetPlanAgent if observation == "splits" else SetPolicyAgent
    agent = kind("policy", DeviceScorer(8, observation))
    agent.place(packing_task((4, 4, 4), (10, 10)))
    assert (
        (agent.true_cost_queries(agent.cost_model.fingerprint) > 0) == agent.asks_costs == (observation != "features")
    )


class OfSplits(FirstLegal):
    """Takes the first legal action from the back: a split where there is one."""

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        order = torch.arange(devices.legal.shape[1], dtype=torch.float32)
        return torch.where(devices.legal, order, ILLEGAL)


def test_a_policy_of_splits_returns_checked_plans_and_whole_tables_if_asked_for_a_placement(random_task: Any) -> None:
    for seed in range(4):
        task = random_task(np.random.default_rng(seed), 6, 3, dims=(8, 64), devices_per_host=2)
        splitting, first = (SetPlanAgent("x", kind("splits")) for kind in (OfSplits, FirstLegal))
        plan = check_plan(splitting.plan(task), task.tables, task.topology)
        assert {sharding.sharding_type for sharding in plan.tables} == {"data_parallel"}  # the last action
        placement = first.place(task)
        assert placement.tolist() == [sharding.shards[0].device for sharding in first.plan(task).tables]
        check_placement(splitting.place(task), task.tables, task.topology)
