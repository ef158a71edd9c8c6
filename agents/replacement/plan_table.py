"""All plans that can be made in an episode, each once, and what they cost at every hour: for solvers that look ahead."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import FloatArray
from shard_gym.drift.tasks import HISTORY_DAYS
from shard_gym.envs.replacement.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan
from shard_gym.envs.replacement.windows import HOURS, WINDOWS

IntArray = NDArray[np.int64]

NO_PLAN = -1
"""Where there is no plan of a kind."""


class PlanTable:
    """n plans, and what they cost at T decisions. It does not depend on the pause.

    Takes 4 to 15 seconds for an episode of the named suites on one core (23 November 2026), and about half as long again
    for `replayed`.

    Attributes:
        data: the episode.
        decisions: T.
        plans: the n plans; the first is the one in action when the episode begins.
        number: (T, Z) int64, the plan of each kind that can be made at each decision, or `NO_PLAN`.
        first: (n,) int64, the first decision at which a plan can be made.
        seconds: (n, T) float64, of the hour after each decision; NaN before the day of `first`, and where it cannot run.

    Args:
        decisions: T; the episode ends after so many.
    """

    def __init__(self, data: EpisodeData, decisions: int = DECISIONS) -> None:
        self.data, self.decisions = data, decisions
        self.plans: list[Plan] = []
        known: dict[tuple[bytes, bytes], int] = {}
        first: list[int] = []

        def number_of(plan: Plan, decision: int) -> int:
            key = plan.placement.tobytes(), plan.devices.tobytes()
            if key not in known:
                known[key] = len(self.plans)
                self.plans.append(plan)
                first.append(decision)
            return known[key]

        number_of(data.first_plan, 0)
        rows = []
        for decision in range(decisions):
            day, hour = divmod(decision, HOURS)
            possible = data.options(day).possible[hour].tolist()
            kinds = enumerate(possible)
            rows.append([number_of(data.plan(decision, kind), decision) if yes else NO_PLAN for kind, yes in kinds])
        self.number: IntArray = np.array(rows)
        self.first: IntArray = np.array(first)
        self.seconds = np.full((len(self.plans), decisions), np.nan)
        for day in range(-(-decisions // HOURS)):
            hours = slice(day * HOURS, min((day + 1) * HOURS, decisions))
            count = hours.stop - hours.start
            for devices, those, placements in self._by_devices(day):
                seconds = data.on(devices).hourly_ms(placements, day)[:, :count] * HOUR_SECONDS_PER_MS
                runs = np.stack([data.can_run(self.plans[each], day)[:count] for each in those.tolist()])
                self.seconds[those, hours] = np.where(runs, seconds, np.nan)

    @cached_property
    def replayed(self) -> NDArray[np.float32]:
        """(n, T, W) cost with the mean lookups of each window before each decision, in multiples of the reference."""
        found = np.full((len(self.plans), self.decisions, len(WINDOWS)), np.nan, np.float32)
        for day in range(-(-self.decisions // HOURS)):
            hours = slice(day * HOURS, min((day + 1) * HOURS, self.decisions))
            for devices, those, placements in self._by_devices(day):
                costs = self.data.on(devices).replayed_ms(placements, day)[:, : hours.stop - hours.start]
                found[those, hours] = costs / self.data.reference_ms
        return found

    @cached_property
    def memory(self) -> FloatArray:
        """(n, days) share of the memory cap in use on the fullest device, on each day; NaN before that of `first`."""
        days = -(-self.decisions // HOURS)
        found = np.full((len(self.plans), days), np.nan)
        for day in range(days):
            for devices, those, placements in self._by_devices(day):
                found[those, day] = [self.data.on(devices).memory(each, day).max() for each in placements]
        return found

    @cached_property
    def used(self) -> IntArray:
        """(n,) devices that each plan is made for."""
        return np.array([len(plan.devices) for plan in self.plans])

    def _by_devices(self, day: int) -> list[tuple[int, IntArray, IntArray]]:
        """The plans that can be made on a day or before: numbers of devices, numbers of plans, (n, P) placements."""
        there = self.first // HOURS <= day
        groups = [
            (devices, np.flatnonzero(there & (self.used == devices))) for devices in np.unique(self.used).tolist()
        ]
        return [
            (devices, those, np.stack([self.plans[each].placement for each in those.tolist()]))
            for devices, those in groups
            if len(those)
        ]

    def bytes_of(self, decision: int) -> IntArray:
        """(P,) bytes of the parts at a decision."""
        parts = self.data.on(self.data.task.task.num_devices).parts
        return parts.bytes_of(HISTORY_DAYS + decision // HOURS)
