"""Clocks: what they call the time of a phase, on a simulated GPU whose work and host take known times."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shard_gym.cost_models.measured.clock import MAX_SPIN_MS, WARM_S, GpuClock, HostClock, Peers, Phase

FULL_GHZ = 1.98


class Gpu:
    """A GPU with one stream and its host, both in simulated time (ms); also what `GpuClock` uses of torch.cuda.

    The host takes `call_ms` to enqueue anything. The SM clock is 0.345 GHz after the GPU was idle for a second, and
    FULL_GHZ when it has been busy for 40 ms since.
    """

    def __init__(self, call_ms: float = 0.004) -> None:
        self.host_ms, self.free_ms, self.call_ms = 0.0, 0.0, call_ms
        self.woken_ms = -1e9
        self.idle(2_000.0)

    def now(self) -> float:
        return self.host_ms / 1000

    def idle(self, ms: float) -> None:
        self.host_ms = max(self.host_ms, self.free_ms) + ms

    def enqueue(self, ms: float) -> None:
        """Work of that duration, enqueued by the host."""
        self.host_ms += self.call_ms
        if self.host_ms - self.free_ms > 1_000:
            self.woken_ms = self.host_ms
        self.free_ms = max(self.free_ms, self.host_ms) + ms

    def _sleep(self, cycles: int) -> None:
        full = max(self.free_ms, self.host_ms) >= self.woken_ms + 40 and self.host_ms - self.free_ms <= 1_000
        self.enqueue(cycles / (FULL_GHZ if full else 0.345) / 1e6)

    def synchronize(self) -> None:
        self.host_ms = max(self.host_ms, self.free_ms)

    def Event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.gpu.enqueue(0.0)
        self.at_ms = self.gpu.free_ms

    def query(self) -> bool:
        return self.gpu.host_ms >= self.at_ms

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return end.at_ms - self.at_ms


def phase(gpu: Gpu, python_ms: float, *kernels_ms: float) -> None:
    """Python, then kernels."""
    gpu.host_ms += python_ms
    for ms in kernels_ms:
        gpu.enqueue(ms)


def phases_of(gpu: Gpu, python_ms: float = 0.1) -> Callable[[int], tuple[Phase | None, ...]]:
    """A forward that depends on the batch, an exchange without work, and a backward."""
    return lambda number: (
        partial(phase, gpu, python_ms, 0.02 + 0.01 * (number % 2)),
        None,
        partial(phase, gpu, 2 * python_ms, 0.04, 0.03),
    )


@pytest.mark.parametrize("python_ms", [0.1, 2.0])
def test_a_phase_on_a_gpu_contains_no_time_of_the_host(python_ms: float) -> None:
    """With 6 ms of Python in an iteration, the first spins are too short, those of the timed iterations are not."""
    gpu = Gpu()
    clock = GpuClock(gpu, now=gpu.now)
    found = clock.measure(phases_of(gpu, python_ms), 3, 10, Peers())
    assert (len(found.ms), found.late) == (10, 0)
    for forward, exchange, backward in found.ms:
        assert min(abs(forward - 0.02), abs(forward - 0.03)) < 1e-9
        assert exchange == 0.0
        assert backward == pytest.approx(0.07)
    assert {round(row[0], 3) for row in found.ms} == {0.02, 0.03}
    assert found.clock_ghz == pytest.approx(FULL_GHZ, rel=0.01)


def test_an_iteration_during_which_the_host_was_stopped_is_executed_again() -> None:
    gpu = Gpu()
    clock, quick, numbers = GpuClock(gpu, now=gpu.now), phases_of(gpu), []

    def phases(number: int) -> tuple[Phase | None, ...]:
        numbers.append(number)
        stopped_ms = 30.0 if number == 8 else 0.1
        return (partial(phase, gpu, stopped_ms, 0.02), *quick(number)[1:])

    clock.measure(quick, 3, 3, Peers())
    found = clock.measure(phases, 3, 10, Peers())
    assert numbers == list(range(3 + 1 + 10))
    assert (len(found.ms), found.late) == (10, 0)
    assert [row[0] for row in found.ms] == pytest.approx([0.02] * 10)


def test_a_phase_that_waits_for_the_gpu_is_told() -> None:
    gpu = Gpu()

    def waits() -> None:
        phase(gpu, 0.1, 0.02)
        gpu.synchronize()
        phase(gpu, 0.1, 0.02)

    numbers = []
    found = GpuClock(gpu, now=gpu.now).measure(lambda number: numbers.append(number) or (waits,), 3, 5, Peers())
    assert (len(found.ms), found.late) == (5, 5)
    assert numbers[-5:] == list(range(numbers[-1] - 4, numbers[-1] + 1))
    slowest = WARM_S * 1000 + 10 * (MAX_SPIN_MS * FULL_GHZ / 0.345 + 1)
    assert gpu.host_ms - 2_000 < slowest


def test_an_idle_gpu_is_warmed_until_its_clock_is_up_and_a_warm_one_is_not() -> None:
    gpu = Gpu()
    clock, numbers = GpuClock(gpu, now=gpu.now), []

    def counted(number: int) -> tuple[Phase | None, ...]:
        numbers.append(number)
        return phases_of(gpu)(number)

    def executed(warmup: int) -> int:
        numbers.clear()
        assert clock.measure(counted, warmup, 4, Peers()).clock_ghz == pytest.approx(FULL_GHZ, rel=0.01)
        assert numbers == list(range(len(numbers)))
        return len(numbers) - 4

    begin = gpu.now()
    executed(3)
    assert WARM_S < gpu.now() - begin < WARM_S + 0.1  # nothing is known of this GPU yet
    assert executed(3) == 3
    assert executed(0) == 1
    gpu.idle(5_000.0)
    begin = gpu.now()
    assert executed(3) > 5
    assert 0.04 < gpu.now() - begin < 0.1


def test_a_gpu_that_stays_slow_is_measured_as_it_is() -> None:
    gpu = Gpu()
    clock = GpuClock(gpu, now=gpu.now)
    clock.measure(phases_of(gpu), 3, 4, Peers())
    gpu.woken_ms = 1e9  # throttled from now on
    begin = gpu.now()
    assert clock.measure(phases_of(gpu), 3, 4, Peers()).clock_ghz == pytest.approx(0.345, rel=0.01)
    assert gpu.now() - begin > WARM_S
    begin = gpu.now()
    clock.measure(phases_of(gpu), 3, 4, Peers())
    assert gpu.now() - begin < WARM_S


class Recorded:
    """Peers of which another one is late once, and has to be warmed longer."""

    def __init__(self, log: list[Any], answers: list[bool]) -> None:
        self.log, self.answers = log, answers

    def align(self) -> None:
        self.log.append("align")

    def any(self, flag: bool) -> bool:
        self.log.append("any")
        return self.answers.pop(0) or flag if self.answers else flag


def test_all_devices_execute_the_same_iterations_and_align_before_each_phase() -> None:
    gpu, log = Gpu(), []
    clock = GpuClock(gpu, now=gpu.now)
    clock.measure(phases_of(gpu), 3, 1, Peers())  # now it is warm
    one = lambda number: (partial(log.append, "first"), None, partial(log.append, "third"))  # noqa: E731
    # An iteration asks whether a device was late, and one that warms up also whether to go on: here, once more.
    found = clock.measure(one, 0, 1, Recorded(log, [False, True, False, False, True, False]))
    assert len(found.ms) == 1
    iteration = ["align", "first", "align", "align", "third", "any"]
    assert log == [*iteration, "any", *iteration, "any", *iteration, *iteration]


def test_the_clock_of_a_host_times_the_phases_alone() -> None:
    log: list[Any] = []

    def phases(number: int) -> tuple[Phase | None, ...]:
        log.append(number)
        return partial(time.sleep, 0.01), None, partial(time.sleep, 0.002 if number > 1 else 0.05)

    found = HostClock().measure(phases, 2, 3, Recorded(log, []))
    assert [entry for entry in log if entry != "align"] == [0, 1, 2, 3, 4]
    assert log.count("align") == 15
    assert (len(found.ms), found.late, found.clock_ghz) == (3, 0, None)
    assert all(first >= 10 and exchange == 0 and 2 <= third < 50 for first, exchange, third in found.ms)
