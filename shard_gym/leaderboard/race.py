"""A race: the placements of several entries are measured in turn, in several rounds, on one machine.

    race.json        the suite, the machine, how it measures, the entries with their placements, and the results
    rounds.parquet   a row for each measurement: round, task, entry, and the ms of each iteration, device and phase

In each round, every task is measured with the placement of each entry, one after the other, in an order that is drawn
anew. So what slows the machine for a while slows all entries, and differences within a round and task are fair. The
cost of a task is the median over the rounds. Intervals are paired: a bootstrap sample draws tasks, and rounds, that are
the same for all entries.

The results in race.json are computed from the rounds; `load_race` computes them again and refuses any difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.checks import checked_count
from shard_gym.cost_models.base import FloatArray
from shard_gym.cost_models.data.parquet import require_arrow
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.errors import DamagedFileError, InvalidOptionError, InvalidPlacementError, short_repr
from shard_gym.evaluation import CONFIDENCE
from shard_gym.io.files import read_bytes, read_json, sha256_of, write_atomically, write_json
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.placement import Placement, check_placement, placement_to_json
from shard_gym.system import load_average
from shard_gym.tasks import TaskSuite

SCHEMA = 1

DECIMALS = 6
"""Of a time in ms: nanoseconds, finer than any clock."""

NUM_SAMPLES = 2_000
"""Bootstrap samples behind an interval."""

Placements = Mapping[str, Sequence[Placement | None]]
"""For each entry its placements of all tasks, in the order of the suite; None where it found none."""

Progress = Callable[[int, int], None]
"""Called with the number of measurements done and of all."""


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
class Result:
    """An entry's result in a race.

    Attributes:
        entry: its name.
        mean_ms: mean over the tasks of the median over the rounds; a task without a placement costs its penalty.
        interval_ms: its 95% interval, over tasks and rounds.
        ratio: mean cost divided by that of the first entry.
        ratio_interval: its 95% interval; paired, so it is narrower than the intervals of the means.
        beats_next: share of the tasks and rounds in which it costs less than the next entry; None for the last.
        failures: tasks without a placement.
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
        placements: of each entry.
        measurements: in the order in which they were made.
        penalties_ms: (N,) ms of a task without a placement.
    """

    suite: TaskSuite
    hardware: str
    cost_model: str
    settings: Mapping[str, Any]
    placements: Placements
    measurements: tuple[Measured, ...]
    penalties_ms: FloatArray

    @property
    def num_rounds(self) -> int:
        """Rounds that are complete."""
        placed = sum(each is not None for own in self.placements.values() for each in own)
        return len(self.measurements) // placed if placed else 0

    def costs_ms(self) -> FloatArray:
        """(E, N, R) ms of each entry, task and complete round: the sum over the phases of the slowest median."""
        names = list(self.placements)
        costs = np.repeat(np.tile(self.penalties_ms, (len(names), 1))[..., None], self.num_rounds, axis=2)
        for each in self.measurements:
            if each.round < self.num_rounds:
                costs[names.index(each.entry), each.task, each.round] = cost_of(each.phases_ms)
        return costs

    def results(self) -> list[Result]:
        """The entries' results, the cheapest first; none before the first round is complete."""
        if not self.num_rounds:
            return []
        names, costs = np.array(list(self.placements)), self.costs_ms()
        order = np.argsort(np.median(costs, axis=2).mean(axis=1), kind="stable")
        names, costs = names[order], costs[order]
        means, sampled = np.median(costs, axis=2).mean(axis=1), _bootstrapped_means(costs)
        results = []
        for place, name in enumerate(names.tolist()):
            own = costs[place]
            following = costs[place + 1] if place + 1 < len(names) else None
            beats = None if following is None else float(((own < following) + 0.5 * (own == following)).mean())
            results.append(
                Result(
                    name,
                    float(means[place]),
                    _interval(sampled[place]),
                    float(means[place] / means[0]),
                    _interval(sampled[place] / sampled[0]),
                    beats,
                    sum(each is None for each in self.placements[name]),
                )
            )
        return results


def cost_of(phases_ms: FloatArray) -> float:
    """Ms of a placement from the (iterations, D, 4) ms of its devices: the sum over the phases of the slowest median.

    A collective starts when the last device is ready, so each phase takes as long as its slowest device.
    """
    return float(np.median(phases_ms, axis=0).max(axis=0).sum())


def _bootstrapped_means(costs: FloatArray) -> FloatArray:
    """(E, B) mean costs of bootstrap samples of (E, N, R) costs: tasks are drawn, and rounds, the same for all entries.

    Rounds are drawn once for a sample and not for each of its tasks, because a round is a time in which the machine
    was fast or slow.
    """
    _, tasks, rounds = costs.shape
    rng = np.random.default_rng(0)
    drawn_rounds = rng.integers(rounds, size=(NUM_SAMPLES, rounds))
    drawn_tasks = rng.integers(tasks, size=(NUM_SAMPLES, tasks))
    medians = np.median(costs[:, :, drawn_rounds], axis=3)  # (E, N, B)
    return np.asarray(medians[:, drawn_tasks.T, np.arange(NUM_SAMPLES)].mean(axis=1))


def _interval(values: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def run_race(
    folder: Path,
    suite: TaskSuite,
    placements: Placements,
    model: MeasuredCostModel,
    *,
    rounds: int = 5,
    progress: Progress = lambda done, total: None,
) -> Race:
    """Measure all placements in turn, and write the race to `folder` after every round.

    A race that is there already is continued: its rounds are not measured again.

    Args:
        folder: of the race.
        suite: the tasks, as `model` measures them.
        placements: of each entry, for every task; checked.
        model: measures.
        rounds: number of rounds.
        progress: called after every measurement.

    Raises:
        InvalidOptionError: fewer than two entries; or the folder holds a race of other entries, tasks or settings.
        InvalidPlacementError: a placement is not valid.
        MeasurementError: a placement could not be measured; finished rounds are kept.
    """
    checked_count("rounds", rounds)
    if len(placements) < 2:
        raise InvalidOptionError(f"A race has at least two entries, and {len(placements)} was given.")
    for name, own in placements.items():
        if len(own) != len(suite):
            raise InvalidPlacementError(f"Entry {name!r} has {len(own)} placements for the {len(suite)} tasks.")
    checked = {
        name: [
            each if each is None else check_placement(each, task.tables, task.topology)
            for each, task in zip(own, suite, strict=True)
        ]
        for name, own in placements.items()
    }
    penalties = np.array([model.penalty_ms(task.tables, task.topology) for task in suite])
    race = Race(suite, model.hardware, model.fingerprint, model.settings, checked, (), penalties)
    if (folder / RACE).exists():
        race = _continued(folder, race)
    total = rounds * sum(each is not None for own in checked.values() for each in own)
    measurements = list(race.measurements)
    progress(len(measurements), total)
    for number in range(race.num_rounds, rounds):
        rng = np.random.default_rng([number])
        for task_number, task in enumerate(suite):
            for name in rng.permutation(list(checked)).tolist():
                placement = checked[name][task_number]
                if placement is None:
                    continue
                load = load_average()
                ms = model.measure_again(placement, task.tables, task.topology).iterations_ms.round(DECIMALS)
                measurements.append(Measured(number, task_number, name, load, ms))
                progress(len(measurements), total)
        race = Race(
            suite, race.hardware, race.cost_model, race.settings, checked, tuple(measurements), race.penalties_ms
        )
        write_race(folder, race)
    return race


def write_race(folder: Path, race: Race) -> None:
    """Write both files; `race.json` last, as it has the other one's SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    rounds = _to_parquet(race.measurements)
    write_atomically(folder / ROUNDS, rounds)
    write_json(folder / RACE, _record(race, sha256_of(rounds)))


def load_race(folder: Path, suite: TaskSuite) -> Race:
    """The race in `folder`; its numbers are computed again from the raw rounds.

    Args:
        folder: holds `race.json` and `rounds.parquet`.
        suite: the tasks of the race, as they are measured.

    Raises:
        DamagedFileError: a file is missing, is not such a file, was edited, or is for other tasks; the message says
            what differs.
        MissingExtraError: pyarrow is not installed.
    """
    record, rounds = read_json(folder / RACE), read_bytes(folder / ROUNDS)
    path = folder / RACE
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise DamagedFileError(f"{path} is not a race of schema {SCHEMA}.")
    try:
        placements = {
            str(name): [
                None if each is None else check_placement(np.array(each, np.int64), task.tables, task.topology)
                for each, task in zip(own, suite, strict=True)
            ]
            for name, own in record["placements"].items()
        }
        penalties = np.array([float(each) for each in record["penalties_ms"]])
        if (record["suite"], record["split"], record["tasks"]) != (suite.name, suite.split, _task_names(suite)):
            raise DamagedFileError(f"{path} is not a race of suite {suite.name!r} ({suite.split}).")
        measurements = _from_parquet(rounds, path)
        race = Race(
            suite,
            str(record["hardware"]),
            str(record["cost_model"]),
            dict(record["settings"]),
            placements,
            measurements,
            penalties,
        )
        _check_measurements(race, path)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, (DamagedFileError, InvalidPlacementError)):
            raise
        raise DamagedFileError(f"{path} does not describe a race: {error!r}.") from error
    expected = _record(race, sha256_of(rounds))
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


def _continued(folder: Path, race: Race) -> Race:
    """The race in `folder`, which must be the same as `race` but for its rounds."""
    found = load_race(folder, race.suite)
    for what, there, here in (
        ("hardware", found.hardware, race.hardware),
        ("cost model", found.cost_model, race.cost_model),
        ("set of placements", _as_lists(found.placements), _as_lists(race.placements)),
    ):
        if there != here:
            raise InvalidOptionError(
                f"{folder} holds a race with another {what}: {short_repr(there)}, not {short_repr(here)}. Name another "
                "folder, or remove that race."
            )
    return found


def _record(race: Race, rounds_sha256: str) -> dict[str, Any]:
    """The content of `race.json`."""
    return {
        "schema": SCHEMA,
        "suite": race.suite.name,
        "split": race.suite.split,
        "tasks": _task_names(race.suite),
        "hardware": race.hardware,
        "cost_model": race.cost_model,
        "settings": dict(race.settings),
        "rounds": race.num_rounds,
        "rounds_sha256": rounds_sha256,
        "penalties_ms": race.penalties_ms.tolist(),
        "placements": _as_lists(race.placements),
        "results": [
            {**asdict(each), "interval_ms": list(each.interval_ms), "ratio_interval": list(each.ratio_interval)}
            for each in race.results()
        ],
    }


def _task_names(suite: TaskSuite) -> list[str]:
    return [task.name for task in suite]


def _as_lists(placements: Placements) -> dict[str, list[list[int] | None]]:
    return {
        name: [None if each is None else placement_to_json(each) for each in own] for name, own in placements.items()
    }


def _to_parquet(measurements: Sequence[Measured]) -> bytes:
    arrow = require_arrow()
    columns = {
        "round": [each.round for each in measurements],
        "task": [each.task for each in measurements],
        "entry": [each.entry for each in measurements],
        "load": [each.load for each in measurements],
        "num_devices": [each.phases_ms.shape[1] for each in measurements],
        "phases_ms": [each.phases_ms.ravel() for each in measurements],
    }
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.table(columns, schema=_schema()), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _schema() -> Any:
    arrow = require_arrow()
    whole, real = arrow.int64(), arrow.float64()
    types = {"round": whole, "task": whole, "entry": arrow.string(), "load": real, "num_devices": whole}
    types["phases_ms"] = arrow.list_(real)
    return arrow.schema([arrow.field(name, type_, nullable=False) for name, type_ in types.items()])


def _from_parquet(content: bytes, path: Path) -> tuple[Measured, ...]:
    arrow = require_arrow()
    try:
        table = arrow.parquet.read_table(arrow.BufferReader(content))
    except (OSError, arrow.ArrowException) as error:
        raise DamagedFileError(f"{path.parent / ROUNDS} is damaged, or no Parquet file: {error}.") from error
    if not table.schema.equals(_schema()):
        raise DamagedFileError(f"{path.parent / ROUNDS} has other columns than {', '.join(_schema().names)}.")
    return tuple(
        Measured(
            row["round"],
            row["task"],
            row["entry"],
            row["load"],
            np.array(row["phases_ms"]).reshape(-1, row["num_devices"], 4),
        )
        for row in table.to_pylist()
    )


def _check_measurements(race: Race, path: Path) -> None:
    """Refuse rounds in which a measurement is missing, doubled, or of something that was not raced."""
    devices = [task.num_devices for task in race.suite]
    penalties = race.penalties_ms
    if penalties.shape != (len(devices),) or not (np.isfinite(penalties) & (penalties > 0)).all():
        raise DamagedFileError(f"penalties_ms in {path} must be a positive number for each of the tasks.")
    wanted = {
        (number, task, name)
        for number in range(race.num_rounds)
        for name, own in race.placements.items()
        for task, placement in enumerate(own)
        if placement is not None
    }
    found = [(each.round, each.task, each.entry) for each in race.measurements]
    if len(found) != len(wanted) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found), key=str) or found
        raise DamagedFileError(
            f"{path.parent / ROUNDS} must hold every round, task and entry with a placement once; wrong is {odd[0]}."
        )
    for each in race.measurements:
        ms = each.phases_ms
        if ms.ndim != 3 or not ms.size or ms.shape[1] != devices[each.task] or not (np.isfinite(ms) & (ms >= 0)).all():
            raise DamagedFileError(
                f"{path.parent / ROUNDS}: the times of {each.entry!r} for task {each.task} in round {each.round} are "
                f"no ms of {devices[each.task]} devices."
            )
        if not math.isfinite(each.load):
            raise DamagedFileError(f"{path.parent / ROUNDS} has a load average of {each.load}.")
