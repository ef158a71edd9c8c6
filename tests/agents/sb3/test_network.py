"""The networks over sets of devices: order, padding and the unit of time make no difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shard_gym.agents.sb3.network import ILLEGAL, INPUTS, DeviceScorer, SetCritic, device_set, observation_of

Observations = dict[str, torch.Tensor]
PER_DEVICE = {
    **{"device_costs": 4, "device_shares": 5, "device_width": 1},
    **{"device_memory": 2, "device_mask": 1, "action_mask": 1},
}


def scorer(observed: Observations) -> DeviceScorer:
    """One whose scores differ; the last layer begins close to zero."""
    made = DeviceScorer(24, observation_of(observed))
    torch.nn.init.normal_(made.score.weight)
    if INPUTS[made.observation].splits:
        torch.nn.init.normal_(made.split_score.weight)
    return made


def by_device(observed: Observations, change: Any) -> Observations:
    """The observations with every (N, D, k) array changed; the mask of the splits stays."""
    count, devices = observed["device_mask"].shape
    sizes = {key: size for key, size in PER_DEVICE.items() if key in observed}
    arrays = {key: observed[key][:, : devices * size].reshape(count, devices, size) for key, size in sizes.items()}
    changed = {key: change(array).reshape(count, -1) for key, array in arrays.items()}
    changed["action_mask"] = torch.cat([changed["action_mask"], observed["action_mask"][:, devices:]], dim=1)
    return {**observed, **changed}


def test_permuting_the_devices_permutes_the_scores_and_leaves_the_value(observed: Observations) -> None:
    score, critic = scorer(observed), SetCritic(24, observation_of(observed))
    order = torch.from_numpy(np.random.default_rng(0).permutation(5))
    permuted = device_set(by_device(observed, lambda array: array[:, order]))
    one, other = score(device_set(observed)), score(permuted)
    assert torch.allclose(one[:, order], other[:, :5], atol=1e-5)
    assert torch.allclose(one[:, 5:], other[:, 5:], atol=1e-5)
    assert one[one > ILLEGAL].std() > 0.1
    assert torch.allclose(critic(device_set(observed)), critic(permuted), atol=1e-5)


def test_padding_the_devices_changes_nothing(observed: Observations) -> None:
    score, critic = scorer(observed), SetCritic(24, observation_of(observed))
    padded = by_device(observed, lambda array: torch.nn.functional.pad(array, (0, 0, 0, 7)))
    wide = score(device_set(padded))
    narrow = score(device_set(observed))
    assert torch.allclose(narrow[:, :5], wide[:, :5], atol=1e-5)
    assert (wide[:, 5:12] == ILLEGAL).all()
    assert torch.allclose(narrow[:, 5:], wide[:, 12:], atol=1e-5)
    assert torch.allclose(critic(device_set(observed)), critic(device_set(padded)), atol=1e-5)


def test_hardware_that_takes_a_hundred_times_as_long_gets_the_same_scores(observed: Observations) -> None:
    slow = {key: array * 100 if key.endswith("_costs") else array for key, array in observed.items()}
    score = scorer(observed)
    assert torch.allclose(score(device_set(observed)), score(device_set(slow)), atol=1e-4)


def test_illegal_devices_have_probability_zero_and_nothing_is_nan(observed: Observations) -> None:
    score = scorer(observed)
    illegal = observed["action_mask"] == 0
    logits = score(device_set(observed))
    policy = torch.distributions.Categorical(logits=logits)
    assert (policy.probs[illegal] == 0).all()
    assert (policy.probs[~illegal] > 0).all()
    policy.entropy().mean().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in score.parameters())


def test_an_empty_system_has_features_too(observed: Observations) -> None:
    """After the last table of an episode without costs there is neither a table nor a cost."""
    nothing = {
        key: array * 0 if key.endswith(("_costs", "_table", "_shares", "_width")) else array
        for key, array in observed.items()
    }
    assert torch.isfinite(scorer(observed)(device_set(nothing))).all()
