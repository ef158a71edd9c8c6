"""The files that a call returns: archives of folders, limits and sums. Imports the standard library only."""

from __future__ import annotations

import hashlib
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_day.layout import MAX_FILE_BYTES, MAX_FILES

SUMS = "SHA256SUMS"
ARCHIVE = ".tar.xz"


class ParcelError(Exception):
    """A file is damaged, or there are more than may be returned."""


def pack(folder: Path, out: Path) -> list[Path]:
    """Write `folder` to the archive `out`/NAME.tar.xz, in parts where it exceeds what one file may have; the files.

    Sums say later whether they are complete, and every file is written beside its place first.
    """
    out.mkdir(parents=True, exist_ok=True)
    archive = out / f"{folder.name}{ARCHIVE}"
    for old in out.glob(f"{archive.name}*"):
        old.unlink()
    whole = out / f".{archive.name}"
    with lzma.open(whole, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, arcname=".", filter=lambda entry: None if entry.name.endswith(".lock") else entry)
    if whole.stat().st_size <= MAX_FILE_BYTES:
        whole.replace(archive)
        return [archive]
    parts: list[Path] = []
    with whole.open("rb") as file:
        while content := file.read(MAX_FILE_BYTES):
            parts.append(archive.with_name(f"{archive.name}.{len(parts)}"))
            parts[-1].write_bytes(content)
    whole.unlink()
    return parts


def unpack(source: Path, name: str, target: Path) -> bool:
    """Replace the folder `target` by what `pack` wrote into `source` as NAME; whether there was such an archive.

    Raises:
        ParcelError: the archive is damaged, or a part is missing.
    """
    parts = sorted(source.glob(f"{name}{ARCHIVE}.*")) or list(source.glob(f"{name}{ARCHIVE}"))
    if not parts:
        return False
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryFile() as whole:
        for part in parts:
            whole.write(part.read_bytes())
        whole.seek(0)
        try:
            with lzma.open(whole) as packed, tarfile.open(fileobj=packed) as tar:
                for member in tar:
                    _extract(tar, member, target)
                while packed.read(2**20):  # the check sum is at the end
                    pass
        except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
            shutil.rmtree(target)
            raise ParcelError(f"{parts[0]} is damaged or a part of it is missing: {error}. Copy it again.") from error
    return True


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a file of the archive into the folder `target`. Filters of `tarfile` are missing before Python 3.11.4.

    Raises:
        ParcelError: the member is a link or the like, or lies elsewhere.
    """
    path = target / member.name
    if not (member.isfile() or member.isdir()) or not path.resolve().is_relative_to(target.resolve()):
        raise ParcelError(f"The archive holds {member.name!r}, which is no file below its folder. Pack it again.")
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    path.write_bytes(content.read())


def files_of(out: Path) -> list[Path]:
    """The files of a call, in order, without the sums."""
    return [path for path in sorted(out.iterdir()) if path.is_file() and path.name != SUMS]


def seal(out: Path) -> list[str]:
    """Write the sums of the files in `out`; sentences about what will not come back."""
    files = files_of(out)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / SUMS).write_text("".join(lines))
    faults = [
        f"{path.name} has {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} come back in a file."
        for path in files
        if path.stat().st_size > MAX_FILE_BYTES
    ]
    if len(files) + 1 > MAX_FILES:
        faults.append(f"{out} has {len(files) + 1} files; at most {MAX_FILES} come back.")
    return faults


def check(folder: Path) -> Sequence[Path]:
    """The files of a call in `folder`, after their sums were compared.

    Raises:
        ParcelError: a file is missing or differs from its sum.
    """
    if not (folder / SUMS).is_file():
        raise ParcelError(f"{folder} has no {SUMS}; name the folder with the files of a call that has ended.")
    found = []
    for line in (folder / SUMS).read_text().splitlines():
        sum_, _, name = line.partition("  ")
        path = folder / Path(name).name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sum_:
            raise ParcelError(f"{path} is missing or damaged; copy it again.")
        found.append(path)
    return found
