"""Tables of plans in files, tuning, and the learned policy: training and playing agree, and training helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.agents.replacement.forecasters import fitted_weights
from shard_gym.agents.replacement.plan_table import PlanTable, plan_tables
from shard_gym.agents.replacement.policy_search import search, seconds_of
from shard_gym.agents.replacement.rules import Never, SkiRental
from shard_gym.agents.replacement.score_policy import NUM_WEIGHTS, ScorePolicy
from shard_gym.agents.replacement.table_episodes import TableEpisodes
from shard_gym.agents.replacement.tuned import tuned_agent
from shard_gym.agents.replacement.tuning import MAKERS, VALUES, grid, make_agent, tune
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.suites import DriftSuite
from shard_gym.drift.tasks import DriftTask
from shard_gym.envs.replacement.windows import HOURS, KINDS, LAST_DAYS
from shard_gym.errors import DamagedFileError, InvalidOptionError, UnknownNameError

MODEL = make_sharding_cost_model("analytical")
WEIGHTS = np.random.default_rng(1).normal(0.0, 0.4, (3, NUM_WEIGHTS))


@pytest.fixture(scope="module")
def episodes(tables: list[PlanTable]) -> TableEpisodes:
    return TableEpisodes.of(tables)


def test_many_policies_at_once_take_what_each_takes(episodes: TableEpisodes) -> None:
    together = seconds_of(WEIGHTS, episodes, 20.0)
    for weights, seconds in zip(WEIGHTS, together, strict=True):
        assert episodes.play(ScorePolicy(weights), 20.0) == pytest.approx(seconds, rel=1e-6)
    assert len(np.unique(together[:, 0])) == len(WEIGHTS)


def test_an_episode_that_begins_later_has_the_plan_for_the_days_before(
    episodes: TableEpisodes, tables: list[PlanTable]
) -> None:
    never = np.append(np.zeros(NUM_WEIGHTS - 1), -1.0)
    start = 13 * HOURS
    for row, table in enumerate(tables):
        plan = table.number[start, LAST_DAYS]
        if np.isfinite(table.seconds[plan, start:]).all():
            expected = table.seconds[plan, start:].sum()
            assert seconds_of(never[None], episodes, 20.0, start)[0, row] == pytest.approx(expected)


def test_search_is_seeded_and_better_than_never(episodes: TableEpisodes) -> None:
    pytest.importorskip("cma")
    seen: list[float] = []
    found = search(episodes, 2.0, 12, 0, lambda _, took: seen.append(took))
    assert np.array_equal(search(episodes, 2.0, 12, 0), found)
    assert not np.array_equal(search(episodes, 2.0, 12, 1), found)
    assert len(seen) == 12
    learned, never = seconds_of(found[None], episodes, 2.0)[0], episodes.play(Never(LAST_DAYS), 2.0)
    assert (learned / never).mean() < 0.99


def test_fitted_weights_are_those_that_were_planted(tables: list[PlanTable]) -> None:
    """Where what plans save is a weighted sum of what they would have saved, the weights are found."""
    planted = np.array([0.1, 0.5, 0.0, 0.4])
    of_sums = [
        replace(each, seconds=np.nan_to_num(each.replayed).astype(np.float64) @ planted * each.day_s / HOURS)
        for each in tables
    ]
    still = [replace(each, seconds=np.repeat(each.seconds[:, :1], each.seconds.shape[1], axis=1)) for each in of_sums]
    constant = [
        replace(each, replayed=np.repeat(old.replayed[:, :1], old.replayed.shape[1], axis=1))
        for each, old in zip(still, tables, strict=True)
    ]
    known = [replace(each, number=np.zeros_like(each.number) + np.arange(4) % 2) for each in constant]
    soon, later = fitted_weights(known)
    x = np.concatenate([each.replayed[0, :1] - each.replayed[1, :1] for each in known])
    assert x @ np.array(soon) == pytest.approx(x @ planted, abs=0.05 * np.abs(x @ planted).max() + 1e-9)
    assert x @ np.array(later) == pytest.approx(x @ np.array(soon), abs=1e-6)


def test_tables_are_kept_in_files(drifting: list[DriftTask], tables: list[PlanTable], tmp_path: Path) -> None:
    suite = DriftSuite("two", tuple(drifting[:2]))
    [made, _] = plan_tables(suite, MODEL, tmp_path)
    longer = DriftSuite("two", tuple(replace(task, pause_s=99.0) for task in drifting[:2]))
    [read, _] = plan_tables(longer, MODEL, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    for each in fields(PlanTable):
        for other in (made, read):
            assert np.array_equal(getattr(other, each.name), getattr(tables[0], each.name), equal_nan=True)


def test_a_table_of_another_task_is_refused(drifting: list[DriftTask], tmp_path: Path) -> None:
    [task] = drifting[:1]
    list(plan_tables(DriftSuite("one", (task,)), MODEL, tmp_path))
    [path] = tmp_path.iterdir()
    path.rename(path.with_name(path.name.replace(f"-{task.seed}.", "-77.")))
    with pytest.raises(DamagedFileError, match=r"holds the plans of .* Delete it"):
        list(plan_tables(DriftSuite("one", (replace(task, seed=77),)), MODEL, tmp_path))


@pytest.mark.parametrize("name", sorted(set(MAKERS) - set(VALUES) - {"learned"}))
def test_tuning_finds_the_best_of_the_grid(name: str, episodes: TableEpisodes) -> None:
    weights = [[0.25] * 4] * 2
    best = tune(name, episodes, 20.0, False, weights)
    never = episodes.play(Never(LAST_DAYS), 20.0)
    for settings in list(grid(name, False, weights))[::7]:
        share = (episodes.play(make_agent(name, settings), 20.0) / never).mean()
        assert best.share <= share + 1e-12
    assert best.settings in list(grid(name, False, weights))


def test_growing_suites_also_try_headroom() -> None:
    assert {each["kind"] for each in grid("never", True, [])} == set(range(len(KINDS)))
    assert {each["headroom"] for each in grid("ski-last-day", True, [])} == {False, True}
    assert {each["headroom"] for each in grid("ski-last-day", False, [])} == {False}


def test_agents_by_name() -> None:
    agent = tuned_agent("ski-last-day", "no such suite", factor=2.0)
    assert isinstance(agent, SkiRental)
    assert (agent.factor, agent.action) == (2.0, 2)
    with pytest.raises(UnknownNameError, match="no agent of re-placement named 'ski'"):
        tuned_agent("ski", "drift-strong-600")
    with pytest.raises(InvalidOptionError, match="'every' of re-placement cannot be made with the settings"):
        tuned_agent("every", "no such suite")
    with pytest.raises(InvalidOptionError, match=r"cannot be made with the settings .*'speed'"):
        tuned_agent("ski-last-day", "no such suite", speed=2.0)


def test_new_drift_of_the_same_tables(drift_task: Callable[..., DriftTask]) -> None:
    suite = DriftSuite("own", (drift_task(3, 2, 0), drift_task(5, 2, 1)))
    more = suite.reseeded(3, most_tables=4)
    assert [task.task for task in more] == [suite[0].task] * 3
    assert len({task.seed for task in (*suite, *more)}) == 5
    assert [task.seed for task in suite.reseeded(3, 4)] == [task.seed for task in more]
    assert more.max_parts == 3
