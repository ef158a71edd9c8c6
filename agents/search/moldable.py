"""Moldable tables: plans by a rule that asks no cost model.

In scheduling, a moldable task runs on a number of machines that is chosen before it starts, and more machines make it
shorter and its work larger. Turek, Wolf and Yu (SPAA 1992, "Approximate algorithms for scheduling parallelizable
tasks") choose for a target time the cheapest form of each task that is no longer, place them as if they were rigid, and
search for the target; Mounié, Rapine and Trystram (SIAM Journal on Computing 37, 2007) bound what that loses. So here,
by `OwnTimes`:

1. For a target time, a widest part and a price of memory, each table takes the form with the least work of all its
   parts whose part alone takes no longer than the target and is no wider.
2. Tables on many devices come first: all rows or replicas, then rows on the hosts that have least. Then the parts, the
   longest first (LPT), each where the sum of the slowest phases grows least. Parts wider than the widest are on some
   first devices of each host alone, so that they lend their lanes to no other.
3. Targets, widths and numbers of devices for wide parts vary; the plan that `OwnTimes` calls cheapest counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.items import NoRoomError
from shard_gym.agents.search.own_times import (
    LANE_SHARE,
    RATES,
    OwnTimes,
    Rates,
)
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share
from shard_gym.plans import SHARDING_TYPES, ShardingPlan
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.tables import MAX_DIM
from shard_gym.tasks import Task
from shard_gym.tasks.groups import possible_groups, task_of_group

WIDTHS = (MAX_DIM, 64, 32)
TARGETS = (4.0, 2.0, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05)
"""Of the mean time of a device if all tables take the form of least work."""
WIDE = (0.7, 1.0, 1.4)  # of the devices that wide parts would keep as busy as narrow ones the others
FULL = 0.9  # of the memory of all devices, that forms may take together
LARGE = 0.2  # of the memory of a device: where parts do not fit, larger ones come first
MOST_STEPS = 60_000_000  # parts times devices that are tried, over all plans of a task
LEAST_PLANS, MOST_PLANS = 4, 48


class _Form(NamedTuple):
    """What tables become for one target, width and price: a set of parts."""

    ms: float  # a bound of what it will cost
    split: SplitTables
    width: int


class Moldable:
    """The plans of one task without groups, under one estimate.

    Args:
        options: what is possible, with the loads of `OwnTimes`.
    """

    def __init__(self, options: SplitOptions) -> None:
        self.options, task = options, options.task
        levels, count = options.levels, len(options.levels)
        devices, topology = task.num_devices, task.topology
        self._caps = topology.memory_cap_bytes
        ways: dict[int, list[int]] = {}
        for number, way in enumerate(options.spreads):
            ways.setdefault(way.variant, []).append(number)
        self._ways = ways
        variant = np.array([*range(count), *ways])
        legal = levels.is_form
        if ways:
            may = np.stack([options.may_spread[:, numbers].any(axis=1) for numbers in ways.values()], axis=1)
            legal = np.concatenate([legal, may], axis=1)
        self._legal = legal  # (T, F)
        self._loads = options.loads[:, variant]  # (T, F, K), of a part
        self._width = np.concatenate([levels.width, np.repeat(task.tables.embedding_dim[:, None], len(ways), 1)], 1)
        self._memory = options.memory[:, variant]
        # How many parts of the form, and what the narrower ones add, in parts.
        self._parts = np.empty(legal.shape)
        self._parts[:, :count] = levels.counts[..., 0] + levels.counts[..., 1] * (
            levels.width[:, levels.narrower] / levels.width
        )
        for form, numbers in enumerate(ways.values(), start=count):
            self._parts[:, form] = len(options.spreads[numbers[0]].devices)
        self._bytes = self._memory * self._parts
        self._first = np.lexsort((topology.hosts, np.arange(devices) % topology.devices_per_host))

    def _alone(self, share: FloatArray) -> FloatArray:
        """(T, F) ms of a part on a device whose lane share is that of (T, F) `share`."""
        loads = self._loads.copy()
        loads[..., LANE_SHARE:] = 0.0  # all parts of a device share latencies, and its HBM
        loads[..., LANE_SHARE] = share
        found: FloatArray = self.options.model.device_phases(loads).sum(axis=-1)
        return found

    def forms(self) -> Iterator[_Form]:
        """The sets of parts for all targets and widths that fit the memory together."""
        seen = set()
        for width in WIDTHS:
            if width < MAX_DIM and not (self.options.task.tables.embedding_dim > width).any():
                continue
            floor = lane_share(np.minimum(width, self._width.max()))
            alone = self._alone(np.maximum(lane_share(self._width), floor))
            work = alone * self._parts
            legal = self._legal & (self._memory <= self._caps.max())
            narrow = legal & (self._width <= width)
            count = len(self.options.levels)
            legal = np.where(narrow.any(axis=1, keepdims=True), narrow, legal)
            legal[:, count:] &= self._width[:, count:] <= width
            least = np.where(legal, work, np.inf).min(axis=1).sum() / self.options.task.num_devices
            for target in TARGETS:
                chosen = self._cheapest(work, alone, legal, target * least)
                if chosen is None or (key := (width, chosen.tobytes())) in seen:
                    continue
                seen.add(key)
                yield self._form(chosen, work, alone, width)

    def _cheapest(
        self, work: FloatArray, alone: FloatArray, legal: NDArray[np.bool_], target: float
    ) -> IntArray | None:
        """(T,) the form of each table; None if none fit the memory together."""
        short = legal & (alone <= target)
        shortest = legal & (alone <= np.where(legal, alone, np.inf).min(axis=1, keepdims=True))
        may = np.where(short.any(axis=1, keepdims=True), short, shortest)
        room, every = FULL * float(self._caps.sum()), np.arange(len(may))
        price = 0.0
        for _ in range(12):
            chosen = np.where(may, work + price * self._bytes, np.inf).argmin(axis=1)
            if self._bytes[every, chosen].sum() <= room:
                return np.asarray(chosen)
            price = max(2.0 * price, 0.1 * work.sum() / self._bytes.sum())
        may = legal
        chosen = np.where(may, self._bytes, np.inf).argmin(axis=1)
        return np.asarray(chosen) if self._bytes[every, chosen].sum() <= float(self._caps.sum()) else None

    def _form(self, chosen: IntArray, work: FloatArray, alone: FloatArray, width: int) -> _Form:
        options, every, count = self.options, np.arange(len(chosen)), len(self.options.levels)
        spread = np.full(len(chosen), NOT_SPREAD)
        for form, numbers in enumerate(self._ways.values(), start=count):
            tables = np.flatnonzero(chosen == form)
            if len(numbers) == 1:
                spread[tables] = numbers[0]
                continue
            held, ms = np.zeros(len(numbers)), alone[:, form]
            may = options.may_spread[:, numbers]
            for table in tables[np.argsort(-ms[tables], kind="stable")].tolist():
                host = int(np.where(may[table], held, np.inf).argmin())
                spread[table] = numbers[host]
                held[host] += ms[table]
        split = SplitTables.in_parts(options, spread, np.where(chosen < count, chosen, 0))
        mean = float(work[every, chosen].sum()) / options.task.num_devices
        return _Form(max(mean, float(alone[every, chosen].max())) + mean, split, width)

    def plans(self) -> list[tuple[float, SplitTables]]:
        """Plans that fit with their estimates in ms, cheapest first."""
        devices = self.options.task.num_devices
        forms = sorted(self.forms(), key=lambda each: each.ms)
        found: dict[bytes, tuple[float, SplitTables]] = {}
        left, made = MOST_STEPS, 0
        for form in forms:
            for wide in self._numbers_of_wide(form):
                if made >= MOST_PLANS or (made >= LEAST_PLANS and left < 0):
                    break
                made += 1
                left -= max(1, len(form.split.table)) * devices
                for first in (False, True):
                    with suppress(NoRoomError):
                        cost, split = self._placed(form, wide, first)
                        found.setdefault(split.key, (cost, split))
                        break
        return sorted(found.values(), key=lambda each: each[0])

    def _numbers_of_wide(self, form: _Form) -> list[int]:
        """How many devices may hold parts wider than the widest."""
        options, devices, split = self.options, self.options.task.num_devices, form.split
        wide = split.widths > form.width
        if not wide.any():
            return [devices]
        ms = options.part_ms[split.table, split.level]
        even = devices * ms[wide].sum() / max(ms.sum(), 1e-12)
        return sorted({int(np.clip(round(times * even), 1, devices)) for times in WIDE})

    def _placed(self, form: _Form, wide: int, by_memory: bool) -> tuple[float, SplitTables]:
        """The parts put on devices, and what that costs; raises NoRoomError."""
        options, split = self.options, form.split
        fixed, left = split.fixed()
        if left.min(initial=0) < 0:
            raise NoRoomError(0, 0)
        free = left.astype(np.float64)
        loads, memory = options.loads[split.table, split.level], options.memory[split.table, split.level]
        ms, is_wide = options.part_ms[split.table, split.level], split.widths > form.width
        large = np.where(by_memory & (memory > LARGE * self._caps.mean()), memory, 0)
        order = np.lexsort((-ms, ~is_wide, -large))
        on_wide = np.zeros(len(free), np.bool_)
        on_wide[self._first[:wide]] = True
        model, limits = options.model, options.task.constraints
        held, maxima = fixed.copy(), model.maxima
        phases = model.device_phases(held)
        slowest = phases.max(axis=0)
        device = np.zeros(len(order), np.int64)
        done: list[int] = []
        for part in order.tolist():
            may = free >= memory[part]
            if is_wide[part]:
                may &= on_wide
            if limits is not None:
                may &= options.open_to(int(split.table[part]), split.table[done], device[done])
            fitting = np.flatnonzero(may)
            if not fitting.size:
                raise NoRoomError(part, int(free.max()))
            new = held[fitting] + loads[part]
            np.maximum(held[fitting][:, maxima], loads[part, maxima], out=new[:, maxima])
            own = model.device_phases(new)
            grown = np.maximum(own, slowest).sum(axis=1)
            best = int(np.lexsort((own.sum(axis=1), grown))[0])
            chosen = device[part] = int(fitting[best])
            held[chosen], phases[chosen] = new[best], own[best]
            slowest = np.maximum(slowest, own[best])
            free[chosen] -= memory[part]
            if limits is not None:
                done.append(part)
        return float(slowest.sum()), split.moved(device)


def options_of(
    task: Task,
    sharding_types: tuple[str, ...] = SHARDING_TYPES,
    max_shards: int = 8,
    *,
    every_count: bool = False,
    rates: Rates = RATES,
) -> SplitOptions:
    """What plans of `task` may be made of, with the loads of `OwnTimes`; see `SplitOptions`."""
    model = OwnTimes(task.tables, task.topology, rates)
    return SplitOptions(task, model, sharding_types, max_shards, every_count)


def moldable_plans(task: Task, most: int = 8, rates: Rates = RATES) -> list[tuple[float, ShardingPlan]]:
    """Plans of `task` by the rule, with its own estimates in ms, cheapest first; none if it finds no room.

    They fit the memory caps and keep to the constraints. Where a plan may have groups of devices, some have.

    Args:
        most: plans at most, of each number of groups.
        rates: the constants of the estimate.
    """
    found: list[tuple[float, ShardingPlan]] = []
    for groups in possible_groups(task) if task.sync_every else [ONE_GROUP]:
        for cost, split in moldable_splits(task_of_group(task, groups), rates)[:most]:
            found.append((cost, replace(split.plan(), groups=groups)))
    return sorted(found, key=lambda each: each[0])


def moldable_splits(task: Task, rates: Rates = RATES) -> list[tuple[float, SplitTables]]:
    """The plans of a task without groups, as searches have them: estimates in ms, cheapest first."""
    for every_count in (False, True):  # parts that are no halves may fit where halves do not
        if found := Moldable(options_of(task, every_count=every_count, rates=rates)).plans():
            return found
    return []
