"""Figures of matplotlib: their common colours, and how they are written to files."""

from __future__ import annotations

import importlib.util
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from shard_gym.common.errors import InvalidOptionError, MissingExtraError, missing_extra
from shard_gym.common.io.files import require_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GREY, LINE = "#1F2933", "#66727F", "#D5DBE1"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E6A100", "#56B4E9", "#1F2933")
"""Okabe and Ito's colours, which colour-blind readers tell apart."""

SIZE = 12.0  # font size in points; a page shows a figure at about half its size
FORMATS = (".pdf", ".png", ".svg")  # suffixes of picture files; for these, matplotlib needs no other package


def matplotlib_missing() -> MissingExtraError | None:
    """The error that says how to install matplotlib, or None if it is installed."""
    return None if importlib.util.find_spec("matplotlib") else missing_extra("matplotlib", "viz", "A picture")


def require_matplotlib() -> None:
    """Raise MissingExtraError, which says how to install matplotlib, if it is not installed."""
    if missing := matplotlib_missing():
        raise missing


def require_picture(path: Path) -> None:
    """Raise unless `save_picture` can write to `path`: a known suffix, matplotlib, and a writable folder."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidOptionError(f"{path} cannot be a picture: its name must end in one of {', '.join(FORMATS)}.")
    require_matplotlib()
    require_writable(path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` atomically, in the format that the suffix of `path` names."""
    require_picture(path)
    buffer = BytesIO()
    figure.savefig(buffer, format=path.suffix.lower().removeprefix("."), dpi=130)
    write_atomically(path, buffer.getvalue())
