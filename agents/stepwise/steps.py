"""`Steps`: plans of a task, built table after table; in each step weights decide on a form and on devices.

All quantities are those of `OwnTimes`, so no cost model is asked. The tables come by the logarithm of their least work,
of their columns and of their bytes. For each form of a table, its parts go to the devices with the lowest score; then
the form with the lowest score is taken. Many plans are built at once, each with weights of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.search.forms import TableForms, where_any
from shard_gym.agents.search.own_times import LANE_SHARE, OwnTimes
from shard_gym.agents.search.splits import NOT_SPREAD, SplitOptions, SplitTables
from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.analytical.model import lane_share
from shard_gym.plans.plan import DATA_PARALLEL, ROW_WISE


class Weight(IntEnum):
    """The weights; but for the first two, which order the tables, each is the logarithm of a factor.

    Work, the ms that a step adds to all phases of all devices, has the factor 1.
    """

    COLUMNS = 0  # of a table, in its place in the order
    BYTES = 1  # the same
    SLOWEST = 2  # how far a device is above the slowest one, in each phase
    ABOVE = 3  # what a part adds above the mean that is expected at the end, in each phase
    LEVEL = 4  # the sum of the phases of a device
    ROOM = 5  # the share of memory that is free on a device, times how short memory is
    LANES = 6  # lanes that stay idle for a part on a device
    FORM_SLOWEST = 7  # how much later the slowest device is done, in each phase
    FORM_ABOVE = 8  # how much further the device that is furthest above it is then
    FORM_BYTES = 9  # bytes that a form takes, times how short memory is
    FORM_LANES = 10  # as LANES, of all parts
    FORM_PARTS = 11  # parts of a table beyond the first
    ROWS = 12  # a table in blocks of rows on all devices
    REPLICAS = 13  # a table on every device
    HOST_ROWS = 14  # a table in blocks of rows on one host


START: FloatArray = np.array([0.0, 0.0, -3, 1, -1, -1, -3, -3, -1, 0, -3, -5, -3, -4, -3], np.float64)
"""Weights to begin with; rough ones are enough, for learning moves them."""

MOST_SHORT = 1.5  # how short memory is: bytes still to come of those free, at most this
FEW_FIRST = 40.0  # tables that constraints let on few devices come first


@dataclass(frozen=True)
class Built:
    """N plans."""

    ms: FloatArray  # (N,) by `OwnTimes`; infinite where a table found no room
    spread: IntArray  # (N, T), as in `SplitTables`
    level: IntArray  # (N, T), of the parts that are not the narrower ones of a table
    parts: NDArray[np.int16]  # (N, T, 2, D), how many parts each device has of these, and of the narrower ones

    def loads(self, options: SplitOptions) -> FloatArray:
        """(N, D, K) loads of devices under the model of `options`, which are those of the task with any model."""
        model, (count, _, _, devices) = options.model, self.parts.shape
        plan, table, level, device = self._listed(np.arange(count), options)
        held = model.reduce(options.loads[table, level], plan * devices + device, count * devices)
        held = held.reshape(count, devices, -1)
        fixed = np.stack([options.fixed(spread)[0] for spread in self.spread])
        return np.asarray(model.add(held, fixed))

    def split(self, number: int, options: SplitOptions) -> SplitTables:
        """One of the plans."""
        _, table, level, device = self._listed(np.array([number]), options)
        return SplitTables(options, table, level, device, self.spread[number])

    def _listed(self, plans: IntArray, options: SplitOptions) -> IntArray:
        """(4, I) the place in `plans`, the table, the level and the device of all parts of some plans."""
        plan, table, narrower, device = self.parts[plans].nonzero()
        level = self.level[plans[plan], table]
        level = np.where(narrower == 1, options.levels.narrower[level], level)
        times = self.parts[plans[plan], table, narrower, device]
        return np.repeat(np.stack([plan, table, level, device]), times, axis=1)


@dataclass
class _State:
    """What devices hold in N plans that are being built; in L versions of them, there is an axis before that of N."""

    held: FloatArray  # (K, N, D) loads
    phases: FloatArray  # (4, N, D) ms
    free: FloatArray  # (N, D) bytes

    def versions(self, count: int) -> _State:
        """L copies of it."""
        held, phases, free = self.held[:, None], self.phases[:, None], self.free[None]
        return _State(*(np.repeat(each, count, axis=each.ndim - 3) for each in (held, phases, free)))

    def version(self, number: int) -> _State:
        return _State(self.held[:, number], self.phases[:, number], self.free[number])


@dataclass
class _Versions:
    """N plans in which one table comes, each in L versions; all change in place as its parts are placed."""

    state: _State
    score: FloatArray  # (L, N, D), of each device what its score would be without a part
    parts: NDArray[np.int16]  # (2, L, N, D), of the table
    idle: FloatArray  # (L, N), lanes


@dataclass
class _Step:
    """A table in one form, in N plans."""

    score: FloatArray  # (N,), infinite where there is no room
    state: _State
    level: int
    spread: IntArray  # (N,)
    parts: NDArray[np.int16] | None  # (N, 2, D)


class Steps:
    """A task, ready for plans of one group to be built.

    Args:
        options: what is possible, with the loads of `model`.
        model: the estimate.
    """

    def __init__(self, options: SplitOptions, model: OwnTimes) -> None:
        self.options, self._model, task = options, model, options.task
        forms = self._forms = TableForms(options, model)
        self._caps = task.topology.memory_cap_bytes.astype(np.float64)
        legal = where_any(forms.legal & (forms.memory <= self._caps.max()), forms.legal)
        work = np.where(legal, forms.part_ms * forms.parts, np.inf)
        every, least = np.arange(task.num_tables), work.argmin(axis=1)
        devices = task.num_devices
        self._least_bytes = np.where(legal, forms.bytes, np.inf).min(axis=1)
        self._scale = max(float(work.min(axis=1).sum()) / devices, 1e-12)  # ms
        alone = model.part_phases(forms.loads[every, least], lane_share(forms.width[every, least]))
        self._rest = alone * forms.parts[every, least][:, None] / devices  # (T, 4) of the mean device
        self._order = np.stack(
            [
                np.log2(work.min(axis=1) / self._scale + 1e-6),
                np.log2(task.tables.embedding_dim),
                np.log2(self._least_bytes / self._caps.max() + 1e-4),
            ]
        )
        limits = task.constraints
        if limits is not None:
            self._order[0] += FEW_FIRST * (1.0 - limits.devices.mean(axis=1))
        self._levels = np.ascontiguousarray(options.loads[:, : forms.count].transpose(2, 1, 0))  # (K, L, T)
        self._memory = np.ascontiguousarray(options.memory[:, : forms.count].T.astype(np.float64))  # (L, T)
        self._names = [options.spreads[numbers[0]].sharding_type for numbers in forms.ways]
        self._members = [np.zeros((len(numbers), devices), np.bool_) for numbers in forms.ways]
        for members, numbers in zip(self._members, forms.ways, strict=True):
            for row, number in enumerate(numbers):
                members[row, options.spreads[number].devices] = True

    def build(self, weights: FloatArray) -> Built:
        """N plans with (N, `Weight`) weights."""
        task, count = self.options.task, len(weights)
        devices, tables, every = task.num_devices, task.num_tables, np.arange(count)
        factors = dict(zip(Weight, np.exp(weights.T)[..., None], strict=True))  # (N, 1) each
        key = self._order[0] + weights[:, [Weight.COLUMNS]] * self._order[1]
        order = np.argsort(-(key + weights[:, [Weight.BYTES]] * self._order[2]), axis=1, kind="stable")
        held = np.zeros((self._levels.shape[0], count, devices))
        state = _State(held, self._phases(held), np.repeat(self._caps[None], count, axis=0))
        rest, bytes_left = np.repeat(self._rest.sum(axis=0)[None], count, axis=0), np.full(count, 0.0)
        bytes_left += self._least_bytes.sum()
        spread, level = np.full((count, tables), NOT_SPREAD), np.zeros((count, tables), np.int64)
        parts, alive = np.zeros((count, tables, 2, devices), np.int16), np.ones(count, np.bool_)
        for step in range(tables):
            table = order[:, step]
            rest = rest - self._rest[table]
            bytes_left = bytes_left - self._least_bytes[table]
            short = np.clip(bytes_left / np.maximum(state.free.sum(axis=1), 1.0), 0.0, MOST_SHORT)[:, None]
            open_to = self._open_to(table, spread, parts)
            now = _Now(self, table, state, rest, short, factors, open_to)
            steps = now.in_columns() + now.on_many()
            if not steps:  # a table that has no form at all
                return Built(np.full(count, np.inf), spread, level, parts)
            scores = np.stack([each.score for each in steps])
            best = scores.argmin(axis=0)
            has_room = np.isfinite(scores[best, every])
            alive &= has_room
            for number, each in enumerate(steps):
                taken = np.flatnonzero((best == number) & has_room)
                if not len(taken):
                    continue
                state.held[:, taken] = each.state.held[:, taken]
                state.phases[:, taken], state.free[taken] = each.state.phases[:, taken], each.state.free[taken]
                level[taken, table[taken]], spread[taken, table[taken]] = each.level, each.spread[taken]
                if each.parts is not None:
                    parts[taken, table[taken]] = each.parts[taken]
        ms = self._model.costs(state.held.transpose(1, 2, 0), self.options.cluster)[1]
        return Built(np.where(alive, ms, np.inf), spread, level, parts)

    def _open_to(self, table: IntArray, spread: IntArray, parts: NDArray[np.int16]) -> NDArray[np.bool_] | None:
        """(N, D) bool, the devices that constraints let hold the tables; None if all may."""
        limits = self.options.task.constraints
        if limits is None:
            return None
        found = limits.devices[table]
        if limits.conflicts is not None:
            against = limits.conflicts[table]  # (N, T)
            on = parts.any(axis=2)
            for form, numbers in enumerate(self._forms.ways):
                for row, number in enumerate(numbers):
                    on |= (spread == number)[..., None] & self._members[form][row]
            found = found & ~np.einsum("nt,ntd->nd", against, on)
        return np.asarray(found)

    def _phases(self, held: FloatArray) -> FloatArray:
        """(4, ..., D) ms of devices with (K, ..., D) loads."""
        loads = held.transpose(*range(1, held.ndim), 0)
        return self._model.device_phases(loads).transpose(-1, *range(held.ndim - 1))


class _Now:
    """The step in which one table comes, in N plans."""

    def __init__(
        self,
        steps: Steps,
        table: IntArray,
        state: _State,
        rest: FloatArray,
        short: FloatArray,
        factors: dict[Weight, FloatArray],
        open_to: NDArray[np.bool_] | None,
    ) -> None:
        self._steps, self._table, self._state, self._short = steps, table, state, short
        self._factors, self._open_to = factors, open_to
        self._slowest = state.phases.max(axis=2)[..., None]  # (4, N, 1)
        self._expected = (state.phases.mean(axis=2) + rest.T)[..., None]  # (4, N, 1)
        self._above = np.maximum(state.phases - self._expected, 0.0)  # (4, N, D)
        self._cap = float(steps._caps.max())

    def in_columns(self) -> list[_Step]:
        """The table whole, and in all numbers of parts: versions of the plans, each of a level."""
        steps, table = self._steps, self._table
        good = steps._forms.legal[table, : steps._forms.count].T  # (L, N)
        numbers = np.flatnonzero(good.any(axis=1))
        if not len(numbers):
            return []
        good, levels = good[numbers], steps.options.levels
        counts = np.moveaxis(levels.counts[table[None], numbers[:, None]], -1, 0) * good  # (2, L, N)
        shape = len(numbers), *self._state.free.shape
        before = self._state.phases.sum(axis=0) + self._factors[Weight.ABOVE] * self._above.sum(axis=0)
        all_before = np.repeat(before[None], len(numbers), axis=0)
        state, parts = self._state.versions(len(numbers)), np.zeros((2, *shape), np.int16)
        versions = _Versions(state, all_before, parts, np.zeros(good.shape))
        for kind, of_kind in enumerate((numbers, levels.narrower[numbers])):
            for number in range(int(counts[kind].max(initial=0))):
                asked = (number < counts[kind]) & good
                some = np.flatnonzero(asked.any(axis=1))
                if len(some):
                    good &= ~asked | self._put(versions, kind, of_kind, asked, some)
        score = self._score(state, good)
        score += self._factors[Weight.FORM_LANES][:, 0] * versions.idle * steps._scale / shape[-1]
        extra = np.maximum(counts.sum(axis=0) - 1, 0)
        score += self._factors[Weight.FORM_PARTS][:, 0] * extra * steps._scale / shape[-1]
        nowhere, of_plan = np.full(len(table), NOT_SPREAD), parts.transpose(1, 2, 0, 3)
        return [
            _Step(score[version], state.version(version), level, nowhere, of_plan[version])
            for version, level in enumerate(numbers.tolist())
        ]

    def _put(
        self, versions: _Versions, kind: int, levels: IntArray, asked: NDArray[np.bool_], some: IntArray
    ) -> NDArray[np.bool_]:
        """Let the device with the lowest score get a part, in the versions and plans that are `asked`.

        Args:
            versions: change in place.
            kind: of the parts, 1 for the narrower ones.
            levels: (L,) of the parts.
            asked: (L, N) bool.
            some: the versions in which it is, for any plan.

        Returns:
            (L, N) bool, where a device has room.
        """
        state, parts = versions.state, versions.parts
        steps, factors, chosen = self._steps, self._factors, levels[some][:, None]
        every = slice(None) if len(some) == len(levels) else some  # without copies
        loads, memory = steps._levels[:, chosen, self._table][..., None], steps._memory[chosen, self._table][..., None]
        held_before, free = state.held[:, every], state.free[every]
        held, maxima = held_before + loads, steps._model.maxima
        held[maxima] = np.maximum(held_before[maxima], loads[maxima])
        phases = steps._phases(held)
        total = phases.sum(axis=0)
        new = total + factors[Weight.ABOVE] * np.maximum(phases - self._expected[:, None], 0.0).sum(axis=0)
        lanes = held[LANE_SHARE] - loads[LANE_SHARE]
        score = new - versions.score[every] + factors[Weight.LEVEL] * total
        score += factors[Weight.SLOWEST] * np.maximum(phases - self._slowest[:, None], 0.0).sum(axis=0)
        score += (steps._scale * factors[Weight.LANES]) * lanes
        score -= (steps._scale / self._cap * factors[Weight.ROOM] * self._short) * free
        may = free >= memory
        if self._open_to is not None:
            on = parts[:, every].any(axis=0)
            may &= self._open_to & (on | (on.sum(axis=-1) < steps._forms.most_devices[self._table])[..., None])
        score[~may] = np.inf
        device = score.argmin(axis=-1)
        best = np.take_along_axis(score, device[..., None], axis=-1)[..., 0]
        row, plan = np.nonzero(asked[some] & np.isfinite(best))
        device, version = device[row, plan], some[row]
        state.held[:, version, plan, device] = held[:, row, plan, device]
        state.phases[:, version, plan, device] = phases[:, row, plan, device]
        state.free[version, plan, device] -= memory[row, plan, 0]
        versions.score[version, plan, device] = new[row, plan, device]
        parts[kind, version, plan, device] += 1
        versions.idle[version, plan] += lanes[row, plan, device]
        placed = np.zeros_like(asked)
        placed[version, plan] = True
        return placed

    def on_many(self) -> list[_Step]:
        """The table on all devices, or on those of the host with the least work."""
        steps, table, options = self._steps, self._table, self._steps.options
        found, forms = list[_Step](), self._steps._forms
        maxima = steps._model.maxima
        for way, numbers in enumerate(forms.ways):
            form = forms.count + way
            good = forms.legal[table, form]
            if not good.any():
                continue
            members, memory = steps._members[way], forms.memory[table, form].astype(np.float64)[:, None]
            may = options.may_spread[table][:, numbers]  # (N, M)
            on = self._state.free >= memory
            if self._open_to is not None:
                on &= self._open_to
            may = may & ~(members[None] & ~on[:, None]).any(axis=-1)
            level = np.where(may, self._state.phases.sum(axis=0) @ members.T, np.inf)
            host = level.argmin(axis=1)
            mask = members[host]
            loads = forms.loads[table, form].T[..., None]
            held = self._state.held + loads
            held[maxima] = np.maximum(self._state.held[maxima], loads[maxima])
            held = np.where(mask, held, self._state.held)
            state = _State(held, steps._phases(held), self._state.free - memory * mask)
            score = self._score(state, good & may.any(axis=1))
            score += self._factors[_OF_SPREAD.get(steps._names[way], Weight.HOST_ROWS)][:, 0] * steps._scale
            found.append(_Step(score, state, 0, np.asarray(numbers)[host], None))
        return found

    def _score(self, state: _State, good: NDArray[np.bool_]) -> FloatArray:
        """(N,) of a form, or (L, N) of versions; infinite where it is not `good`."""
        now, factors, devices = self._state, self._factors, state.free.shape[-1]
        more = (state.phases.sum(axis=0) - now.phases.sum(axis=0)).sum(axis=-1) / devices
        versions = (slice(None), *(None for _ in range(state.free.ndim - now.free.ndim)))
        slower = np.maximum(state.phases.max(axis=-1) - self._slowest[..., 0][versions], 0.0).sum(axis=0)
        above = np.maximum(state.phases - self._expected[versions], 0.0).max(axis=-1)
        above -= self._above.max(axis=-1)[versions]
        taken = (now.free - state.free).sum(axis=-1) / self._cap / devices
        score = more + factors[Weight.FORM_SLOWEST][:, 0] * slower
        score += factors[Weight.FORM_ABOVE][:, 0] * above.sum(axis=0)
        score += factors[Weight.FORM_BYTES][:, 0] * self._short[:, 0] * taken * self._steps._scale
        return np.where(good, score, np.inf)


_OF_SPREAD = {ROW_WISE: Weight.ROWS, DATA_PARALLEL: Weight.REPLICAS}
