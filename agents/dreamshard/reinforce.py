"""REINFORCE: the training of DreamShard's policy on rollouts under the surrogate. Needs torch."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from shard_gym.agents.dreamshard.agent import POLICY
from shard_gym.agents.dreamshard.options import PaperOptions
from shard_gym.agents.dreamshard.policy import device_scores, new_policy
from shard_gym.agents.dreamshard.rollout import Rollout, Trajectories, play
from shard_gym.agents.training.modules import chosen_and_entropy
from shard_gym.agents.training.torch_arrays import load_optimizer_arrays, optimizer_arrays
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.neural.features import plain_features, table_latents
from shard_gym.cost_models.neural.network import Weights
from shard_gym.cost_models.neural.training import as_arrays, assign_arrays, new_optimizer, trainable
from shard_gym.envs.core.prepared_tasks import PreparedTasks
from shard_gym.io.arrays import Arrays, under
from shard_gym.tasks import TaskSuite

POLICY_OPTIMIZER = "policy_optimizer."  # prefix of the averages of the policy's optimizer in a state

FAILURE = 1.1
"""A failed episode counts as this many times the most expensive complete one. Its penalty exceeds the cost of every
placement by so much that the differences between complete episodes would vanish beside it."""


class PolicyTraining:
    """The policy and its optimizer. `weights` are tensors by name, changed in place."""

    def __init__(self, suite: TaskSuite, rng: np.random.Generator, options: PaperOptions) -> None:
        self._suite = suite
        self._options = options
        features = np.concatenate([task.tables.features() for task in suite])
        self.weights = trainable(new_policy(rng, features))
        self.optimizer = new_optimizer(self.weights)

    def move_to(self, device: str) -> None:
        """Train on `device`; before the first step."""
        self.weights = trainable(self.arrays(), device)
        self.optimizer = new_optimizer(self.weights)

    def arrays(self) -> Arrays:
        """Copies of the weights."""
        return as_arrays(self.weights)

    def optimizer_arrays(self) -> Arrays:
        """Copies of the averages of the optimizer."""
        return optimizer_arrays(self.optimizer, POLICY_OPTIMIZER)

    def load_state(self, arrays: Arrays) -> None:
        """Set the weights, which are under `POLICY` in `arrays`, and the averages."""
        assign_arrays(self.weights, under(POLICY, arrays))
        load_optimizer_arrays(self.optimizer, arrays, POLICY_OPTIMIZER)

    def update(self, surrogate: AdditiveCostModel, rng: np.random.Generator, learning_rate: float) -> dict[str, float]:
        """Make the steps of one iteration; the mean estimated cost of the last episodes, if there was a step."""
        options, suite = self._options, self._suite
        prepared = PreparedTasks(suite, surrogate, suite.max_tables, suite.max_devices, options.episodes)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        numbers = {}
        for _ in range(options.policy_updates):
            prepared.begin(np.arange(options.episodes), [suite.sample(rng)] * options.episodes)
            weights = as_arrays(self.weights)
            rollout = play(prepared.problem, surrogate, weights, rng, cost_features=options.cost_features)
            loss = policy_loss(self.weights, rollout.trajectories, advantages(rollout), options.entropy)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            numbers["surrogate_cost_ms"] = float(rollout.cost_ms.mean())
        return numbers


def advantages(rollout: Rollout) -> FloatArray:
    """(N,) float64, the batch-normalised return of each episode (daochenzha/dreamshard, dreamshard/training.py)."""
    highest = np.where(rollout.complete, rollout.cost_ms, 0.0).max()
    returns = -np.where(rollout.complete, rollout.cost_ms, FAILURE * highest)
    normalised: FloatArray = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-8)
    return normalised


def policy_loss(weights: Weights, steps: Trajectories, advantage: FloatArray, entropy_weight: float) -> Tensor:
    """REINFORCE (Williams, 1992) with an entropy bonus, mean over all steps of N episodes (dreamshard/training.py)."""
    log_probabilities = action_log_probabilities(weights, steps)
    device = log_probabilities.device
    taken, actions = torch.tensor(steps.taken, device=device), torch.tensor(steps.actions, device=device)
    chosen, entropy = chosen_and_entropy(log_probabilities, actions, least=-1e4)
    gain = chosen * torch.tensor(advantage, dtype=torch.float32, device=device)[:, None]
    return -(gain + entropy_weight * entropy)[taken].mean()


def action_log_probabilities(weights: Weights, steps: Trajectories) -> Tensor:
    """(N, T, D) log of the probability of each device at each step; -inf where it is illegal."""
    tensor = partial(torch.tensor, device=next(iter(weights.values())).device)
    latents = table_latents(weights, plain_features(tensor(steps.features)))
    placed = torch.nn.functional.one_hot(tensor(steps.actions), steps.legal.shape[-1]).float()
    placed = (placed * tensor(steps.taken)[..., None])[..., None] * latents[..., None, :]
    scores = device_scores(weights, placed.cumsum(dim=1) - placed, tensor(steps.costs_ms))
    legal = tensor(steps.legal)
    # Scores of 0 where no device is legal: the softmax of such a step must not be NaN, though it is never used.
    scores = scores.masked_fill(~legal, -torch.inf).masked_fill(~legal.any(-1, keepdim=True), 0.0)
    return torch.log_softmax(scores, dim=-1)
