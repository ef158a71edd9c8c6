"""Options that several sub-commands have: how `--help` shows them, and the checks they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.errors import InvalidOptionError

# An option that need not be given would be shown as `{None}|PATH ... (default: None)`.
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]


def require_at_least(option: str, value: int, least: int) -> None:
    """Check a count.

    Raises:
        InvalidOptionError: `value` is less than `least`.
    """
    if value < least:
        raise InvalidOptionError(f"{option} must be at least {least}, not {value}.")
