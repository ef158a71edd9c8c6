"""Ways to cheat with an entry, to mislead its readers, or to break the verifier. Each is refused at its place."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.leaderboard import verify, verify_all
from shard_gym.leaderboard.store import Finding

Change = Callable[[Any], object]

ROWS = "placements.json"
TOML = "entry.toml"
TASK3 = "dlrm-20x4/test/3"
ROW3 = f"{ROWS}, task {TASK3}, seed 0"
NO_TASK = "Suite 'dlrm-20x4' has no such test task"
NAME, LINK, SEEDS = "The random agent", "https://example.org/code", r"seeds = \[.*\]"
HUGE = "f" * 20_000


def toml(pattern: str, new: str) -> Change:
    return lambda entry: entry.text(lambda text: re.sub(pattern, new, text))


def learns_from(data: str, finding: str) -> tuple[str, str, str]:
    return r"learns = false((?s:.*))data = \[\]", rf'learns = true\1data = ["{data}"]', finding


def rows(change: Callable[[list[dict[str, Any]]], object]) -> Change:
    return lambda entry: entry.rows(change)


def set_row(**values: Any) -> Change:
    return rows(lambda rows: rows[3].update(values))


def copy_row(**values: Any) -> Change:
    return rows(lambda rows: rows.append({**rows[3], **values}))


def set_device(value: Any) -> Change:
    return rows(lambda rows: rows[3]["placement"].__setitem__(7, value))


def device_text(literal: str) -> Change:
    """A number that Python's writer does not write."""

    def change(entry: Any) -> None:
        set_device(777)(entry)
        entry.text(lambda text: text.replace("777", literal), ROWS)

    return change


def content(data: bytes, file: str = ROWS) -> Change:
    return lambda entry: (entry.path / file).write_bytes(data)


def add_file(name: str) -> Change:
    return lambda entry: (entry.path / name).write_text("x")


def repeat_seed(rows: list[dict[str, Any]]) -> None:
    """The best of five runs submitted five times."""
    for number, row in enumerate(rows):
        row["placement"] = rows[number % 50]["placement"]


def renumber_devices(rows: list[dict[str, Any]]) -> None:
    """One run submitted as two, with other numbers for the devices."""
    for number, row in enumerate(rows[:50]):
        rows[50 + number]["placement"] = [(device + 1) % 4 for device in row["placement"]]


def only_best_seed(entry: Any) -> None:
    """One run of a random agent, declared deterministic."""
    entry.toml("seeds = [0, 1, 2, 3, 4]", "seeds = [0]")
    entry.toml("stochastic = true", "stochastic = false")
    entry.rows(lambda rows: rows.__delitem__(slice(50, None)))


# In entry.toml: the pattern that is replaced, its replacement, and the finding.
DECLARED: dict[str, tuple[str, str, str]] = {
    # Seeds
    "fewer seeds": (
        SEEDS,
        "seeds = [0, 1]",
        r"seeds are \[0, 1\], but a stochastic agent has exactly the seeds \[0, 1, 2, 3, 4\]",
    ),
    "a seed among the options": ("options = {}", "options = {seed = 7}", "agent.options must not hold 'seed'"),
    "a source that is none": (f"({SEEDS})", r'\1\nnear = ["nobody"]', "near.0 is refused: "),
    # Scores, hashes, tracks and budgets
    "an edited score": (
        "mean_cost_ms = .*",
        "mean_cost_ms = 6.5",
        "scores.mean_cost_ms is 6.5, but the placements cost [0-9]",
    ),
    "a score of NaN": ("mean_cost_ms = .*", "mean_cost_ms = nan", "scores.mean_cost_ms is refused: .* it is nan"),
    "an edited count of failures": ("failures = 0", "failures = 2", "scores.failures is 2, but 0 placements are null"),
    "another suite's hash": (
        r'(20x4"\nsha256 = ")....',
        r"\1dead",
        "suite.sha256 is 'dead.* must be '8ae7.* Answer the tasks",
    ),
    "another cost model's hash": (r'(analytical"\nsha256 = ")....', r"\1dead", "cost_model.sha256 is 'dead"),
    "another track": (
        r"simulated((?s:.*))\[cost_model](?s:.*)(\[training](?s:.*))\[scores](?s:.*)",
        r"measured\1\2",
        "track is 'measured', but in simulated/",
    ),
    "an own cost model": ('"analytical"', '"mine"', "cost_model.name is 'mine', but .* it must be 'analytical'"),
    "no scores": (r"\[scores](?s:.*)", "", r"\[cost_model] and \[scores] are refused in the measured track"),
    "negative budgets": ("search_budget = 0", "search_budget = -1", "planning.search_budget is refused"),
    "planning queries not declared": (
        r"(\[planning]\nleague = .*)\nqueries = .*",
        r"\1",
        "The key 'planning.queries' is missing",
    ),
    # Training
    "training queries without learning": ("(data.*\n)queries = 0", r"\1queries = 5", "training.queries must be 0"),
    "training data not declared": ("learns = false", "learns = true", "agent.learns and training.data differ"),
    "an agent that learns and does not say so": (
        '"random"',
        '"ppo"',
        "agent.learns is false, but must be true for .* 'ppo'",
    ),
    "an agent that does not learn and says so": learns_from(
        "other: logs", "agent.learns is true, but must be false for"
    ),
    "training on the test split": learns_from(
        "dlrm-20x4/test", r"training.data names 'dlrm-20x4/test', which holds \d+ tables"
    ),
    "training data that do not exist": learns_from("secret", "training.data names 'secret'. Training data are named"),
    # Types, keys and schema
    "an unknown key": ("schema = 1", "schema = 1\nverified = true", "The key 'verified' is not known"),
    "a missing key": ('licence = "MIT"\n', "", "The key 'licence' is missing"),
    "a doubled key": ('(licence = "MIT")', r"\1\n\1", "It is not readable TOML: .*overwrite"),
    "a date for a text": ('licence = "MIT"', "licence = 2026-01-01", "licence is refused: .*string"),
    "a text for a number": ("failures = 0", 'failures = "0"', "scores.failures is refused"),
    "a truth value for a count": ("failures = 0", "failures = false", "scores.failures is refused"),
    "a future schema": ("schema = 1", "schema = 2", "It has schema 2, but this version reads 1"),
    "an integer without end": ("search_budget = 0", f"search_budget = 0x{HUGE}", ".*search_budget is refused"),
    "a schema without end": ("schema = 1", f"schema = 0x{HUGE}", "It has schema a int too large to show"),
    "keys in keys in keys": ("options = {}", f"options{'.x' * 3_000} = 1", "It is not readable TOML: a dotted"),
    "a bomb of brackets": ("options = {}", f"options = {{x = {'[' * 9_000}{']' * 9_000}}}", "It is not readable TOML"),
    # Names and links
    "a link that runs code": (LINK, "javascript:alert(1)", "link is refused: it must be an https:// address"),
    "a link with a line break at its end": (LINK, r"https://e.org/\\n", "link is refused: it must be an https://"),
    "a link with a tab": (LINK, r"https://e.org/\\tx", "link is refused: it must be an https:// address"),
    "a link with an empty host": (LINK, "https:///code", "link is refused: it must be an https:// address"),
    "a link with a port for a host": (LINK, "https://:443/", "link is refused: it must be an https:// address"),
    "a link with a password": (LINK, "https://github.com@evil.org/", "link is refused: it must be an https://"),
    "a link with dots for a host": (LINK, "https://../x", "link is refused: it must be an https:// address"),
    "a licence that is none": ('"MIT"', '"Free (2026)"', "licence is refused: it must be an SPDX licence expression"),
    "a licence in other letters": ('"MIT"', '"mit"', "licence is refused: it must be written 'MIT'"),
    "a text of several lines": ("options = {}", 'options = {x = """a"""}', "It is not readable TOML: texts of several"),
    "keys with dots": ("options = {}", f"options = {{{'x.' * 40}x = 1}}", "It is not readable TOML: a dotted key"),
    "a link that leaves its cell": (LINK, "https://e.org/x)|<b>", "link is refused"),
    "a name with reversed text": (NAME, "The \u202emodnar agent", "name is refused: it must be printable text"),
    "a name of two lines": (NAME, r"The\\nagent", "name is refused: it must be printable"),
    "an endless name": (NAME, "x" * 500, "name is refused: .*120"),
    "a Cyrillic letter": (NAME, "The r\u0430ndom agent", "name is refused: it must be made of ASCII and Latin"),
    "a letter of phonetics": (NAME, "The r\u0251ndom agent", "name is refused: it must be made of ASCII and Latin"),
    "an agent in Greek letters": (
        'name = "random"',
        'name = "rand\u03bfm"',
        "agent.name is refused: it must be made of",
    ),
    "an invisible letter": (NAME, "The random agent\u3164", "name is refused: it must be printable"),
    "an invisible author": ("Ada Example", "\u3164", "authors.0 is refused: it must be printable"),
    "a Cyrillic author": ("Ada Example", "The \u0405hardGym authors", "authors.0 is refused: a word of it mixes"),
    "an option without end": ("options = {}", f"options = {{x = 0x{HUGE}}}", "agent.options.x.* is refused"),
    "years of search": ("search_budget = 0", f"search_budget = {9 * 10**15}", "planning.search_budget is 9,000,000,"),
    "a tower of accents": (NAME, "Z" + "\u0301\u0302" * 40, "name is refused"),
    "an option with a line break": ("options = {}", r'options = {"x\\n::stop-commands::" = 1}', ".*options.x"),
}

# In placements.json, about the task 3 and the seed 0: the change and the finding.
PLACED: dict[str, tuple[Change, str]] = {
    "a missing task": (rows(lambda rows: rows.pop(3)), "The task is missing for this seed"),
    "a doubled task": (copy_row(), "The task occurs twice for this seed"),
    "no rows": (rows(lambda rows: rows.clear()), "The task is missing"),
    "more than the memory": (set_row(placement=[0] * 20), "Device 0 is given 20 tables that need .* its cap is"),
    "too short": (rows(lambda rows: rows[3]["placement"].pop()), r"A placement of 20 tables needs shape \(20,\)"),
    "empty": (set_row(placement=[]), r".* got \(0,\)"),
    "a device too many": (set_device(4), "Table 7 .* the devices are 0 to 3"),
    "a negative device": (set_device(-1), "Table 7 .* is on device -1"),
    "a whole float": (set_device(1.0), "rows.3.placement.7 is refused: .*integer"),
    "a truth value": (set_device(True), "rows.3.placement.7 is refused: .*integer"),
    "a huge integer": (device_text("9" * 40), "rows.3.placement.7 is refused"),
    "an unknown key in a row": (set_row(cost_ms=1.0), "The key 'rows.3.cost_ms' is not known"),
}

# Anywhere: the change and the finding with its file.
CHANGED: dict[str, tuple[Change, str]] = {
    "an extra task": (copy_row(task="dlrm-20x4/test/50"), f"{ROWS}, task dlrm-20x4/test/50, seed 0: {NO_TASK}"),
    "a task with a line break": (
        copy_row(task="x\n1 entry"),
        rf"{ROWS}, task x.1 entry, seed 0: rows.250.task is refused",
    ),
    "fewer seeds than declared": (
        rows(lambda rows: rows.__delitem__(slice(200, None))),
        f"{ROWS}, task {TASK3}, seed 4: The task is missing",
    ),
    "more seeds": (copy_row(seed=5), rf"{ROWS}, task {TASK3}, seed 5: The seed is none of \[0, 1, 2, 3, 4\]"),
    "the best of five runs five times": (
        rows(repeat_seed),
        f"{ROWS}, seed 1: The placements of seed 1 are those of seed 0 on every task",
    ),
    "a copied run with other device numbers": (
        rows(renumber_devices),
        f"{ROWS}, seed 1: The placements of seed 1 are those",
    ),
    "the best run called deterministic": (
        only_best_seed,
        f"{TOML}: agent.stochastic is false, but must be true for ShardGym's agent 'random'",
    ),
    "a hard task left out as a failure": (
        set_row(placement=None),
        f"{TOML}: scores.failures is 0, but 1 placements are null",
    ),
    # Files
    "NaN": (device_text("NaN"), f"{ROWS}: It is not readable JSON: the number NaN is not allowed"),
    "an integer too long to read": (device_text("9" * 5000), f"{ROWS}: It is not readable JSON"),
    "a doubled key": (
        lambda entry: entry.text(lambda text: text.replace('"seed":0,', '"seed":0,"seed":1,', 1), ROWS),
        f"{ROWS}: It is not readable JSON: the key 'seed'",
    ),
    "a row that is no object": (rows(lambda rows: rows.append(5)), rf"{ROWS}: rows.250 is refused"),
    **{
        f"a schema of {value!r}": (
            lambda entry, value=value: entry.text(lambda text: text.replace('"schema":1', f'"schema":{value}'), ROWS),
            f"{ROWS}: It must have the schema 1, not {value.title()}",
        )
        for value in ("true", "1.0")
    },
    **{
        f"an encoding {encoding}": (
            lambda entry, encoding=encoding: content((entry.path / ROWS).read_text().encode(encoding))(entry),
            f"{ROWS}: It is not readable JSON",
        )
        for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be")
    },
    "half a character": (device_text(r'"\ud800"'), f"{ROWS}: It is not readable JSON: .*surrogates not allowed"),
    "a list for an object": (content(b"[]"), f"{ROWS}: It must be an object"),
    "a pickle": (content(pickle.dumps({"schema": 1, "rows": []})), f"{ROWS}: It is not readable JSON"),
    "a bomb of brackets": (content(b"[" * 500_000 + b"]" * 500_000), f"{ROWS}: It is not readable JSON"),
    "not UTF-8": (
        lambda entry: content((entry.path / TOML).read_bytes() + b"\n# \xff\xfe", TOML)(entry),
        f"{TOML}: It is not readable TOML: .*utf-8",
    ),
    "an oversized file": (content(b"#" * 32_769, TOML), f"{TOML}: It has 32,769 bytes; the limit is 32,768"),
    "a missing file": (lambda entry: (entry.path / ROWS).unlink(), f"{ROWS}: The file is missing"),
    "a hidden file": (add_file(".hidden"), ".hidden: The folder holds entry.toml, placements.json and nothing"),
    "a folder inside": (lambda entry: (entry.path / "more").mkdir(), "more: The folder holds"),
    "an executable file": (lambda entry: (entry.path / ROWS).chmod(0o755), f"{ROWS}: It is executable"),
    "a pipe": (
        lambda entry: ((entry.path / ROWS).unlink(), os.mkfifo(entry.path / ROWS)),
        f"{ROWS}: It is no regular file",
    ),
    "a folder for a file": (lambda entry: ((entry.path / ROWS).unlink(), (entry.path / ROWS).mkdir()), f"{ROWS}: It "),
}

REFUSED: list[Any] = [
    *(
        pytest.param(toml(old, new), f"{TOML}: {finding}", id=f"{TOML}: {name}")
        for name, (old, new, finding) in DECLARED.items()
    ),
    *(pytest.param(change, f"{ROW3}: {finding}", id=f"{ROWS}: {name}") for name, (change, finding) in PLACED.items()),
    *(pytest.param(change, finding, id=name) for name, (change, finding) in CHANGED.items()),
]


def test_the_entry_is_valid_before_it_is_changed(random_entry) -> None:
    assert random_entry.findings() == []


@pytest.mark.parametrize(("change", "expected"), REFUSED)
def test_a_hostile_entry_is_refused_at_its_place(random_entry, change: Change, expected: str) -> None:
    change(random_entry)
    found = random_entry.findings()
    assert any(re.match(f"simulated/dlrm-20x4/random/{expected}", each, re.DOTALL) for each in found), found
    assert not any("\n" in each for each in found)


def test_a_million_mistakes_are_a_short_list(random_entry) -> None:
    random_entry.rows(lambda rows: [row.update(placement=["x"] * 20) for row in rows])
    found = random_entry.findings()
    assert len(found) == 201
    assert found[-1].endswith("There are 50 more findings.")


def test_everything_wrong_is_listed_not_only_the_first(random_entry) -> None:
    random_entry.toml("failures = 0", "failures = 0\nrank = 1")
    random_entry.rows(lambda rows: (rows[3].update(placement=[0] * 20), rows.pop(60)))
    add_file("extra")(random_entry)
    text = "\n".join(random_entry.findings())
    for each in ("The key 'scores.rank'", f"task {TASK3}, seed 0: Device 0", "test/10, seed 1: The task is missing"):
        assert each in text, text
    assert "random/extra: The folder holds" in text


def test_equal_seeds_are_allowed_on_suites_of_few_tasks(random_entry, monkeypatch) -> None:
    random_entry.rows(repeat_seed)
    monkeypatch.setattr(verify, "MANY_TASKS", 51)
    assert not any("are those of seed" in each for each in random_entry.findings())


def rotate_seeds(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["seed"] = (row["seed"] + 2) % 5


def one_task_else(entry: Any) -> None:
    """Other placements of every eleventh task."""
    others = {row["task"]: row["placement"] for row in json.loads(greedy_rows(entry).read_text())["rows"]}
    entry.rows(lambda rows: [row.update(placement=others[row["task"]]) for row in rows[::11]])


def greedy_rows(entry: Any) -> Path:
    return entry.path.with_name("size-greedy") / ROWS


@pytest.mark.parametrize("change", [lambda entry: None, rows(rotate_seeds), one_task_else])
def test_a_copy_of_another_entry_is_refused(
    root: Path, random_entry, entry_named: Any, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_check_scores", lambda *_: [])  # a copy with changes claims its own scores
    copy = random_entry.path.with_name("my-own")
    shutil.copytree(random_entry.path, copy)
    path = copy / TOML
    path.write_text(path.read_text().replace("The random agent", "My own").replace('name = "random"', 'name = "own"'))
    change(entry_named("my-own"))
    finding = next(each for each in verify_all(root)[1] if "placements are" in str(each))
    assert re.fullmatch(
        r"simulated/dlrm-20x4/random/placements.json: (100|9\d)% of the placements are those of "
        "simulated/dlrm-20x4/my-own, whatever the seeds. An entry needs placements of its own.",
        str(finding),
    ), str(finding)


def test_deterministic_agents_of_the_package_may_agree(root: Path, add_entry: Any) -> None:
    """All tables of dlrm-20x4 have one dim."""
    add_entry(root, "lane-greedy")
    add_entry(root, "lookup-greedy")
    assert verify_all(root)[1] == []
    with pytest.raises(AssertionError, match="100% of the placements are those of simulated/dlrm-20x4/l"):
        add_entry(root, "lookup-greedy", slug="mine", as_agent="mine", name="Mine")


@pytest.mark.parametrize(
    "name",
    [
        *("The random agent", "THE RANDOM AGENT", "The Random-Agent", "Therandom agent", "The rand0m agent"),
        *("The randorn agent", "The r\u00e1ndom agent", "The ran\u0111om agent", "The ran\u00f0om agent"),
    ],
)
def test_two_names_that_look_alike_are_refused(root: Path, greedy_entry, name: str) -> None:
    greedy_entry.toml("The size-greedy agent", name)
    (finding,) = verify_all(root)[1]
    assert f"The name {name!r} is that of simulated/dlrm-20x4/random, 'The random agent'." in str(finding)


def test_findings_stay_on_their_line() -> None:
    assert "\n" not in str(Finding("a\n::stop-commands::x", "It is.", "t\r\n1 entry is valid."))


@pytest.mark.parametrize("unreadable", ["simulated", "simulated/dlrm-20x4", "simulated/dlrm-20x4/random"])
def test_a_folder_that_may_not_be_read_is_named(root: Path, unreadable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after chmod 000, which root does not notice."""
    listed = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path == root / unreadable:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = [str(each) for each in verify_all(root)[1]]
    assert f"{unreadable}: The folder cannot be read: Permission denied." in found
