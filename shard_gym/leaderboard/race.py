"""A race: the placements or plans of several entries are measured in turn, in several rounds, on one machine.

In each round, every task is measured with the answer of each entry, one after the other, in an order that is drawn
anew. So what slows the machine for a while slows all entries, and differences within a round and task are fair. The
cost of a task is the median over the rounds; a task that an entry fails costs it more than it costs any entry that does
not. Intervals come from bootstraps over tasks, the same for all entries: the median of a task's rounds has the noise of
its measurements, so drawing tasks covers that noise, too.

A race is two files. Its results are computed again from the raw rounds when it is loaded, and any edit is refused.

race.json        the suite, the machine, how it measures, the entries with their placements or plans, and the results
rounds.parquet   a row for each measurement: round, task, entry, and the ms of each iteration, device and phase; its
                 metadata has digests of what was raced and of the rows, and what could not be measured
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray
from shard_gym.common.checks import is_integer
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, short_repr
from shard_gym.common.io.files import read_bytes, read_json, sha256_of, write_atomically, write_json
from shard_gym.common.io.parquet import lists_of, read_table, require_arrow, write_table
from shard_gym.common.io.parsing import parse_json, require_schema
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.cost_models.measured.model import penalty_ms
from shard_gym.leaderboard.statistics import MIN_TASKS, intervals_to_first, mean_interval
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.plans import ShardingPlan
from shard_gym.tasks import Answer, Problem, Task, TaskSuite, problem_of

Answers = Mapping[str, Sequence[Answer | None]]
"""For each entry its placements or plans of all tasks, in the order of the suite; None where it found none."""

FAILURE_MARGIN = 2.0
"""A failed task costs at least this many times the largest cost that was measured in it."""

MAX_NAME = 64
"""Characters of the name of an entry, and of a folder of the leaderboards."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a race.

    Attributes:
        round: its round, from 0 up.
        task: the task's number in the suite.
        entry: the entry's name.
        load: the machine's load average over the last minute, before the measurement; 0 where it is unknown.
        phases_ms: (iterations, D, 4) float64, ms of each device in each phase of each iteration.
    """

    round: int
    task: int
    entry: str
    load: float
    phases_ms: FloatArray


@dataclass(frozen=True)
class Unmeasured:
    """An answer that could not be measured, twice, in the first round. It is not measured again; its task failed.

    Attributes:
        round: 0; an answer that was measured once is never given up.
        task: the task's number in the suite.
        entry: the entry's name.
        reason: why.
    """

    round: int
    task: int
    entry: str
    reason: str


@dataclass(frozen=True)
class Result:
    """An entry's result in a race.

    Attributes:
        entry: its name.
        mean_ms: mean over the tasks of the median over the rounds; `Race.costs_ms` says what a failed task costs.
        interval_ms: its 95% interval, over tasks; the mean twice below `MIN_TASKS` tasks.
        ratio: mean cost divided by that of the cheapest entry.
        ratio_interval: its 95% interval, see `intervals_to_first`; the ratio twice below `MIN_TASKS` tasks.
        beats_next: share of the tasks and rounds in which it costs less than the next entry; None for the last.
        failures: tasks without an answer, or whose answer could not be measured.
    """

    entry: str
    mean_ms: float
    interval_ms: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    beats_next: float | None
    failures: int


@dataclass(frozen=True, eq=False)
class Race:
    """A race and its raw rounds.

    Attributes:
        suite: the tasks.
        hardware: name of the machine.
        cost_model: fingerprint of the model that measured.
        settings: how it measured, by name of the setting.
        answers: of each entry.
        measurements: in the order in which they were made.
        penalties_ms: (N,) ms that a task that failed costs at least.
        unmeasured: answers that could not be measured, in the order in which that was found.
    """

    suite: TaskSuite
    hardware: str
    cost_model: str
    settings: Mapping[str, Any]
    answers: Answers
    measurements: tuple[Measured, ...]
    penalties_ms: FloatArray
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def problem(self) -> Problem[Any]:
        """That of the tasks."""
        return raced_problem(self.suite)

    @property
    def num_rounds(self) -> int:
        """Rounds that are complete; others are not kept."""
        return len({each.round for each in self.measurements})

    def measured_answers(self, entry: str) -> list[Answer | None]:
        """An entry's answers to all tasks; None also where one could not be measured."""
        failed = self.failed[list(self.answers).index(entry)]
        return [None if lost else each for lost, each in zip(failed, self.answers[entry], strict=True)]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """(E, N) bool, the tasks without an answer of an entry, or whose answer could not be measured."""
        names = list(self.answers)
        failed = np.zeros((len(names), len(self.suite)), bool)
        for own, answers in zip(failed, self.answers.values(), strict=True):
            own[:] = [each is None for each in answers]
        for each in self.unmeasured:
            failed[names.index(each.entry), each.task] = True
        return failed

    def costs_ms(self, apart: Set[str] = frozenset()) -> FloatArray:
        """(E, N, R) ms of each entry, task and complete round: the sum over the phases of the slowest median.

        A task that failed costs the same in all rounds: its penalty, or `FAILURE_MARGIN` times the largest cost that
        any entry but those `apart` had in that task in any round, whichever is greater. The penalty is a multiple of an
        estimate, and measured costs have no bound.
        """
        names, failed = list(self.answers), self.failed
        costs = np.zeros((*failed.shape, self.num_rounds))
        for each in self.measurements:
            costs[names.index(each.entry), each.task, each.round] = cost_of(each.phases_ms)
        others = costs[[name not in apart for name in names]]
        charges = np.maximum(self.penalties_ms, FAILURE_MARGIN * others.max(axis=(0, 2), initial=0.0))
        return np.where(failed[..., None], charges[:, None], costs)

    def noise(self) -> float:
        """Standard deviation of the measurements of an answer, as a share of its cost: root mean square over all.

        NaN if nothing was measured in two rounds.
        """
        measured = self.costs_ms()[~self.failed]
        if self.num_rounds < 2 or not len(measured):
            return float("nan")
        return float(np.sqrt(np.mean((measured.std(axis=1, ddof=1) / measured.mean(axis=1)) ** 2)))

    @property
    def spread(self) -> float | None:
        """Median over answers of (largest - smallest) / median over the rounds; None before there are two."""
        measured = self.costs_ms()[~self.failed]
        if self.num_rounds < 2 or not len(measured):
            return None
        return float(np.median((measured.max(axis=1) - measured.min(axis=1)) / np.median(measured, axis=1)))

    def results(self, apart: Set[str] = frozenset()) -> list[Result]:
        """The entries' results, the cheapest first; none before the first round is complete.

        Those `apart`, by name, come last, and the others are not compared with them.
        """
        if not self.num_rounds:
            return []
        names, costs = np.array(list(self.answers)), self.costs_ms(apart)
        medians = np.median(costs, axis=2)
        last = np.isin(names, list(apart))
        order, ranked = np.lexsort((medians.mean(axis=1), last)), np.count_nonzero(~last)
        names, costs, medians, failed = names[order], costs[order], medians[order], self.failed[order]
        means, ratios = medians.mean(axis=1), intervals_to_first(medians)
        if ratios is not None and 0 < ranked < len(names):
            ratios[:ranked] = intervals_to_first(medians[:ranked])
        known = medians.shape[1] >= MIN_TASKS
        results = []
        for place, name in enumerate(names.tolist()):
            own = costs[place]
            following = costs[place + 1] if place + 1 not in (ranked, len(names)) else None
            beats = None if following is None else float(((own < following) + 0.5 * (own == following)).mean())
            results.append(
                Result(
                    name,
                    float(means[place]),
                    mean_interval(medians[place][None]) if known else (float(means[place]),) * 2,
                    float(means[place] / means[0]),
                    (float(means[place] / means[0]),) * 2 if ratios is None else tuple(ratios[place].tolist()),
                    beats,
                    int(failed[place].sum()),
                )
            )
        return results


def check_names(names: Iterable[str]) -> None:
    """Check that the names of entries are printable text on one line, and differ in more than the case of letters.

    Raises:
        InvalidOptionError: a name is not, or two do not.
    """
    seen: set[str] = set()
    for name in names:
        if not name.isprintable() or name != name.strip() or not 0 < len(name) <= MAX_NAME:
            raise InvalidOptionError(
                f"An entry is named with 1 to {MAX_NAME} printable characters on one line, without blanks around them, "
                f"not {short_repr(name)} ({len(name)} characters). Give it another name."
            )
        if name.casefold() in seen:
            raise InvalidOptionError(
                f"Two entries are named {name!r}, in capitals or not. Give one of them another name."
            )
        seen.add(name.casefold())


def raced_problem(suite: TaskSuite) -> Problem[Any]:
    """The problem of the tasks; sharding if the tables of some may be split."""
    return problem_of(next((task for task in suite if task.splittable), suite[0]))


def devices_of(answer: Answer) -> NDArray[np.int64]:
    """The devices that a placement or a plan gives tables or shards, each once, ascending."""
    return np.unique(answer.shard_arrays()[:, 1] if isinstance(answer, ShardingPlan) else answer)


def cost_of(phases_ms: FloatArray) -> float:
    """Ms of an answer from the (iterations, D, 4) ms of its devices: the sum over the phases of the slowest median.

    A collective starts when the last device is ready, so each phase takes as long as its slowest device.
    """
    return float(np.median(phases_ms, axis=0).max(axis=0).sum())


SCHEMA = 1

DIGEST = "race"
"""Key of the digest in the metadata of the rounds."""

ROWS = "rows"
"""Key, there, of the SHA-256 of the rows and of what could not be measured; files of older versions lack it."""

TOLERANCE = 1e-9
"""Relative difference of two penalties that differ by rounding only."""

MAX_MEASUREMENTS = 500_000
"""The most in a race, of all rounds, tasks and entries."""

SHA256 = "rounds_sha256"
"""Key, in `race.json`, of the SHA-256 of `rounds.parquet`, which is compared before anything reads that."""

UNFINISHED = "unfinished"
"""Key, there, of the SHA-256 that `rounds.parquet` has before and after a round is added; only while that is done."""

UNMEASURED = "unmeasured"
"""Key, there and in `race.json`, of the answers that could not be measured; missing if there are none."""


def write_race(folder: Path, race: Race) -> None:
    """Write both files; `race.json` last, as it has the other one's SHA-256.

    A kill between the two loses nothing: `race.json` first says which rounds may stand beside it (see `continued_race`
    and `repair_record`).

    Raises:
        UnwritablePathError: the folder cannot be written to.
    """
    rounds, path = _to_parquet(race), folder / ROUNDS
    before = [sha256_of(read_bytes(path))] if path.exists() else []
    unfinished = {"schema": SCHEMA, **_facts(race), UNFINISHED: [*before, sha256_of(rounds)]}
    _write_record(folder, race, unfinished)
    write_atomically(path, rounds)
    _write_record(folder, race, _record(race, sha256_of(rounds)))


def _write_record(folder: Path, race: Race, record: Any) -> None:
    """Plans have many numbers, so theirs are not on a line each."""
    write_json(folder / RACE, record, indent=None if race.problem.name == "sharding" else 1)


def repair_record(folder: Path, race: Race) -> None:
    """Write `race.json` if it does not say what the rounds give, as after a kill between the two files.

    Args:
        folder: of the race.
        race: what `continued_race` returned for it.

    Raises:
        DamagedFileError: a file cannot be read.
        UnwritablePathError: the folder cannot be written to.
    """
    path, record = folder / RACE, _record(race, sha256_of(read_bytes(folder / ROUNDS)))
    if not _same(read_json(path), record):
        _write_record(folder, race, record)


def continued_race(folder: Path, race: Race) -> Race:
    """`race` with the rounds that `folder` holds.

    `race.json` may be unfinished, as a kill between the two files leaves it.

    Raises:
        InvalidOptionError: they are of a race with other answers or settings, or on another machine.
        DamagedFileError: they are damaged, or not those that `race.json` names.
    """
    content, record = read_bytes(folder / ROUNDS), read_json(folder / RACE)
    unfinished = record.get(UNFINISHED) if isinstance(record, dict) else None
    known = unfinished if isinstance(unfinished, list) else [record.get(SHA256) if isinstance(record, dict) else None]
    if sha256_of(content) not in known:  # Parquet that is damaged can end the program that reads it
        raise DamagedFileError(
            f"{folder / ROUNDS} does not hold the rounds that {RACE} beside it was computed from: one of them was "
            "edited or damaged. Restore both, or race into another folder."
        )
    measurements, unmeasured, digest = _from_parquet(content, folder / RACE)
    if digest != _digest(race):
        raise InvalidOptionError(
            f"{folder} holds a race of other {_key(race.suite)}, with other settings or on another machine. "
            "Name another folder."
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
    path, record, key = folder / RACE, read_json(folder / RACE), _key(suite)
    require_schema(record, SCHEMA, str(path))
    if UNFINISHED in record:
        raise DamagedFileError(
            f"{path} is not finished, because a program was killed while it wrote. The same command of the race "
            "finishes it."
        )
    if [record.get(name) for name in ("suite", "split", "tasks")] != [suite.name, suite.split, _task_names(suite)]:
        raise DamagedFileError(f"{path} is not a race of these {len(suite)} tasks of {suite.name!r} ({suite.split}).")
    try:
        rounds = read_bytes(folder / ROUNDS)
        if record[SHA256] != sha256_of(rounds):  # Parquet that is damaged can end the program that reads it
            raise DamagedFileError(f"{SHA256} in {path} is not that of {ROUNDS}: one of them was edited or damaged.")
        answers = {
            name: [
                None if each is None else problem_of(task).from_json(each, task)
                for each, task in zip(own, suite, strict=True)
            ]
            for name, own in record[key].items()
        }
        penalties = np.array([float(each) for each in record["penalties_ms"]])
        settings = dict(record["settings"])
        measurements, unmeasured, digest = _from_parquet(rounds, path)
        hardware, cost_model = str(record["hardware"]), str(record["cost_model"])
        race = Race(suite, hardware, cost_model, settings, answers, measurements, penalties, unmeasured)
        if digest != _digest(race):
            raise DamagedFileError(
                f"{path} names other {key}, hardware or settings than the rounds were measured with."
            )
        _check_measurements(race, path)
        _check_facts(race)
        expected = _record(race, sha256_of(rounds))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} does not describe a race: {error!r}.") from error
    for name, value in expected.items():
        if not _same(record.get(name), value):
            raise DamagedFileError(
                f"{name} in {path} is not what the raw rounds and the tasks give: it is "
                f"{short_repr(record.get(name))}, but they give {short_repr(value)}."
            )
    unknown = sorted(set(record) - set(expected))
    if unknown:
        raise DamagedFileError(f"{path} has the unknown key {unknown[0]!r}.")
    return race


def _key(suite: TaskSuite) -> str:
    """Key of the answers in `race.json`: "placements" or "plans"."""
    return f"{raced_problem(suite).noun}s"


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
        _key(race.suite): answers_to_json(race.answers, race.suite),
    }


def _digest(race: Race) -> str:
    return sha256_of(json.dumps(_facts(race), sort_keys=True).encode())


def _record(race: Race, rounds_sha256: str) -> dict[str, Any]:
    """The content of `race.json`."""
    return {
        "schema": SCHEMA,
        **_facts(race),
        "rounds": race.num_rounds,
        SHA256: rounds_sha256,
        "results": [
            {**asdict(each), "interval_ms": list(each.interval_ms), "ratio_interval": list(each.ratio_interval)}
            for each in race.results()
        ],
        **_unmeasured_to_json(race),
    }


def _unmeasured_to_json(race: Race) -> dict[str, Any]:
    return {UNMEASURED: [asdict(each) for each in race.unmeasured]} if race.unmeasured else {}


def _same(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal and of the same types: 1, 1.0 and true differ.

    Fractions may differ in their last digits, as sums do between processors.
    """
    if type(found) is not type(expected):
        return False
    if isinstance(found, dict):
        return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in found)
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return math.isclose(found, expected, rel_tol=1e-12) if isinstance(found, float) else bool(found == expected)


def _task_names(suite: TaskSuite) -> list[str]:
    return [task.name for task in suite]


def answers_to_json(answers: Answers, suite: TaskSuite) -> dict[str, list[Any]]:
    """The answers of all entries to the tasks of a suite, as JSON values."""
    return {
        name: [None if each is None else problem_of(task).to_json(each) for each, task in zip(own, suite, strict=True)]
        for name, own in answers.items()
    }


def _rows_sha256(measurements: Sequence[Measured], unmeasured: Sequence[Unmeasured]) -> str:
    rows = [
        [each.round, each.task, each.entry, each.load, *each.phases_ms.shape, each.phases_ms.ravel().tolist()]
        for each in measurements
    ]
    return sha256_of(json.dumps([rows, list(map(asdict, unmeasured))]).encode())


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
    metadata = {DIGEST: _digest(race)} | {key: json.dumps(value) for key, value in _unmeasured_to_json(race).items()}
    metadata[ROWS] = _rows_sha256(measurements, race.unmeasured)
    return write_table(columns, _schema().with_metadata(metadata))


def _schema() -> Any:
    arrow = require_arrow()
    whole, real = arrow.int64(), arrow.float64()
    types = {"round": whole, "task": whole, "entry": arrow.string(), "load": real, "num_devices": whole}
    types["phases_ms"] = arrow.list_(real)
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _from_parquet(content: bytes, path: Path) -> tuple[tuple[Measured, ...], tuple[Unmeasured, ...], str]:
    """The measurements, what could not be measured, and the digest of what was raced.

    Raises:
        DamagedFileError: it is no file of rounds, or its rows are not those that were written.
    """
    rounds = f"The rounds of {path}"
    table = read_table(content, _schema(), str(path.parent / ROUNDS), max_rows=MAX_MEASUREMENTS)
    plain = [table[name].to_pylist() for name in ("round", "task", "entry", "load", "num_devices")]
    metadata = table.schema.metadata or {}
    try:
        measurements = tuple(
            Measured(number, task, entry, load, ms.reshape(-1, devices, 4))
            for number, task, entry, load, devices, ms in zip(*plain, lists_of(table["phases_ms"]), strict=True)
        )
        digest = metadata.get(DIGEST.encode(), b"").decode()
    except ValueError as error:
        raise DamagedFileError(f"{rounds} are damaged: {error}.") from error
    unmeasured = _unmeasured_from_json(parse_json(metadata.get(UNMEASURED.encode(), b"[]"), rounds), rounds)
    written = metadata.get(ROWS.encode())
    if written is not None and written != _rows_sha256(measurements, unmeasured).encode():
        raise DamagedFileError(f"{rounds} were edited or damaged: their SHA-256 is not that of what was written.")
    return measurements, unmeasured, digest


def _unmeasured_from_json(record: Any, source: str) -> tuple[Unmeasured, ...]:
    types = {field.name: int if field.type == "int" else str for field in fields(Unmeasured)}
    if not isinstance(record, list) or not all(
        isinstance(each, dict) and {key: type(value) for key, value in each.items()} == types for each in record
    ):
        raise DamagedFileError(f"{source} do not say what could not be measured.")
    return tuple(Unmeasured(**each) for each in record)


def _penalty_ms(task: Task) -> float:
    return penalty_ms(task.tables, task.topology, splits=task.splittable)


def _check_facts(race: Race) -> None:
    """Refuse what no `MeasuredCostModel` of this version can have told of itself and of the tasks: ValueError."""
    check_names(race.answers)
    penalties = np.array([_penalty_ms(task) for task in race.suite])
    given, counted = race.penalties_ms, race.failed.any(axis=0)
    if given.shape != penalties.shape or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError("penalties_ms must be a number above 0 for each task")
    # The others decide nothing, so a race without failures outlives a version of the analytical model.
    if not np.allclose(given[counted], penalties[counted], rtol=TOLERANCE, atol=0.0):
        raise ValueError(f"penalties_ms of failed tasks must be those of the tasks, {short_repr(penalties.tolist())}")
    if not MeasuredCostModel.can_have_fingerprint(race.cost_model, race.settings["layout"]):
        raise ValueError(f"no cost model of this version in this layout is {short_repr(race.cost_model)}")


def _check_measurements(race: Race, path: Path) -> None:
    """Refuse rounds in which a measurement is missing, doubled, or of something that was not raced."""
    devices, noun = [task.num_devices for task in race.suite], race.problem.noun
    raced = {
        (task, name): answer
        for name, own in race.answers.items()
        for task, answer in enumerate(own)
        if answer is not None
    }
    for failed in race.unmeasured:
        if failed.round != 0 or raced.pop((failed.task, failed.entry), None) is None:
            raise DamagedFileError(
                f"The rounds of {path} name a {noun} that was not raced, twice, or not in the first round: "
                f"{short_repr(failed)}."
            )
    if len(race.answers) * len(race.suite) * race.num_rounds > MAX_MEASUREMENTS:
        raise DamagedFileError(
            f"The rounds of {path} are {race.num_rounds:,} of {len(race.answers):,} entries and {len(race.suite):,} "
            f"tasks; the limit is {MAX_MEASUREMENTS:,} measurements."
        )
    wanted = {(number, *key) for key in raced for number in range(race.num_rounds)}
    found = [(each.round, each.task, each.entry) for each in race.measurements]
    if len(found) != len(wanted) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found), key=str) or found
        raise DamagedFileError(
            f"The rounds of {path} must hold every round, task and entry with a {noun} once; wrong is {odd[0]}."
        )
    iterations = race.settings["iterations"]
    for each in race.measurements:
        ms, used = each.phases_ms, devices_of(raced[each.task, each.entry])
        shaped = ms.shape == (iterations, devices[each.task], 4) and is_integer(iterations)
        if not (shaped and (np.isfinite(ms) & (ms >= 0)).all() and (ms[:, used][..., COMPUTE] > 0).all()):
            raise DamagedFileError(
                f"The rounds of {path}: the times of {each.entry!r} for task {each.task} in round {each.round} are "
                f"no ms of {iterations} iterations on {devices[each.task]} devices, above 0 where there are tables."
            )
        if not 0 <= each.load < math.inf:
            raise DamagedFileError(f"The rounds of {path} have a load average of {each.load}.")
