"""`Session`: worker processes that stand for devices, as their parent starts, commands and terminates them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from shard_gym.common.errors import DeviceMemoryError, MeasurementError, MeasurementTimeoutError, WorkerDiedError
from shard_gym.cost_models.measured.cpus import CpuShare
from shard_gym.cost_models.measured.job import FAILED, OUT_OF_MEMORY, Answer, Command, to_line

WORKER = "shard_gym.cost_models.measured.worker"
START_TIMEOUT_S = 120.0  # time for importing torch and FBGEMM on a busy machine with a cold disk
EXIT_S = 2.0  # time for a worker to end by itself after its socket was closed; then it is killed
GRACE_S = 0.5  # time after an error of a worker in which the worker that caused it may be found

_KEEP_MEMORY = {name: str(2**40) for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")}
"""Settings of glibc with which a worker on a CPU keeps the memory that one measurement frees for the next one. Getting
new pages takes longer than a measurement on some virtual machines: 0.6 s for 0.5 GiB against 0.1 s (November 2026)."""

DOCTOR = "`shard-gym doctor` says whether torch and FBGEMM work on this machine."


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    link: socket.socket
    log: Path


class Session:
    """Worker processes that stand for devices; with `recorded`, a file, lookups are not drawn.

    The first `ask` starts them, with so many `threads` of torch on a CPU, and so does the next one after a failure or
    after `close`. A copy of this object in a forked process starts workers of its own. `timeout_s` limits one `ask`.
    """

    def __init__(self, device: str, size: int, *, threads: int, timeout_s: float, recorded: str | None = None) -> None:
        self.device = device
        self.size = size
        self._threads = threads
        self._timeout_s = timeout_s
        self._recorded = recorded
        self._workers: list[_Process] = []
        self._owner = os.getpid()
        self._joined: set[tuple[int, int]] = set()
        self._finalizer: weakref.finalize[..., Session] | None = None
        self._share: CpuShare | None = None

    @property
    def pids(self) -> list[int]:
        """Process numbers of the running workers; empty before the first `ask` and after a failure."""
        return [worker.process.pid for worker in self._workers] if self._owner == os.getpid() else []

    def ask(
        self, commands: Sequence[Command], subjects: Sequence[str], *, join: tuple[int, int] | None = None
    ) -> list[Any]:
        """Give each of the first workers its command, all at once; what they return.

        Args:
            commands: at most one for each worker.
            subjects: what each command is about, for error messages: "device 1 (12 tables, 3.2 GiB)".
            join: devices, and hosts that they stand for, whose groups the commands need; None for none.

        Raises:
            WorkerDiedError, MeasurementTimeoutError: a worker ended, or gave no answer in time.
            DeviceMemoryError, MeasurementError: a device has not enough memory, or a worker reported another error.
        """
        try:
            self._start()
            if join is not None and join not in self._joined:
                devices, hosts = join
                self._ask_all([("join", {"devices": devices, "hosts": hosts})] * self.size, self._timeout_s)
                self._joined.add(join)
            return self._send_and_receive(commands, subjects, self._timeout_s)
        except BaseException:  # Ctrl-C too: workers are terminated, so stale answers are never read
            self.close(exit_s=0.0)
            raise

    def close(self, exit_s: float = EXIT_S) -> None:
        """End all workers and remove their files; nothing happens if there are none, or if they are a parent's."""
        if self._finalizer is not None:
            self._finalizer.detach()
            _terminate(self._workers, self._folder, self._owner, exit_s)
        self._workers, self._finalizer, self._joined, self._owner = [], None, set(), os.getpid()
        self._share = None

    def _start(self) -> None:
        if self._owner != os.getpid():  # forked: those workers are the parent's
            self.close()
        if self._workers:
            return
        self._folder = tempfile.mkdtemp(prefix="shard-gym-")
        self._finalizer = weakref.finalize(self, _terminate, self._workers, self._folder, self._owner, EXIT_S)
        for rank in range(self.size):
            self._workers.append(self._new_worker(rank))
        if self.device == "cpu":
            self._pin()
        common = {
            "device": self.device,
            "size": self.size,
            "threads": self._threads,
            "timeout_s": 2 * self._timeout_s,  # of a collective; this process notices earlier
            "recorded": self._recorded,
        }
        commands: list[Command] = [("start", {**common, "rank": rank}) for rank in range(self.size)]
        self._ask_all(commands, max(self._timeout_s, START_TIMEOUT_S))

    def _pin(self) -> None:
        """Give every worker CPUs of its own, so that its rows stay in their caches; not if there are too few CPUs."""
        self._share = CpuShare(self.size * self._threads)
        if self._share.cpus:
            for rank, worker in enumerate(self._workers):
                own = self._share.cpus[rank * self._threads : (rank + 1) * self._threads]
                with suppress(OSError):  # it has ended already, which `ask` notices; or the system does not allow it
                    os.sched_setaffinity(worker.process.pid, own)

    def _new_worker(self, rank: int) -> _Process:
        ours, theirs = socket.socketpair()
        log = Path(self._folder) / f"worker-{rank}.log"
        with theirs, log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(theirs.fileno()), self._folder],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(self._threads, self.device),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches the parent only, which then terminates the workers
            )
        return _Process(process, ours, log)

    def _ask_all(self, commands: Sequence[Command], limit_s: float) -> None:
        self._send_and_receive(commands, [f"device {rank}" for rank in range(self.size)], limit_s)

    def _send_and_receive(self, commands: Sequence[Command], subjects: Sequence[str], limit_s: float) -> list[Any]:
        deadline = time.monotonic() + limit_s
        asked = self._workers[: len(commands)]
        for rank, (worker, command) in enumerate(zip(asked, commands, strict=True)):
            worker.link.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                worker.link.sendall(to_line(command))
            except TimeoutError:
                raise _timeout_error([subjects[rank]], limit_s) from None
            except OSError:
                raise _death_error(worker, subjects[rank]) from None
        answers: dict[int, Answer] = {}
        failed: MeasurementError | None = None
        while len(answers) < len(asked):
            waiting = [rank for rank in range(len(asked)) if rank not in answers]
            links = [asked[rank].link for rank in waiting]
            ready = wait(links, max(deadline - time.monotonic(), 0))
            if not ready:
                raise failed or _timeout_error([subjects[rank] for rank in waiting], limit_s)
            for rank in waiting:
                if asked[rank].link not in ready:
                    continue
                answers[rank] = _received(asked[rank], subjects[rank], limit_s)
                if answers[rank][0] == OUT_OF_MEMORY or (answers[rank][0] == FAILED and failed is None):
                    # The others may wait for this one forever. A worker that died may be the cause; it shows soon.
                    failed = _reported_error(answers[rank], subjects[rank])
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if failed:
            raise failed
        return [answers[rank][1] for rank in range(len(asked))]


def _received(worker: _Process, subject: str, limit_s: float) -> Answer:
    try:
        with worker.link.makefile("rb") as answers:
            line = answers.readline()
            if not line.endswith(b"\n"):
                raise EOFError
    except TimeoutError:
        raise _timeout_error([subject], limit_s) from None
    except (EOFError, OSError):
        raise _death_error(worker, subject) from None
    kind, content = json.loads(line)
    return kind, content


def _reported_error(answer: Answer, subject: str) -> MeasurementError:
    kind, message = answer
    if kind == OUT_OF_MEMORY:
        return DeviceMemoryError(
            f"There is not enough memory for {subject}: {message}. "
            "Place fewer or smaller tables on it, or measure with a smaller batch_size."
        )
    return MeasurementError(f"Measuring {subject} failed: {message}. {DOCTOR}")


def _death_error(worker: _Process, subject: str) -> WorkerDiedError:
    try:
        code: int | None = worker.process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        code = None
    how = "closed its connection" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += ", as Linux does when memory runs out"
    last = worker.log.read_text(errors="replace").strip().splitlines()[-1:]
    output = f" Its last output: {last[0][:300]!r}." if last else ""
    return WorkerDiedError(
        f"The worker of {subject} {how} during a measurement.{output} The next measurement starts new workers."
    )


def _timeout_error(subjects: Sequence[str], limit_s: float) -> MeasurementTimeoutError:
    return MeasurementTimeoutError(
        f"No answer within {limit_s:g} s from {', '.join(subjects)}. Either a collective is stuck, or there is too "
        "much to measure: raise timeout_s, or lower batch_size or iterations."
    )


def _environment(threads: int, device: str) -> dict[str, str]:
    """The environment of this process, with what workers need to import the same packages and to find each other."""
    extra = {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
    if device == "cpu":
        extra["OMP_NUM_THREADS"] = str(threads)
        if sys.platform == "linux":
            extra["GLOO_SOCKET_IFNAME"] = "lo"  # all workers are on this machine; its host name may not resolve
        extra |= _KEEP_MEMORY
    return {**os.environ, **extra}


def _terminate(workers: list[_Process], folder: str, owner: int, exit_s: float) -> None:
    """End the workers and remove their folder; a forked child only closes its links, because they are the parent's."""
    for worker in workers:
        worker.link.close()
    if os.getpid() != owner:
        return
    end = time.monotonic() + exit_s
    for worker in workers:
        try:
            worker.process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            worker.process.kill()  # ends a stopped process too
            worker.process.wait()
    shutil.rmtree(folder, ignore_errors=True)
