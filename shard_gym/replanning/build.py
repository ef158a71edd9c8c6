"""Builds the files of the suites of replanning: `python -m shard_gym.replanning.build` writes the same bytes.

Run it only to add a suite or to raise a version: published files are data, and results refer to their SHA-256.
"""

from __future__ import annotations

import json

from shard_gym.common.io.files import INDEX, sha256_of, write_atomically, write_json
from shard_gym.replanning.drawing import RECIPES, record_of
from shard_gym.tasks.suites.info import DRIFTING


def main() -> None:
    """Write all files and their index."""
    index = {}
    for recipe in RECIPES:
        record = record_of(recipe)
        data = json.dumps(record, indent=1).encode() + b"\n"
        write_atomically(DRIFTING / f"{recipe.name}.json", data)
        index[recipe.name] = sha256_of(data)
        print(recipe.name, [entry["memory_cap_bytes"] for entry in record["splits"]["test"]][:4])
    write_json(DRIFTING / INDEX, index)


if __name__ == "__main__":
    main()
