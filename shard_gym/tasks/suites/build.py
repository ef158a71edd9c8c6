"""Builds the files of the named suites: `python -m shard_gym.tasks.suites.build` always writes the same bytes.

Run it only to add a suite or to raise a version: published files are data, and results refer to their SHA-256.
"""

from __future__ import annotations

import json

from shard_gym.common.io.files import INDEX, sha256_of, write_atomically, write_json
from shard_gym.tasks.suites.drawing import record_of
from shard_gym.tasks.suites.info import DATA
from shard_gym.tasks.suites.recipes import RECIPES


def main() -> None:
    """Write all suites and the index of their SHA-256."""
    index = {}
    for recipe in RECIPES:
        data = (json.dumps(record_of(recipe), separators=(",", ":"), allow_nan=False) + "\n").encode()
        write_atomically(DATA / f"{recipe.name}.json", data)
        index[recipe.name] = sha256_of(data)
    write_json(DATA / INDEX, index)


if __name__ == "__main__":
    main()
