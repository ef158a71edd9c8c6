"""Files of weights and checkpoints: named arrays and JSON metadata in the safetensors format. Loading runs no code.

The metadata are in the header of the file: its kind, what its reader needs besides the arrays, and a SHA-256 of all of
that, so that a file in which a single bit is another is refused. Needs the package `safetensors` (extra `torch`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import DamagedFileError, InvalidCheckpointError, missing_extra, short_repr
from shard_gym.common.io.files import is_file, write_atomically
from shard_gym.common.io.parsing import parse_json, require_fields, require_schema

SUFFIX = ".safetensors"
SCHEMA = "shard-gym-weights/2"

WRITERS = {
    "agent": "The files of agents come from shard-gym train.",
    "cost-model": "The files of cost models come from shard-gym fit-cost-model.",
}
"""What writes files of a kind, for who named one of another kind."""

_KEY = "shard_gym"

Arrays = dict[str, NDArray[Any]]


def save_arrays(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON values `about` to `path`, atomically; `kind` says what they are, such as "agent"."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise missing_extra("safetensors", "torch", "Writing weights") from error
    # np.ascontiguousarray would turn arrays of shape () into shape (1,).
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # As it is read back: tuples become lists, and the keys of objects texts.
    metadata = json.loads(json.dumps({"schema": SCHEMA, "kind": kind, "about": dict(about)}, allow_nan=False))
    header = json.dumps({**metadata, "sha256": _digest(metadata, contiguous)}, allow_nan=False)
    write_atomically(path, save(contiguous, {_KEY: header}))


def _digest(metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the metadata without their checksum, and of the name, dtype, shape and bytes of every array."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True, allow_nan=False).encode())
    for name, array in sorted(arrays.items()):
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.asarray(array, order="C").data)
    return digest.hexdigest()


def load_arrays(path: Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays in `path` and their metadata `about`.

    Raises:
        InvalidCheckpointError: the file is missing, damaged, pickled, of another kind, or holds NaN or infinity.
        MissingExtraError: safetensors is not installed.
    """
    arrays, metadata = _read(path)
    try:
        require_schema(metadata, SCHEMA, str(path))
        require_fields(metadata, _METADATA, str(path))
    except DamagedFileError as error:
        raise InvalidCheckpointError(str(error)) from error
    if metadata.pop("sha256") != _digest(metadata, arrays):
        raise InvalidCheckpointError(
            f"{path} is damaged: its content is not what its SHA-256 says. Restore it from a copy, or train it again."
        )
    if metadata["kind"] != kind:
        hint = f" {WRITERS[kind]}" if kind in WRITERS else ""
        raise InvalidCheckpointError(f"{path} holds {short_repr(metadata['kind'])}, not {kind!r}.{hint}")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidCheckpointError(f"{name!r} in {path} holds NaN or infinity. Train it again.")
    return arrays, metadata["about"]


_METADATA = {"schema": str, "kind": str, "about": dict, "sha256": str}


def _read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays in `path`, and what its header says of them; nothing is checked but its form."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_extra("safetensors", "torch", "Reading weights") from error
    try:
        if not is_file(path):
            raise InvalidCheckpointError(f"There is no file {path}; name one that ShardGym wrote, *{SUFFIX}.")
        with safe_open(path, framework="numpy") as file:
            header = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not iterable
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, InvalidCheckpointError):
            raise
        raise InvalidCheckpointError(
            f"{path} is damaged, or no safetensors file: {error}. Pickle files (.pt, .pkl, .zip) are not read."
        ) from error
    if header is None:
        raise InvalidCheckpointError(f"{path} was not written by ShardGym: its header does not say what it holds.")
    try:
        metadata = parse_json(header.encode(), str(path))
    except DamagedFileError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise InvalidCheckpointError(f"{path} is damaged: its header is no object.")
    return arrays, metadata


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names begin with `prefix`, with the prefix removed from their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """`arrays` with `prefix` before their names; `under` takes it away again."""
    return {prefix + name: array for name, array in arrays.items()}


def require_arrays(path: Path | str, arrays: Arrays, expected: Mapping[str, NDArray[Any]]) -> None:
    """Raise InvalidCheckpointError unless the names, shapes and dtypes of `arrays` are those of `expected`."""
    for name in sorted(expected.keys() | arrays.keys()):
        if name not in arrays:
            raise InvalidCheckpointError(f"{path} lacks the array {name!r}.")
        if name not in expected:
            raise InvalidCheckpointError(f"{path} holds an array {name!r} that does not belong there.")
        if arrays[name].shape != expected[name].shape:
            raise InvalidCheckpointError(
                f"{path} holds {name!r} with shape {arrays[name].shape}, but {expected[name].shape} is needed."
            )
        if arrays[name].dtype != expected[name].dtype:
            raise InvalidCheckpointError(
                f"{path} holds {name!r} with {arrays[name].dtype}, but {expected[name].dtype} is needed."
            )
