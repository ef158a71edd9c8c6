"""Many runs in parallel processes, each with one thread.

Not concurrent.futures: if a process of its pool dies (out of memory, say), all pending runs fail and none is named.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

from shard_gym.errors import RunsFailedError, ShardGymError
from shard_gym.experiments.runs import Run, perform, record_path
from shard_gym.text import counted

OnDone = Callable[[Run], None]
"""Called whenever a run has ended, with a record or without."""

_THREADS = "OMP_NUM_THREADS"


def perform_all(runs: Iterable[Run], folder: Path, jobs: int = 1, on_done: OnDone = lambda run: None) -> None:
    """Make the records of `runs` that are missing, in at most `jobs` processes at a time.

    Runs that share a training are made one after the other by one process. When this function ends, by an exception
    too, so do its processes.

    Raises:
        RunsFailedError: some runs failed; the message names each and says why.
    """
    waiting, working, failures = deque(_by_training(runs, folder)), list[_Worker](), list[str]()
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                working.append(_Worker(waiting.popleft(), folder))
            ready = wait([worker.errors for worker in working])
            for worker in [worker for worker in working if worker.errors in ready]:
                for run, error in worker.ended():
                    failures += [f"{run}: {error}"] if error else []
                    on_done(run)
                if not worker.left:
                    working.remove(worker)
                    worker.process.join()
    finally:
        for worker in working:
            worker.process.terminate()
            worker.process.join()
    if failures:
        raise RunsFailedError(
            "\n".join([f"{counted(len(failures), 'run')} failed; the records of the others are written.", *failures])
        )


def _by_training(runs: Iterable[Run], folder: Path) -> list[list[Run]]:
    """The runs without a record, each once, grouped by training."""
    groups: dict[str, list[Run]] = {}
    for run in dict.fromkeys(runs):
        if not record_path(run, folder).exists():
            groups.setdefault(run.training_key, []).append(run)
    return list(groups.values())


class _Worker:
    """A process that performs `runs` in order and sends, for each, its error message or an empty text.

    Attributes:
        process: the process.
        errors: where the messages arrive.
        left: the runs without a message.
    """

    def __init__(self, runs: list[Run], folder: Path) -> None:
        context = get_context("spawn")
        self.left = deque(runs)
        self.errors, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(runs, folder, sender), daemon=True)
        with _one_thread():
            self.process.start()
        sender.close()  # the process has the only other copy, so its end closes the pipe

    def ended(self) -> list[tuple[Run, str]]:
        """The next run that has ended, with its error message; all runs left if the process has died. Blocks."""
        try:
            error = self.errors.recv()
        except EOFError:
            self.process.join()
            died = f"its process ended with exit code {self.process.exitcode}."
            lost = [(run, died) for run in self.left]
            self.left.clear()
            return lost
        return [(self.left.popleft(), error)]


def _work(runs: list[Run], folder: Path, errors: Connection) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent terminates its workers
    Thread(target=_end_with_parent, daemon=True).start()
    for run in runs:
        try:
            perform(run, folder)
        except ShardGymError as error:
            errors.send(str(error))
        except Exception:
            errors.send(f"a bug:\n{traceback.format_exc()}")
        else:
            errors.send("")


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended, even if the parent was killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started inside compute on one thread."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
