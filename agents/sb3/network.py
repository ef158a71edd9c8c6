"""Networks over a set of devices: all devices share their weights, so they serve tasks of any size.

Needs torch; import it where it is used.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from shard_gym.agents.sb3.features import DEVICE_FEATURES, SHARED_FEATURES, DeviceSet

ILLEGAL = -1e8
"""Score of an illegal device: its probability is exactly 0 in float32, and nothing becomes infinite or NaN."""


class DeviceEncoder(nn.Module):
    """Embeds every device from its own features and those all share; then the mean and the maximum over the devices.

    Args:
        width: of the embeddings.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = _linear(DEVICE_FEATURES, width)
        self.shared = _linear(SHARED_FEATURES, width)
        self.second = _linear(width, width)

    def forward(self, devices: DeviceSet) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, D, width) embeddings, and (N, 2 * width) of the real devices together."""
        hidden = torch.relu(self.own(devices.rows) + self.shared(devices.shared).unsqueeze(1))
        hidden = torch.relu(self.second(hidden)) * devices.real.unsqueeze(-1)
        mean = hidden.sum(1) / devices.real.sum(1, keepdim=True)
        return hidden, torch.cat([mean, hidden.amax(1)], dim=-1)  # none is negative, so padding changes no maximum


class DeviceScorer(nn.Module):
    """One score for each device, `ILLEGAL` where the current table does not fit.

    Args:
        width: of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = DeviceEncoder(width)
        self.own = _linear(width, width)
        self.context = _linear(2 * width, width)
        self.score = _linear(width, 1, gain=0.01)

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        """(N, D) scores."""
        hidden, pooled = self.encoder(devices)
        hidden = torch.relu(self.own(hidden) + self.context(pooled).unsqueeze(1))
        scores: torch.Tensor = self.score(hidden).squeeze(-1)
        return scores.masked_fill(~devices.legal, ILLEGAL)


class SetCritic(nn.Module):
    """One value for each observation, from all devices together.

    Args:
        width: of the hidden layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = DeviceEncoder(width)
        self.context = _linear(2 * width, width)
        self.value = _linear(width, 1, gain=1.0)

    def forward(self, devices: DeviceSet) -> torch.Tensor:
        """(N, 1) values."""
        values: torch.Tensor = self.value(torch.relu(self.context(self.encoder(devices)[1])))
        return values


def _linear(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
