from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shard_gym.common import system


def test_the_cpu_names_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(system, "CPUINFO", cpuinfo)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert system.cpu_model() == "aarch64"  # no such file
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert system.cpu_model() == "aarch64"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC: odd\nmodel name\t: another\n")
    assert system.cpu_model() == "AMD EPYC: odd"


@pytest.mark.parametrize(
    ("simd", "blas", "said"),
    [
        (
            {"baseline": ["X86_V2"], "found": ["X86_V3", "X86_V4", "AVX512_ICL"]},
            "SkylakeX",
            "AVX-512, OpenBLAS SkylakeX",
        ),
        ({"baseline": ["SSE", "SSE2"], "found": ["SSE42", "AVX", "FMA3", "AVX2"]}, "Zen", "AVX2, OpenBLAS Zen"),
        ({"baseline": ["X86_V2"], "not found": ["X86_V3", "X86_V4"]}, "Nehalem", "SSE4, OpenBLAS Nehalem"),
        ({"baseline": ["NEON", "ASIMD"], "found": ["ASIMDHP"]}, "neoversen1", "ASIMDHP, OpenBLAS neoversen1"),
        ({}, None, "without SIMD"),
    ],
)
def test_instructions_have_one_name_whatever_numpy_calls_them(
    monkeypatch: pytest.MonkeyPatch, simd: dict[str, list[str]], blas: str | None, said: str
) -> None:
    pools = [{"user_api": "openmp", "internal_api": "openmp"}]
    if blas:
        pools += [{"user_api": "blas", "internal_api": "openblas", "architecture": each} for each in (blas, "Katmai")]
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": simd})
    monkeypatch.setattr(system, "_found_thread_pools", lambda: SimpleNamespace(info=lambda: pools))
    assert system.instruction_set() == f"NumPy {said}"


def test_a_blas_that_nothing_tells_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert system.instruction_set().startswith("NumPy ")
    assert "," not in system.instruction_set()


def test_usable_cpus_are_those_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "OWN_CGROUPS", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert system.usable_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert system.usable_cpus() == 1


GIB = 2**30
MACHINE = "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"


@pytest.fixture
def contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str]], None]:
    """Writes /proc/self/cgroup and the files below /sys/fs/cgroup of a machine with 16 CPUs and 64 GiB, 32 free."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}.__getitem__)

    def written(own: str, files: dict[str, str]) -> None:
        for name, text in {"meminfo": MACHINE, "own": own, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    for name, path in (("MEMINFO", "meminfo"), ("OWN_CGROUPS", "own"), ("CGROUPS", "cgroup")):
        monkeypatch.setattr(system, name, tmp_path / path)
    return written


def limits() -> tuple[int, float, float]:
    """CPUs, GiB to use and GiB free."""
    return system.usable_cpus(), system.usable_memory() / GIB, (system.available_memory() or 0) / GIB


def test_a_container_limits_cpus_and_memory(contained: Any) -> None:
    """Version 2: it sees its own group as the root. Memory of the page cache is free."""
    stat = f"anon {GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n"
    files = {"cpu.max": "250000 100000\n", "memory.max": f"{8 * GIB}\n", "memory.current": f"{5 * GIB}\n"}
    contained("0::/\n", {f"cgroup/{name}": text for name, text in (files | {"memory.stat": stat}).items()})
    assert limits() == (2, 8, 6)


def test_the_tightest_of_nested_groups_counts(contained: Any) -> None:
    outer = {"cpu.max": "400000 100000", "memory.max": f"{4 * GIB}", "memory.current": f"{3 * GIB}"}
    inner = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": f"{GIB}"}
    files = {f"cgroup/batch/{name}": text for name, text in outer.items()}
    contained("0::/batch/job\n", files | {f"cgroup/batch/job/{name}": text for name, text in inner.items()})
    assert limits() == (4, 4, 1)


@pytest.mark.parametrize("folder", ["docker/1f2e", "."])
def test_groups_of_version_1_limit_too(contained: Any, folder: str) -> None:
    """In a container, the path that a process sees of itself need not be there."""
    files = {
        f"cpu/{folder}/cpu.cfs_quota_us": "50000\n",
        f"cpu/{folder}/cpu.cfs_period_us": "100000\n",
        f"memory/{folder}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"memory/{folder}/memory.usage_in_bytes": f"{GIB}\n",
        f"memory/{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\ntotal_active_file 0\n",
        "memory/memory.usage_in_bytes": f"{9 * GIB}\n" if folder != "." else f"{GIB}\n",
    }
    own = "4:memory:/docker/1f2e\n2:cpu,cpuacct:/docker/1f2e\n1:name=systemd:/\n0::/system.slice\n"
    contained(own, {f"cgroup/{name}": text for name, text in files.items()})
    assert limits() == (1, 2, 1.5)


@pytest.mark.parametrize("cpu", ["max 100000", "", "0 0"])
def test_without_a_limit_the_machine_counts(contained: Any, cpu: str) -> None:
    unlimited = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "0"}
    contained("0::/\n3:memory:/\n", {"cgroup/cpu.max": cpu} | {f"cgroup/memory/{k}": v for k, v in unlimited.items()})
    assert limits() == (16, 64, 32)


def test_where_the_system_does_not_tell_nothing_is_known(contained: Any, tmp_path: Path) -> None:
    contained("", {"meminfo": ""})
    assert system.available_memory() is None


def test_what_compiled_code_prints_is_lost_and_what_python_prints_before_and_after_is_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    library = ctypes.CDLL(None)
    print("before", end=" ")
    with system.silent_c_output():
        library.puts(b"a line of debugging")
    print("after", end="")
    library.fflush(None)
    assert capfd.readouterr().out == "before after"


def test_the_number_of_threads_comes_back() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(2)
    with system.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
