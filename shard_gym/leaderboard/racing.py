"""Running a race: placements are measured in turn, and what is finished is written after every round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from shard_gym.checks import checked_count
from shard_gym.cost_models.base import tried_twice
from shard_gym.cost_models.data.parquet import require_arrow
from shard_gym.cost_models.measured.model import MeasuredCostModel
from shard_gym.errors import InvalidOptionError, InvalidPlacementError
from shard_gym.io.files import require_writable
from shard_gym.leaderboard.race import Measured, Placements, Race
from shard_gym.leaderboard.race_files import continued_race, write_race
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.placement import check_placement
from shard_gym.system import load_average
from shard_gym.tasks import TaskSuite

DECIMALS = 6
"""Of a time in ms: nanoseconds, finer than any clock."""

Progress = Callable[[int, int], None]
"""Called with the number of measurements done and of all."""


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
        MeasurementError: a placement could not be measured, twice; finished rounds are kept.
        UnwritablePathError: the folder cannot be written to.
        MissingExtraError: pyarrow is not installed.
    """
    checked_count("rounds", rounds)
    require_writable(folder / RACE)
    require_arrow()
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
    layouts = sorted({model.layout_of(task.num_devices) for task in suite})
    settings = {**model.settings, "layout": layouts[0] if len(layouts) == 1 else layouts}
    race = Race(suite, model.hardware, model.fingerprint, settings, checked, (), penalties)
    if (folder / ROUNDS).exists():
        race = continued_race(folder, race)
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
                measured = tried_twice(partial(model.measure_again, placement, task.tables, task.topology))
                ms = measured.iterations_ms.round(DECIMALS)
                measurements.append(Measured(number, task_number, name, load, ms))
                progress(len(measurements), total)
        race = replace(race, measurements=tuple(measurements))
        write_race(folder, race)
    return race
