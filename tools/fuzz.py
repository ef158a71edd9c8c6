"""Damage files and play episodes in many ways, and count how that ends; the figures stand in docs/results/fuzzing.md.

    python -m tools.fuzz --cases 2000 --seed 0

Each case flips bits, cuts, repeats or exchanges bytes of one file, or changes a value in its JSON, TOML, arrays or
rows, some with a checksum that is right again, and reads it as a user would. It must end in an error of ShardGym, in
the same result as before, or, where the changed value is itself valid (an author's name, another device in a
placement), in a result that says so; never in another program's error, in silent damage, in more than 20 seconds, or
in more than 1 GB.

A case of another kind makes a task and plays it (tools/fuzz_episodes.py); what is wrong there is silent damage.
"""

from __future__ import annotations

import json
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from shard_gym.common.errors import ShardGymError
from shard_gym.common.io import arrays as stored
from shard_gym.common.io.files import read_json, write_atomically, write_json
from shard_gym.common.io.markdown import table
from shard_gym.cost_models.fitting.data import folder as measurements_folder
from shard_gym.cost_models.measured import cache as measurement_cache
from shard_gym.plans import files as sharding_files
from tools.fuzz_episodes import Made, made
from tools.fuzz_subjects import CACHE, PLAN, Subject, subjects

MAX_SECONDS, MAX_BYTES = 20, 2**30

FORGED = 0.3  # share of the cases in which a file with a checksum is signed again after the change

REFUSED, SAME, VALID = "error of ShardGym", "the same result", "another valid result"
FOREIGN, SILENT, SLOW, LARGE = "other error", "silent damage", "more than 20 s", "more than 1 GB"
BAD = (FOREIGN, SILENT, SLOW, LARGE)


def flip(rng: random.Random, content: bytes) -> bytes:
    """One to three other bits."""
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def overwrite(rng: random.Random, content: bytes) -> bytes:
    """A block of other bytes: zeros, ones or random ones."""
    start, length = rng.randrange(len(content)), rng.randint(1, 512)
    block = rng.choice([b"\0" * length, b"\xff" * length, rng.randbytes(length)])
    return content[:start] + block[: len(content) - start] + content[start + length :]


def repeat(rng: random.Random, content: bytes) -> bytes:
    start, end = sorted(rng.randrange(len(content)) for _ in range(2))
    return content[:end] + content[start:]


VALUES: list[Any] = [None, True, False, 0, -1, 1.5, 1e308, 10**9, 10**30, "", "x" * 5_000, "\u3164", "\ud800"]
VALUES += ["two\nlines", "https://", [], {}, [[]], [None], {"": 1}, "1", "nan"]
TEXTS = ["true", "1.0", "-1", "1e999", "nan", "9" * 20, '""', '"\\u0000"', "[]", "{}", "[[[[1]]]]", "2000-01-01"]
TIMES = ["[NaN]", "[-1.0]", "[]", "null", "[1]", "x", "[1e999]", "[[1]]", "{}", f"[{'1,' * 19}-1]", "[" * 5_000]


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
    number, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    action = rng.choice(["value", "value", "remove", "double", "swap"])
    if action == "value":
        lines[number] = re.sub(r"([=:]\s*)\S.*", lambda found: found[1] + rng.choice(TEXTS), lines[number])
    elif action == "remove":
        del lines[number]
    elif action == "double":
        lines.insert(number, lines[number])
    else:
        lines[number], lines[other] = lines[other], lines[number]
    return "".join(lines).encode()


def encode(rng: random.Random, content: bytes) -> bytes:
    """Text in another encoding, or with a byte order mark; of other files a part repeated."""
    try:
        return content.decode().encode(rng.choice(["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"]))
    except ValueError:
        return repeat(rng, content)


DAMAGES = [flip, flip, flip, cut, overwrite, repeat, change_value, change_value, change_line, encode]


def forge(rng: random.Random, path: Path) -> bool:
    """Change a value of a file with a checksum and sign it again; False if the file is of another kind."""
    if path.suffix == stored.SUFFIX:
        _forge_weights(rng, path)
    elif path.name == measurements_folder.INDEX:
        index = _changed(rng, {key: value for key, value in read_json(path).items() if key != "sha256"})
        write_json(path, {**index, "sha256": measurements_folder._digest(index)})
    elif path.name == PLAN:
        record = _changed(rng, read_json(path))
        with suppress(KeyError, TypeError):
            record["sha256"] = sharding_files._checksum(record)
        write_json(path, record)
    elif path.suffix == CACHE:
        key, ms = f"{rng.randrange(300):024x}", rng.choice(TIMES)
        _update_row(path, "ms = ?, sha256 = ?", ms, measurement_cache._digest(key, ms), key)
    else:
        return False
    return True


def _changed(rng: random.Random, record: dict[str, Any]) -> dict[str, Any]:
    """A record with another value; NaN and halves of characters, which no file of ours can hold, left out."""
    for _ in range(20):
        with suppress(ValueError, RecursionError):
            changed = json.loads(change_value(rng, json.dumps(record).encode()))
            json.dumps(changed, allow_nan=False, ensure_ascii=False).encode()
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
            array = array.copy()
            array.reshape(-1)[rng.randrange(max(array.size, 1)) :][:1] = rng.choice([0, 1, 77, 100])
        elif action == "dtype":
            array = array.astype(rng.choice([np.float64, np.float16, np.int64, np.uint8, np.bool_]))
        elif action == "shape":
            array = np.stack([array] * rng.choice([1, 2]))
        if action != "remove":
            arrays[f"{name}.more" if action == "rename" else name] = array
    stored.save_arrays(path, metadata["kind"], arrays, about)


def change_row(rng: random.Random, path: Path) -> None:
    column = rng.choice(["ms", "ms", "sha256", "key"])
    _update_row(path, f"{column} = ?", rng.choice(TIMES), f"{rng.randrange(300):024x}")


def _update_row(path: Path, change: str, *values: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE OR REPLACE times SET {change} WHERE key = ?", values)
    connection.close()


def damage(subject: Subject, rng: random.Random) -> tuple[str, bool]:
    """Damage the file; the name of the way, and whether another result is silent, as the file has a checksum."""
    if rng.random() < FORGED and forge(rng, subject.path):
        return forge.__name__, subject.path.suffix == CACHE
    if subject.path.suffix == CACHE and rng.random() < FORGED:
        change_row(rng, subject.path)
        return change_row.__name__, True
    way = rng.choice(DAMAGES)
    write_atomically(subject.path, way(rng, subject.content))
    return way.__name__, subject.has_checksum


class TooSlow(Exception): ...


def outcome(subject: Subject | Made, has_checksum: bool) -> tuple[str, str]:
    def stop(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MAX_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = str(subject.read())
    except TooSlow:
        return SLOW, traceback.format_exc()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        refused = isinstance(error, ShardGymError) and str(error)
        return (REFUSED, str(error)) if refused else (FOREIGN, traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    if found == subject.expected:
        return SAME, ""
    return (SILENT, found[:500]) if has_checksum else (VALID, "")


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(cases: int = 2_000, seed: int = 0, only: str = "") -> int:
    """Run the cases and print the table; the exit code is 1 if a case ended badly.

    Args:
        cases: their number
        seed: of the damage
        only: names of kinds of files or episodes that contain this text
    """
    counts: dict[str, Counter[str]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        every: list[Subject | Made] = [*made(), *subjects(Path(scratch))]
        found = [each for each in every if only in each.name]
        if not found:
            sys.exit(f"No kind has {only!r} in its name. Known: {', '.join(each.name for each in every)}.")
        for case in range(cases):
            rng, subject, before = random.Random(f"{seed}-{case}"), found[case % len(found)], _peak_bytes()
            if isinstance(subject, Made):
                way, has_checksum = "made", True
                subject.make(rng.randrange(2**32))
            else:
                way, has_checksum = damage(subject, rng)
            ended, detail = outcome(subject, has_checksum)
            if _peak_bytes() - before > MAX_BYTES:
                ended, detail = LARGE, f"{(_peak_bytes() - before) / 2**30:.1f} GB more"
            counts.setdefault(subject.name, Counter())[ended] += 1
            if ended in BAD:
                print(f"case {case} ({subject.name}, {way}): {ended}\n{detail}", file=sys.stderr)
            if isinstance(subject, Made):
                continue
            if ended in BAD and subject.path.exists():
                shutil.copy(subject.path, Path(tempfile.gettempdir()) / f"fuzz-{seed}-{case}{subject.path.suffix}")
            for leftover in subject.path.parent.glob(f"{subject.path.name}[.-]*"):
                leftover.unlink()
            write_atomically(subject.path, subject.content)
    counts["all"] = sum(counts.values(), Counter())
    columns = (REFUSED, SAME, VALID, *BAD)
    rows = [[name, *(f"{each[column]:,}" for column in columns)] for name, each in counts.items()]
    print(table(("file or episode", *columns), rows))
    print(
        f"\n{cases} cases, seed {seed}: {time.monotonic() - began:.0f} s, peak {_peak_bytes() / 2**30:.2f} GB in all."
    )
    return 1 if any(counts["all"][bad] for bad in BAD) else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
