"""Tasks as padded arrays: all that stays the same during an episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidTaskError, TableTooLargeError
from shard_gym.cost_models.base import PHASES, AdditiveCostModel, loads_of_variants, placement_order
from shard_gym.cost_models.base.model import PENALTY_MARGIN
from shard_gym.envs.core.hbm_curves import NUM_CURVE, hbm_curves
from shard_gym.envs.core.split_rules import SplitRules
from shard_gym.hardware import Cluster
from shard_gym.plans.variants import variants_of, whole_tables
from shard_gym.tables import AMOUNT_NAMES, FEATURE_NAMES, Tables
from shard_gym.tasks import Task

TableOrder = Callable[[Tables], IntArray]
"""Gives the order in which tables are placed, (T,) int64, from the tables alone."""

MAX_MS = 1e9  # of an iteration, however the tables are placed: the bound of the costs in observations

WIDE = 128  # columns that a warp reads at once (32 threads, four columns each); the unit of the widths


def by_device(num_envs: int, num_devices: int, *rest: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Zeros of shape (N, D, *rest) whose first axis in memory is that of the devices.

    Maxima and sums over the devices then run over contiguous rows of environments: at N=4096, D=4 they are 36 times
    faster than in the usual layout.
    """
    return np.zeros((num_devices, num_envs, *rest), dtype).swapaxes(0, 1)


@dataclass
class TableRows:
    """The tables of S prepared tasks, in placement order; axis T is padded with zeros.

    Each table has V variants, one if tables are not split: R = T x V, and variant v of table t is row t * V + v.
    """

    order: IntArray  # (S, T) int64, the task's table that is placed first, second and so on
    loads: FloatArray  # (S, R, K) float64, loads of the cost model
    memory: IntArray  # (S, R) int64, bytes
    features: NDArray[np.float32]  # (S, R, 21) float32, see `Tables.features`
    # (S, R, 4) float32, ms of each phase with the row alone on a device; zeros if the order is not by cost, and of
    # variants that are not legal.
    costs: NDArray[np.float32]
    # (S, R, 5) float64, the row's shares of the `Tables.amounts` of all whole tables of the task; zeros of variants
    # that are not legal.
    shares: FloatArray
    widths: NDArray[np.float32]  # (S, R) float32, embedding_dim / `WIDE`, at most 1
    legal: NDArray[np.bool_]  # (S, R) bool, whether the table has this variant
    hbm_curves: FloatArray  # (S, R, C) float64, see hbm_curves.py; C is 0 without host memory


@dataclass
class EnvProblem:
    """The tasks that N environments solve. Several may solve the same task; its tables are stored once.

    Axis T is padded to max_tables, axis D to max_devices.
    """

    tables: TableRows  # the tables of S tasks
    row: IntArray  # (N,) int64, which of the S tasks each environment solves
    num_tables: IntArray  # (N,) int64, the true T
    memory_cap: IntArray  # (N, D) int64, bytes; 0 where there is no device
    hbm_bytes: IntArray  # (N,) int64, `HostMemory.hbm_bytes` of a device; 0 without host memory
    cluster: Cluster  # the topologies, leading shape (N,)
    penalty_ms: FloatArray  # (N,) float64, cost of a failed episode; above the cost of every valid placement
    lower_bound_ms: FloatArray  # (N,) float64, lower bound on the cost of every placement
    limits: NDArray[np.object_]  # (N,) the `Constraints` of each task, or None
    rules: SplitRules | None = None  # how tables may be split; None if only whole tables are placed
    limited: bool = False  # whether a task had constraints so far; without any a step does not look for them

    @property
    def num_envs(self) -> int:
        """N."""
        return len(self.row)

    @property
    def max_tables(self) -> int:
        """The padded T."""
        return int(self.tables.order.shape[1])

    @property
    def max_devices(self) -> int:
        """The padded D."""
        return int(self.memory_cap.shape[1])

    @property
    def num_actions(self) -> int:
        """A: the devices, and what splits a table."""
        return self.max_devices if self.rules is None else self.rules.num_actions

    @property
    def order(self) -> IntArray:
        """(N, T) int64, a copy of each environment's placement order."""
        return self.tables.order[self.row]

    def current(self, step: IntArray) -> IntArray:
        """(N,) int64, index of the table placed after `step` others, in an array of tables with axes S and T merged.

        Past the end of the padding it is that of the last table. V times the index is the row of the whole table.
        """
        return self.row * self.max_tables + np.minimum(step, self.max_tables - 1)

    def placements_of(
        self, assignment: NDArray[np.integer[Any]], envs: IntArray, dtype: DTypeLike = np.int64
    ) -> NDArray[Any]:
        """(len(envs), T, ...) integers, rows of an (N, T, ...) assignment in the tasks' own order; -1 in padding."""
        real = np.arange(self.max_tables) < self.num_tables[envs][:, None]
        row, step = np.nonzero(real)
        placements = np.full((len(envs), *assignment.shape[1:]), -1, dtype)
        placements[row, self.tables.order[self.row[envs]][row, step]] = assignment[envs][row, step]
        return placements

    def take(self, envs: IntArray, source: EnvProblem, rows: IntArray) -> None:
        """Give environment `envs[i]` task `rows[i]` of `source`, whose tables this problem shares."""
        self.row[envs] = rows
        self.limited = self.limited or source.limited
        for target, given in zip(_per_env(self), _per_env(source), strict=True):
            target[envs] = given[rows]

    def repeated(self, count: int) -> EnvProblem:
        """This problem (N = 1) for `count` environments that share its tables."""
        many = empty_problem(count, self.max_devices, self.tables, self.rules)
        many.take(np.arange(count), self, np.zeros(count, np.int64))
        return many

    def put(self, row: int, prepared: EnvProblem) -> None:
        """Set row `row` of the tables and environment `row` of this problem to the task of `prepared` (N = 1)."""
        for f in fields(TableRows):
            getattr(self.tables, f.name)[row] = getattr(prepared.tables, f.name)[0]
        self.take(np.array([row]), prepared, np.zeros(1, np.int64))
        self.row[row] = row


def _per_env(problem: EnvProblem) -> list[NDArray[Any]]:
    """All arrays of a problem with a leading axis of environments, except `row`."""
    own: list[NDArray[Any]] = [problem.num_tables, problem.memory_cap, problem.hbm_bytes, problem.limits]
    own += [problem.penalty_ms, problem.lower_bound_ms]
    return own + [getattr(problem.cluster, f.name) for f in fields(Cluster)]


def empty_tables(
    size: int, max_tables: int, num_loads: int, num_variants: int = 1, host_memory: bool = False
) -> TableRows:
    """Room for the tables of `size` tasks; all zeros."""
    rows = max_tables * num_variants
    return TableRows(
        order=np.zeros((size, max_tables), np.int64),
        loads=np.zeros((size, rows, num_loads)),
        memory=np.zeros((size, rows), np.int64),
        features=np.zeros((size, rows, len(FEATURE_NAMES)), np.float32),
        costs=np.zeros((size, rows, len(PHASES)), np.float32),
        shares=np.zeros((size, rows, len(AMOUNT_NAMES))),
        widths=np.zeros((size, rows), np.float32),
        legal=np.zeros((size, rows), np.bool_),
        hbm_curves=np.zeros((size, rows, NUM_CURVE if host_memory else 0)),
    )


def empty_problem(num_envs: int, max_devices: int, tables: TableRows, rules: SplitRules | None = None) -> EnvProblem:
    """A problem for `num_envs` environments that solve tasks with these tables; all other arrays are zeros."""
    return EnvProblem(
        tables=tables,
        row=np.zeros(num_envs, np.int64),
        num_tables=np.zeros(num_envs, np.int64),
        memory_cap=by_device(num_envs, max_devices, dtype=np.int64),
        hbm_bytes=np.zeros(num_envs, np.int64),
        cluster=Cluster(
            device_mask=by_device(num_envs, max_devices, dtype=np.bool_),
            domain_begin=by_device(num_envs, max_devices, dtype=np.int64),
            domain_end=by_device(num_envs, max_devices, dtype=np.int64),
            num_peers=by_device(num_envs, max_devices),
            num_devices=np.ones(num_envs),
            host_size=np.ones(num_envs),
            intra_bytes_per_ms=np.ones(num_envs),
            inter_bytes_per_ms=np.ones(num_envs),
            intra_knee_bytes=np.zeros(num_envs),
            intra_knee_extra=np.zeros(num_envs),
            inter_knee_bytes=np.zeros(num_envs),
            inter_knee_extra=np.zeros(num_envs),
            latency_ms=np.zeros(num_envs),
            crosses_domains=np.zeros(num_envs, np.bool_),
            cross_host_ratio=np.ones(num_envs),
        ),
        penalty_ms=np.zeros(num_envs),
        lower_bound_ms=np.zeros(num_envs),
        limits=np.full(num_envs, None, dtype=object),
        rules=rules,
    )


def require_room(task: Task, max_tables: int, max_devices: int) -> None:
    """Raise InvalidTaskError for a task that is larger than the padding."""
    if task.num_tables > max_tables or task.num_devices > max_devices:
        raise InvalidTaskError(
            f"Task {task.name!r} has {task.num_tables} tables and {task.num_devices} devices, but this environment "
            f"holds at most {max_tables} tables and {max_devices} devices. Raise max_tables or max_devices."
        )


def prepare(
    task: Task,
    model: AdditiveCostModel,
    max_tables: int,
    max_devices: int,
    host_memory: bool | None = None,
    order_of: TableOrder | None = None,
    rules: SplitRules | None = None,
    num_groups: int | None = None,
) -> EnvProblem:
    """`task` as a problem with N = 1; the model supports splits if there are `rules`.

    The order of the tables is by the cost of each whole table alone on a device. With `order_of`, it is another, and
    the model evaluates nothing. With `host_memory`, by default that of the task, there is room for what it adds; and
    for what tables of `num_groups` workloads add, by default those of the task.

    Raises:
        InvalidTaskError: the task has more tables, devices, hosts or workloads than the padding, or host memory
            without `host_memory`; or an iteration may take longer than `MAX_MS`.
        TableTooLargeError: a table fits no empty device, and no legal split of it fits the empty devices.
    """
    require_room(task, max_tables, max_devices)
    tables, topology = task.tables, task.topology
    if host_memory is None:
        host_memory = topology.host is not None
    if topology.host is not None and not host_memory:
        raise InvalidTaskError(
            f"Task {task.name!r} has host memory, but this environment was made for tasks without it. Give its source "
            "of tasks an attribute host_memory = True, or make the environment with a suite that has host memory."
        )
    if num_groups is None:
        num_groups = len(tables.workloads)
    if len(tables.workloads) > num_groups:
        raise InvalidTaskError(
            f"Task {task.name!r} has tables of {len(tables.workloads)} workloads, but this environment was made for "
            f"{num_groups}. Give its source of tasks an attribute num_groups = {len(tables.workloads)}, or make the "
            "environment with a suite that has tasks of so many."
        )
    if rules is None:
        variants = whole_tables(tables)
        loads = model.loads(tables, topology)[:, None]
        low, high = model.bounds(loads[:, 0], topology)
        own_penalty = type(model).penalty_ms is not AdditiveCostModel.penalty_ms
        penalty = model.penalty_ms(tables, topology) if own_penalty else PENALTY_MARGIN * high
    else:
        rules.require_hosts(topology, task.name)
        variants = variants_of(tables, topology, rules.sharding_types, rules.max_halvings)
        loads = loads_of_variants(model, variants, topology)
        low, high = model.bounds(loads, topology, variants)
        penalty = PENALTY_MARGIN * high
    if MAX_MS < penalty < np.inf:  # a model of NaN or infinite costs is told when an episode ends
        raise InvalidTaskError(
            f"An iteration of task {task.name!r} may take {penalty:.3g} ms, and environments show costs of up to "
            f"{MAX_MS:g} ms. Give the tables fewer lookups, columns or samples in a batch, or a faster device."
        )
    variants = variants.under(task.constraints)
    stuck = np.flatnonzero(~variants.fit_empty_devices(topology).any(axis=1))
    if stuck.size:
        raise TableTooLargeError(
            f"Table {stuck[0]} ({tables.names[stuck[0]]}) of task {task.name!r} "
            + (
                "fits no device whole; EmbeddingSharding-v0 splits tables."
                if rules is None
                else "fits no device, and no split of it by the sharding_types and max_shards of this environment does."
            )
            + ("" if task.constraints is None else f" It {task.constraints.told(int(stuck[0]))}.")
        )
    if order_of is None:
        order = placement_order(loads[:, 0], topology, model)
        alone = model.single_tables(loads.reshape(-1, loads.shape[-1]), topology)[0]
        costs = alone.reshape(*loads.shape[:2], -1).astype(np.float32)
    else:
        order, costs = order_of(tables), np.zeros((*loads.shape[:2], len(PHASES)), np.float32)
    limits = np.full(1, None, dtype=object)
    limits[0] = task.constraints
    total = tables.amounts().sum(axis=0)
    amounts = np.stack([form.amounts() for form in variants.tables], axis=1)
    features = np.stack([form.features() for form in variants.tables], axis=1)
    dims = np.stack([form.embedding_dim for form in variants.tables], axis=1)

    def rows(array: NDArray[Scalar]) -> NDArray[Scalar]:
        """(T, V, ...) in placement order as (1, R, ...), padded with zeros."""
        return _padded(array[order].reshape(-1, *array.shape[2:]), max_tables * array.shape[1])

    return EnvProblem(
        tables=TableRows(
            order=_padded(order, max_tables),
            loads=rows(_widened(loads, model, topology.host is not None, host_memory, num_groups)),
            memory=rows(variants.memory),
            features=rows(features),
            costs=rows(costs * variants.legal[..., None]),
            # A part of the only table may exceed it by a rounding error.
            shares=rows(np.minimum(amounts / np.where(total > 0, total, 1.0), 1.0) * variants.legal[..., None]),
            widths=rows(np.minimum(dims / WIDE, 1.0).astype(np.float32)),
            legal=rows(variants.legal),
            hbm_curves=rows(hbm_curves(variants, topology))[..., : NUM_CURVE if host_memory else 0],
        ),
        row=np.zeros(1, np.int64),
        num_tables=np.array([task.num_tables]),
        memory_cap=_padded(topology.memory_cap_bytes, max_devices),
        hbm_bytes=np.array([0 if topology.host is None else topology.host.hbm_bytes]),
        cluster=Cluster.stack([topology.cluster(max_devices)]),
        penalty_ms=np.array([penalty]),
        lower_bound_ms=np.array([low]),
        limits=limits,
        rules=rules,
        limited=task.constraints is not None,
    )


def _widened(
    loads: FloatArray, model: AdditiveCostModel, has_host: bool, host_memory: bool, num_groups: int
) -> FloatArray:
    """(T, V, K) loads of a task, with zeros for host memory and for groups that other tasks have."""
    found = np.zeros((*loads.shape[:-1], model.num_loads_with(host_memory, num_groups)))
    begin = min(model.begin_of_groups(has_host), loads.shape[-1])
    found[..., :begin] = loads[..., :begin]
    if loads.shape[-1] > begin:
        behind = model.begin_of_groups(host_memory)
        found[..., behind : behind + loads.shape[-1] - begin] = loads[..., begin:]
    return found


Scalar = TypeVar("Scalar", bound=np.generic)


def _padded(array: NDArray[Scalar], length: int) -> NDArray[Scalar]:
    """`array`, padded with zeros to `length`, with a leading axis of 1."""
    padded = np.zeros((1, length, *array.shape[1:]), array.dtype)
    padded[0, : len(array)] = array
    return padded
