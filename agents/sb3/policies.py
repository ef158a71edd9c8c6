"""Policies for Stable-Baselines3 that see the devices as a set; needs `sb3`.

Their observation is "compact" or "features". `net_arch=[width]` is the width of all hidden layers; no weight depends on
the padding.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn

from shard_gym.agents.sb3.network import DeviceScorer, DeviceSet, SetCritic, device_set, observation_of


class DeviceFeatures(BaseFeaturesExtractor):
    """`device_set` as a features extractor; it has no weights."""

    def __init__(self, observation_space: spaces.Dict) -> None:
        super().__init__(observation_space, features_dim=1)  # SB3 builds layers of that size, which are replaced

    def forward(self, observation: dict[str, torch.Tensor]) -> DeviceSet:
        """The observations as sets of devices."""
        return device_set(observation)


class ActorAndCritic(nn.Module):
    """A scorer and a critic without shared weights, of a policy's width and for its observations."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        width, observation = policy.net_arch[0], observation_of(policy.observation_space.keys())
        self.scorer = DeviceScorer(width, observation)
        self.critic = SetCritic(width, observation)

    def forward(self, devices: DeviceSet) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, D) logits and (N, 1) values."""
        return self.scorer(devices), self.critic(devices)

    def forward_actor(self, devices: DeviceSet) -> torch.Tensor:
        """(N, D) logits."""
        logits: torch.Tensor = self.scorer(devices)
        return logits

    def forward_critic(self, devices: DeviceSet) -> torch.Tensor:
        """(N, 1) values."""
        values: torch.Tensor = self.critic(devices)
        return values


def _build(policy: Any, lr_schedule: Schedule) -> None:
    policy.mlp_extractor = ActorAndCritic(policy)
    policy.action_net = nn.Identity()  # the extractor returns logits and values
    policy.value_net = nn.Identity()
    policy.optimizer = policy.optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)


class SetPolicy(ActorCriticPolicy):
    """For PPO and A2C. The mask in the observation masks the logits, so illegal devices have probability 0."""

    _build = _build


class MaskableSetPolicy(MaskableActorCriticPolicy):
    """For MaskablePPO."""

    _build = _build


class _Dueling(ActorAndCritic):
    """Dueling Q-values: (N, D), the value of the state plus the score of each device; very low for illegal devices."""

    def forward(self, devices: DeviceSet) -> torch.Tensor:  # type: ignore[override]
        values: torch.Tensor = self.scorer(devices) + self.critic(devices)
        return values


class SetDQNPolicy(DQNPolicy):
    """For DQN. One Q-value for each device; neither an action nor a target is ever that of an illegal device."""

    def make_q_net(self) -> QNetwork:
        """A new network with an extractor of its own."""
        network = super().make_q_net()
        network.q_net = _Dueling(self)  # type: ignore[assignment]
        return network
