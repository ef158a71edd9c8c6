from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from shard_gym import system


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


def test_usable_cpus_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert system.usable_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert system.usable_cpus() == 1
