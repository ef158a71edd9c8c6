"""Ways to damage a file: its bits, its length, its text, and the values of its JSON, its arrays or its rows."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.cost_models.data import folder
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.measured import cache
from shard_gym.io import arrays as stored
from shard_gym.io.arrays import SUFFIX
from shard_gym.io.files import read_json, write_json

Damage = Callable[[random.Random, bytes], bytes]


def flip(rng: random.Random, content: bytes) -> bytes:
    """One to three other bits."""
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, content: bytes) -> bytes:
    """The beginning only."""
    return content[: rng.randrange(len(content))]


def overwrite(rng: random.Random, content: bytes) -> bytes:
    """A block of other bytes: zeros, ones or random ones."""
    start, length = rng.randrange(len(content)), rng.randint(1, 512)
    block = rng.choice([b"\0" * length, b"\xff" * length, rng.randbytes(length)])
    return content[:start] + block[: len(content) - start] + content[start + length :]


def repeat(rng: random.Random, content: bytes) -> bytes:
    """A part twice."""
    start, end = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:end] + content[start:]


VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        1e308,
        10**9,
        10**30,
        "",
        "x" * 5_000,
        "\u3164",
        "\ud800",
        "two\nlines",
        "https://",
    ),
    *([], {}, [[]], [None], {"": 1}, "1", "nan"),
]
TEXTS = [
    "true",
    "1.0",
    "-1",
    "1e999",
    "nan",
    "99999999999999999999",
    '""',
    '"\\u0000"',
    "[]",
    "{}",
    "[[[[1]]]]",
    "2000-01-01",
]


def change_value(rng: random.Random, content: bytes) -> bytes:
    """JSON with a value, a key or an item that is another, is missing or is there twice; of other files a flip."""
    try:
        record = json.loads(content)
    except ValueError:
        return flip(rng, content)
    value = record
    while isinstance(value, (dict, list)) and value:
        key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if not isinstance(value[key], (dict, list)) or not value[key] or rng.random() < 0.3:
            break
        value = value[key]
    action = rng.choice(["set", "set", "delete", "add", "deep"])
    if not isinstance(value, (dict, list)) or not value:
        return flip(rng, content)
    if action == "set":
        value[key] = rng.choice(VALUES)
    elif action == "delete":
        del value[key]
    elif action == "deep":
        nested: Any = 1
        for _ in range(rng.choice([10, 100, 500])):
            nested = [nested]
        value[key] = nested
    elif isinstance(value, dict):
        value[rng.choice(["more", "__class__", "schema"])] = rng.choice(VALUES)
    else:
        value.extend([value[key]] * rng.choice([1, 1_000]))
    return json.dumps(record).encode(errors="surrogatepass")


def change_line(rng: random.Random, content: bytes) -> bytes:
    """Text with another value on a line, or a line removed, doubled or moved; of other files a block overwritten."""
    try:
        lines = content.decode().splitlines(keepends=True)
    except ValueError:
        return overwrite(rng, content)
    number = rng.randrange(len(lines))
    action = rng.choice(["value", "value", "remove", "double", "swap"])
    if action == "value":
        lines[number] = re.sub(r"([=:]\s*)\S.*", lambda found: found[1] + rng.choice(TEXTS), lines[number])
    elif action == "remove":
        del lines[number]
    elif action == "double":
        lines.insert(number, lines[number])
    else:
        other = rng.randrange(len(lines))
        lines[number], lines[other] = lines[other], lines[number]
    return "".join(lines).encode()


def encode(rng: random.Random, content: bytes) -> bytes:
    """Text in another encoding, or with a byte order mark; of other files a part repeated."""
    try:
        return content.decode().encode(rng.choice(["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"]))
    except ValueError:
        return repeat(rng, content)


DAMAGES: list[Damage] = [flip, flip, flip, cut, overwrite, repeat, change_value, change_value, change_line, encode]


# With a checksum that is right: what a reader still has to check


def forge(rng: random.Random, path: Path) -> bool:
    """Change a value of a file with a checksum and sign it again; False if the file is of another kind."""
    if path.suffix == SUFFIX:
        _forge_weights(rng, path)
    elif path.name == INDEX:
        index = _changed(rng, {key: value for key, value in read_json(path).items() if key != "sha256"})
        write_json(path, {**index, "sha256": folder._digest(index)})
    elif path.suffix == ".sqlite":
        _forge_row(rng, path)
    else:
        return False
    return True


def _changed(rng: random.Random, record: dict[str, Any]) -> dict[str, Any]:
    """A record with another value; NaN and halves of characters, which no file of ours can hold, left out."""
    for _ in range(20):
        try:
            changed = json.loads(change_value(rng, json.dumps(record).encode()))
            json.dumps(changed, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        if isinstance(changed, dict):
            return changed
    return {}


def _forge_weights(rng: random.Random, path: Path) -> None:
    arrays, metadata = stored._read(path)
    about = metadata["about"]
    if rng.random() < 0.5:
        about = _changed(rng, about)
    else:
        name = rng.choice(sorted(arrays))
        array = arrays.pop(name)
        action = rng.choice(["remove", "rename", "dtype", "shape", "value"])
        if action == "value":
            numbers = array.copy().reshape(-1)
            numbers[rng.randrange(max(array.size, 1)) :][:1] = rng.choice([0, 1, 77, 100])
            array = numbers.reshape(array.shape)
        changed = {
            "dtype": lambda: array.astype(rng.choice([np.float64, np.float16, np.int64, np.uint8, np.bool_])),
            "shape": lambda: np.stack([array] * rng.choice([1, 2])),
            "value": lambda: array,
            "rename": lambda: array,
        }
        if action != "remove":
            arrays[f"{name}.more" if action == "rename" else name] = changed[action]()
    stored.save_arrays(path, metadata["kind"], arrays, about)


def _forge_row(rng: random.Random, path: Path) -> None:
    key, ms = f"{rng.randrange(300):024x}", rng.choice(_TIMES)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE times SET ms = ?, sha256 = ? WHERE key = ?", (ms, cache._digest(key, ms), key))
    connection.close()


_TIMES = ["[NaN]", "[-1.0]", "[]", "null", "[1]", "x", "[1e999]", "[[1]]", "{}", f"[{'1,' * 19}-1]", "[" * 5_000]


def change_row(rng: random.Random, path: Path) -> None:
    """A row of a cache with other times, key or checksum."""
    column = rng.choice(["ms", "ms", "sha256", "key"])
    with sqlite3.connect(path) as connection:
        change = f"UPDATE OR REPLACE times SET {column} = ? WHERE key = ?"
        connection.execute(change, (rng.choice(_TIMES), f"{rng.randrange(300):024x}"))
    connection.close()
