"""Many runs in processes of their own, each with one thread."""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread

from shard_gym.errors import RunsFailedError, ShardGymError
from shard_gym.experiments.runs import Run, perform, record_path
from shard_gym.text import counted

OnDone = Callable[[Run], None]
"""Called whenever a run has ended, well or not."""

_THREADS = "OMP_NUM_THREADS"


def perform_all(runs: Iterable[Run], folder: Path, jobs: int = 1, on_done: OnDone = lambda run: None) -> None:
    """Make the records of `runs` that are missing, in `jobs` processes at a time.

    Runs that share a training are made by one process, one after the other.

    Raises:
        RunsFailedError: some could not be made; the message names each and says why.
    """
    waiting, working, failed = deque(_shares(runs, folder)), list[_Worker](), list[str]()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(_Worker.start(waiting.popleft(), folder))
            wait([worker.messages for worker in working])
            for worker in [worker for worker in working if worker.messages.poll()]:
                if not worker.listen(on_done, failed):
                    working.remove(worker)
    finally:
        for worker in working:
            worker.process.terminate()
            worker.process.join()
    if failed:
        raise RunsFailedError(
            "\n".join([f"{counted(len(failed), 'run')} failed; the records of the others are written.", *failed])
        )


def _shares(runs: Iterable[Run], folder: Path) -> list[list[Run]]:
    """The runs without a record, each once, those with the same training together."""
    shares: dict[str, list[Run]] = {}
    for run in dict.fromkeys(runs):
        if not record_path(run, folder).exists():
            shares.setdefault(run.training_key, []).append(run)
    return list(shares.values())


@dataclass
class _Worker:
    """A process at work.

    Attributes:
        process: it.
        messages: for each run done, in order, why it failed: nothing if it did not.
        left: the runs it has still to do.
    """

    process: SpawnProcess
    messages: Connection
    left: deque[Run]

    @staticmethod
    def start(runs: list[Run], folder: Path) -> _Worker:
        """One more process, for `runs`."""
        context = get_context("spawn")
        messages, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(runs, folder, sender), daemon=True)
        with _one_thread():
            process.start()
        sender.close()  # so that the end of the process is the end of the messages
        return _Worker(process, messages, deque(runs))

    def listen(self, on_done: OnDone, failed: list[str]) -> bool:
        """Take one message; whether there may be more."""
        try:
            error = self.messages.recv()
        except EOFError:
            self.process.join()
            for run in self.left:  # it died
                failed.append(f"{run}: its process ended with exit code {self.process.exitcode}.")
                on_done(run)
            return False
        run = self.left.popleft()
        if error:
            failed.append(f"{run}: {error}")
        on_done(run)
        return True


def _work(runs: list[Run], folder: Path, sender: Connection) -> None:
    """What a worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    for run in runs:
        try:
            perform(run, folder)
        except ShardGymError as error:
            sender.send(str(error))
        except Exception:
            sender.send(f"a bug:\n{traceback.format_exc()}")
        else:
            sender.send("")


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however that came."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started in here compute on one thread."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
