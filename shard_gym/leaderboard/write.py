"""Writing an entry: its three files as bytes, and all of them at once into a folder that was not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shard_gym.errors import InvalidOptionError, UnwritablePathError, short_repr
from shard_gym.io.files import write_atomically
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.schema import SCHEMA, parse_entry
from shard_gym.leaderboard.store import ENTRY, Place, read_files
from shard_gym.leaderboard.verify import shown_alike, verify_entry


def rows_json(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A file of rows, each on a line of its own, so that a change of one is a change of one line."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
    return f'{{"schema":{SCHEMA},"rows":[\n{lines}\n]}}\n'.encode()


def toml(record: Mapping[str, Any]) -> bytes:
    """`record` as TOML: plain values first, then one section for each mapping; a mapping in it stands on one line."""
    plain = [f"{key} = {_value(value)}" for key, value in record.items() if not isinstance(value, Mapping)]
    sections = [
        "\n".join(["", f"[{key}]", *(f"{name} = {_value(value)}" for name, value in section.items())])
        for key, section in record.items()
        if isinstance(section, Mapping)
    ]
    try:
        return ("\n".join([*plain, *sections]) + "\n").encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(
            f"What is declared holds {short_repr(error.object[error.start])}, which is no text."
        ) from error


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A basic string of TOML: JSON's, but DEL has to be written as an escape, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_entry(place: Place, files: Mapping[str, bytes]) -> list[Finding]:
    """Put an entry into its place if it holds; else nothing is left, and what is wrong is returned.

    Raises:
        InvalidOptionError: there is an entry already, or the folder of the leaderboards is not there.
        UnwritablePathError: the folder cannot be written to.
    """
    require_free(place)
    try:
        with tempfile.TemporaryDirectory(dir=place.root, prefix=".shard-gym-") as scratch:
            trial = Place(Path(scratch), place.track, place.suite, place.slug)
            for name, content in files.items():
                write_atomically(trial.folder / name, content)
            verified, findings = verify_entry(trial)
            findings += _taken(place, verified.entry.name) if verified else []
            if not findings:
                place.folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(trial.folder, place.folder)
    except OSError as error:
        raise UnwritablePathError(f"{place.folder} cannot be written: {error.strerror or error}.") from error
    return findings


def _taken(place: Place, name: str) -> list[Finding]:
    """Whether another entry of the suite has a name that looks the same."""
    folders = sorted(place.folder.parent.iterdir()) if place.folder.parent.is_dir() else []
    for other in (Place(place.root, place.track, place.suite, folder.name) for folder in folders):
        content = read_files(other)[0].get(ENTRY)
        entry = parse_entry(content, other)[0] if content else None
        if entry is not None and shown_alike(entry.name) == shown_alike(name):
            reason = f"The name {name!r} is that of {other.id}, {entry.name!r}. Choose another."
            return [Finding(place.named(ENTRY), reason)]
    return []


def require_free(place: Place) -> None:
    """Check that an entry can be put to `place`.

    Raises:
        InvalidOptionError: there is one, or the folder of the leaderboards is not there.
    """
    if not place.root.is_dir():
        raise InvalidOptionError(f"{place.root} is no folder. Name the folder of the leaderboards with --root.")
    if place.folder.exists() or place.folder.is_symlink():
        raise InvalidOptionError(
            f"There is an entry {place.id} already. Choose another name, or remove {place.folder}."
        )
