"""Reading of Criteo's day files: blocks of lines in, the rows that they read out."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import DamagedFileError, short_repr
from shard_gym.io.files import is_file

Rows = NDArray[np.uint32]

NUM_INTEGERS, NUM_TABLES = 13, 26
COLUMNS = 1 + NUM_INTEGERS + NUM_TABLES

EMPTY = 2**32 - 1
"""Stands for an empty value, which reads no row; so a row is less."""

MAX_LINE = 4096
"""The most bytes of a line; those of the data set have fewer than 500."""

BLOCK_BYTES = 2**18
"""Read at once: the arrays made of a block stay in the caches of a core."""

_TAB, _NEWLINE, _ZERO, _MINUS, _HASH = ord("\t"), ord("\n"), ord("0"), ord("-"), 8
_SEPARATORS = np.array([_TAB] * (COLUMNS - 1) + [_NEWLINE], np.uint8)
_GZIP = b"\x1f\x8b"

_File = IO[bytes] | gzip.GzipFile

_SAMPLE = f"a label, {NUM_INTEGERS} integers and {NUM_TABLES} hashes, separated by tabs"
_WAY_OUT = "Download it again, or repair that line."


def require_day_file(path: Path) -> None:
    """Check that there is a file that can be opened, before the work begins.

    Raises:
        DamagedFileError: there is none.
    """
    if not is_file(path) and path.exists():
        raise DamagedFileError(f"{path} cannot be read: it is no regular file. Name the day files one by one.")
    _open(path).close()


def count_lines(path: Path) -> int:
    """The number of lines of a day file; they are not parsed.

    Raises:
        DamagedFileError: the file is missing, empty, truncated, or holds no such lines.
    """
    return sum(block.count(b"\n") for _, block in _blocks(path))


def read_rows(path: Path, max_rows: int) -> Generator[Rows, None, None]:
    """The rows that the samples of a day file read, some thousand samples at a time, in their order.

    Args:
        path: a day file, plain or gzip.
        max_rows: at most `EMPTY`; the row of a value is its hash modulo `max_rows`.

    Yields:
        (26, n) uint32, the row of each table that each of n samples reads, or `EMPTY`.

    Raises:
        DamagedFileError: the file is missing, empty, truncated, or a line is no sample; the message has its number.
    """
    for first, block in _blocks(path):
        rows = parse(block, max_rows)
        if rows is None:
            raise _no_sample(path, first, block)
        yield rows


def parse(block: bytes, max_rows: int) -> Rows | None:
    """(26, n) uint32, see `read_rows`, of a block of n whole lines; None if one of them is no sample."""
    text = np.frombuffer(block + b"0" * _HASH, np.uint8)  # the last value may be empty, and eight bytes are read
    separators = np.flatnonzero(text <= _NEWLINE)  # a sample has nothing below a newline but tabs
    if separators.size % COLUMNS:
        return None
    ends = separators.reshape(-1, COLUMNS)
    if not (text[ends] == _SEPARATORS).all():
        return None
    starts = np.empty_like(ends)
    starts[:, 1:] = ends[:, :-1] + 1
    starts[0, 0], starts[1:, 0] = 0, ends[:-1, -1] + 1
    sizes = ends - starts
    if not ((sizes[:, 0] == 1) & (text[starts[:, 0]] - _ZERO <= 1)).all():  # below "0", the difference wraps around
        return None
    if not _are_integers(text, starts[:, 1 : 1 + NUM_INTEGERS], sizes[:, 1 : 1 + NUM_INTEGERS]):
        return None
    hashes = _hashes(text, starts[:, -NUM_TABLES:].T.copy(), sizes[:, -NUM_TABLES:].T.copy())
    if hashes is None:
        return None
    values, empty = hashes
    values %= np.uint32(max_rows)
    values[empty] = EMPTY
    return values


def _are_integers(text: NDArray[np.uint8], starts: NDArray[np.intp], sizes: NDArray[np.intp]) -> bool:
    """Whether every value is empty, or digits after at most one minus; all first digits, then all second ones."""
    given = sizes > 0
    at, left = starts[given], sizes[given]
    negative = text[at] == _MINUS
    at, left = at + negative, left - negative  # after a minus alone is a separator, which is no digit
    while at.size:
        if (text[at] - _ZERO > 9).any():  # below "0", the difference wraps around
            return False
        more = left > 1
        at, left = at[more] + 1, left[more] - 1
    return True


def _hashes(
    text: NDArray[np.uint8], starts: NDArray[np.intp], sizes: NDArray[np.intp]
) -> tuple[Rows, NDArray[np.bool_]] | None:
    """The values of eight hexadecimal digits, and which are empty; None if one is neither.

    The digits of a value are the bytes of one integer, the first digit the highest.
    """
    empty = sizes == 0
    if not (empty | (sizes == _HASH)).all():
        return None
    eight = np.ndarray((text.size - _HASH + 1,), ">u8", text, strides=(1,))  # at every byte, aligned or not
    digits = eight[starts].astype(np.uint64)
    is_letter = (digits >> 6) & 0x0101010101010101
    values = ((digits & 0x0F0F0F0F0F0F0F0F) + 9 * is_letter) & 0x0F0F0F0F0F0F0F0F
    # Written again as digits, they must be the text: "0" is 0x30, and "a" 39 more than the digit after "9".
    is_letter = ((values + 0x0606060606060606) >> 4) & 0x0101010101010101
    written = values + 0x3030303030303030 + 39 * is_letter
    if not ((written == digits) | empty).all():
        return None
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        values |= values >> shift
        values &= mask
    return values.astype(np.uint32), empty


def _blocks(path: Path) -> Generator[tuple[int, bytes], None, None]:
    """Blocks of whole lines with the number of their first line, from 1."""
    line, rest = 1, b""
    with _open(path) as file:
        while read := _read(file, path, line):
            block = rest + read
            end = block.rfind(b"\n") + 1
            block, rest = block[:end], block[end:]
            if block:
                yield line, block
                line += block.count(b"\n")
            if len(rest) > MAX_LINE:
                raise DamagedFileError(
                    f"{path}, line {line}: it has more than {MAX_LINE:,} bytes, and a sample is {_SAMPLE}. "
                    "Name a day file of the Criteo 1TB click logs."
                )
    if rest:
        raise DamagedFileError(
            f"{path}, line {line}: the file ends within it, after {short_repr(_text(rest[-20:]))}, so it is truncated. "
            "Download it again, or end the last line with a line break if it is complete."
        )
    if line == 1:
        raise DamagedFileError(f"{path} is empty. Download it again.")


def _open(path: Path) -> _File:
    """The file at `path`, unpacked if it begins as a gzip file does."""
    try:
        file = path.open("rb")
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            return file
        file.close()
        return gzip.open(path)
    except (OSError, ValueError) as error:  # a ValueError of a path with a null character
        raise _unreadable(path, error) from error


def _read(file: _File, path: Path, line: int) -> bytes:
    try:
        return file.read(BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFileError(
            f"{path} is truncated or damaged: it cannot be unpacked beyond line {line} ({error}). Download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError | ValueError) -> DamagedFileError:
    return DamagedFileError(
        f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. Name a day file of the Criteo 1TB click "
        "logs; ShardGym ships none."
    )


def _no_sample(path: Path, first: int, block: bytes) -> DamagedFileError:
    """The error that names the first line of a block that is no sample."""
    faults = ((number, fault_of(line)) for number, line in enumerate(block.split(b"\n")[:-1], first))
    number, fault = next((number, fault) for number, fault in faults if fault)
    return DamagedFileError(f"{path}, line {number}: {fault} {_WAY_OUT}")


def fault_of(line: bytes) -> str:
    """A sentence that says why a line, without its line break, is no sample; empty if it is one."""
    values = line.split(b"\t")
    if len(values) != COLUMNS:
        return f"it has {len(values)} columns, and a sample has {COLUMNS}: {_SAMPLE}."
    for column, value in enumerate(values):
        if column == 0:
            name, known, wanted = "its label", rb"[01]", "0 or 1"
        elif column <= NUM_INTEGERS:
            name, known, wanted = f"its integer I{column}", rb"(-?[0-9]+)?", "digits after at most one minus, or empty"
        else:
            name, known = f"its hash C{column - NUM_INTEGERS}", rb"([0-9a-f]{8})?"
            wanted = "8 hexadecimal digits in lower case, or empty"
        if not re.fullmatch(known, value):
            return f"{name} is {short_repr(_text(value))}; it must be {wanted}."
    return ""


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
