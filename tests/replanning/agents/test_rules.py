"""Rules and forecasters: when they make plans, and that tables of plans replay them as the environment does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError
from shard_gym.replanning import DriftTask
from shard_gym.replanning.agents.base import ReplanningAgent, View
from shard_gym.replanning.agents.rules import (
    DETECTORS,
    ChangeDetector,
    EveryHours,
    Forecaster,
    Never,
    RegretThreshold,
    SkiRental,
)
from shard_gym.replanning.agents.tuning import TableEpisodes
from shard_gym.replanning.env.history import NO_PLAN
from shard_gym.replanning.env.plan_table import PlanTable
from shard_gym.replanning.env.play import play
from shard_gym.replanning.env.windows import KINDS, WINDOWS

MakeView = Callable[..., View]
AGENTS: dict[str, Callable[[], ReplanningAgent]] = {
    "never": Never,
    "every 12 hours": lambda: EveryHours(12, 1),
    "threshold": lambda: RegretThreshold(0.1, 2),
    "ski-rental": lambda: SkiRental(0),
    "forecaster": lambda: Forecaster(2.0),
}


@pytest.mark.parametrize("name", AGENTS)
def test_tables_replay_what_the_environment_does(name: str, drifting: list[DriftTask], tables: list[PlanTable]) -> None:
    played = play(AGENTS[name](), drifting, "analytical")
    without_migrations = [each.history.seconds[:, :2].sum() for each in played]
    replayed = TableEpisodes.of(tables).play(AGENTS[name](), drifting[0].pause_s)
    assert replayed == pytest.approx(without_migrations, rel=1e-9)
    for each in played:
        made, repairs = each.history.kinds != NO_PLAN, each.history.repairs
        assert repairs.any() == bool(each.task.level.departures)
        if name == "never":
            assert np.array_equal(made, repairs)
        if name == "every 12 hours" and not repairs.any():
            assert np.flatnonzero(made).tolist() == list(range(12, 336, 12))
            assert set(each.history.kinds[made].tolist()) == {1}


def test_ski_rental_adds_up_the_regret_of_each_hour(view: MakeView) -> None:
    agent = SkiRental(1, 2.0)
    agent.begin(2)
    pause = np.array([0.01, 1.0])  # 0.1 a day too much: two pauses of 0.01 are 4.8 hours
    actions = [agent.choose(view(pause=pause)).tolist() for _ in range(10)]
    assert actions == [[0, 0]] * 4 + [[2, 0]] + [[0, 0]] * 4 + [[2, 0]]


def test_ski_rental_forgets_the_regret_of_an_older_plan(view: MakeView) -> None:
    agent, repaired, replaced = SkiRental(1, 2.0), np.array([True, False]), np.array([0.0, 0.5])
    agent.begin(2)
    views = [view()] * 3 + [view(must_plan=repaired)] + [view()] * 3 + [view(since_plan=replaced)] + [view()]
    chosen = np.array([agent.choose(each) for each in views])
    assert chosen.T.tolist() == [[0, 0, 0, 2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 2, 0, 0, 0, 0]]


def test_a_threshold_is_of_the_last_hour(view: MakeView) -> None:
    assert RegretThreshold(0.10, 0).choose(view()).tolist() == [1, 1]
    assert RegretThreshold(0.12, 0).choose(view()).tolist() == [0, 0]


def test_a_forecaster_chooses_the_plan_that_saves_most(view: MakeView) -> None:
    replayed = view().replayed.copy()
    replayed[:, 3, 2] = 0.5  # over the last three days, the plan for these
    agent = Forecaster(3.0)
    assert agent.choose(view(replayed=replayed)).tolist() == [3, 3]
    # It saves 0.1 a day for half a day, and 0.5 for the rest: 0.05 + 0.5 * (days - 0.5).
    assert agent.choose(view(replayed=replayed, pause=np.array([1.29, 1.31]))).tolist() == [3, 0]
    near_the_end = view(replayed=replayed, pause=np.full(2, 0.2), days_left=np.array([1.0, 0.5]))
    assert agent.choose(near_the_end).tolist() == [3, 0]


def test_plans_without_headroom_where_there_is_none(view: MakeView) -> None:
    legal = np.ones((2, 1 + len(KINDS)), np.bool_)
    legal[1, 1 + len(WINDOWS) :] = False
    replayed = np.full((2, 1 + len(KINDS), len(WINDOWS)), 0.9)
    replayed[1, 1 + len(WINDOWS) :] = 0.0
    replayed[:, 0] = 1.0
    seen = view(legal=legal, replayed=replayed)
    assert RegretThreshold(0.05, 6).choose(seen).tolist() == [7, 3]
    assert Forecaster(3.0, range(4, 8)).choose(seen).tolist() == [5, 1]
    with pytest.raises(InvalidOptionError, match="kind 6, which leave room for growth, but here are the kinds 0 to 3"):
        RegretThreshold(0.05, 6).choose(view())


@pytest.mark.parametrize(("name", "value"), [("page-hinkley", 1.0), ("adwin", 0.002), ("kswin", 1e-6)])
def test_detectors_find_a_change_and_start_anew(view: MakeView, name: str, value: float) -> None:
    pytest.importorskip("river")
    agent = ChangeDetector(DETECTORS[name], value, 2)
    agent.begin(2)
    rng, found = np.random.default_rng(0), []
    for hour in range(96):
        level = np.array([1.0, 1.5 if hour >= 48 else 1.0])[:, None]
        actions = agent.choose(view(measured=level * rng.normal(1.0, 0.02, (2, 96))))
        found.append(actions.tolist())
    assert not any(first for first, _ in found)
    changes = [hour for hour, (_, second) in enumerate(found) if second]
    assert changes
    assert changes[0] in range(48, 60)
    assert len(changes) <= 3
