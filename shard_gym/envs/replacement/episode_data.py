"""What happens in one episode whatever the agent does: lookups, the plans that can be made, and what plans cost."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.cost_models.base import AdditiveCostModel, FloatArray
from shard_gym.drift.load_grid import LoadGrid
from shard_gym.drift.processes import INTERVALS_PER_DAY
from shard_gym.drift.tasks import HISTORY_DAYS, ITERATIONS_PER_DAY, DriftTask
from shard_gym.envs.replacement.planner import Planner
from shard_gym.envs.replacement.windows import HOURS, INTERVALS_PER_HOUR, WINDOWS, window_means
from shard_gym.errors import InvalidTaskError
from shard_gym.placement import Placement

IntArray = NDArray[np.int64]

KEPT_RUNS = 1_024
"""Days of plans whose costs are kept."""

LAST_HOUR, LAST_DAYS = 0, 2
"""Windows: of a forced plan, and of the plan that is in action when an episode begins."""


class PlansOfDay(NamedTuple):
    """The plans that can be made at the H = 24 decisions of a day, each for one of the W windows.

    Attributes:
        plans: (H, W, P) int64, devices.
        replayed_ms: (H, W, W) float64, cost of each plan with the mean lookups of each window before its decision.
    """

    plans: IntArray
    replayed_ms: FloatArray


class RunOfDay(NamedTuple):
    """One plan on one day.

    Attributes:
        hourly_ms: (H,) float64, mean cost of an iteration in each hour.
        replayed_ms: (H, W) float64, its cost with the mean lookups of each window before each decision.
        phases_ms: (H, D, 4) float64, of each device with the mean lookups of the hour before each decision.
    """

    hourly_ms: FloatArray
    replayed_ms: FloatArray
    phases_ms: FloatArray


class EpisodeData:
    """The days of one task. Everything is computed when it is first asked for, and depends on the past alone.

    Args:
        task: the problem.
        model: estimates the costs.

    Raises:
        InvalidTaskError: the rows or their popularity drift, which plans and costs do not follow yet.
    """

    def __init__(self, task: DriftTask, model: AdditiveCostModel) -> None:
        for name in ("growth", "pruned", "skew"):
            if getattr(task.level, name):
                raise InvalidTaskError(
                    f"Task {task.name!r} drifts by {name}, which episodes of re-placement do not follow yet. Set it to "
                    "0 in its level."
                )
        self.task = task
        self.planner = Planner(model, task.task.topology)
        self._grid = LoadGrid.of(task.task.tables, task.popularity, task.task.topology, model)
        self._greedy: dict[int, IntArray] = {}
        self._plans: dict[int, PlansOfDay] = {}
        self._runs: OrderedDict[tuple[bytes, int], RunOfDay] = OrderedDict()

    def first_plan(self) -> Placement:
        """(P,) int64, the plan in action when the episode begins: that for the three days before it."""
        plan: Placement = self.plans(0).plans[0, LAST_DAYS]
        return plan

    def plans(self, day: int) -> PlansOfDay:
        """The plans that can be made on day 0, 1, ... of the episode.

        The plan for a window is the cheapest, with the mean lookups of that window, of the greedy placements for it and
        for the same window at the 23 decisions before. Greedy placements alone cost 1 to 2.5% more for the last three
        days, and by how much changes from hour to hour (five tasks of mixdim-8, 23 November 2026).
        """
        if day not in self._plans:
            own = self._greedy_of(day)
            before = self._greedy_of(day - 1) if day else own[:0]
            tried = np.concatenate([before, own])  # (1 or 2 days of hours, W, P)
            loads = self._window_loads(day)
            skipped = len(before)
            plans = np.empty_like(own)
            for hour in range(HOURS):
                last = skipped + hour + 1
                candidates = tried[max(last - HOURS, 0) : last]
                costs = self.planner.costs(loads[hour], candidates)
                plans[hour] = candidates[costs.argmin(axis=0), np.arange(len(WINDOWS))]
            replayed = self.planner.costs(loads[:, None], plans[:, :, None])
            self._plans[day] = PlansOfDay(plans, replayed)
        return self._plans[day]

    def run(self, plan: Placement, day: int) -> RunOfDay:
        """`plan` on day 0, 1, ... of the episode."""
        key = plan.tobytes(), day
        if key in self._runs:
            self._runs.move_to_end(key)
            return self._runs[key]
        first = (HISTORY_DAYS + day) * INTERVALS_PER_DAY
        loads = self._grid.at(self.task.drift.lookups[first : first + INTERVALS_PER_DAY])
        costs = self.planner.costs(loads, plan)
        windows = self._window_loads(day)
        held = self.planner.device_loads(windows[:, LAST_HOUR], plan)
        found = RunOfDay(
            costs.reshape(HOURS, INTERVALS_PER_HOUR).mean(axis=1),
            self.planner.costs(windows, plan),
            self.planner.model.device_costs(held, self.planner.topology.cluster()),
        )
        self._runs[key] = found
        if len(self._runs) > KEPT_RUNS:
            self._runs.popitem(last=False)
        return found

    def seconds(self, hourly_ms: FloatArray) -> FloatArray:
        """The seconds of an hour's iterations from the ms of one."""
        return np.asarray(hourly_ms * (ITERATIONS_PER_DAY / HOURS / 1e3))

    def window_lookups(self, day: int) -> FloatArray:
        """(H, W, T) mean lookups of each window before each decision of a day."""
        return window_means(self.task.drift.lookups, (HISTORY_DAYS + day) * HOURS, HOURS)

    def _window_loads(self, day: int) -> FloatArray:
        return self._grid.at(self.window_lookups(day))

    def _greedy_of(self, day: int) -> IntArray:
        """(H, W, P) int64, the greedy placement for each window of a day."""
        if day not in self._greedy:
            loads = self._window_loads(day)
            flat = loads.reshape(-1, *loads.shape[2:])
            memory = np.broadcast_to(self.task.task.tables.memory_bytes, flat.shape[:2])
            self._greedy[day] = self.planner.greedy(flat, memory).reshape(loads.shape[:3])
        return self._greedy[day]
