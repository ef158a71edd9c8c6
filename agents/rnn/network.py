"""The network of the RNN baseline: an LSTM reads the tables, another with attention says a device for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shard_gym.io.arrays import Arrays, require_arrays
from shard_gym.tables import FEATURE_NAMES


class Memory(NamedTuple):
    """What the decoder knows of B placements: the (B, H) hidden and cell state of its LSTM."""

    hidden: Tensor
    cell: Tensor


class Encoded(NamedTuple):
    """What the encoder made of T tables: its (T, H) states, and their (T, H) attention keys."""

    states: Tensor
    keys: Tensor


class PlacementNetwork(nn.Module):
    """A sequence of tables in, a device for each out: the network of Mirhoseini et al. (ICML 2017).

    They placed operators; here the encoder's LSTM reads the features of all tables. The decoder's LSTM goes over the
    tables again: its step reads the encoder's state at the table and an embedding of the device the previous table got,
    attends to all states of the encoder (additive attention: Bahdanau et al., ICLR 2015) and gives every
    device a logit. The sizes are our choice: DreamShard's authors published no code of this baseline.

    Args:
        max_devices: D, the units of the output layer.
        hidden: H, units of both LSTMs, of the attention and of the embedding.
    """

    def __init__(self, max_devices: int, hidden: int) -> None:
        super().__init__()
        self.max_devices = max_devices
        self.hidden = hidden
        self.encoder = nn.LSTM(len(FEATURE_NAMES), hidden)
        self.device = nn.Embedding(max_devices + 1, hidden)  # the last row stands before the first table
        self.decoder = nn.LSTMCell(2 * hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.logits = nn.Linear(2 * hidden, max_devices)

    def encode(self, features: Tensor, count: int) -> tuple[Encoded, Memory]:
        """Tables with (T, 21) `features` as the decoder reads them, and its first memory of `count` placements."""
        states, (hidden, cell) = self.encoder(features)
        return Encoded(states, self.key(states)), Memory(hidden.expand(count, -1), cell.expand(count, -1))

    def step(self, encoded: Encoded, table: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, D) logits of the devices for one table, and what the decoder knows afterwards.

        Args:
            encoded: the tables.
            table: which of them.
            previous: (B,) int64, the device of the table before it; D before the first.
            memory: what the step before returned.
        """
        heard = encoded.states[table].expand(len(previous), -1)
        after = Memory(*self.decoder(torch.cat([self.device(previous), heard], dim=-1), memory))
        alike = self.score(torch.tanh(encoded.keys + self.query(after.hidden)[:, None])).squeeze(-1)
        context = alike.softmax(dim=-1) @ encoded.states
        return self.logits(torch.cat([after.hidden, context], dim=-1)), after

    def arrays(self) -> Arrays:
        """Copies of the weights."""
        return {name: tensor.numpy().copy() for name, tensor in self.state_dict().items()}


def new_network(max_devices: int, hidden: int, rng: np.random.Generator) -> PlacementNetwork:
    """An untrained network; torch's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        return PlacementNetwork(max_devices, hidden)


def network_with(weights: Mapping[str, NDArray[Any]], max_devices: int, hidden: int) -> PlacementNetwork:
    """A network with weights that `PlacementNetwork.arrays` returned.

    Raises:
        InvalidCheckpointError: they are not those of a network of this size.
    """
    with torch.device("meta"):  # shapes alone: a size that is a lie costs no memory
        network = PlacementNetwork(max_devices, hidden)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    expected = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    require_arrays("The network", dict(weights), expected)
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()}, assign=True)
    return network
