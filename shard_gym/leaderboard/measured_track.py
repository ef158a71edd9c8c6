"""The races of the measured track, `measured/<suite>/races/<name>/`: recomputed, and compared with the entries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_gym.common.errors import DamagedFileError, MissingExtraError, ShardGymError, short_repr
from shard_gym.common.io.parsing import parse_json
from shard_gym.common.text import counted
from shard_gym.envs.real.tasks import suite_as_measured
from shard_gym.leaderboard.entry import VerifiedEntry
from shard_gym.leaderboard.race import Race, answers_to_json, load_race
from shard_gym.leaderboard.store import RACE, RACE_FILES, EntryFolder, Finding, find_entries, find_races, read_files
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites.info import MEASURED

MIN_ROUNDS = 3
"""Rounds of a race that ranks entries: the median of two is their mean, and holds whatever slowed one of them."""


@dataclass(frozen=True, eq=False)
class VerifiedRace:
    """A race without findings."""

    folder: EntryFolder
    race: Race

    @property
    def name(self) -> str:
        """Name of the folder: the machine, and what else tells it from other races of the suite."""
        return self.folder.path.name

    @property
    def about(self) -> str:
        """How it was measured, in words."""
        settings, rounds = self.race.settings, counted(self.race.num_rounds, "round")
        layout = settings.get("layout")
        layouts = " and ".join(map(str, layout)) if isinstance(layout, list) else layout
        noise = self.race.noise()
        of = f"; the measurements of a {self.race.problem.noun} have a standard deviation of {noise:.1%}"
        known = "" if math.isnan(noise) else of
        iterations = counted(settings["iterations"], "iteration")
        return f"{rounds} of {iterations} on {self.race.hardware}, layout {layouts}{known}"


def read_races(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[list[VerifiedRace], list[Finding]]:
    """The valid races under `root`, sorted by folder, and everything that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        entries: the valid ones in it; those that are not have findings of their own.

    Raises:
        MissingExtraError: there is a race, and pyarrow is not installed.
    """
    measured = [each for each in entries if each.folder.track == MEASURED]
    current = {each.folder.id: _listed(each) for each in measured}
    ids = {folder.id for folder in find_entries(root)[0]}
    folders, findings = find_races(root)
    races = []
    for folder in folders:
        race, wrong = _read_race(folder)
        for name, answers in answers_to_json(race.answers, race.suite).items() if race else ():
            entry_id = f"{MEASURED}/{folder.suite}/{name}"
            if entry_id not in ids:
                reason = f"It has an entry {short_repr(name)}, but the suite has no folder of that name."
                wrong.append(Finding(folder.file(RACE), reason))
            elif race and answers != current.get(entry_id, answers):
                reason = f"{entry_id} has other {race.problem.noun}s by now; race it again."
                wrong.append(Finding(folder.file(RACE), reason))
        findings += wrong
        if race and not wrong:
            races.append(VerifiedRace(folder, race))
    return races, findings


def _listed(entry: VerifiedEntry) -> list[Any]:
    """The answers of seed 0 of an entry, as JSON values."""
    name = entry.folder.slug
    return answers_to_json({name: entry.answers[0]}, load_suite(entry.folder.suite))[name]


def _read_race(folder: EntryFolder) -> tuple[Race | None, list[Finding]]:
    files, findings = read_files(folder, RACE_FILES)
    if findings:
        return None, findings
    try:
        record = parse_json(files[RACE], "It")
        try:
            hardware, batch_size = str(record["hardware"]), record["settings"]["batch_size"]
            suite = suite_as_measured(load_suite(folder.suite), hardware, batch_size)
        except (KeyError, TypeError) as error:
            raise DamagedFileError(f"It does not describe a race: {error!r}.") from error
        race = load_race(folder.path, suite)
    except MissingExtraError:
        raise
    except ShardGymError as error:
        return None, [Finding(folder.file(RACE), str(error))]
    wrong = _unfit(race)
    return (None, [Finding(folder.file(RACE), wrong)]) if wrong else (race, [])


def _unfit(race: Race) -> str:
    """Why a race may not rank entries, or ""."""
    if race.num_rounds < MIN_ROUNDS:
        return f"It has {counted(race.num_rounds, 'round')}; the measured track wants at least {MIN_ROUNDS}."
    if race.settings["batch_size"] is not None:
        return f"It measured batches of {race.settings['batch_size']} samples; race without --batch-size."
    return ""
