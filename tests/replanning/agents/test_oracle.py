"""The oracle: no sequence of actions takes less time, and its own takes what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.agents.rules import EveryHours, Never, SkiRental
from shard_gym.replanning.drift.levels import STRONG
from shard_gym.replanning.env.episode_data import HOUR_SECONDS_PER_MS, EpisodeData, episode_data
from shard_gym.replanning.env.episodes import ReplanningConfig, ReplanningEpisodes
from shard_gym.replanning.env.oracle import best_sequence
from shard_gym.replanning.env.plan_table import PlanTable
from shard_gym.replanning.env.play import history_of, play

MODEL = make_cost_model(additive=True, splits=True)
WILD = replace(STRONG, daily=1.0, walk=0.8, walk_hours=2.0, incidents=6.0)
"""So strong that within three hours it matters what is done."""

LEVELS = {
    "lookups": WILD,
    "devices": replace(WILD, departures=12.0, away_hours=(1.0, 2.0)),
    "rows": replace(WILD, growth=0.5, age_days=(1.0, 2.0)),
}


def begun(task: DriftTask) -> ReplanningEpisodes:
    """An episode of the task at its first decision."""
    suite = DriftSuite("one", (task,))
    episodes = ReplanningEpisodes(1, ReplanningConfig(suite))
    episodes.begin(np.zeros(1, np.int64), [task])
    return episodes


def totals(episodes: ReplanningEpisodes, decisions: int, so_far: float = 0.0) -> Iterator[float]:
    """The return of every sequence of so many legal actions."""
    if decisions == 0:
        yield so_far
        return
    for action in np.flatnonzero(episodes.masks()[0]).tolist():
        after = episodes.copy()
        rewards, _ = after.step(np.array([action]))
        yield from totals(after, decisions - 1, so_far + float(rewards[0]))


@pytest.mark.parametrize(("level", "seed"), [("lookups", 0), ("devices", 1), ("rows", 0)])
def test_no_sequence_of_three_actions_is_better(drift_task: Callable[..., DriftTask], level: str, seed: int) -> None:
    task = drift_task(tables=3, devices=2, level=LEVELS[level], seed=seed, pause_s=0.5)
    data = episode_data(task, MODEL)
    best = best_sequence(PlanTable.of(data, 3), task.task.topology, task.pause_s)
    hour_s = data.reference_ms * HOUR_SECONDS_PER_MS
    found = [-total * hour_s for total in totals(begun(task), 3)]
    assert best.seconds == pytest.approx(min(found), rel=1e-9)
    assert max(found) > min(found) * 1.001
    episodes, own = begun(task), 0.0
    for action in best.actions.tolist():
        own -= float(episodes.step(np.array([action]))[0][0]) * hour_s
    assert own == pytest.approx(best.seconds, rel=1e-9)


def test_two_weeks_take_what_it_says_and_no_rule_takes_less(drift_task: Callable[..., DriftTask]) -> None:
    level = replace(STRONG, departures=1.0)
    task = drift_task(tables=5, devices=3, level=level, pause_s=20.0)
    best = best_sequence(PlanTable.of(EpisodeData(task, MODEL)), task.task.topology, task.pause_s)
    assert history_of(task, best.actions, MODEL).seconds.sum() == pytest.approx(best.seconds, rel=1e-9)
    assert (best.actions > 0).any()
    for rule in (Never(), EveryHours(24, 1), SkiRental(0), SkiRental(3, 0.5)):
        (played,) = play(rule, [task], MODEL)
        assert played.seconds >= best.seconds * (1 - 1e-12)


def test_a_longer_pause_never_helps(drift_task: Callable[..., DriftTask]) -> None:
    task = drift_task(tables=5, devices=2, seed=3)
    table = PlanTable.of(episode_data(task, MODEL))
    found = [best_sequence(table, task.task.topology, pause_s) for pause_s in (1.0, 30.0, 600.0)]
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    made = [int((each.actions > 0).sum()) for each in found]
    assert made == sorted(made, reverse=True)
    assert made[0] > made[-1]
