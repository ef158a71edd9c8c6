"""The slices of the day: which commands each one runs; the standard library only, the commands import the rest."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tools.gpu_day.layout import ROOT, shard_gym
from tools.gpu_day.parcels import pack

COLLECT, FIT, RACE = "collect", "fit", "race"
STATE = (COLLECT, FIT, RACE)
"""Folders of a call's state; each comes back as an archive."""

TESTS = "tests/cost_models/measured/test_cuda.py"

GRACE_S = 15.0
"""Between asking a command to end and ending it."""

REPORT_S = 60.0
"""Left for the report when networks are fitted."""

COLLECT_COUNT = 910
"""Placements: 3,000 loads of one device, at 3.3 devices with tables in each placement."""

HEURISTICS = ("random", "size-greedy", "dim-greedy", "lookup-greedy", "size-lookup-greedy", "cost-greedy")


@dataclass(frozen=True)
class Sizes:
    """What the slices measure."""

    suite: str
    batch_size: int
    devices: int
    memory_gib: float
    collect_count: int
    steps: int  # of a fit; 0 for the default
    entries: tuple[str, ...]
    tasks: int  # of the race, at most
    rounds: int


FULL = Sizes("gpu-40x4", 65_536, 4, 32.0, COLLECT_COUNT, 0, (*HEURISTICS, "local-search"), 20, 3)
REHEARSAL = Sizes("cpu-20x2", 2_048, 2, 0.1, 40, 60, HEURISTICS[:2], 2, 1)


@dataclass
class Day:
    """Where a call works, and until when.

    Attributes:
        state: folder of what later slices and calls need.
        out: folder of what comes back.
        device: "cuda" or "cpu".
        rehearse: whether everything is small.
        environment: of the commands.
        log: everything that commands print.
        deadline: on the monotonic clock, for the slice at hand.
    """

    state: Path
    out: Path
    device: str
    rehearse: bool
    environment: dict[str, str]
    log: TextIO
    deadline: float = 0.0

    @property
    def sizes(self) -> Sizes:
        """What is measured."""
        return REHEARSAL if self.rehearse else FULL

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        """Print a line, here and in the log."""
        for stream in (sys.stdout, self.log):
            stream.write(text + "\n")
            stream.flush()

    def run(self, command: Sequence[str], limit_s: float | None = None) -> tuple[int, str]:
        """Run a command in the checkout until the deadline, or for `limit_s`; its exit code and all that it printed.

        A command that is not done by then is asked to end (SIGTERM), and ended after `GRACE_S`.
        """
        self.say(f"\n$ {shlex.join(command)}")
        begin, printed = time.monotonic(), []
        end = self.deadline if limit_s is None else min(self.deadline, begin + limit_s)
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None

        def copy(lines: TextIO) -> None:
            for line in lines:
                printed.append(line)
                self.say(line.rstrip("\n"))

        reader = threading.Thread(target=copy, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        reader.join(GRACE_S)
        self.say(f"[exit code {process.returncode} after {time.monotonic() - begin:.0f} s]")
        return process.returncode, "".join(printed)

    def keep(self, name: str) -> None:
        """Put a folder of the state among what comes back."""
        if (self.state / name).is_dir():
            files = pack(self.state / name, self.out)
            self.say(f"Packed: {', '.join(f'{path.name} ({path.stat().st_size / 1e6:.2f} MB)' for path in files)}.")


Slice = Callable[[Day], bool]
"""Does a slice; whether the others are worth their time afterwards."""


def check(day: Day) -> bool:
    """`shard-gym doctor`, what the driver says, and the tests that need a GPU."""
    if day.device == "cuda" and shutil.which("nvidia-smi"):
        day.run(["nvidia-smi", "-q", "-d", "CLOCK,MEMORY,POWER"], 30.0)
    _, printed = day.run(shard_gym("doctor", "--json"), 180.0)
    try:
        works = day.device in json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["works_on"]
    except (ValueError, KeyError):
        works = False
    if not works:
        day.say(f"FBGEMM does not work on {day.device} here, so nothing can be measured. The reason is above.")
        return False
    code, _ = day.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS])
    if code:
        day.say("Tests failed; read why before a measurement is believed.")
    return True


def experiments(day: Day) -> bool:
    """The points of the experiments that no earlier call has measured."""
    earlier = day.state / "experiments"
    earlier.mkdir(parents=True, exist_ok=True)
    path = day.out / f"experiments-{len(list(earlier.glob('*.parquet')))}.parquet"
    command = [sys.executable, "-m", "tools.gpu_day.experiments", "--out", str(path), "--earlier", str(earlier)]
    command += ["--device", day.device, "--minutes", f"{max(day.left_s - 2 * GRACE_S, 1.0) / 60:.2f}"]
    day.run([*command, *["--rehearse"] * day.rehearse])
    if path.exists():
        shutil.copy(path, earlier)
    return True


def collect(day: Day) -> bool:
    """Random placements, one GPU standing for all devices; each number of them is a sample of all, so any suffices."""
    sizes = day.sizes
    day.run(
        shard_gym(
            "collect",
            *("--out", day.state / COLLECT),
            *("--hardware", day.device),
            *("--layout", "sequential"),
            *("--devices", sizes.devices),
            *("--batch-size", sizes.batch_size),
            *("--memory-gib", sizes.memory_gib),
            *("--weight-dtype", "fp32"),
            *("--optimizer", "rowwise_adagrad"),
            *("--count", sizes.collect_count),
            *("--budget", f"{max(day.left_s - 2 * GRACE_S, 1.0):.0f}s"),
        )
    )
    day.keep(COLLECT)
    return True


def fit(day: Day) -> bool:
    """Networks, the calibration on training tables and its report on test tables, and DreamShard; needs no GPU."""
    data, folder, sizes = day.state / COLLECT, day.state / FIT, day.sizes
    if not data.is_dir():
        day.say("There are no measurements to fit to; do the slice collect first, or pack what it returned.")
        return True
    # What the race needs comes first; the networks are written one by one, so the report shows those that are done.
    options = ["--option", f"cost_updates={sizes.steps}"] if sizes.steps else []
    training = ["--agent", "dreamshard", "--suite", sizes.suite, "--data", data, "--no-evaluate"]
    if _trained(day) is None:
        day.run(shard_gym("train", *training, "--out", folder / "dream-search", "--resume", *options))
    models = folder / "models"
    steps = ["--steps", sizes.steps] if sizes.steps else []
    day.run(shard_gym("fit-cost-model", data, "--out", models, *steps), day.left_s - REPORT_S)
    fitted = sorted(models.glob("*.safetensors"))
    given = ["--models", *fitted] if fitted else []
    pictures = [] if _has("matplotlib") else ["--no-pictures"]
    day.run(shard_gym("report-cost-model", data, *given, "--out", folder / "report", *pictures))
    day.keep(FIT)
    return True


def race(day: Day) -> bool:
    """Heuristics, local search and DreamShard on the suite, one GPU standing for all devices.

    A race of one task comes first and tells how many tasks the time suffices for; one that is there is continued.
    """
    sizes, folder = day.sizes, day.state / RACE
    tasks = _tasks_of(folder)
    if not tasks:
        begin = time.monotonic()
        code, _ = _race(day, day.state / "trial", 1, 1)
        if code:
            day.say("The first race failed, so there is no other one.")
            return True
        each_s = time.monotonic() - begin
        tasks = int(min(max(day.left_s / (sizes.rounds * each_s), 1), sizes.tasks))
        day.say(f"A round of one task takes {each_s:.0f} s, so {tasks} of {sizes.tasks} tasks are raced.")
    _race(day, folder, tasks, sizes.rounds)
    day.keep(RACE)
    return True


def _race(day: Day, folder: Path, tasks: int, rounds: int) -> tuple[int, str]:
    trained = _trained(day)
    entries = [*day.sizes.entries, *([f"dream-search={trained}"] if trained else [])]
    return day.run(
        shard_gym(
            "race",
            *("--suite", day.sizes.suite),
            *(word for entry in entries for word in ("--entry", entry)),
            *("--out", folder),
            *("--device", day.device),
            *("--layout", "sequential"),
            *("--tasks", tasks),
            *("--rounds", rounds),
        )
    )


def _trained(day: Day) -> Path | None:
    """The folder of the trained agent, if it is trained."""
    folder = day.state / FIT / "dream-search"
    return folder if (folder / "agent.safetensors").exists() else None


def _tasks_of(race: Path) -> int:
    """How many tasks the race in that folder has; 0 if there is none."""
    path = race / "race.json"
    return len(json.loads(path.read_text())["tasks"]) if path.exists() else 0


def artefacts(day: Day) -> bool:
    """Everything so far, of all calls, in one folder of few files."""
    for name in STATE:
        day.keep(name)
    for path in sorted((day.state / "experiments").glob("*.parquet")):
        shutil.copy(path, day.out)
    return True


SLICES: dict[str, Slice] = {each.__name__: each for each in (check, experiments, collect, fit, race, artefacts)}


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
