"""The network of the RNN baseline: an LSTM reads the tables, and a second one with attention chooses devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.agents.training.torch_arrays import load_module_arrays
from shard_gym.io.arrays import Arrays
from shard_gym.tables import FEATURE_NAMES


class Memory(NamedTuple):
    """The (B, H) hidden and cell state of the decoder's LSTM, for B placements."""

    hidden: Tensor
    cell: Tensor


class Encoded(NamedTuple):
    """The (T, H) states of the encoder for T tables, and their (T, H) attention keys."""

    states: Tensor
    keys: Tensor


class PlacementNetwork(nn.Module):
    """The sequence-to-sequence network of Mirhoseini et al. (ICML 2017), for tables instead of operators.

    The encoder's LSTM reads the features of all tables. A step of the decoder's LSTM reads the encoder's state at the
    table and an embedding of the previous table's device, attends to all states of the encoder (additive attention:
    Bahdanau et al., ICLR 2015) and returns a logit for every device. The layer sizes are ours, because DreamShard's
    authors published no code of this baseline.

    Args:
        max_devices: D, the units of the output layer.
        hidden: H, units of both LSTMs, of the attention and of the embedding.
    """

    def __init__(self, max_devices: int, hidden: int) -> None:
        super().__init__()
        self.max_devices = max_devices
        self.hidden = hidden
        self.encoder = nn.LSTM(len(FEATURE_NAMES), hidden)
        self.device = nn.Embedding(max_devices + 1, hidden)  # the last row is the input before the first table
        self.decoder = nn.LSTMCell(2 * hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.logits = nn.Linear(2 * hidden, max_devices)

    def encode(self, features: Tensor, count: int) -> tuple[Encoded, Memory]:
        """The encoder's output for (T, 21) table features, and the decoder's first memory of `count` placements."""
        states, (hidden, cell) = self.encoder(features)
        return Encoded(states, self.key(states)), Memory(hidden.expand(count, -1), cell.expand(count, -1))

    def step(self, encoded: Encoded, table: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, D) logits of the devices for one table, and the decoder's memory afterwards.

        Args:
            encoded: the tables.
            table: its position.
            previous: (B,) int64, the device of the table before it; D before the first.
            memory: that of the previous step.
        """
        state = encoded.states[table].expand(len(previous), -1)
        after = Memory(*self.decoder(torch.cat([self.device(previous), state], dim=-1), memory))
        attention = self.score(torch.tanh(encoded.keys + self.query(after.hidden)[:, None])).squeeze(-1)
        context = attention.softmax(dim=-1) @ encoded.states
        return self.logits(torch.cat([after.hidden, context], dim=-1)), after


def new_network(max_devices: int, hidden: int, rng: np.random.Generator) -> PlacementNetwork:
    """An untrained network; the state of torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return PlacementNetwork(max_devices, hidden)


def load_network(weights: Arrays, max_devices: int, hidden: int) -> PlacementNetwork:
    """A network with the weights that `module_arrays` returned.

    Raises:
        InvalidCheckpointError: they are not those of a network of this size.
    """
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        network = PlacementNetwork(max_devices, hidden)
    load_module_arrays(network, weights, "The network")
    return network
