"""A worker: the process that is one device. It gets commands through a socket from a `session.Session`.

It ends when the socket closes or its parent process is gone, whatever it is doing then.
"""

from __future__ import annotations

import json
import os
import queue
import select
import shutil
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shard_gym.cost_models.measured.batch_cache import BatchCache
from shard_gym.cost_models.measured.recorded import RecordedLookups
from shard_gym.cost_models.measured.streams import LookupSource, fused_batch
from shard_gym.tables import Tables, Workload

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from shard_gym.cost_models.measured.operator import Batch, FusedTables, Iteration

PARENT_POLL_S = 1.0
"""How often the parent's process number is checked; a forked copy of the parent may keep the socket open."""

LEARNING_RATE = 0.01

_ARRAYS = tuple(field.name for field in fields(Tables) if field.name not in ("workload", "names"))


# Jobs are plain values that travel as JSON


@dataclass(frozen=True)
class Repeats:
    """How often a placement is executed, and on which batches.

    Attributes:
        iterations: timed iterations; the median counts.
        warmup: iterations before them, not timed.
        batches: different batches of lookups, used one after the other. With a single batch its rows stay in the
            caches, and bandwidth comes out up to 1.6 times too high on small working sets (NVIDIA/TileGym, pull
            request 118).
        seed: of the lookups.
    """

    iterations: int
    warmup: int
    batches: int
    seed: int


@dataclass(frozen=True)
class Job:
    """What one worker measures; every worker of a group gets its own.

    Attributes:
        tables: those on its device; None for an empty one.
        batch_size: samples of all devices together.
        widths: (D,) columns of the pooled outputs of each device, see `output_width`.
        repeats: see `Repeats`.
        exchange: whether the all-to-alls are measured too; all D devices must take part then.
    """

    tables: Tables | None
    batch_size: int
    widths: tuple[int, ...]
    repeats: Repeats
    exchange: bool

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "tables": None if self.tables is None else tables_to_json(self.tables),
            "batch_size": self.batch_size,
            "widths": list(self.widths),
            "repeats": asdict(self.repeats),
            "exchange": self.exchange,
        }

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Job:
        """The job that `to_json` described."""
        tables, repeats = record["tables"], Repeats(**record["repeats"])
        if tables is not None:
            workload, names = Workload(**tables["workload"]), tuple(tables["names"])
            tables = Tables(**{name: tables[name] for name in _ARRAYS}, workload=workload, names=names)
        return Job(tables, record["batch_size"], tuple(record["widths"]), repeats, record["exchange"])


def tables_to_json(tables: Tables) -> dict[str, Any]:
    """All of `tables` as JSON values."""
    arrays = {name: getattr(tables, name).tolist() for name in _ARRAYS}
    return {**arrays, "workload": asdict(tables.workload), "names": list(tables.names)}


def output_width(tables: Tables | None) -> int:
    """Columns of the pooled outputs: dim times features, summed over the tables; 0 for None."""
    return 0 if tables is None else int((tables.embedding_dim * tables.num_features).sum())


# The process


class Worker:
    """Executes commands; every method in `COMMANDS` takes a command's arguments and returns JSON values."""

    def __init__(self) -> None:
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._fused: tuple[Any, FusedTables | None] = (None, None)
        self._rank: int
        self._device: torch.device
        self._lookups: LookupSource

    def start(
        self, device: str, rank: int, size: int, threads: int, timeout_s: float, recorded: str | None
    ) -> dict[str, Any]:
        """Import torch and FBGEMM, and connect to the other workers.

        Args:
            device: "cpu" or "cuda".
            rank: number of this worker and its device.
            size: workers of the session; they find each other through a file in the working directory.
            threads: torch's, on a CPU.
            timeout_s: after which a collective gives up by itself.
            recorded: file of recorded lookups; None to draw them.
        """
        import torch
        import torch.distributed as dist

        import shard_gym.cost_models.measured.operator  # noqa: F401 - if FBGEMM fails, it fails here

        self._rank = rank
        self._lookups = BatchCache() if recorded is None else RecordedLookups(recorded)
        if device == "cpu":
            torch.set_num_threads(threads)
            self._device = torch.device("cpu")
        else:
            self._device = torch.device("cuda", rank)
            torch.cuda.set_device(self._device)
        if size > 1:
            store = dist.FileStore(os.path.abspath("rendezvous"), size)  # type: ignore[attr-defined]
            backend, wait = "gloo" if device == "cpu" else "nccl", timedelta(seconds=timeout_s)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        return {}

    def join(self, devices: int) -> dict[str, Any]:
        """Make the group of the first `devices` workers; all workers must call it, members or not."""
        import torch.distributed as dist

        if devices not in self._groups:
            self._groups[devices] = dist.new_group(list(range(devices)))
        return {}

    def measure(self, **job: Any) -> dict[str, Any]:
        """Execute a `Job`; "ms" is (iterations, 4)."""
        request = Job.from_json(job)
        iteration, batches = self._prepare(request)
        numbers = range(request.repeats.warmup + request.repeats.iterations)
        rows = [iteration.run(batches[number % len(batches)]) for number in numbers]
        return {"ms": rows[request.repeats.warmup :]}

    def run_iteration(self, weights: list[Any], **job: Any) -> dict[str, Any]:
        """Execute one iteration of a `Job` from the given weights; the outputs on this device, the weights after it."""
        import torch

        iteration, batches = self._prepare(Job.from_json(job))
        own = [] if iteration.fused is None else iteration.fused.weights()
        for weight, given in zip(own, weights, strict=True):
            weight.copy_(torch.tensor(given))
        iteration.run(batches[0])
        self._fused = (None, None)  # measurements start from other weights
        return {"outputs": iteration.outputs.tolist(), "weights": [weight.float().tolist() for weight in own]}

    def _prepare(self, job: Job) -> tuple[Iteration, list[Batch | None]]:
        """The iteration of `job` and its batches."""
        from shard_gym.cost_models.measured.operator import Iteration

        fused = self._fused_tables(job.tables)
        group = self._groups[len(job.widths)] if job.exchange else None
        batches: list[Batch | None] = [None] * job.repeats.batches
        if fused is not None and job.tables is not None:
            streams = [self._lookups.stream(job.tables, table, job.repeats.seed) for table in range(len(job.tables))]
            batches = [fused.batch(*fused_batch(streams, k, job.batch_size)) for k in range(job.repeats.batches)]
        return Iteration(fused, self._device, group, self._rank, job.widths, job.batch_size), batches

    def _fused_tables(self, tables: Tables | None) -> FusedTables | None:
        """The operator over `tables`; that of the last job if the tables are the same."""
        from shard_gym.cost_models.measured.operator import FusedTables

        if tables is None:
            return None
        key = tables_to_json(tables)
        if self._fused[0] != key:
            self._fused = (None, None)  # frees its memory before more is taken
            self._fused = (key, FusedTables(tables, self._device, LEARNING_RATE))
        return self._fused[1]


COMMANDS = ("start", "join", "measure", "run_iteration")

MEMORY_SIGNS = ("out of memory", "not enough memory", "can't allocate", "cannot allocate", "bad_alloc")


def reply_to(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """Execute `command`: {"ok": ...} or {"error": kind, "message": ...}."""
    name = command.pop("do")
    try:
        if name not in COMMANDS:
            raise ValueError(f"There is no command {name!r}.")
        return {"ok": getattr(worker, name)(**command)}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        memory = isinstance(error, MemoryError) or any(sign in text.lower() for sign in MEMORY_SIGNS)
        return {"error": "memory" if memory else "failed", "message": text.strip().splitlines()[0][:500]}


def read_commands(link: socket.socket, parent: int, folder: str, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put every command into `inbox`; end the process when the parent is gone. Runs in a thread of its own."""
    text = b""
    while True:
        if not select.select([link], [], [], PARENT_POLL_S)[0] and os.getppid() == parent:
            continue
        received = b""
        if os.getppid() == parent:
            try:
                received = link.recv(1 << 20)
            except OSError:  # the other end is closed
                received = b""
        if not received:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        *lines, text = (text + received).split(b"\n")
        for line in lines:
            inbox.put(json.loads(line))


def main(fd: int, folder: str) -> None:
    """Run a worker that reads from the socket `fd`; it works in `folder`, and removes it when its parent is gone."""
    parent = os.getppid()
    link = socket.socket(fileno=fd)
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=partial(read_commands, link, parent, folder, inbox), daemon=True).start()
    os.chdir(folder)
    worker = Worker()
    while True:
        reply = reply_to(worker, inbox.get())
        link.sendall(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
