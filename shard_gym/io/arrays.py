"""Arrays and what they are in one safetensors file: the form of all weights and checkpoints. Loading runs no code.

The header of the file carries a JSON object beside the arrays: what kind of file it is, and whatever its owner needs to
read it. Needs the package `safetensors` (extra `torch`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.errors import DamagedFileError, InvalidCheckpointError, missing_extra
from shard_gym.io.files import parse_json, write_atomically

SUFFIX = ".safetensors"
SCHEMA = "shard-gym-weights/1"
_KEY = "shard_gym"

Arrays = dict[str, NDArray[Any]]


def save_arrays(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write `arrays` and the JSON values `about` to `path`, atomically.

    Args:
        path: where to.
        kind: what reads it: "agent", "training" or "cost-model".
        arrays: by name.
        about: whatever else the reader needs.

    Raises:
        UnwritablePathError: the disk refuses.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise missing_extra("safetensors", "torch", "Writing weights") from error
    header = json.dumps({"schema": SCHEMA, "kind": kind, "about": dict(about)}, allow_nan=False)
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # ascontiguousarray has no shape ()
    write_atomically(path, save(whole, {_KEY: header}))


def load_arrays(path: Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """The arrays in `path`, and what was said about them.

    Raises:
        InvalidCheckpointError: there is no such file; it is damaged, pickled, of another program or of another kind, or
            holds NaN or infinity.
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
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping, it has no iterator
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged, or no safetensors file: {error}. Files of pickle (.pt, .pkl, .zip) are not read."
        ) from error
    about = _checked_header(path, header, kind)
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidCheckpointError(f"{path} is not usable: {name!r} holds NaN or infinity. Train it again.")
    return arrays, about


def _checked_header(path: Path, header: str | None, kind: str) -> dict[str, Any]:
    if header is None:
        raise InvalidCheckpointError(f"{path} was not written by ShardGym: its header does not say what it holds.")
    try:
        said = parse_json(header.encode(), str(path))
    except DamagedFileError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(said, dict) or said.get("schema") != SCHEMA or not isinstance(said.get("about"), dict):
        raise InvalidCheckpointError(f"{path} is not of the form {SCHEMA!r}; it may come from another version.")
    if said.get("kind") != kind:
        raise InvalidCheckpointError(f"{path} holds {said.get('kind')!r}, not {kind!r}.")
    about: dict[str, Any] = said["about"]
    return about


def under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Those of `arrays` whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def require_arrays(path: Path | str, arrays: Arrays, expected: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays whose names or shapes are not the `expected` ones.

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
