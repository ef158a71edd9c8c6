"""Ways to cheat with an entry, or to break what reads it. Each has to be refused at its place."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.leaderboard import verify as verification
from shard_gym.leaderboard.store import LIMITS
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.suites import load_suite

Spoil = Callable[[Any], object]

ROWS = "placements.json"
TOML = "entry.toml"
TASK3 = "dlrm-20x4/test/3"


def findings_of(entry: Any) -> list[str]:
    verified, findings = verify_entry(entry.place)
    assert (verified is None) == bool(findings)
    return [str(finding) for finding in findings]


def overfill(rows: list[dict[str, Any]]) -> None:
    """Everything on one device."""
    rows[3]["placement"] = [0] * 20


def set_row(number: int, **values: Any) -> Spoil:
    return lambda entry: entry.rows(lambda rows: rows[number].update(values))


def set_device(value: Any) -> Spoil:
    return lambda entry: entry.rows(lambda rows: rows[3]["placement"].__setitem__(7, value))


def device_text(literal: str) -> Spoil:
    """A number that Python's writer would not write."""

    def spoil(entry: Any) -> None:
        entry.rows(lambda rows: rows[3]["placement"].__setitem__(7, 777))
        entry.text(lambda text: text.replace("777", literal))

    return spoil


def toml(old: str, new: str) -> Spoil:
    return lambda entry: entry.toml(old, new)


def repeat_seed(entry: Any) -> None:
    """The best of five draws handed in five times."""

    def change(rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows[:50]):
            for copy in range(1, 5):
                rows[50 * copy + number]["placement"] = row["placement"]

    entry.rows(change)


def rename_devices(entry: Any) -> None:
    """A copied draw with other device numbers."""

    def change(rows: list[dict[str, Any]]) -> None:
        for number, row in enumerate(rows[:50]):
            rows[50 + number]["placement"] = [(device + 1) % 4 for device in row["placement"]]

    entry.rows(change)


def only_best_seed(entry: Any) -> None:
    """One draw of a random agent, called deterministic."""
    entry.toml("seeds = [0, 1, 2, 3, 4]", "seeds = [0]")
    entry.toml("uses_chance = true", "uses_chance = false")
    entry.rows(lambda rows: rows.__delitem__(slice(50, None)))


# What is done, to which file, and what has to be said of it. The place is part of the expectation.
CHEATS: dict[str, tuple[Spoil, str]] = {
    "a missing task": (
        lambda e: e.rows(lambda rows: rows.pop(3)),
        f"{ROWS}, task {TASK3}, seed 0: The task is missing for this seed",
    ),
    "a doubled task": (
        lambda e: e.rows(lambda rows: rows.append(rows[3])),
        f"{ROWS}, task {TASK3}, seed 0: The task stands twice for this seed",
    ),
    "an extra task": (
        lambda e: e.rows(lambda rows: rows.append({**rows[3], "task": "dlrm-20x4/test/50"})),
        f"{ROWS}, task dlrm-20x4/test/50, seed 0: Suite 'dlrm-20x4' has no such test task",
    ),
    "a training task": (
        set_row(3, task="dlrm-20x4/train/3"),
        f"{ROWS}, task dlrm-20x4/train/3, seed 0: Suite 'dlrm-20x4' has no such test task",
    ),
    "fewer seeds, declared": (
        toml("seeds = [0, 1, 2, 3, 4]", "seeds = [0, 1]"),
        rf"{TOML}: seeds are \[0, 1\], but an agent that uses chance has exactly the seeds \[0, 1, 2, 3, 4\]",
    ),
    "fewer seeds, in the placements": (
        lambda e: e.rows(lambda rows: rows.__delitem__(slice(200, None))),
        f"{ROWS}, task {TASK3}, seed 4: The task is missing",
    ),
    "chosen seeds": (
        toml("seeds = [0, 1, 2, 3, 4]", "seeds = [3, 17, 40, 41, 99]"),
        rf"{TOML}: seeds are \[3, 17, 40, 41, 99\]",
    ),
    "more seeds": (
        lambda e: e.rows(lambda rows: rows.append({**rows[3], "seed": 5})),
        rf"{ROWS}, task {TASK3}, seed 5: The seed is none of \[0, 1, 2, 3, 4\]",
    ),
    "the best of five draws five times": (
        repeat_seed,
        f"{ROWS}, seed 1: The placements of seed 1 are those of seed 0 on every task",
    ),
    "a copied draw with other device numbers": (rename_devices, f"{ROWS}, seed 1: The placements of seed 1 are those"),
    "the best draw called deterministic": (
        only_best_seed,
        f"{TOML}: agent.uses_chance is false, but ShardGym's agent 'random' does use chance",
    ),
    "more than the memory": (
        lambda e: e.rows(overfill),
        f"{ROWS}, task {TASK3}, seed 0: Device 0 is given 20 tables that need .* its cap is",
    ),
    "too short": (
        lambda e: e.rows(lambda rows: rows[3]["placement"].pop()),
        rf"{ROWS}, task {TASK3}, seed 0: A placement of 20 tables needs shape \(20,\)",
    ),
    "too long": (
        lambda e: e.rows(lambda rows: rows[3]["placement"].append(0)),
        rf"{ROWS}, task {TASK3}, seed 0: .* got \(21,\)",
    ),
    "empty": (set_row(3, placement=[]), rf"{ROWS}, task {TASK3}, seed 0: .* got \(0,\)"),
    "a device too many": (set_device(4), f"{ROWS}, task {TASK3}, seed 0: Table 7 .* the devices are 0 to 3"),
    "a negative device": (set_device(-1), f"{ROWS}, task {TASK3}, seed 0: Table 7 .* is on device -1"),
    "a float": (set_device(1.5), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused: .*integer"),
    "a whole float": (set_device(1.0), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused: .*integer"),
    "a truth value": (set_device(True), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused: .*integer"),
    "a text": (set_device("1"), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused: .*integer"),
    "a null in a placement": (set_device(None), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused"),
    "a nested list": (set_device([1]), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused"),
    "NaN": (device_text("NaN"), f"{ROWS}: It is not readable JSON: the number NaN is not allowed"),
    "infinity": (device_text("1e999"), f"{ROWS}: It is not readable JSON: the number 1e999 is too large"),
    "a huge integer": (device_text("9" * 40), f"{ROWS}, task {TASK3}, seed 0: rows.3.placement.7 is refused"),
    "an integer too long to read": (device_text("9" * 5000), f"{ROWS}: It is not readable JSON"),
    "an edited score": (
        lambda e: e.text(lambda t: re.sub("mean_cost_ms = .*", "mean_cost_ms = 6.5", t), TOML),
        f"{TOML}: scores.mean_cost_ms is 6.5, but the placements cost 9",
    ),
    "a score of NaN": (
        lambda e: e.text(lambda t: re.sub("mean_cost_ms = .*", "mean_cost_ms = nan", t), TOML),
        f"{TOML}: scores.mean_cost_ms is refused: .* it is nan",
    ),
    "an edited count of failures": (
        toml("failures = 0", "failures = 2"),
        f"{TOML}: scores.failures is 2, but 0 of the placements say null",
    ),
    "a hard task left out as a failure": (
        set_row(3, placement=None),
        f"{TOML}: scores.failures is 0, but 1 of the placements say null",
    ),
    "another suite's hash": (
        lambda e: e.text(lambda t: re.sub(r'(dlrm-20x4"\nsha256 = ")....', r"\1dead", t), TOML),
        f"{TOML}: suite.sha256 is dead.* but here it is 8ae7",
    ),
    "another cost model's hash": (
        lambda e: e.text(lambda t: re.sub(r'(analytical"\nsha256 = ")....', r"\1dead", t), TOML),
        f"{TOML}: cost_model.sha256 is dead",
    ),
    "a cost model of one's own": (
        toml('name = "analytical"', 'name = "mine"'),
        f"{TOML}: cost_model.name is 'mine', but the entry stands in simulated/dlrm-20x4, where it is 'analytical'",
    ),
    "an unknown key": (toml("schema = 1", "schema = 1\nverified = true"), f"{TOML}: The key 'verified' is not known"),
    "an unknown key in a section": (
        toml("[scores]", "[scores]\nrank = 1"),
        f"{TOML}: The key 'scores.rank' is not known",
    ),
    "an unknown key in a row": (
        set_row(3, cost_ms=1.0),
        f"{ROWS}, task {TASK3}, seed 0: The key 'rows.3.cost_ms' is not known",
    ),
    "a doubled key in JSON": (
        lambda e: e.text(lambda t: t.replace('"seed":0,', '"seed":0,"seed":1,', 1)),
        f"{ROWS}: It is not readable JSON: the key 'seed' occurs twice",
    ),
    "a doubled key in TOML": (
        toml('licence = "MIT"', 'licence = "MIT"\nlicence = "GPL"'),
        f"{TOML}: It is not readable TOML: .*overwrite",
    ),
    "a missing key": (toml('licence = "MIT"\n', ""), f"{TOML}: The key 'licence' is missing"),
    "planning queries not declared": (
        lambda e: e.text(lambda t: re.sub(r"(\[planning\])\nqueries = .*", r"\1", t), TOML),
        f"{TOML}: The key 'planning.queries' is missing",
    ),
    "negative budgets": (toml("search_budget = 0", "search_budget = -1"), f"{TOML}: planning.search_budget is refused"),
    "training queries without learning": (
        lambda e: e.text(lambda t: t.replace("data = []\nqueries = 0", "data = []\nqueries = 5"), TOML),
        f"{TOML}: training.queries must be 0",
    ),
    "training data not declared": (
        toml("learns = false", "learns = true"),
        f"{TOML}: agent.learns and training.data differ",
    ),
    "training on the test split": (
        lambda e: e.text(
            lambda t: t.replace("learns = false", "learns = true").replace("data = []", 'data = ["dlrm-20x4/test"]'),
            TOML,
        ),
        rf"{TOML}: training.data names 'dlrm-20x4/test', which holds \d+ tables of the test tasks of dlrm-20x4",
    ),
    "training on another suite's test tables": (
        lambda e: e.text(
            lambda t: t.replace("learns = false", "learns = true").replace("data = []", 'data = ["mixdim-4/test"]'),
            TOML,
        ),
        f"{TOML}: training.data names 'mixdim-4/test', which holds",
    ),
    "training on the whole pool": (
        lambda e: e.text(
            lambda t: t.replace("learns = false", "learns = true").replace("data = []", 'data = ["pool/dlrm-2021"]'),
            TOML,
        ),
        f"{TOML}: training.data names 'pool/dlrm-2021', which holds",
    ),
    "training data that do not exist": (
        lambda e: e.text(
            lambda t: t.replace("learns = false", "learns = true").replace("data = []", 'data = ["secret"]'), TOML
        ),
        f"{TOML}: training.data names 'secret'. Training data are named",
    ),
    "a seed among the options": (
        toml("options = {}", "options = {seed = 7}"),
        f"{TOML}: agent.options must not hold 'seed'",
    ),
    "a date for a text": (toml('licence = "MIT"', "licence = 2026-01-01"), f"{TOML}: licence is refused: .*string"),
    "a date for a number": (
        toml("search_budget = 0", "search_budget = 2026-01-01T00:00:00"),
        f"{TOML}: planning.search_budget is refused",
    ),
    "a text for a number": (toml("failures = 0", 'failures = "0"'), f"{TOML}: scores.failures is refused"),
    "a truth value for a count": (toml("failures = 0", "failures = false"), f"{TOML}: scores.failures is refused"),
    "a future schema": (toml("schema = 1", "schema = 2"), f"{TOML}: It is of schema 2, but this version reads 1"),
    "a future schema of placements": (
        lambda e: e.text(lambda t: t.replace('"schema":1', '"schema":7', 1)),
        f"{ROWS}: It is of schema 7",
    ),
    "a link that runs code": (
        toml("https://example.org/code", "javascript:alert(1)"),
        f"{TOML}: link is refused: it must be an https:// address",
    ),
    "a link that leaves its cell": (
        toml("https://example.org/code", "https://e.org/x)|<b>"),
        f"{TOML}: link is refused",
    ),
    "a name that turns the line round": (
        toml("The random agent", "The \u202emodnar agent"),
        f"{TOML}: name is refused: it must be printable text",
    ),
    "a name of two lines": (toml("The random agent", "The\\nagent"), f"{TOML}: name is refused: it must be printable"),
    "an endless name": (toml("The random agent", "x" * 500), f"{TOML}: name is refused: .*120"),
    "another track declared": (
        lambda e: e.text(
            lambda t: t.replace('"simulated"', '"measured"').replace(
                "[hardware]", '[hardware]\ngpu="H"\nlayout="each"'
            ),
            TOML,
        ),
        f"{TOML}: track is 'measured', but the entry stands in simulated/dlrm-20x4, where it is 'simulated'",
    ),
    "a GPU in the simulated track": (
        toml("[hardware]", '[hardware]\ngpu = "NVIDIA H200"'),
        f"{TOML}: hardware.gpu and hardware.layout belong into the measured track",
    ),
    "not UTF-8": (
        lambda e: (e.folder / TOML).write_bytes((e.folder / TOML).read_bytes() + b"\n# \xff\xfe"),
        f"{TOML}: It is not readable TOML: .*utf-8",
    ),
    "placements that are not UTF-8": (
        lambda e: (e.folder / ROWS).write_bytes(b'{"schema":1,"rows":["\xff"]}'),
        f"{ROWS}: It is not readable JSON",
    ),
    "a pickle": (
        lambda e: (e.folder / ROWS).write_bytes(pickle.dumps({"schema": 1, "rows": []})),
        f"{ROWS}: It is not readable JSON",
    ),
    "a bomb of brackets": (
        lambda e: (e.folder / ROWS).write_bytes(b"[" * 500_000 + b"]" * 500_000),
        f"{ROWS}: It is not readable JSON",
    ),
    "a bomb of brackets in TOML": (
        lambda e: e.text(
            lambda t: t.replace("options = {}", "options = {x = " + "[" * 9_000 + "]" * 9_000 + "}"), TOML
        ),
        f"{TOML}: It is not readable TOML",
    ),
    "a list for an object": (lambda e: (e.folder / ROWS).write_bytes(b"[]"), f"{ROWS}: It must be an object"),
    "no rows": (lambda e: e.rows(lambda rows: rows.clear()), f"{ROWS}, task {TASK3}, seed 0: The task is missing"),
    "a row that is no object": (lambda e: e.rows(lambda rows: rows.append(5)), rf"{ROWS}: rows.250 is refused"),
    "a task with a line break": (
        lambda e: e.rows(lambda rows: rows.append({**rows[3], "task": "x\n1 entry holds."})),
        rf"{ROWS}, task 'x\\n1 entry holds.', seed 0: Suite 'dlrm-20x4' has no such",
    ),
    "a missing file": (lambda e: (e.folder / ROWS).unlink(), f"{ROWS}: The file is missing"),
    "a missing description": (lambda e: (e.folder / TOML).unlink(), f"{TOML}: The file is missing"),
    "a hidden file": (
        lambda e: (e.folder / ".hidden").write_text("x"),
        "random/.hidden: Nothing but entry.toml, placements.json belongs into an entry",
    ),
    "a program beside": (
        lambda e: (e.folder / "setup.py").write_text("import os"),
        "random/setup.py: Nothing but",
    ),
    "a folder inside": (lambda e: (e.folder / "more").mkdir(), "random/more: Nothing but"),
    "an executable file": (lambda e: (e.folder / ROWS).chmod(0o755), f"{ROWS}: It is executable"),
    "an oversized file": (
        lambda e: (e.folder / TOML).write_bytes(b"#" * (LIMITS[TOML] + 1)),
        f"{TOML}: It has 32,769 bytes; at most 32,768 are read",
    ),
    "a pipe": (
        lambda e: ((e.folder / ROWS).unlink(), os.mkfifo(e.folder / ROWS)),
        f"{ROWS}: It is no regular file",
    ),
    "a folder for a file": (lambda e: ((e.folder / ROWS).unlink(), (e.folder / ROWS).mkdir()), f"{ROWS}: It "),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_refused_at_its_place(random_entry, cheat: str) -> None:
    assert findings_of(random_entry) == []
    spoil, expected = CHEATS[cheat]
    spoil(random_entry)
    found = findings_of(random_entry)
    assert any(re.match(f"simulated/dlrm-20x4/(random/)?{expected}", each, re.DOTALL) for each in found), found


def test_there_are_enough_of_them() -> None:
    assert len(CHEATS) >= 25


def test_a_million_mistakes_are_a_short_list(random_entry) -> None:
    random_entry.rows(lambda rows: [row.update(placement=["x"] * 20) for row in rows])
    found = findings_of(random_entry)
    assert len(found) == 201
    assert found[-1].endswith("There are 50 findings more.")


def test_everything_wrong_is_listed_not_only_the_first(random_entry) -> None:
    random_entry.toml("failures = 0", "failures = 0\nrank = 1")
    random_entry.rows(lambda rows: (overfill(rows), rows.pop(60)))
    (random_entry.folder / "extra").write_text("x")
    said = "\n".join(findings_of(random_entry))
    for each in ("The key 'scores.rank'", f"task {TASK3}, seed 0: Device 0", "test/10, seed 1: The task is missing"):
        assert each in said, said
    assert "random/extra: Nothing but" in said


def test_copies_are_allowed_where_there_is_little_to_differ(root: Path, random_entry, monkeypatch) -> None:
    repeat_seed(random_entry)
    monkeypatch.setattr(verification, "MANY_TASKS", 51)  # as on a suite of one task, where all draws may meet
    assert not any("are those of seed" in each for each in findings_of(random_entry))


def test_tasks_named_in_the_cheats_exist() -> None:
    assert load_suite("dlrm-20x4")[3].name == TASK3
