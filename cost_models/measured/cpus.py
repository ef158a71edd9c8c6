"""The CPUs that a program measures on: none that another one measures on, while there are others.

A program claims a CPU by a name among Linux's abstract sockets. These belong to the machine (to its network namespace),
whoever's programs take them. They leave no file, and a name is free again when its program ends, killed or not.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
import weakref
from contextlib import suppress

from shard_gym.common.text import counted


class _Claim:
    """A CPU that no other program has while this object lives, if the system has such names; OSError if one has."""

    def __init__(self, cpu: int) -> None:
        link = socket.socket(socket.AF_UNIX)
        self._close = weakref.finalize(self, link.close)
        try:
            link.bind(f"\0shard-gym-measures-on-cpu-{cpu}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise


_claims: weakref.WeakValueDictionary[tuple[int, int], _Claim] = weakref.WeakValueDictionary()
"""The claims of this process, by process number (a forked copy has none) and CPU. Its sessions share them, because they
do not measure at the same time."""


def _claim(cpu: int) -> _Claim:
    claim = _claims.get((os.getpid(), cpu)) or _Claim(cpu)
    _claims[os.getpid(), cpu] = claim
    return claim


class CpuShare:
    """CPUs for some threads that compute at the same time, claimed while this object lives.

    `cpus` are as many, those that are claimed first; empty if this process may not use so many, or where the system has
    no affinity. Warns if other programs measure on those that are needed.
    """

    def __init__(self, threads: int) -> None:
        self.cpus: list[int] = []
        self._claims: list[_Claim] = []
        if sys.platform != "linux":
            return
        usable = sorted(os.sched_getaffinity(0))
        claimed: list[int] = []
        wanted = min(threads, len(usable))
        for cpu in usable:
            with suppress(OSError):
                if len(claimed) < wanted:
                    self._claims.append(_claim(cpu))
                    claimed.append(cpu)
        if len(claimed) < wanted:
            warnings.warn(
                f"Another program measures on this machine: it leaves {counted(len(claimed), 'CPU')} of the "
                f"{len(usable)} that this process may use, and {wanted} are needed. Both programs measure wrong times; "
                "wait until the other one is done.",
                stacklevel=2,
            )
        if threads <= len(usable):
            self.cpus = [*claimed, *(cpu for cpu in usable if cpu not in claimed)][:threads]
