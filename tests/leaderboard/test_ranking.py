from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.leaderboard import load_leaderboards, ranking, statistics, verify_all
from shard_gym.leaderboard.ranking import competitors, improvements, update_best_known
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites import best_known as best_known_module
from shard_gym.tasks.suites import bounds as bounds_module
from shard_gym.tasks.suites import records
from shard_gym.tasks.suites.best_known import IMPROVED_BY, best_known, best_known_costs

SUITE = "dlrm-20x4"


@pytest.fixture(autouse=True)
def core_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two core suites: entries on more of the real ones take longer to make."""
    monkeypatch.setattr(ranking, "CORE_SUITES", (SUITE, "mlperf-x8"))


def test_leaderboards_rank_by_mean_cost_and_separate_tracks(made: Path) -> None:
    simulated, measured = load_leaderboards(made)
    assert (simulated.track, simulated.hardware) == ("simulated", "rtx2080ti-pcie")
    assert (measured.track, measured.race, measured.entries, measured.best) == ("measured", None, (), None)
    assert [each.folder.slug for each in measured.not_raced] == ["measured-greedy"]
    first, second = simulated.entries
    assert first.mean_cost_ms < second.mean_cost_ms
    costs = [each.verified.costs_ms for each in simulated.entries]
    assert first.improvement_over_next == statistics.probability_of_improvement(*costs)
    assert second.improvement_over_next is None


def test_the_gap_is_against_the_best_known(made: Path) -> None:
    leaderboard = load_leaderboards(made)[0]
    known = best_known_costs(load_suite(SUITE), make_cost_model("analytical"))
    assert leaderboard.best is not None
    assert leaderboard.best.costs_ms.tolist() == list(known.values())
    assert "local search with" in leaderboard.best.effort
    task = load_suite(SUITE)[0]
    cost = make_cost_model("analytical").estimate(leaderboard.best.answers[0], task.tables, task.topology).total_ms
    assert cost == pytest.approx(leaderboard.best.costs_ms[0], rel=1e-12)
    entry = leaderboard.entries[0]
    assert entry.gap == pytest.approx(float((entry.verified.costs_ms / list(known.values())).mean()) - 1)


def test_an_entry_better_than_the_best_known_gives_no_negative_gap(made: Path, monkeypatch) -> None:
    monkeypatch.setattr(ranking, "best_known", lambda suite, model: {})
    leaderboard = load_leaderboards(made)[0]
    lowest = np.min([ranked.verified.costs_ms.min(axis=0) for ranked in leaderboard.entries], axis=0)
    assert leaderboard.best is not None
    assert leaderboard.best.costs_ms.tolist() == lowest.tolist()
    assert all(ranked.gap is not None and ranked.gap >= 0 for ranked in leaderboard.entries)


def test_a_suite_is_solved_by_an_entry_close_to_the_bounds_that_asks_for_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, model = load_suite(SUITE), make_cost_model("analytical")
    monkeypatch.setattr(records, "BOUNDS", tmp_path)
    load_scorer.cache_clear()
    before = load_leaderboards(made)[0]
    assert not before.is_solved
    assert before.proven_gap is None
    assert "No proven bounds of all its tasks are stored yet." in before.how_solved
    gap = before.smallest_gap("zero-query")
    assert gap is not None
    assert gap == min(each.gap for each in before.entries if each.league == "zero-query" and each.gap is not None)
    assert f"{100 * gap:.2f}% more than the best known" in before.how_solved
    bounds_module.write_lower_bounds([suite], best_known_costs(suite, model), model, "made up")  # so both gaps are one
    load_scorer.cache_clear()
    leaderboard = load_leaderboards(made)[0]
    for share, solved in ((gap * 1.01, True), (gap * 0.99, False)):
        monkeypatch.setattr(ranking, "SOLVED", share)
        assert leaderboard.is_solved is solved
        assert leaderboard.how_solved.startswith("**Solved.** ") is solved
    load_scorer.cache_clear()


def test_the_floor_of_a_suite_is_its_best_rule(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained entry closer to the best known answers is no rule: the suite is as open as before it was there."""
    board = load_leaderboards(made)[0]
    first, second = board.entries
    assert (first.league, second.league) == ("zero-query", "zero-query")
    assert board.floor == board.smallest_gap("zero-query") == first.gap
    entry = first.verified.entry
    learned = entry.model_copy(update={"agent": entry.agent.model_copy(update={"learns": True})})
    trained = replace(first, verified=replace(first.verified, entry=learned))
    board = replace(board, entries=(trained, second))
    assert (board.smallest_gap("zero-query"), board.floor) == (first.gap, second.gap)
    alone = replace(board, entries=(trained,))
    assert alone.floor is None
    assert first.gap is not None
    assert second.gap is not None
    monkeypatch.setattr(ranking.Leaderboard, "is_solved", False)
    monkeypatch.setattr(ranking, "SOLVED", (first.gap + second.gap) / 2)
    assert (board.status, alone.status) == ("open", "undecided")
    assert f"and the best rule {100 * second.gap:.2f}%" in board.how_solved


# Competitors across suites


def test_competitors_have_an_entry_on_every_core_suite(root: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8")
    add_entry(root, "size-greedy", "merlin-tiny-x8")  # counts on its own leaderboard alone
    suites, ranked = competitors(load_leaderboards(root))
    assert suites == ("dlrm-20x4", "mlperf-x8")
    (only,) = ranked
    assert (only.slug, only.tasks, only.ratios.shape) == ("size-greedy", 51, (51,))
    assert only.interval[0] <= only.iqm <= only.interval[1]
    assert only.share_within(1e9) == 1.0
    assert (only.training_queries, only.planning_queries) == (0, 0.0)


def test_a_folder_name_used_by_others_does_not_join_their_entries(root: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8", authors=["Mallory"])
    add_entry(root, "dim-greedy", "mlperf-x8", slug="random")
    assert competitors(load_leaderboards(root))[1] == []


def test_the_budget_of_a_competitor_covers_all_suites(root: Path, add_entry) -> None:
    for suite, queries in ((SUITE, 7), ("mlperf-x8", 9)):
        budget = {"training_data": ["other: logs"], "training_queries": queries, "planning_queries": queries + 1.0}
        add_entry(root, "lane-greedy", suite, as_agent="mine", **budget)
    add_entry(root, "size-greedy", "mlperf-x8")
    leaderboards = load_leaderboards(root)
    (greedy,) = (each for each in competitors(leaderboards)[1] if each.slug == "lane-greedy")
    queries = {
        each.suite: ranked.verified.entry.planning.queries
        for each in leaderboards
        for ranked in each.entries
        if ranked.verified.folder.slug == "lane-greedy"
    }
    assert greedy.training_queries == 9
    assert greedy.planning_queries == pytest.approx((50 * queries[SUITE] + queries["mlperf-x8"]) / 51)


# Improvements of the best known placements


@pytest.fixture
def known_file(tmp_path: Path, monkeypatch) -> Path:
    """A copy of the file of best known placements, which may be changed."""
    folder = tmp_path / "best_known"
    folder.mkdir()
    record = json.loads((best_known_module.BEST_KNOWN / f"{SUITE}.json").read_text())
    (folder / f"{SUITE}.json").write_text(json.dumps({**record, "how": record["how"].partition("; ")[0]}))
    monkeypatch.setattr(best_known_module, "BEST_KNOWN", folder)
    return folder / f"{SUITE}.json"


def worsen(path: Path, tasks: list[str]) -> None:
    """Replace the best known placements of some tasks by worse ones, the worst of some random ones."""
    suite, model = load_suite(SUITE), make_cost_model("analytical")
    record = json.loads(path.read_text())
    for name in tasks:
        task = suite.task(name)
        random = [make_agent("random", seed=seed).place(task) for seed in range(10, 20)]
        costs = [model.estimate(placement, task.tables, task.topology).total_ms for placement in random]
        worst = int(np.argmax(costs))
        record["splits"]["test"][name] = {"cost_ms": costs[worst], "placement": random[worst].tolist()}
    path.write_text(json.dumps(record))


def test_improvements_are_found_and_written(made: Path, known_file: Path) -> None:
    before = known_file.read_bytes()
    names = [f"{SUITE}/test/3", f"{SUITE}/test/40"]
    entries, _ = verify_all(made)
    assert improvements(entries) == {}
    worsen(known_file, names)
    found = improvements(entries)
    assert list(found) == [SUITE]
    assert list(found[SUITE]) == names
    lowest = min(each.costs_ms[:, 3].min() for each in entries if each.folder.track == "simulated")
    assert found[SUITE][names[0]].cost_ms == lowest
    assert update_best_known(SUITE, found[SUITE]) == known_file
    best = best_known(load_suite(SUITE), make_cost_model("analytical"))
    assert best[names[0]].cost_ms == pytest.approx(lowest, rel=1e-12)
    assert np.array_equal(best[names[0]].answer, found[SUITE][names[0]].answer)
    # The other tasks and the words about the search effort are unchanged.
    record, old = json.loads(known_file.read_text()), json.loads(before)
    others = {name: entry for name, entry in old["splits"]["test"].items() if name not in names}
    assert others.items() <= record["splits"]["test"].items()
    assert record["how"].startswith(f"{old['how']}; {IMPROVED_BY}simulated/{SUITE}/")
    assert improvements(entries) == {}


def test_entries_of_earlier_improvements_stay_named(made: Path, known_file: Path) -> None:
    entries, _ = verify_all(made)
    for name in (f"{SUITE}/test/3", f"{SUITE}/test/4", f"{SUITE}/test/5"):
        worsen(known_file, [name])
        update_best_known(SUITE, improvements(entries)[SUITE])
    parts = json.loads(known_file.read_text())["how"].split(IMPROVED_BY)
    assert len(parts) == 2
    assert parts[1].split(", ") == sorted(set(parts[1].split(", ")))


def test_a_suite_without_best_known_placements_starts_with_an_entry(made: Path, known_file: Path) -> None:
    known_file.unlink()
    found = improvements(verify_all(made)[0])[SUITE]
    assert len(found) == 50
    update_best_known(SUITE, found)
    assert json.loads(known_file.read_text())["how"].startswith(IMPROVED_BY)
