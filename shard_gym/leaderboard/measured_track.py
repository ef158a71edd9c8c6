"""The races of the measured track, `measured/<suite>/races/<name>/`: recomputed, and compared with the entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shard_gym.envs.real.tasks import suite_as_measured
from shard_gym.errors import DamagedFileError, MissingExtraError, ShardGymError, short_repr
from shard_gym.io.parsing import parse_json
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.race_files import load_race, placements_to_json
from shard_gym.leaderboard.store import (
    MEASURED,
    RACE,
    RACE_FILES,
    EntryFolder,
    Finding,
    find_entries,
    find_races,
    read_files,
)
from shard_gym.leaderboard.verify import VerifiedEntry
from shard_gym.suites import load_suite
from shard_gym.text import counted


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
        layout, batch = settings.get("layout"), settings["batch_size"] or "of the tasks"
        layouts = " and ".join(map(str, layout)) if isinstance(layout, list) else layout
        return f"{rounds} on {self.race.hardware}, layout {layouts}, batch {batch}"


def read_races(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[list[VerifiedRace], list[Finding]]:
    """The valid races under `root`, sorted by folder, and everything that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        entries: the valid ones in it; those that are not have findings of their own.

    Raises:
        MissingExtraError: there is a race, and pyarrow is not installed.
    """
    current = placements_to_json({each.folder.id: each.placements[0] for each in entries})
    ids = {folder.id for folder in find_entries(root)[0]}
    folders, findings = find_races(root)
    races = []
    for folder in folders:
        race, wrong = _read_race(folder)
        for name, placements in placements_to_json(race.placements).items() if race else ():
            entry_id = f"{MEASURED}/{folder.suite}/{name}"
            if entry_id not in ids:
                reason = f"It has an entry {short_repr(name)}, but the suite has no folder of that name."
                wrong.append(Finding(folder.file(RACE), reason))
            elif placements != current.get(entry_id, placements):
                wrong.append(Finding(folder.file(RACE), f"{entry_id} has other placements by now; race it again."))
        findings += wrong
        if race and not wrong:
            races.append(VerifiedRace(folder, race))
    return races, findings


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
    if not race.num_rounds:
        return None, [Finding(folder.file(RACE), "It has no rounds.")]
    return race, []
