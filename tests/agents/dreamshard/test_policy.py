"""Policies: weights that know no sizes, devices that can be renamed, NumPy and torch of one mind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shard_gym.agents.dreamshard.policy import LATENT, POLICIES, Policy, PolicyInput

EVERY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def situation(rng: np.random.Generator, devices: int, real: int) -> PolicyInput:
    mask = (np.arange(devices) < real).astype(np.float32)
    return PolicyInput(
        held=rng.random((2, devices, LATENT), np.float32) * mask[:, None],
        costs_ms=rng.random((2, devices, 4), np.float32) * mask[:, None],
        used=rng.random((2, devices), np.float32) * mask,
        table=rng.random((2, LATENT), np.float32),
        table_costs_ms=rng.random((2, 4), np.float32),
        device_mask=np.broadcast_to(mask, (2, devices)).copy(),
    )


def changed(now: PolicyInput, devices: np.ndarray) -> PolicyInput:
    """The situation with the devices in another order."""
    return PolicyInput(
        now.held[:, devices],
        now.costs_ms[:, devices],
        now.used[:, devices],
        now.table,
        now.table_costs_ms,
        now.device_mask[:, devices],
    )


@EVERY
def test_devices_in_another_order_have_their_scores_in_that_order(policy: type[Policy]) -> None:
    rng = np.random.default_rng(0)
    weights, now, order = policy.new_weights(rng), situation(rng, 6, 6), rng.permutation(6)
    expected = policy.scores(weights, now)[:, order]
    np.testing.assert_allclose(policy.scores(weights, changed(now, order)), expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected, axis=1).min() > 1e-3  # the scores differ, so the order matters


@EVERY
def test_padding_devices_does_not_change_the_scores_of_the_others(policy: type[Policy]) -> None:
    rng = np.random.default_rng(1)
    weights, padded = policy.new_weights(rng), situation(rng, 7, 4)
    alone = changed(padded, np.arange(4))
    np.testing.assert_allclose(
        policy.scores(weights, padded)[:, :4], policy.scores(weights, alone), rtol=1e-4, atol=1e-4
    )


@EVERY
def test_numpy_and_torch_give_the_same_scores_and_the_latter_gradients(policy: type[Policy]) -> None:
    rng = np.random.default_rng(2)
    weights, now = policy.new_weights(rng), situation(rng, 5, 5)
    features = rng.normal(size=(3, 21)).astype(np.float32)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    as_tensors = PolicyInput(**{name: torch.tensor(array) for name, array in vars(now).items()})
    scores = policy.scores(tensors, as_tensors)
    latents = policy.latents(tensors, torch.tensor(features))
    np.testing.assert_allclose(scores.detach(), policy.scores(weights, now), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(latents.detach(), policy.latents(weights, features), rtol=1e-4, atol=1e-5)
    (scores.square().sum() + latents.sum()).backward()
    for layer in ("table.0", "score" if "score.weight" in weights else "score.0"):
        gradient = tensors[f"{layer}.weight"].grad
        assert gradient is not None
        assert gradient.abs().max() > 0


def test_the_context_policy_begins_as_a_heuristic() -> None:
    policy = POLICIES["context"]
    now = situation(np.random.default_rng(3), 4, 4)
    least = now.costs_ms.sum(axis=-1).argmin(axis=1)
    chosen = [policy.scores(policy.new_weights(np.random.default_rng(s)), now).argmax(axis=1) for s in range(5)]
    assert (np.array(chosen) == least).mean() > 0.8


def test_the_context_policy_reads_the_same_at_another_speed_of_the_hardware() -> None:
    policy, rng = POLICIES["context"], np.random.default_rng(4)
    weights, now = policy.new_weights(rng), situation(rng, 4, 4)
    slower = PolicyInput(now.held, now.costs_ms * 50, now.used, now.table, now.table_costs_ms * 50, now.device_mask)
    np.testing.assert_allclose(policy.scores(weights, slower), policy.scores(weights, now), rtol=1e-3, atol=1e-3)


def test_the_blind_policy_does_not_see_times() -> None:
    policy, rng = POLICIES["paper-without-costs"], np.random.default_rng(5)
    weights, now = policy.new_weights(rng), situation(rng, 4, 4)
    other = PolicyInput(now.held, now.costs_ms * 3 + 1, now.used, now.table, now.table_costs_ms, now.device_mask)
    np.testing.assert_array_equal(policy.scores(weights, now), policy.scores(weights, other))
    assert (POLICIES["paper"].scores(weights, now) != POLICIES["paper"].scores(weights, other)).all()
