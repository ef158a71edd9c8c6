"""The files of the page: their data, and that hostile text in them is harmless."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.explain import explain
from shard_gym.leaderboard.ranking import competitors
from shard_gym.leaderboard.site import STATIC, rounded, site_files, write_site
from shard_gym.leaderboard.store import MIB
from shard_gym.suites.bounds import lower_bounds


def close(rounded: Any, exact: Any, digits: int = 5) -> bool:
    return np.allclose(rounded, exact, rtol=0.5 * 10.0 ** (1 - digits) * (1 + 1e-9), atol=0.0)


def test_every_suite_has_its_files_and_is_in_the_index(example: Any) -> None:
    expected = {"index"}
    for line, leaderboard in zip(example.values["index"]["suites"], example.leaderboards, strict=True):
        key, tasks = f"simulated/{leaderboard.suite}", example.suite(leaderboard.suite)
        entries = [ranked.verified.folder.slug for ranked in leaderboard.entries]
        expected |= {f"{key}/ranking", f"{key}/tasks", f"{key}/best", *(f"{key}/entries/{name}" for name in entries)}
        assert (line["key"], line["tasks"], line["entries"]) == (key, len(tasks), 3)
        assert line["tables"] == [min(t.num_tables for t in tasks), max(t.num_tables for t in tasks)]
        assert line["devices"] == [min(t.num_devices for t in tasks), max(t.num_devices for t in tasks)]
        assert line["best_effort"] == "best of three agents"
        assert line["how_solved"] == leaderboard.how_solved.replace("*", "")
    assert set(example.values) == expected


def test_the_ranking_holds_the_scores(example: Any) -> None:
    for suite, evaluations in example.evaluations.items():
        by_agent = {evaluation.agent: evaluation for evaluation in evaluations}
        rows = example.ranking(suite)
        assert [row["league"] for row in rows] == ["zero-query", "guided", "guided"]  # with 0, 1 and 2 queries
        assert rows[1]["mean_cost_ms"] <= rows[2]["mean_cost_ms"]
        by_cost = sorted(rows, key=lambda row: row["mean_cost_ms"])
        assert [(row["planning_ms"], row["planning_replayed"]) for row in by_cost] == [
            (0.25, True),
            (2.5, False),
            (25, True),
        ]
        lowest = np.min([evaluation.costs_ms for evaluation in evaluations], axis=0)
        for row in rows:
            evaluation = by_agent[row["id"]]
            assert close(row["mean_cost_ms"], evaluation.mean_cost_ms, 9)
            assert row["interval_ms"][0] <= row["mean_cost_ms"] <= row["interval_ms"][1]
            assert row["gap"] == pytest.approx((evaluation.costs_ms / lowest).mean() - 1, rel=1e-8, abs=1e-12)
            assert row["failures"] == evaluation.failures
            assert "placements" not in row, "The first page would be large."


def test_the_profile_is_that_of_the_competitors(example: Any) -> None:
    (profile,) = example.values["index"]["profiles"]
    suites, ranked = competitors(example.leaderboards)
    assert profile["about"].startswith(f"8 test tasks of {len(suites)} core suites;")
    assert [(line["id"], line["league"]) for line in profile["lines"]] == [(each.slug, each.league) for each in ranked]
    for line, competitor in zip(profile["lines"], ranked, strict=True):
        assert close(line["shares"], [competitor.share_within(tau) for tau in profile["taus"]])
        assert close([line["iqm"], *line["iqm_interval"]], [competitor.iqm, *competitor.interval])


def test_the_best_known_placements_have_a_file(example: Any) -> None:
    for suite, evaluations in example.evaluations.items():
        lowest = np.min([evaluation.costs_ms for evaluation in evaluations], axis=0)
        best = example.values[f"simulated/{suite}/best"]
        assert close(best["task_costs_ms"], lowest)
        assert close([sheet["cost_ms"] for sheet in best["placements"]], lowest)


def test_placement_sheets_agree_with_the_cost_model(example: Any) -> None:
    model = make_cost_model("analytical")
    for suite, evaluation in [(suite, each) for suite, found in example.evaluations.items() for each in found]:
        record = example.values[f"simulated/{suite}/entries/{evaluation.agent}"]
        assert close(record["task_costs_ms"], evaluation.costs_ms)
        for task, result, sheet in zip(example.suite(suite), evaluation.tasks, record["placements"], strict=True):
            assert sheet["placement"] == result.placement
            exact = explain(task, result.placement, model)
            assert close(sheet["cost_ms"], result.cost_ms)
            assert close(sheet["phases_ms"], exact.phases_ms)
            assert close(np.max(sheet["phases_ms"], axis=0).sum(), sheet["cost_ms"], 4)
            assert sheet["critical"] == [np.flatnonzero(phase).tolist() for phase in exact.critical.T]
            assert close(sheet["memory_mib"], exact.memory_used / MIB)
            assert (exact.memory_used <= task.topology.memory_cap_bytes).all()


def test_task_sheets_describe_the_tasks(example: Any) -> None:
    model = make_cost_model("analytical")
    for leaderboard in example.leaderboards:
        assert leaderboard.best is not None
        sheets = example.values[f"simulated/{leaderboard.suite}/tasks"]
        for task, best, sheet in zip(leaderboard.scorer.suite, leaderboard.best.costs_ms, sheets, strict=True):
            shipped = lower_bounds(leaderboard.scorer.suite, model).get(task.name)
            exact = explain(task, task.known_placement, model, lower_bound_ms=shipped)
            assert (sheet["name"], sheet["tables"]) == (task.name, list(task.tables.names))
            assert close(sheet["costs_ms"], exact.single_table_ms, 4)
            assert close(sheet["memory_mib"], task.tables.memory_bytes / MIB, 4)
            assert close(sheet["caps_mib"], task.topology.memory_cap_bytes / MIB)
            assert sheet["rows"] == task.tables.num_embeddings.tolist()
            assert sheet["dims"] == task.tables.embedding_dim.tolist()
            assert close(sheet["pooling"], task.tables.pooling_factor, 4)
            assert close([sheet["best_known_ms"], sheet["lower_bound_ms"]], [best, exact.lower_bound_ms])


def test_the_folder_is_written_and_updated(example: Any, tmp_path: Path) -> None:
    (tmp_path / "CNAME").write_text("example.org")
    files = site_files(example.leaderboards)
    assert write_site(example.leaderboards, tmp_path) == sorted(tmp_path / name for name in files)
    first, second = example.leaderboards
    fewer = [replace(first, entries=first.entries[:-1]), second]
    removed = f"data/simulated/dlrm-20x4/entries/{first.entries[-1].verified.folder.slug}.js"
    write_site(fewer, tmp_path)
    left = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {**site_files(fewer), "CNAME": b"example.org"}
    assert removed in files
    assert removed not in left


def test_hostile_text_stays_a_string_of_ascii_characters(example: Any, values_of: Any) -> None:
    name = "</script><script>alert(1)</script>\u2028\u202e\"'\\\n\x00"
    first, *others = example.leaderboards[0].entries
    entry = first.verified.entry.model_copy(update={"name": name})
    renamed = replace(first, verified=replace(first.verified, entry=entry))
    leaderboards = [replace(example.leaderboards[0], entries=(renamed, *others))]
    assert values_of(leaderboards)["simulated/dlrm-20x4/ranking"][0]["name"] == name
    content = site_files(leaderboards)["data/simulated/dlrm-20x4/ranking.js"]
    assert content.count(b"\n") == 1
    assert b"\x00" not in content


def test_each_race_has_a_folder(measured: Any, values_of: Any) -> None:
    unraced = replace(measured, entries=(), race=None)
    first, second = values_of([measured, unraced])["index"]["suites"]
    assert (first["key"], second["key"]) == ("measured/dlrm-20x4/races/nvidia-h200", "measured/dlrm-20x4")
    about = "0 rounds of 10 iterations on nvidia-h200, layout parallel"
    assert (first["race"], second["race"]) == ({"name": "nvidia-h200", "about": about}, None)
    assert first["not_raced"] == second["not_raced"] == ["cost-greedy"]


def test_failures_and_missing_numbers_are_null(measured: Any, values_of: Any) -> None:
    values = values_of([measured])
    key = "measured/dlrm-20x4/races/nvidia-h200"
    first, *_ = values[f"{key}/ranking"]
    assert (first["gap"], first["improvement_over_next"], first["failures"]) == (None, None, 1)
    assert (first["ratio"], first["ratio_interval"]) == (1.25, [1.125, 1.5])
    sheets = values[f"{key}/entries/{first['id']}"]["placements"]
    assert [sheet is None for sheet in sheets] == [False, True, False, False]
    assert {(task["best_known_ms"], task["lower_bound_ms"]) for task in values[f"{key}/tasks"]} == {(None, None)}
    assert f"{key}/best" not in values
    assert values["index"]["profiles"] == []


@given(st.lists(st.floats(-1e12, 1e12), max_size=8), st.integers(1, 9))
def test_rounding_keeps_the_significant_digits(numbers: list[float], digits: int) -> None:
    short = rounded(numbers, digits)
    for exact, value in zip(numbers, short, strict=True):
        assert abs(value - exact) <= 0.5000001 * 10.0 ** (1 - digits) * abs(exact)
    assert rounded(short, digits) == short


# The static files


def static(*suffixes: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(STATIC.rglob("*")) if path.suffix in suffixes}


def test_nothing_in_the_page_reads_text_as_html_or_code() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:")
    found = {name: forbidden.findall(text) for name, text in static(".js", ".html").items()}
    assert found
    assert not any(found.values()), found


def test_the_page_has_no_inline_code_or_style_and_a_strict_policy() -> None:
    (page,) = static(".html").values()
    assert re.findall(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|<style", page) == []
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in policy
    assert rules["require-trusted-types-for"] == "'script'"


def test_no_file_names_an_address_elsewhere() -> None:
    names = {"http://www.w3.org/2000/svg"}  # a name of SVG, which is never requested
    found = set(
        itertools.chain.from_iterable(
            re.findall(r"(?:https?:)?//[\w.]+\.\w[\w./]*", text) for text in static(".js", ".html", ".css").values()
        )
    )
    assert found <= names


def test_every_script_is_in_the_page_and_none_is_long() -> None:
    (page,) = static(".html").values()
    scripts = static(".js")
    assert set(re.findall(r'src="scripts/([\w.]+)"', page)) == set(scripts)
    assert max(len(text.splitlines()) for text in scripts.values()) <= 400


def test_the_first_page_is_small(example: Any) -> None:
    files = site_files(example.leaderboards)
    own = sum(len(content) for path, content in files.items() if not path.startswith("data/"))
    assert own + len(files["data/index.js"]) < 100_000
