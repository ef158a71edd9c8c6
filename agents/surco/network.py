"""SurCo's network: linear costs of all tables of a task on all devices, for `prior` and `hybrid`. Needs torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shard_gym.agents.attention.features import NUM_FEATURES, described
from shard_gym.agents.training.modules import TableEncoder
from shard_gym.tasks import Task

HEADS, LAYERS = 4, 2


class LinearCostNetwork(TableEncoder):
    """Encodes the tables with self-attention; the linear cost of a table on a device is a product of their vectors.

    A solver of linear costs cannot tell equal devices apart, so each device has a vector of its own by its number, and
    the network has as many as the largest training task. What the authors used for this problem is not published.

    Args:
        max_devices: D.
        hidden: of the encoder, a multiple of `HEADS`.
    """

    def __init__(self, max_devices: int, hidden: int) -> None:
        super().__init__(NUM_FEATURES, hidden, LAYERS, HEADS)
        self.max_devices, self.hidden = max_devices, hidden
        self.device = nn.Embedding(max_devices, hidden)

    def forward(self, task: Task) -> Tensor:
        """(T, D) linear costs of `task`, which has at most `max_devices`."""
        tables = self.encoded(torch.from_numpy(described(task))[None])[0]
        costs: Tensor = tables @ self.device.weight[: task.num_devices].T / self.hidden**0.5
        return costs
