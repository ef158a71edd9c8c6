"""The attention policy: an encoder of all tables, and a score for each device given what the devices hold so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.agents.attention.features import LOOKUPS, NUM_FEATURES, NUM_SHARES, VALUES_UPDATED
from shard_gym.agents.training.modules import NOWHERE

HEADS = 8  # heads of the encoder's attention; its hidden size is a multiple of it

LATENT = 16
"""Size of the vectors that devices sum, and of the layers that score devices.

Small ones are fast, and steps count: after seven minutes on one core, the greedy placements of mixdim-4 were 5.3% above
the best known with 64 and 4.3% with 32; once all tasks of a step had one size, 4.0% with 32 and 3.4% with 16
(prototypes, one seed, 23 November 2026)."""

_WORK = [LOOKUPS, VALUES_UPDATED]


class Held(NamedTuple):
    """What the devices hold, and the table that comes next."""

    sums: Tensor  # (..., D, `LATENT`), of the learned vectors of the tables on each device
    shares: Tensor  # (..., D, `NUM_SHARES`), of their shares
    widest: Tensor  # (..., D), the largest lane share on each device; 0 if it is empty
    table: Tensor  # (..., `NUM_SHARES` + 1), shares and lane share of the table that comes next
    devices: Tensor  # (..., D) bool, whether the task has the device


class AttentionPolicy(nn.Module):
    """Self-attention over the tables without positions, and devices as a set: no weight depends on their numbers.

    As in Kool et al. (Attention, Learn to Solve Routing Problems!, ICLR 2019), the tables are encoded once, and each
    step scores all devices. A device is what it holds: the sum of learned vectors of its tables, the sums of their
    shares, and the widest. FBGEMM runs all tables of a device at the width of the widest, so the products of work and
    width, before and after the step, are inputs, too.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale", torch.ones(NUM_FEATURES))
        self.embed = nn.Linear(NUM_FEATURES, hidden)
        layer = nn.TransformerEncoderLayer(hidden, HEADS, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.value = nn.Linear(hidden, LATENT)
        self.query = nn.Linear(hidden, LATENT)
        state = LATENT + 2 * (NUM_SHARES + 1) + 2 * len(_WORK)
        self.device = nn.Sequential(nn.Linear(state, LATENT), nn.ReLU(), nn.Linear(LATENT, LATENT))
        self.own = nn.Linear(LATENT, LATENT, bias=False)
        self.others = nn.Linear(2 * LATENT, LATENT, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(LATENT, LATENT), nn.ReLU(), nn.Linear(LATENT, 1))

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def encode(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, `LATENT`) queries, and vectors that devices sum, of (B, T, F) tables; `padding` is (B, T) bool."""
        encoded = self.encoder(self.embed((features - self.mean) / self.scale), src_key_padding_mask=padding)
        return self.query(encoded), self.value(encoded)

    def scores(self, query: Tensor, held: Held) -> Tensor:
        """(..., D) scores of the devices for a table with (..., `LATENT`) `query`."""
        table = held.table[..., None, :].expand(*held.widest.shape, held.table.shape[-1])
        widest = held.widest[..., None]
        work, added = held.shares[..., _WORK], table[..., _WORK]
        before = widest * work
        after = torch.maximum(widest, table[..., -1:]) * (work + added)
        state = self.device(torch.cat([held.sums, held.shares, widest, table, before, after], dim=-1))
        there = held.devices[..., None]
        mean = (state * there).sum(dim=-2) / there.sum(dim=-2)
        largest = state.masked_fill(~there, NOWHERE).amax(dim=-2)
        context = query + self.others(torch.cat([mean, largest], dim=-1))
        scores: Tensor = self.score(self.own(state) + context[..., None, :])[..., 0]
        return scores
