"""Workers that die, hang or run out of memory; parents that are killed: nothing hangs, nothing stays behind.

Most of it is tested with workers that start quickly because they do not import torch, see `quick_worker`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shard_gym.common.errors import DeviceMemoryError, MeasurementError, MeasurementTimeoutError, WorkerDiedError
from shard_gym.cost_models.measured import Session
from shard_gym.cost_models.measured.job import FAILED, OUT_OF_MEMORY, Command, Job, Part, Repeats, Widths, to_line
from shard_gym.cost_models.measured.worker import Worker, reply_to
from shard_gym.tables import Tables, Workload

TIMEOUT_S = 2.0
ENOUGH_S = 30.0
LONG, SHORT = 10_000_000, 2
MUCH = 2**40


def one_table(rows: int = 100) -> Tables:
    return Tables.from_zipf([rows], 4, 1.0, 0.0, Workload(8, "fp32", "sgd"))


def commands(iterations: int, tables: Tables | None = None, *, exchange: bool = True) -> list[Command]:
    """The same table on two devices."""
    table = tables or one_table()
    part = Part.whole(table)
    job = Job((part,), 2, 8, Widths((part.width,) * 2), Repeats(iterations, 0, 1, 0), exchange)
    return [("measure", {"job": job})] * 2


SUBJECTS = ["device 0 (1 table, 1.6 KiB)", "device 1 (1 table, 1.6 KiB)"]


@pytest.fixture
def own_tempdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextmanager
def opened(folder: Path) -> Iterator[Session]:
    session = Session("cpu", 2, threads=1, timeout_s=TIMEOUT_S)
    yield session
    session.close()
    assert not list(folder.iterdir())


@pytest.fixture
def session(own_tempdir: None, quick_workers: None, tmp_path: Path) -> Iterator[Session]:
    with opened(tmp_path) as session:
        yield session


@pytest.fixture
def started(own_tempdir: None, started_quick_workers: None, tmp_path: Path) -> Iterator[Session]:
    """Its workers start as those of users do."""
    with opened(tmp_path) as session:
        yield session


def works(session: Session) -> bool:
    answers = session.ask(commands(SHORT), SUBJECTS, join=(2, 1))
    return [len(answer["ms"]) for answer in answers] == [SHORT, SHORT]


def until(holds: Callable[[], bool]) -> bool:
    """Whether it holds soon."""
    end = time.monotonic() + ENOUGH_S
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Whether there is such a process, other than one that is dead and not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def during(session: Session, do: Callable[[list[int]], None]) -> tuple[MeasurementError, float]:
    """Do something to the workers while they measure; what `ask` raises, and the seconds until then."""
    assert works(session)
    pids = session.pids
    begin = []

    def act() -> None:
        time.sleep(0.3)
        begin.append(time.monotonic())
        do(pids)

    thread = threading.Thread(target=act)
    thread.start()
    with pytest.raises(MeasurementError) as caught:
        session.ask(commands(LONG), SUBJECTS, join=(2, 1))
    took = time.monotonic() - begin[0]
    thread.join()
    assert not session.pids
    assert not any(map(runs, pids))
    return caught.value, took


def test_a_killed_worker_is_named(started: Session) -> None:
    """And not the one whose collective fails then."""
    error, took = during(started, lambda pids: os.kill(pids[1], signal.SIGKILL))
    assert isinstance(error, WorkerDiedError)
    assert "device 1 (1 table" in str(error)
    assert "SIGKILL" in str(error)
    assert took < TIMEOUT_S
    assert works(started)  # the next measurement starts other workers


def test_a_stuck_collective_is_noticed_within_the_timeout(session: Session) -> None:
    error, took = during(session, lambda pids: os.kill(pids[0], signal.SIGSTOP))
    assert isinstance(error, MeasurementTimeoutError)
    assert "device 0 (1 table" in str(error)
    assert took < TIMEOUT_S + 2.0


def test_a_worker_that_reads_no_commands_is_noticed(session: Session) -> None:
    assert works(session)
    os.kill(session.pids[0], signal.SIGSTOP)
    with pytest.raises(MeasurementTimeoutError, match="device 0"):
        session.ask([("measure", {"more_than_a_socket_buffers": "x" * 10_000_000})], SUBJECTS)


def test_every_worker_gets_cpus_of_its_own_and_others_start_after_close(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs that no machine has; what is asked of the system is noted instead."""
    given: dict[int, list[int]] = {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {100_001, 100_002, 100_003, 100_004})
    monkeypatch.setattr(os, "sched_setaffinity", given.__setitem__)
    session._threads = 2
    assert works(session)
    assert given == {session.pids[0]: [100_001, 100_002], session.pids[1]: [100_003, 100_004]}
    before = session.pids
    for _ in range(2):  # closing again does nothing
        session.close()
    assert not any(map(runs, before))
    assert not list(tmp_path.iterdir())
    session._threads = 3  # too many
    given.clear()
    assert works(session)
    assert not set(session.pids) & set(before)
    assert not given


def test_a_program_with_many_open_files_measures(session: Session) -> None:
    """`select` knows 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert opened[-1] > 1_024
        assert works(session)
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_worker_tells_torchs_lack_of_memory_from_other_errors() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")
    worker = Worker()
    worker.start("cpu", 0, 1, threads=torch.get_num_threads(), timeout_s=TIMEOUT_S, recorded=None)
    command = json.loads(to_line(commands(SHORT, one_table(rows=MUCH), exchange=False)[0]))
    assert reply_to(worker, command)[0] == OUT_OF_MEMORY
    assert reply_to(worker, ("dance", {}))[0] == FAILED


def test_reported_errors_are_raised_and_the_next_measurement_works(session: Session) -> None:
    with pytest.raises(DeviceMemoryError, match=r"device [01] \(1 table"):
        session.ask(commands(SHORT, one_table(rows=MUCH)), SUBJECTS, join=(2, 1))
    with pytest.raises(MeasurementError, match=r"Measuring device 0 failed: AttributeError: .*'dance'"):
        session.ask([("dance", {})], ["device 0"])
    assert works(session)


def test_a_session_without_references_is_closed(own_tempdir: None, quick_workers: None, tmp_path: Path) -> None:
    session = Session("cpu", 1, threads=1, timeout_s=TIMEOUT_S)
    session.ask(commands(SHORT, exchange=False)[:1], SUBJECTS)
    (pid,) = session.pids
    del session
    assert until(lambda: not runs(pid))
    assert not list(tmp_path.iterdir())


def test_a_forked_child_has_workers_of_its_own(started: Session) -> None:
    assert works(started)
    pids = started.pids
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        good = not started.pids and works(started) and not set(started.pids) & set(pids)
        started.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert started.pids == pids
    assert Path(started._folder).exists()
    assert works(started)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(
    own_tempdir: None, started_quick_workers: None, sent: signal.Signals, tmp_path: Path
) -> None:
    """The parent is a fork of this process; its workers start as those of users do."""
    words, into = os.pipe()
    parent = os.fork()
    if parent == 0:  # pragma: no cover - another process
        with suppress(BaseException):
            os.close(words)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            session = Session("cpu", 2, threads=1, timeout_s=60.0)
            assert works(session)
            os.write(into, f"{session.pids}\n".encode())
            try:
                session.ask(commands(LONG), SUBJECTS, join=(2, 1))
            except KeyboardInterrupt:
                os.write(into, f"interrupted {session.pids}\n".encode())
        os._exit(0)
    os.close(into)
    with open(words) as said:
        pids = json.loads(said.readline())
        assert len(pids) == 2
        time.sleep(0.3)
        os.kill(parent, sent)
        rest = said.read()
    os.waitpid(parent, 0)
    assert until(lambda: not any(map(runs, pids)))
    assert until(lambda: not list(tmp_path.iterdir()))
    if sent == signal.SIGINT:
        assert rest == "interrupted []\n"
