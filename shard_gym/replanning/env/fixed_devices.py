"""What happens to a task while m devices are there, whatever is done: the plans that can be made, and their costs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.plans.placement import Placement
from shard_gym.replanning.drift.processes import INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.planner import MAX_NUMBERS, NO_PLACEMENT, Planner
from shard_gym.replanning.env.windows import HOURS, INTERVALS_PER_HOUR, KINDS, LAST_HOUR, WINDOWS, window_means

ALL_HOURS: IntArray = np.arange(HOURS)

EVERY = slice(None)
Index = IntArray | slice | int  # of hours or of windows

KEPT_RUNS = 256
"""Days of plans whose costs are kept."""


class PlansOfDay(NamedTuple):
    """The plans that can be made at the H = 24 decisions of a day, each of one of the Z `KINDS`."""

    plans: IntArray  #: (H, Z, P) int64, devices
    possible: NDArray[np.bool_]  #: (H, Z) bool; a plan with headroom may have no room
    #: (H, Z, W) float64, cost of each plan with the mean lookups of each window before its decision.
    replayed_ms: FloatArray


class RunOfDay(NamedTuple):
    """One plan on one day."""

    interval_ms: FloatArray  #: (H, 4) float64, cost of an iteration in each interval of each hour
    replayed_ms: FloatArray  #: (H, W) float64, its cost with the mean lookups of each window before each decision
    phases_ms: FloatArray  #: (H, m, 4) float64, of each device with the mean lookups of the hour before each decision
    memory: FloatArray  #: (m,) float64, share of each memory cap in use; more than 1 if the tables outgrew a device


Array = TypeVar("Array", bound=NDArray[Any])


def read_only(array: Array) -> Array:
    """`array` itself, which is kept for later callers, protected from writes."""
    array.setflags(write=False)
    return array


class FixedDevices:
    """The plans of a task on m devices. Everything is computed when it is first asked for, and knows the past alone.

    Days are counted from the first of the episode.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.planner = Planner(parts.model, parts.topology)
        self._cluster = parts.topology.cluster()
        self._kinds = KINDS if parts.task.grows else KINDS[: len(WINDOWS)]
        self._window_lookups: dict[int, FloatArray] = {}
        shape = DAYS * HOURS, len(WINDOWS)
        self._greedy = {  # without and with headroom: placements, and which of them are known
            headroom: (np.zeros((*shape, parts.count), np.int64), np.zeros(shape, np.bool_))
            for headroom in (False, True)
        }
        self._plans: dict[int, PlansOfDay] = {}
        self._runs: OrderedDict[tuple[bytes, int], RunOfDay] = OrderedDict()

    def plans(self, day: int) -> PlansOfDay:
        """The plans that can be made on day 0, 1, ... of the episode.

        The plan for a window is the cheapest, with the mean lookups of that window, of the greedy placements for it and
        for the same window at the 23 decisions before. Greedy placements alone cost 1 to 2.5% more for the last three
        days, and by how much changes from hour to hour (five tasks of mixdim-8, 23 November 2026). Where none has room,
        the plan is `Parts.known`, and one with headroom is not possible.
        """
        if day not in self._plans:
            halves = [self._plans_of(day, headroom) for headroom in sorted({kind.headroom for kind in self._kinds})]
            plans, possible = (np.concatenate(each, axis=1) for each in zip(*halves, strict=True))
            loads, everywhere = self._window_loads(day)
            replayed = self.planner.costs(loads[:, None], everywhere[:, None], plans[:, :, None])
            self._plans[day] = PlansOfDay(*map(read_only, (plans, possible, replayed)))
        return self._plans[day]

    def plan(self, day: int, hour: int, kind: int) -> tuple[Placement, bool]:
        """One of `plans(day)`, and whether it is possible. Where they are not known yet, no others are computed."""
        if kind >= len(self._kinds):
            return np.zeros(self.parts.count, np.int64), False
        if day in self._plans:
            return self._plans[day].plans[hour, kind], bool(self._plans[day].possible[hour, kind])
        (window, headroom), last = KINDS[kind], day * HOURS + hour
        windows = slice(window, window + 1)
        tried = self._greedy_of(np.arange(max(last + 1 - HOURS, 0), last + 1), headroom, windows)
        room = self._has_room(tried, day, headroom)
        plans, possible = self._cheapest(day, hour, headroom, tried, room, windows)
        return read_only(plans[0]), bool(possible[0])

    def window_ms(self, plan: Placement, day: int, hour: int, window: int) -> float:
        """Ms of a plan with the mean lookups of a window before a decision."""
        return float(self.planner.costs(*self._window_loads(day, hour, window), plan))

    def run(self, plan: Placement, day: int) -> RunOfDay:
        """(P,) `plan` on day 0, 1, ... of the episode."""
        key = plan.tobytes(), day
        if key in self._runs:
            self._runs.move_to_end(key)
            return self._runs[key]
        loads, everywhere = self._window_loads(day)
        held = self.planner.device_loads(loads[:, LAST_HOUR], everywhere[:, LAST_HOUR], plan)
        found = RunOfDay(
            self.interval_ms(plan, day),
            self.planner.costs(loads, everywhere, plan),
            self.planner.model.device_costs(held, self._cluster),
            self.memory(plan, day),
        )
        self._runs[key] = found
        if len(self._runs) > KEPT_RUNS:
            self._runs.popitem(last=False)
        return found

    def interval_ms(self, plans: IntArray, day: int, hours: IntArray = ALL_HOURS) -> FloatArray:
        """(h, 4) cost of an iteration with (P,) or (h, P) plans in each interval of `hours` of day -1, 0, 1, ..."""
        first = (HISTORY_DAYS + day) * INTERVALS_PER_DAY
        lookups = self.parts.task.drift.lookups[first : first + INTERVALS_PER_DAY]
        loads, everywhere = self.parts.loads(HISTORY_DAYS + day, lookups.reshape(HOURS, INTERVALS_PER_HOUR, -1)[hours])
        return self.planner.costs(loads, everywhere, plans[..., None, :])

    def hourly_ms(self, plans: IntArray, day: int) -> FloatArray:
        """(n, H) mean cost of an iteration with each of (n, P) plans in each hour of day 0, 1, ..."""
        first = (HISTORY_DAYS + day) * INTERVALS_PER_DAY
        lookups = self.parts.task.drift.lookups[first : first + INTERVALS_PER_DAY]
        costs = self._of_many(plans, *self.parts.loads(HISTORY_DAYS + day, lookups))
        return np.asarray(costs.reshape(len(plans), HOURS, INTERVALS_PER_HOUR).mean(axis=-1))

    def replayed_ms(self, plans: IntArray, day: int) -> FloatArray:
        """(n, H, W) cost of each of (n, P) plans with the mean lookups of each window before each decision of a day."""
        loads, everywhere = self._window_loads(day)
        costs = self._of_many(plans, loads.reshape(-1, *loads.shape[2:]), everywhere.reshape(-1, loads.shape[-1]))
        return costs.reshape(len(plans), HOURS, len(WINDOWS))

    def memory(self, plan: Placement, day: int) -> FloatArray:
        """(m,) share of each memory cap that a plan uses on a day."""
        today = HISTORY_DAYS + day
        caps, devices = self.parts.topology.memory_cap_bytes, self.parts.topology.num_devices
        used = np.bincount(plan, self.parts.bytes_of(today), devices) + caps - self.parts.free(today)
        return np.asarray(used / caps)

    def _of_many(self, plans: IntArray, loads: FloatArray, everywhere: FloatArray) -> FloatArray:
        """(n, M) ms of each of (n, P) plans with each of (M, P, K) loads."""
        at_once = max(1, MAX_NUMBERS // (len(loads) * self.parts.topology.num_devices * loads.shape[-1]))
        chunks = [plans[begin : begin + at_once] for begin in range(0, len(plans), at_once)]
        return np.concatenate([self.planner.many_costs(loads, everywhere, some) for some in chunks])

    def window_lookups(self, day: int) -> FloatArray:
        """(H, W, T) mean lookups of each window before each decision of a day, in multiples of the pooling factors."""
        if day not in self._window_lookups:
            lookups = self.parts.task.drift.lookups
            self._window_lookups[day] = read_only(window_means(lookups, (HISTORY_DAYS + day) * HOURS, HOURS))
        return self._window_lookups[day]

    def _window_loads(self, day: int, hours: Index = EVERY, windows: Index = EVERY) -> tuple[FloatArray, FloatArray]:
        """(h, w, P, K) loads of the parts and (h, w, K) on every device, with the mean lookups of windows."""
        return self.parts.loads(HISTORY_DAYS + day, self.window_lookups(day)[hours, windows])

    def _plans_of(self, day: int, headroom: bool) -> tuple[IntArray, NDArray[np.bool_]]:
        """(H, W, P) plans with or without headroom; (H, W) bool, which are possible."""
        first = max(day - 1, 0) * HOURS
        tried = self._greedy_of(np.arange(first, (day + 1) * HOURS), headroom, EVERY)
        room, found = self._has_room(tried, day, headroom), []
        for hour in range(HOURS):
            last = day * HOURS - first + hour + 1
            some = slice(max(last - HOURS, 0), last)
            found.append(self._cheapest(day, hour, headroom, tried[some], room[some], slice(None)))
        plans, possible = (np.stack(each) for each in zip(*found, strict=True))
        return plans, possible

    def _has_room(self, tried: IntArray, day: int, headroom: bool) -> NDArray[np.bool_]:
        """(...) whether (..., P) placements, or `NO_PLACEMENT`, leave each device within its memory on a day."""
        fits = self.parts.fits(np.maximum(tried, 0), *self._memory(day, headroom))
        return np.asarray((tried[..., 0] != NO_PLACEMENT) & fits)

    def _cheapest(
        self, day: int, hour: int, headroom: bool, tried: IntArray, room: NDArray[np.bool_], windows: slice
    ) -> tuple[IntArray, NDArray[np.bool_]]:
        """(w, P) the cheapest of (n, w, P) placements for w windows before a decision; (w,) whether one has room."""
        costs = self.planner.costs(*self._window_loads(day, hour, windows), np.maximum(tried, 0))
        costs = np.where(room, costs, np.inf)
        plans = tried[costs.argmin(axis=0), np.arange(tried.shape[1])]
        possible = np.asarray(np.isfinite(costs).any(axis=0))
        plans[~possible] = 0 if headroom else self.parts.known
        return plans, possible if headroom else np.ones_like(possible)

    def expect(self, decisions: IntArray, kinds: IntArray) -> None:
        """Make what the plans of n kinds at n decisions are chosen from, all at once, which takes less time.

        Args:
            decisions: (n,) int64; `plan` is asked for these afterwards.
            kinds: (n,) int64 of them.
        """
        wanted = {headroom: np.zeros_like(known) for headroom, (_, known) in self._greedy.items()}
        for decision, kind in zip(decisions.tolist(), kinds.tolist(), strict=True):
            if kind < len(self._kinds) and decision // HOURS not in self._plans:
                window, headroom = KINDS[kind]
                wanted[headroom][max(decision + 1 - HOURS, 0) : decision + 1, window] = True
        for headroom, those in wanted.items():
            self._place_greedily(headroom, those)

    def _greedy_of(self, decisions: IntArray, headroom: bool, windows: slice) -> IntArray:
        """(n, w, P) int64, the greedy placements for windows before n decisions."""
        placements, known = self._greedy[headroom]
        wanted = np.zeros_like(known)
        wanted[decisions, windows] = True
        self._place_greedily(headroom, wanted)
        return placements[decisions, windows]

    def _place_greedily(self, headroom: bool, wanted: NDArray[np.bool_]) -> None:
        """Make those greedy placements for the (decisions, W) `wanted` windows that are not known yet."""
        placements, known = self._greedy[headroom]
        decision, window = np.nonzero(wanted & ~known)
        if not len(decision):
            return
        days, hours = np.divmod(decision, HOURS)
        inputs = []
        for day in np.unique(days).tolist():
            own = days == day
            loads = self._window_loads(day, hours[own], window[own])
            memory = (np.broadcast_to(each, (own.sum(), len(each))) for each in self._memory(day, headroom))
            inputs.append((*loads, *memory))
        placements[decision, window] = self.planner.greedy(*map(np.concatenate, zip(*inputs, strict=True)))
        known[decision, window] = True

    def _memory(self, day: int, headroom: bool) -> tuple[IntArray, IntArray]:
        """(P,) bytes of the parts, and (m,) bytes free for them."""
        today = HISTORY_DAYS + day
        return self.parts.bytes_ahead(today) if headroom else (self.parts.bytes_of(today), self.parts.free(today))
