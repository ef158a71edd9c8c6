"""AutoShard's network: latents of tables that its policy, its value and its cost network share."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from shard_gym.agents.training.modules import tensors_beside
from shard_gym.table_features import FEATURE_NAMES
from shard_gym.tables import Tables

LATENT = 32  # size of the latents of a table, of the progress and of a device's own numbers; the state has two of them
NUM_STANDARDIZED = 3  # the dims, rows and pooling factors come first among the features


class Scored(NamedTuple):
    """What the network says of N episodes of at most S steps."""

    logits: Tensor  # (N, S, D), the scores of the devices
    values: Tensor  # (N, S), the expected return


class AutoShardNetwork(nn.Module):
    """The network of daochenzha/autoshard (autoshard/training.py), with its layer sizes.

    Two layers encode a table. An LSTM reads the latents of the tables in the order in which they are placed. A device
    is the sum of its tables' latents and of that of a table of zeros, beside latents of its predicted cost and memory;
    its score reads the state, the device and their product. No weight depends on the number of tables or devices.
    Inputs are `Tables.features` if `standardized`; otherwise raw numbers as in the authors' code, see `inputs`.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, standardized: bool) -> None:
        super().__init__()
        self.standardized = standardized
        self.register_buffer("mean", torch.zeros(NUM_STANDARDIZED))
        self.register_buffer("scale", torch.ones(NUM_STANDARDIZED))
        self.table = _mlp(len(FEATURE_NAMES), 128, LATENT, last=True)
        self.progress = _mlp(1, LATENT, last=True)
        self.numbers = _mlp(2, LATENT, last=True)
        self.core = nn.LSTM(2 * LATENT, 2 * LATENT, num_layers=2, batch_first=True)
        self.score = _mlp(6 * LATENT, 128, 128, 64, 1)
        self.value = _mlp(2 * LATENT, 64, 1)
        self.cost = _mlp(LATENT, 64, 1)

    def normalize(self, tables: Tables) -> None:
        """Normalize dims, rows and pooling factors by those of the training `tables`; raw inputs only."""
        if not self.standardized:
            sizes = _sizes(tables)[:, :NUM_STANDARDIZED]
            spread = sizes.std(axis=0)
            self.mean.copy_(torch.from_numpy(sizes.mean(axis=0)))
            self.scale.copy_(torch.from_numpy(np.where(spread > 0, spread, 1.0)))

    def inputs(self, tables: Tables) -> Tensor:
        """(T, 21) float32 features: those of `Tables`, or raw dims, rows and pooling factors, GiB, and reuse bins."""
        tensor = tensors_beside(self)
        if self.standardized:
            return tensor(tables.features())
        sizes = tensor(_sizes(tables)).float()
        sizes[:, :NUM_STANDARDIZED] = (sizes[:, :NUM_STANDARDIZED] - self.mean) / self.scale
        return torch.cat([sizes, torch.tensor(tables.reuse_histogram, dtype=torch.float32, device=sizes.device)], dim=1)

    def latents(self, inputs: Tensor) -> Tensor:
        """(..., `LATENT`) of (..., 21) inputs of tables."""
        latents: Tensor = self.table(inputs)
        return latents

    def states(self, latents: Tensor, progress: Tensor) -> Tensor:
        """(N, S, 2 `LATENT`) of the latents of the tables in their order, and of the shares (N, S) placed before."""
        states: Tensor = self.core(torch.cat([latents, self.progress(progress[..., None])], dim=-1))[0]
        return states

    def empty(self) -> Tensor:
        """(`LATENT`,) of a table of zeros, which every device holds."""
        return self.latents(self.mean.new_zeros(len(FEATURE_NAMES)))

    def scores(self, states: Tensor, sums: Tensor, numbers: Tensor) -> Tensor:
        """(..., D) scores of the devices from (..., 2 `LATENT`) states and what each device holds.

        `sums` are (..., D, `LATENT`) sums of the latents of its tables and of `empty`; `numbers`, (..., D, 2), are its
        predicted cost in ms and the GiB that its tables need.
        """
        devices = torch.cat([sums, self.numbers(numbers)], dim=-1)
        states = states[..., None, :].expand(devices.shape)
        scores: Tensor = self.score(torch.cat([states, devices, states * devices], dim=-1))[..., 0]
        return scores

    def costs(self, sums: Tensor) -> Tensor:
        """(...) predicted ms of forward and backward compute of devices, from (..., `LATENT`) sums of latents."""
        costs: Tensor = self.cost(sums)[..., 0]
        return costs

    def costs_of_sets(self, inputs: Tensor, members: Tensor, offsets: Tensor) -> Tensor:
        """(B,) predicted ms of sets of tables: `members`, rows of (T, 21) `inputs`, set after set from `offsets`."""
        return self.costs(embedding_bag(members, self.latents(inputs), offsets, mode="sum"))


def _mlp(*sizes: int, last: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if `last`."""
    layers: list[nn.Module] = []
    for ins, outs in pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def _sizes(tables: Tables) -> NDArray[np.float64]:
    """(T, 4) raw dims, rows, pooling factors, and GiB of the weights."""
    gib = tables.num_embeddings * tables.row_bytes / 2**30
    return np.stack([tables.embedding_dim, tables.num_embeddings, tables.pooling_factor, gib], axis=1).astype(float)
