"""The files of the page: their data, and that hostile text in them is harmless."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.leaderboard import write_site
from shard_gym.leaderboard.ranking import competitors
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.leaderboard.site import STATIC, _answer_sheet, site_files
from shard_gym.leaderboard.store import MIB
from shard_gym.planning import explain
from shard_gym.plans import plan_memory_used, plan_of_placement
from shard_gym.replanning.env.windows import KINDS
from shard_gym.tasks import TaskSuite, load_suite
from shard_gym.tasks.groups import possible_groups, task_of_group
from shard_gym.tasks.suites.bounds import lower_bounds


def close(rounded: Any, exact: Any, digits: int = 5) -> bool:
    return np.allclose(rounded, exact, rtol=0.5 * 10.0 ** (1 - digits) * (1 + 1e-9), atol=0.0)


def test_every_suite_has_its_files_and_is_in_the_index(example: Any) -> None:
    lines = {line["key"]: line for line in example.values["index"]["suites"]}
    expected = {"index"} | {f"{key}/{name}" for key in lines for name in ("ranking", "tasks")}
    for leaderboard in example.leaderboards:
        key, tasks = f"simulated/{leaderboard.suite}", leaderboard.scorer.suite
        expected |= {f"{key}/best", *(f"{key}/entries/{each.verified.folder.slug}" for each in leaderboard.entries)}
        line = lines[key]
        assert (line["tasks"], line["entries"], line["track"]) == (len(tasks), 3, "simulated")
        assert line["tables"] == [min(t.num_tables for t in tasks), max(t.num_tables for t in tasks)]
        assert (line["status"], line["how_solved"]) == (leaderboard.status, leaderboard.how_solved)
    for board in example.boards:
        key = f"replanning/{board.suite}"
        expected |= {f"{key}/entries/{each.verified.folder.slug}" for each in board.entries}
        assert (lines[key]["track"], lines[key]["entries"]) == ("replanning", len(board.entries))
        assert lines[key]["plans"] == [kind.name for kind in KINDS if not kind.headroom]  # these tables do not grow
    assert set(example.values) == expected


def test_the_ranking_holds_the_scores(example: Any) -> None:
    for suite, evaluations in example.evaluations.items():
        by_agent = {evaluation.agent: evaluation for evaluation in evaluations}
        lowest = np.min([evaluation.costs_ms for evaluation in evaluations], axis=0)
        rows = example.values[f"simulated/{suite}/ranking"]
        assert [row["group"] for row in rows] == ["zero-query", "guided", "guided"]  # with 0, 1 and 2 queries
        times = [(row["planning_ms"], row["planning_replayed"]) for row in sorted(rows, key=lambda row: row["score"])]
        assert times == [(0.25, True), (2.5, False), (25, True)]
        for row in rows:
            evaluation = by_agent[row["id"]]
            assert close(row["score"], evaluation.mean_cost_ms, 9)
            assert row["interval"][0] <= row["score"] <= row["interval"][1]
            assert row["gap"] == pytest.approx((evaluation.costs_ms / lowest).mean() - 1, rel=1e-8, abs=1e-12)
            assert "sheets" not in row, "The first page would be large."


def test_the_ranking_of_replanning_holds_the_scores(example: Any) -> None:
    for board in example.boards:
        rows, tasks = (example.values[f"replanning/{board.suite}/{name}"] for name in ("ranking", "tasks"))
        for row, ranked in zip(rows, board.entries, strict=True):
            entry = ranked.verified
            excess, facts = entry.costs_ms / board.best.costs_ms - 1, {key: v.mean() for key, v in entry.facts.items()}
            assert (row["id"], row["seeds"]) == (entry.folder.slug, len(entry.entry.seeds))
            assert row["group"] == "replayed"
            assert row["score"] == pytest.approx(excess.mean())
            assert row["interval"][0] <= row["score"] <= row["interval"][1]
            shown = [3.6e6 * row["hours"], *(row[key] for key in ("pauses_s", "migrations_s", "plans", "repairs"))]
            assert shown == pytest.approx([entry.costs_ms.mean(), *facts.values()])
            record = example.values[f"replanning/{board.suite}/entries/{row['id']}"]
            assert close(record["scores"], excess.mean(axis=0))
            assert [sheet["actions"] for sheet in record["sheets"]] == [
                "".join(map(str, answer)) for answer in entry.answers[0]
            ]
            seconds = np.array([sheet["seconds"] for sheet in record["sheets"]])
            assert seconds.sum(axis=1) == pytest.approx(entry.costs_ms[0] / 1e3, rel=1e-4)
            assert close(
                seconds[:, 1:], np.stack([entry.facts["pauses, s"][0], entry.facts["migrations, s"][0]], axis=1)
            )
        assert [3.6e6 * task["oracle_hours"] for task in tasks] == pytest.approx(board.best.costs_ms.tolist())


def test_the_profile_is_that_of_the_competitors(example: Any) -> None:
    profile = example.values["index"]["profile"]
    suites, ranked = competitors(example.leaderboards)
    assert profile["about"].startswith(f"8 test tasks of {len(suites)} core suites;")
    assert [(line["id"], line["league"]) for line in profile["lines"]] == [(each.slug, each.league) for each in ranked]
    for line, competitor in zip(profile["lines"], ranked, strict=True):
        assert close(line["shares"], [competitor.share_within(tau) for tau in profile["taus"]])
        assert close([line["iqm"], *line["iqm_interval"]], [competitor.iqm, *competitor.interval])


def test_sheets_agree_with_the_cost_model(example: Any) -> None:
    model = make_cost_model("analytical")
    for leaderboard in example.leaderboards:
        key, suite, best = f"simulated/{leaderboard.suite}", leaderboard.scorer.suite, leaderboard.best
        bounds = lower_bounds(suite, model)
        for task, best_ms, sheet in zip(suite, best.costs_ms, example.values[f"{key}/tasks"], strict=True):
            exact = explain(task, task.known_placement, model, lower_bound_ms=bounds.get(task.name))
            assert (sheet["name"], sheet["tables"]) == (task.name, list(task.tables.names))
            assert close(sheet["costs_ms"], exact.single_shard_ms, 4)
            assert close(sheet["memory_mib"], task.tables.memory_bytes / MIB, 4)
            assert close(sheet["caps_mib"], task.topology.memory_cap_bytes / MIB)
            assert sheet["rows"] == task.tables.num_embeddings.tolist()
            assert sheet["dims"] == task.tables.embedding_dim.tolist()
            assert close(sheet["pooling"], task.tables.pooling_factor, 4)
            assert close([sheet["best_known_ms"], sheet["lower_bound_ms"]], [best_ms, exact.lower_bound_ms])
        answers = {f"entries/{each.agent}": each for each in example.evaluations[leaderboard.suite]}
        lowest = np.min([each.costs_ms for each in answers.values()], axis=0)
        assert close(example.values[f"{key}/best"]["scores"], lowest)
        assert close([sheet["cost_ms"] for sheet in example.values[f"{key}/best"]["sheets"]], lowest)
        for name, evaluation in answers.items():
            record = example.values[f"{key}/{name}"]
            assert close(record["scores"], evaluation.costs_ms)
            for task, result, sheet in zip(suite, evaluation.tasks, record["sheets"], strict=True):
                assert sheet["placement"] == result.placement
                exact = explain(task, result.placement, model)
                assert close(sheet["cost_ms"], result.cost_ms)
                assert close(sheet["phases_ms"], exact.phases_ms)
                assert sheet["critical"] == [np.flatnonzero(phase).tolist() for phase in exact.critical.T]
                assert close(sheet["memory_mib"], exact.memory_used / MIB)


def test_sheets_of_plans_with_groups_are_of_one_group() -> None:
    tasks = load_suite("groups-256").tasks[:1]
    scorer = Scorer(TaskSuite("groups-256", tasks, split="test"))
    groups = next(each for each in possible_groups(tasks[0]) if each.count == 4)
    own = task_of_group(tasks[0], groups)
    plan = replace(plan_of_placement(np.arange(own.num_tables) % own.num_devices, own.tables), groups=groups)
    sheet = _answer_sheet(scorer, 0, plan)
    assert sheet is not None
    assert close(sheet["cost_ms"], scorer.costs(0, [plan])[0])
    assert (sheet["groups"], sheet["devices_per_host"]) == (4, own.topology.devices_per_host)
    assert len(sheet["phases_ms"]) == len(sheet["memory_mib"]) == own.num_devices == 64
    assert close(sheet["memory_mib"], plan_memory_used(plan, own.tables, 64) / MIB)
    alone = _answer_sheet(scorer, 0, plan_of_placement(np.arange(own.num_tables) % 256, own.tables))
    assert alone is not None
    assert len(alone["phases_ms"]) == 256
    assert "groups" not in alone


def test_the_folder_is_written_and_updated(example: Any, tmp_path: Path) -> None:
    out = tmp_path / "leaderboard"
    write_site(example.leaderboards, out)
    (out / "CNAME").write_text("example.org")
    first, second = example.leaderboards
    fewer = [replace(first, entries=first.entries[:-1]), second]
    (tmp_path / "leaderboards.html").touch()  # the documentation, which the page now links to
    files = site_files(fewer, docs="../")
    assert write_site(fewer, out) == sorted(out / name for name in files)
    left = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert left == {**files, "CNAME": b"example.org"}


def test_the_static_files_allow_no_code_in_text_and_no_address_elsewhere() -> None:
    texts = {path.name: path.read_text() for path in STATIC.rglob("*") if path.is_file()}
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:")
    assert [name for name, text in texts.items() if forbidden.search(text)] == []
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w[\w./]*", "\n".join(texts.values())))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name of SVG, which is never requested
    page = texts["index.html"]
    assert re.findall(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|<style", page) == []
    assert set(re.findall(r'src="scripts/([\w.]+)"', page)) == {name for name in texts if name.endswith(".js")}
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert sum(map(len, texts.values())) < 100_000, "The first page is small."
