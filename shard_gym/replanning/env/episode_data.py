"""One episode whatever the agent does: the plans that can be made at each decision, and what plans cost."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.cost_models.base import AdditiveCostModel
from shard_gym.plans.migration import migration_seconds
from shard_gym.plans.placement import Placement
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS, ITERATIONS_PER_DAY, DriftTask
from shard_gym.replanning.env.fixed_devices import ALL_HOURS, FixedDevices, PlansOfDay, RunOfDay
from shard_gym.replanning.env.parts import Parts
from shard_gym.replanning.env.split import split_of
from shard_gym.replanning.env.windows import HOURS, LAST_DAYS, LAST_HOUR

BoolArray = NDArray[np.bool_]

DECISIONS = DAYS * HOURS
"""Decisions in an episode."""

HOUR_SECONDS_PER_MS = ITERATIONS_PER_DAY / HOURS / 1e3
"""The seconds of an hour's iterations, from the ms of one."""

KEPT = 256
"""Tasks whose data are kept in a process."""


class Plan(NamedTuple):
    """A plan in action."""

    placement: Placement  #: (P,) int64, for each part a position in `devices`
    devices: IntArray  #: (m,) int64, the devices that were there when it was made

    @property
    def where(self) -> IntArray:
        """(P,) int64, the device of each part."""
        found: IntArray = self.devices[self.placement]
        return found


class EpisodeData:
    """The days of one task, computed when they are first asked for.

    Decisions are numbered 0, 1, ..., days too. What is asked about the time before a decision knows only the past.

    Attributes:
        form: how its tables are split.

    Raises:
        InvalidTaskError: the tables have no room on all days; see `split_of` and `Parts.known`.
    """

    def __init__(self, task: DriftTask, model: AdditiveCostModel) -> None:
        self.task, self.form = task, split_of(task, model)
        counts = np.append(task.available.sum(axis=1), task.task.num_devices)
        self._on = {m: FixedDevices(Parts(task, self.form, model, m)) for m in np.unique(counts).tolist()}
        for fixed in self._on.values():
            fixed.parts.known  # noqa: B018  # raises if there is no room
        self._options: dict[int, PlansOfDay] = {}
        self._always_ms: dict[int, FloatArray] = {}

    @cached_property
    def first_plan(self) -> Plan:
        """The plan in action when the episode begins: that for the three days before it."""
        devices = self.task.task.num_devices
        return Plan(self.on(devices).plan(0, 0, LAST_DAYS)[0], np.arange(devices))

    @cached_property
    def reference_ms(self) -> float:
        """What that plan costs on those days."""
        return self.on(self.task.task.num_devices).window_ms(self.first_plan.placement, 0, 0, LAST_DAYS)

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.form.table)

    def on(self, devices: int) -> FixedDevices:
        """What happens while so many devices are there."""
        return self._on[devices]

    def options(self, day: int) -> PlansOfDay:
        """The plans that can be made at the decisions of a day, each on the devices that are there then."""
        if day not in self._options:
            counts = self.task.available[day * HOURS : (day + 1) * HOURS].sum(axis=1)
            many = {count: self.on(count).plans(day) for count in np.unique(counts).tolist()}
            if len(many) == 1:
                self._options[day] = next(iter(many.values()))
            else:
                hours = range(HOURS)
                self._options[day] = PlansOfDay(
                    *(np.stack([many[int(counts[hour])][field][hour] for hour in hours]) for field in range(3))
                )
        return self._options[day]

    def plan(self, decision: int, kind: int) -> Plan:
        """The plan of a kind that can be made at a decision."""
        return self.plan_if_possible(decision, kind)[0]

    def plan_if_possible(self, decision: int, kind: int) -> tuple[Plan, bool]:
        """The plan of a kind at a decision, and whether it can be made."""
        there = np.flatnonzero(self.task.available[decision])
        placement, possible = self.on(len(there)).plan(*divmod(decision, HOURS), kind)
        return Plan(placement, there), possible

    def expect(self, actions: IntArray) -> None:
        """(h,) actions of the first decisions; their plans take less time when all are known before the first."""
        decisions = np.flatnonzero(actions)
        # The first plan is made with them.
        decisions, kinds = np.append(0, decisions), np.append(LAST_DAYS, actions[decisions] - 1)
        counts = self.task.available.sum(axis=1)[decisions]
        counts[0] = self.task.task.num_devices
        for count in np.unique(counts).tolist():
            self.on(count).expect(decisions[counts == count], kinds[counts == count])

    def run(self, plan: Plan, day: int) -> RunOfDay:
        """`plan` on a day; `RunOfDay` says of which devices."""
        return self.on(len(plan.devices)).run(plan.placement, day)

    def interval_ms(self, plan: Plan, day: int, hours: IntArray = ALL_HOURS) -> FloatArray:
        """(h, 4) ms of `plan` in each interval of hours of day -1, 0, ...: all of `run` that an episode takes."""
        return self.on(len(plan.devices)).interval_ms(plan.placement, day, hours)

    def window_lookups(self, day: int) -> FloatArray:
        """(H, W, T), see `FixedDevices.window_lookups`; they do not depend on the devices."""
        return self.on(self.task.task.num_devices).window_lookups(day)

    def lookups_of(self, decision: int, window: int) -> FloatArray:
        """(T,) mean lookups of a window before a decision."""
        day, hour = divmod(decision, HOURS)
        found: FloatArray = self.window_lookups(day)[hour, window]
        return found

    def can_run(self, plan: Plan, day: int) -> BoolArray:
        """(H,) whether a plan can go on at each decision of a day: its devices are there, and its tables fit them."""
        there = self.task.available[day * HOURS : (day + 1) * HOURS, plan.devices].all(axis=1)
        memory = self.on(len(plan.devices)).memory(plan.placement, day)
        return np.asarray(there & (memory <= 1.0).all())

    def migration_seconds(self, before: Plan, after: Plan, day: int) -> float:
        """Seconds to move the parts on a day."""
        if np.array_equal(before.where, after.where):
            return 0.0
        bytes_of = self.on(self.task.task.num_devices).parts.bytes_of(HISTORY_DAYS + day)
        return float(migration_seconds(before.where, after.where, bytes_of, self.task.task.topology))

    def always_ms(self, day: int) -> FloatArray:
        """(H,) mean cost of an iteration in each hour of a day, with the plan for the last hour made when it begins."""
        if day not in self._always_ms:
            counts = self.task.available[day * HOURS : (day + 1) * HOURS].sum(axis=1)
            plans, hours = self.options(day).plans[:, LAST_HOUR], np.arange(HOURS)
            found = np.empty(HOURS)
            for count in np.unique(counts).tolist():
                those = hours[counts == count]
                found[those] = self.on(count).interval_ms(plans[those], day, those).mean(axis=1)
            self._always_ms[day] = found
        return self._always_ms[day]

    @cached_property
    def highest_hour_seconds(self) -> float:
        """Seconds that no hour takes longer than, whatever is done, without the pause of a plan."""
        parts = [fixed.parts for fixed in self._on.values()]
        links = self.task.task.topology.cluster()
        across = links.inter_bytes_per_ms * links.cross_host_ratio
        slowest = float(np.minimum(links.intra_bytes_per_ms, across).min())
        moved = max(int(parts[0].bytes_of(day).sum()) for day in range(self.task.drift.days))
        iterations = max(each.highest_ms() for each in parts) * HOUR_SECONDS_PER_MS
        return iterations + moved / slowest / 1e3


_kept: OrderedDict[tuple[object, ...], EpisodeData] = OrderedDict()


def episode_data(task: DriftTask, model: AdditiveCostModel) -> EpisodeData:
    """The data of a task; all environments of a process share them, also of tasks that differ in their pause only.

    Models of one class and one fingerprint share them, too, because they compute equal costs.

    Raises:
        InvalidTaskError: see `EpisodeData`.
    """
    law = task.popularity.q.tobytes(), task.popularity.s.tobytes()
    key = task.task, law, task.level, task.seed, type(model), model.fingerprint
    if key not in _kept:
        _kept[key] = EpisodeData(task, model)
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]
