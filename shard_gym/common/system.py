"""The computer this process runs on, within the limits of its container: CPUs, their instructions, memory and threads.

Containers and batch systems limit a process by control groups of Linux. A limit of any group that holds the process
counts; both versions of their files are read (docs.kernel.org, admin-guide/cgroup-v2 and cgroup-v1).
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from shard_gym.common.errors import MissingExtraError, missing_extra

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")

_PAGE_CACHE = ("inactive_file", "active_file")
"""Memory of a control group that Linux takes back when programs need it, as `memory.stat` calls it."""


def cpu_model() -> str:
    """The name of the CPU: the first model name in /proc/cpuinfo, or that of the `platform` module."""
    for line in _text(CPUINFO).splitlines():
        key, _, model = line.partition(":")
        if key.strip() == "model name" and model.strip():
            return model.strip()
    return platform.processor() or platform.machine() or "unknown"


def instruction_set() -> str:
    """What decides how this process rounds: the instructions that NumPy uses, then its BLAS and the kernels of that.

    Such as "NumPy AVX2, OpenBLAS Haswell". NumPy computes exponentials, and its BLAS products of matrices, with the
    widest instructions of the CPU, or fewer where NPY_DISABLE_CPU_FEATURES and OPENBLAS_CORETYPE say so; the last
    digits differ. Without threadpoolctl the BLAS is not known and left out.
    """
    import numpy as np

    simd = np.show_config(mode="dicts")["SIMD Extensions"]
    used = [*simd.get("baseline", []), *simd.get("found", [])]
    known = [name for name, marks in _LEVELS.items() if marks.intersection(used)]
    widest = [*known, *reversed(used), "without SIMD"][0]
    try:
        pools = _found_thread_pools().info()  # not kept: others may be loaded later
    except MissingExtraError:
        pools = []
    blas = [
        " ".join(filter(None, (_BLAS.get(pool["internal_api"], pool["internal_api"]), pool.get("architecture"))))
        for pool in pools
        if pool["user_api"] == "blas"
    ]
    return ", ".join([f"NumPy {widest}", *blas[:1]])


_LEVELS = {"AVX-512": {"X86_V4", "AVX512_SKX"}, "AVX2": {"X86_V3", "AVX2"}, "SSE4": {"X86_V2", "SSE42"}}
"""Instructions of x86 from the widest on, and NumPy's names of them: those of its later and its earlier versions."""

_BLAS = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
"""The names of libraries by what threadpoolctl calls them."""


def current_commit() -> str:
    """The commit of the checkout that ShardGym runs from; empty if it does not run from a checkout."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def usable_cpus() -> int:
    """Number of CPUs that this process may use at the same time: those of its affinity, or a container's quota.

    All CPUs where the system has neither. A quota of 2.5 CPUs is 2: a third busy thread would be stopped now and then.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([cpus, *_cpu_quotas()])))


def usable_memory() -> int:
    """Bytes of the machine's memory that this process may use, or fewer by a container's limit; 0 where unknown."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return 0
    return min([physical, *(limit for limit, _ in _memory_limits())])


def available_memory() -> int | None:
    """Bytes of memory that programs can still take, within a container's limit; None where the system does not tell."""
    found = [1024 * value for value in _named_numbers(MEMINFO, "MemAvailable:")]
    return min([*found, *(max(limit - used, 0) for limit, used in _memory_limits())], default=None)


def load_average() -> float:
    """Mean number of programs that ran or waited for a CPU in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
        return 0.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and NumPy on one thread; the project's networks are too small to gain from more. Needs torch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Multiply NumPy's matrices on one thread, so that equal seeds give equal results whatever the number of CPUs.

    With another number of threads the sums of large matrices are rounded in another order.
    """
    with _thread_pools().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def silent_c_output() -> Iterator[None]:
    """What compiled code, or Python, prints to the standard output in here is lost, if there is a C library."""
    try:
        sys.stdout.flush()
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    except (OSError, AttributeError, ValueError):  # there is none
        yield
        return
    _flush_c_output()
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        _flush_c_output()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _flush_c_output() -> None:
    library = _c_library()
    if library is not None:
        library.fflush(None)


@cache
def _c_library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


@cache
def _thread_pools() -> Any:
    """`_found_thread_pools`, once."""
    return _found_thread_pools()


def _found_thread_pools() -> Any:
    """The libraries with threads that this process has loaded; finding them takes milliseconds."""
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError as error:
        raise missing_extra("threadpoolctl", "torch", "Placing with a network") from error
    return ThreadpoolController()


def _cgroups(controller: str) -> Iterator[Path]:
    """The folders of the control groups that may limit this process by `controller`, from its own one outwards."""
    for own in _text(OWN_CGROUPS).splitlines():  # NUMBER:CONTROLLERS:PATH; version 2 names no controllers
        _, _, names_and_path = own.partition(":")
        names, _, path = names_and_path.partition(":")
        if names and controller not in names.split(","):
            continue
        root = CGROUPS / controller if names else CGROUPS
        # In a container the path may begin outside of what is mounted there; then the root is the container's group.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _cpu_quotas() -> Iterator[float]:
    for group in _cgroups("cpu"):
        version_1 = f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
        numbers = [int(word) for word in (_text(group / "cpu.max") or version_1).split() if word.isdecimal()]
        if len(numbers) == 2 and min(numbers) > 0:  # without a limit there is "max" or -1
            yield numbers[0] / numbers[1]


def _memory_limits() -> Iterator[tuple[int, int]]:
    """The limits on memory, each with what is used of it and cannot be taken back, in bytes."""
    for group in _cgroups("memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            numbers = f"{_text(group / limit_file)} {_text(group / used_file)}".split()
            if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
                stat = group / "memory.stat"  # version 1 has numbers with and without the groups inside
                cache = [(_named_numbers(stat, f"total_{name}") or _named_numbers(stat, name)) for name in _PAGE_CACHE]
                yield int(numbers[0]), max(int(numbers[1]) - sum(map(sum, cache)), 0)


def _named_numbers(path: Path, name: str) -> list[int]:
    """The number behind `name` in a file of lines that begin with a name; none if there is no such line."""
    words = _text(path).split()
    return [int(words[words.index(name) + 1])] if name in words else []


def _text(path: Path) -> str:
    """The content of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
