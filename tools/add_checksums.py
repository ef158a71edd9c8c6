"""Add checksums to files of weights and to measurements that older versions wrote; what they hold stays as it is.

    python tools/add_checksums.py agents/dreamshard/checkpoints docs/results/measurements

A path is a file of weights, the index of a folder of measurements, or a folder that is searched for both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.folder import add_checksum as add_to_index
from shard_gym.errors import ShardGymError
from shard_gym.io.arrays import SUFFIX
from shard_gym.io.arrays import add_checksum as add_to_weights


def main(paths: Sequence[str]) -> int:
    """Rewrite the files; the exit code is 1 if one is refused."""
    if not paths:
        print(__doc__)
        return 2
    refused = 0
    for path in map(Path, paths):
        found = [path] if path.is_file() else sorted([*path.rglob(f"*{SUFFIX}"), *path.rglob(INDEX)])
        if not found:
            print(f"{path} holds no file of weights and no measurements.")
        for file in found:
            try:
                added = add_to_weights(file) if file.suffix == SUFFIX else add_to_index(file.parent)
                print(f"{file}: {'checksum added' if added else 'has one already'}.")
            except ShardGymError as error:
                refused += 1
                print(error)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
