"""The files of a race: what was edited is refused, whatever was edited."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.common.io.files import sha256_of
from shard_gym.leaderboard import race as module
from shard_gym.leaderboard.race import Race, write_race
from shard_gym.leaderboard.store import RACE, ROUNDS


def test_what_was_written_is_read_back(raced: Any) -> None:
    race = raced.load()
    before = (raced.folder / RACE).read_bytes(), (raced.folder / ROUNDS).read_bytes()
    write_race(raced.folder, race)
    assert ((raced.folder / RACE).read_bytes(), (raced.folder / ROUNDS).read_bytes()) == before
    record = json.loads(before[0])
    assert [each["entry"] for each in record["results"]] == [each.entry for each in race.results()]


def _with(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.update({key: value})


def _each_device(record: dict[str, Any], kind: type) -> None:
    record["placements"]["random"][0] = list(map(kind, record["placements"]["random"][0]))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda record: record["results"][0].update(mean_ms=1.0), "results in"),
        (lambda record: record["results"].reverse(), "results in"),
        (_with("rounds", 4), "rounds in"),
        (_with("rounds_sha256", "0" * 64), "rounds_sha256 in"),
        (_with("suite", "cpu-40x4"), "is not a race of these 6 tasks of 'cpu-20x2'"),
        (_with("hardware", "nvidia-h200"), "names other placements, hardware or settings"),
        (_with("settings", {"iterations": 1000}), "names other placements, hardware or settings"),
        (_with("penalties_ms", [1.0] * 6), "names other placements, hardware or settings"),
        (
            lambda record: record["placements"].update(random=record["placements"]["local-search"]),
            "names other placements, hardware or settings",
        ),
        (_with("schema", 2), "has schema 2, but this version reads 1; update shard-gym"),
        (_with("schema", True), "must have the schema 1, not True"),
        (_with("winner", "random"), "unknown key 'winner'"),
        (lambda record: record["placements"].pop("random"), "names other placements, hardware or settings"),
        (_with("rounds", 3.0), "rounds in"),
        (lambda record: record["placements"]["random"].__setitem__(0, [0.5] * 20), "a list of integers"),
        (lambda record: _each_device(record, float), "a list of integers"),
        (lambda record: _each_device(record, bool), "a list of integers"),
        (_with("cost_model", "analytical-v1"), "names other placements, hardware or settings"),
        (lambda record: record["placements"]["random"].pop(), "does not describe a race"),
        (lambda record: record.pop("hardware"), "does not describe a race"),
        (lambda record: record["penalties_ms"].__setitem__(0, "much"), "does not describe a race"),
        (lambda record: record["placements"]["random"][0].__setitem__(0, 10**30), "does not describe a race"),
    ],
)
def test_an_edited_race_is_refused(raced: Any, edit: Any, says: str) -> None:
    record = json.loads((raced.folder / RACE).read_text())
    edit(record)
    (raced.folder / RACE).write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=says):
        raced.load()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda rows: [*rows[:-1], replace(rows[-1], phases_ms=rows[-1].phases_ms / 2)], "results in"),
        (lambda rows: rows[:-1], "every round, task and entry"),
        (lambda rows: [*rows, rows[0]], "every round, task and entry"),
        (lambda rows: [replace(rows[0], entry="other"), *rows[1:]], "every round, task and entry"),
        (lambda rows: [replace(rows[0], phases_ms=-rows[0].phases_ms), *rows[1:]], "on 2 devices"),
        (lambda rows: [replace(rows[0], phases_ms=rows[0].phases_ms[:, :1]), *rows[1:]], "on 2 devices"),
        (lambda rows: [replace(rows[0], phases_ms=0 * rows[0].phases_ms), *rows[1:]], "above 0 where there are tables"),
        (lambda rows: [replace(rows[0], phases_ms=rows[0].phases_ms[:3]), *rows[1:]], "no ms of 4 iterations"),
        (lambda rows: [replace(rows[0], phases_ms=np.ones((1, 3, 1))), *rows[1:]], "are damaged"),
        (lambda rows: [replace(rows[0], load=float("nan")), *rows[1:]], "a load average of nan"),
        (lambda rows: [replace(rows[0], load=-1.0), *rows[1:]], "a load average of -1"),
    ],
)
def test_edited_rounds_are_refused_even_with_their_checksum(raced: Any, edit: Any, says: str) -> None:
    race = raced.load()
    rounds = module._to_parquet(replace(race, measurements=tuple(edit(list(race.measurements)))))
    (raced.folder / ROUNDS).write_bytes(rounds)
    with pytest.raises(DamagedFileError, match="rounds_sha256 in|" + says):
        raced.load()
    record = json.loads((raced.folder / RACE).read_text())
    (raced.folder / RACE).write_text(json.dumps(record | {"rounds_sha256": sha256_of(rounds)}))
    with pytest.raises(DamagedFileError, match=says):
        raced.load()


def _with_settings(**settings: Any) -> Callable[[Race], Race]:
    return lambda race: replace(race, settings={**race.settings, **settings})


def _renamed(name: str) -> Callable[[Race], Race]:
    """The entry "random" gets another name."""

    def rename(race: Race) -> Race:
        placements = {name if old == "random" else old: own for old, own in race.answers.items()}
        rows = [replace(row, entry=name) if row.entry == "random" else row for row in race.measurements]
        return replace(race, answers=placements, measurements=tuple(rows))

    return rename


def _with_a_failure(race: Race) -> Race:
    """Without the placement of "random" for the first task."""
    placements = {**race.answers, "random": [None, *race.answers["random"][1:]]}
    rows = tuple(row for row in race.measurements if (row.entry, row.task) != ("random", 0))
    return replace(race, answers=placements, measurements=rows)


def _with_penalties(race: Race, penalties_ms: Any) -> Race:
    return replace(race, penalties_ms=penalties_ms)


def test_penalties_of_another_version_of_the_cost_model_are_read_where_nothing_failed(raced: Any) -> None:
    race = raced.load()
    write_race(raced.folder, _with_penalties(race, race.penalties_ms / 2))
    assert raced.load().results() == race.results()
    failed = _with_a_failure(race)
    write_race(raced.folder, failed)
    assert raced.load().results() == failed.results()


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (lambda race: _with_penalties(_with_a_failure(race), race.penalties_ms / 2), "must be those of the tasks"),
        (lambda race: _with_penalties(race, -race.penalties_ms), "a number above 0"),
        (lambda race: _with_penalties(race, race.penalties_ms[:1]), "a number above 0"),
        (lambda race: replace(race, cost_model="analytical-v1"), "no cost model of this version"),
        (lambda race: replace(race, cost_model=race.cost_model.replace("v2", "v1")), "no cost model of this version"),
        (lambda race: replace(race, cost_model=race.cost_model[:-1]), "no cost model of this version"),
        (lambda race: replace(race, cost_model=race.cost_model.replace("auto", "sequential")), "in this layout"),
        (_with_settings(layout="ring"), "in this layout"),
        (_with_settings(layout=[]), "in this layout"),
        (_with_settings(iterations=5), "no ms of 5 iterations"),
        (_with_settings(iterations=4.0), "no ms of 4.0 iterations"),
        (_renamed("\x1b[31mrandom"), "1 to 64 printable characters"),
        (_renamed("Lookup-Greedy"), "Two entries are named"),
    ],
)
def test_a_race_that_no_program_ran_is_refused(raced: Any, forge: Any, says: str) -> None:
    """All checksums and results are those of what is claimed."""
    write_race(raced.folder, forge(raced.load()))
    with pytest.raises(DamagedFileError, match=says):
        raced.load()


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing", b"x" * 1000])
def test_rounds_that_are_no_parquet_file_are_refused(raced: Any, content: bytes) -> None:
    (raced.folder / ROUNDS).write_bytes(content)
    record = json.loads((raced.folder / RACE).read_text())
    (raced.folder / RACE).write_text(json.dumps(record | {"rounds_sha256": sha256_of(content)}))
    with pytest.raises(DamagedFileError, match="damaged, or no Parquet file"):
        raced.load()


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"a": [1.0471, 2]}, True),
        ({"a": [1.0471 * (1 + 2e-16), 2]}, True),
        ({"a": [1.0471 * (1 + 1e-10), 2]}, False),
        ({"a": [1.0471, 2.0]}, False),
        ({"a": [1.0471, True]}, False),
        ({"a": [1.0471]}, False),
        ({"b": [1.0471, 2]}, False),
        ({"a": (1.0471, 2)}, False),
    ],
)
def test_only_last_digits_may_differ(found: Any, same: bool) -> None:
    """Between a record and what its raw rounds give: the last digits of fractions, and nothing else."""
    assert module._same(found, {"a": [1.0471, 2]}) is same
