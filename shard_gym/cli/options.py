"""Options that several sub-commands have: how `--help` shows them, and the checks they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

# An option that need not be given would be shown as `{None}|PATH ... (default: None)`.
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="(optional)")]
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(optional)")]
OptionalFloat = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(optional)")]
OptionalStr = Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="(optional)")]
