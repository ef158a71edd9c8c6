"""The folder of the leaderboards: `<track>/<suite>/<entry>/` and the few files in it, read without trusting anything.

Only what is named here may be there. No link is followed, no file is read beyond its limit, nothing is executed or
unpickled.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shard_gym.errors import InvalidOptionError, short_repr
from shard_gym.leaderboard.findings import Finding

ENTRY, PLACEMENTS, TIMINGS = "entry.toml", "placements.json", "timings.json"
REPLAYED = "replayed.json"
SIMULATED, MEASURED = "simulated", "measured"

FILES: dict[str, tuple[str, ...]] = {SIMULATED: (ENTRY, PLACEMENTS), MEASURED: (ENTRY, PLACEMENTS, TIMINGS)}
"""The files of an entry, by track: all of them, and no others."""

KIB, MIB = 2**10, 2**20
LIMITS: dict[str, int] = {ENTRY: 32 * KIB, PLACEMENTS: 2 * MIB, TIMINGS: 16 * MIB, REPLAYED: MIB}
"""Bytes. The longest honest placements, five seeds of 50 tasks with 200 tables, take a fifth of theirs."""

BESIDE = ("README.md", "site", REPLAYED)
"""What else stands in the folder of the leaderboards: the page for submitters, the generated one, and planning times
that were taken by replaying."""

SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_SLUG = 64
SLUG_RULE = f"1 to {MAX_SLUG} of a-z, 0-9 and single hyphens between them"


@dataclass(frozen=True)
class Place:
    """Where an entry is.

    Attributes:
        root: the folder of the leaderboards.
        track: one of `FILES`.
        suite: name of its folder, which should be that of a suite.
        slug: name of its own folder.
    """

    root: Path
    track: str
    suite: str
    slug: str

    @property
    def id(self) -> str:
        """Names the entry among all."""
        return f"{self.track}/{self.suite}/{self.slug}"

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.root / self.track / self.suite / self.slug

    def named(self, file: str) -> str:
        """A file of the entry as findings call it."""
        return f"{self.id}/{file}"


def is_slug(name: str) -> bool:
    """Whether `name` may be the folder of an entry."""
    return len(name) <= MAX_SLUG and SLUG.fullmatch(name) is not None


def place_of(root: Path, entry_id: str) -> Place:
    """The place of the entry named `<track>/<suite>/<entry>`, whether it is there or not.

    Raises:
        InvalidOptionError: it is no such name.
    """
    parts = entry_id.strip("/").split("/")
    if len(parts) != 3 or parts[0] not in FILES or not all(map(is_slug, parts[1:])):
        raise InvalidOptionError(
            f"An entry is named TRACK/SUITE/ENTRY, with a track of {list(FILES)} and names of {SLUG_RULE}; "
            f"not {short_repr(entry_id)}."
        )
    return Place(root, *parts)


def is_there(root: Path, entry_id: str) -> bool:
    """Whether there is a folder of that entry."""
    try:
        place = place_of(root, entry_id)
        return place.id == entry_id and place.folder.is_dir()
    except InvalidOptionError:
        return False


def find_entries(root: Path) -> tuple[list[Place], list[Finding]]:
    """Every entry under `root`, in the order of their names, and what else stands there and should not.

    Raises:
        InvalidOptionError: there is no such folder.
    """
    if not root.is_dir():
        raise InvalidOptionError(f"{root} is no folder. Name the folder of the leaderboards with --root.")
    findings: list[Finding] = []
    places = []
    for track in _folders(root, "", findings, beside=BESIDE):
        if track not in FILES:
            findings.append(Finding(track, f"There is no such track; there are {' and '.join(FILES)}."))
            continue
        for suite in _folders(root / track, track, findings):
            for slug in _folders(root / track / suite, f"{track}/{suite}", findings):
                place = Place(root, track, suite, slug)
                if is_slug(slug):
                    places.append(place)
                else:
                    findings.append(Finding(place.id, f"The folder of an entry is named with {SLUG_RULE}."))
    return places, findings


def _folders(folder: Path, named: str, findings: list[Finding], beside: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of the folders in `folder`; anything else there becomes a finding."""
    for item in _listing(folder):
        called = f"{named}/{item.name}".lstrip("/")
        if item.is_symlink():
            findings.append(Finding(called, "It is a link; put the folder itself there."))
        elif item.name in beside:
            continue
        elif item.is_dir(follow_symlinks=False):
            yield item.name
        else:
            findings.append(Finding(called, "No file belongs here; take it away."))


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as items:
        return sorted(items, key=lambda item: item.name)


def read_files(place: Place) -> tuple[dict[str, bytes], list[Finding]]:
    """The content of the files of an entry, by name, and everything wrong with the folder.

    A file that is missing, a link, executable or too large is not read.
    """
    for folder in (place.root / place.track, place.root / place.track / place.suite, place.folder):
        called = folder.relative_to(place.root).as_posix()
        if folder.is_symlink():
            return {}, [Finding(called, "It is a link; put the folder itself there.")]
        if not folder.is_dir():
            return {}, [Finding(called, "There is no such folder.")]
    wanted = FILES[place.track]
    findings = [
        Finding(place.named(item.name), f"Nothing but {', '.join(wanted)} belongs into an entry; take it away.")
        for item in _listing(place.folder)
        if item.name not in wanted
    ]
    contents = {}
    for file in wanted:
        try:
            contents[file] = _read(place.folder / file, LIMITS[file])
        except _RefusedError as refused:
            findings.append(Finding(place.named(file), str(refused)))
    return contents, findings


def read_beside(root: Path, file: str) -> tuple[bytes | None, list[Finding]]:
    """The content of a file beside the entries, None if there is none; and why it is not read, if it is not."""
    path = root / file
    if not path.exists() and not path.is_symlink():
        return None, []
    try:
        return _read(path, LIMITS[file]), []
    except _RefusedError as refused:
        return None, [Finding(file, str(refused))]


class _RefusedError(Exception):
    """A file that is not read, and why."""


def _read(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes, judged and read through one handle so that it cannot change between."""
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
            raise _RefusedError("It is executable; take that away with: chmod a-x FILE.")
        if status.st_size > limit:
            raise _RefusedError(f"It has {status.st_size:,} bytes; at most {limit:,} are read.")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(limit)
    finally:
        os.close(handle)
