"""Presets: options of an agent that learns, as dataclasses by name; and the options that a trained agent takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from shard_gym.errors import InvalidCheckpointError, unknown_name


def preset_options(presets: Mapping[str, type[Any]], preset: str, **changes: Any) -> Any:
    """The dataclass of `preset` with `changes`.

    Raises:
        UnknownNameError: there is no such preset, or the preset has no such option.
        InvalidOptionError: an option has an impossible value.
    """
    if not isinstance(preset, str) or preset not in presets:
        raise unknown_name("preset", preset, presets)
    known = [field.name for field in fields(presets[preset])]
    for name in changes:
        if name not in known:
            raise unknown_name(f"option of preset {preset!r}", name, known)
    return presets[preset](**changes)


def saved_options(presets: Mapping[str, type[Any]], about: Mapping[str, Any]) -> Any:
    """The options in the description of a training run.

    Raises:
        InvalidCheckpointError: it has none, or impossible ones.
    """
    try:
        return preset_options(presets, about["preset"], **about["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(f"The file does not say how the agent was trained: {error}") from error


def require_known(purpose: str, given: Collection[str], known: Collection[str]) -> None:
    """Refuse options that are not known; `purpose` is such as "place with preset 'paper'".

    Raises:
        UnknownNameError: there is one.
    """
    for name in given:
        if name not in known:
            raise unknown_name(f"option to {purpose}", name, known, "" if known else "none")
