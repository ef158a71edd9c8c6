"""Tables of plans in files, tuning and what is shipped, and forecasts: what is fitted forecasts what was planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError, InvalidCheckpointError, InvalidOptionError, UnknownNameError
from shard_gym.common.io.arrays import load_arrays, save_arrays
from shard_gym.common.io.files import read_json
from shard_gym.cost_models import make_cost_model
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.agents.rules import DETECTORS, Never, SkiRental, draw_samples, fitted_weights
from shard_gym.replanning.agents.tuning import DATA, TUNABLE, TableEpisodes, replanner, tune, tuned_suites
from shard_gym.replanning.env.plan_table import PlanTable, plan_tables
from shard_gym.replanning.env.windows import HOURS, LAST_DAYS, WINDOWS
from shard_gym.tasks import load_suite, suite_names

MODEL = make_cost_model(additive=True, splits=True)


@pytest.fixture(scope="module")
def episodes(tables: list[PlanTable]) -> TableEpisodes:
    """The first three days of theirs."""
    whole, few = TableEpisodes.of(tables), 3 * HOURS
    return replace(
        whole,
        replayed=whole.replayed[:, :, :few],
        seconds=whole.seconds[:, :, :few],
        **{name: getattr(whole, name)[:, :few] for name in ("number", "newest", "available", "clock")},
    )


def test_fitted_weights_are_those_that_were_planted(tables: list[PlanTable]) -> None:
    """Where what plans save is a weighted sum of what they would have saved, the weights are found."""
    drawn = draw_samples(tables[:1])
    assert len(drawn.saved) > 0
    assert all(np.isfinite(part).all() and len(part) == len(drawn.saved) for part in drawn)
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
    soon, later = fitted_weights(draw_samples(known))
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


def test_tasks_that_differ_in_their_drift_have_tables_of_their_own(drifting: list[DriftTask], tmp_path: Path) -> None:
    [task] = drifting[:1]
    stronger = replace(task, level=replace(task.level, daily=2.0 * task.level.daily + 0.5))
    here = list(plan_tables(DriftSuite("two", (task, replace(stronger, name="stronger"))), MODEL, tmp_path))
    assert not np.array_equal(here[0].seconds, here[1].seconds)
    [again] = plan_tables(DriftSuite("one", (task,)), MODEL, tmp_path)
    assert np.array_equal(again.seconds, here[0].seconds, equal_nan=True)


def test_files_of_other_tables_are_rejected(drifting: list[DriftTask], tmp_path: Path) -> None:
    one = DriftSuite("one", (drifting[0],))
    both = DriftSuite("both", (drifting[0], replace(drifting[0], seed=77, name="other")))
    list(plan_tables(both, MODEL, tmp_path))
    first, second = sorted(tmp_path.iterdir())
    second.write_bytes(first.read_bytes())
    with pytest.raises(DamagedFileError, match=r"holds the plans of .* Delete it"):
        list(plan_tables(both, MODEL, tmp_path))
    arrays, about = load_arrays(first, "plan-table")
    for path in (first, second):
        save_arrays(path, "plan-table", {**arrays, "seconds": arrays["seconds"][:, :10]}, about)
    with pytest.raises((InvalidCheckpointError, DamagedFileError), match=r"'seconds' with shape|holds the plans"):
        list(plan_tables(one, MODEL, tmp_path))


@pytest.mark.parametrize("name", sorted(set(TUNABLE) - set(DETECTORS)))
def test_tuning_finds_the_best_of_the_grid(name: str, episodes: TableEpisodes) -> None:
    fitted = {"weights": [[0.25] * 4] * 2} if name == "ridge" else {}
    best, grid = tune(name, episodes, 20.0, False, fitted), list(TUNABLE[name].grid(False, fitted))
    never = episodes.play(Never(LAST_DAYS), 20.0)
    for settings in grid[::7]:
        share = (episodes.play(replanner(name, **settings), 20.0) / never).mean()
        assert best.share <= share + 1e-12
    assert best.settings in grid
    growing = list(TUNABLE[name].grid(True, fitted))
    assert all(each.get("headroom", False) is False and each.get("kind", 0) < len(WINDOWS) for each in grid)
    assert len(growing) > len(grid)


def test_agents_by_name() -> None:
    agent: Any = make_agent("ski-last-day", suite="no such suite", factor=2.0)
    assert isinstance(agent, SkiRental)
    assert (agent.name, agent.factor, agent.action) == ("ski-last-day", 2.0, 2)
    tuned: Any = make_agent("ski-last-day", suite="drift-strong-600")
    assert tuned.factor != agent.factor or tuned.factor == 2.0
    assert make_agent("every", suite="drift-strong-600", hours=3).hours == 3  # type: ignore[attr-defined]
    with pytest.raises(UnknownNameError, match="no agent named 'ski'"):
        make_agent("ski", suite="drift-strong-600")
    with pytest.raises(UnknownNameError, match="no agent of replanning named 'ski'"):
        replanner("ski")
    with pytest.raises(InvalidOptionError, match=r"'every' is not tuned on 'drift-stong-600', so it needs .* hours"):
        make_agent("every", suite="drift-stong-600")


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("every", {"hours": 3}, "needs the settings hours and kind, or the suite that it will answer: make_agent"),
        ("every", {"suite": "own", "hours": 3}, "is not tuned on 'own', so it needs the settings hours and kind"),
        ("adwin", {"kind": 3}, "is tuned on no suite, so it needs .* for example value=0.1, kind=0"),
        ("kswin", {"value": 1.5, "kind": 0}, "value of agent 'kswin' must be a probability"),
        ("ski-last-day", {"speed": 2.0}, "has the settings factor, headroom, but got speed"),
        ("every", {"hours": 0, "kind": 1}, "hours of agent 'every' must be a positive number, not 0"),
        ("every", {"hours": 3, "kind": 8}, "kind of agent 'every' must be an integer from 0 to 7, not 8"),
        ("threshold", {"share": float("nan"), "kind": 0}, "share .* must be a number of at least 0, not nan"),
        ("seasonal", {"days": 1.0, "kinds": [0.7]}, "kinds .* must be a list of integers"),
        ("ridge", {"days": 1.0, "kinds": [0], "weights": [[1.0]]}, "weights .* must be two lists of 4 numbers"),
        ("ski-last-day", {"factor": 1.0, "headroom": 1}, "headroom .* must be true or false, not 1"),
    ],
)
def test_settings_that_are_none_are_refused(name: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        replanner(name, **settings)


def test_new_drift_of_the_same_tables(drift_task: Callable[..., DriftTask]) -> None:
    suite = DriftSuite("own", (drift_task(3, 2, 0), drift_task(5, 2, 1)))
    more = suite.reseeded(3, most_tables=4)
    assert [task.task for task in more] == [suite[0].task] * 3
    assert len({task.seed for task in (*suite, *more)}) == 5
    assert [task.seed for task in suite.reseeded(3, 4)] == [task.seed for task in more]
    assert more.max_parts == 3
    with pytest.raises(InvalidOptionError, match="No task of suite 'own' has at most 2 tables"):
        suite.reseeded(1, most_tables=2)
    with pytest.raises(InvalidOptionError, match="Tables of suite 'growth-600' grow"):
        load_suite("growth-600", "train").reseeded(1)


RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "replanning.json"


TUNED = read_json(DATA)


@pytest.mark.parametrize("suite", TUNED)
def test_tuned_agents_can_be_made(suite: str) -> None:
    assert suite in suite_names("replanning")
    for name, settings in TUNED[suite].items():
        if name in DETECTORS:
            pytest.importorskip("river")
        agent = make_agent(name, suite=suite)
        assert agent.name == name
        assert suite in tuned_suites(name)
        assert all(getattr(agent, key) == value for key, value in settings.items() if key in ("hours", "factor"))


def test_results_are_of_the_suites_as_they_are() -> None:
    results = read_json(RESULTS)["suites"]
    assert results
    for name, found in results.items():
        suite = load_suite(name)
        assert found["sha256"] == suite.sha256
        for runs in found["agents"].values():
            for each in runs:
                assert len(each["excess"]) == len(suite)
                assert min(each["excess"]) >= 0.0  # no agent is better than the oracle
