"""Training of `ScorePolicy`: evolution strategies on whole episodes, which are replayed from tables of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.plan_table import NO_PLAN, PlanTable
from shard_gym.agents.replacement.score_policy import HIDDEN, NUM_FEATURES, NUM_WEIGHTS, Situation, features, scores
from shard_gym.envs.replacement.windows import HOURS, LAST_HOUR, WINDOWS
from shard_gym.errors import missing_extra

Floats = NDArray[np.float64]
IntArray = NDArray[np.int64]

POPULATION = 32
"""Policies compared in a generation."""

SPREAD = 0.2
"""Deviation of the weights of the first generation."""

DECAY = 0.01
"""Added to the mean excess in percent, for each unit of the mean square of the weights."""

Progress = Callable[[int, float], None]
"""Called with the number of generations, and the mean excess of the best policy of the last one in percent."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """The tables of N episodes with up to n plans in the same arrays, for policies that make one of W kinds.

    Attributes:
        replayed: (N, n, T, W) float32, as `PlanTable.replayed`.
        seconds: (N, n, T) float64, as `PlanTable.seconds`.
        number: (N, T, W) int64, the plan for each window; with room for growth, where there is one.
        used: (N, n) share of the devices.
        available: (N, T) share of the devices.
        clock: (N, T, 4) sine and cosine of the hour of the day, and of the week.
        day_s: (N,) seconds of a day at the reference cost.
        pause_s: of a plan.
    """

    replayed: NDArray[np.float32]
    seconds: Floats
    number: IntArray
    used: Floats
    available: Floats
    clock: Floats
    day_s: Floats
    pause_s: float

    @staticmethod
    def of(tables: Sequence[PlanTable], pause_s: float) -> Episodes:
        """Those of the tables."""
        count, most = len(tables), max(len(each.where) for each in tables)
        decisions = len(tables[0].number)
        replayed = np.zeros((count, most, decisions, len(WINDOWS)), np.float32)
        seconds, used = np.full((count, most, decisions), np.nan), np.zeros((count, most))
        number = np.zeros((count, decisions, len(WINDOWS)), np.int64)
        for row, table in enumerate(tables):
            plans = len(table.where)
            replayed[row, :plans], seconds[row, :plans] = np.nan_to_num(table.replayed), table.seconds
            used[row, :plans] = table.used / table.used[0]  # the first plan is made for all
            without, newest = table.number[:, : len(WINDOWS)], table.number[:, -len(WINDOWS) :]
            number[row] = np.where(newest == NO_PLAN, without, newest)
        available = np.stack([each.available / each.used[0] for each in tables])
        clock, day_s = np.stack([each.clock for each in tables]), np.stack([each.day_s for each in tables])
        return Episodes(replayed, seconds, number, used, available, clock, day_s, pause_s)

    def take(self, weights: Floats) -> Floats:
        """(M, N) seconds that M policies of (M, `NUM_WEIGHTS`) weights take for the episodes, without migrations."""
        count, (episodes, decisions, kinds) = len(weights), self.number.shape
        each, pause = np.arange(episodes), self.pause_s / self.day_s
        plan = np.zeros((count, episodes), np.int64)
        regret, since = np.zeros((count, episodes, kinds)), np.zeros((count, episodes))
        total = np.zeros((count, episodes))
        for decision in range(decisions):
            offered = self.number[:, decision]
            candidates = self.replayed[each[:, None], offered, decision]
            saved = self.replayed[each, plan, decision][:, :, None] - candidates
            regret = np.where(since[..., None] > 0, regret + saved[..., LAST_HOUR] / HOURS, 0.0)
            left = (decisions - decision) / HOURS
            now = Situation(
                saved,
                regret,
                since,
                pause,
                left,
                self.clock[:, decision],
                self.available[:, decision],
                self.used[each, plan],
            )
            score = scores(weights, features(now))
            best = offered[each, score.argmax(axis=2)]
            makes = (score.max(axis=2) > 0) | np.isnan(self.seconds[each, plan, decision])
            plan = np.where(makes, best, plan)
            total += makes * self.pause_s + self.seconds[each, plan, decision]
            regret[makes] = 0.0
            since = np.where(makes, 0.0, since) + 1.0 / HOURS
        return total


def search(
    episodes: Episodes,
    best_s: Floats,
    generations: int,
    seed: int,
    progress: Progress | None = None,
) -> Floats:
    """(`NUM_WEIGHTS`,) weights found by CMA-ES (Hansen and Ostermeier, 2001), the mean of its last generation.

    It minimises the mean over the episodes of the seconds beyond the best sequence, as a share of these.

    Args:
        episodes: to train on.
        best_s: (N,) seconds of their best sequences.
        generations: how many; one takes about 0.4 s for 60 episodes.
        seed: of the first weights and of all that is drawn.
        progress: called after each generation.

    Raises:
        MissingExtraError: the package `cma` is not installed.
    """
    try:
        import cma
    except ModuleNotFoundError as error:
        raise missing_extra("cma", "replan", "Training a policy of re-placement") from error
    rng = np.random.default_rng(seed)
    first = np.zeros(NUM_WEIGHTS)
    inner = NUM_FEATURES * HIDDEN
    first[:inner] = rng.normal(0.0, SPREAD, inner)
    first[inner + HIDDEN : -1] = 0.3
    options: dict[str, Any] = {"popsize": POPULATION, "seed": 1 + seed, "verbose": -9, "maxiter": generations}
    strategy = cma.CMAEvolutionStrategy(first, SPREAD, options)
    for generation in range(generations):
        tried = np.array(strategy.ask())
        excess = 100.0 * (episodes.take(tried) / best_s - 1.0).mean(axis=1)
        strategy.tell(list(tried), (excess + DECAY * (tried**2).mean(axis=1)).tolist())
        if progress:
            progress(generation + 1, float(excess.min()))
    found: Floats = np.array(strategy.mean)
    return found
