"""Measures one point of an experiment on this device. Needs torch and FBGEMM.

Lookups are drawn on the device, so a point takes a fraction of a second.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from shard_gym.cost_models.measured.clock import Alone, Clock, GpuClock, HostClock, Phases
from shard_gym.cost_models.measured.operator import FusedTables
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import Tables
from shard_gym.workload import Workload
from tools.gpu_day.points import BATCHES, Point

LEARNING_RATE = 0.01
FLUSH_BYTES = 256 * 2**20
"""Written to remove rows from the L2; several times the L2 of any GPU."""

COPIED_BYTES, SPUN_CYCLES = 2**26, 200_000
"""Of the points that watch the clock rise."""


@dataclass
class Row:
    """What is known of a measured point; times are medians over the iterations.

    Attributes:
        forward_ms, backward_ms: on the device alone, without the time in which Python prepares kernels. Of a copy, a
            sort or nothing, the first is its time and the second NaN.
        forward_host_ms, backward_host_ms: with that time, where the device waits for it.
        forward_all_ms, backward_all_ms: of every iteration, in order; on the device alone.
        lookups, distinct_rows: of the first batch, over all tables; 0 without tables.
        working_set_bytes: what an iteration touches: the distinct rows, the indices and offsets, and the outputs.
        sm_clock_mhz: median over the iterations; NaN on a CPU.
        late: iterations in which the host was behind the device, see `clock.GpuClock`; 0 is what should be.
    """

    forward_ms: float = np.nan
    backward_ms: float = np.nan
    forward_host_ms: float = np.nan
    backward_host_ms: float = np.nan
    forward_all_ms: list[float] = field(default_factory=list)
    backward_all_ms: list[float] = field(default_factory=list)
    lookups: int = 0
    distinct_rows: int = 0
    working_set_bytes: int = 0
    sm_clock_mhz: float = np.nan
    late: int = 0


class Bench:
    """Measures points on one device.

    Args:
        device: "cpu" or "cuda".
        iterations: timed iterations of a point.
        warmup: iterations before them.
    """

    def __init__(self, device: str, iterations: int = 10, warmup: int = 3) -> None:
        cpu = device == "cpu"
        self._device = torch.device("cpu" if cpu else "cuda:0")
        self._iterations, self._warmup = iterations, warmup
        self._random = torch.Generator(self._device)
        self._flushed = torch.zeros(2**16 if cpu else FLUSH_BYTES, dtype=torch.uint8, device=self._device)
        self._alone: Clock = HostClock() if cpu else GpuClock(torch.cuda)
        self._with_host: Clock = HostClock() if cpu else GpuClock(torch.cuda, with_host=True)

    def measure(self, point: Point) -> Row:
        """Measure `point`; its lookups depend on it alone.

        Raises:
            RuntimeError: the device refuses; torch.OutOfMemoryError if its memory is full.
        """
        self._random.manual_seed(zlib.crc32(point.key.encode()))
        given = point.parameters
        if "tables" in given:
            return self._operator(given)
        if point.experiment == "sort":
            return self._one(self._sorter(given["lookups"], given["bits"]))
        if given["what"] == "rise":
            return self._rise(given["busy_ms"])
        return self._one(self._copier(given["bytes"]) if given["what"] == "copy" else lambda: None)

    def _one(self, phase: Callable[[], None]) -> Row:
        """A row of something that is no iteration of an operator."""
        return self._timed(lambda number: (phase,), (0,))

    def _timed(self, phases_of: Callable[[int], Phases], which: tuple[int, ...]) -> Row:
        """A row with the times of the phases `which`."""
        alone, host = (
            clock.measure(phases_of, self._warmup, self._iterations, Alone())
            for clock in (self._alone, self._with_host)
        )
        times = np.array(alone.ms)[:, which], np.array(host.ms)[:, which]
        row = Row(late=alone.late)
        if alone.clock_ghz is not None:
            row.sm_clock_mhz = 1000.0 * alone.clock_ghz
        for column, phase in enumerate(("forward", "backward")[: len(which)]):
            setattr(row, f"{phase}_ms", float(np.median(times[0][:, column])))
            setattr(row, f"{phase}_host_ms", float(np.median(times[1][:, column])))
            setattr(row, f"{phase}_all_ms", times[0][:, column].tolist())
        return row

    # Operators

    def _operator(self, given: dict[str, Any]) -> Row:
        tables = tables_of(given)
        fused = FusedTables(tables, self._device, LEARNING_RATE)
        batches = [self._batch(given, number) for number in range(BATCHES)]
        outputs: list[torch.Tensor] = []

        def forward(number: int) -> None:
            outputs[:] = [fused.forward(batches[number % BATCHES])]

        def backward() -> None:
            outputs[0].backward(outputs[0].detach())  # type: ignore[no-untyped-call]

        def phases_of(number: int) -> Phases:
            before = self._flush if given["flush"] else None
            return before, partial(forward, number), before, backward

        row = self._timed(phases_of, (1, 3))
        indices, offsets = batches[0]
        distinct = self._distinct(given, indices)
        row_bytes = tables.workload.weight_bytes * tables.embedding_dim
        row.lookups, row.distinct_rows = len(indices), int(distinct.sum())
        row.working_set_bytes = int(distinct @ row_bytes + 8 * (len(indices) + len(offsets)) + 4 * outputs[0].numel())
        return row

    def _batch(self, given: dict[str, Any], number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices and offsets of batch `number`, in FBGEMM's layout."""
        parts, lengths, batch = [], [], given["batch"]
        for count, rows, _, lookups in given["tables"]:
            for _ in range(count):
                parts.append(self._indices(batch * lookups, rows, given["run"], number))
                lengths.append(torch.full((batch,), lookups, dtype=torch.int64, device=self._device))
        ends = torch.cat(lengths).cumsum(0)
        return torch.cat(parts), torch.cat([ends.new_zeros(1), ends])

    def _indices(self, lookups: int, rows: int, run: int, number: int) -> torch.Tensor:
        """(lookups,) int64. With a run length, each batch has rows of its own, spread over the table."""
        if not run:
            return torch.randint(rows, (lookups,), generator=self._random, device=self._device)
        share = rows // BATCHES
        own = number + BATCHES * torch.arange(share, device=self._device)
        order = torch.randperm(lookups, generator=self._random, device=self._device)
        return own.repeat_interleave(run)[:lookups][order]

    def _distinct(self, given: dict[str, Any], indices: torch.Tensor) -> np.ndarray:
        """(T,) distinct rows that each table's part of `indices` has."""
        sizes = [given["batch"] * lookups for count, _, _, lookups in given["tables"] for _ in range(count)]
        return np.array([len(torch.unique(part)) for part in torch.split(indices, sizes)])

    def _flush(self) -> None:
        self._flushed.add_(1)

    # Other phases

    def _sorter(self, lookups: int, bits: int) -> Callable[[], None]:
        """FBGEMM's sort of a backward, whose keys have so many bits; the plain sort of torch on a CPU."""
        rows = 2**bits - 1
        indices = torch.randint(rows, (lookups,), generator=self._random, device=self._device)
        if self._device.type == "cpu":
            return _without_result(partial(torch.sort, indices))
        batch = min(lookups, 2**14)
        offsets = torch.arange(batch + 1, device=self._device) * (lookups // batch)
        ends = torch.tensor([0, rows], device=self._device)
        batch_bits, mask = torch.ops.fbgemm.get_infos_metadata(ends, batch, 1)
        sort, keys = torch.ops.fbgemm.transpose_embedding_input, (ends, bits, indices, offsets)
        return _without_result(partial(sort, *keys, info_B_num_bits=batch_bits, info_B_mask=mask))

    def _copier(self, size: int) -> Callable[[], None]:
        source = torch.ones(size, dtype=torch.uint8, device=self._device)
        return _without_result(partial(torch.empty_like(source).copy_, source))

    def _rise(self, busy_ms: float) -> Row:
        """The SM clock, and the time of a copy, after a second of idleness and `busy_ms` of copies; the clocks of the
        other points wait until the GPU is warm."""
        if self._device.type == "cpu":
            return self._one(self._copier(2**16))
        copy = self._copier(COPIED_BYTES)
        time.sleep(1.0)
        begin = time.perf_counter()
        while 1000.0 * (time.perf_counter() - begin) < busy_ms:
            copy()
            torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
        events[0].record()
        torch.cuda._sleep(SPUN_CYCLES)  # type: ignore[no-untyped-call]
        events[1].record()
        copy()
        events[2].record()
        torch.cuda.synchronize()
        spun_ms, copied_ms = (one.elapsed_time(other) for one, other in pairwise(events))
        return Row(forward_ms=copied_ms, forward_all_ms=[copied_ms], sm_clock_mhz=SPUN_CYCLES / spun_ms / 1000.0)


def _without_result(function: Callable[[], object]) -> Callable[[], None]:
    """A phase that calls `function`."""

    def phase() -> None:
        function()

    return phase


def tables_of(given: dict[str, Any]) -> Tables:
    """The tables of a point's parameters; operators need their shapes only, so their statistics are empty."""
    shapes = [(rows, dim) for count, rows, dim, _ in given["tables"] for _ in range(count)]
    nothing = np.zeros((len(shapes), NUM_BINS))
    return Tables(
        num_embeddings=np.array([rows for rows, _ in shapes]),
        embedding_dim=np.array([dim for _, dim in shapes]),
        pooling_factor=np.zeros(len(shapes)),
        distinct_rows=np.zeros(len(shapes)),
        reuse_histogram=nothing,
        access_histogram=nothing,
        workload=Workload(given["batch"], given["dtype"], given["optimizer"]),
    )
