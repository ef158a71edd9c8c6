"""Pictures written by sub-commands."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from shard_gym.errors import InvalidOptionError
from shard_gym.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write `figure` atomically, in the format that the suffix of `path` names.

    Raises:
        InvalidOptionError: matplotlib knows no such format.
    """
    formats = figure.canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in formats:
        raise InvalidOptionError(f"{path} cannot be a picture: its name must end in one of {sorted(formats)}.")
    buffer = BytesIO()
    figure.savefig(buffer, format=suffix, dpi=130)
    write_atomically(path, buffer.getvalue())
