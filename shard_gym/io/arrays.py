"""Files of weights and checkpoints: named arrays and JSON metadata in the safetensors format. Loading runs no code.

The metadata are in the header of the file: its kind, and what its reader needs besides the arrays. Needs the package
`safetensors` (extra `torch`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import DamagedFileError, InvalidCheckpointError, missing_extra
from shard_gym.io.files import write_atomically
from shard_gym.io.parsing import parse_json

SUFFIX = ".safetensors"
SCHEMA = "shard-gym-weights/1"
_KEY = "shard_gym"

Arrays = dict[str, NDArray[Any]]


def save_arrays(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON values `about` to `path`, atomically.

    Args:
        path: the file.
        kind: "agent", "training" or "cost-model".
        arrays: the arrays by name.
        about: metadata for the reader.

    Raises:
        UnwritablePathError: the file cannot be written.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise missing_extra("safetensors", "torch", "Writing weights") from error
    header = json.dumps({"schema": SCHEMA, "kind": kind, "about": dict(about)}, allow_nan=False)
    # np.ascontiguousarray would turn arrays of shape () into shape (1,).
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    write_atomically(path, save(contiguous, {_KEY: header}))


def load_arrays(path: Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays in `path` and their metadata `about`.

    Raises:
        InvalidCheckpointError: the file is missing, damaged, pickled, from another program or of another kind, or holds
            NaN or infinity.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing_extra("safetensors", "torch", "Reading weights") from error
    if not path.is_file():
        raise InvalidCheckpointError(f"There is no file {path}; name one that ShardGym wrote, *{SUFFIX}.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not iterable
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged, or no safetensors file: {error}. Pickle files (.pt, .pkl, .zip) are not read."
        ) from error
    about = _checked_header(path, header, kind)
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidCheckpointError(f"{name!r} in {path} holds NaN or infinity. Train it again.")
    return arrays, about


def _checked_header(path: Path, header: str | None, kind: str) -> dict[str, Any]:
    if header is None:
        raise InvalidCheckpointError(f"{path} was not written by ShardGym: its header does not say what it holds.")
    try:
        metadata = parse_json(header.encode(), str(path))
    except DamagedFileError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(metadata, dict) or metadata.get("schema") != SCHEMA:
        raise InvalidCheckpointError(f"{path} does not have the schema {SCHEMA!r}; it may be from another version.")
    if metadata.get("kind") != kind:
        raise InvalidCheckpointError(f"{path} holds {metadata.get('kind')!r}, not {kind!r}.")
    about = metadata.get("about")
    if not isinstance(about, dict):
        raise InvalidCheckpointError(f"{path} is damaged: its metadata 'about' are {type(about).__name__}, not a dict.")
    return about


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names begin with `prefix`, with the prefix removed from their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def require_arrays(path: Path | str, arrays: Arrays, expected: Mapping[str, NDArray[Any]]) -> None:
    """Check that the names and shapes of `arrays` are those of `expected`.

    Raises:
        InvalidCheckpointError: the message names the first difference.
    """
    for name in sorted(expected.keys() | arrays.keys()):
        if name not in arrays:
            raise InvalidCheckpointError(f"{path} lacks the array {name!r}.")
        if name not in expected:
            raise InvalidCheckpointError(f"{path} holds an array {name!r} that does not belong there.")
        if arrays[name].shape != expected[name].shape:
            raise InvalidCheckpointError(
                f"{name!r} in {path} has shape {arrays[name].shape}, but {expected[name].shape} is needed."
            )
