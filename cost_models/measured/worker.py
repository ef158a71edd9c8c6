"""A worker: the process that is one device. It gets commands through a socket from a `session.Session`.

It ends when the socket closes or its parent process is gone, whatever it is doing then.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import sys
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from shard_gym.cost_models.measured.arrays import NUMPY, Arrays, TorchArrays
from shard_gym.cost_models.measured.batch_cache import BatchCache
from shard_gym.cost_models.measured.clock import Clock, GpuClock, HostClock, Peers
from shard_gym.cost_models.measured.job import FAILED, OK, OUT_OF_MEMORY, Answer, Command, Job, Timing, to_line
from shard_gym.cost_models.measured.recorded import RecordedLookups
from shard_gym.cost_models.measured.streams import LookupSource, draw_batches
from shard_gym.system import usable_cpus
from shard_gym.tables import Tables

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from shard_gym.cost_models.measured.operator import Batch, FusedTables, Iteration

PARENT_POLL_S = 1.0
"""How often the parent's process number is checked; a forked copy of the parent may keep the socket open."""

LEARNING_RATE = 0.01


class Worker:
    """Executes commands, each of which calls a public method."""

    def __init__(self) -> None:
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._fused: tuple[Any, FusedTables | None] = (None, None)
        self._rank: int
        self._device: torch.device
        self._clock: Clock
        self._lookups: LookupSource
        self._arrays: Arrays = NUMPY
        self._threads: Executor | None = None

    def start(self, device: str, rank: int, size: int, threads: int, timeout_s: float, recorded: str | None) -> None:
        """Import torch and FBGEMM, and connect to the other workers, through a file in the working directory.

        `threads` are torch's on a CPU, `recorded` is a file of lookups, which are drawn otherwise, and a collective
        gives up by itself after `timeout_s`.
        """
        import torch
        import torch.distributed as dist

        import shard_gym.cost_models.measured.operator  # noqa: F401 - if FBGEMM fails, it fails here

        self._rank = rank
        if device == "cpu":
            torch.set_num_threads(threads)
            self._device = torch.device("cpu")
            self._clock = HostClock()
        else:
            self._device = torch.device("cuda", rank)
            torch.cuda.set_device(self._device)
            self._clock = GpuClock(torch.cuda)
            enter = partial(torch.cuda.set_device, self._device)
            self._threads = ThreadPoolExecutor(max(usable_cpus() // size, 1), initializer=enter)
            if recorded is None:
                self._arrays = TorchArrays(self._device)
        if recorded is None:
            self._lookups = BatchCache(arrays=self._arrays).stream
        else:
            self._lookups = RecordedLookups(recorded).stream
        if size > 1:
            store = dist.FileStore(os.path.abspath("rendezvous"), size)  # type: ignore[attr-defined]
            backend, wait = "gloo" if device == "cpu" else "nccl", timedelta(seconds=timeout_s)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)

    def join(self, devices: int) -> None:
        """Make the group of the first `devices` workers; all workers must call it, members or not."""
        import torch.distributed as dist

        if devices not in self._groups:
            self._groups[devices] = dist.new_group(list(range(devices)))

    def measure(self, job: Job) -> Timing:
        """The times of the phases of each timed iteration."""
        from shard_gym.cost_models.measured.operator import GroupPeers

        iteration, batches = self._prepare(job)
        peers = GroupPeers(self._group(job), self._device) if job.exchange else Peers()
        repeats = job.repeats
        return self._clock.measure(
            lambda number: iteration.phases(batches[number % len(batches)]), repeats.warmup, repeats.iterations, peers
        )

    def run_iteration(self, job: Job, weights: list[NDArray[Any]]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """Execute one iteration from the given weights; the outputs on this device, flat, and the weights after it."""
        import torch

        iteration, batches = self._prepare(job)
        own = [] if iteration.fused is None else iteration.fused.weights()
        for weight, given in zip(own, weights, strict=True):
            weight.copy_(torch.tensor(given))
        iteration.run(batches[0])
        self._fused = (None, None)  # measurements start from other weights
        return iteration.outputs.cpu().numpy(), [weight.float().cpu().numpy() for weight in own]

    def _prepare(self, job: Job) -> tuple[Iteration, list[Batch | None]]:
        from shard_gym.cost_models.measured.operator import Iteration

        fused = self._fused_tables(job.tables)
        group = self._group(job) if job.exchange else None
        batches: list[Batch | None] = [None] * job.repeats.batches
        if fused is not None and job.tables is not None:
            streams = [self._lookups(job.tables, table, job.repeats.seed) for table in range(len(job.tables))]
            drawn = draw_batches(
                streams, job.repeats.batches, job.batch_size, arrays=self._arrays, threads=self._threads
            )
            batches = [fused.batch(*batch) for batch in drawn]
        return Iteration(fused, self._device, group, self._rank, job.widths, job.batch_size), batches

    def _group(self, job: Job) -> dist.ProcessGroup:
        return self._groups[len(job.widths)]

    def _fused_tables(self, tables: Tables | None) -> FusedTables | None:
        """The operator over `tables`; that of the last job if it is the same."""
        import torch

        from shard_gym.cost_models.measured.operator import FusedTables

        if tables is None:
            return None
        shapes = (tables.num_embeddings, tables.embedding_dim, tables.num_features)
        key = tables.workload, [numbers.tolist() for numbers in shapes]
        if self._fused[0] != key:
            self._fused = (None, None)  # frees its memory before more is taken
            if self._device.type == "cuda":  # a large operator needs it in one piece, and other programs may need it
                torch.cuda.empty_cache()
            self._fused = (key, FusedTables(tables, self._device, LEARNING_RATE))
        return self._fused[1]


MEMORY_SIGNS = ("out of memory", "not enough memory", "can't allocate", "cannot allocate", "bad_alloc")


def reply_to(worker: Worker, command: Command) -> Answer:
    """Execute `command`."""
    name, arguments = command
    try:
        if "job" in arguments:
            arguments["job"] = Job.from_json(arguments["job"])
        return OK, getattr(worker, name)(**arguments)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        memory = isinstance(error, MemoryError) or any(sign in text.lower() for sign in MEMORY_SIGNS)
        return OUT_OF_MEMORY if memory else FAILED, text.strip().splitlines()[0][:500]


def read_commands(link: socket.socket, parent: int, folder: str, inbox: queue.SimpleQueue[Command]) -> None:
    """Put every command into `inbox`; end the process when the parent is gone. Runs in a thread of its own."""
    commands = link.makefile("rb")
    while os.getppid() == parent:
        if not wait([link], PARENT_POLL_S):
            continue
        try:
            line = commands.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # the other end is closed
            break
        name, arguments = json.loads(line)
        inbox.put((name, arguments))
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(fd: int, folder: str) -> None:
    """Run a worker that reads from the socket `fd`; it works in `folder`, and removes it when its parent is gone."""
    parent = os.getppid()
    link = socket.socket(fileno=fd)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=partial(read_commands, link, parent, folder, inbox), daemon=True).start()
    os.chdir(folder)
    worker = Worker()
    while True:
        link.sendall(to_line(reply_to(worker, inbox.get())))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
