"""Measure FBGEMM's fused operator on one GPU, at designed loads: which term of a cost model takes how long.

    python tools/measure_operators.py --out FILE [--part NAME ...] [--device cuda|cpu] [--seconds 120]

Each line of FILE is a record in JSON: the load (tables, batch, dtype, optimizer, where the rows are), the median ms of
every phase over the timed iterations, the SM clock in GHz, and how many iterations contain time of the host. Lookups
are drawn here, with exact numbers of lookups and distinct rows; `shard-gym collect` measures realistic ones.

Parts, in this order:
    dims        forward and backward of one table; every row is read once
    widths      narrow tables beside a wide one in one operator, and each alone
    runs        rows that are read up to 8,192 times in a batch: the sort and the updates of the backward
    hot         sets of rows from 1 to 640 MB that every batch reads: the L2 cache
    tables      the same lookups in 1 to 128 tables
    sort        FBGEMM's sort of a batch alone
    copies      copies in HBM, and between the host and the GPU
    host        rows in host memory, read and updated there (FBGEMM's MANAGED)
    cache       rows in host memory behind a cache in HBM (MANAGED_CACHING), with hits only and with misses only
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shard_gym.cost_models.measured.clock import Clock, GpuClock, HostClock, Peers, Phase
from shard_gym.cost_models.measured.operator import FIRST_WEIGHT, OPTIMIZERS, WEIGHTS

HBM, HOST, MAPPED, CACHE = "hbm", "host", "host mapped", "cache"
IN_HBM, TO_GPU, TO_HOST = "in HBM", "to the GPU", "to the host"
BATCHES = 4  # different ones, in turn


@dataclass(frozen=True)
class Table:
    """One table and what a batch reads of it."""

    rows: int
    dim: int
    pooling: int  # lookups of each bag
    distinct: int = 0  # rows that a batch reads, all equally often; 0: every lookup reads another row


@dataclass(frozen=True)
class Load:
    """What one operator does in an iteration."""

    part: str
    tables: tuple[Table, ...]
    batch_size: int
    dtype: str = "fp16"
    optimizer: str = "sgd"
    where: str = HBM
    same_rows: bool = False  # whether all batches read the same distinct rows
    load_factor: float = 0.25  # slots of the cache as a share of the rows
    iterations: int = 7


# --- The design


def dims() -> Iterator[Load]:
    sizes = [(4096, 1), (4096, 20), (16384, 10), (65536, 1), (65536, 10), (65536, 50)]
    for dtype, optimizer in (("fp16", "sgd"), ("fp32", "rowwise_adagrad")):
        for batch_size, pooling in sizes:
            for dim in (8, 16, 32, 64, 128, 256):
                yield Load("dims", (Table(2**24, dim, pooling),), batch_size, dtype, optimizer)
    for dim in (32, 128):
        for pooling in (1, 20):
            yield Load("dims", (Table(2**22, dim, pooling),), 16384, "fp32", "adam")


def widths() -> Iterator[Load]:
    wide = {dim: Table(2**20, dim, 1) for dim in (64, 128, 256)}
    for distinct, same in ((0, False), (2**12, True)):
        narrow = {dim: (Table(2**21, dim, 20, distinct),) * 8 for dim in (4, 8, 16, 32, 64, 128)}
        load = partial(Load, "widths", batch_size=16384, same_rows=same)
        for tables in narrow.values():
            yield load(tables)
        for table in wide.values():
            yield load((table,))
        for dim, tables in narrow.items():
            for width, table in wide.items():
                if width > dim:
                    yield load((*tables, table))


def runs() -> Iterator[Load]:
    for dtype, optimizer, dim in (
        ("fp16", "sgd", 16),
        ("fp16", "sgd", 64),
        ("fp16", "sgd", 128),
        ("fp32", "rowwise_adagrad", 128),
    ):
        for run in (1, 2, 4, 8, 32, 33, 256, 1024, 1025, 8192):
            table = Table(2**23, dim, 16, 2**21 // run)
            yield Load("runs", (table,), 2**17, dtype, optimizer)


def hot() -> Iterator[Load]:
    for dim in (32, 128):
        for megabytes in (1, 4, 16, 30, 50, 80, 160, 640):
            rows = megabytes * 10**6 // (2 * dim)
            if rows <= 2**22:
                yield Load("hot", (Table(2**23, dim, 16, rows),), 2**18, same_rows=True)


def tables() -> Iterator[Load]:
    for lookups in (2**16, 2**21):
        for count in (1, 4, 16, 64, 128):
            batch_size = 4096 if lookups > 2**16 else 512
            rows = max(BATCHES * lookups // count, 2**17)
            yield Load("tables", (Table(rows, 64, lookups // (batch_size * count)),) * count, batch_size)


def host() -> Iterator[Load]:
    kinds = [("fp32", 128), ("fp32", 32), ("fp16", 128), ("fp16", 64), ("fp16", 16), ("fp32", 256)]
    for dtype, dim in kinds:
        for optimizer in ("sgd", "rowwise_adagrad") if dtype == "fp32" else ("sgd",):
            for lookups, distinct in ((2**20, 0), (2**17, 0), (2**20, 2**18)):
                table = Table(2**22, dim, 16, distinct)
                yield Load("host", (table,), lookups // 16, dtype, optimizer, HOST, iterations=4)
    for where, rows in ((MAPPED, 2**22), (HOST, 2**24), (HOST, 2**25)):
        yield Load("host", (Table(rows, 128, 16),), 2**16, "fp32", "sgd", where, iterations=4)


def cache() -> Iterator[Load]:
    for dtype, dim in (("fp32", 128), ("fp32", 32), ("fp16", 64)):
        for lookups in (2**19, 2**16):
            for distinct, same in ((0, True), (lookups // 4, True), (0, False)):
                table = Table(2**22 if lookups > 2**16 else 2**19, dim, 16, distinct)
                yield Load("cache", (table,), lookups // 16, dtype, "sgd", CACHE, same, iterations=5)


# --- Executing it


class Bench:
    """Measures loads on one device; keeps the last operator, because the next load may have the same tables."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.clock: Clock = HostClock() if device == "cpu" else GpuClock(torch.cuda)
        self._kept: tuple[Any, Any] = (None, None)
        torch.manual_seed(0)

    def timed(self, phases_of: Callable[[int], list[Phase]], iterations: int) -> dict[str, Any]:
        timing = self.clock.measure(phases_of, 2, iterations, Peers())
        ms = [median(column) for column in zip(*timing.ms, strict=True)]
        least = [min(column) for column in zip(*timing.ms, strict=True)]
        return {"ms": ms, "least_ms": least, "ghz": timing.clock_ghz, "late": timing.late}

    def alone(self, call: Callable[[], Any]) -> dict[str, Any]:
        """The times of a call, whose result is not used."""

        def phase() -> None:
            call()

        return self.timed(lambda _: [phase], 7)

    def operator(self, load: Load) -> Any:
        sizes = [(table.rows, table.dim) for table in load.tables]
        shapes = (sizes, load.dtype, load.optimizer, load.where, load.load_factor)
        if self._kept[0] != shapes:
            self._kept = (None, None)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._kept = (shapes, self._made(load))
        return self._kept[1]

    def _made(self, load: Load) -> Any:
        location = {
            HBM: EmbeddingLocation.DEVICE,
            HOST: EmbeddingLocation.MANAGED,
            MAPPED: EmbeddingLocation.MANAGED,
            CACHE: EmbeddingLocation.MANAGED_CACHING,
        }[load.where]
        where = (location, ComputeDevice.CUDA)
        if self.device.type == "cpu":
            where = (EmbeddingLocation.HOST, ComputeDevice.CPU)
        module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(table.rows, table.dim, *where) for table in load.tables],
            weights_precision=WEIGHTS[load.dtype],
            output_dtype=SparseType.FP32,
            optimizer=OPTIMIZERS[load.optimizer],
            learning_rate=0.01,
            cache_algorithm=CacheAlgorithm.LRU,
            cache_load_factor=load.load_factor,
            uvm_host_mapped=load.where == MAPPED,
            device=self.device,
        )
        for weight in module.split_embedding_weights():
            weight.detach().fill_(FIRST_WEIGHT)
        return module

    def batches(self, load: Load) -> list[tuple[Any, Any]]:
        """Indices and offsets of each batch."""
        drawn = [[self._reads(table, load, batch) for batch in range(BATCHES)] for table in load.tables]
        lengths = [table.pooling for table in load.tables for _ in range(load.batch_size)]
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
        torch.cumsum(torch.tensor(lengths), 0, out=offsets[1:])
        return [(torch.cat([reads[k] for reads in drawn]), offsets.to(self.device)) for k in range(BATCHES)]

    def _reads(self, table: Table, load: Load, batch: int) -> Any:
        lookups = load.batch_size * table.pooling
        distinct = table.distinct or lookups
        # An odd multiple of the row numbers is a permutation of the rows where they are a power of two.
        first = 0 if load.same_rows else batch * distinct
        numbers = torch.arange(first, first + distinct, device=self.device)
        rows = numbers * 0x9E3779B1 % table.rows
        order = torch.randperm(lookups, device=self.device) % distinct
        return rows[order]

    def measure(self, load: Load) -> dict[str, Any]:
        """The record of one load."""
        module, batches = self.operator(load), self.batches(load)
        outputs: list[Any] = [None]

        def forward(batch: tuple[Any, Any]) -> None:
            outputs[0] = module(*batch)

        def backward() -> None:
            outputs[0].backward(outputs[0].detach())

        def phases(number: int) -> list[Phase]:
            batch = batches[number % BATCHES]
            steps: list[Phase] = [partial(forward, batch), backward]
            return [partial(module.prefetch, *batch), *steps] if load.where == CACHE else steps

        names = ["prefetch", "forward", "backward"][-2 - (load.where == CACHE) :]
        return {**asdict(load), "phases": names, **self.timed(phases, load.iterations)}

    def sort(self, bits: int, lookups: int) -> dict[str, Any]:
        """FBGEMM's sort of a batch."""
        indices = torch.randint(2**bits, (lookups,), device=self.device)
        offsets = torch.arange(0, lookups + 1, 16, device=self.device)
        hashes = torch.tensor([0, 2**bits], device=self.device)
        call = partial(torch.ops.fbgemm.transpose_embedding_input, hashes, bits, indices, offsets)
        return {"part": "sort", "bits": bits, "lookups": lookups, **self.alone(call)}

    def copy(self, name: str, size: int) -> dict[str, Any]:
        """A copy of so many bytes, in HBM, or between it and pinned memory of the host."""
        here = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if name == IN_HBM:
            source, target = here, torch.empty_like(here)
        else:
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            source, target = (pinned, here) if name == TO_GPU else (here, pinned)
        call = partial(target.copy_, source, non_blocking=True)
        return {"part": "copies", "copy": name, "bytes": size, **self.alone(call)}


DESIGN: dict[str, Callable[[], Iterator[Load]]] = {
    "dims": dims,
    "widths": widths,
    "runs": runs,
    "hot": hot,
    "tables": tables,
    "host": host,
    "cache": cache,
}
PARTS = ("dims", "widths", "runs", "hot", "tables", "sort", "copies", "host", "cache")


def records(bench: Bench, part: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """What makes the records of a part, one after the other."""
    if part == "sort":
        for bits in (12, 17, 20, 24, 28, 33):
            for lookups in (2**14, 2**17, 2**20, 2**23, 2**25):
                yield partial(bench.sort, bits, lookups)
    elif part == "copies":
        for size in (2**20, 2**24, 2**28, 2**31):
            for name in (IN_HBM, TO_GPU, TO_HOST):
                yield partial(bench.copy, name, size)
    else:
        for load in DESIGN[part]():
            yield partial(bench.measure, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=600.0, help="no measurement begins after so many")
    args = parser.parse_args()
    bench, end = Bench(args.device), time.monotonic() + args.seconds
    with args.out.open("a") as out:
        for part in args.part:
            begin, count, errors = time.monotonic(), 0, 0
            for record in records(bench, part):
                if time.monotonic() > end:
                    break
                try:
                    line = record()
                except Exception as error:
                    errors += 1
                    line = {"part": part, "error": f"{type(error).__name__}: {error}"[:300]}
                out.write(json.dumps(line) + "\n")
                out.flush()
                count += 1
            print(f"{part}: {count} records, {errors} errors, {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
