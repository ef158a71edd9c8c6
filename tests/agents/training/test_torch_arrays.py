"""Adam as arrays: those of others are rejected. That training resumes, and modules as arrays, are in test_learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shard_gym.agents.training.torch_arrays import (
    load_optimizer_arrays,
    network_size,
    optimizer_arrays,
)
from shard_gym.errors import InvalidCheckpointError


def adam(rate: float = 0.1) -> tuple[Any, list[Any]]:
    parameters = [
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.nn.Parameter(torch.ones(4)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    return torch.optim.Adam([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=rate), parameters


def steps(optimizer: Any, parameters: list[Any], count: int, first: int = 0) -> None:
    """Steps with gradients of their own; the last parameter never gets one."""
    for number in range(first, first + count):
        for parameter in parameters[:2]:
            parameter.grad = torch.from_numpy(np.random.default_rng(number).normal(size=parameter.shape)).float()
        optimizer.step()


def test_the_arrays_are_copies_both_ways_and_leave_the_learning_rate() -> None:
    optimizer, parameters = adam()
    steps(optimizer, parameters, 1)
    faster, _ = adam(0.5)
    load_optimizer_arrays(faster, optimizer_arrays(optimizer))
    assert [group["lr"] for group in faster.param_groups] == [0.5, 0.5]
    arrays = optimizer_arrays(optimizer)
    before = {name: array.copy() for name, array in arrays.items()}
    load_optimizer_arrays(optimizer, arrays)
    steps(optimizer, parameters, 1, first=1)
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
    assert not np.array_equal(optimizer_arrays(optimizer)["optimizer.0.exp_avg"], before["optimizer.0.exp_avg"])


def test_one_that_made_no_step_has_no_arrays_and_takes_none() -> None:
    optimizer, parameters = adam()
    assert optimizer_arrays(optimizer) == {}
    steps(optimizer, parameters, 2)
    load_optimizer_arrays(optimizer, {"network.weight": np.ones(3)})
    assert optimizer_arrays(optimizer) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer.0.step": None}, "lacks the array '0.step'"),
        ({"optimizer.0.exp_avg": np.zeros(6, np.float32)}, r"'0.exp_avg' in The optimizer's state has shape \(6,\)"),
        ({"optimizer.3.step": np.zeros(())}, "'3.step' that does not belong there"),
        ({"optimizer.0.velocity": np.zeros(())}, "'0.velocity' that does not belong there"),
    ],
)
def test_arrays_of_another_optimizer_are_refused(changes: dict[str, Any], says: str) -> None:
    optimizer, parameters = adam()
    steps(optimizer, parameters, 1)
    arrays = {name: each for name, each in {**optimizer_arrays(optimizer), **changes}.items() if each is not None}
    with pytest.raises(InvalidCheckpointError, match=says):
        load_optimizer_arrays(optimizer, arrays)


@pytest.mark.parametrize("width", [None, 8.0, True, 10**9])
def test_a_size_that_makes_no_sense_is_refused(width: Any) -> None:
    assert network_size({"width": 8}, "width", 8) == 8
    with pytest.raises(InvalidCheckpointError, match="width of the network must be an integer from 1 to 8"):
        network_size({"width": width}, "width", 8)
