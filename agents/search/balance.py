"""`balanced`: of the answers that cost little more than the cheapest, one whose fullest device is less full.
`joined`: of those that cost no more, one with more tables whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shard_gym.agents.base import task_rng
from shard_gym.agents.search.descent import BATCH, MIN_GAIN_MS, Budget
from shard_gym.agents.search.neighbourhood import NO_TABLE, Neighbourhood
from shard_gym.agents.search.restarts import MANY
from shard_gym.agents.search.search_plans import search_plans
from shard_gym.agents.search.splits import NO_ROOM_BYTES, NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AdditiveCostModel, CountedCostModel, make_cost_model
from shard_gym.cost_models.base.whole_tables import WholeTables
from shard_gym.plans import ShardingPlan, plan_of_placement
from shard_gym.plans.memory import replica_bytes, row_block_bytes, training_memory, whole_table_bytes
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP, TABLE_WISE
from shard_gym.tasks import Answer, Task, problem_of

MORE = 0.01
"""The share by which an answer may cost more than the cheapest."""

ROOMY = 0.5
"""A device is no problem that is at most so full: the cheapest answer then stays."""

LESS = 0.01
"""The share of its memory that the fullest device must hold less; otherwise the cheapest answer stays."""

ROUNDS = 6  # the bound on how full devices may be is bisected so often
PER_ROUND = 10_000  # evaluations for each bound
MAX_CHANGES = 100  # that bring an answer below a bound


def fullest(answer: Answer, task: Task) -> float:
    """The share of its memory cap that tables and buffers take on the fullest device."""
    return float((training_memory(answer, task.tables, task.num_devices).total / task.topology.memory_cap_bytes).max())


def balanced(
    answer: Answer,
    task: Task,
    model: AdditiveCostModel,
    sharding_types: Collection[str] = (TABLE_WISE,),
    max_shards: int | None = None,
    others: Sequence[Answer] = (),
) -> Answer:
    """An answer that costs at most `MORE` more than a checked one, whose fullest device is less full; or that one.

    How full devices may be is bisected. For each bound, parts leave the devices that are fuller: they move, are
    exchanged or halved, and tables are spread over devices. Then `search_plans` lowers the cost within the bound.
    Memory is that of tables and buffers, and full is a device by the share of its own cap.

    The answer stays as it is with host memory, since HBM is then full on purpose; where it has groups of devices, or
    parts that no search makes; on very large tasks (`restarts.MANY`); and where no device is fuller than `ROOMY`.

    Args:
        answer: a valid placement, or plan if the task's tables may be split, whose tables and buffers fit the caps.
        model: what the answer was searched under; if plans are changed, one that supports splits.
        sharding_types: those that tables may have; whole tables alone by default.
        max_shards: column shards of a table at most, as of `PlanSearchAgent`.
        others: dearer answers from which a less full one is looked for as well, if they cost at most `MORE` more.
    """
    share, problem = _fullest_of_changed(answer, task), problem_of(task)
    if share is None:
        return answer
    limit = (1.0 + MORE) * problem.cost_ms(answer, task, model)
    starts = [answer, *(other for other in others if problem.cost_ms(other, task, model) <= limit)]
    found = [_less_full(start, task, model, sharding_types, max_shards, limit) for start in starts]
    best = min(found, key=lambda each: fullest(each, task))
    return best if fullest(best, task) <= share - LESS else answer


def _less_full(
    answer: Answer,
    task: Task,
    model: AdditiveCostModel,
    sharding_types: Collection[str],
    max_shards: int | None,
    limit: float,
) -> Answer:
    """See `balanced`; an answer that costs at most `limit` ms."""
    share, problem, counted = fullest(answer, task), problem_of(task), _counted(model)
    split = _split(answer, task, counted, sharding_types, max_shards)
    if split is None:
        return answer
    best, low = split, float(_used(split).sum() / task.topology.memory_cap_bytes.sum())
    high = share
    for number in range(ROUNDS):
        if high - low <= LESS / 2:
            break
        bound = (low + high) / 2
        found = _below(best, bound, task_rng(number, task), counted)
        if found is not None and found[1] <= limit:
            best, high = found[0], min(bound, _share(found[0]))
        else:
            low = bound
    best = best.in_order()
    made: Answer = best.plan() if isinstance(answer, ShardingPlan) else best.placement
    made = problem.checked(made, task)
    good = fullest(made, task) < share and problem.cost_ms(made, task, model) <= limit
    return made if good else answer


def joined(answer: Answer, task: Task, model: AdditiveCostModel) -> Answer:
    """A plan that costs no more than a checked one, and has those tables whole whose splits or replicas gain nothing.

    The smallest tables are tried first, each on the emptiest device on which it costs no more. No device gets fuller
    than the fullest one was, or than `ROOMY`. A placement stays as it is, and so does a plan that `balanced` leaves for
    other reasons than room.
    """
    if not isinstance(answer, ShardingPlan) or not answer.split_tables or not _may_change(answer, task):
        return answer
    tables, topology = task.tables, task.topology
    wholes = WholeTables(answer, tables, topology, make_cost_model(model, additive=True, splits=True))
    limit = problem_of(task).cost_ms(answer, task, model) + MIN_GAIN_MS
    most = max(fullest(answer, task), ROOMY)
    for table in sorted(answer.split_tables, key=lambda each: int(tables.memory_bytes[each])):
        left = wholes.left_bytes(table)
        devices = np.flatnonzero(left >= 0)
        devices = devices[wholes.costs_ms(table, devices) <= limit]
        if task.constraints is not None:
            made = (wholes.with_whole(table, device) for device in devices.tolist())
            devices = devices[[not task.constraints.problem_of(each, tables) for each in made]]
        if not len(devices):
            continue
        device = int(devices[np.argmax(left[devices] / topology.memory_cap_bytes[devices])])
        if fullest(wholes.with_whole(table, device), task) <= most:
            wholes.make_whole(table, device)
    return wholes.plan


def _may_change(answer: Answer, task: Task) -> bool:
    """Whether an answer is of one group, all in HBM, of several devices and not very large."""
    in_groups = isinstance(answer, ShardingPlan) and answer.groups != ONE_GROUP
    several = task.num_devices > 1 and task.num_tables * task.num_devices < MANY
    return several and not in_groups and task.topology.host is None


def _fullest_of_changed(answer: Answer, task: Task) -> float | None:
    """How full the fullest device is, if an answer is one that `balanced` changes."""
    if not _may_change(answer, task):
        return None
    share = fullest(answer, task)
    return share if share > ROOMY else None


def _counted(model: AdditiveCostModel) -> CountedCostModel:
    if isinstance(model, CountedCostModel):
        model = model.model
    try:
        return CountedCostModel(make_cost_model(model, additive=True, splits=True))
    except InvalidOptionError:  # it costs whole tables alone
        return CountedCostModel(model)


def _split(
    answer: Answer, task: Task, model: CountedCostModel, sharding_types: Collection[str], max_shards: int | None
) -> SplitTables | None:
    """The answer as a search changes it; the bytes of its parts count their buffers. None if it has other parts."""
    plan = answer if isinstance(answer, ShardingPlan) else plan_of_placement(np.asarray(answer), task.tables)
    for every_count in (False, True):
        options = SplitOptions(task, model, tuple(sharding_types), max_shards, every_count)
        split = SplitTables.of_plan(options, plan)
        if split is not None:
            options.memory = _bytes_with_buffers(options)
            return split
    return None


def _bytes_with_buffers(options: SplitOptions) -> IntArray:
    """(T, V) int64, bytes of a part of each variant with its buffers; of blocks the largest."""
    tables, devices, found = options.task.tables, options.task.num_devices, options.memory.copy()
    for level, width in enumerate(options.levels.width.T):
        found[:, level] = whole_table_bytes(tables.with_dims(width))
    for name, variant, on, _ in options.spreads:
        found[:, variant] = (
            replica_bytes(tables, devices) if name == DATA_PARALLEL else row_block_bytes(tables, len(on))
        )
    if options.units is not None:
        whole = whole_table_bytes(options.origin.tables)
        found[:, 0] = [whole[members].sum() for members in options.units]
    return found if options.task.constraints is None else np.where(options.legal, found, NO_ROOM_BYTES)


def _used(split: SplitTables) -> IntArray:
    """(D,) int64, bytes of tables and buffers."""
    items = split.items()
    return split.options.task.topology.memory_cap_bytes - items.memory_left(split.device)


def _share(split: SplitTables) -> float:
    return float((_used(split) / split.options.task.topology.memory_cap_bytes).max())


def _below(
    split: SplitTables, bound: float, rng: np.random.Generator, model: CountedCostModel
) -> tuple[SplitTables, float] | None:
    """A plan all of whose devices are at most as full as `bound`, and its cost in ms; None if none was found."""
    task, options = split.options.task, split.options
    limits = (bound * task.topology.memory_cap_bytes).astype(np.int64)
    start = _Relief(split, limits).run()
    if start is None or limits.min() < 1:
        return None
    within = copy(options)
    within.task = replace(task, topology=task.topology.with_caps(limits))
    found = search_plans([replace(start, options=within)], rng, Budget(model, PER_ROUND), BATCH)
    cost = found.items().cost_ms(found.device)
    return replace(found, options=options), cost


@dataclass(frozen=True)
class _Change:
    """A change of a plan: bytes that it takes off what devices hold above their limits, its cost, and what makes it."""

    gain: int
    cost_ms: float
    make: Callable[[], SplitTables]


class _Relief:
    """Changes of a plan until its devices hold at most (D,) `limits` bytes."""

    def __init__(self, split: SplitTables, limits: IntArray) -> None:
        self._split, self._limits = split, limits

    def run(self) -> SplitTables | None:
        """The plan afterwards; None if the limits are not reached. Each change costs least for what it relieves."""
        for _ in range(MAX_CHANGES):
            over = _used(self._split) - self._limits
            if over.max() <= 0:
                return self._split
            items = self._split.items()
            now = items.cost_ms(self._split.device)
            changes = list(self._changes(int(over.argmax()), over))
            if not changes:
                return None
            cheap = [each for each in changes if each.cost_ms <= now]
            best = (
                max(cheap, key=lambda each: (each.gain, -each.cost_ms))
                if cheap
                else min(changes, key=lambda each: (each.cost_ms - now) / each.gain)
            )
            self._split = best.make()
        return None

    def _changes(self, device: int, over: IntArray) -> Iterator[_Change]:
        """The changes of what `device` holds that lower the sum of what all hold above their limits."""
        current = Neighbourhood(self._split.items(), self._split.device)
        own = np.flatnonzero(self._split.device == device)
        yield from self._moves(current, own, over)
        yield from self._halves(current, own, over)
        yield from self._spreads(device, over)

    def _moves(self, current: Neighbourhood, own: IntArray, over: IntArray) -> Iterator[_Change]:
        """Each of the parts `own` of a device moves, or is exchanged for another."""
        items, on = current.items, self._split.device
        partners = np.concatenate([np.full(len(over), NO_TABLE), np.arange(len(items))])
        mover, option = (each.ravel() for each in np.meshgrid(own, np.arange(len(partners)), indexing="ij"))
        target, partner = np.concatenate([np.arange(len(over)), on])[option], partners[option]
        sizes, loads = np.append(items.memory, 0), np.append(items.loads, np.zeros((1, items.loads.shape[1])), axis=0)
        less = sizes[mover] - sizes[partner]
        gain = self._gain(over, on[mover], -less, target, less)
        kept = np.flatnonzero((gain > 0) & (target != on[mover]) & current.permitted(mover, target, partner))
        mover, partner, target = mover[kept], partner[kept], target[kept]
        change = np.stack([on[mover], target]), np.stack([mover, partner]), loads[np.stack([partner, mover])]

        def make(k: int) -> SplitTables:
            moved = on.copy()
            if partner[k] != NO_TABLE:
                moved[partner[k]] = on[mover[k]]
            moved[mover[k]] = target[k]
            return self._split.moved(moved)

        return _costed(current, gain[kept], *change, make)

    def _halves(self, current: Neighbourhood, own: IntArray, over: IntArray) -> Iterator[_Change]:
        """The narrower half of each of the parts `own` goes elsewhere."""
        split, options, on = self._split, self._split.options, self._split.device
        own = own[options.can_halve(split.table[own], split.level[own])]
        part, target = (each.ravel() for each in np.meshgrid(own, np.arange(len(over)), indexing="ij"))
        table = split.table[part]
        stays, goes = options.levels.halves[table, split.level[part]].T
        more = options.memory[table, stays] - current.items.memory[part]
        gain = self._gain(over, on[part], more, target, options.memory[table, goes])
        kept = np.flatnonzero((gain > 0) & (target != on[part]) & current.may_hold(table, target))
        part, target, table = part[kept], target[kept], table[kept]
        leaves = np.stack([part, np.full(len(part), NO_TABLE)])
        joining = np.stack([options.loads[table, stays[kept]], options.loads[table, goes[kept]]])
        change = np.stack([on[part], target]), leaves, joining
        return _costed(current, gain[kept], *change, lambda k: split.halved(int(part[k]), int(target[k])))

    def _spreads(self, device: int, over: IntArray) -> Iterator[_Change]:
        """Tables with a part on `device` that are spread, and spread ones that are spread otherwise or gathered."""
        split, options = self._split, self._split.options
        if not options.spreads:
            return
        before = int(np.maximum(over, 0).sum())
        tables = np.union1d(split.table[split.device == device], np.flatnonzero(split.spread != NOT_SPREAD))
        for table in tables.tolist():
            now = int(split.spread[table])
            forms = [split.spread_over(table, number) for number in options.ways(table) if number != now]
            if now != NOT_SPREAD:
                rest = split.spread_over(table, NOT_SPREAD)
                gathers = options.legal[table, 0] & np.broadcast_to(
                    options.open_to(table, rest.table, rest.device), len(over)
                )
                forms += [split.gathered(table, other) for other in np.flatnonzero(gathers).tolist()]
            for form in forms:
                gain = before - int(np.maximum(_used(form) - self._limits, 0).sum())
                if gain > 0:
                    yield _Change(gain, form.items().cost_ms(form.device), partial(_same, form))

    @staticmethod
    def _gain(over: IntArray, device: IntArray, more: IntArray, target: IntArray, there: IntArray) -> IntArray:
        """(M,) bytes less above the limits, where each `device` gets `more` bytes and each target `there`."""
        before = np.maximum(over[device], 0) + np.maximum(over[target], 0)
        return np.asarray(before - np.maximum(over[device] + more, 0) - np.maximum(over[target] + there, 0))


def _same(split: SplitTables) -> SplitTables:
    return split


def _costed(
    current: Neighbourhood,
    gain: IntArray,
    devices: IntArray,
    leaves: IntArray,
    joining: FloatArray,
    make: Callable[[int], SplitTables],
) -> Iterator[_Change]:
    """M changes, see `Neighbourhood.costs_if`."""
    for first in range(0, len(gain), BATCH):
        some = slice(first, first + BATCH)
        costs = current.costs_if(devices[:, some], leaves[:, some], joining[:, some]).exact
        for k, cost in enumerate(costs.tolist(), first):
            yield _Change(int(gain[k]), cost, partial(make, k))
