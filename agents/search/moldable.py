"""Moldable tables: plans by a rule that asks no cost model.

In scheduling, a moldable task runs on a number of machines that is chosen before it starts, and more machines make it
shorter and its work larger. Turek, Wolf and Yu (SPAA 1992, "Approximate algorithms for scheduling parallelizable
tasks") choose for a target time the cheapest form of each task that is no longer, place them as if they were rigid, and
search for the target; Mounié, Rapine and Trystram (SIAM Journal on Computing 37, 2007) bound what that loses. So here,
by `OwnTimes`:

1. For a target time, a widest part and a largest one, each table takes the form with the least work of all its parts
   whose part alone takes no longer than the target. Where forms do not fit the memory together, bytes have a price.
2. Tables on many devices come first, those on one host where that has least. Then the parts, the longest first (LPT),
   each where the sum of the slowest phases grows least. Wide parts are on the first devices of each host alone, on so
   many that narrow ones keep the others as busy, so that they lend their lanes to no other.
   With constraints the parts that the fewest devices may hold also come first, on any device, and a table leaves a
   device to each that must stay apart from it.
3. Targets, widths and sizes vary, and tables that are served may all be replicas; the plan that `OwnTimes` calls
   cheapest counts.

Rough constants are enough: with each of the seven of `own_times.ROUGH` that tables of one workload have multiplied by a
factor from a half to two, plans of nine suites cost 1.3 to 4.2% more in four draws of the factors, 3.1% more with all
of them halved and as much as before with all doubled (29 November 2026; `python moldable.py` in benchmarks/ draws such
factors, and leaves out parts of the rule).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.forms import TableForms, where_any
from shard_gym.agents.search.own_times import LATENCIES, ROUGH, OwnTimes, RoughConstants
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.constraints import Constraints
from shard_gym.plans.plan import DATA_PARALLEL, ONE_GROUP
from shard_gym.tables import MAX_DIM
from shard_gym.tasks import Task
from shard_gym.tasks.groups import possible_groups, task_of_group

WIDTHS = (MAX_DIM, 64, 32)
"""Of parts: FBGEMM gives rows of up to 32 and 64 columns a quarter and half of a warp."""

WITHOUT = ((), (DATA_PARALLEL,))
"""Sharding types that are left out, as each one that is used has latencies."""

TARGETS = (2.0, 1.0, 0.5, 0.25, 0.12, 0.05)
"""Of the mean time of a device if all tables take the form of least work."""

NO_TARGET = 1e6  # with constraints first: each table takes the form of least work, most often whole

PARTS = (1.0, 0.5, 0.25, 0.1)  # of the memory of a device, that a part may take
FULL = 0.98  # of the memory of all devices, that forms may take together
SLACK = 0.8  # of it; where forms take less, memory has
WEIGHTS = (0.0, 1.0, 4.0)  # the first of these weights beside time as parts are ordered, otherwise each
RANK = 0.3  # of the longest part, in what a set of parts may cost
MOST_PLANS, MOST_STEPS, LEAST_PLANS = 120, 30_000_000, 4
"""Plans of a task for each order of parts, as long as so many parts times devices are tried for them together; but so
many at least."""

AT_ONCE = 4096  # plans times devices that are tried at once


class _Form(NamedTuple):
    """What tables become for one target, width and price: a set of parts."""

    ms: float  # about what it will cost
    level: IntArray  # (T,)
    spread: IntArray  # (T,)
    width: int  # all devices are ready for parts so wide
    bytes: float  # of all parts


class Moldable:
    """The plans of one task without groups, under one estimate.

    Args:
        options: what is possible, with the loads of `model`.
    """

    def __init__(self, options: SplitOptions, model: OwnTimes) -> None:
        self.options, self._model, task = options, model, options.task
        topology = task.topology
        self._caps, self._count = topology.memory_cap_bytes, len(options.levels)
        # Of all devices; and, as replicas and blocks are on each, what all have if each has as much as the smallest.
        together = float(self._caps.sum()), task.num_devices * float(self._caps.min())
        self._rooms = sorted(set(together), reverse=True)
        forms = TableForms(options, model)
        self._ways, self._legal, self._loads, self._width = forms.ways, forms.legal, forms.loads, forms.width
        self._memory, self._parts, self._bytes, self._part_ms = forms.memory, forms.parts, forms.bytes, forms.part_ms
        self._most = forms.most_devices
        names = [options.spreads[numbers[0]].sharding_type for numbers in self._ways]
        self._open_to = None if task.constraints is None else _open_to(task.constraints)
        self._targets = TARGETS if self._open_to is None else (NO_TARGET, *TARGETS)
        self._kinds = [~np.isin(names, left_out) for left_out in WITHOUT]
        of_host = np.arange(task.num_devices) % topology.devices_per_host
        first = np.lexsort((topology.hosts, of_host))  # the first devices of each host
        self._rank = np.argsort(first)

    def forms(self, room: float) -> list[_Form]:
        """The sets of parts for all targets and widths that fit the memory together, the cheapest first.

        Args:
            room: bytes that a part takes at most if the table has such parts.
        """
        found, seen, count = list[_Form](), set[tuple[int, bytes]](), self._count
        dims = self.options.task.tables.embedding_dim
        widths = [width for width in WIDTHS if width == MAX_DIM or (dims > width).any()]
        fits = self._legal & (self._memory <= self._caps.max())
        fits = where_any(fits & (self._memory <= room), fits)
        for (widest, width), kinds in product(combinations_with_replacement(widths, 2), self._kinds):
            floor = lane_share(np.minimum(width, self._width.max()))
            alone = self._model.part_ms(self._loads, np.maximum(lane_share(self._width), floor))
            work = alone * self._parts
            legal = where_any(fits & (self._width <= widest), fits)
            spread = legal.copy()
            spread[:, count:] &= kinds & (self._width[:, count:] <= width)  # it is on all devices
            legal = where_any(spread, legal)
            least = np.where(legal, work, np.inf).min(axis=1).sum() / self.options.task.num_devices
            for target, most_bytes in product(self._targets, self._rooms):
                chosen = self._cheapest(work, alone, legal, target * least, most_bytes)
                if chosen is not None and (key := (width, chosen.tobytes())) not in seen:
                    seen.add(key)
                    found.append(self._form(chosen, work, alone, width))
        if self._model.exchanges == 1:
            found += self._all_replicas()
        return sorted(found, key=lambda each: each.ms)

    def _all_replicas(self) -> list[_Form]:
        """All tables on every device, if they fit: served so, none has an exchange, which no table alone can save."""
        ways = [numbers[0] for numbers in self._ways]
        form = next((k for k, way in enumerate(ways) if self.options.spreads[way].sharding_type == DATA_PARALLEL), None)
        if form is None:
            return []
        number = self._count + form
        if not self._legal[:, number].all() or self._memory[:, number].sum() > self._caps.min():
            return []
        alone = self._part_ms
        return [self._form(np.full(len(alone), number), alone * self._parts, alone, MAX_DIM)]

    def _cheapest(
        self, work: FloatArray, alone: FloatArray, legal: NDArray[np.bool_], target: float, most_bytes: float
    ) -> IntArray | None:
        """(T,) the form of each table; None if none fit `most_bytes` together."""
        shortest = legal & (alone <= np.where(legal, alone, np.inf).min(axis=1, keepdims=True))
        may = where_any(legal & (alone <= target), shortest)
        room, every, price = FULL * most_bytes, np.arange(len(may)), 0.0
        for _ in range(12):
            chosen = np.where(may, work + price * self._bytes, np.inf).argmin(axis=1)
            if self._bytes[every, chosen].sum() <= room:
                return np.asarray(chosen)
            price = max(2.0 * price, 0.1 * work[every, chosen].sum() / self._bytes[every, chosen].sum())
        chosen = np.where(legal, self._bytes, np.inf).argmin(axis=1)
        return np.asarray(chosen) if self._bytes[every, chosen].sum() <= most_bytes else None

    def _form(self, chosen: IntArray, work: FloatArray, alone: FloatArray, width: int) -> _Form:
        options, every, count = self.options, np.arange(len(chosen)), self._count
        spread = np.full(len(chosen), NOT_SPREAD)
        for form, numbers in enumerate(self._ways, start=count):
            tables = np.flatnonzero(chosen == form)
            if len(numbers) == 1:
                spread[tables] = numbers[0]
                continue
            held, may = np.zeros(len(numbers)), options.may_spread[:, numbers]
            for table in tables[np.argsort(-alone[tables, form], kind="stable")].tolist():
                host = int(np.where(may[table], held, np.inf).argmin())
                spread[table] = numbers[host]
                held[host] += alone[table, form]
        mean = float(work[every, chosen].sum()) / options.task.num_devices
        latencies = float(self._loads[every, chosen][:, LATENCIES].max(axis=0).sum()) * self._model.exchanges
        ms = mean + RANK * float(alone[every, chosen].max()) + latencies
        level = np.where(chosen < count, chosen, 0)
        return _Form(ms, level, spread, width, float(self._bytes[every, chosen].sum()))

    def plans(self) -> list[tuple[float, SplitTables]]:
        """Plans that fit with their estimates in ms, cheapest first."""
        devices, cap = self.options.task.num_devices, float(self._caps.max())
        found: dict[bytes, tuple[float, SplitTables]] = {}
        trials, left = list[_Trial](), MOST_STEPS
        seen = set[tuple[int, bytes, bytes]]()
        most = MOST_PLANS * (1 + (self._open_to is not None))  # as there are two orders
        ranked = [self.forms(share * cap) for share in PARTS]
        forms = [each for some in zip_longest(*ranked) for each in some if each is not None]
        if self.options.task.tables.memory_bytes.sum() <= SLACK * float(self._caps.sum()):
            forms.sort(key=lambda each: each.ms)
        for form in forms:
            key = form.width, form.level.tobytes(), form.spread.tobytes()
            if key in seen:
                continue
            seen.add(key)
            for trial in self._trials(form):
                left -= devices * max(1, len(trial.order))
                if len(trials) < (LEAST_PLANS if left < 0 else most):
                    trials.append(trial)
        at_once = max(1, AT_ONCE // devices)
        for begin in range(0, len(trials), at_once):
            some = trials[begin : begin + at_once]
            for trial, ms, device in zip(some, *self._placed(some), strict=True):
                if np.isfinite(ms):
                    split = trial.split.moved(device[: len(trial.order)][np.argsort(trial.order)])
                    found.setdefault(split.key, (float(ms), split))
        return sorted(found.values(), key=lambda each: each[0])

    def _trials(self, form: _Form) -> Iterator[_Trial]:
        """The ways to place a form: how many devices hold wide parts, and how much memory counts."""
        options, devices = self.options, self.options.task.num_devices
        split = SplitTables.in_parts(options, form.spread, form.level)
        free = options.fixed(form.spread)[1]
        if free.min() < 0:
            return
        ms, memory = self._part_ms[split.table, split.level], options.memory[split.table, split.level]
        share, total = lane_share(split.widths), max(float(ms.sum()), 1e-12)
        classes = np.unique(share[share > lane_share(np.array([form.width]))])[::-1]
        even = np.array([devices * ms[share >= each].sum() / total for each in classes])
        limit, wide = np.full(len(ms), devices), np.zeros(len(ms))
        for each, most in zip(classes.tolist(), np.clip(np.rint(even), 1, devices).tolist(), strict=True):
            limit[share == each], wide[share == each] = most, each
        for weight in WEIGHTS if form.bytes > SLACK * float(self._caps.sum()) else WEIGHTS[:1]:
            size = np.maximum(ms / total, weight * memory / max(float(memory.sum()), 1.0))
            yield _Trial(split, free, np.lexsort((-size, -wide)), limit)
            if (few := self._open_to) is not None:
                yield _Trial(split, free, np.lexsort((-size, few[split.table])), np.full(len(ms), devices))

    def _placed(self, trials: list[_Trial]) -> tuple[FloatArray, IntArray]:
        """(N,) ms of N plans, infinite for those without room, and (N, k) the devices of their parts in order."""
        options = self.options
        count, devices, most = len(trials), options.task.num_devices, max(len(trial.order) for trial in trials)
        limits = options.task.constraints
        columns = options.loads.shape[-1]
        loads, memory = np.zeros((count, most, columns)), np.zeros((count, most))
        limit, table = np.full((count, most), devices), np.zeros((count, most), np.int64)
        held, free = np.empty((columns, count, devices)), np.empty((count, devices))
        for number, (split, left, order, own_limit) in enumerate(trials):
            parts = slice(len(order))
            loads[number, parts] = options.loads[split.table[order], split.level[order]]
            memory[number, parts] = options.memory[split.table[order], split.level[order]]
            limit[number, parts], table[number, parts] = own_limit[order], split.table[order]
            held[..., number, :], free[number] = options.fixed(split.spread)[0].T, left
        device, every, has_room = np.zeros((count, most), np.int64), np.arange(count), np.ones(count, np.bool_)
        apart = limits is not None and limits.conflicts is not None
        holds = np.zeros((count, options.task.num_tables, devices), np.bool_) if apart else None
        slowest, maxima = self._phases(held).max(axis=1), self._model.maxima  # (N, 4)
        for step in range(most):
            size, part = memory[:, step, None], loads[:, step].T[..., None]
            fits = (free >= size) & (self._rank < limit[:, step, None])
            if limits is not None:
                real = np.array([step < len(trial.order) for trial in trials])
                open_to = limits.devices[table[:, step]]
                if holds is not None and limits.conflicts is not None:
                    against = limits.conflicts[table[:, step]]
                    own_devices = holds[every, table[:, step]]
                    may_have_more = own_devices.sum(axis=1) < self._most[table[:, step]]
                    open_to = open_to & ~np.einsum("nt,ntd->nd", against, holds)
                    open_to &= own_devices | may_have_more[:, None]
                fits &= open_to | ~real[:, None]
            new = held + part
            np.maximum(held[maxima], part[maxima], out=new[maxima])
            own = self._phases(new)
            score = np.maximum(own, slowest[:, None]).sum(axis=-1)
            score[~fits] = np.inf
            chosen = score.argmin(axis=1)
            has_room &= np.isfinite(score[every, chosen])
            if not has_room.any():
                break
            device[:, step] = chosen
            held[:, every, chosen] = new[:, every, chosen]
            np.maximum(slowest, own[every, chosen], out=slowest)
            free[every, chosen] -= memory[:, step]
            if holds is not None:
                holds[every, table[:, step], chosen] |= real
        cost = self._phases(held).max(axis=1).sum(axis=-1)
        return np.where(has_room, cost, np.inf), device

    def _phases(self, held: FloatArray) -> FloatArray:
        """(N, D, 4) ms of devices with (K, N, D) loads."""
        return self._model.device_phases(np.moveaxis(held, 0, -1))


class _Trial(NamedTuple):
    """A way to place parts."""

    split: SplitTables  # without devices
    free: IntArray  # (D,) bytes
    order: IntArray  # (I,)
    limit: IntArray  # (I,) how many of the first devices may hold each part


def _open_to(limits: Constraints) -> IntArray | None:
    """(T,) how many devices each table may be on, less the tables it stays apart from; None if all have as many."""
    count = limits.devices.sum(axis=1) - (0 if limits.conflicts is None else limits.conflicts.sum(axis=1))
    return None if (count == count[0]).all() else count


def moldable_splits(
    task: Task,
    constants: RoughConstants = ROUGH,
    sharding_types: tuple[str, ...] = SHARDING_TYPES,
    max_shards: int | None = None,
) -> list[tuple[float, SplitTables]]:
    """The plans of a task without groups, as searches have them, with estimates in ms, cheapest first."""
    model = OwnTimes(task.tables, task.topology, constants)
    for every_count in (False, True):  # parts that are no halves may fit where halves do not
        options = SplitOptions(task, model, sharding_types, max_shards, every_count)
        if found := Moldable(options, model).plans():
            return found
    return []


def moldable_plans(task: Task, most: int = 8, constants: RoughConstants = ROUGH) -> list[tuple[float, ShardingPlan]]:
    """Plans of `task` by the rule, with its own estimates in ms, cheapest first; none if it finds no room.

    They fit the memory caps and keep to the constraints. Where tables, or states of rows, must be in HBM beside rows in
    host memory, HBM may be short of room for them, which the agent `moldable` sees to. Where a plan may have groups of
    devices, some have.

    Args:
        most: plans at most, of each number of groups.
        constants: the constants of the estimate.
    """
    found: list[tuple[float, ShardingPlan]] = []
    for groups in possible_groups(task) if task.sync_every else [ONE_GROUP]:
        for cost, split in moldable_splits(task_of_group(task, groups), constants)[:most]:
            found.append((cost, replace(split.plan(), groups=groups)))
    return sorted(found, key=lambda each: each[0])
