"""Constraints of tasks as tensors: which legal actions they permit, as `envs.core.limits` says for NumPy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch

from shard_gym.envs.core.problem import EnvProblem
from shard_gym.plans.plan import TABLE_ROW_WISE

Tensor = torch.Tensor
NO_SET = -1


@dataclass
class Limits:
    """What the constraints of P tasks say of their tables, in placement order; all is permitted in padding, and to
    tasks without constraints.
    """

    devices: Tensor  # (P, T, D) bool, where a part may be
    hosts: Tensor  # (P, T, H) bool, the hosts that blocks of rows may be on
    whole: Tensor  # (P, T) bool, whether a table may be whole
    apart: Tensor  # (P, T, A) bool, the sets of tables apart that a table is in
    together: Tensor  # (P, T) int64, the set of tables together that it is in, or `NO_SET`
    needed: Tensor  # (P, S) int64, bytes of a set of tables together

    @staticmethod
    def of(problem: EnvProblem, device: torch.device) -> Limits | None:
        """Those of prepared tasks; None if none has any."""
        if not problem.limited:
            return None
        order, given = problem.tables.order[problem.row], problem.limits.tolist()
        (count, tables), hosts = order.shape, 0 if problem.rules is None else problem.rules.max_hosts
        memory = problem.tables.memory[problem.row].reshape(count, tables, -1)[:, :, 0]
        sets = [0 if each is None else len(each.apart) for each in given]
        mates = [0 if each is None else len(each.together) for each in given]
        found = {
            "devices": np.ones((count, tables, problem.max_devices), np.bool_),
            "hosts": np.ones((count, tables, hosts), np.bool_),
            "whole": np.ones((count, tables), np.bool_),
            "apart": np.zeros((count, tables, max(sets)), np.bool_),
            "together": np.full((count, tables), NO_SET),
            "needed": np.zeros((count, max(1, *mates)), np.int64),
        }
        sizes = np.broadcast_to(np.asarray(problem.cluster.host_size), (count,)).tolist()
        for task, limits in enumerate(given):
            if limits is None:
                continue
            own, total = order[task, : len(limits)], limits.num_devices
            found["devices"][task, : len(limits), :total] = limits.devices[own]
            found["whole"][task, : len(limits)] = limits.may_be_whole[own]
            for number, members in enumerate(limits.apart):
                found["apart"][task, : len(limits), number] = np.isin(own, members)
            for number, members in enumerate(limits.together):
                among = np.flatnonzero(np.isin(own, members))
                found["together"][task, among] = number
                found["needed"][task, number] = memory[task, among].sum()
            size = int(sizes[task])
            for host in range(min(hosts, total // size)):
                may = limits.may_spread(TABLE_ROW_WISE, np.arange(host * size, (host + 1) * size))
                found["hosts"][task, : len(limits), host] = may[own]
        return Limits(**{name: torch.as_tensor(array, device=device) for name, array in found.items()})

    def part(self, table: tuple[Tensor, Tensor]) -> Limits:
        """Those of one table for each of N episodes, its task and its place; `needed` of the set that it is in."""
        own = {f.name: getattr(self, f.name)[table] for f in fields(self) if f.name != "needed"}
        return Limits(**own, needed=self.needed[table[0], own["together"].clamp(min=0)])


def open_devices(
    own: Limits, table: Tensor, apart_on: Tensor, together_on: Tensor, free: Tensor, uncut: Tensor
) -> Tensor:
    """(N, D) bool, the devices that may hold the current part.

    Args:
        own: of the current tables.
        table: (N,) places of these.
        apart_on: (N, D, A) the place, from 1, of the table of a set apart that a device holds, or 0.
        together_on: (N, S) the device of a set of tables together, or -1.
        free: (N, D) bytes.
        uncut: (N,) bool, whether the part is a whole table.
    """
    others = (apart_on != 0) & (apart_on != (table + 1)[:, None, None]) & own.apart[:, None]
    placed = together_on.gather(1, own.together.clamp(min=0)[:, None])
    every = torch.arange(free.shape[1], device=free.device)
    with_mates = torch.where(placed >= 0, every == placed, free >= own.needed[:, None])
    alone = (own.together == NO_SET)[:, None]
    return own.devices & ~others.any(dim=2) & (alone | with_mates) & (own.whole | ~uncut)[:, None]


def held(
    own: Limits, table: Tensor, apart_on: Tensor, together_on: Tensor, actions: Tensor, placed: Tensor
) -> tuple[Tensor, Tensor]:
    """`apart_on` and `together_on` after parts of the current tables are (N,) `placed` on the devices `actions`."""
    every = torch.arange(apart_on.shape[1], device=actions.device)
    there = (every == actions[:, None]) & placed[:, None]
    apart_on = torch.where(there[..., None] & own.apart[:, None], (table + 1)[:, None, None], apart_on)
    sets = torch.arange(together_on.shape[1], device=actions.device)
    mine = (sets == own.together[:, None]) & placed[:, None]
    return apart_on, torch.where(mine, actions[:, None], together_on)
