"""The tables of a model on its devices as a task for a search, and answers back as options of TorchRec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models import AdditiveCostModel, CostEstimate
from shard_gym.hardware import Topology
from shard_gym.interop.replicas import tables_of_mixed_widths
from shard_gym.planning.dropin.options import IN_MEMORY, TableOptions, pieces_of, sharding_of, with_shards
from shard_gym.planning.explanation import estimate_of_checked
from shard_gym.plans import SHARDING_TYPES, ShardingPlan, TableSharding
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import COLUMN_WISE, TABLE_WISE
from shard_gym.tables import Tables
from shard_gym.tables.tables import COLUMNS
from shard_gym.tasks import Task


@dataclass(frozen=True, eq=False)
class CostedPlan:
    """A plan of all tables by their options, and what it costs."""

    options: Sequence[Any]  #: of each table that one that is chosen, whose shards have ranks and storage
    tables: Tables  #: as they are costed: column shards of tables that TorchRec planned are tables by themselves
    plan: ShardingPlan  #: of these
    estimate: CostEstimate


@dataclass(frozen=True, eq=False)
class PlanningTask:
    """N tables and D devices, for which options are chosen.

    Attributes:
        options: of each table.
        tables: the N tables; dims are rounded up.
        topology: the devices; their memory caps are what is left by TorchRec's reservation.
        least_bytes: (N, 5, 2) int64, see `options.least_bytes`.
        min_columns: (N,) int64, fewest columns of a column shard; 0 for no limit.
        ranks: (N, D) bool, which devices may have a shard of the table.
        memory: "hbm" or "ddr", in which a device has its tables.
        model: what costs are asked of.
    """

    options: Sequence[TableOptions]
    tables: Tables
    topology: Topology
    least_bytes: NDArray[np.int64]
    min_columns: NDArray[np.int64]
    ranks: NDArray[np.bool_]
    memory: str
    model: AdditiveCostModel

    @property
    def own(self) -> NDArray[np.int64]:
        """The tables that ShardGym plans, ascending."""
        return np.array([table for table, each in enumerate(self.options) if not each.why_torchrec], np.int64)

    def task(self, planned: Mapping[int, Any]) -> Task:
        """The task of the tables that ShardGym plans, first, and of what TorchRec planned already.

        A column shard of the latter is a table that may only be where it is, so its loads are in the costs. The memory
        of the devices is what TorchRec counts for it, which is less than the table where rows are elsewhere.

        Args:
            planned: the options of the other tables, whose shards have ranks and storage.

        Raises:
            InvalidTaskError: a table fits no device, or all together do not fit.
        """
        own, devices = self.own, self.topology.num_devices
        kinds = [
            [
                TABLE_WISE in each.forms or COLUMN_WISE in each.forms,
                *(kind in each.forms for kind in SHARDING_TYPES[1:]),
            ]
            for each in (self.options[table] for table in own)
        ]
        caps = self.topology.memory_cap_bytes.copy()
        index, widths = own.tolist(), self.tables.embedding_dim[own].tolist()
        least, ranks = list(self.least_bytes[own]), list(self.ranks[own])
        for table, option in planned.items():
            for shard in option.shards:
                caps[shard.rank] -= getattr(shard.storage, self.memory)
            for width, sharding in pieces_of(option):
                where = np.zeros(devices, np.bool_)
                where[sharding.devices] = True
                rows = max(shard.num_rows for shard in sharding.shards)
                if min(shard.num_rows for shard in sharding.shards) == 0:  # no search has such blocks
                    continue
                index.append(table)
                widths.append(_padded(width))
                kinds.append([kind == sharding.sharding_type for kind in SHARDING_TYPES])
                least.append(np.zeros_like(self.least_bytes[0]))
                ranks.append(where)
                row = self.tables.workload.select(np.array([table])).row_bytes(np.array([_padded(width)]))
                caps[where] += rows * int(row[0])
        count = len(index)
        min_columns = np.zeros(count, np.int64)
        min_columns[: len(own)] = self.min_columns[own]
        constraints = Constraints(
            sharding_types=np.array(kinds, np.bool_),
            min_columns=min_columns,
            devices=np.array(ranks, np.bool_),
            least_bytes=np.array(least, np.int64),
            empty_blocks=True,
        )
        tables = self.tables.select(index).with_dims(widths)
        topology = self.topology.with_caps(np.maximum(caps, 1))
        return Task("model", tables, topology, splittable=True, constraints=constraints)

    def chosen(self, plan: ShardingPlan, planned: Mapping[int, Any]) -> list[Any]:
        """The option of each table under a plan of the tables of `task`; storage and perf are still to be estimated."""
        found = dict(planned)
        for table, sharding in zip(self.own.tolist(), plan.tables, strict=False):
            forms, kind = self.options[table].forms, sharding.sharding_type
            option = forms.get(kind) or forms[COLUMN_WISE]  # whole, in one column shard
            found[table] = with_shards(option, sharding)
        return [found[table] for table in range(len(self.options))]

    def mixed_widths(self, options: Sequence[Any]) -> list[str]:
        """The names of the sequence tables, of those that ShardGym plans, with column shards of several widths on a
        device (`tables_of_mixed_widths`)."""
        plan = ShardingPlan(tuple(sharding_of(options[table]) for table in self.own))
        return tables_of_mixed_widths(plan, self.tables.select(self.own))

    def with_few_parts(self, parts: int) -> PlanningTask:
        """The same with at most so many column shards of each sequence table."""
        widths = np.where(self.tables.pooled, 0, self.tables.embedding_dim // parts)
        return replace(self, min_columns=np.maximum(self.min_columns, widths))

    def costed(self, options: Sequence[Any]) -> CostedPlan:
        """A plan, of ShardGym or TorchRec, with what it costs; rows in host memory cost what they do in a device's."""
        index: list[int] = []
        widths: list[int] = []
        shardings: list[TableSharding] = []
        for table, option in enumerate(options):
            if self.options[table].why_torchrec:
                pieces = pieces_of(option)
            else:
                pieces = [(self.options[table].dim, sharding_of(option))]
            for width, sharding in pieces:
                index.append(table)
                widths.append(_padded(width))
                shardings.append(replace(sharding, shards=tuple(_up_to(each, width) for each in sharding.shards)))
        tables, plan = self.tables.select(index).with_dims(widths), ShardingPlan(tuple(shardings))
        return CostedPlan(options, tables, plan, estimate_of_checked(self.model, plan, tables, self.topology))

    def used_bytes(self, options: Sequence[Any]) -> NDArray[np.int64]:
        """(D,) int64, the bytes on each device of tables and their buffers: of each shard what TorchRec estimates, or
        what ShardGym counts of tables that it plans, if that is more."""
        used = np.zeros(self.topology.num_devices, np.int64)
        own = set(self.own.tolist())
        for table, option in enumerate(options):
            counts = table in own and option.compute_kernel in IN_MEMORY
            workload = self.tables.workload.select(np.array([table]))
            for shard in option.shards:
                held = shard.size[0] * int(workload.row_bytes(np.array([shard.size[1]]))[0]) if counts else 0
                used[shard.rank] += max(held, getattr(shard.storage, self.memory))
        return used

    def fits(self, options: Sequence[Any]) -> bool:
        """Whether all tables fit the memory caps (`used_bytes`), and are where they may be."""
        where = [self.ranks[table, [shard.rank for shard in option.shards]] for table, option in enumerate(options)]
        fit = self.used_bytes(options) <= self.topology.memory_cap_bytes
        return all(each.all() for each in where) and bool(fit.all())


def _padded(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS


def _up_to(shard: Any, dim: int) -> Any:
    """A shard with the columns that the table is padded with, if it has the last ones."""
    last = shard.first_column + shard.num_columns == dim
    return shard._replace(num_columns=_padded(dim) - shard.first_column) if last else shard
