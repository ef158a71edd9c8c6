"""The RNN baseline: its network, the trained agent, and its loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shard_gym.agents.base import Agent, task_rng
from shard_gym.agents.search.heuristics import lookup_score
from shard_gym.agents.training.modules import NOWHERE, tensors_beside
from shard_gym.agents.training.torch_arrays import load_module_arrays, network_size
from shard_gym.common.checks import checked_seed
from shard_gym.common.errors import NoPlacementFoundError
from shard_gym.common.io.arrays import Arrays
from shard_gym.common.system import one_thread
from shard_gym.common.text import format_bytes
from shard_gym.cost_models import CostModel
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement
from shard_gym.tables import FEATURE_NAMES
from shard_gym.tasks import Task

Memory = tuple[Tensor, Tensor]  # the (B, H) hidden and cell state of the decoder's LSTM, for B placements
Encoded = tuple[Tensor, Tensor]  # the (T, H) states of the encoder for T tables, and their (T, H) attention keys


class PlacementNetwork(nn.Module):
    """The sequence-to-sequence network of Mirhoseini et al. (ICML 2017), for tables instead of operators.

    The encoder's LSTM reads the features of all tables. A step of the decoder's LSTM reads the encoder's state at the
    table and an embedding of the previous table's device, attends to all states of the encoder (additive attention:
    Bahdanau et al., ICLR 2015) and returns a logit for each of D = `max_devices`. All layers have H = `hidden` units;
    the sizes are ours, because DreamShard's authors published no code of this baseline.
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
        return (states, self.key(states)), (hidden.expand(count, -1), cell.expand(count, -1))

    def step(self, encoded: Encoded, table: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(B, D) logits of the devices for the table at that position, and the decoder's memory afterwards.

        `previous` is (B,) int64, the device of the table before it; D before the first.
        """
        states, keys = encoded
        state = states[table].expand(len(previous), -1)
        hidden, cell = self.decoder(torch.cat([self.device(previous), state], dim=-1), memory)
        attention = self.score(torch.tanh(keys + self.query(hidden)[:, None])).squeeze(-1)
        context = attention.softmax(dim=-1) @ states
        return self.logits(torch.cat([hidden, context], dim=-1)), (hidden, cell)


@dataclass(frozen=True)
class Decoded:
    """B placements of one task."""

    placements: NDArray[np.int64]  # (B, T) int64 devices, in the task's own order of tables
    log_probability: Tensor  # (B,) of all choices of a placement
    entropy: Tensor  # (B,) nats, the mean over the choices
    stuck: NDArray[np.int64]  # (B,), the table that fits nowhere, -1 for none; the devices after it are undefined


def decode(network: PlacementNetwork, task: Task, noise: Tensor | None = None) -> Decoded:
    """Place the tables by descending embedding_dim * pooling_factor, each on a device where it fits.

    The environments' order, by single-table cost, would need T cost-model evaluations for every task. `noise` is
    (T, B, D) standard Gumbel noise: adding it to the logits and taking the largest draws from the softmax. Without it B
    is 1, and the most likely devices are taken.
    """
    count, tensor = 1 if noise is None else noise.shape[1], tensors_beside(network)
    rows = tensor(np.arange(count))
    order = np.argsort(-lookup_score(task.tables), kind="stable")
    encoded, memory = network.encode(tensor(task.tables.features()[order]), count)
    device = torch.full_like(rows, network.max_devices)
    free = rows.new_zeros(count, network.max_devices)  # none where the task has no device
    free[:, : task.num_devices] = torch.tensor(task.topology.memory_cap_bytes)
    stuck = torch.full_like(rows, -1)
    chosen: list[Tensor] = []
    log_probabilities, entropies = [], []
    for table, needed in enumerate(task.tables.memory_bytes[order].tolist()):
        logits, memory = network.step(encoded, table, device, memory)
        fits = free >= needed
        if task.constraints is not None:
            fits = fits & _permitted(task, task.constraints, order[: table + 1], chosen, free)
        stuck = torch.where((stuck < 0) & ~fits.any(dim=-1), table, stuck)
        active = stuck < 0
        legal = (logits + NOWHERE * ~fits).log_softmax(dim=-1)
        device = (legal.detach() if noise is None else legal.detach() + noise[table]).argmax(dim=-1)
        free[rows, device] -= needed * active
        chosen.append(device)
        log_probabilities.append(legal[rows, device] * active)
        entropies.append(-(legal.exp() * legal).sum(dim=-1) * active)
    ended = stuck.cpu().numpy()
    placements = np.empty((count, len(chosen)), np.int64)
    placements[:, order] = torch.stack(chosen, dim=-1).cpu().numpy()
    return Decoded(
        placements=placements,
        log_probability=torch.stack(log_probabilities).sum(dim=0),
        entropy=torch.stack(entropies).mean(dim=0),
        stuck=np.where(ended < 0, -1, order[ended]),
    )


def _permitted(task: Task, limits: Constraints, order: NDArray[np.int64], chosen: list[Tensor], free: Tensor) -> Tensor:
    """(B, max_devices) bool, which devices constraints permit for the last table of `order`, after the others.

    The first of several tables that stay together goes where all of them fit.
    """
    table, held = int(order[-1]), order[:-1]
    mates = limits.companions.get(table, ())
    permitted = torch.zeros_like(free, dtype=torch.bool)
    needed = 0 if np.isin(held, mates).any() else int(task.tables.memory_bytes[list(mates)].sum())
    devices = torch.stack(chosen, dim=-1).cpu().numpy() if chosen else np.empty((len(free), 0), np.int64)
    for row, on in enumerate(devices):
        permitted[row, : task.num_devices] = torch.from_numpy(limits.open_to([table], held, on))
    return permitted & (free >= needed)


MAX_SIZE = 2**16  # the most units of a layer in a network that is loaded from a file


class RnnAgent(Agent):
    """Places tables on the network's most likely devices, or on drawn ones; it evaluates no cost model.

    Args:
        name: how result files call it.
        network: trained for a number of devices; a task with more cannot be placed.
        sample: draw every device from the softmax instead of taking the most likely one.
        seed: of the drawn devices. Equal seeds give equal placements.
    """

    def __init__(self, name: str, network: PlacementNetwork, *, sample: bool = False, seed: int = 0) -> None:
        self.name = name
        self.network = network
        self.sample = sample
        self.seed = checked_seed(seed)

    def place(self, task: Task) -> Placement:
        """(T,) int64; NoPlacementFoundError also says that the task has more devices than the network."""
        most = self.network.max_devices
        if task.num_devices > most:
            raise NoPlacementFoundError(
                f"{self.name} was trained for at most {most} devices, and its output layer has one unit for each; "
                f"task {task.name!r} has {task.num_devices}. Train it on a suite with as many."
            )
        rng = task_rng(self.seed, task)
        noise = gumbel_noise(rng, task.num_tables, 1, most) if self.sample else None
        with torch.no_grad(), one_thread():
            decoded = decode(self.network, task, noise)
        stuck = int(decoded.stuck[0])
        if stuck >= 0:
            raise NoPlacementFoundError(
                f"Table {task.tables.names[stuck]} of task {task.name!r} needs "
                f"{format_bytes(task.tables.memory_bytes[stuck])}, and no device has as much free after the tables "
                f"that {self.name} placed before it."
            )
        placement: Placement = decoded.placements[0]
        return placement


def gumbel_noise(rng: np.random.Generator, num_tables: int, count: int, num_devices: int) -> torch.Tensor:
    """(T, B, D) float32 noise with which `decode` draws `count` placements."""
    return torch.from_numpy(rng.gumbel(size=(num_tables, count, num_devices)).astype(np.float32))


def load_rnn(
    arrays: Arrays, about: Mapping[str, Any], cost_model: CostModel, seed: int, *, sample: bool = False
) -> RnnAgent:
    """The agent of a training run; `seed` and `sample` are those of `RnnAgent`, errors those of `load_agent`."""
    with torch.device("meta"):  # shapes only, so a wrong size in a file allocates nothing
        network = PlacementNetwork(
            network_size(about, "max_devices", MAX_SIZE), network_size(about, "hidden", MAX_SIZE)
        )
    load_module_arrays(network, arrays, "The network")
    return RnnAgent(about["agent"], network, sample=sample, seed=seed)
