"""A worker: the process that is one device. It is told what to do through a socket; see `session` for the other end.

It ends when the socket closes or its parent is gone, whatever it is doing then.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shard_gym.cost_models.measured.batch_cache import BatchCache

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from shard_gym.cost_models.measured.streams import LookupSource

PARENT_POLL_S = 1.0
"""A forked twin of the parent holds the socket open when the parent dies; so its number is looked at too."""


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker starts.

    Attributes:
        rank: number of the device.
        size: workers of the session.
        device: "cpu" or "cuda".
        folder: where the workers find each other; removed at the end.
        fd: number of the socket.
        threads: torch's, on a CPU.
        timeout_s: after which a collective gives up by itself.
        recorded: file of recorded lookups; None to draw them.
    """

    rank: int
    size: int
    device: str
    folder: str
    fd: int
    threads: int
    timeout_s: float
    recorded: str | None = None

    def to_argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class Worker:
    """Does what it is told; every method named in `COMMANDS` takes a command's arguments and returns JSON values."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._device: torch.device
        self._kept: tuple[Any, Any] = (None, None)
        self._lookups: LookupSource = BatchCache()

    def start(self) -> dict[str, Any]:
        """Import what takes long, and find the others."""
        import torch
        import torch.distributed as dist

        import shard_gym.cost_models.measured.operator  # noqa: F401 - FBGEMM fails here if it fails

        config = self._config
        if config.recorded is not None:
            from shard_gym.cost_models.measured.recorded import RecordedLookups

            self._lookups = RecordedLookups(config.recorded)
        if config.device == "cpu":
            torch.set_num_threads(config.threads)
            self._device = torch.device("cpu")
        else:
            self._device = torch.device("cuda", config.rank)
            torch.cuda.set_device(self._device)
        if config.size > 1:
            rendezvous = os.path.join(config.folder, "rendezvous")
            store = dist.FileStore(rendezvous, config.size)  # type: ignore[attr-defined]
            backend = "gloo" if config.device == "cpu" else "nccl"
            wait = timedelta(seconds=config.timeout_s)
            dist.init_process_group(backend, store=store, rank=config.rank, world_size=config.size, timeout=wait)
        return {"pid": os.getpid()}

    def join(self, devices: int) -> dict[str, Any]:
        """Make the group of the first `devices` workers; all workers must, whether they belong to it or not."""
        import torch.distributed as dist

        if devices not in self._groups:
            self._groups[devices] = dist.new_group(list(range(devices)))
        return {}

    def measure(self, **job: Any) -> dict[str, Any]:
        """See `Job`; "ms" is (iterations, 4)."""
        from shard_gym.cost_models.measured.iteration import Iteration, batches_of
        from shard_gym.cost_models.measured.job import Job

        told = Job.from_json(job)
        fused, group = self._fused(told.tables), self._group(told)
        iteration = Iteration(fused, self._exchange(told, group))
        batches, timed = batches_of(told, fused, self._lookups), self._timed(group)
        repeats = told.repeats
        numbers = range(repeats.warmup + repeats.iterations)
        rows = [iteration.run(batches[number % len(batches)], timed) for number in numbers]
        return {"ms": rows[repeats.warmup :]}

    def trace(self, weights: list[Any], **job: Any) -> dict[str, Any]:
        """One iteration of `job` from the given weights: what arrived here, and the weights after it; for tests."""
        import torch

        from shard_gym.cost_models.measured.iteration import Iteration, batches_of
        from shard_gym.cost_models.measured.job import Job

        told = Job.from_json(job)
        fused, group = self._fused(told.tables), self._group(told)
        own = [] if fused is None else fused.weights()
        for weight, given in zip(own, weights, strict=True):
            weight.copy_(torch.tensor(given))
        exchange = self._exchange(told, group)
        iteration = Iteration(fused, exchange)
        iteration.run(batches_of(told, fused, self._lookups)[0], self._timed(group))
        arrived = iteration.outputs.detach().flatten() if exchange is None else exchange.arrived
        self._kept = (None, None)  # these weights are not those that are measured
        return {"arrived": arrived.tolist(), "weights": [weight.float().tolist() for weight in own]}

    def _fused(self, tables: Any) -> Any:
        """The operator over `tables`; that of the last job if it had the same."""
        from shard_gym.cost_models.measured.job import tables_to_json
        from shard_gym.cost_models.measured.operator import FusedTables

        if tables is None:
            return None
        key = tables_to_json(tables)
        if self._kept[0] != key:
            self._kept = (None, None)  # gives the memory back before more is taken
            self._kept = (key, FusedTables(tables, self._device))
        return self._kept[1]

    def _group(self, job: Any) -> Any:
        """The group of the devices that exchange; None if nothing is exchanged."""
        return self._groups[len(job.widths)] if job.exchange else None

    def _exchange(self, job: Any, group: Any) -> Any:
        from shard_gym.cost_models.measured.iteration import Exchange

        if group is None:
            return None
        return Exchange(group, self._config.rank, job.widths, job.batch_size, self._device)

    def _timed(self, group: Any) -> Callable[[Callable[[], None]], float]:
        """Times work once all devices of the group are ready, so that no phase holds another one's waiting."""
        import torch.distributed as dist

        from shard_gym.cost_models.measured.clock import timed

        def measured(work: Callable[[], None]) -> float:
            if group is not None:
                dist.barrier(group)
            return timed(self._device, work)

        return measured


COMMANDS = ("start", "join", "measure", "trace")

MEMORY_SIGNS = ("out of memory", "not enough memory", "can't allocate", "cannot allocate", "bad_alloc")


def answer(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """What `worker` says to `command`: {"ok": ...} or {"error": kind, "message": ...}."""
    name = command.pop("do")
    try:
        if name not in COMMANDS:
            raise ValueError(f"There is no command {name!r}.")
        return {"ok": getattr(worker, name)(**command)}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        memory = isinstance(error, MemoryError) or any(sign in text.lower() for sign in MEMORY_SIGNS)
        return {"error": "memory" if memory else "failed", "message": text.strip().splitlines()[0][:500]}


def listen(link: socket.socket, parent: int, folder: str, inbox: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put every command into `inbox`; end the process when nobody is there any more. Runs in a thread of its own."""
    text = b""
    while True:
        if not select.select([link], [], [], PARENT_POLL_S)[0] and os.getppid() == parent:
            continue
        more = _received(link) if os.getppid() == parent else b""
        if not more:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        *lines, text = (text + more).split(b"\n")
        for line in lines:
            inbox.put(json.loads(line))


def _received(link: socket.socket) -> bytes:
    """What has come in; nothing if the other end is closed."""
    try:
        return link.recv(1 << 20)
    except OSError:
        return b""


def main() -> None:
    """The process."""
    parent = os.getppid()
    config = WorkerConfig(**json.loads(sys.argv[1]))
    link = socket.socket(fileno=config.fd)
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=partial(listen, link, parent, config.folder, inbox), daemon=True).start()
    os.chdir(config.folder)
    worker = Worker(config)
    while True:
        reply = answer(worker, inbox.get())
        link.sendall(json.dumps(reply).encode() + b"\n")


if __name__ == "__main__":
    main()
