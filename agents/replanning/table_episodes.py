"""N episodes replayed from their tables of plans: much faster than the environment, to tune and to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replanning.base import Chooser, View
from shard_gym.cost_models.base import FloatArray, IntArray
from shard_gym.envs.replanning.plan_table import NO_PLAN, PlanTable
from shard_gym.envs.replanning.windows import HOURS, LAST_HOUR, WINDOWS


@dataclass(frozen=True, eq=False)
class TableEpisodes:
    """N episodes with up to n plans."""

    replayed: NDArray[np.float32]  #: (N, n, T, W) float32, as `PlanTable.replayed`; 0 where that is NaN
    seconds: FloatArray  #: (N, n, T) float64, as `PlanTable.seconds`
    number: IntArray  #: (N, T, Z) int64, as `PlanTable.number`
    newest: IntArray  #: (N, T, W) int64, the plan for each window: that with headroom, where there is one
    used: FloatArray  #: (N, n) float64, share of the devices that each plan is made for
    available: FloatArray  #: (N, T) float64, share of the devices that are there
    clock: FloatArray  #: (N, T, 4) float64, as `PlanTable.clock`
    day_s: FloatArray  #: (N,) float64, as `PlanTable.day_s`

    @staticmethod
    def of(tables: Sequence[PlanTable]) -> TableEpisodes:
        """The episodes of tables with the same number of decisions."""
        count, most, (decisions, kinds) = len(tables), max(len(each.where) for each in tables), tables[0].number.shape
        replayed = np.zeros((count, most, decisions, len(WINDOWS)), np.float32)
        seconds, used = np.full((count, most, decisions), np.nan), np.zeros((count, most))
        number = np.stack([each.number for each in tables])
        for row, table in enumerate(tables):
            plans = len(table.where)
            replayed[row, :plans], seconds[row, :plans] = np.nan_to_num(table.replayed), table.seconds
            used[row, :plans] = table.used / table.used[0]  # the first plan is made for all
        without, newest = number[..., : len(WINDOWS)], number[..., kinds - len(WINDOWS) :]
        return TableEpisodes(
            replayed,
            seconds,
            number,
            np.where(newest == NO_PLAN, without, newest),
            used,
            np.stack([each.available / each.used[0] for each in tables]),
            np.stack([each.clock for each in tables]),
            np.stack([each.day_s for each in tables]),
        )

    def play(self, agent: Chooser, pause_s: float) -> FloatArray:
        """(N,) seconds that an agent takes, without migrations. It sees no measured costs."""
        replay, total = Replay(self, pause_s), np.zeros(len(self.number))
        agent.begin(len(total))
        while not replay.is_over:
            total += replay.step(agent.choose(replay.view()))
        return total


class Replay:
    """N episodes in play, all before the same `decision`."""

    def __init__(self, episodes: TableEpisodes, pause_s: float) -> None:
        self._episodes, self._pause_s = episodes, pause_s
        self._each, self._decisions = np.arange(len(episodes.number)), int(episodes.number.shape[1])
        self.decision, count = 0, len(self._each)
        self._plan, self._since = np.zeros(count, np.int64), np.zeros(count)

    @property
    def is_over(self) -> bool:
        """Whether the last decision was made."""
        return self.decision == self._decisions

    @property
    def _offered(self) -> IntArray:
        """(N, Z) the plan of each kind that can be made now."""
        offered: IntArray = self._episodes.number[:, self.decision]
        return offered

    @property
    def must_plan(self) -> NDArray[np.bool_]:
        """(N,) whether the plan in action cannot go on."""
        return np.asarray(np.isnan(self._episodes.seconds[self._each, self._plan, self.decision]))

    def action_masks(self) -> NDArray[np.bool_]:
        """(N, A) the legal actions."""
        keep = np.ones((len(self._each), 1), np.bool_)
        return np.concatenate([keep, self._offered != NO_PLAN], axis=1)

    def view(self) -> View:
        """What agents see now, without measured costs."""
        episodes, each, decision = self._episodes, self._each, self.decision
        candidates = episodes.replayed[each[:, None], np.maximum(self._offered, 0), decision]
        current = episodes.replayed[each, self._plan, decision][:, None]
        return View(
            np.concatenate([current, candidates], axis=1).astype(np.float64),
            self.action_masks(),
            self._since,
            self._pause_s / episodes.day_s,
            self.must_plan,
            episodes.clock[:, decision],
            np.full(len(each), (self._decisions - decision) / HOURS),
            episodes.available[:, decision],
            episodes.used[each, self._plan],
            np.zeros((len(each), 0)),
        )

    def step(self, actions: NDArray[np.integer[Any]]) -> FloatArray:
        """(N,) seconds of the next hour with legal actions, without migrations."""
        makes = (actions > 0) | self.must_plan
        chosen = self._offered[self._each, np.maximum(actions - 1, LAST_HOUR)]
        self._plan = np.where(makes, chosen, self._plan)
        seconds: FloatArray = makes * self._pause_s + self._episodes.seconds[self._each, self._plan, self.decision]
        self._since = np.where(makes, 0.0, self._since) + 1.0 / HOURS
        self.decision += 1
        return seconds
