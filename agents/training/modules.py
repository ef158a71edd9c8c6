"""Parts of networks that several agents share. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.errors import TrainingDivergedError

NOWHERE = -1e9
"""The score of a device that cannot be chosen; -inf would make NaN of the entropy."""


Module = TypeVar("Module", bound=nn.Module)


def new_module(make: Callable[[], Module], rng: np.random.Generator) -> Module:
    """An untrained module from `make`; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return make()


def finite(scores: Tensor) -> Tensor:
    """`scores`, if all of them are finite.

    Raises:
        TrainingDivergedError: one is NaN or infinite.
    """
    if not bool(torch.isfinite(scores).all()):
        raise TrainingDivergedError(
            "A score of the network is NaN or infinite: its training diverged. Train it with a smaller learning rate."
        )
    return scores


class TableEncoder(nn.Module):
    """Self-attention over the tables of a task, without positions: their order and number change no weight.

    Args:
        features: F, inputs of a table.
        hidden: H, a multiple of `heads`.
        layers: of self-attention.
        heads: of each layer.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.embed = nn.Linear(features, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 2 * hidden, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(hidden), enable_nested_tensor=False)

    def normalize(self, features: np.ndarray) -> None:
        """Normalize inputs as (M, F) `features` of training tables."""
        self.mean.copy_(torch.from_numpy(features.mean(axis=0)))
        self.scale.copy_(torch.from_numpy(features.std(axis=0) + 0.1))

    def encoded(self, features: Tensor, padding: Tensor | None = None) -> Tensor:
        """(B, T, H) of (B, T, F) tables; `padding` is (B, T) bool, None for none."""
        states: Tensor = self.encoder(self.embed((features - self.mean) / self.scale), src_key_padding_mask=padding)
        return states
