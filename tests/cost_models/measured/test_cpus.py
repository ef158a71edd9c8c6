"""CPUs are claimed against other programs, and never for longer than a program lives."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest

from shard_gym.cost_models.measured.cpus import CpuShare

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")

FIRST = 100_000 + os.getpid() % 100_000
"""Numbers of CPUs that no machine and no other test has."""

OTHER = """
import os, sys
first, size, count = map(int, sys.argv[1:])
os.sched_getaffinity = lambda pid: set(range(first, first + size))
from shard_gym.cost_models.measured.cpus import CpuShare
share = CpuShare(count)
print(*share.cpus, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(FIRST, FIRST + 4)))


@pytest.fixture
def other_program() -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts a program that claims so many of the four CPUs."""
    started = []

    def start(count: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", OTHER, str(FIRST), "4", str(count)]
        program = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(program)
        assert program.stdout is not None
        assert program.stdout.readline().split() == [str(cpu) for cpu in range(FIRST, FIRST + count)]
        return program

    yield start
    for program in started:
        program.kill()
        program.communicate()


def cpus(count: int) -> list[int]:
    """Those of a share that ends at once, less `FIRST`; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [cpu - FIRST for cpu in CpuShare(count).cpus]


def test_two_programs_take_different_cpus(other_program: Callable[[int], subprocess.Popen[str]]) -> None:
    assert cpus(2) == [0, 1]
    program = other_program(1)
    assert cpus(2) == [1, 2]
    assert cpus(3) == [1, 2, 3]
    program.kill()
    program.wait()
    assert cpus(2) == [0, 1]


def test_it_warns_if_there_are_too_few_for_both(other_program: Callable[[int], subprocess.Popen[str]]) -> None:
    other_program(3)
    with pytest.warns(UserWarning, match="Another program measures .* leaves 1 CPU of the 4 .* 2 are needed"):
        share = CpuShare(2)
    assert [cpu - FIRST for cpu in share.cpus] == [3, 0]
    with pytest.warns(UserWarning, match="Another program measures"):
        assert CpuShare(5).cpus == []


def test_the_sessions_of_a_program_share_and_a_forked_copy_does_not() -> None:
    first = CpuShare(3)
    assert cpus(4) == [0, 1, 2, 3]
    child = os.fork()
    if child == 0:
        os._exit(cpus(1)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert [cpu - FIRST for cpu in first.cpus] == [0, 1, 2]
    assert cpus(5) == []  # more threads than CPUs
