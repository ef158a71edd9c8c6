from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.errors import DamagedFileError
from shard_gym.leaderboard import scores
from shard_gym.leaderboard.boards import boards, contestants
from shard_gym.leaderboard.data import leaderboard_data
from shard_gym.leaderboard.site.data import check_site_data
from shard_gym.leaderboard.verify import verify_all
from shard_gym.suites import load_suite
from shard_gym.suites.best_known import best_known_costs


def test_boards_rank_by_mean_cost_and_keep_tracks_apart(made: Path) -> None:
    simulated, measured = boards(verify_all(made)[0])
    assert (simulated.track, simulated.hardware) == ("simulated", "rtx2080ti-pcie")
    assert (measured.track, measured.hardware) == ("measured", "NVIDIA H200")
    first, second = simulated.entries
    assert first.mean_cost_ms < second.mean_cost_ms
    assert first.improvement_over_next == scores.improvement(first.verified.costs_ms, second.verified.costs_ms)
    assert second.improvement_over_next is None
    assert measured.best is None
    assert measured.entries[0].gap is None


def test_gap_is_against_the_best_known(made: Path) -> None:
    board = boards(verify_all(made)[0])[0]
    known = best_known_costs(load_suite("dlrm-20x4"), make_cost_model("analytical"))
    assert board.best is not None
    assert board.best.ms.tolist() == list(known.values())
    assert "local search with" in board.best.effort
    task = load_suite("dlrm-20x4")[0]
    cost = make_cost_model("analytical").estimate(board.best.placements[0], task.tables, task.topology).total_ms
    assert cost == pytest.approx(board.best.ms[0], rel=1e-12)
    entry = board.entries[0]
    assert entry.gap == pytest.approx(float((entry.verified.costs_ms / list(known.values())).mean()) - 1)


def test_an_entry_better_than_the_best_known_makes_no_negative_gap(made: Path, monkeypatch) -> None:
    for module in ("boards", "best"):
        monkeypatch.setattr(f"shard_gym.leaderboard.{module}.best_known", lambda suite, model: {})
    board = boards(verify_all(made)[0])[0]
    lowest = np.min([scored.verified.costs_ms.min(axis=0) for scored in board.entries], axis=0)
    assert board.best is not None
    assert board.best.ms.tolist() == lowest.tolist()
    assert all(scored.gap is not None and scored.gap >= 0 for scored in board.entries)


def test_each_kind_of_gpu_has_a_board_of_its_own(root: Path, add_measured) -> None:
    add_measured(root, "NVIDIA A100", slug="other-gpu")
    add_measured(root, "Nvidia H200", slug="same-gpu", scale=2.0)
    measured = [board for board in boards(verify_all(root)[0]) if board.track == "measured"]
    assert [[each.verified.place.slug for each in board.entries] for board in measured] == [
        ["other-gpu"],
        ["measured-greedy", "same-gpu"],
    ]


def test_only_who_has_an_entry_on_every_suite_is_compared_across_them(root: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8")
    suites, ranked = contestants(boards(verify_all(root)[0]))
    assert suites == ("dlrm-20x4", "mlperf-x8")
    (only,) = ranked
    assert (only.slug, only.tasks, only.ratios.shape) == ("size-greedy", 51, (51,))
    assert only.interval[0] <= only.iqm <= only.interval[1]
    assert only.share_within(1e9) == 1.0
    assert (only.training_queries, only.planning_queries) == (0, 0.0)


def test_the_budget_of_a_contestant_is_over_all_suites(root: Path, add_entry) -> None:
    for suite, queries in (("dlrm-20x4", 7), ("mlperf-x8", 9)):
        known = {"training_data": ["other: logs"], "training_queries": queries}
        add_entry(root, "cost-greedy", suite, agent="mine", **known)
    add_entry(root, "size-greedy", "mlperf-x8")
    known = boards(verify_all(root)[0])
    (greedy,) = (each for each in contestants(known)[1] if each.slug == "cost-greedy")
    asked = {
        board.suite: scored.verified.entry.planning.queries
        for board in known
        for scored in board.entries
        if scored.verified.place.slug == "cost-greedy"
    }
    assert greedy.training_queries == 9
    assert greedy.planning_queries == pytest.approx((50 * asked["dlrm-20x4"] + asked["mlperf-x8"]) / 51)


def test_data_are_what_the_page_takes(root: Path, add_entry) -> None:
    add_entry(root, "size-greedy", "mlperf-x8")
    data = leaderboard_data(root)
    check_site_data(data)
    assert [(suite["track"], suite["name"]) for suite in data["suites"]] == [
        ("simulated", "dlrm-20x4"),
        ("simulated", "mlperf-x8"),
        ("measured", "dlrm-20x4"),
    ]
    entry = next(each for each in data["suites"][0]["entries"] if each["id"] == "random")
    assert entry["seeds"] == 5
    assert entry["mean_cost_ms"] == pytest.approx(np.mean(entry["task_costs_ms"]))
    row = json.loads((root / "simulated/dlrm-20x4/random/placements.json").read_text())["rows"][3]
    assert entry["placements"][3] == row["placement"]
    (profile,) = data["profiles"]
    assert [line["id"] for line in profile["lines"]] == ["size-greedy"]
    (line,) = profile["lines"]
    assert len(line["shares"]) == len(profile["taus"])
    assert line["iqm_interval"][0] <= line["iqm"] <= line["iqm_interval"][1]
    best = data["suites"][0]["best"]
    assert best is not None
    assert len(best["placements"]) == 50
    assert data["suites"][2]["best"] is None


def test_nothing_is_shown_of_a_folder_that_does_not_hold(root: Path, random_entry) -> None:
    random_entry.rows(lambda rows: rows.pop(3))
    with pytest.raises(DamagedFileError, match=r"1 finding, the first: .*task dlrm-20x4/test/3, seed 0"):
        leaderboard_data(root)
