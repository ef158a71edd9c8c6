"""Running a race: placements or plans are measured in turn, and what is finished is written after every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.agents import Agent
from shard_gym.common.attempts import FailuresInARow, tried_twice
from shard_gym.common.checks import checked_count
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidPlacementError,
    MeasurementError,
    NoPlacementFoundError,
)
from shard_gym.common.io.files import read_json, require_writable
from shard_gym.common.io.lock import exclusive_access
from shard_gym.common.io.parquet import require_arrow
from shard_gym.common.system import load_average
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.cost_models.measured.parts import require_executable_plan
from shard_gym.leaderboard.race import (
    MAX_MEASUREMENTS,
    Answers,
    Measured,
    Race,
    Unmeasured,
    check_names,
    continued_race,
    repair_record,
    write_race,
)
from shard_gym.leaderboard.store import RACE, ROUNDS, find_entries
from shard_gym.plans import ShardingPlan
from shard_gym.plans.needs import require_supported
from shard_gym.tasks import Answer, TaskSuite, problem_of
from shard_gym.tasks.suites.info import MEASURED

DECIMALS = 6
"""Decimal places of a time in ms: nanoseconds, finer than any clock."""

Progress = Callable[[int, int], None]
"""Called with the number of measurements done and of all."""


def run_race(
    folder: Path,
    suite: TaskSuite,
    answers: Answers,
    model: MeasuredCostModel,
    *,
    rounds: int = 5,
    progress: Progress = lambda done, total: None,
) -> Race:
    """Measure all answers in turn, and write the race to `folder` after every round.

    A race that is there already is continued: its rounds are not measured again. An answer that cannot be measured,
    twice, is noted with the reason; its task failed (see `Race.costs_ms`), and it is not measured again. But one that
    was measured in an earlier round is not given up: the cause is the machine, and the race stops.

    Args:
        folder: of the race.
        suite: the tasks, as `model` measures them.
        answers: of each entry, for every task, a placement or a plan as the task wants; checked.
        model: measures.
        rounds: number of rounds.
        progress: called after every measurement.

    Raises:
        InvalidOptionError: fewer than two entries, or a name that `check_names` refuses; or the folder holds a race of
            other entries, tasks or settings, or another program races into it; or plans of these tasks, or of these
            batches, are not measured.
        InvalidPlacementError: an answer is not valid.
        DamagedFileError: the rounds in the folder were edited or damaged.
        MeasurementError: an answer that was measured before, all answers of the first round, or `MAX_FAILURES` in
            a row could not be measured; finished rounds are kept, and failures in the last one are not noted.
        UnwritablePathError: the folder cannot be written to.
        MissingExtraError: pyarrow is not installed.
    """
    checked_count("rounds", rounds)
    require_writable(folder / RACE)
    require_arrow()
    if len(answers) < 2:
        raise InvalidOptionError(f"A race has at least two entries, and {len(answers)} was given.")
    check_names(answers)
    if rounds * len(suite) * len(answers) > MAX_MEASUREMENTS:
        raise InvalidOptionError(
            f"{rounds:,} rounds of {len(answers):,} entries and {len(suite):,} tasks are too many for the file of a "
            f"race; the limit is {MAX_MEASUREMENTS:,} measurements. Give fewer rounds."
        )
    checked = {name: _checked(name, own, suite, model) for name, own in answers.items()}
    penalties = np.array([problem_of(task).penalty_ms(task, model) for task in suite])
    settings = model.settings_for({task.num_devices for task in suite})
    race = Race(suite, model.hardware, model.fingerprint, settings, checked, (), penalties)
    with exclusive_access(folder):
        if (folder / ROUNDS).exists():
            race = continued_race(folder, race)
            repair_record(folder, race)
        done, left = len(race.measurements), max(rounds - race.num_rounds, 0)
        total = done + left * len(_to_measure(race, 0))
        progress(done, total)
        for number in range(race.num_rounds, rounds):
            race = _with_round(race, number, model, lambda measured: progress(measured, total))
            write_race(folder, race)
    return race


def _checked(name: str, answers: Sequence[Answer | None], suite: TaskSuite, model: MeasuredCostModel) -> list[Any]:
    """The answers of an entry, checked; see `run_race` for errors."""
    if len(answers) != len(suite):
        raise InvalidPlacementError(
            f"Entry {name!r} has {len(answers)} {problem_of(suite[0]).noun}s for the {len(suite)} tasks."
        )
    checked = []
    for each, task in zip(answers, suite, strict=True):
        require_supported(f"A race on task {task.name!r}", task.needs, model.supports, (task.tables, task.topology))
        answer = None if each is None else problem_of(task).checked(each, task)
        if isinstance(answer, ShardingPlan):
            require_executable_plan(answer, model.as_measured(task.tables), task.topology)
        checked.append(answer)
    return checked


def _to_measure(race: Race, number: int) -> list[tuple[int, str, Answer]]:
    """Task, entry and answer of each measurement of a round: task by task, the entries in random order."""
    rng = np.random.default_rng([number])
    left_out = {(each.task, each.entry) for each in race.unmeasured}
    found = []
    for task in range(len(race.suite)):
        for name in rng.permutation(list(race.answers)).tolist():
            answer = race.answers[name][task]
            if answer is not None and (task, name) not in left_out:
                found.append((task, name, answer))
    return found


def _with_round(race: Race, number: int, model: MeasuredCostModel, progress: Callable[[int], None]) -> Race:
    """`race` with one more round; `progress` is called with the number of measurements.

    Raises:
        MeasurementError: see `run_race`.
    """
    measurements, unmeasured = list(race.measurements), list(race.unmeasured)
    to_measure = _to_measure(race, number)
    failures = FailuresInARow(len(to_measure))
    for task_number, name, answer in to_measure:
        task, load = race.suite[task_number], load_average()
        measure = partial(model.measure_again, answer, task.tables, task.topology)
        try:
            ms = tried_twice(measure).iterations_ms.round(DECIMALS)
        except MeasurementError as error:
            if number > 0:  # it was measured in the first round, else it would be noted as unmeasured
                raise MeasurementError(
                    f"The {problem_of(task).noun} of {name!r} for {task.name} was measured in earlier rounds and "
                    f"cannot be measured now, in round {number + 1}: {error} Finished rounds are kept, and the same "
                    "command continues the race."
                ) from error
            failures.add(error)
            unmeasured.append(Unmeasured(number, task_number, name, " ".join(str(error).split())))
            continue
        failures.end()
        measurements.append(Measured(number, task_number, name, load, ms))
        progress(len(measurements))
    return replace(race, measurements=tuple(measurements), unmeasured=tuple(unmeasured))


def answers_of(agent: Agent, suite: TaskSuite) -> list[Answer | None]:
    """The answers of an agent to all tasks; None where it found none that is valid."""
    answers: list[Answer | None] = []
    for task in suite:
        problem = problem_of(task)
        try:
            answers.append(problem.checked(problem.asker(agent)(task), task))
        except (NoPlacementFoundError, InvalidPlacementError):
            answers.append(None)
    return answers


def answers_of_file(path: Path, suite: TaskSuite) -> list[Answer | None]:
    """The answers to all tasks in a file of `shard-gym evaluate --out`.

    Raises:
        DamagedFileError: the file holds no evaluation of one agent on the suite's tasks.
        InvalidPlacementError: an answer in it is not valid.
    """
    record = read_json(path)
    try:
        found = {each["task"]: each for each in record["tasks"]}
        given = [found[task.name][problem_of(task).noun] for task in suite]
    except (KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is no evaluation of one agent on {suite.name} ({suite.split}), as shard-gym evaluate --out "
            f"writes it: {error!r}."
        ) from error
    return [
        None if each is None else problem_of(task).from_json(each, task)
        for each, task in zip(given, suite, strict=True)
    ]


def answers_of_entries(root: Path, suite: str) -> tuple[dict[str, list[Answer | None]], dict[str, str]]:
    """The answers of seed 0 of every valid entry on the measured track of the suite, by the name of its folder.

    Also why the others are not valid, by the id of the entry.
    """
    from shard_gym.leaderboard.verify import verify_entry

    answers, refused = dict[str, list[Answer | None]](), dict[str, str]()
    for folder in find_entries(root)[0]:
        if (folder.track, folder.suite) == (MEASURED, suite):
            verified, findings = verify_entry(folder)
            if verified is not None:
                answers[folder.slug] = verified.answers[0]
            else:
                refused[folder.id] = str(findings[0])
    return answers, refused
