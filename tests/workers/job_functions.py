"""What the tests of jobs call in other processes, which find it by its name: this folder is on their path."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shard_gym.common.errors import InvalidOptionError


def squared(value: int) -> dict[str, Any]:
    return {"value": value**2, "process": os.getpid()}


def killed(job: tuple[str, int, int]) -> int:
    """Job 1 kills its process the first `times` times; `folder` counts them."""
    folder, value, times = job
    time.sleep(0.2)
    began = len(list(Path(folder).iterdir()))
    if value == 1 and began < times:
        (Path(folder) / str(began)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value**2


def with_processes_of_its_own(value: int) -> int:
    with get_context("spawn").Pool(1) as pool:
        return sum(pool.map(abs, [value, -value]))


def environment(value: int) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def appended(values: list[int]) -> list[int]:
    values.append(1)
    return values


def killed_with_a_child(folder: str) -> None:
    """Its child keeps what the process has open."""
    child = get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    (Path(folder) / str(child.pid)).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def failing(value: int) -> int:
    if value == 2:
        raise InvalidOptionError("2 is too many.")
    return value


def broken(value: int) -> float:
    return 1 / value


def slow(folder: str) -> None:
    """Tells its process, and then takes a minute."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)


def first_is_quick(job: tuple[str, int]) -> None:
    """Job 0 waits until another has begun, which takes a minute."""
    folder, value = job
    if value:
        slow(folder)
    while not list(Path(folder).iterdir()):
        time.sleep(0.05)


def _began(job: tuple[str, int]) -> int:
    folder, value = job
    (Path(folder) / f"{value}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return value


def exits(job: tuple[str, int]) -> int:
    if _began(job) == 1:
        raise SystemExit(3)
    return 0


def ended(job: tuple[str, int]) -> None:
    os._exit(7)


def interrupted(job: tuple[str, int]) -> int:
    if _began(job) == 1:
        raise KeyboardInterrupt
    return 0


class Unreadable:
    """A result that pickles, and cannot be read again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def unreadable(job: tuple[str, int]) -> Any:
    return Unreadable() if _began(job) == 1 else 0
