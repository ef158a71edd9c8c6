"""The attention policy: an encoder of all tables, and a score for each device given what it holds so far."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.agents.attention.features import LOOKUPS, NUM_FEATURES, NUM_SHARES, VALUES_UPDATED

NOWHERE = -1e9
"""The score of an illegal device; -inf would make NaN of the entropy."""

HEADS = 8
"""Of the encoder's attention; its hidden size is a multiple of it."""

_WORK = [LOOKUPS, VALUES_UPDATED]


class AttentionPolicy(nn.Module):
    """Self-attention over the tables, and devices as a set: no weight depends on the numbers of either.

    As in Kool et al. (Attention, Learn to Solve Routing Problems!, ICLR 2019), the tables are encoded once, and each
    step scores all devices. A device is what it holds: the sum of learned vectors of its tables, the sums of their
    shares, and the widest. FBGEMM runs all tables of a device at the width of the widest, so the products of work and
    width, before and after the step, are inputs, too. A prototype was 30% above the best known placements of mixdim-4
    after two minutes without them, and 18% with them (one seed, tables by work alone, 22 November 2026).

    Args:
        hidden: of the encoder, a multiple of `HEADS`.
        layers: of the encoder.
        latent: of the vectors that devices sum.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: int, layers: int, latent: int = 64) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale", torch.ones(NUM_FEATURES))
        self.embed = nn.Linear(NUM_FEATURES, hidden)
        layer = nn.TransformerEncoderLayer(hidden, HEADS, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.value = nn.Linear(hidden, latent)
        self.query = nn.Linear(hidden, latent)
        state = latent + 2 * (NUM_SHARES + 1) + 2 * len(_WORK)
        self.device = nn.Sequential(nn.Linear(state, latent), nn.ReLU(), nn.Linear(latent, latent))
        self.own = nn.Linear(latent, latent, bias=False)
        self.others = nn.Linear(2 * latent, latent, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(latent, latent), nn.ReLU(), nn.Linear(latent, 1))
        self.latent = latent

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def encode(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, latent) queries, and vectors that devices sum, of (B, T, F) tables; `padding` is (B, T) bool."""
        encoded = self.encoder(self.embed((features - self.mean) / self.scale), src_key_padding_mask=padding)
        return self.query(encoded), self.value(encoded)

    def scores(self, query: Tensor, sums: Tensor, widest: Tensor, table: Tensor, devices: Tensor) -> Tensor:
        """(..., D) scores of the devices for one table.

        Args:
            query: (..., 1, latent) of the table.
            sums: (..., D, latent + `NUM_SHARES`), of the tables on each device.
            widest: (..., D), the largest lane share on each device; 0 if it is empty.
            table: (..., 1, `NUM_SHARES` + 1), its own shares and lane share.
            devices: (..., D) bool, whether the task has the device.
        """
        table = table.expand(*sums.shape[:-1], table.shape[-1])
        work, added = sums[..., self.latent :][..., _WORK], table[..., _WORK]
        before = widest[..., None] * work
        after = torch.maximum(widest, table[..., -1])[..., None] * (work + added)
        state = self.device(torch.cat([sums, widest[..., None], table, before, after], dim=-1))
        there = devices[..., None]
        mean = (state * there).sum(dim=-2, keepdim=True) / there.sum(dim=-2, keepdim=True)
        largest = state.masked_fill(~there, NOWHERE).amax(dim=-2, keepdim=True)
        context = self.others(torch.cat([mean, largest], dim=-1))
        scores: Tensor = self.score(query + self.own(state) + context)[..., 0]
        return scores


def new_policy(hidden: int, layers: int, rng: np.random.Generator) -> AttentionPolicy:
    """An untrained policy; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return AttentionPolicy(hidden, layers)
