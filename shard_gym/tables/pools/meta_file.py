"""Access to Meta's lookup files (.pt or .pt.gz) as memory-mapped arrays."""

from __future__ import annotations

import gzip
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, missing_extra
from shard_gym.tables.tables import MAX_ROWS

Integers = NDArray[np.integer[Any]]

Progress = Callable[[int, int], None]
"""A callback with (done, total); total changes once, when unpacking ends and counting starts."""

_POINTER = b"version https://git-lfs.github.com/spec/v1"
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_CHUNK_BYTES = 8 * 2**20  # unpacked at once


class MetaLookups(NamedTuple):
    """The three memory-mapped arrays of a file."""

    indices: Integers  # (N,) int, row of every lookup, table by table and sample by sample
    offsets: Integers  # (T * B + 1,) int, start of each bag of lookups; the last entry is N
    lengths: Integers  # (T, B) int, lookups of each sample in each table

    def bags(self, table: int) -> tuple[Integers, Integers]:
        """Views of the (B + 1,) offsets and the (B,) lengths of one table; the last offset is the end of its bags."""
        batch_size = self.lengths.shape[1]
        return self.offsets[table * batch_size : (table + 1) * batch_size + 1], self.lengths[table]


def indices_of(subject: str, indices: Integers, offsets: Integers, lengths: Integers) -> Integers:
    """A view of the checked indices of one table; messages begin with `subject`."""
    inside = offsets[0] >= 0 and offsets[-1] <= len(indices)
    if not inside or (lengths < 0).any() or (np.diff(offsets) != lengths).any():
        raise DamagedFileError(f"{subject}: its lengths and its offsets contradict each other.")
    own = indices[offsets[0] : offsets[-1]]
    if len(own) and not 0 <= own.min() <= own.max() < MAX_ROWS:
        raise DamagedFileError(
            f"{subject}: its indices run from {own.min()} to {own.max()}; they must lie from 0 to {MAX_ROWS - 1}."
        )
    return own


def require_unpacked(path: Path) -> None:
    """Check that a file can be memory-mapped without unpacking, before several processes open it."""
    if _checked_head(path).startswith(_GZIP):
        raise InvalidOptionError(
            f"{path} is a gzip file, and every process would unpack it. Unpack it first: gunzip --keep FILE."
        )


def load_unpacked(path: Path) -> MetaLookups:
    """The arrays of a file that is not packed, mapped into memory."""
    require_unpacked(path)
    return _load(path, path)


@contextmanager
def open_lookups(path: Path, tmp_dir: Path | None, progress: Progress) -> Iterator[MetaLookups]:
    """The arrays of the file at `path`; a gzip file is unpacked into a temporary file beside it, or in `tmp_dir`."""
    if not _checked_head(path).startswith(_GZIP):
        yield _load(path, path)
        return
    folder = path.parent if tmp_dir is None else tmp_dir
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".shard-gym-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise InvalidOptionError(_cannot_unpack(path, folder, error)) from error
    with temporary as unpacked_in:
        unpacked = Path(unpacked_in) / "lookups.pt"
        _unpack(path, unpacked, progress)
        yield _load(unpacked, path)


def _checked_head(path: Path) -> bytes:
    head = _head(path)
    if head.startswith(_POINTER):
        raise DamagedFileError(
            f"{path} is a git-LFS pointer, not the data: the repository was cloned without its large files. "
            "Run `git lfs pull` in it and try again."
        )
    return head


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_POINTER))
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror or error}.") from error


def _cannot_unpack(path: Path, folder: Path, error: OSError) -> str:
    return (
        f"{path} cannot be unpacked into {folder}: {error.strerror or error}. "
        "Name a folder with room for several times its size as tmp_dir."
    )


def _unpack(path: Path, unpacked: Path, progress: Progress) -> None:
    """Unpack the gzip file at `path`; progress counts its packed bytes."""
    total = path.stat().st_size
    try:
        with path.open("rb") as packed, gzip.open(packed) as source, unpacked.open("wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)
                progress(min(packed.tell(), total), total)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFileError(
            f"{path} is truncated or damaged: it cannot be unpacked ({error}). Download it again."
        ) from error
    except OSError as error:
        raise InvalidOptionError(_cannot_unpack(path, unpacked.parent.parent, error)) from error


def _load(path: Path, source: Path) -> MetaLookups:
    """The tensors in the file at `path` as arrays; messages name `source`.

    Only torch's present format can be memory-mapped; the format of torch before 1.6 is read into memory.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "torch", "Reading Meta's lookup files") from error
    mappable = zipfile.is_zipfile(path)
    if not mappable and _head(path).startswith(_ZIP):
        raise DamagedFileError(f"{source} is truncated: the end of the file is missing. Download it again.")
    try:
        content = torch.load(path, map_location="cpu", mmap=mappable, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # torch does not document which errors a damaged file raises
        # Its messages advise to load pickles without checks, which this reader never does.
        raise DamagedFileError(
            f"{source} is damaged, or no lookup file of Meta's data set ({type(error).__name__}). Download it again."
        ) from error
    if not isinstance(content, (tuple, list)) or len(content) != 3:
        raise DamagedFileError(f"{source} holds {_describe(content)} instead of the tuple (indices, offsets, lengths).")
    arrays = []
    for name, tensor in zip(MetaLookups._fields, content, strict=True):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.int32, torch.int64):
            raise DamagedFileError(f"{source}: {name} must be a tensor of int32 or int64, not {_describe(tensor)}.")
        arrays.append(tensor.numpy())
    indices, offsets, lengths = arrays
    if indices.ndim != 1 or lengths.ndim != 2 or lengths.size == 0:
        raise DamagedFileError(
            f"{source}: indices must have shape (N,) and lengths (tables, samples), "
            f"but they have {indices.shape} and {lengths.shape}."
        )
    if offsets.shape != (lengths.size + 1,):
        raise DamagedFileError(
            f"{source}: offsets must have shape ({lengths.size + 1},), one more than the {lengths.size} lengths, "
            f"but it has {offsets.shape}."
        )
    if offsets[0] != 0 or offsets[-1] != len(indices):
        raise DamagedFileError(
            f"{source}: offsets must run from 0 to the {len(indices)} indices, "
            f"but they run from {offsets[0]} to {offsets[-1]}."
        )
    return MetaLookups(indices, offsets, lengths)


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    dtype = getattr(value, "dtype", None)
    return f"a {type(value).__name__}" + ("" if dtype is None else f" of {dtype}")
