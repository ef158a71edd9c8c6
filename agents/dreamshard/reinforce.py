"""Policy gradients from recorded episodes; needs torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shard_gym.agents.dreamshard.policy import Policy, PolicyInput
from shard_gym.agents.dreamshard.rollout import Rollout, Steps
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.neural.network import Weights

FAILURE = 1.1
"""A failed episode counts as so many times the dearest complete one of its batch. Its penalty, above all placements'
costs, would leave no room for differences between those that succeed."""


def advantages(rollout: Rollout, groups: int) -> FloatArray:
    """(N,) float64: how much cheaper an episode was than the others of its task, in their standard deviations.

    The N episodes are `groups` tasks, one after the other, with equally many samples each: the baseline of POMO (Kwon
    et al., NeurIPS 2020). With one group it is the batch-normalised return of DreamShard (dreamshard/training.py).
    """
    cost, complete = rollout.cost_ms.reshape(groups, -1), rollout.complete.reshape(groups, -1)
    dearest = np.where(complete, cost, 0.0).max(axis=1, keepdims=True)
    returns = -np.where(complete, cost, FAILURE * dearest)
    spread = returns.std(axis=1, ddof=1, keepdims=True)
    normalised: FloatArray = ((returns - returns.mean(axis=1, keepdims=True)) / (spread + 1e-8)).ravel()
    return normalised


def policy_loss(
    policy: type[Policy], weights: Weights, steps: Steps, advantage: FloatArray, entropy_weight: float
) -> Tensor:
    """REINFORCE (Williams, 1992) with an entropy bonus, mean over all choices (dreamshard/training.py).

    Args:
        policy: the kind of policy.
        weights: its weights, tensors.
        steps: what N episodes did.
        advantage: (N,).
        entropy_weight: of the bonus.
    """
    log_shares = choices(policy, weights, steps)
    taken, actions = torch.tensor(steps.taken), torch.tensor(steps.actions)
    said = log_shares.gather(-1, actions[..., None])[..., 0]
    gain = said * torch.tensor(advantage, dtype=torch.float32)[:, None]
    entropy = -(log_shares.exp() * log_shares.clip(min=-1e4)).sum(-1)
    return -(gain + entropy_weight * entropy)[taken].mean()


def choices(policy: type[Policy], weights: Weights, steps: Steps) -> Tensor:
    """(N, T, D) log of the policy's share for each device at each step; -inf where it is illegal."""
    table = policy.latents(weights, torch.tensor(steps.features))
    placed = torch.nn.functional.one_hot(torch.tensor(steps.actions), steps.legal.shape[-1]).float()
    placed = (placed * torch.tensor(steps.taken)[..., None])[..., None] * table[..., None, :]
    now = PolicyInput(
        held=placed.cumsum(dim=1) - placed,
        costs_ms=torch.tensor(steps.costs_ms),
        used=torch.tensor(steps.used),
        table=table,
        table_costs_ms=torch.tensor(steps.table_costs_ms),
        device_mask=torch.tensor(steps.device_mask)[:, None, :],
    )
    scores = policy.scores(weights, now)
    legal = torch.tensor(steps.legal)
    # A step without a legal device is not taken; every share of it is 0, not NaN.
    scores = scores.masked_fill(~legal, -torch.inf).masked_fill(~legal.any(-1, keepdim=True), 0.0)
    return torch.log_softmax(scores, dim=-1)
