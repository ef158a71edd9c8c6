"""Decoding: B placements of a task from the network, table by table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shard_gym.agents.heuristics import lookup_score
from shard_gym.agents.rnn.network import PlacementNetwork
from shard_gym.tasks import Task

FORBIDDEN = -1e9
"""Added to the logits of devices where the table does not fit; -inf would make NaN of the entropy."""


@dataclass(frozen=True)
class TableSequence:
    """A task as input of the network, tables by descending embedding_dim * pooling_factor.

    The environments' order, by single-table cost, would need T cost-model evaluations for every task.

    Attributes:
        order: (T,) int64, the tables in the order they are placed.
        features: (T, 21) float32, in that order.
        memory: (T,) int64 bytes, in that order.
        caps: (D,) int64 bytes; 0 where the task has no device.
    """

    order: NDArray[np.int64]
    features: Tensor
    memory: Tensor
    caps: Tensor

    @staticmethod
    def of(task: Task, max_devices: int) -> TableSequence:
        """The sequence of `task`, which has at most `max_devices` devices, for a network with that many outputs."""
        order = np.argsort(-lookup_score(task.tables), kind="stable")
        caps = np.zeros(max_devices, np.int64)
        caps[: task.num_devices] = task.topology.memory_cap_bytes
        return TableSequence(
            order=order,
            features=torch.from_numpy(task.tables.features()[order]),
            memory=torch.from_numpy(task.tables.memory_bytes[order]),
            caps=torch.from_numpy(caps),
        )


@dataclass(frozen=True)
class Decoded:
    """B placements of one task.

    Attributes:
        placements: (B, T) int64 devices, in the task's own order of tables.
        log_probability: (B,) of all choices of a placement.
        entropy: (B,) nats, the mean over the choices.
        stuck: (B,) int64, the table that fits nowhere, -1 if there is none; the devices after it are undefined.
    """

    placements: NDArray[np.int64]
    log_probability: Tensor
    entropy: Tensor
    stuck: NDArray[np.int64]


def decode(network: PlacementNetwork, tables: TableSequence, noise: Tensor | None = None) -> Decoded:
    """Place the tables one after the other, each on a device where it fits.

    Args:
        network: returns the logits.
        tables: the task.
        noise: (T, B, D) standard Gumbel noise: adding it to the logits and taking the largest draws from the softmax.
            Without it B is 1, and the most likely devices are taken.
    """
    count = 1 if noise is None else noise.shape[1]
    rows = torch.arange(count)
    encoded, memory = network.encode(tables.features, count)
    device = torch.full((count,), network.max_devices)
    free = tables.caps.repeat(count, 1)
    stuck = torch.full((count,), -1)
    chosen, log_probabilities, entropies = [], [], []
    for table, needed in enumerate(tables.memory):
        logits, memory = network.step(encoded, table, device, memory)
        fits = free >= needed
        stuck = torch.where((stuck < 0) & ~fits.any(dim=-1), table, stuck)
        active = stuck < 0
        legal = (logits + FORBIDDEN * ~fits).log_softmax(dim=-1)
        device = (legal.detach() if noise is None else legal.detach() + noise[table]).argmax(dim=-1)
        free[rows, device] -= needed * active
        chosen.append(device)
        log_probabilities.append(legal[rows, device] * active)
        entropies.append(-(legal.exp() * legal).sum(dim=-1) * active)
    placements = np.empty((count, len(chosen)), np.int64)
    placements[:, tables.order] = torch.stack(chosen, dim=-1).numpy()
    return Decoded(
        placements=placements,
        log_probability=torch.stack(log_probabilities).sum(dim=0),
        entropy=torch.stack(entropies).mean(dim=0),
        stuck=np.where(stuck.numpy() < 0, -1, tables.order[stuck.numpy()]),
    )
