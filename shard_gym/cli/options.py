"""Types of optional arguments, so that `--help` does not show them as `{None}|PATH ... (default: None)`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]
