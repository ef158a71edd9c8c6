"""Forms of a task: which tables are split before the others are placed, and how. A plan is a placement of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import InvalidConstraintsError
from shard_gym.cost_models import AdditiveCostModel
from shard_gym.plans import ShardingPlan, TableSharding, column_wise, data_parallel, row_wise, table_wise
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.placement import Placement
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE, TABLE_WISE, has_equal_blocks
from shard_gym.plans.statistics import shard_tables
from shard_gym.plans.variants import variants_of
from shard_gym.tables import AMOUNT_NAMES, Tables
from shard_gym.tasks.task import Task

MAX_HALVINGS = 3  # halvings of the columns of a table: 8 shards, as `EmbeddingSharding-v0` has them
WIDTH_UNIT = 4  # shards have multiples of so many columns

HEAVY = 1.0
"""A table with more than so many D-ths of the lookups of its task is heavy: alone it makes its device the slowest.
Where a sequence table has more than so many D-ths of the numbers that are exchanged, such tables are the heavy ones."""

ROOM = 0.9  # a part needs at most this share of a device's memory, or it is halved


class Form(NamedTuple):
    """How the tables of a task are split."""

    widest: int  # columns of a part at most; wider tables are halved until they have no more
    heavy: str  # what heavy tables become: "table_wise", "row_wise" or "data_parallel"
    room: float = ROOM  # the share of a device's memory that a part needs at most


NO_LIMIT = 2**20

FORMS = tuple(Form(widest, heavy) for heavy in (TABLE_WISE, ROW_WISE, DATA_PARALLEL) for widest in (NO_LIMIT, 64, 32))
"""FBGEMM runs a device at the width of its widest part: a whole warp for each row above 64 columns, half of one above
32, a quarter below. So halving one of several wide tables gains nothing, and halving all of them does: that is decided
once for all tables, as NeuroShard's search has a grid of limits."""

WHOLE_WHERE_PERMITTED = Form(NO_LIMIT, TABLE_WISE, 1.0)
"""Tables stay whole but for those that constraints, or the memory of a device, do not let."""

FINER, FINEST = (tuple(form._replace(room=ROOM / parts) for form in FORMS) for parts in (2, 8))
"""For tasks on which all `FORMS` fail, because memory is short, and for those on which all `FINER` fail, too."""


@dataclass(frozen=True, eq=False)
class SplitTask:
    """A task in one form."""

    origin: Task
    task: Task  # its parts on the memory that spread tables leave
    # (P,) int64, the table of each part; its parts come one after the other, from left to right.
    table: NDArray[np.int64]
    spread: dict[str, NDArray[np.int64]]  # the spread tables by sharding type, "row_wise" or "data_parallel"

    def loads(self, model: AdditiveCostModel) -> FloatArray:
        """(K,) loads of the spread tables on each device; zeros without any."""
        groups = len(self.origin.tables.workloads)
        held = np.zeros((1, model.num_loads_with(self.origin.topology.host is not None, groups)))
        for kind, tables in self.spread.items():
            shards = shard_tables(self.origin.tables.select(tables), kind, self.origin.topology)
            loads = model.loads(shards, self.origin.topology, kind)
            held = model.add(held, model.reduce(loads, np.zeros(len(tables), np.int64), 1))
        on_each: FloatArray = held[0]
        return on_each

    def plan(self, placement: Placement) -> ShardingPlan:
        """The plan in which the parts have the devices of `placement`."""
        tables, topology = self.origin.tables, self.origin.topology
        spread = {int(table): kind for kind, some in self.spread.items() for table in some}
        found: list[TableSharding] = []
        for table in range(len(tables)):
            devices = placement[self.table == table].tolist()
            if table in spread:
                spreading = row_wise if spread[table] == ROW_WISE else data_parallel
                found.append(spreading(tables, table, topology))
            elif len(devices) == 1:
                found.append(table_wise(tables, table, devices[0]))
            else:
                found.append(column_wise(tables, table, devices))
        return ShardingPlan(tuple(found))


def whole(task: Task) -> SplitTask:
    """`task` without splits."""
    return SplitTask(task, task, np.arange(task.num_tables), {})


def formed(task: Task, form: Form) -> SplitTask | None:
    """`task` in `form`; None if the form changes nothing that another does not, or its parts do not fit.

    A table that is larger than a device however often it is halved becomes row-wise, whatever the form says.
    """
    tables, topology, every = task.tables, task.topology, np.arange(task.num_devices)
    kinds = np.array([TABLE_WISE] * len(tables), dtype=object)
    heavy = _heavy(task)
    if form.heavy != TABLE_WISE:
        if not heavy.any():
            return None
        kinds[heavy] = form.heavy
    halvings = _halvings(tables, form, float(topology.memory_cap_bytes.max()))
    if task.constraints is not None and not _keep(task.constraints, task, kinds, halvings):
        return None
    kinds[tables.with_dims(tables.embedding_dim >> halvings).memory_bytes > topology.memory_cap_bytes.max()] = ROW_WISE
    spread = {kind: np.flatnonzero(kinds == kind) for kind in (ROW_WISE, DATA_PARALLEL) if (kinds == kind).any()}
    if not has_equal_blocks(tables.num_embeddings[spread.get(ROW_WISE, [])], task.num_devices).all():
        return None
    limits = task.constraints
    if limits is not None and not all(limits.may_spread(kind, every)[some].all() for kind, some in spread.items()):
        return None
    kept = np.flatnonzero(kinds == TABLE_WISE)
    if not len(kept):
        return None
    table = np.repeat(kept, 1 << halvings[kept])
    parts = tables.select(table).with_dims((tables.embedding_dim >> halvings)[table])
    free = topology.memory_cap_bytes - sum(_spread_bytes(task, kind, some) for kind, some in spread.items())
    fits = free.min() > 0 and parts.memory_bytes.sum() <= free.sum()
    if not fits or parts.memory_bytes.max() > free.max():
        return None
    own = None if limits is None else limits.of_parts(table)
    try:
        return SplitTask(task, Task(task.name, parts, topology.with_caps(free), constraints=own), table, spread)
    except InvalidConstraintsError:
        return None


def _heavy(task: Task) -> NDArray[np.bool_]:
    """(T,) bool, the sequence tables with a device's share of what is exchanged; without any, of all lookups."""
    tables = task.tables
    lookups, sent = tables.amounts()[:, AMOUNT_NAMES.index("lookups")], tables.outputs_per_batch * tables.embedding_dim
    reads, sends = (amount * task.num_devices > HEAVY * max(amount.sum(), 1e-12) for amount in (lookups, sent))
    sequences = sends & ~tables.pooled
    return np.asarray(sequences if sequences.any() else reads)


def _keep(limits: Constraints, task: Task, kinds: NDArray[np.object_], halvings: NDArray[np.int64]) -> bool:
    """Change (T,) `kinds` and `halvings` in place to what the constraints permit; False if that is none of these."""
    every, dims = np.arange(task.num_devices), task.tables.embedding_dim
    for kind in (ROW_WISE, DATA_PARALLEL):
        kinds[(kinds == kind) & ~limits.may_spread(kind, every)] = TABLE_WISE
    for kind in (ROW_WISE, DATA_PARALLEL):
        kinds[(kinds == TABLE_WISE) & ~limits.may_be_whole & limits.may_spread(kind, every)] = kind
    apart = np.zeros(len(kinds), np.bool_)
    apart[[*chain.from_iterable(limits.apart)]] = True
    while (narrow := (halvings > 0) & (apart | ~limits.may_have_columns(dims >> halvings, task.tables))).any():
        halvings[narrow] -= 1
    return bool((limits.may_be_whole | (kinds != TABLE_WISE)).all())


def _halvings(tables: Tables, form: Form, memory: float) -> NDArray[np.int64]:
    halvings = np.zeros(len(tables), np.int64)
    for _ in range(MAX_HALVINGS):
        width = tables.embedding_dim >> halvings
        wide = (width > form.widest) | (tables.with_dims(width).memory_bytes > form.room * memory)
        halvings += wide & (width % (2 * WIDTH_UNIT) == 0)
    return halvings


def _spread_bytes(task: Task, kind: str, tables: NDArray[np.int64]) -> int:
    variants = variants_of(task.tables.select(tables), task.topology, (TABLE_WISE, kind), 0)
    return int(variants.memory[:, -1].sum())


def forms_of(task: Task, forms: Sequence[Form] = FORMS) -> list[SplitTask]:
    """`task` in all `forms` that are possible and differ."""
    found: list[SplitTask] = []
    for form in forms:
        new = formed(task, form)
        if new is not None and not any(_equal(new, other) for other in found):
            found.append(new)
    return found


def _equal(one: SplitTask, other: SplitTask) -> bool:
    same = one.spread.keys() == other.spread.keys() and np.array_equal(one.table, other.table)
    return same and all(np.array_equal(one.spread[kind], other.spread[kind]) for kind in one.spread)
