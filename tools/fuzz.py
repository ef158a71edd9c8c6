"""Damage every kind of file in many ways, read it, and count how that ends; the figures stand in docs/robustness.md.

    python tools/fuzz.py --cases 2000 --seed 0

Each case flips bits, cuts, repeats or exchanges bytes of one file, or changes a value in its JSON, TOML or rows, and
reads it as a user would. It must end in an error of ShardGym, in the same result as before, or, where a changed
value is itself valid (an author's name, another device in a placement), in a result that says so; never in another
program's error, in silent damage, in more than 20 seconds, or in more than 1 GB.
"""

from __future__ import annotations

import argparse
import json
import platform
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from shard_gym.agents import make_agent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.data.collecting import collect
from shard_gym.cost_models.data.folder import INDEX
from shard_gym.cost_models.data.measurements import load_measurements
from shard_gym.cost_models.data.sampling import PlacementSampler
from shard_gym.cost_models.measured.cache import DamagedCacheWarning, MeasurementCache
from shard_gym.cost_models.neural.storage import NETWORKS, load_cost_model, save_cost_model
from shard_gym.errors import ShardGymError
from shard_gym.evaluation import evaluate
from shard_gym.io.arrays import load_arrays
from shard_gym.io.files import read_json, write_atomically, write_json
from shard_gym.leaderboard.evaluations import EvaluatedAgent, read_evaluation
from shard_gym.leaderboard.race import Measured, Race
from shard_gym.leaderboard.race_files import load_race, write_race
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.submit import EntryInfo, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.suites import load_suite
from shard_gym.suites.own import save_suite
from shard_gym.tables import Workload
from shard_gym.tasks import TaskSuite

SUITE = "mlperf-x8"
MAX_SECONDS, MAX_BYTES = 20, 2**30

REFUSED, SAME, VALID = "error of ShardGym", "the same result", "another valid result"
FOREIGN, SILENT, SLOW, LARGE = "other error", "silent damage", "more than 20 s", "more than 1 GB"
BAD = (FOREIGN, SILENT, SLOW, LARGE)

Damage = Callable[[random.Random, bytes], bytes]


class Subject:
    """A file to damage, and how it is read.

    Attributes:
        name: the kind of file.
        path: the file.
        read: reads it, with all files beside it; returns a value that tells results apart.
        has_checksum: whether any other result than the first is silent damage.
    """

    def __init__(self, name: str, path: Path, read: Callable[[], Any], *, has_checksum: bool) -> None:
        self.name, self.path, self.read, self.has_checksum = name, path, read, has_checksum
        self.content = path.read_bytes()
        self.expected = read()


class TooSlow(Exception):
    """A case took longer than `MAX_SECONDS`."""


# What is damaged


def subjects(folder: Path) -> Iterator[Subject]:
    """One subject of each kind, with files of their own under `folder`."""
    yield from _weights(folder)
    yield _cache(folder / "cache.sqlite")
    yield from _measurements(folder / "costs")
    yield from _entry(folder / "leaderboards")
    yield from _race(folder / "race")
    yield from _documents(folder)


def _weights(folder: Path) -> Iterator[Subject]:
    model = folder / "model.safetensors"
    network = NETWORKS["pooled"]
    save_cost_model(network(network.new_weights(np.random.default_rng(0)), {"hardware": "none"}), model)
    yield Subject("cost model", model, lambda: _arrays(load_cost_model(model).weights), has_checksum=True)
    run = folder / "run"
    options = {"iterations": 2, "measurements": 4, "cost_updates": 5, "queries": 50}

    def resumed() -> Any:
        learner = make_learner("dreamshard", "dlrm-20x4", **options)
        TrainingRun(learner, run, options, resume=True)
        return learner.iteration, learner.true_cost_queries, _arrays(learner.state())

    TrainingRun(make_learner("dreamshard", "dlrm-20x4", **options), run, options).run()
    task = load_suite("dlrm-20x4")[0]

    def placed() -> Any:
        return make_agent(run).place(task).tolist(), _arrays(load_arrays(run / "agent.safetensors", "agent")[0])

    yield Subject("agent", run / "agent.safetensors", placed, has_checksum=True)
    yield Subject("state of training", run / "training.safetensors", resumed, has_checksum=True)
    # Its values are compared with those of the command that resumes, and it holds no others.
    yield Subject("configuration of a run", run / "config.json", resumed, has_checksum=True)


def _arrays(arrays: Any) -> Any:
    return [(name, array.dtype.str, array.shape, array.tobytes()) for name, array in sorted(arrays.items())]


def _cache(path: Path) -> Subject:
    keys = [f"{number:024x}" for number in range(300)]
    cache = MeasurementCache(path)
    for number, key in enumerate(keys):
        cache.put(key, [number + 0.25] * 20)

    def times() -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", DamagedCacheWarning)
            opened = MeasurementCache(path)
            found = [opened.get(key, 20) for key in keys]
            opened._connect().close()
        # A key that is lost is measured again, so only times that differ are damage.
        wrong = [key for number, key in enumerate(keys) if found[number] not in (None, [number + 0.25] * 20)]
        if wrong:
            return "other times", wrong
        if said and not issubclass(said[0].category, DamagedCacheWarning):
            return "other warning", str(said[0].message)
        return "times or nothing"

    return Subject("cache of measurements", path, times, has_checksum=True)


def _measurements(folder: Path) -> Iterator[Subject]:
    sampler = PlacementSampler(Workload(2048), "a100-dgx", 2, 2**30)
    collect(AnalyticalCostModel, folder, sampler, count=12, part_size=6)

    def read() -> Any:
        found = load_measurements(folder)
        return found.index, _arrays(found.costs.data.to_arrays()), _arrays(vars(found.info))

    yield Subject("index of measurements", folder / INDEX, read, has_checksum=True)
    for kind in ("tables", "placements"):
        yield Subject(f"Parquet of {kind}", folder / f"{kind}-0001.parquet", read, has_checksum=True)


def _entry(root: Path) -> Iterator[Subject]:
    folder = EntryFolder(root, "simulated", SUITE, "greedy")
    root.mkdir()
    agent = EvaluatedAgent("size-greedy", False, (evaluate(make_agent("size-greedy"), SUITE),))
    info = EntryInfo("Greedy", ("Ada Example",), "MIT", "https://example.org/code", "a laptop", "0" * 40)
    assert submit(folder, agent, info) == []

    def read() -> Any:
        verified, findings = verify_entry(folder)
        if verified is None:
            raise _Findings("; ".join(map(str, findings)))
        return verified.entry, [[each.tolist() for each in row if each is not None] for row in verified.placements]

    yield Subject("entry.toml", folder.path / "entry.toml", read, has_checksum=False)
    yield Subject("placements.json", folder.path / "placements.json", read, has_checksum=False)


class _Findings(ShardGymError):
    """The findings of an entry."""


def _race(folder: Path) -> Iterator[Subject]:
    suite = load_suite(SUITE)
    task = suite[0]
    placements = {name: [make_agent(name).place(task)] for name in ("size-greedy", "dim-greedy")}
    rng = np.random.default_rng(0)
    measured = tuple(
        Measured(number, 0, name, 0.5, rng.uniform(1, 2, (5, task.num_devices, 4)))
        for number in range(3)
        for name in placements
    )
    settings = {"layout": "parallel", "batch_size": None}
    write_race(folder, Race(suite, "a100", "measured-v2", settings, placements, measured, np.array([99.0])))

    def read() -> Any:
        race = load_race(folder, suite)
        return race.results(), race.hardware, race.cost_model, dict(race.settings), race.costs_ms().tolist()

    yield Subject("race.json", folder / "race.json", read, has_checksum=True)
    yield Subject("rounds.parquet", folder / "rounds.parquet", read, has_checksum=True)


def _documents(folder: Path) -> Iterator[Subject]:
    suite = folder / "suite.json"
    tasks = load_suite("dlrm-20x4")
    save_suite(suite, TaskSuite("mine", tasks.tasks[:2], "test"))

    def loaded() -> Any:
        found = load_suite(suite)
        return found.sha256, [(task.name, _arrays(vars(task.topology.cluster()))) for task in found]

    yield Subject("suite.json", suite, loaded, has_checksum=False)
    path = folder / "evaluation.json"
    write_json(path, evaluate(make_agent("size-greedy"), SUITE).to_json())
    yield Subject("evaluation.json", path, lambda: read_evaluation(path), has_checksum=False)


# How it is damaged


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
    """Text with a value of a line exchanged, or a line removed, doubled or moved; of other files a block overwritten."""
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


def change_row(rng: random.Random, path: Path) -> None:
    """A row of a cache with other times, or without its checksum."""
    value = rng.choice(["[NaN]", "[-1.0]", "[]", "null", "[1]", "x", "[1e999]", "[[1]]"])
    column = rng.choice(["ms", "ms", "sha256", "key"])
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE times SET {column} = ? WHERE key = ?", (value, f"{rng.randrange(300):024x}"))
    connection.close()


# How it ends


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


def outcome(subject: Subject) -> tuple[str, str]:
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
    return (SILENT, str(found)[:500]) if subject.has_checksum else (VALID, "")


def _same(found: Any, expected: Any) -> bool:
    return repr(found) == repr(expected) if not isinstance(found, tuple) else str(found) == str(expected)


def damage(subject: Subject, rng: random.Random) -> str:
    """Damage the file; the name of the way."""
    way = rng.choice(DAMAGES)
    if subject.path.suffix == ".sqlite" and rng.random() < 0.3:
        change_row(rng, subject.path)
        return change_row.__name__
    write_atomically(subject.path, way(rng, subject.content))
    return way.__name__


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
            way = damage(subject, rng)
            ended, detail = outcome(subject)
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
    rows += [(name, *(str(each[column]) for column in columns)) for name, each in counts.items()]
    total = sum(counts.values(), Counter())
    rows.append(("all", *(str(total[column]) for column in columns)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
