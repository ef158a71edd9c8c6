"""Jobs in this process and in others of this machine; tests/cli/test_jobs.py has those on a cluster."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shard_gym.common import jobs
from shard_gym.common.errors import InvalidOptionError, JobError, MissingExtraError
from shard_gym.common.jobs import run_jobs

WORKERS = Path(__file__).parents[1] / "workers"


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(WORKERS)  # other processes get the path of this one
    import job_functions

    return job_functions


def test_results_are_the_same_in_one_process_and_in_two(functions: Any) -> None:
    here, there = (dict(run_jobs(functions.squared, [1, 2, 3, 4], jobs_at_once=count)) for count in (1, 2))
    assert here == {index: {"value": (index + 1) ** 2, "process": os.getpid()} for index in range(4)}
    assert {index: each["value"] for index, each in there.items()} == {0: 1, 1: 4, 2: 9, 3: 16}
    processes = {each["process"] for each in there.values()}
    assert os.getpid() not in processes
    assert len(processes) <= 2
    assert list(run_jobs(functions.squared, [], jobs_at_once=2)) == []


def test_a_job_may_start_processes(functions: Any) -> None:
    assert dict(run_jobs(functions.with_processes_of_its_own, [1, 2], jobs_at_once=2)) == {0: 2, 1: 4}


def test_processes_have_one_thread_and_this_one_keeps_its_environment(
    functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert dict(run_jobs(functions.environment, [0, 0], jobs_at_once=2)) == {0: "1", 1: "1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("exits", "Job 1 of 2, counted from 0, failed: 3"),
        ("interrupted", "KeyboardInterrupt"),
        ("unreadable", "its result cannot be read"),
    ],
)
def test_what_ends_a_job_is_told_and_not_tried_again(
    functions: Any, tmp_path: Path, function: str, says: str, count: int
) -> None:
    if count == 1 and function != "exits":
        pytest.skip("Ctrl-C ends a program of one process, and its results are not sent")
    with pytest.raises(JobError, match=says):
        list(run_jobs(getattr(functions, function), [(str(tmp_path), 0), (str(tmp_path), 1)], jobs_at_once=count))
    assert len(list(tmp_path.iterdir())) <= 2


def test_what_cannot_be_sent_is_refused(functions: Any) -> None:
    with pytest.raises(JobError, match="it cannot be sent to another process"):
        list(run_jobs(lambda value: value, [1, 2], jobs_at_once=2))
    ray = SimpleNamespace(cloudpickle=pickle)
    with pytest.raises(JobError, match="Job 4 of 5, counted from 0, failed: it cannot be sent"):
        jobs._pickled(ray, functions.squared, lambda: None, 4, 5)


def test_a_process_that_ends_by_itself_is_not_short_of_memory(functions: Any) -> None:
    with pytest.raises(JobError, match=r"exit code 7\. It ended by itself") as raised:
        list(run_jobs(functions.ended, [("", 0), ("", 1)], jobs_at_once=2, retries=0))
    assert raised.value.job in (0, 1)


def test_a_job_whose_process_is_killed_is_done_again_but_not_for_ever(functions: Any, tmp_path: Path) -> None:
    (first := tmp_path / "first").mkdir()
    found = dict(run_jobs(functions.killed, [(str(first), value, 2) for value in range(3)], jobs_at_once=2))
    assert found == {0: 0, 1: 1, 2: 4}
    assert len(list(first.iterdir())) == 2
    (second := tmp_path / "second").mkdir()
    with pytest.raises(JobError, match=r"Job 1 of 2, counted from 0, lost its process 1 times, .* exit code -9"):
        list(run_jobs(functions.killed, [(str(second), value, 9) for value in range(2)], jobs_at_once=2, retries=0))


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_names_its_job_and_one_that_is_a_bug_keeps_its_traceback(functions: Any, count: int) -> None:
    with pytest.raises(JobError, match=r"^Job 1 of 3, counted from 0, failed: 2 is too many\.$"):
        list(run_jobs(functions.failing, [1, 2, 3], jobs_at_once=count))
    with pytest.raises(JobError, match=r"(?s)Job 1 of 2.*Traceback.*in broken.*ZeroDivisionError"):
        list(run_jobs(functions.broken, [1, 0], jobs_at_once=count))


def test_no_process_goes_on_when_nobody_asks_for_more(functions: Any, tmp_path: Path, gone: Any) -> None:
    results = run_jobs(functions.first_is_quick, [(str(tmp_path), value) for value in range(3)], jobs_at_once=2)
    assert next(results) == (0, None)
    results.close()
    processes = [int(path.name) for path in tmp_path.iterdir()]
    assert all(map(gone, processes))


@pytest.mark.parametrize("pause", [0.02, 0.15])
def test_no_process_outlives_two_interrupts(tmp_path: Path, pause: float, gone: Callable[[int], bool]) -> None:
    driver = _driver(tmp_path)
    for _ in range(2):
        driver.send_signal(signal.SIGINT)
        time.sleep(pause)
    driver.communicate(timeout=30)
    assert all(gone(int(path.name)) for path in tmp_path.iterdir())


def test_a_dead_process_is_noticed_though_one_that_it_started_lives(functions: Any, tmp_path: Path) -> None:
    before = time.monotonic()
    with pytest.raises(JobError, match="exit code -9"):
        list(run_jobs(functions.killed_with_a_child, [str(tmp_path)] * 2, jobs_at_once=2, retries=0))
    assert time.monotonic() - before < 20, "its child lives for a minute"
    for path in tmp_path.iterdir():
        os.kill(int(path.name), signal.SIGKILL)


def test_threads_may_run_jobs(functions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: dict(run_jobs(functions.environment, [0, 1], jobs_at_once=2)), range(2)))
    assert found == [{0: "1", 1: "1"}] * 2
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_job_changes_is_its_own(functions: Any, count: int) -> None:
    shared = [0]
    assert dict(run_jobs(functions.appended, [shared, shared], jobs_at_once=count)) == {0: [0, 1], 1: [0, 1]}
    assert shared == [0]


def test_a_program_ends_though_it_has_not_asked_for_all_results(tmp_path: Path) -> None:
    script = (
        "from shard_gym.common.jobs import run_jobs; import job_functions\n"
        "if __name__ == '__main__':\n"
        f"    results = run_jobs(job_functions.first_is_quick, [({str(tmp_path)!r}, each) for each in range(2)],\n"
        "                       jobs_at_once=2)\n"
        "    print(next(results))"
    )
    path = os.pathsep.join([str(WORKERS), *sys.path])
    program = [sys.executable, "-c", script]
    ended = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=45, check=True
    )
    assert ended.stdout == "(0, None)\n"
    assert not ended.stderr


def _driver(folder: Path) -> subprocess.Popen[str]:
    """A program with two jobs of a minute, which have begun and named their processes in `folder`."""
    script = (
        "import signal; from shard_gym.common.jobs import run_jobs; import job_functions\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background\n"
        f"if __name__ == '__main__': list(run_jobs(job_functions.slow, [{str(folder)!r}] * 2, jobs_at_once=2))"
    )
    path = os.pathsep.join([str(WORKERS), *sys.path])
    driver = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    return driver


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(sent: int, tmp_path: Path, gone: Callable[[int], bool]) -> None:
    driver = _driver(tmp_path)
    driver.send_signal(sent)
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode != 0
    assert errors.count("Traceback") == (sent == signal.SIGINT), "Ctrl-C reaches no other process"
    processes = [int(path.name) for path in tmp_path.iterdir()]
    assert len(processes) == 2
    assert all(map(gone, processes))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jobs_at_once": 0}, "jobs_at_once must be an integer of at least 1, not 0"),
        ({"retries": -1}, "retries must be an integer of at least 0, not -1"),
        ({"cluster": "auto", "jobs_at_once": 2}, "A cluster runs as many jobs at once as it has CPUs"),
        ({"cluster": "10.0.0.1"}, "must be 'auto', or the address ray://HOST:PORT of one; it is '10.0.0.1'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_job(functions: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        run_jobs(functions.squared, [1], **options)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ray://", "its address must be ray://HOST:PORT"),
        ("ray://localhost:1", "cannot be used: nothing answers at ray://localhost:1 .*refused"),
        ("auto", "cannot be used: nothing answers at 127.0.0.1:1 .*refused.*`ray stop` forgets"),
    ],
)
def test_a_cluster_that_does_not_answer_is_told_at_once(
    functions: Any, address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # as if this machine had joined it
    before = time.monotonic()
    with pytest.raises(InvalidOptionError, match=says):
        list(run_jobs(functions.squared, [1], cluster=address))
    assert time.monotonic() - before < 20, "Ray itself waits for half a minute"


def test_only_where_no_cluster_runs_a_new_one_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(jobs, "gettempdir", lambda: str(tmp_path))  # where Ray says which cluster it joined
    begun: list[str] = []

    def connecting(error: str) -> SimpleNamespace:
        def init(address: str, **_: object) -> None:
            begun.append(address)
            if address == "auto":
                raise ConnectionError(error)

        return SimpleNamespace(init=init)

    jobs._connect(connecting(f"{jobs.NO_CLUSTER}. Please specify"), "auto")
    assert begun == ["auto", "local"]
    with pytest.raises(InvalidOptionError, match="cannot be used: InvalidAuthToken"):
        jobs._connect(connecting("InvalidAuthToken"), "auto")


def test_the_last_of_those_that_use_a_cluster_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"connected": False}
    ray = SimpleNamespace(is_initialized=lambda: state["connected"], shutdown=lambda: state.update(connected=False))
    monkeypatch.setattr(jobs, "_connect", lambda ray, cluster: state.update(connected=True))
    for found in (False, True):  # another's connection stays
        state["connected"], users = found, jobs._Users()
        users.enter(ray, "auto")
        users.enter(ray, "auto")
        users.leave(ray)
        assert state["connected"]
        users.leave(ray)
        assert state["connected"] == found


def test_without_ray_the_error_names_the_extra(functions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"the package 'ray', which is not installed.*\[cluster\]"):
        list(run_jobs(functions.squared, [1], cluster="auto"))


def test_a_node_with_other_versions_is_refused(functions: Any) -> None:
    wanted = {**jobs.versions(), "torch": "1.0"}
    outcome = jobs._outcome_on_node(jobs.pickle.dumps((functions.squared, 2)), wanted)
    with pytest.raises(
        JobError, match=r"Job 0 of 1, .* The node .* has torch .*, not 1\.0\. Install the same ShardGym"
    ):
        jobs._result(0, 1, outcome)
