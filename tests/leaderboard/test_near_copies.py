"""Near copies: named by `submit`, listed below the ranked entries, and without effect on these."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard import EntryFolder, load_leaderboards, ranking, verify, verify_all
from shard_gym.leaderboard.copies import likeness, nearest_sources
from shard_gym.leaderboard.ranking import improvements
from shard_gym.leaderboard.replay import replay
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.verify import near_sources, to_replay
from shard_gym.tasks.problems.likeness import PlansMade, kept_together, plans_alike

SUITE = "dlrm-20x4"


class Moved:
    """Greedy by size, with the table that looks up least on another device."""

    name = "moved"

    def __init__(self) -> None:
        self.greedy = make_agent("size-greedy")

    def place(self, task: Any) -> Any:
        placement = np.array(self.greedy.place(task))
        table = task.tables.pooling_factor.argmin()
        placement[table] = (placement[table] + 1) % task.num_devices
        return placement


@pytest.fixture(scope="module")
def submitted(made: Path, submit_as: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the entry of `Moved`; tests must not change it."""
    root = Path(shutil.copytree(made, tmp_path_factory.mktemp("forged") / "leaderboards"))
    folder = EntryFolder(root, "simulated", SUITE, "forged")
    assert submit_as(folder, "moved", [evaluate(Moved(), SUITE)], name="Forged") == []
    return folder.path


@pytest.fixture
def forged(root: Path, submitted: Path) -> Path:
    """The entry of `Moved`."""
    return Path(shutil.copytree(submitted, root / "simulated" / SUITE / "forged"))


def test_a_near_copy_names_its_source_and_has_no_rank(root: Path, forged: Path, monkeypatch: Any) -> None:
    assert f'near = ["simulated/{SUITE}/size-greedy"]' in (forged / "entry.toml").read_text()
    entries, findings = verify_all(root)
    assert findings == []
    monkeypatch.setattr(ranking, "best_known", lambda suite, model: {})
    board = load_leaderboards(root)[0]
    assert [each.verified.folder.slug for each in board.near] == ["forged"]
    assert "forged" not in {each.verified.folder.slug for each in board.entries}
    assert board.entries[-1].improvement_over_next is None
    assert all(found.entry != f"simulated/{SUITE}/forged" for found in improvements(entries)[SUITE].values())
    assert board.best is not None
    own = [each.verified.costs_ms.min(axis=0) for each in board.entries]
    assert board.best.costs_ms.tolist() == np.min(own, axis=0).tolist()
    page = site_files([board])[f"data/simulated/{SUITE}/ranking.js"].decode()
    assert '"name":"Forged (near copy of size-greedy)"' in page
    assert page.count('"group":"near copies"') == 1


@pytest.mark.parametrize("named", ["", 'near = ["simulated/dlrm-20x4/random"]'])
def test_a_near_copy_that_does_not_name_its_source_is_refused(root: Path, forged: Path, named: str) -> None:
    text = (forged / "entry.toml").read_text()
    (forged / "entry.toml").write_text(text.replace(f'near = ["simulated/{SUITE}/size-greedy"]', named))
    before = before_forged(root)
    (finding,) = map(str, verify_all(root, before=before)[1])
    assert finding == (
        f"simulated/{SUITE}/forged/entry.toml: 100% of its placements are nearly those of simulated/{SUITE}/"
        f'size-greedy. Say so in its entry.toml, and tables list it apart: near = ["simulated/{SUITE}/size-greedy"].'
    )
    assert verify_all(root)[1] == []  # nothing is new, so no entry can make another one invalid


def before_forged(root: Path) -> Path:
    """The folder without the forged entry."""
    before = root.parent / "before"
    shutil.copytree(root, before)
    shutil.rmtree(before / "simulated" / SUITE / "forged")
    return before


@pytest.mark.parametrize(
    "named", ["simulated/dlrm-20x4/nope", "simulated/dlrm-20x4/forged", "sharding/shard-4/lane-greedy", "zzz/a/b"]
)
def test_sources_are_other_entries_of_the_suite(root: Path, forged: Path, named: str) -> None:
    text = (forged / "entry.toml").read_text()
    (forged / "entry.toml").write_text(text.replace(f"simulated/{SUITE}/size-greedy", named))
    (finding,) = map(str, verify_all(root)[1])
    assert f"near names '{named}', but the sources of a near copy are other entries of its suite" in finding


def test_one_seed_of_five_that_copies_is_found(root: Path, submit_as: Any, verified: Any) -> None:
    rng = np.random.default_rng(5)

    def drawn(task: Any) -> Any:
        return rng.integers(task.num_devices, size=task.num_tables)

    copied, others = evaluate(Moved(), SUITE), [evaluate(Placing(drawn), SUITE) for _ in range(4)]
    folder = EntryFolder(root, "simulated", SUITE, "forged")
    assert submit_as(folder, "moved", [copied, *others], name="Forged", stochastic=True) == []
    assert verified(root, "forged").entry.near == [f"simulated/{SUITE}/size-greedy"]


class Placing:
    """Places by a function of a task."""

    name = "moved"

    def __init__(self, place: Any) -> None:
        self.place = place


def test_a_marked_entry_is_a_source_too(root: Path, forged: Path, verified: Any) -> None:
    own = verified(root, "forged")
    copy = replace(own, folder=replace(own.folder, slug="copy"))
    sources = near_sources(copy, [own])
    assert sources == [f"simulated/{SUITE}/forged"]


def test_an_agent_that_can_be_replayed_is_replayed_on_all_tasks_where_it_is_near(
    root: Path, forged: Path, verified: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(verify, "can_replay", lambda entry: True)
    own = verified(root, "forged")
    own = replace(own, entry=own.entry.model_copy(update={"near": []}))
    greedy = verified(root, "size-greedy")
    assert near_sources(own, [greedy]) == []
    assert to_replay([greedy, own], {own.folder.id}) == [own]
    assert to_replay([greedy, own], set()) == []
    monkeypatch.undo()
    row, findings = replay(verified(root, "random"), 1, whole=True)
    assert row is not None
    assert (row.tasks, findings) == (50, [])


def test_answers_that_say_nothing_hide_no_others() -> None:
    says_nothing = np.array([[[1.0], [1.0], [1.0], [1.0], [np.nan]]])
    share, sources = nearest_sources(says_nothing, ["first"], np.array([0.7]))
    assert (share, sources) == (1.0, ["first"])


def test_a_source_that_adds_little_is_not_named() -> None:
    alike = np.zeros((2, 1, 50))
    alike[0, 0, :48] = 1.0
    alike[1, 0, 46:] = 1.0
    assert nearest_sources(alike, ["first", "second"], np.full(50, 0.7)) == (1.0, ["first"])
    alike[0, 0, 26:] = 0.0
    assert nearest_sources(alike, ["first", "second"], np.full(50, 0.7))[1] == ["first"]
    alike[1, 0, 26:] = 1.0
    assert sorted(nearest_sources(alike, ["first", "second"], np.full(50, 0.7))[1]) == ["first", "second"]


def test_many_entries_are_compared_fast() -> None:
    """100 entries of 20 tables: a forged one could make verification slow for all."""
    scorer, rng = load_scorer(SUITE), np.random.default_rng(0)
    rows = [[scorer.problem.traits(rng.integers(4, size=20), task) for task in scorer.suite] for _ in range(100)]
    began = time.process_time()
    alike = likeness(rows[:5], [[row] for row in rows], scorer)
    assert time.process_time() - began < 1.7
    assert alike.shape == (100, 5, 50)
    assert np.diagonal(alike[:5].transpose(2, 0, 1), axis1=1, axis2=2) == pytest.approx(1.0)
    assert abs(alike[5:].mean()) < 0.03  # what agrees by chance


def shares(*devices: int, count: int = 3) -> Any:
    return np.eye(count)[list(devices)]


def test_placements_are_alike_by_which_tables_are_together() -> None:
    costs = np.ones(6)
    pairs = shares(0, 0, 1, 1, 2, 2)
    assert kept_together([pairs], [shares(2, 2, 0, 0, 1, 1)], costs) == pytest.approx(1.0)
    assert kept_together([pairs], [shares(0, 1, 1, 2, 2, 0)], costs)[0, 0] < 0
    halves = pairs.copy()
    halves[0] = [0.5, 0.5, 0]
    assert 0.5 < kept_together([pairs], [halves], costs)[0, 0] < 1.0
    assert np.isnan(kept_together([shares(0, 0, 0, 0, 0, 0)], [pairs], costs)).all()
    assert kept_together([pairs], [shares(0, 0, 0, 0, 0, 0)], costs) == 0.0
    heavy = np.array([9.0, 9.0, 9.0, 9.0, 0.1, 0.1])
    light_moved = shares(0, 0, 1, 1, 0, 1)
    assert kept_together([pairs], [light_moved], heavy) > 0.9 > 0.6 > kept_together([pairs], [light_moved], costs)


def test_episodes_are_alike_by_their_plans() -> None:
    plans = PlansMade((10, 100), frozenset({(50, 2)}), 1000.0)
    assert plans_alike(plans, PlansMade((12, 99), frozenset({(50, 2)}), 1010.0)) == 1.0
    assert plans_alike(plans, PlansMade((20, 100), frozenset({(50, 1)}), 1000.0)) == pytest.approx(1 / 3)
    assert plans_alike(plans, PlansMade((10, 100), frozenset({(50, 2)}), 1100.0)) == 0.0
    assert np.isnan(plans_alike(PlansMade((), frozenset(), 1000.0), plans))
