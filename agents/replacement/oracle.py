"""The best sequence of actions of an episode, with hindsight: a dynamic program over all plans that can be made."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.drift.tasks import HISTORY_DAYS
from shard_gym.envs.replacement.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, EpisodeData, Plan
from shard_gym.envs.replacement.migration import migration_seconds
from shard_gym.envs.replacement.windows import HOURS, LAST_HOUR

IntArray = NDArray[np.int64]


class BestSequence(NamedTuple):
    """The best actions of an episode.

    Attributes:
        seconds: what the episode takes: iterations, pauses and migrations.
        actions: (decisions,) int64.
    """

    seconds: float
    actions: IntArray


class AllPlans:
    """All plans that can be made in an episode, each once, and what they cost in each hour.

    It does not depend on the pause. Takes about ten seconds for 100 tables.

    Attributes:
        data: the episode.
        decisions: how many.
        plans: those of the first plan and of all decisions.
        number: (decisions, Z) int64, the plan that can be made at each decision; -1 where there is none.
        seconds: (plans, decisions) float64, of the hour after each decision; NaN before the day on which it can be
            made, and where it cannot run.

    Args:
        decisions: how many; the episode ends after them.
    """

    def __init__(self, data: EpisodeData, decisions: int = DECISIONS) -> None:
        self.data, self.decisions = data, decisions
        self.plans: list[Plan] = []
        known: dict[tuple[bytes, bytes], int] = {}

        def number_of(plan: Plan) -> int:
            key = plan.placement.tobytes(), plan.devices.tobytes()
            if key not in known:
                known[key] = len(self.plans)
                self.plans.append(plan)
            return known[key]

        number_of(data.first_plan)
        first_on = np.zeros(0, np.int64)
        rows = []
        for decision in range(decisions):
            day, hour = divmod(decision, HOURS)
            possible = data.options(day).possible[hour]
            rows.append(
                [number_of(data.plan(decision, kind)) if possible[kind] else -1 for kind in range(len(possible))]
            )
            first_on = np.append(first_on, np.full(len(self.plans) - len(first_on), day))
        self.number: IntArray = np.array(rows)
        self.seconds = np.full((len(self.plans), decisions), np.nan)
        for day in range(-(-decisions // HOURS)):
            self._fill(day, np.flatnonzero(first_on <= day))

    def _fill(self, day: int, some: IntArray) -> None:
        """The seconds of the plans `some` on a day."""
        first, last = day * HOURS, min((day + 1) * HOURS, self.decisions)
        sizes = np.array([len(self.plans[each].devices) for each in some])
        for devices in np.unique(sizes).tolist():
            those = some[sizes == devices]
            placements = np.stack([self.plans[each].placement for each in those])
            found = self.data.on(devices).hourly_ms(placements, day) * HOUR_SECONDS_PER_MS
            self.seconds[those, first:last] = found[:, : last - first]
        for each in some.tolist():
            runs = self.data.can_run(self.plans[each], day)[: last - first]
            self.seconds[each, first:last][~runs] = np.nan

    def best(self, pause_s: float) -> BestSequence:
        """The best sequence with this pause for each plan."""
        where = np.stack([plan.where for plan in self.plans])
        topology, full = self.data.task.task.topology, self.data.on(self.data.task.task.num_devices).parts
        value = np.zeros(len(self.plans))
        choices = np.zeros((self.decisions, len(self.plans)), np.int64)
        for decision in reversed(range(self.decisions)):
            bytes_of = full.bytes_of(HISTORY_DAYS + decision // HOURS)
            options = np.full((1 + self.number.shape[1], len(self.plans)), np.inf)
            for kind, plan in enumerate(self.number[decision].tolist()):
                if plan >= 0:
                    hour = self.seconds[plan, decision]
                    moved = migration_seconds(where, where[plan], bytes_of, topology)
                    options[1 + kind] = pause_s + moved + hour + value[plan]
            kept = self.seconds[:, decision] + value
            options[0] = np.where(np.isnan(kept), options[1 + LAST_HOUR], kept)  # that is a repair
            choices[decision] = options.argmin(axis=0)
            value = options.min(axis=0)
        actions, plan = np.empty(self.decisions, np.int64), 0
        for decision in range(self.decisions):
            action = int(choices[decision, plan])
            actions[decision] = action
            if action or np.isnan(self.seconds[plan, decision]):
                plan = int(self.number[decision, max(action - 1, LAST_HOUR)])
        return BestSequence(float(value[0]), actions)
