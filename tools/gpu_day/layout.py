"""Names and limits that the parts of the day share; imports the standard library only."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

CARRIED = ROOT / ".gpu-day"
"""What travels beside the files of the checkout; git ignores it."""

WHEELS, FBGEMM, RETURNED = "wheels", "fbgemm_gpu.tar.xz", "returned"
"""In that folder: wheels to install, the slim FBGEMM, and the files that earlier calls returned."""

WORK = Path(tempfile.gettempdir()) / "shard-gym-gpu-day"
"""Where the machine with the GPU installs and measures; gone with the machine."""

LIMIT_BYTES = 64 * 2**20
"""What may travel there."""

MAX_FILES = 8
MAX_FILE_BYTES = 16 * 2**20
"""What may come back from a call: so many files, of so many bytes each."""


def environment(site: Path) -> dict[str, str]:
    """Variables of a command that finds the carried packages in `site`, and this checkout without installing it."""
    paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}


def shard_gym(command: str, *arguments: object) -> list[str]:
    """The command line of a sub-command of `shard-gym`."""
    return [sys.executable, "-m", "shard_gym", command, *map(str, arguments)]
