"""The computer this process runs on: its CPU, its memory, and the threads of torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The name of the CPU: the first model name in /proc/cpuinfo, or that of the `platform` module."""
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
    """Number of CPUs that this process may use; all CPUs where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_memory() -> int:
    """Bytes of memory of the machine; 0 where it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return 0


def load_average() -> float:
    """Mean number of programs that ran or waited for a CPU in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
        return 0.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread; the project's networks are too small to gain from more. Needs torch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
