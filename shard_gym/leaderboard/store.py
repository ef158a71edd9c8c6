"""Folders of entries, `<track>/<suite>/<entry>/`, and safe reading of the few files in them.

Only the files named here are allowed. No link is followed, no file is read beyond its size limit, and nothing is
executed or unpickled.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shard_gym.errors import InvalidOptionError, short_repr

ENTRY, PLACEMENTS, TIMINGS = "entry.toml", "placements.json", "timings.json"
REPLAYED = "replayed.json"
SIMULATED, MEASURED = "simulated", "measured"

FILES: dict[str, tuple[str, ...]] = {SIMULATED: (ENTRY, PLACEMENTS), MEASURED: (ENTRY, PLACEMENTS, TIMINGS)}
"""The files of an entry, by track: all of them are required, and no others are allowed."""

KIB, MIB = 2**10, 2**20
LIMITS: dict[str, int] = {ENTRY: 32 * KIB, PLACEMENTS: 2 * MIB, TIMINGS: 16 * MIB, REPLAYED: MIB}
"""Maximum bytes of each file. The longest valid placements, five seeds of 50 tasks with 200 tables, need a fifth."""

ROOT_FILES = ("README.md", REPLAYED)
"""Files allowed in the folder of the leaderboards itself."""

SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_SLUG = 64
SLUG_RULE = f"1 to {MAX_SLUG} of a-z, 0-9 and single hyphens between them"

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


def truncated(findings: Iterable[Finding]) -> list[Finding]:
    """The first `MAX_FINDINGS` findings, and one that counts the others."""
    listed = list(findings)
    if len(listed) <= MAX_FINDINGS:
        return listed
    more = len(listed) - MAX_FINDINGS
    return [*listed[:MAX_FINDINGS], Finding(listed[0].file.rpartition("/")[0], f"There are {more} more findings.")]


@dataclass(frozen=True)
class EntryFolder:
    """The folder of an entry, whether it exists or not.

    Attributes:
        root: the folder of the leaderboards.
        track: one of `FILES`.
        suite: name of the folder around it, which should be the name of a suite.
        slug: name of the folder itself.
    """

    root: Path
    track: str
    suite: str
    slug: str

    @property
    def id(self) -> str:
        """Identifies the entry among all entries: TRACK/SUITE/ENTRY."""
        return f"{self.track}/{self.suite}/{self.slug}"

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.root / self.track / self.suite / self.slug

    def file(self, name: str) -> str:
        """A file of the entry as findings name it."""
        return f"{self.id}/{name}"


def is_slug(name: str) -> bool:
    """Whether `name` may be the name of an entry's folder."""
    return len(name) <= MAX_SLUG and SLUG.fullmatch(name) is not None


def entry_folder(root: Path, entry_id: str) -> EntryFolder:
    """The folder of the entry TRACK/SUITE/ENTRY, whether it exists or not.

    Raises:
        InvalidOptionError: `entry_id` has another form.
    """
    parts = entry_id.strip("/").split("/")
    if len(parts) != 3 or parts[0] not in FILES or not all(map(is_slug, parts[1:])):
        raise InvalidOptionError(
            f"An entry is named TRACK/SUITE/ENTRY, with a track of {list(FILES)} and names of {SLUG_RULE}; "
            f"not {short_repr(entry_id)}."
        )
    return EntryFolder(root, *parts)


def find_entries(root: Path) -> tuple[list[EntryFolder], list[Finding]]:
    """Every entry under `root`, sorted by name, and a finding for everything else there that is not allowed.

    Raises:
        InvalidOptionError: `root` is no folder.
    """
    require_root(root)
    findings: list[Finding] = []
    folders = []
    for track in _subfolders(root, "", findings, allowed=ROOT_FILES):
        if track not in FILES:
            findings.append(Finding(track, f"There is no such track; the tracks are {' and '.join(FILES)}."))
            continue
        for suite in _subfolders(root / track, track, findings):
            for slug in _subfolders(root / track / suite, f"{track}/{suite}", findings):
                folder = EntryFolder(root, track, suite, slug)
                if is_slug(slug):
                    folders.append(folder)
                else:
                    findings.append(Finding(folder.id, f"The folder of an entry is named with {SLUG_RULE}."))
    return folders, findings


def require_root(root: Path) -> None:
    """Check that the folder of the leaderboards exists.

    Raises:
        InvalidOptionError: it does not.
    """
    if not root.is_dir():
        raise InvalidOptionError(f"{root} is no folder. Name the folder of the leaderboards with --root.")


def _subfolders(folder: Path, name: str, findings: list[Finding], allowed: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of the folders in `folder`; anything else that is not allowed becomes a finding."""
    for item in _listing(folder):
        item_name = f"{name}/{item.name}".lstrip("/")
        if item.is_symlink():
            findings.append(Finding(item_name, "It is a link; put the folder itself there."))
        elif item.name in allowed:
            continue
        elif item.is_dir(follow_symlinks=False):
            yield item.name
        else:
            findings.append(Finding(item_name, "No file is allowed here; remove it."))


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as items:
        return sorted(items, key=lambda item: item.name)


def read_files(folder: EntryFolder) -> tuple[dict[str, bytes], list[Finding]]:
    """The content of the files of an entry, by name, and everything wrong with the folder.

    A file that is missing, a link, executable or too large is not read.
    """
    for path in (folder.root / folder.track, folder.root / folder.track / folder.suite, folder.path):
        name = path.relative_to(folder.root).as_posix()
        if path.is_symlink():
            return {}, [Finding(name, "It is a link; put the folder itself there.")]
        if not path.is_dir():
            return {}, [Finding(name, "There is no such folder.")]
    required = FILES[folder.track]
    findings = [
        Finding(folder.file(item.name), f"An entry holds {', '.join(required)} and nothing else; remove it.")
        for item in _listing(folder.path)
        if item.name not in required
    ]
    contents = {}
    for file in required:
        try:
            contents[file] = _read(folder.path / file, LIMITS[file])
        except _RefusedError as refused:
            findings.append(Finding(folder.file(file), str(refused)))
    return contents, findings


def read_root_file(root: Path, file: str) -> tuple[bytes | None, list[Finding]]:
    """The content of one of `ROOT_FILES`, None if it does not exist; and why it is refused, if it is."""
    path = root / file
    if not path.exists() and not path.is_symlink():
        return None, []
    try:
        return _read(path, LIMITS[file]), []
    except _RefusedError as refused:
        return None, [Finding(file, str(refused))]


class _RefusedError(Exception):
    """A file is not read; the message says why."""


def _read(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes, checked and read through one handle so that it cannot change between."""
    try:
        if path.is_symlink():  # Windows has no O_NOFOLLOW
            raise _RefusedError("It is a link; put the file itself there.")
        # A pipe would block without O_NONBLOCK.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags)
    except FileNotFoundError as error:
        raise _RefusedError("The file is missing.") from error
    except OSError as error:
        raise _RefusedError(f"It cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _RefusedError("It is no regular file.")
        if status.st_mode & 0o111 and os.name == "posix":
            raise _RefusedError("It is executable; change that with: chmod a-x FILE.")
        if status.st_size > limit:
            raise _RefusedError(f"It has {status.st_size:,} bytes; the limit is {limit:,}.")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)
