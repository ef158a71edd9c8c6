"""Training of `ScorePolicy`: evolution strategies on whole episodes, which are replayed from tables of plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.score_policy import HIDDEN, NUM_FEATURES, NUM_WEIGHTS, Situation, features, scores
from shard_gym.agents.replacement.table_episodes import TableEpisodes
from shard_gym.envs.replacement.windows import HOURS, LAST_DAYS, LAST_HOUR
from shard_gym.errors import missing_extra

Floats = NDArray[np.float64]

POPULATION = 32
"""Policies compared in a generation."""

SPREAD = 0.2
"""Deviation of the weights of the first generation."""

DECAY = 0.01
"""Added to the percents that are minimised, for each unit of the mean square of the weights."""

DRAWS = 2
"""Of a first day and a pause, in each generation."""

LOG_PAUSE = math.log(2.0)
"""Largest logarithm of the ratio of a pause in training to that of the suite."""

Progress = Callable[[int, float], None]
"""Called with the number of generations, and the percents of the best policy of the last one."""


def seconds_of(weights: Floats, episodes: TableEpisodes, pause_s: float, start: int = 0) -> Floats:
    """(M, N) seconds that M policies of (M, `NUM_WEIGHTS`) weights take for N episodes, without migrations.

    Args:
        weights: of the policies.
        episodes: the N episodes.
        pause_s: seconds of a pause.
        start: the first decision; the plan for the three days before it is in action then.
    """
    count, (number, decisions, kinds) = len(weights), episodes.newest.shape
    each, pause = np.arange(number), pause_s / episodes.day_s
    total = np.zeros((count, number))
    first = episodes.number[:, start, LAST_DAYS] if start else np.zeros(number, np.int64)
    plan = np.tile(first, (count, 1))
    regret, since = np.zeros((count, number, kinds)), np.zeros((count, number))
    for decision in range(start, decisions):
        offered = episodes.newest[:, decision]
        candidates = episodes.replayed[each[:, None], offered, decision]
        saved = episodes.replayed[each, plan, decision][:, :, None] - candidates
        regret = np.where(since[..., None] > 0, regret + saved[..., LAST_HOUR] / HOURS, 0.0)
        now = Situation(
            saved,
            regret,
            since,
            pause,
            (decisions - decision) / HOURS,
            episodes.clock[:, decision],
            episodes.available[:, decision],
            episodes.used[each, plan],
        )
        score = scores(weights, features(now))
        makes = (score.max(axis=2) > 0) | np.isnan(episodes.seconds[each, plan, decision])
        plan = np.where(makes, offered[each, score.argmax(axis=2)], plan)
        total += makes * pause_s + episodes.seconds[each, plan, decision]
        regret[makes] = 0.0
        since = np.where(makes, 0.0, since) + 1.0 / HOURS
    return total


def search(
    episodes: TableEpisodes, pause_s: float, generations: int, seed: int, progress: Progress | None = None
) -> Floats:
    """(`NUM_WEIGHTS`,) weights found by CMA-ES (Hansen and Ostermeier, 2001), the mean of its last generation.

    It minimises the mean over the episodes of the seconds in multiples of those without any plan but those that must
    be. To make more of few episodes, each generation draws two pairs of a day on which all of them begin, in the
    first half, and a pause between half and twice `pause_s`.

    Args:
        episodes: to train on.
        pause_s: seconds of a pause.
        generations: how many; one took about a second for 108 episodes on one core (23 November 2026).
        seed: of the first weights and of all that is drawn.
        progress: called after each generation.

    Raises:
        MissingExtraError: the package `cma` is not installed.
    """
    try:
        import cma
    except ModuleNotFoundError as error:
        raise missing_extra("cma", "replan", "Training a policy of re-placement") from error
    rng, inner, first = np.random.default_rng(seed), NUM_FEATURES * HIDDEN, np.zeros(NUM_WEIGHTS)
    first[:inner] = rng.normal(0.0, SPREAD, inner)
    first[inner + HIDDEN : -1] = 0.3
    never, decisions = np.append(np.zeros(NUM_WEIGHTS - 1), -1.0)[None], episodes.newest.shape[1]
    options: dict[str, Any] = {"popsize": POPULATION, "seed": 1 + seed, "verbose": -9, "maxiter": generations}
    strategy = cma.CMAEvolutionStrategy(first, SPREAD, options)
    for generation in range(generations):
        tried = np.array(strategy.ask())
        took = np.zeros(len(tried))
        for _ in range(DRAWS):
            start = HOURS * int(rng.integers(decisions // HOURS // 2 + 1))
            pause = pause_s * float(np.exp(rng.uniform(-LOG_PAUSE, LOG_PAUSE)))
            seconds = seconds_of(np.concatenate([never, tried]), episodes, pause, start)
            took += 100.0 * (seconds[1:] / seconds[0]).mean(axis=1) / DRAWS
        strategy.tell(list(tried), (took + DECAY * (tried**2).mean(axis=1)).tolist())
        if progress:
            progress(generation + 1, float(took.min()))
    found: Floats = np.array(strategy.mean)
    return found
