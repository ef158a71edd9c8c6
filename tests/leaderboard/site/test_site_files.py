"""The files of the page: what stands in the data, and that it stands there safely."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym.cost_models import make_cost_model
from shard_gym.errors import InvalidOptionError, InvalidPlacementError, UnknownNameError, UnwritablePathError
from shard_gym.explain import explain
from shard_gym.leaderboard.site import site_files, write_site
from shard_gym.leaderboard.site.build import STATIC
from shard_gym.leaderboard.site.explorer import MIB, significant
from shard_gym.placement import memory_used
from shard_gym.text import slug

LITERAL = re.compile(r"\(window\.ShardGymData \?\?= \{\}\)\[(\"[^\"]+\")\] = (.*);\n")


def parsed(files: dict[str, bytes]) -> dict[str, Any]:
    """The values of the data files by their keys."""
    values = {}
    for path, content in files.items():
        if path.startswith("data/"):
            match = LITERAL.fullmatch(content.decode("ascii"))
            assert match is not None, path
            key = json.loads(match[1])
            assert path == f"data/{key}.js"
            values[key] = json.loads(match[2])
    return values


@pytest.fixture(scope="module")
def values(boards: Any) -> dict[str, Any]:
    return parsed(site_files(boards.data, boards.load))


def close(rounded: Any, exact: Any, digits: int = 5) -> bool:
    return np.allclose(rounded, exact, rtol=0.5 * 10.0 ** (1 - digits) * (1 + 1e-9), atol=0.0)


def test_every_suite_has_its_files_and_stands_in_the_index(boards: Any, values: dict[str, Any]) -> None:
    expected = {"index"}
    for suite in boards.data["suites"]:
        key = f"simulated/{suite['name']}"
        expected |= {
            f"{key}/ranking",
            f"{key}/tasks",
            f"{key}/best",
            *(f"{key}/entries/{entry['id']}" for entry in suite["entries"]),
        }
    assert set(values) == expected
    tasks = [boards.load(suite["name"]) for suite in boards.data["suites"]]
    for line, suite, known in zip(values["index"]["suites"], boards.data["suites"], tasks, strict=True):
        assert (line["key"], line["tasks"], line["entries"]) == (f"simulated/{suite['name']}", len(known), 3)
        assert line["tables"] == [min(t.num_tables for t in known), max(t.num_tables for t in known)]
        assert line["devices"] == [min(t.num_devices for t in known), max(t.num_devices for t in known)]


def test_the_ranking_holds_the_scores(boards: Any, values: dict[str, Any]) -> None:
    for suite, found in boards.evaluations.items():
        by_agent = {evaluation.agent: evaluation for evaluation in found}
        rows = values[f"simulated/{suite}/ranking"]
        assert [row["mean_cost_ms"] for row in rows] == sorted(row["mean_cost_ms"] for row in rows)
        for row in rows:
            evaluation = by_agent[row["id"]]
            assert close(row["mean_cost_ms"], evaluation.mean_cost_ms)
            assert close(row["interval_ms"], evaluation.interval_ms)
            assert row["failures"] == evaluation.failures
            assert "placements" not in row, "The first page would be large."


def test_the_best_known_placements_stand_beside_the_entries(boards: Any, values: dict[str, Any]) -> None:
    for suite, found in boards.evaluations.items():
        lowest = np.min([evaluation.costs_ms for evaluation in found], axis=0)
        best = values[f"simulated/{suite}/best"]
        assert close(best["task_costs_ms"], lowest)
        assert close([sheet["cost_ms"] for sheet in best["placements"]], lowest)
    assert {line["best_effort"] for line in values["index"]["suites"]} == {"best of three agents"}


def test_placements_are_taken_apart_as_the_cost_model_does(boards: Any, values: dict[str, Any]) -> None:
    model = make_cost_model("analytical")
    for suite, found in boards.evaluations.items():
        for evaluation in found:
            record = values[f"simulated/{suite}/entries/{evaluation.agent}"]
            assert close(record["task_costs_ms"], evaluation.costs_ms)
            for task, result, sheet in zip(boards.load(suite), evaluation.tasks, record["placements"], strict=True):
                assert sheet["placement"] == result.placement
                exact = explain(task, result.placement, model)
                assert close(sheet["cost_ms"], result.cost_ms)
                assert close(sheet["phases_ms"], exact.phases_ms)
                assert close(np.max(sheet["phases_ms"], axis=0).sum(), sheet["cost_ms"], 4)
                critical = np.zeros_like(exact.critical)
                for phase, devices in enumerate(sheet["critical"]):
                    critical[devices, phase] = True
                assert (critical == exact.critical).all()
                assert close(sheet["memory_mib"], exact.memory_used / MIB)


def test_tasks_are_described_as_they_are(boards: Any, values: dict[str, Any]) -> None:
    model = make_cost_model("analytical")
    for suite in boards.data["suites"]:
        sheets = values[f"simulated/{suite['name']}/tasks"]
        for task, known, sheet in zip(boards.load(suite["name"]), suite["tasks"], sheets, strict=True):
            exact = explain(task, task.known_placement, model)
            assert (sheet["name"], sheet["tables"]) == (task.name, list(task.tables.names))
            assert close(sheet["costs_ms"], exact.single_table_ms, 4)
            assert close(sheet["memory_mib"], task.tables.memory_bytes / MIB, 4)
            assert close(sheet["caps_mib"], task.topology.memory_cap_bytes / MIB)
            assert sheet["rows"] == task.tables.num_embeddings.tolist()
            assert sheet["dims"] == task.tables.embedding_dim.tolist()
            assert close(sheet["pooling"], task.tables.pooling_factor, 4)
            assert close(
                [sheet["best_known_ms"], sheet["lower_bound_ms"]], [known["best_known_ms"], exact.lower_bound_ms]
            )


def test_memory_of_devices_and_of_their_tables_agree(boards: Any, values: dict[str, Any]) -> None:
    task = boards.load("dlrm-20x4")[0]
    sheet = values["simulated/dlrm-20x4/entries/random"]["placements"][0]
    used = memory_used(np.array(sheet["placement"]), task.tables, task.num_devices)
    assert close(np.array(sheet["memory_mib"]) * MIB, used)
    assert (used <= task.topology.memory_cap_bytes).all()


def test_equal_data_give_equal_bytes(boards: Any) -> None:
    again = json.loads(json.dumps(boards.data))
    assert site_files(boards.data, boards.load) == site_files(again, boards.load)


def test_the_folder_is_written_and_brought_up_to_date(boards: Any, tmp_path: Path) -> None:
    (tmp_path / "CNAME").write_text("example.org")
    files = site_files(boards.data, boards.load)
    written = write_site(boards.data, tmp_path, boards.load)
    assert written == sorted(tmp_path / name for name in files)
    fewer = copy.deepcopy(boards.data)
    gone = fewer["suites"][0]["entries"].pop()["id"]
    write_site(fewer, tmp_path, boards.load)
    left = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {**site_files(fewer, boards.load), "CNAME": b"example.org"}
    assert f"data/simulated/dlrm-20x4/entries/{gone}.js" in files
    assert f"data/simulated/dlrm-20x4/entries/{gone}.js" not in left


def test_a_place_that_cannot_be_written_is_named(boards: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritablePathError, match="file"):
        write_site(boards.data, tmp_path / "file" / "site", boards.load)


def test_hostile_text_stays_a_string_of_plain_characters(boards: Any) -> None:
    data = copy.deepcopy(boards.data)
    name = "</script><script>alert(1)</script>\u2028\u202e\"'\\\n\x00"
    data["suites"][0]["entries"][0]["name"] = name
    files = site_files(data, boards.load)
    assert parsed(files)["simulated/dlrm-20x4/ranking"][0]["name"] == name
    content = files["data/simulated/dlrm-20x4/ranking.js"]
    assert content.count(b"\n") == 1
    assert b"\x00" not in content


def test_measured_costs_of_each_hardware_stand_apart(boards: Any) -> None:
    data = copy.deepcopy(boards.data)
    for hardware in ("NVIDIA H200", "NVIDIA A100 80GB"):
        data["suites"].append({**copy.deepcopy(data["suites"][0]), "track": "measured", "hardware": hardware})
    keys = [line["key"] for line in parsed(site_files(data, boards.load))["index"]["suites"]]
    assert keys[2:] == ["measured/nvidia-h200/dlrm-20x4", "measured/nvidia-a100-80gb/dlrm-20x4"]


def test_a_failure_and_missing_numbers_are_kept_as_such(boards: Any) -> None:
    data = copy.deepcopy(boards.data)
    data["suites"][0]["entries"][0] |= {"gap": None, "planning_ms": None}
    data["suites"][0]["entries"][0]["placements"][1] = None
    data["suites"][0]["tasks"][0] |= {"best_known_ms": None, "lower_bound_ms": None}
    values = parsed(site_files(data, boards.load))
    first = values["simulated/dlrm-20x4/ranking"][0]
    assert (first["gap"], first["planning_ms"]) == (None, None)
    sheets = values[f"simulated/dlrm-20x4/entries/{first['id']}"]["placements"]
    assert [sheet is None for sheet in sheets] == [False, True, False, False]
    assert values["simulated/dlrm-20x4/tasks"][0]["best_known_ms"] is None


def _set(*path: Any) -> Callable[[Any], None]:
    """Puts the last of `path` where the others lead."""

    def change(data: Any) -> None:
        for key in path[:-2]:
            data = data[key]
        data[path[-2]] = path[-1]

    return change


FIRST = ("suites", 0, "entries", 0)
REFUSED: dict[str, tuple[Callable[[Any], None], type[Exception], str]] = {
    "path in an id": (_set(*FIRST, "id", "../../index"), InvalidOptionError, r"'\.\./\.\./index', which is not safe"),
    "markup in an id": (_set(*FIRST, "id", "<b>"), InvalidOptionError, "not safe"),
    "empty id": (_set(*FIRST, "id", ""), InvalidOptionError, "not safe"),
    "line after an id": (_set(*FIRST, "id", "a\n"), InvalidOptionError, "not safe"),
    "same id twice": (_set(*FIRST, "id", "random"), InvalidOptionError, "'random' stands twice"),
    "path in a suite": (_set("suites", 0, "name", "../x"), InvalidOptionError, "not safe"),
    "unknown track": (_set("suites", 0, "track", "guessed"), InvalidOptionError, "'guessed'"),
    "suite twice": (lambda data: data["suites"].append(data["suites"][0]), InvalidOptionError, "stands twice"),
    "profile twice": (lambda data: data["profiles"].append(data["profiles"][0]), InvalidOptionError, "stands twice"),
    "a cost too few": (
        lambda data: data["suites"][0]["entries"][0]["task_costs_ms"].pop(),
        InvalidOptionError,
        "3 values",
    ),
    "a placement too few": (
        lambda data: data["suites"][0]["entries"][0]["placements"].pop(),
        InvalidOptionError,
        "3 values",
    ),
    "a best placement too few": (
        lambda data: data["suites"][0]["best"]["placements"].pop(),
        InvalidOptionError,
        "3 values",
    ),
    "a share too few": (lambda data: data["profiles"][0]["lines"][0]["shares"].pop(), InvalidOptionError, "shares of"),
    "NaN": (_set(*FIRST, "mean_cost_ms", float("nan")), InvalidOptionError, "JSON"),
    "infinity": (_set(*FIRST, "task_costs_ms", 0, float("inf")), InvalidOptionError, "JSON"),
    "half a character": (_set(*FIRST, "name", "\ud800"), InvalidOptionError, "JSON"),
    "task of another suite": (_set("suites", 0, "tasks", 0, "name", "x"), InvalidOptionError, "not its 4 test tasks"),
    "device that is not there": (_set(*FIRST, "placements", 0, 0, 4), InvalidPlacementError, "on device 4"),
    "memory": (_set(*FIRST, "placements", 0, [0] * 20), InvalidPlacementError, "its cap is"),
    "cost model": (_set("suites", 0, "cost_model", "guess"), UnknownNameError, "'guess'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_page_is_refused_before_anything_is_written(boards: Any, case: str, tmp_path: Path) -> None:
    change, error, message = REFUSED[case]
    data = copy.deepcopy(boards.data)
    change(data)
    with pytest.raises(error, match=message):
        write_site(data, tmp_path / "site", boards.load)
    assert not (tmp_path / "site").exists()


@given(st.lists(st.floats(-1e12, 1e12), max_size=8), st.integers(1, 9))
def test_rounding_keeps_so_many_digits(numbers: list[float], digits: int) -> None:
    rounded = significant(numbers, digits)
    for exact, value in zip(numbers, rounded, strict=True):
        assert abs(value - exact) <= 0.5000001 * 10.0 ** (1 - digits) * abs(exact)
    assert (significant(rounded, digits) == rounded).all()


@given(st.text())
def test_a_slug_is_a_safe_part_of_a_path(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(text))


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
    names = {"http://www.w3.org/2000/svg"}  # a name of SVG, not an address that is asked
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


def test_the_first_page_is_small(boards: Any) -> None:
    files = site_files(boards.data, boards.load)
    own = sum(len(content) for path, content in files.items() if not path.startswith("data/"))
    assert own + len(files["data/index.js"]) < 100_000
