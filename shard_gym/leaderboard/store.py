"""Folders of entries, `<track>/<suite>/<entry>/`, and of races, the rules of the tracks, and safe reading of the files.

Only the files named here are allowed. No link is followed, no file is read beyond its size limit, and nothing is
executed or unpickled.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnknownNameError, short_repr
from shard_gym.common.io.lock import LOCK
from shard_gym.tasks import suite_info
from shard_gym.tasks.suites.fresh import SEED
from shard_gym.tasks.suites.info import MEASURED, REPLANNING, SHARDING, SIMULATED


@dataclass(frozen=True)
class Track:
    """A track of the leaderboards.

    Attributes:
        problems: names of the problems of its suites.
        scored: whether the cost model scores entries. If not, races on a machine do.
        leagues: whether entries are ranked in leagues, by what they ask of the cost model.
        looks_ahead: whether answers do not tell if their agent looked at what comes later, so that entries that were
            replayed come before the others.
        claims: whether a row of answers claims its cost and further facts, because these take a second to compute.
            Verification computes them again; tables are made of the claims.
    """

    problems: tuple[str, ...]
    scored: bool = True
    leagues: bool = True
    looks_ahead: bool = False
    claims: bool = False


TRACKS = {
    SIMULATED: Track(("placement",)),
    SHARDING: Track(("sharding",)),
    MEASURED: Track(("placement", "sharding"), scored=False, leagues=False),
    REPLANNING: Track(("replanning",), leagues=False, looks_ahead=True, claims=True),
}
"""By name, in the order of the tables."""

ANSWERS = {"placement": "placements.json", "sharding": "plans.json", "replanning": "sequences.json"}
"""The file with the answers of an entry, by the problem of its suite."""

ENTRY = "entry.toml"
"""The file of an entry beside the one with its answers, which `ANSWERS` names."""

RACE, ROUNDS = RACE_FILES = "race.json", "rounds.parquet"
"""The files of a race. As of an entry, all of them are required, and no others are allowed."""

REPLAYED, FRESH = "replayed.json", "fresh.json"

README = "README.md"

TABLES, OPEN, ROOM = "leaderboards", "suites to learn", "room to learn"
"""Names of the generated blocks: all tables, the widest gaps of suites that are not solved, the gaps on every suite."""

PAGES = (
    (README, TABLES),
    (f"../{README}", OPEN),
    ("../docs/tutorials/where-to-learn.md", OPEN),
    ("../docs/results/room.md", ROOM),
)
"""The pages, relative to the leaderboards, and the block of each. Only the first one has to exist."""

RACES = "races"
"""The folder of a suite of the measured track that holds its races, and so no name of an entry there."""

KIB, MIB = 2**10, 2**20
LIMITS = {
    **{ENTRY: 32 * KIB, "placements.json": 2 * MIB, "plans.json": 32 * MIB, "sequences.json": MIB},
    **{RACE: 4 * MIB, ROUNDS: 64 * MIB, REPLAYED: MIB, FRESH: 4 * MIB},
}
"""Maximum bytes of each file. The longest valid placements, five seeds of 50 tasks with 200 tables, need a fifth; plans
of 1,000 tables on 128 devices, each on all of them, need a half."""

ROOT_FILES = (README, REPLAYED, FRESH)
"""Files allowed in the folder of the leaderboards itself."""

LINKED_FOLDER = "It is a link; put the folder itself there."

SLUG = re.compile(r"(?=.{1,64}$)[a-z0-9]+(?:-[a-z0-9]+)*")
SLUG_RULE = "1 to 64 of a-z, 0-9 and single hyphens between them"

MAX_FINDINGS = 200
"""Findings kept for one entry: a file of a million wrong numbers is one mistake."""


@dataclass(frozen=True)
class Finding:
    """One reason why an entry is refused, and where it is.

    Attributes:
        file: path under the folder of the leaderboards.
        reason: a sentence.
        task: name of the task; empty if the reason concerns no single task.
        seed: the seed; None if the reason concerns no single seed.
    """

    file: str
    reason: str
    task: str = ""
    seed: int | None = None

    def __str__(self) -> str:
        """One line: file, task, seed and reason."""
        where = [self.file]
        where += [f"task {self.task}"] if self.task else []
        where += [f"seed {self.seed}"] if self.seed is not None else []
        # Submitted names must not start a line of their own, because a CI could read it as a command.
        text = f"{', '.join(where)}: {self.reason}"
        return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def truncated(findings: list[Finding]) -> list[Finding]:
    """The first `MAX_FINDINGS` findings, and one that counts the others."""
    more = len(findings) - MAX_FINDINGS
    if more <= 0:
        return findings
    folder = findings[0].file.rpartition("/")[0]
    return [*findings[:MAX_FINDINGS], Finding(folder, f"There are {more} more findings.")]


@dataclass(frozen=True)
class EntryFolder:
    """The folder of an entry, or of a race, whether it exists or not.

    Attributes:
        root: the folder of the leaderboards.
        track: one of `TRACKS`.
        suite: name of the folder around it, which should be the name of a suite.
        slug: name of the folder itself; "races/NAME" of a race.
    """

    root: Path
    track: str
    suite: str
    slug: str

    @property
    def id(self) -> str:
        """Identifies it among all entries and races: TRACK/SUITE/ENTRY."""
        return f"{self.track}/{self.suite}/{self.slug}"

    @property
    def rules(self) -> Track:
        """What holds in its track."""
        return TRACKS[self.track]

    @cached_property
    def problem(self) -> str:
        """Name of the problem of its suite; the first of the track if the track has no such suites."""
        first, *others = self.rules.problems
        if not others:
            return first
        try:
            found = suite_info(self.suite).problem
        except (UnknownNameError, DamagedFileError):  # an entry of such a suite has a finding
            return first
        return found if found in others else first

    @property
    def answers(self) -> str:
        """Name of the file with the answers of an entry."""
        return ANSWERS[self.problem]

    @property
    def files(self) -> tuple[str, ...]:
        """The files of an entry there."""
        return ENTRY, self.answers

    @property
    def board(self) -> tuple[str, str]:
        """Track and suite: entries that differ in neither are compared."""
        return self.track, self.suite

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.root / self.track / self.suite / self.slug

    def file(self, name: str) -> str:
        """A file in it as findings name it."""
        return f"{self.id}/{name}"


def entry_folder(root: Path, entry_id: str) -> EntryFolder:
    """The folder of the entry TRACK/SUITE/ENTRY, whether it exists or not.

    Raises:
        InvalidOptionError: `entry_id` has another form.
    """
    parts = entry_id.strip("/").split("/")
    if len(parts) != 3 or parts[0] not in TRACKS or not all(map(SLUG.fullmatch, parts[1:])):
        raise InvalidOptionError(
            f"An entry is named TRACK/SUITE/ENTRY, with a track of {list(TRACKS)} and names of {SLUG_RULE}; "
            f"not {short_repr(entry_id)}."
        )
    if (parts[0], parts[2]) == (MEASURED, RACES):
        raise InvalidOptionError(f"{entry_id} holds the races of the suite. Give the entry another name.")
    return EntryFolder(root, *parts)


def race_folder(root: Path, race_id: str) -> EntryFolder | None:
    """The folder of the race measured/SUITE/races/NAME, whether it exists or not; None if `race_id` names none."""
    parts = race_id.strip("/").split("/")
    if len(parts) != 4 or (parts[0], parts[2]) != (MEASURED, RACES):
        return None
    if not (SLUG.fullmatch(parts[1]) and SLUG.fullmatch(parts[3])):
        raise InvalidOptionError(f"A race is named {MEASURED}/SUITE/{RACES}/NAME, with names of {SLUG_RULE}.")
    return EntryFolder(root, MEASURED, parts[1], f"{RACES}/{parts[3]}")


def require_root(root: Path) -> None:
    """Check that the folder of the leaderboards exists.

    Raises:
        InvalidOptionError: it does not.
    """
    if not root.is_dir():
        raise InvalidOptionError(f"{root} is no folder. Name the one that holds the leaderboards.")


def find_entries(root: Path) -> tuple[list[EntryFolder], list[Finding]]:
    """Every entry under `root`, sorted by name, and a finding for everything else there that is not allowed.

    Raises:
        InvalidOptionError: `root` is no folder.
    """
    require_root(root)
    findings: list[Finding] = []
    folders = []
    for track in _subfolders(root, root, findings):
        if track.name not in TRACKS:
            *others, last = TRACKS
            reason = f"There is no such track; the tracks are {', '.join(others)} and {last}."
            findings.append(Finding(track.name, reason))
            continue
        for suite in _subfolders(root, track, findings):
            if SEED in suite.name:
                reason = "Fresh tasks have no leaderboard, because everybody can draw others; remove the folder."
                findings.append(Finding(f"{track.name}/{suite.name}", reason))
                continue
            for path in _subfolders(root, suite, findings):
                folder = EntryFolder(root, track.name, suite.name, path.name)
                if (track.name, path.name) == (MEASURED, RACES):
                    continue
                if SLUG.fullmatch(folder.slug):
                    folders.append(folder)
                else:
                    findings.append(Finding(folder.id, f"The folder of an entry is named with {SLUG_RULE}."))
    return folders, findings


def find_races(root: Path) -> tuple[list[EntryFolder], list[Finding]]:
    """Every race under `root`, sorted by suite and name, and a finding for everything else beside them."""
    findings: list[Finding] = []
    folders = []
    for races in sorted((root / MEASURED).glob(f"*/{RACES}/")):
        if races.is_symlink() or not races.is_dir():  # has a finding of `find_entries`
            continue
        for path in _subfolders(root, races, findings):
            folder = EntryFolder(root, MEASURED, races.parent.name, f"{RACES}/{path.name}")
            if SLUG.fullmatch(path.name):
                folders.append(folder)
            else:
                findings.append(Finding(folder.id, f"The folder of a race is named with {SLUG_RULE}."))
    return folders, findings


def _subfolders(root: Path, folder: Path, findings: list[Finding]) -> list[Path]:
    """The folders in `folder`; anything else that is not allowed becomes a finding."""
    found = []
    for path in _listed(root, folder, findings):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            findings.append(Finding(name, LINKED_FOLDER))
        elif path.is_dir():
            found.append(path)
        elif name not in ROOT_FILES:
            findings.append(Finding(name, "No file is allowed here; remove it."))
    return found


def _listed(root: Path, folder: Path, findings: list[Finding]) -> list[Path]:
    """What `folder` holds, sorted; a finding if that cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        name = folder.relative_to(root).as_posix()
        findings.append(Finding(name, f"The folder cannot be read: {error.strerror or error}."))
        return []


def read_files(folder: EntryFolder, required: tuple[str, ...] | None = None) -> tuple[dict[str, bytes], list[Finding]]:
    """The content of the files of an entry (or a race), by name, and everything wrong with the folder.

    A file that is missing, a link, executable or too large is not read.
    """
    required = required or folder.files
    for path in (folder.path.parents[1], folder.path.parent, folder.path):
        name = path.relative_to(folder.root).as_posix()
        if path.is_symlink():
            return {}, [Finding(name, LINKED_FOLDER)]
        if not path.is_dir():
            return {}, [Finding(name, "There is no such folder.")]
    findings: list[Finding] = []
    listed = _listed(folder.root, folder.path, findings)
    if findings:
        return {}, findings
    findings += [
        Finding(folder.file(path.name), f"The folder holds {', '.join(required)} and nothing else; remove it.")
        for path in listed
        if path.name not in required and not _is_lock(path)
    ]
    contents = {}
    for file in required:
        try:
            contents[file] = read_limited(folder.path / file)
        except DamagedFileError as refused:
            findings.append(Finding(folder.file(file), str(refused)))
    return contents, findings


def _is_lock(path: Path) -> bool:
    """Whether it is the empty file by which programs that race into a folder exclude each other; git ignores it."""
    about = path.lstat()
    return path.name == LOCK and stat.S_ISREG(about.st_mode) and not about.st_size


def read_limited(path: Path) -> bytes:
    """A regular file named in `LIMITS`, checked and read through one handle so that it cannot change between.

    Raises:
        DamagedFileError: it is missing, a link, executable or too large; the message calls it "It".
    """
    limit = LIMITS[path.name]
    try:
        if path.is_symlink():  # Windows has no O_NOFOLLOW
            raise DamagedFileError("It is a link; put the file itself there.")
        # A pipe would block without O_NONBLOCK.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
    except FileNotFoundError as error:
        raise DamagedFileError("The file is missing.") from error
    except OSError as error:
        raise DamagedFileError(f"It cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedFileError("It is no regular file.")
        if status.st_mode & 0o111 and os.name == "posix":
            raise DamagedFileError("It is executable; change that with: chmod a-x FILE.")
        if status.st_size > limit:
            raise DamagedFileError(f"It has {status.st_size:,} bytes; the limit is {limit:,}.")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)
