"""The observations of `EmbeddingReplanning-v0`, made from a row of numbers for each decision."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shard_gym.cost_models.base import PHASES
from shard_gym.envs.core.episode_batch import ObservationDict
from shard_gym.replanning.drift.processes import DAYS_PER_WEEK, INTERVALS_PER_DAY
from shard_gym.replanning.drift.tasks import DAYS, HISTORY_DAYS
from shard_gym.replanning.env.episode_data import DECISIONS, HOUR_SECONDS_PER_MS, KEPT, EpisodeData, Plan
from shard_gym.replanning.env.windows import HOURS, WINDOWS

Rows = NDArray[np.float32]

NUM_WINDOWS = len(WINDOWS)

MAX_NUMBER = 1e4  # the largest number in an observation; larger ones are cut off
KEPT_DAYS = KEPT * DAYS  # the most days of tasks whose rows are kept
MAX_CHANGE = 9.0  # of the logarithm of lookups: ln((HIGHEST + MIN_LOOKUPS) / MIN_LOOKUPS) is 8.5
MIN_LOOKUPS = 0.01  # what is added to lookups before a logarithm, in multiples of the pooling factor


class MadePlan(NamedTuple):
    """The plan in action, and its making."""

    plan: Plan
    kind: int  # index in `KINDS`
    decision: int  # when it was made
    lookups: NDArray[np.float64]  # (T,) mean lookups of the window that it was made for


class ObservationRows:
    """Makes the observations of environments from a row of numbers for each decision.

    `devices` is the padding D, and `kinds` are the Z kinds of plans that have an action: there are A = 1 + Z actions.
    """

    def __init__(self, devices: int, kinds: int) -> None:
        self.num_actions = 1 + kinds
        self._devices, self._kinds = devices, kinds
        self.space = _space(devices, kinds)
        ends = np.cumsum([self.space[key].shape[0] for key in _IN_ROWS])  # type: ignore[index]
        begins = [0, *ends[:-1].tolist()]
        self._columns = {key: slice(begin, int(end)) for key, begin, end in zip(_IN_ROWS, begins, ends, strict=True)}
        self.width = int(ends[-1])
        self._given: OrderedDict[tuple[EpisodeData, int], Rows] = OrderedDict()

    def of_day(self, data: EpisodeData, made: MadePlan, pause_s: float, day: int) -> Rows:
        """(H, `width`) rows of the decisions of a day if `made` stays in action, all keys but the measured costs."""
        rows, plan, columns = self._given_of(data, day).copy(), made.plan, self._columns
        run, where = data.run(plan, day), plan.devices
        costs = np.zeros((HOURS, self._devices, len(PHASES)))
        costs[:, where] = run.phases_ms / data.reference_ms
        memory = np.zeros(self._devices)
        memory[where] = np.minimum(run.memory, MAX_NUMBER)
        rows[:, columns["device_costs"]] = np.minimum(costs.reshape(HOURS, -1), MAX_NUMBER)
        rows[:, columns["device_memory"]] = memory
        rows[:, columns["device_used"]][:, where] = 1.0
        rows[:, columns["replayed_costs"]][:, :NUM_WINDOWS] = np.minimum(
            run.replayed_ms / data.reference_ms, MAX_NUMBER
        )
        rows[:, columns["lookup_changes"]] = _changes(data.window_lookups(day), made.lookups)
        rows[:, columns["made_for"].start + made.kind] = 1.0
        rows[:, columns["since_plan"]] = ((day * HOURS + np.arange(HOURS) - made.decision) / HOURS)[:, None]
        rows[:, columns["must_plan"]] = ~data.can_run(plan, day)[:, None]
        rows[:, columns["pause"]] = min(pause_s / (HOURS * HOUR_SECONDS_PER_MS * data.reference_ms), MAX_NUMBER)
        return rows

    def masks(self, rows: Rows) -> NDArray[np.bool_]:
        """(N, A) the legal actions in (N, `width`) rows."""
        return np.asarray(rows[:, self._columns["action_mask"]] > 0.5)

    def must_plan(self, rows: Rows) -> NDArray[np.bool_]:
        """(N,) where the plan in action cannot go on, in (N, `width`) rows."""
        return np.asarray(rows[:, self._columns["must_plan"].start] > 0.5)

    def observations(self, rows: Rows, measured: NDArray[np.float64]) -> ObservationDict:
        """One array for each key from (N, `width`) rows and the (N, 96) measured costs in units of the reference."""
        found: ObservationDict = {}
        for key, columns in self._columns.items():
            dtype = np.int8 if isinstance(self.space[key], spaces.MultiBinary) else np.float32
            found[key] = rows[:, columns].astype(dtype)
        found["measured_costs"] = np.clip(measured, 0.0, MAX_NUMBER).astype(np.float32)
        return found

    def _given_of(self, data: EpisodeData, day: int) -> Rows:
        """(H, `width`) the rows of a day with what does not depend on the plan in action."""
        key = data, day
        if key not in self._given:
            self._given[key] = self._new_given(data, day)
            if len(self._given) > KEPT_DAYS:
                self._given.popitem(last=False)
        self._given.move_to_end(key)
        return self._given[key]

    def _new_given(self, data: EpisodeData, day: int) -> Rows:
        rows, columns, devices = np.zeros((HOURS, self.width), np.float32), self._columns, data.task.task.num_devices
        decision, options = day * HOURS + np.arange(HOURS), data.options(day)
        kinds = min(self._kinds, options.possible.shape[1])
        possible = options.possible[:, :kinds]
        replayed = np.where(possible[..., None], options.replayed_ms[:, :kinds] / data.reference_ms, 0.0)
        candidates = rows[:, columns["replayed_costs"]][:, NUM_WINDOWS:]
        candidates[:, : kinds * NUM_WINDOWS] = np.minimum(replayed.reshape(HOURS, -1), MAX_NUMBER)
        mask = rows[:, columns["action_mask"]]
        mask[:, 0], mask[:, 1 : 1 + kinds] = 1.0, possible
        rows[:, columns["device_mask"]][:, :devices] = 1.0
        rows[:, columns["device_available"]][:, :devices] = data.task.available[decision]
        week = (data.task.drift.first_weekday + HISTORY_DAYS + decision / HOURS) / DAYS_PER_WEEK
        angles = 2.0 * np.pi * np.stack([decision / HOURS, week], axis=1)
        progress = (decision / DECISIONS)[:, None]
        rows[:, columns["time"]] = np.concatenate([np.sin(angles), np.cos(angles), progress], axis=1)
        return rows


_IN_ROWS = (
    *("device_costs", "device_memory", "device_mask", "device_available", "device_used"),
    *("replayed_costs", "lookup_changes", "made_for", "since_plan", "must_plan", "pause", "time", "action_mask"),
)
"""The keys of a row: all but the measured costs, which depend on the plans of the day before."""


def _space(devices: int, kinds: int) -> spaces.Dict:
    def numbers(size: int, low: float = 0.0, high: float = MAX_NUMBER) -> spaces.Box:
        return spaces.Box(low, high, (size,), np.float32)

    return spaces.Dict(
        {
            "device_costs": numbers(devices * len(PHASES)),
            "device_memory": numbers(devices),
            "device_mask": spaces.MultiBinary(devices),
            "device_available": spaces.MultiBinary(devices),
            "device_used": spaces.MultiBinary(devices),
            "replayed_costs": numbers((1 + kinds) * NUM_WINDOWS),
            "measured_costs": numbers(INTERVALS_PER_DAY),
            "lookup_changes": numbers(2 * NUM_WINDOWS, -MAX_CHANGE, MAX_CHANGE),
            "made_for": spaces.MultiBinary(kinds),
            "since_plan": numbers(1, 0.0, DAYS),
            "must_plan": spaces.MultiBinary(1),
            "pause": numbers(1),
            "time": numbers(5, -1.0, 1.0),
            "action_mask": spaces.MultiBinary(1 + kinds),
        }
    )


def _changes(lookups: NDArray[np.float64], before: NDArray[np.float64]) -> NDArray[np.float64]:
    """(H, 2 W) changes since `before`, (T,), to (H, W, T) lookups.

    For each window, the root of the mean square of the logarithms of the tables' ratios, weighted by `before`; then for
    each window the logarithm of the ratio of the sums. All in multiples of the tables' pooling factors at the start.
    """
    weight = (before + MIN_LOOKUPS) / (before + MIN_LOOKUPS).sum()
    ratios = np.log((lookups + MIN_LOOKUPS) / (before + MIN_LOOKUPS))
    sums = np.log((lookups.sum(axis=-1) + MIN_LOOKUPS) / (before.sum() + MIN_LOOKUPS))
    changes = np.concatenate([np.sqrt((ratios**2) @ weight), sums], axis=1)
    return np.asarray(
        np.clip(changes, -MAX_CHANGE, MAX_CHANGE)
    )  # sums of tables that are almost all absent can be beyond
