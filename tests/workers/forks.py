"""Processes that tests start as forks of one that has imported torch, FBGEMM and TorchRec, which takes seconds.

In `cost_models.measured.session`, this module stands for `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from subprocess import DEVNULL, TimeoutExpired
from typing import Any

__all__ = ["CONTEXT", "DEVNULL", "Popen", "TimeoutExpired", "spawn", "start"]

_IMPORTED = {
    "numpy": "shard_gym.cost_models.measured.shard_streams",
    "fbgemm_gpu": "shard_gym.cost_models.measured.iteration",
    "torchrec": "torchrec.distributed.model_parallel",
}
"""A module for each package that may be there."""

CONTEXT = multiprocessing.get_context("forkserver")


def start() -> None:
    """Start the process that is forked. Not in a test, which may have another folder for temporary files."""
    multiprocessing.set_forkserver_preload([module for package, module in _IMPORTED.items() if find_spec(package)])
    forkserver.ensure_running()


class Popen:
    """A process that runs the worker `command` says: [interpreter, "-m", module, the only one of `pass_fds`, ...]."""

    def __init__(
        self, command: Sequence[str], *, stdout: Any, env: dict[str, str], pass_fds: Sequence[int], **_: Any
    ) -> None:
        link, log = (Connection(os.dup(number)) for number in (*pass_fds, stdout.fileno()))
        with link, log:
            self._process = CONTEXT.Process(target=_work, args=(link, log, env, command[2], command[4:]))
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired("fork", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def spawn(function: Callable[..., None], args: tuple[Any, ...], *, nprocs: int, log: str) -> None:
    """As `torch.multiprocessing.spawn`, with forks; what they print is appended to the file `log`."""
    from torch.multiprocessing import start_processes

    start_processes(_logged, (log, function, *args), nprocs=nprocs, start_method="forkserver")


def _logged(rank: int, log: str, function: Callable[..., None], *args: Any) -> None:
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
    function(rank, *args)
    sys.stdout.flush()


def _work(link: Connection, log: Connection, env: dict[str, str], module: str, rest: Sequence[str]) -> None:
    os.setsid()
    os.environ.update(env)
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    sys.argv = [module, str(link.fileno()), *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
