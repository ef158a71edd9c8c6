"""Damage every kind of file in many ways, read it, and count how that ends; the figures stand in docs/robustness.md.

    python -m tools.fuzz --cases 2000 --seed 0

Each case flips bits, cuts, repeats or exchanges bytes of one file, or changes a value in its JSON, TOML, arrays or
rows, some with a checksum that is right again, and reads it as a user would. It must end in an error of ShardGym, in
the same result as before, or, where the changed value is itself valid (an author's name, another device in a
placement), in a result that says so; never in another program's error, in silent damage, in more than 20 seconds, or
in more than 1 GB.
"""

from __future__ import annotations

import argparse
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from shard_gym.errors import ShardGymError
from shard_gym.io.files import read_json, write_atomically, write_json
from tools.fuzz.damage import DAMAGES, change_row, forge
from tools.fuzz.subjects import Subject, subjects

MAX_SECONDS, MAX_BYTES = 20, 2**30

FORGED = 0.3
"""Share of the cases in which a file with a checksum is signed again after the change."""

REFUSED, SAME, VALID = "error of ShardGym", "the same result", "another valid result"
FOREIGN, SILENT, SLOW, LARGE = "other error", "silent damage", "more than 20 s", "more than 1 GB"
BAD = (FOREIGN, SILENT, SLOW, LARGE)


class TooSlow(Exception):
    """A case took longer than `MAX_SECONDS`."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooSlow in what takes longer."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(subject: Subject, has_checksum: bool) -> tuple[str, str]:
    """How reading the damaged file ends, and more about it."""
    try:
        with limited(MAX_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = subject.read()
    except TooSlow:
        return SLOW, traceback.format_exc()
    except ShardGymError as error:
        return (REFUSED, str(error)) if str(error) else (FOREIGN, "an error without a message")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return FOREIGN, traceback.format_exc()
    if _same(found, subject.expected):
        return SAME, ""
    return (SILENT, str(found)[:500]) if has_checksum else (VALID, "")


def _same(found: Any, expected: Any) -> bool:
    return repr(found) == repr(expected) if not isinstance(found, tuple) else str(found) == str(expected)


def damage(subject: Subject, rng: random.Random) -> tuple[str, bool]:
    """Damage the file.

    Returns:
        The name of the way; and whether another result is silent damage, because the file has a checksum that tells.
    """
    if rng.random() < FORGED and forge(rng, subject.path):
        return forge.__name__, subject.path.suffix == ".sqlite"
    if subject.path.suffix == ".sqlite" and rng.random() < FORGED:
        change_row(rng, subject.path)
        return change_row.__name__, True
    way = rng.choice(DAMAGES)
    write_atomically(subject.path, way(rng, subject.content))
    return way.__name__, subject.has_checksum


def main() -> int:
    """Run the cases and print the table; the exit code is 1 if a case ended badly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of kinds of files that contain this text")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file, too")
    given = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        found = [each for each in subjects(Path(scratch)) if given.only in each.name]
        for case in range(given.cases):
            rng = random.Random(f"{given.seed}-{case}")
            subject = found[case % len(found)]
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            way, has_checksum = damage(subject, rng)
            ended, detail = outcome(subject, has_checksum)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if (peak - before) * 1024 > MAX_BYTES:
                ended, detail = LARGE, f"{(peak - before) / 2**20:.1f} GB more"
            counts.setdefault(subject.name, Counter())[ended] += 1
            if ended in BAD:
                print(f"case {case} ({subject.name}, {way}): {ended}\n{detail}", file=sys.stderr)
                kept = Path(tempfile.gettempdir()) / f"fuzz-{given.seed}-{case}{subject.path.suffix}"
                if subject.path.exists():
                    shutil.copy(subject.path, kept)
            for leftover in subject.path.parent.glob(f"{subject.path.name}[.-]*"):
                leftover.unlink()
            write_atomically(subject.path, subject.content)
    seconds, peak = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    total = sum(counts.values(), Counter())
    print(_table(counts))
    print(f"\n{total.total()} cases, seed {given.seed}: {seconds:.0f} s, peak {peak:.2f} GB of memory in all.")
    if given.out:
        figures = {"seed": given.seed, "seconds": round(seconds), "python": platform.python_version()}
        write_json(given.out, {**figures, "outcomes": {name: dict(each) for name, each in counts.items()}})
        assert read_json(given.out)
    return 1 if any(total[bad] for bad in BAD) else 0


def _table(counts: dict[str, Counter[str]]) -> str:
    columns = [REFUSED, SAME, VALID, *BAD]
    rows = [("file", *columns), ("---", *("---:" for _ in columns))]
    rows += [(name, *(f"{each[column]:,}" for column in columns)) for name, each in counts.items()]
    total = sum(counts.values(), Counter())
    rows.append(("all", *(f"{total[column]:,}" for column in columns)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
