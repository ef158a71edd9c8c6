"""Jobs: one function called with many values, in this process, in others of this machine, or on a Ray cluster.

The answers are the same in all three: a job gets nothing but its value, and processes have one OpenMP thread each.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import platform
import signal
import socket
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Protocol
from urllib.parse import urlsplit

from shard_gym.common.checks import checked_count
from shard_gym.common.errors import InvalidOptionError, JobError, ShardGymError, missing_extra, short_repr
from shard_gym.common.system import usable_cpus

AUTO, CLIENT = "auto", "ray://"
NO_CLUSTER = "Could not find any running Ray instance"  # the error of `ray.init` where none runs
ANSWERS_IN = 5.0
"""Seconds that the head of a cluster has to answer; Ray itself asks for half a minute."""

LOOKED_AFTER = 1.0
"""Seconds after which a silent process is looked after: one that it started may hold its pipe when it is dead."""

SAME = "Install the same ShardGym, and what it needs, on all nodes of the cluster."

Function = Callable[[Any], Any]
"""What a job calls: a function at the top of a module, because other processes find it there by its name."""


class Jobs(Protocol):
    """Where jobs run."""

    @property
    def cluster(self) -> str | None:
        """The Ray cluster; None for processes of this machine, which see its files."""
        ...

    def run(self, function: Function, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """See `run_jobs`."""
        ...


Versions = dict[str, str]


def run_jobs(
    function: Function,
    jobs: Sequence[Any],
    *,
    jobs_at_once: int = 1,
    cluster: str | None = None,
    retries: int = 2,
) -> Iterator[tuple[int, Any]]:
    """Call `function` with every value of `jobs`, and give the results as they come.

    A process that dies, or a node of a cluster that is lost, costs its job one of its retries, and another begins the
    job anew. However the iteration ends, by an error, by Ctrl-C or because nobody asks for more results, no process
    and no task of it goes on; processes that a job started itself may. The nodes of a cluster need the same versions
    of Python, ShardGym, NumPy and torch.

    Args:
        function: at the top of a module. It reads no file that other nodes lack, and writes none.
        jobs: values that pickle, such as JSON values and bytes; so are the results.
        jobs_at_once: processes of this machine; with 1, or a single job, the jobs run in this process, in their order.
        cluster: "auto" for the Ray cluster that this machine belongs to, or a new one of its CPUs if there is none;
            or "ray://HOST:PORT". It runs as many jobs at once as it has CPUs.
        retries: how often a job may lose its process, and is done again.

    Yields:
        The number of a job, from 0, and what the function returned for it.

    Raises:
        InvalidOptionError: an argument is impossible, or the cluster cannot be reached.
        MissingExtraError: a cluster is asked for, and Ray is not installed.
        JobError: a job raised an error, or lost its process once more than `retries`. The others are given up.
    """
    checked_count("jobs_at_once", jobs_at_once)
    checked_count("retries", retries, 0)
    if cluster is None:
        some = min(jobs_at_once, len(jobs))
        return _locally(function, jobs, some, retries) if some > 1 else _here(function, jobs)
    if jobs_at_once > 1:
        raise InvalidOptionError(
            f"A cluster runs as many jobs at once as it has CPUs: leave out the {jobs_at_once} that were asked for."
        )
    if cluster != AUTO and not cluster.startswith(CLIENT):
        raise InvalidOptionError(
            f"The cluster must be {AUTO!r}, or the address {CLIENT}HOST:PORT of one; it is {short_repr(cluster)}."
        )
    return _on_cluster(function, jobs, cluster, retries)


def _here(function: Function, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    for index, job in enumerate(jobs):
        try:
            result = function(pickle.loads(pickle.dumps(job)))  # as elsewhere: what a job changes is its own
        except (Exception, SystemExit) as error:
            raise _failed(index, len(jobs), _described(error)) from error
        yield index, result


def _locally(function: Function, jobs: Sequence[Any], at_once: int, retries: int) -> Iterator[tuple[int, Any]]:
    left, deaths, workers = deque(range(len(jobs))), Counter[int](), dict[Any, _Worker]()  # by their pipe

    def begin(worker: _Worker) -> None:
        worker.job = left.popleft()
        try:
            job = pickle.dumps((function, jobs[worker.job]))
        except Exception as error:
            what = f"it cannot be sent to another process: {error}"
            raise _failed(worker.job, len(jobs), what) from error
        worker.send(job)

    try:
        while left or workers:
            while left and len(workers) < at_once:
                worker = _Worker()
                workers[worker.connection] = worker
                begin(worker)
            dead = [connection for connection, worker in workers.items() if worker.is_dead]
            for ready in wait(list(workers), LOOKED_AFTER) or dead:
                worker = workers[ready]
                job, outcome = worker.job, worker.receive()
                if outcome is None:
                    code = workers.pop(ready).end()
                    deaths[job] += 1
                    if deaths[job] > retries:
                        why = NO_MEMORY if code is None or code < 0 else BY_ITSELF
                        raise _lost(job, len(jobs), deaths[job], f"the last one with exit code {code}", why)
                    left.appendleft(job)
                    continue
                if left:
                    begin(worker)
                else:
                    workers.pop(ready).end()
                yield job, _result(job, len(jobs), outcome)
    finally:
        for worker in workers.values():
            worker.kill()
        for worker in workers.values():
            worker.end()


class _Worker:
    """A process of this machine that does one job after another."""

    def __init__(self) -> None:
        self.job = -1
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        # Not a daemon, which could start no processes. Those that are not are waited for when this one exits.
        self._process = context.Process(target=_work, args=(other,))
        with _for_children():
            self._process.start()
            atexit.register(self.end)
        other.close()

    def send(self, job: bytes) -> None:
        with suppress(OSError):  # a process that is dead is noticed when its outcome is due
            self.connection.send_bytes(job)

    def receive(self) -> bytes | None:
        """The outcome of its job, which is there; None if the process died."""
        try:
            return self.connection.recv_bytes() if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def end(self) -> int | None:
        """End the process, whatever it does; returns its exit code, that of a signal negative."""
        self.connection.close()
        self._process.join(0.1)
        self._process.kill()
        self._process.join()
        atexit.unregister(self.end)  # only now, because Ctrl-C may end this function early
        return self._process.exitcode

    def kill(self) -> None:
        """End the process without waiting for its end."""
        self._process.kill()

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return not self._process.is_alive()


_STARTING = threading.Lock()


@contextmanager
def _for_children() -> Iterator[None]:
    """Processes started in here have one thread of OpenMP, and Ctrl-C does not reach them: their parent ends them."""
    masks = hasattr(signal, "pthread_sigmask")  # Windows has none
    with _STARTING:
        if masks:
            resource_tracker.ensure_running()  # when it starts, it lets Ctrl-C through again
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
        try:
            yield
        finally:
            if masks:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if threads is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = threads


def _work(connection: Connection) -> None:
    """What a process of this machine does: jobs, until its parent ends it, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_outcome(connection.recv_bytes()))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _outcome(job: bytes) -> bytes:
    """Does a pickled job; a pickled pair, whether it succeeded, and its result or what went wrong."""
    try:
        function, value = pickle.loads(job)
        return pickle.dumps((True, function(value)))
    except BaseException as error:  # also what would end this process, which is then not done again
        return pickle.dumps((False, _described(error)))


def _described(error: BaseException) -> str:
    """An error of ShardGym or of a user says what is wrong; any other is a bug, and keeps its traceback."""
    text = str(error) if isinstance(error, (ShardGymError, SystemExit)) else ""
    return text or "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _result(index: int, count: int, outcome: bytes) -> Any:
    try:
        succeeded, result = pickle.loads(outcome)
    except BaseException as error:
        raise _failed(index, count, f"its result cannot be read: {_described(error)}") from error
    if not succeeded:
        raise _failed(index, count, result)
    return result


def _failed(index: int, count: int, why: str) -> JobError:
    return JobError(f"Job {index} of {count}, counted from 0, failed: {why}", index)


NO_MEMORY = "The machine may have too little memory for it: run fewer jobs at once."
BY_ITSELF = (
    "It ended by itself, and may have printed why. A program that runs jobs does so under "
    'if __name__ == "__main__":, because other processes import it.'
)


def _lost(index: int, count: int, deaths: int, last: str, why: str = NO_MEMORY) -> JobError:
    return JobError(f"Job {index} of {count}, counted from 0, lost its process {deaths} times, {last}. {why}", index)


def _on_cluster(function: Function, jobs: Sequence[Any], cluster: str, retries: int) -> Iterator[tuple[int, Any]]:
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise missing_extra("ray", "cluster", "Running jobs on a cluster") from error
    waiting: dict[Any, int] = {}
    try:
        _USERS.enter(ray, cluster)
        call, here = ray.remote(num_cpus=1, max_retries=retries)(_outcome_on_node), versions()
        for index, job in enumerate(jobs):
            waiting[call.remote(_pickled(ray, function, job, index, len(jobs)), here)] = index
        while waiting:
            (done,), _ = ray.wait(list(waiting))
            index = waiting.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayTaskError as error:  # it has not begun
                raise _failed(index, len(jobs), f"{str(error).splitlines()[-1]}. {SAME}") from error
            except ray.exceptions.RayError as error:
                last = f"the last time by {type(error).__name__} of Ray"
                raise _lost(index, len(jobs), retries + 1, f"{last}: {error}") from error
            yield index, _result(index, len(jobs), outcome)
    except ImportError as error:  # of the head, which a client asks
        raise JobError(f"The head of the cluster lacks something: {error}. {SAME}") from error
    finally:
        for each in waiting:
            ray.cancel(each, force=True)
        _USERS.leave(ray)


def _pickled(ray: Any, function: Function, job: Any, index: int, count: int) -> bytes:
    try:
        return bytes(ray.cloudpickle.dumps((function, job)))
    except Exception as error:
        raise _failed(index, count, f"it cannot be sent to another process: {error}") from error


class _Users:
    """How many use the connection to a cluster; the last one ends it, unless somebody else made it."""

    def __init__(self) -> None:
        self._count, self._ours, self._lock = 0, False, threading.Lock()

    def enter(self, ray: Any, cluster: str) -> None:
        with self._lock:
            self._count += 1
            if not ray.is_initialized():
                _connect(ray, cluster)
                self._ours = True

    def leave(self, ray: Any) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._ours:
                ray.shutdown()
                self._ours = False


_USERS = _Users()


def _connect(ray: Any, cluster: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        address = _joined() if cluster == AUTO else cluster
        if address:
            _require_answer(address)
        try:
            ray.init(cluster, **quiet)
        except ConnectionError as error:
            if cluster != AUTO or NO_CLUSTER not in str(error):
                raise
            ray.init("local", num_cpus=usable_cpus(), include_dashboard=False, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidOptionError(f"The Ray cluster {cluster!r} cannot be used: {error}") from error


def _joined() -> str:
    """The address of the cluster that this machine belongs to, as Ray finds it; empty if there is none."""
    with suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or Path(gettempdir(), "ray", "ray_current_cluster").read_text().strip()
    return ""


def _require_answer(address: str) -> None:
    """Raise OSError or ValueError if nothing listens at an address, [ray://]HOST:PORT."""
    parts = urlsplit(address if "://" in address else f"{CLIENT}{address}")
    if not parts.hostname or parts.port is None:
        raise ValueError(f"its address must be {CLIENT}HOST:PORT, such as {CLIENT}head:10001.")
    try:
        socket.create_connection((parts.hostname, parts.port), ANSWERS_IN).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers at {address} ({error}). `ray stop` forgets a cluster.") from error


def _outcome_on_node(job: bytes, wanted: Versions) -> bytes:
    """`_outcome`, if this node has the `wanted` versions."""
    found = versions()
    if found == wanted:
        return _outcome(job)
    other = [f"{name} {found[name]}, not {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    return pickle.dumps((False, f"The node {platform.node()} has {'; '.join(other)}. {SAME}"))


def versions() -> Versions:
    """The versions, by name, that must be the same where results are to be equal; "none" of what is not installed."""
    import shard_gym

    found = {"Python": platform.python_version(), "shard_gym": shard_gym.__version__}
    for name in ("numpy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
