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
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.system import usable_cpus
from shard_gym.cost_models.measured.arrays import NUMPY, Arrays, TorchArrays
from shard_gym.cost_models.measured.clock import Clock, GpuClock, HostClock, Peers
from shard_gym.cost_models.measured.job import FAILED, OK, OUT_OF_MEMORY, Answer, Command, Job, Part, Timing, to_line
from shard_gym.cost_models.measured.shard_streams import streams_of
from shard_gym.cost_models.measured.streams import LIMIT_BYTES, BatchCache, LookupFile, LookupSource, draw_batches

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from shard_gym.cost_models.measured.exchange import Team
    from shard_gym.cost_models.measured.iteration import Iteration
    from shard_gym.cost_models.measured.operator import Batch, Operator

PARENT_POLL_S = 1.0
"""How often the parent's process number is checked; a forked copy of the parent may keep the socket open."""

LEARNING_RATE = 0.01

GPU_SHARE = 32
"""A GPU keeps drawn lookups in such a part of its memory: every device of a row-wise plan needs the whole table's."""


class Worker:
    """Executes commands, each of which calls a public method."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], Team] = {}
        self._operators: tuple[Any, list[Operator]] = (None, [])
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

        import shard_gym.cost_models.measured.iteration  # noqa: F401 - if FBGEMM fails, it fails here

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
            kept = LIMIT_BYTES if device == "cpu" else torch.cuda.get_device_properties(rank).total_memory // GPU_SHARE
            self._lookups = BatchCache(kept, self._arrays).stream
        else:
            self._lookups = LookupFile(recorded).stream
        if size > 1:
            store = dist.FileStore(os.path.abspath("rendezvous"), size)  # type: ignore[attr-defined]
            backend, wait = "gloo" if device == "cpu" else "nccl", timedelta(seconds=timeout_s)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)

    def join(self, devices: int, hosts: int) -> None:
        """Make the groups of the first `devices` workers, which stand for so many hosts; all workers must call it."""
        import torch.distributed as dist

        from shard_gym.cost_models.measured.exchange import Team

        if (devices, hosts) in self._groups:
            return
        whole, size = dist.new_group(list(range(devices))), devices // hosts
        inside = [list(range(first, first + size)) for first in range(0, devices, size)] if hosts > 1 else []
        across = [list(range(number, devices, size)) for number in range(size)] if hosts > 1 else []
        own: list[dist.ProcessGroup | None] = [None, None]
        for kind, groups in enumerate((inside, across)):
            for ranks in groups:
                group = dist.new_group(ranks)
                own[kind] = group if self._rank in ranks else own[kind]
        self._groups[devices, hosts] = Team(self._rank, whole, *own)

    def measure(self, job: Job) -> Timing:
        """The times of the four phases of each timed iteration."""
        from shard_gym.cost_models.measured.iteration import COLUMNS, GroupPeers

        iteration, batches = self._prepare(job)
        peers = GroupPeers(self._team(job).devices, self._device) if job.exchange else Peers()
        repeats = job.repeats
        timing = self._clock.measure(
            lambda number: iteration.phases([each[number % repeats.batches] for each in batches]),
            repeats.warmup,
            repeats.iterations,
            peers,
        )
        return replace(timing, ms=[_by_phase(row, COLUMNS) for row in timing.ms])

    def host_speed(self) -> list[float]:
        """GB/s at which this GPU reads and updates rows in the memory of its host."""
        from shard_gym.cost_models.measured.host_speed import host_speed

        self._operators = (None, [])
        return list(host_speed(self._device, self._clock))

    def run_iteration(
        self, job: Job, weights: list[list[NDArray[Any]]]
    ) -> tuple[list[NDArray[Any]], list[list[NDArray[Any]]]]:
        """Execute one iteration from the weights of each part; the flat outputs on this device, and the weights after.

        Outputs are by kind of part that any device has, in the order of `parts.KINDS`.
        """
        import torch

        iteration, batches = self._prepare(job)
        own = [each.weights() for each in iteration.operators]
        for shards, given in zip(own, weights, strict=True):
            for weight, values in zip(shards, given, strict=True):
                weight.copy_(torch.tensor(values))
        iteration.run([each[0] for each in batches])
        self._operators = (None, [])  # measurements start from other weights
        after = [[weight.float().cpu().numpy() for weight in shards] for shards in own]
        return [each.cpu().numpy() for each in iteration.outputs], after

    def _prepare(self, job: Job) -> tuple[Iteration, list[list[Batch]]]:
        """The iteration, and the batches of each of its operators."""
        from shard_gym.cost_models.measured.iteration import Iteration

        operators, batches = self._operators_of(job.parts), []
        for operator, part in zip(operators, job.parts, strict=True):
            drawn = draw_batches(
                streams_of(part, self._lookups, job.repeats.seed, self._arrays),
                job.repeats.batches,
                job.batch_size,
                arrays=self._arrays,
                threads=self._threads,
            )
            batches.append([operator.batch(*batch) for batch in drawn])
        team = self._team(job) if job.exchange else None
        return Iteration(operators, self._device, team, job.widths, job.batch_size, job.num_devices), batches

    def _team(self, job: Job) -> Team:
        return self._groups[job.num_devices, job.hosts]

    def _operators_of(self, parts: tuple[Part, ...]) -> list[Operator]:
        """The operators over the parts; those of the last job if they are the same."""
        import torch

        from shard_gym.cost_models.measured.operator import new_operator

        key = [
            (each.kind, each.tables.workload, each.num_rows, shape.tolist())
            for each in parts
            for shape in (np.stack([each.tables.embedding_dim, each.tables.num_features]),)
        ]
        if self._operators[0] != key:
            self._operators = (None, [])  # frees their memory before more is taken
            if self._device.type == "cuda":  # a large operator needs it in one piece, and other programs may need it
                torch.cuda.empty_cache()
            self._operators = (key, [new_operator(part, self._device, LEARNING_RATE) for part in parts])
        return self._operators[1]


def _by_phase(ms: list[float], columns: Sequence[int]) -> list[float]:
    """The ms of the four phases of a cost from those of what was executed, one after the other."""
    found = [0.0] * 4
    for column, took in zip(columns, ms, strict=False):  # without replicas the last two are not executed
        found[column] += took
    return found


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
