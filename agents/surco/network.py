"""SurCo's network: linear costs of all tables of a task on all devices, for `prior` and `hybrid`. Needs torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.agents.attention.features import NUM_FEATURES, described
from shard_gym.tasks import Task

HEADS = 4


class LinearCostNetwork(nn.Module):
    """Encodes the tables with self-attention; the linear cost of a table on a device is a product of their vectors.

    A solver of linear costs cannot tell equal devices apart, so each device has a vector of its own by its number, and
    the network has as many as the largest training task. What the authors used for this problem is not published.

    Args:
        max_devices: D.
        hidden: of the encoder, a multiple of `HEADS`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, max_devices: int, hidden: int) -> None:
        super().__init__()
        self.max_devices, self.hidden = max_devices, hidden
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale", torch.ones(NUM_FEATURES))
        self.embed = nn.Linear(NUM_FEATURES, hidden)
        layer = nn.TransformerEncoderLayer(hidden, HEADS, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.device = nn.Embedding(max_devices, hidden)

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def forward(self, task: Task) -> Tensor:
        """(T, D) linear costs of `task`, which has at most `max_devices`."""
        inputs = (torch.from_numpy(described(task)) - self.mean) / self.scale
        tables = self.encoder(self.embed(inputs)[None])[0]
        costs: Tensor = tables @ self.device.weight[: task.num_devices].T / self.hidden**0.5
        return costs


def new_network(max_devices: int, hidden: int, rng: np.random.Generator) -> LinearCostNetwork:
    """An untrained network; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return LinearCostNetwork(max_devices, hidden)
