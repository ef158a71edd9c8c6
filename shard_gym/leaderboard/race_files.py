"""The files of a race. Its results are computed again from the raw rounds when it is loaded, and any edit is refused.

race.json        the suite, the machine, how it measures, the entries with their placements, and the results
rounds.parquet   a row for each measurement: round, task, entry, and the ms of each iteration, device and phase; its
                 metadata has a digest of what was raced, and what could not be measured
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import DamagedFileError, InvalidOptionError, InvalidPlacementError, short_repr
from shard_gym.io.files import read_bytes, read_json, sha256_of, write_atomically, write_json
from shard_gym.io.parquet import lists_of, read_table, require_arrow, write_table
from shard_gym.io.parsing import parse_json, require_schema
from shard_gym.leaderboard.race import Measured, Placements, Race, Unmeasured
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.placement import check_placement, placement_to_json
from shard_gym.tasks import TaskSuite

SCHEMA = 1

DIGEST = "race"
"""Key of the digest in the metadata of the rounds."""

MAX_MEASUREMENTS = 500_000
"""The most in a race, of all rounds, tasks and entries."""

UNMEASURED = "unmeasured"
"""Key, there and in `race.json`, of the placements that could not be measured; missing if there are none."""


def write_race(folder: Path, race: Race) -> None:
    """Write both files; `race.json` last, as it has the other one's SHA-256.

    A race that is continued reads the rounds alone, so a kill between the two loses nothing.

    Raises:
        UnwritablePathError: the folder cannot be written to.
    """
    rounds = _to_parquet(race)
    write_atomically(folder / ROUNDS, rounds)
    write_json(folder / RACE, _record(race, sha256_of(rounds)))


def continued_race(folder: Path, race: Race) -> Race:
    """`race` with the rounds that `folder` holds.

    Raises:
        InvalidOptionError: they are of a race with other placements or settings, or on another machine.
        DamagedFileError: they are damaged.
    """
    measurements, unmeasured, digest = _from_parquet(read_bytes(folder / ROUNDS), folder / RACE)
    if digest != _digest(race):
        raise InvalidOptionError(
            f"{folder} holds a race of other placements, with other settings or on another machine. Name another "
            "folder."
        )
    found = replace(race, measurements=measurements, unmeasured=unmeasured)
    _check_measurements(found, folder / RACE)
    return found


def load_race(folder: Path, suite: TaskSuite) -> Race:
    """The race in `folder`; its numbers are computed again from the raw rounds.

    Args:
        folder: holds the files of the race.
        suite: the tasks of the race, as they are measured.

    Raises:
        DamagedFileError: a file is missing, is not such a file, was edited, or is for other tasks; the message says
            what differs.
        MissingExtraError: pyarrow is not installed.
    """
    path, record = folder / RACE, read_json(folder / RACE)
    require_schema(record, SCHEMA, str(path))
    if [record.get(key) for key in ("suite", "split", "tasks")] != [suite.name, suite.split, _task_names(suite)]:
        raise DamagedFileError(f"{path} is not a race of these {len(suite)} tasks of {suite.name!r} ({suite.split}).")
    try:
        rounds = read_bytes(folder / ROUNDS)
        placements = {
            str(name): [
                None if each is None else check_placement(np.array(each, np.int64), task.tables, task.topology)
                for each, task in zip(own, suite, strict=True)
            ]
            for name, own in record["placements"].items()
        }
        penalties = np.array([float(each) for each in record["penalties_ms"]])
        if penalties.shape != (len(suite),) or not (np.isfinite(penalties) & (penalties > 0)).all():
            raise ValueError(f"penalties_ms must be {len(suite)} numbers above 0")
        settings = dict(record["settings"])
        measurements, unmeasured, digest = _from_parquet(rounds, path)
        hardware, cost_model = str(record["hardware"]), str(record["cost_model"])
        race = Race(suite, hardware, cost_model, settings, placements, measurements, penalties, unmeasured)
        _check_measurements(race, path)
        expected = _record(race, sha256_of(rounds))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        if isinstance(error, (DamagedFileError, InvalidPlacementError)):
            raise
        raise DamagedFileError(f"{path} does not describe a race: {error!r}.") from error
    if digest != _digest(race):
        raise DamagedFileError(
            f"{path} names other placements, hardware or settings than the rounds were measured with."
        )
    for key, value in expected.items():
        if record.get(key) != value:
            raise DamagedFileError(
                f"{key} in {path} is not what the raw rounds and the tasks give: it is "
                f"{short_repr(record.get(key))}, but they give {short_repr(value)}."
            )
    unknown = sorted(set(record) - set(expected))
    if unknown:
        raise DamagedFileError(f"{path} has the unknown key {unknown[0]!r}.")
    return race


def _facts(race: Race) -> dict[str, Any]:
    """What was raced, and how."""
    return {
        "suite": race.suite.name,
        "split": race.suite.split,
        "tasks": _task_names(race.suite),
        "hardware": race.hardware,
        "cost_model": race.cost_model,
        "settings": dict(race.settings),
        "penalties_ms": race.penalties_ms.tolist(),
        "placements": placements_to_json(race.placements),
    }


def _digest(race: Race) -> str:
    return sha256_of(json.dumps(_facts(race), sort_keys=True).encode())


def _record(race: Race, rounds_sha256: str) -> dict[str, Any]:
    """The content of `race.json`."""
    return {
        "schema": SCHEMA,
        **_facts(race),
        "rounds": race.num_rounds,
        "rounds_sha256": rounds_sha256,
        "results": [
            {**asdict(each), "interval_ms": list(each.interval_ms), "ratio_interval": list(each.ratio_interval)}
            for each in race.results()
        ],
        **_unmeasured_to_json(race),
    }


def _unmeasured_to_json(race: Race) -> dict[str, Any]:
    return {UNMEASURED: [asdict(each) for each in race.unmeasured]} if race.unmeasured else {}


def _task_names(suite: TaskSuite) -> list[str]:
    return [task.name for task in suite]


def placements_to_json(placements: Placements) -> dict[str, list[list[int] | None]]:
    """The placements of all entries as JSON values."""
    return {
        name: [None if each is None else placement_to_json(each) for each in own] for name, own in placements.items()
    }


def _to_parquet(race: Race) -> bytes:
    measurements = race.measurements
    columns = {
        "round": [each.round for each in measurements],
        "task": [each.task for each in measurements],
        "entry": [each.entry for each in measurements],
        "load": [each.load for each in measurements],
        "num_devices": [each.phases_ms.shape[1] for each in measurements],
        "phases_ms": [each.phases_ms.ravel() for each in measurements],
    }
    unmeasured = {key: json.dumps(value) for key, value in _unmeasured_to_json(race).items()}
    return write_table(columns, _schema().with_metadata({DIGEST: _digest(race), **unmeasured}))


def _schema() -> Any:
    arrow = require_arrow()
    whole, real = arrow.int64(), arrow.float64()
    types = {"round": whole, "task": whole, "entry": arrow.string(), "load": real, "num_devices": whole}
    types["phases_ms"] = arrow.list_(real)
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _from_parquet(content: bytes, path: Path) -> tuple[tuple[Measured, ...], tuple[Unmeasured, ...], str]:
    """The measurements, what could not be measured, and the digest of what was raced."""
    table = read_table(content, _schema(), str(path.parent / ROUNDS), max_rows=MAX_MEASUREMENTS)
    plain = [table[name].to_pylist() for name in ("round", "task", "entry", "load", "num_devices")]
    measurements = tuple(
        Measured(number, task, entry, load, ms.reshape(-1, devices, 4))
        for number, task, entry, load, devices, ms in zip(*plain, lists_of(table["phases_ms"]), strict=True)
    )
    metadata, rounds = table.schema.metadata or {}, f"The rounds of {path}"
    unmeasured = parse_json(metadata.get(UNMEASURED.encode(), b"[]"), rounds)
    return measurements, _unmeasured_from_json(unmeasured, rounds), metadata.get(DIGEST.encode(), b"").decode()


def _unmeasured_from_json(record: Any, source: str) -> tuple[Unmeasured, ...]:
    types = {field.name: int if field.type == "int" else str for field in fields(Unmeasured)}
    if not isinstance(record, list) or not all(
        isinstance(each, dict) and {key: type(value) for key, value in each.items()} == types for each in record
    ):
        raise DamagedFileError(f"{source} do not say what could not be measured.")
    return tuple(Unmeasured(**each) for each in record)


def _check_measurements(race: Race, path: Path) -> None:
    """Refuse rounds in which a measurement is missing, doubled, or of something that was not raced."""
    devices = [task.num_devices for task in race.suite]
    rounds = {
        (task, name): race.num_rounds
        for name, own in race.placements.items()
        for task, placement in enumerate(own)
        if placement is not None
    }
    for failed in race.unmeasured:  # it was measured until then
        if not 0 <= failed.round < rounds.get((failed.task, failed.entry), 0):
            raise DamagedFileError(f"The rounds of {path} name a placement that was not raced: {short_repr(failed)}.")
        rounds[failed.task, failed.entry] = failed.round
    size = len(race.placements) * len(race.suite) * race.num_rounds
    if size > MAX_MEASUREMENTS or sum(rounds.values()) > MAX_MEASUREMENTS:
        raise DamagedFileError(
            f"The rounds of {path} are {race.num_rounds:,} of {len(race.placements):,} entries and {len(race.suite):,} "
            f"tasks; the limit is {MAX_MEASUREMENTS:,} measurements."
        )
    wanted = {(number, task, name) for (task, name), measured in rounds.items() for number in range(measured)}
    found = [(each.round, each.task, each.entry) for each in race.measurements]
    if len(found) != len(wanted) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found), key=str) or found
        raise DamagedFileError(
            f"The rounds of {path} must hold every round, task and entry with a placement once; wrong is {odd[0]}."
        )
    for each in race.measurements:
        ms = each.phases_ms
        if ms.ndim != 3 or not ms.size or ms.shape[1] != devices[each.task] or not (np.isfinite(ms) & (ms >= 0)).all():
            raise DamagedFileError(
                f"The rounds of {path}: the times of {each.entry!r} for task {each.task} in round {each.round} are "
                f"no ms of {devices[each.task]} devices."
            )
        if not math.isfinite(each.load):
            raise DamagedFileError(f"The rounds of {path} have a load average of {each.load}.")
