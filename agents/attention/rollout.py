"""Rollouts of the attention policy: R placements of each of B tasks at once, and their probabilities for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from shard_gym.agents.attention.features import Described
from shard_gym.agents.attention.network import NOWHERE, AttentionPolicy


@dataclass(frozen=True)
class Batch:
    """B tasks, padded to T tables and D devices.

    Attributes:
        orders: of each task, its own numbers of the tables in the order of the other arrays.
        features, shares, lane: (B, T, ...) float32, see `Described`; zeros in padding.
        memory: (B, T) int64, bytes; 0 in padding.
        caps: (B, D) int64, bytes; -1 in padding.
        padding: (B, T) bool.
    """

    orders: Sequence[NDArray[np.int64]]
    features: Tensor
    shares: Tensor
    lane: Tensor
    memory: Tensor
    caps: Tensor
    padding: Tensor

    @staticmethod
    def of(tasks: Sequence[Described]) -> Batch:
        """The batch of `tasks`."""

        def padded(name: str, fill: int = 0) -> Tensor:
            arrays = [getattr(task, name) for task in tasks]
            longest = max(len(array) for array in arrays)
            stacked = np.full((len(tasks), longest, *arrays[0].shape[1:]), fill, arrays[0].dtype)
            for row, array in zip(stacked, arrays, strict=True):
                row[: len(array)] = array
            return torch.from_numpy(stacked)

        memory = padded("memory", -1)
        return Batch(
            [task.order for task in tasks],
            padded("features"),
            padded("shares"),
            padded("lane"),
            memory.clip(min=0),
            padded("caps", -1),
            memory < 0,
        )

    @property
    def table(self) -> Tensor:
        """(B, T, S + 1), what a step reads of the table that it places."""
        return torch.cat([self.shares, self.lane[..., None]], dim=-1)

    @property
    def devices(self) -> Tensor:
        """(B, D) bool, those of each task."""
        return self.caps >= 0


@dataclass(frozen=True)
class Rollouts:
    """R placements of each of B tasks.

    Attributes:
        actions: (B, R, T) int64, a device for each table in the order of the batch; anything in padding.
        legal: (B, R, T, D) bool, where it fitted.
        complete: (B, R) bool, whether every table fitted somewhere.
    """

    actions: Tensor
    legal: Tensor
    complete: Tensor

    def placements(self, batch: Batch, task: int) -> NDArray[np.int64]:
        """(R, T) int64, the placements of one of the tasks in its own order of tables."""
        order = batch.orders[task]
        placements = np.empty((self.actions.shape[1], len(order)), np.int64)
        placements[:, order] = self.actions[task, :, : len(order)].numpy()
        return placements


def play(policy: AttentionPolicy, batch: Batch, count: int, noise: NDArray[np.float32] | None) -> Rollouts:
    """`count` placements of each task: the likeliest devices, or drawn ones.

    Args:
        policy: scores the devices.
        batch: the tasks.
        count: R.
        noise: (T, B, R, D) standard Gumbel noise; the largest score with it is a draw from the softmax. None for the
            likeliest devices.
    """
    with torch.no_grad():
        query, value = policy.encode(batch.features, batch.padding)
        held = torch.cat([value, batch.shares], dim=-1)
        tasks, tables, devices = *batch.padding.shape, batch.caps.shape[1]
        sums = torch.zeros(tasks, count, devices, held.shape[-1])
        widest = torch.zeros(tasks, count, devices)
        free = batch.caps[:, None].repeat(1, count, 1)
        there = batch.devices[:, None].expand(tasks, count, devices)
        complete = torch.ones(tasks, count, dtype=torch.bool)
        table, actions, legal = batch.table, [], []
        for step in range(tables):
            fits = (free >= batch.memory[:, step, None, None]) & there
            real = ~batch.padding[:, step, None]
            complete = complete & (fits.any(dim=-1) | ~real)
            now = slice(step, step + 1)
            scores = policy.scores(query[:, None, now], sums, widest, table[:, None, now], there)
            scores = scores.masked_fill(~fits, NOWHERE)
            if noise is not None:
                scores = scores + torch.from_numpy(noise[step]) * fits
            device = scores.argmax(dim=-1)
            put = one_hot(device, devices) * (real & complete)[..., None]
            sums = sums + put[..., None] * held[:, None, now]
            widest = torch.maximum(widest, put * batch.lane[:, None, now])
            free = free - put * batch.memory[:, step, None, None]
            actions.append(device)
            legal.append(fits)
        return Rollouts(torch.stack(actions, dim=2), torch.stack(legal, dim=2), complete)


def log_probabilities(policy: AttentionPolicy, batch: Batch, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
    """(B, R) logs of the probability of each placement, and (B, R) mean entropies of its choices in nats."""
    query, value = policy.encode(batch.features, batch.padding)
    held = torch.cat([value, batch.shares], dim=-1)
    real = (~batch.padding[:, None] & rollouts.complete[..., None]).float()
    put = one_hot(rollouts.actions, batch.caps.shape[1]).float() * real[..., None]
    added = put[..., None] * held[:, None, :, None]
    width = put * batch.lane[:, None, :, None]
    widest = torch.cat([torch.zeros_like(width[:, :, :1]), width.cummax(dim=2).values[:, :, :-1]], dim=2)
    scores = policy.scores(
        query[:, None, :, None],
        added.cumsum(dim=2) - added,
        widest,
        batch.table[:, None, :, None],
        batch.devices[:, None, None].expand(widest.shape),
    )
    logs = scores.masked_fill(~rollouts.legal, NOWHERE).log_softmax(dim=-1)
    chosen = logs.gather(-1, rollouts.actions[..., None])[..., 0] * real
    entropy = -(logs.exp() * logs.clamp(min=-50.0)).sum(dim=-1) * real
    return chosen.sum(dim=-1), entropy.sum(dim=-1) / real.sum(dim=-1).clamp(min=1.0)
