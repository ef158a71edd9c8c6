"""The computer this process runs on: its CPU, its memory, and the threads of torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The CPU's name: the first model name in /proc/cpuinfo, or what the platform says."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, model = line.partition(":")
        if key.strip() == "model name" and model.strip():
            return model.strip()
    return platform.processor() or platform.machine() or "unknown"


def usable_cpus() -> int:
    """CPUs that this process may run on; all of the machine's where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_memory() -> int:
    """Bytes of memory in the machine; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, because the project's networks are too small to gain from a second one. Needs torch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
