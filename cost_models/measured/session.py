"""The parent's end: a session of worker processes that are started, told, waited for with a limit, and put away."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_gym.cost_models.measured.worker import WorkerConfig
from shard_gym.errors import DeviceMemoryError, MeasurementError, MeasurementTimeoutError, WorkerDiedError

WORKER = "shard_gym.cost_models.measured.worker"
START_TIMEOUT_S = 120.0
"""Importing torch and FBGEMM on a busy machine with a cold disk."""

GOODBYE_S = 2.0
"""A worker that is told to go has so long; then it is killed."""

GRACE_S = 0.5
"""When one worker reports that its exchange broke, the one that broke it is found within this."""

Command = Mapping[str, Any]


@dataclass
class _Process:
    """One worker, as its parent sees it."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    log: Path
    unread: bytes = b""


class Session:
    """Worker processes that stand for devices.

    They are started by the first `ask`, and again by the next one after a failure or after `close`. A copy of this
    object in a forked process starts workers of its own.

    Args:
        device: "cpu" or "cuda".
        size: workers.
        threads: of torch in each worker, on a CPU.
        timeout_s: limit of one `ask`.
        recorded: file of recorded lookups; None to draw them.
    """

    def __init__(self, device: str, size: int, *, threads: int, timeout_s: float, recorded: str | None = None) -> None:
        self.device = device
        self.size = size
        self._threads = threads
        self._timeout_s = timeout_s
        self._recorded = recorded
        self._workers: list[_Process] = []
        self._owner = os.getpid()
        self._joined: set[int] = set()
        self._finalizer: weakref.finalize[..., Session] | None = None

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers that run; empty before the first `ask` and after a failure."""
        return [worker.process.pid for worker in self._workers] if self._owner == os.getpid() else []

    def ask(self, commands: Sequence[Command], subjects: Sequence[str], *, join: int = 0) -> list[dict[str, Any]]:
        """Give each of the first workers its command, all at once; their answers.

        Args:
            commands: at most one for each worker.
            subjects: what each is about, for error messages: "device 1 (12 tables, 3.2 GiB)".
            join: devices whose group the commands need; 0 for none.

        Raises:
            WorkerDiedError: a worker ended.
            DeviceMemoryError: a device has not enough memory.
            MeasurementTimeoutError: there was no answer in time.
            MeasurementError: a worker reported another error.
        """
        try:
            self._start()
            if join and join not in self._joined:
                everybody = [f"device {rank}" for rank in range(self.size)]
                self._exchange([{"do": "join", "devices": join}] * self.size, everybody, self._timeout_s)
                self._joined.add(join)
            return self._exchange(commands, subjects, self._timeout_s)
        except BaseException:  # Ctrl-C too: nobody may read an answer to a question that was given up
            self.close(goodbye_s=0.0)
            raise

    def close(self, goodbye_s: float = GOODBYE_S) -> None:
        """End all workers and remove their files; nothing happens if there are none."""
        if self._finalizer is not None and self._owner == os.getpid():
            self._finalizer.detach()
            _put_away(self._workers, self._folder, self._owner, goodbye_s)
        self._workers, self._finalizer, self._joined = [], None, set()

    # Inside

    def _start(self) -> None:
        if self._owner != os.getpid():  # forked: those workers are the parent's
            if self._finalizer is not None:
                self._finalizer.detach()
            for worker in self._workers:
                worker.link.close()
            self._workers, self._finalizer, self._joined, self._owner = [], None, set(), os.getpid()
        if self._workers:
            return
        self._folder = tempfile.mkdtemp(prefix="shard-gym-")
        self._finalizer = weakref.finalize(self, _put_away, self._workers, self._folder, self._owner, GOODBYE_S)
        for rank in range(self.size):
            self._workers.append(self._new_worker(rank))
        subjects = [f"device {rank}" for rank in range(self.size)]
        self._exchange([{"do": "start"}] * self.size, subjects, max(self._timeout_s, START_TIMEOUT_S))

    def _new_worker(self, rank: int) -> _Process:
        ours, theirs = socket.socketpair()
        limit = 2 * self._timeout_s  # of a collective; the parent notices earlier
        link = theirs.fileno()
        config = WorkerConfig(rank, self.size, self.device, self._folder, link, self._threads, limit, self._recorded)
        log = Path(self._folder) / f"worker-{rank}.log"
        with theirs, log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, config.to_argument()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(self._threads, self.device),
                pass_fds=[link],
                start_new_session=True,  # Ctrl-C is for the parent, which then puts the workers away
            )
        return _Process(process, ours, log)

    def _exchange(self, commands: Sequence[Command], subjects: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + limit_s
        asked = self._workers[: len(commands)]
        for rank, (worker, command) in enumerate(zip(asked, commands, strict=True)):
            worker.link.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                worker.link.sendall(json.dumps(dict(command)).encode() + b"\n")
            except TimeoutError:
                raise self._late([rank], subjects, limit_s) from None
            except OSError:
                raise self._death(rank, subjects) from None
        return self._answers(asked, subjects, deadline, limit_s)

    def _answers(
        self, asked: Sequence[_Process], subjects: Sequence[str], deadline: float, limit_s: float
    ) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        failed: tuple[int, dict[str, Any]] | None = None
        while len(answers) < len(asked):
            waiting = [rank for rank in range(len(asked)) if rank not in answers]
            links = [asked[rank].link for rank in waiting]
            ready = select.select(links, [], [], max(deadline - time.monotonic(), 0))[0]
            if not ready:
                raise self._error(*failed, subjects) if failed else self._late(waiting, subjects, limit_s)
            for rank in waiting:
                if asked[rank].link not in ready:
                    continue
                answer = _line(asked[rank])
                if answer is None:
                    continue
                if not answer:
                    raise self._death(rank, subjects)
                answers[rank] = answer
                if "error" in answer and (failed is None or answer["error"] == "memory"):
                    # The others may wait for this one for ever; and whoever broke its exchange shows soon.
                    failed = rank, answer
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if failed:
            raise self._error(*failed, subjects)
        return [answers[rank]["ok"] for rank in range(len(asked))]

    def _error(self, rank: int, answer: Mapping[str, Any], subjects: Sequence[str]) -> MeasurementError:
        if answer["error"] == "memory":
            return DeviceMemoryError(
                f"There is not enough memory for {subjects[rank]}: {answer['message']}. "
                "Place fewer or smaller tables on it, or measure with a smaller batch_size."
            )
        return MeasurementError(
            f"Measuring {subjects[rank]} failed: {answer['message']}. `shard-gym doctor` says whether torch and FBGEMM "
            "work on this machine."
        )

    def _death(self, rank: int, subjects: Sequence[str]) -> WorkerDiedError:
        worker = self._workers[rank]
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
        said = f" Its last words: {last[0][:300]!r}." if last else ""
        return WorkerDiedError(
            f"The worker of {subjects[rank]} {how} during a measurement.{said} The next measurement starts new workers."
        )

    def _late(self, waiting: Sequence[int], subjects: Sequence[str], limit_s: float) -> MeasurementTimeoutError:
        named = ", ".join(subjects[rank] for rank in waiting)
        return MeasurementTimeoutError(
            f"No answer within {limit_s:g} s from {named}. Either a collective is stuck, or there is too much to "
            "measure: raise timeout_s, or lower batch_size or iterations."
        )


def _line(worker: _Process) -> dict[str, Any] | None:
    """The worker's answer; None while it is not complete, empty if there will be none."""
    try:
        more = worker.link.recv(1 << 20)
    except OSError:
        more = b""
    if not more:
        return {}
    worker.unread += more
    if not worker.unread.endswith(b"\n"):
        return None
    line, worker.unread = worker.unread, b""
    answer: dict[str, Any] = json.loads(line)
    return answer


def _environment(threads: int, device: str) -> dict[str, str]:
    """That of this process, with what the workers need: to find what this process finds, and each other."""
    extra = {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path)}
    if device == "cpu":
        extra["OMP_NUM_THREADS"] = str(threads)
        if sys.platform == "linux":
            extra["GLOO_SOCKET_IFNAME"] = "lo"  # all workers are here; a host name may lead nowhere
    return {**os.environ, **extra}


def _put_away(workers: list[_Process], folder: str, owner: int, goodbye_s: float) -> None:
    """End the workers and remove their folder; a forked child leaves its parent's alone."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.link.close()
    end = time.monotonic() + goodbye_s
    for worker in workers:
        try:
            worker.process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            worker.process.kill()  # works on a stopped process too
            worker.process.wait()
    shutil.rmtree(folder, ignore_errors=True)
