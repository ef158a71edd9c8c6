"""N episodes replayed from their tables of plans: much faster than the environment, to tune and to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replanning.base import ReplanningAgent, View
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

    def play(self, agent: ReplanningAgent, pause_s: float) -> FloatArray:
        """(N,) seconds that an agent takes, without migrations. It sees no measured costs."""
        count, decisions = self.number.shape[:2]
        each, plan, since, total = np.arange(count), np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        agent.begin(count)
        for decision in range(decisions):
            offered = self.number[:, decision]
            candidates = self.replayed[each[:, None], np.maximum(offered, 0), decision]
            current = self.replayed[each, plan, decision][:, None]
            must_plan = np.isnan(self.seconds[each, plan, decision])
            view = View(
                np.concatenate([current, candidates], axis=1).astype(np.float64),
                np.concatenate([np.ones((count, 1), np.bool_), offered != NO_PLAN], axis=1),
                since,
                pause_s / self.day_s,
                must_plan,
                self.clock[:, decision],
                np.full(count, (decisions - decision) / HOURS),
                self.available[:, decision],
                self.used[each, plan],
                np.zeros((count, 0)),
            )
            actions = agent.choose(view)
            makes = (actions > 0) | must_plan
            plan = np.where(makes, offered[each, np.maximum(actions - 1, LAST_HOUR)], plan)
            total += makes * pause_s + self.seconds[each, plan, decision]
            since = np.where(makes, 0.0, since) + 1.0 / HOURS
        return total
