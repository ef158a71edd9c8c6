"""`TensorShardingEnv`: episodes of `EmbeddingSharding-v0` as tensors of torch, on any device. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
import torch
from typing_extensions import override

from shard_gym.common.checks import is_integer
from shard_gym.common.either import larger
from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.envs.core.episode_state import COMPLETE, UNPLACED
from shard_gym.envs.core.plans import plan_of
from shard_gym.envs.core.split_rules import NONE, SplitRules
from shard_gym.envs.placement.episodes import PlacementConfig
from shard_gym.envs.placement.observation import COST_FREE
from shard_gym.envs.sharding.episodes import ShardingConfig
from shard_gym.envs.tensors.placement import Observations, Tensor, TensorPlacementEnv
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.plan import TABLE_ROW_WISE
from shard_gym.tasks import TaskSource

_NO_LIMIT = torch.iinfo(torch.int64).max


class TensorShardingEnv(TensorPlacementEnv):
    """N episodes in which tables may be split: those of `EmbeddingShardingVectorEnv`; see `TensorPlacementEnv`.

    Args:
        num_envs, suite, split: see `TensorPlacementEnv`.
        sharding_types, max_shards, max_hosts: see `EmbeddingShardingEnv`.
        options: the others of `TensorPlacementEnv`.

    Attributes:
        rules: say which of the A actions means what.
        assignment: (N, T, U) int64, the action that gave a shard to devices at the U-th of the columns where the shard
            begins, in the order in which tables come; -1 elsewhere.
    """

    config: ClassVar[type[PlacementConfig]] = ShardingConfig
    _splitting: ClassVar[tuple[str, ...]] = ("sharding_types", "max_shards", "max_hosts")
    rules: SplitRules
    _kept: ClassVar[tuple[str, ...]] = (*TensorPlacementEnv._kept, "_waiting", "_level")

    def __init__(
        self,
        num_envs: int,
        suite: str | TaskSource = "shard-4",
        split: str = "train",
        *,
        sharding_types: Collection[str] = SHARDING_TYPES,
        max_shards: int = 8,
        max_hosts: int | None = None,
        **options: Any,
    ) -> None:
        splits: dict[str, Any] = {"sharding_types": sharding_types, "max_shards": max_shards, "max_hosts": max_hosts}
        super().__init__(num_envs, suite, split, **splits, **options)

    @override
    def _begin_tables(self, zeros: Callable[..., Tensor]) -> None:
        rules = self.rules
        self.assignment = zeros(self.max_tables, rules.max_shards, dtype=torch.int64) + UNPLACED
        self._level = zeros(dtype=torch.int64)
        self._waiting = zeros(rules.max_halvings + 1, dtype=torch.int64) + (self._levels == 0)

    @override
    def _on_device(self, problem: Any) -> Any:
        rules = self.rules
        self._most = float(rules.max_shards)
        self._levels = torch.arange(rules.max_halvings + 1, device=self.device)
        self._unit_shares = torch.as_tensor(rules.shares, device=self.device)
        self._variants, self._wanted = (torch.as_tensor(each, device=self.device) for each in rules.variants_and_hosts)
        return super()._on_device(problem)

    @override
    def _take(self, tasks: Tensor) -> None:
        super()._take(tasks)
        rules, devices = self.rules, torch.arange(self.max_devices, device=self.device)
        size = self._cluster.host_size[:, None].long()
        self._host = devices // size if rules.max_hosts > 1 else (devices * 0).expand(self.num_envs, -1)

    def _rows(self, variant: Tensor | int) -> tuple[Tensor, Tensor]:
        """Where a variant of the current tables is in the arrays of tables."""
        return self.task, self._step() * self.rules.num_variants + variant

    @override
    def _part(self) -> tuple[Tensor, Tensor]:
        return self._rows(self._level)

    def _begun(self) -> Tensor:
        """(N,) int64, U-ths of the columns of the current tables that have devices."""
        return self.rules.max_shards - (self._waiting * self._unit_shares).sum(dim=1)

    @override
    def _do(self, legal: Tensor, actions: Tensor) -> None:
        pool, rules, model = self._pool, self.rules, self._arithmetic
        single, halve = actions < self.max_devices, actions == rules.halve
        wanted = self._wanted[actions][:, None]
        of_several = ((wanted == NONE) | (self._host == wanted)) & self._cluster.device_mask
        one = torch.arange(self.max_devices, device=self.device) == actions[:, None]
        receives = torch.where(single[:, None], one, of_several & ~halve[:, None]) & legal[:, None]
        rows = self._rows(torch.where(single, self._level, self._variants[actions].clamp(min=0)))
        gets = receives[..., None]
        self._loads = torch.where(
            gets, model.add(self._loads, pool.loads[rows][:, None].expand_as(self._loads)), self._loads
        )
        self.phases_ms = torch.where(gets, model.device_phases(self._loads), self.phases_ms)
        self._used = self._used + pool.memory[rows][:, None] * receives
        if self.observation in COST_FREE:
            self._shares = self._shares + pool.shares[rows][:, None] * gets
            self._widths = larger(self._widths, pool.widths[rows][:, None] * receives)
        if self._host_memory:
            self._curves = self._curves + pool.hbm_curves[rows][:, None] * gets

        placed, halved = legal & ~halve, legal & halve
        where = self._every, self._step(), self._begun().clamp(max=rules.max_shards - 1)
        self.assignment = self.assignment.index_put(where, torch.where(placed, actions, self.assignment[where]))
        at_level = self._levels == self._level[:, None]
        waiting = self._waiting - at_level * (legal & (single | halve))[:, None].long()
        waiting = waiting + 2 * (self._levels == self._level[:, None] + 1) * halved[:, None].long()
        waiting = torch.where((placed & ~single)[:, None], 0, waiting)
        done = placed & ~(waiting > 0).any(dim=1)
        self._waiting = torch.where(done[:, None], (self._levels == 0).long(), waiting)
        self._level = (self._levels * (self._waiting > 0)).amax(dim=1)
        self.step_count = self.step_count + done

    @override
    def _legal(self) -> Tensor:
        pool, rules = self._pool, self.rules
        real, free = self._cluster.device_mask, self._memory_cap - self._used
        allowed = [(pool.memory[self._part()][:, None] <= free) & real]
        if rules.halve != NONE:
            allowed.append(self._can_be_halved(free)[:, None])
        least = torch.where(real, free, _NO_LIMIT)
        for _, variant, _, count in rules.spreads:
            rows = self._rows(variant)
            room = least.amin(dim=1, keepdim=True) if count == 1 else self._least_by_host(least)
            possible = (self._level == 0) & pool.legal[rows]
            allowed.append(possible[:, None] & (pool.memory[rows][:, None] <= room))
        return torch.cat(allowed, dim=1)

    @override
    def _uncut(self) -> Tensor:
        return self._level == 0

    @override
    def _with_hosts(self, devices: Tensor, hosts: Tensor) -> Tensor:
        may = torch.ones(self.num_envs, self.num_actions, dtype=torch.bool, device=self.device)
        may[:, : self.max_devices] = devices
        for name, _, first, count in self.rules.spreads:
            if name == TABLE_ROW_WISE:
                may[:, first : first + count] = hosts
        return may

    def _can_be_halved(self, free: Tensor) -> Tensor:
        """(N,) bool, whether all that waits of a table would fit, halved until all parts are equal."""
        pool, rules = self._pool, self.rules
        left, found = rules.max_shards - self._begun(), torch.zeros_like(self._level, dtype=torch.bool)
        for level in range(1, rules.max_halvings + 1):
            rows, parts = self._rows(level), (left << level) >> rules.max_halvings
            places = free // pool.memory[rows].clamp(min=1)[:, None]
            enough = places.minimum(parts[:, None]).sum(dim=1) >= parts
            found = found | (enough & (level > self._level) & pool.legal[rows])
        return found

    def _least_by_host(self, free: Tensor) -> Tensor:
        """(N, hosts) bytes free on the fullest device of each host; -1 where there is no such host."""
        count, cluster = self.rules.max_hosts, self._cluster
        nothing = torch.full((self.num_envs, count), _NO_LIMIT, dtype=torch.int64, device=self.device)
        least = nothing.scatter_reduce(1, self._host.clamp(max=count - 1), free, "amin")  # beyond it is padding
        first = torch.arange(count, device=self.device) * cluster.host_size[:, None]
        return torch.where(first >= cluster.num_devices[:, None], NONE, least)

    @override
    def placements(self) -> Tensor:
        """(N, T, U) int64, `assignment` in the tasks' own order of tables."""
        order, count = self._pool.order[self.task], torch.arange(self.max_tables, device=self.device)
        spare = torch.where(count < self._num_tables[:, None], order, self.max_tables)  # of padding
        size = (self.num_envs, self.max_tables + 1, self.rules.max_shards)
        found = torch.full(size, UNPLACED, dtype=torch.int64, device=self.device)
        return found.scatter(1, spare[..., None].expand_as(self.assignment), self.assignment)[:, : self.max_tables]

    def plan(self, number: int) -> ShardingPlan:
        """The plan of a complete episode.

        Raises:
            InvalidOptionError: there is no such episode, or it is not complete.
        """
        if not is_integer(number) or not 0 <= number < self.num_envs or int(self.status[number]) != COMPLETE:
            raise InvalidOptionError(
                f"Only a complete episode has a plan, one of 0 to {self.num_envs - 1} whose status is {COMPLETE}; "
                f"not {short_repr(number)}."
            )
        placement: Any = self.placements()[number].cpu().numpy()
        return plan_of(self.tasks[int(self.task[number])], np.asarray(placement), self.rules)

    @override
    def observations(self) -> Observations:
        pool, rules = self._pool, self.rules
        left = (self.step_count < self._num_tables)[:, None]
        variants = torch.arange(rules.num_variants, device=self.device)
        rows = self.task[:, None], self._step()[:, None] * rules.num_variants + variants
        keys = {**super().observations(), "parts_waiting": (self._waiting * left).float()}
        if self.observation in COST_FREE:
            keys["variant_shares"] = (pool.shares[rows] * left[..., None]).float()
        else:
            keys["variant_costs"] = pool.costs[rows] * left[..., None]
        if self._host_memory:
            curves = pool.hbm_curves[rows]
            keys["variant_curves"] = (curves / (1.0 + curves)).float() * left[..., None]
        return keys
