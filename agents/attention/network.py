"""The attention policy: an encoder of all tables, and a score for each action given what the devices hold so far."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shard_gym.agents.attention.features import LOOKUPS, NUM_FEATURES, NUM_SHARES, VALUES_UPDATED

NOWHERE = -1e9
"""The score of an illegal action; -inf would make NaN of the entropy."""

HEADS = 8
"""Of the encoder's attention; its hidden size is a multiple of it."""

LATENT = 16
"""Of the vectors that devices sum, and of the layers that score devices."""

NUM_SPLITS = 3
"""Halve the columns, a block of rows to every device, a replica to every device."""

FloatArray = NDArray[np.float32]

_WORK = [LOOKUPS, VALUES_UPDATED]


class Held(NamedTuple):
    """What the devices hold, and what comes next.

    Attributes:
        sums: (..., D, `LATENT`), of the learned vectors of the parts on each device.
        shares: (..., D, `NUM_SHARES`), of their shares.
        widest: (..., D), the largest lane share on each device; 0 if it is empty.
        part: (..., `NUM_SHARES` + 2), shares and lane share of the part that comes next, and the limit of lane shares.
        splits: (..., `NUM_SPLITS`, `NUM_SHARES` + 1), those of a part of each split of it.
        devices: (..., D) bool, whether the task has the device.
    """

    sums: Tensor
    shares: Tensor
    widest: Tensor
    part: Tensor
    splits: Tensor
    devices: Tensor

    @staticmethod
    def of(
        sums: Tensor,
        shares: FloatArray,
        widest: FloatArray,
        part: FloatArray,
        splits: FloatArray,
        devices: Tensor,
    ) -> Held:
        """The attributes, of which some are float32 arrays of NumPy."""
        tensors = [torch.from_numpy(array) for array in (shares, widest, part, splits)]
        return Held(sums, tensors[0], tensors[1], tensors[2], tensors[3], devices)


class AttentionPolicy(nn.Module):
    """Self-attention over the tables, and devices as a set: no weight depends on the numbers of either.

    As in Kool et al. (Attention, Learn to Solve Routing Problems!, ICLR 2019), the tables are encoded once, and each
    step scores all devices. A device is what it holds: the sum of learned vectors of its tables, the sums of their
    shares, and the widest. FBGEMM runs all tables of a device at the width of the widest, so the products of work and
    width, before and after the step, are inputs, too.

    Args:
        hidden: of the encoder, a multiple of `HEADS`.
        layers: of the encoder.
        splits: whether it scores splits beside the devices.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: int, layers: int, splits: bool) -> None:
        super().__init__()
        self.splits = splits
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))
        self.register_buffer("scale", torch.ones(NUM_FEATURES))
        self.embed = nn.Linear(NUM_FEATURES, hidden)
        layer = nn.TransformerEncoderLayer(hidden, HEADS, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)
        self.value = nn.Linear(hidden, LATENT)
        self.query = nn.Linear(hidden, LATENT)
        state = LATENT + 2 * (NUM_SHARES + 1) + 1 + 2 * len(_WORK)
        self.device = nn.Sequential(nn.Linear(state, LATENT), nn.ReLU(), nn.Linear(LATENT, LATENT))
        self.own = nn.Linear(LATENT, LATENT, bias=False)
        self.others = nn.Linear(2 * LATENT, LATENT, bias=False)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(LATENT, LATENT), nn.ReLU(), nn.Linear(LATENT, 1))
        if splits:
            size = 2 * (NUM_SHARES + 1) + 1 + NUM_SPLITS
            self.split = nn.Linear(size, LATENT)
            self.split_score = nn.Sequential(nn.ReLU(), nn.Linear(LATENT, LATENT), nn.ReLU(), nn.Linear(LATENT, 1))

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def encode(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, `LATENT`) queries, and vectors that devices sum, of (B, T, F) tables; `padding` is (B, T) bool."""
        encoded = self.encoder(self.embed((features - self.mean) / self.scale), src_key_padding_mask=padding)
        return self.query(encoded), self.value(encoded)

    def scores(self, query: Tensor, held: Held) -> Tensor:
        """(..., D) scores of the devices, and of the `NUM_SPLITS` splits, for a part of a table with (..., `LATENT`)
        `query`."""
        part = held.part[..., None, :].expand(*held.widest.shape, held.part.shape[-1])
        widest = held.widest[..., None]
        work, added = held.shares[..., _WORK], part[..., _WORK]
        before = widest * work
        after = torch.maximum(widest, part[..., NUM_SHARES : NUM_SHARES + 1]) * (work + added)
        state = self.device(torch.cat([held.sums, held.shares, widest, part, before, after], dim=-1))
        there = held.devices[..., None]
        mean = (state * there).sum(dim=-2) / there.sum(dim=-2)
        largest = state.masked_fill(~there, NOWHERE).amax(dim=-2)
        context = (query + self.others(torch.cat([mean, largest], dim=-1)))[..., None, :]
        scores: Tensor = self.score(self.own(state) + context)[..., 0]
        if self.splits:
            shape = held.splits.shape
            kinds = torch.eye(NUM_SPLITS).expand(*shape[:-1], NUM_SPLITS)
            part = held.part[..., None, :].expand(*shape[:-1], held.part.shape[-1])
            split = self.split(torch.cat([held.splits, part, kinds], dim=-1))
            scores = torch.cat([scores, self.split_score(split + context)[..., 0]], dim=-1)
        return scores


def new_policy(hidden: int, layers: int, splits: bool, rng: np.random.Generator) -> AttentionPolicy:
    """An untrained policy; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return AttentionPolicy(hidden, layers, splits)
