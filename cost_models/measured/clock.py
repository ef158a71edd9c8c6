"""Clocks that time the phases of an iteration: the monotonic clock on a CPU, CUDA events on a GPU.

A GPU is only timed while the host is ahead of it. FBGEMM's Python takes as long as the kernels of a small load, so
events around a phase that is enqueued to an idle GPU measure Python. `GpuClock` lets the GPU spin while the host
enqueues an iteration. It needs torch only as the argument `cuda`, so tests drive it with a simulated GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from shard_gym.cost_models.measured.job import Timing

Phase = Callable[[], None]
Phases = Sequence[Phase | None]
"""The phases of one iteration in their order; None is one without work, which takes 0 ms."""


class Peers:
    """The devices that are timed together; here a single one, which waits for no other."""

    def align(self) -> None:
        """Let no device begin what follows before all have done what precedes."""

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any device; the same on all of them."""
        return flag


class Clock(Protocol):
    """Times iterations."""

    def measure(self, phases_of: Callable[[int], Phases], warmup: int, iterations: int, peers: Peers) -> Timing:
        """Execute iterations, at least `warmup` that are not timed and `iterations` that are.

        Args:
            phases_of: gives the phases of an iteration by its number, from 0 up.
            warmup: iterations before the timed ones.
            iterations: timed ones, at least 1.
            peers: the devices that execute the same iterations now.
        """
        ...


class HostClock(Clock):
    """A clock around each phase, the monotonic one: for work that is done when a phase returns, as on a CPU.

    Args:
        now: time in seconds; that of the process alone leaves out what other programs take.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    @override
    def measure(self, phases_of: Callable[[int], Phases], warmup: int, iterations: int, peers: Peers) -> Timing:
        rows = [[self._timed(phase, peers) for phase in phases_of(number)] for number in range(warmup + iterations)]
        return Timing(rows[warmup:])

    def _timed(self, phase: Phase | None, peers: Peers) -> float:
        peers.align()
        if phase is None:
            return 0.0
        begin = self._now()
        phase()
        return 1000.0 * (self._now() - begin)


FIRST_GHZ = 2.0  # SM clock that the first spin assumes; a slower one makes it longer, which does no harm
LEAD_CYCLES = 100_000  # spin before the event that begins a measured spin: 0.05 ms, in which the host enqueues the rest
LEAST_SPIN_MS, MAX_SPIN_MS = 1.0, 50.0
SPIN_MARGIN = 2.0
"""A GPU spins this many times as long as the host took to enqueue the iteration before, within these limits."""

WARM_S = 0.5  # warming up takes so many seconds at most
SAME_CLOCK = 0.02  # relative difference below which two SM clocks count as the same


class _Run(NamedTuple):
    """One executed iteration: ms of its phases, the SM clock before it, and whether the host was behind the GPU."""

    ms: list[float]
    ghz: float
    late: bool


class GpuClock(Clock):
    """CUDA events around each phase of a GPU's current stream, without the time of the host.

    The GPU spins while the host enqueues an iteration with its events, so every phase begins when the one before it
    ends and contains no Python. Afterwards the event behind the spin tells whether the host was in time: if that had
    been reached before all was enqueued, the iteration counts for nothing, the next spin is longer, and another
    iteration is executed, `iterations` more at most. Those that are late even then are counted in `Timing.late`; their
    phases contain time of the host. An FBGEMM that waits for the GPU inside a phase would make all of them late.

    The spin lasts a given number of cycles, so the events around it tell the SM clock, too. Idle GPUs clock down:
    iterations are executed until the SM clock is what it was when the GPU was warm, but not for longer than `WARM_S`.
    The clock after so long, as in the first measurement, is what counts as warm from then on.

    Args:
        cuda: the module torch.cuda; `Event`, `_sleep` and `synchronize` are used.
        now: monotonic time in seconds.
    """

    def __init__(self, cuda: Any, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda, self._now = cuda, now
        self._ghz, self._warm_ghz = FIRST_GHZ, math.inf
        self._spin_ms = LEAST_SPIN_MS

    def measure(self, phases_of: Callable[[int], Phases], warmup: int, iterations: int, peers: Peers) -> Timing:
        """There is at least one iteration to warm up."""
        number = self._warm_up(phases_of, warmup, peers)
        runs: list[_Run] = []
        spare = iterations
        while len(runs) < iterations:
            run = self._run(phases_of(number), peers)
            number += 1
            if run.late and spare:
                spare -= 1
            else:
                runs.append(run)
        return Timing([run.ms for run in runs], median(run.ghz for run in runs), sum(run.late for run in runs))

    def _warm_up(self, phases_of: Callable[[int], Phases], least: int, peers: Peers) -> int:
        """Execute iterations until the GPU is warm; how many they were."""
        begin, number = self._now(), 0
        while True:
            ghz = self._run(phases_of(number), peers).ghz
            number += 1
            over = self._now() - begin >= WARM_S
            warm = over or ghz >= self._warm_ghz * (1 - SAME_CLOCK)
            if not peers.any(number < least or not warm):
                self._warm_ghz = ghz if over else max(self._warm_ghz, ghz)
                return number

    def _run(self, phases: Phases, peers: Peers) -> _Run:
        cycles = int(1e6 * self._ghz * self._spin_ms)
        self._cuda._sleep(LEAD_CYCLES)
        spin = self._mark()
        self._cuda._sleep(cycles)
        go = self._mark()
        begin = self._now()
        marks = [self._enqueue(phase, peers) for phase in phases]
        host_ms = 1000.0 * (self._now() - begin)
        late = bool(go.query())
        self._cuda.synchronize()
        self._ghz = cycles / spin.elapsed_time(go) / 1e6
        self._spin_ms = min(max(SPIN_MARGIN * host_ms, LEAST_SPIN_MS), MAX_SPIN_MS)
        ms = [0.0 if pair is None else float(pair[0].elapsed_time(pair[1])) for pair in marks]
        return _Run(ms, self._ghz, peers.any(late))

    def _enqueue(self, phase: Phase | None, peers: Peers) -> tuple[Any, Any] | None:
        peers.align()
        if phase is None:
            return None
        start = self._mark()
        phase()
        return start, self._mark()

    def _mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event
