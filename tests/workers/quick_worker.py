"""A worker that neither imports torch nor computes, so that it starts at once; run as a module.

Only what a worker does with its commands is replaced. How it reads them, answers, and ends is the real one's.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.cost_models.measured import worker
from shard_gym.cost_models.measured.job import Job, Timing

LONG = 1_000
"""Iterations that take forever."""

MUCH = 2**40
"""Rows for which there is no memory."""


class QuickWorker(worker.Worker):
    """Its times are random. Its collectives are one byte between two workers, and fail, as gloo's do, if the other is
    gone."""

    _peer: socket.socket

    def start(self, rank: int, size: int, **_: Any) -> None:  # type: ignore[override]
        self._random = np.random.default_rng()
        if size == 1:
            return
        path = Path("rendezvous").resolve()
        with socket.socket(socket.AF_UNIX) as end:
            if rank == 0:
                end.bind(f"{path}.new")
                end.listen()
                path.with_name("rendezvous.new").rename(path)  # it is there once it can be connected to
                self._peer = end.accept()[0]
            else:
                while not path.exists():
                    time.sleep(0.01)
                self._peer = end.dup()
                self._peer.connect(str(path))

    def join(self, devices: int, hosts: int) -> None:
        """There is one group."""

    def measure(self, job: Job) -> Timing:
        if any(part.tables.num_embeddings.max() >= MUCH for part in job.parts):
            raise MemoryError(f"{MUCH} rows")
        if job.exchange:
            if job.repeats.iterations < LONG:
                self._peer.sendall(b".")
            if not self._peer.recv(1):
                raise RuntimeError("Connection closed by peer")
        return Timing(self._random.random((job.repeats.iterations, 4)).tolist())


if __name__ == "__main__":
    worker.Worker = QuickWorker  # type: ignore[misc]
    worker.main(int(sys.argv[1]), sys.argv[2])
