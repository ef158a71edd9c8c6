"""Training of `ScorePolicy`: evolution strategies on whole episodes, which are replayed from tables of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.score_policy import HIDDEN, NUM_FEATURES, NUM_WEIGHTS, Situation, features, scores
from shard_gym.agents.replacement.table_episodes import TableEpisodes
from shard_gym.envs.replacement.windows import HOURS, LAST_HOUR
from shard_gym.errors import missing_extra

Floats = NDArray[np.float64]

POPULATION = 32
"""Policies compared in a generation."""

SPREAD = 0.2
"""Deviation of the weights of the first generation."""

DECAY = 0.01
"""Added to the mean excess in percent, for each unit of the mean square of the weights."""

Progress = Callable[[int, float], None]
"""Called with the number of generations, and the mean excess of the best policy of the last one in percent."""


def seconds_of(weights: Floats, episodes: TableEpisodes, pause_s: float) -> Floats:
    """(M, N) seconds that M policies of (M, `NUM_WEIGHTS`) weights take for N episodes, without migrations."""
    count, (number, decisions, kinds) = len(weights), episodes.newest.shape
    each, pause = np.arange(number), pause_s / episodes.day_s
    plan, total = np.zeros((count, number), np.int64), np.zeros((count, number))
    regret, since = np.zeros((count, number, kinds)), np.zeros((count, number))
    for decision in range(decisions):
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
    episodes: TableEpisodes,
    pause_s: float,
    best_s: Floats,
    generations: int,
    seed: int,
    progress: Progress | None = None,
) -> Floats:
    """(`NUM_WEIGHTS`,) weights found by CMA-ES (Hansen and Ostermeier, 2001), the mean of its last generation.

    It minimises the mean over the episodes of the seconds beyond the best sequence, as a share of these.

    Args:
        episodes: to train on.
        pause_s: seconds of a pause.
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
        excess = 100.0 * (seconds_of(tried, episodes, pause_s) / best_s - 1.0).mean(axis=1)
        strategy.tell(list(tried), (excess + DECAY * (tried**2).mean(axis=1)).tolist())
        if progress:
            progress(generation + 1, float(excess.min()))
    found: Floats = np.array(strategy.mean)
    return found
