"""The doctor's report: on this machine, on one without torch and FBGEMM, and on machines where something fails."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import InvalidOptionError, missing_extra
from shard_gym.cost_models.measured import Machine
from shard_gym.cost_models.measured.diagnostics import diagnosis
from shard_gym.cost_models.measured.diagnostics.versions import Installed, installed
from shard_gym.cost_models.measured.machine import TorchBuild

CPU_TORCH = TorchBuild("2.13.0+cpu", cuda="", nccl="", num_gpus=0)
CUDA_TORCH = TorchBuild("2.13.0+cu130", cuda="13.0", nccl="2.28.3", num_gpus=8)
CPUS = Machine("cpu", "AMD EPYC 7B13", 2, 2**34, "2.13.0", "1.8.0", "", "")
GPUS = Machine("cuda", "NVIDIA H200", 8, 150 * 2**30, "2.13.0+cu130", "1.8.0", "13.0", "2.28.3")
CPU_PAIR = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0"})
CUDA_PAIR = Installed("2.13.0+cu130", {"fbgemm-gpu": "1.8.0"})
MISMATCH = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.5.0"})
BOTH = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0", "fbgemm-gpu": "1.8.0"})
WORKS = "works: forward and backward compute the right numbers"
FAILED = "The worker of device 0 was killed by SIGILL."

Find = Callable[..., None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Find:
    """Lets the doctor find what is given, on a Linux machine with the glibc that FBGEMM needs."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(diagnosis, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(diagnosis, "this_machine", {"cpu": CPUS, "cuda": GPUS}.__getitem__)

    def found(have: Installed, torch: TorchBuild | Exception, **failures: str) -> None:
        def build() -> TorchBuild:
            if isinstance(torch, Exception):
                raise torch
            return torch

        monkeypatch.setattr(diagnosis, "installed", lambda: have)
        monkeypatch.setattr(diagnosis, "torch_build", build)
        monkeypatch.setattr(diagnosis, "operator_failure", lambda device: failures.get(device, ""))

    return found


def cells(out: str) -> dict[str, str]:
    """The table, by name."""
    lines = out.partition("\n\n")[0].splitlines()
    (width,) = {line.index("Linux") for line in lines if line.startswith("system ")}
    table: dict[str, str] = {}
    for line in lines:
        name = line[:width].strip()
        if name:
            table[name] = line[width:].strip()
        else:
            table[list(table)[-1]] += " " + line.strip()
    return table


@pytest.mark.parametrize("columns", [80, 120])
def test_all_is_well_on_cpus_and_gpus(run, find: Find, columns: int) -> None:
    find(CUDA_PAIR, CUDA_TORCH)
    code, out, err = run("doctor", columns=columns)
    assert (code, err) == (0, "")
    assert cells(out) == {
        "Python": platform.python_version(),
        "system": "Linux x86_64, glibc 2.36",
        "torch": "2.13.0+cu130, CUDA 13.0, NCCL 2.28.3",
        "FBGEMM": "1.8.0 (fbgemm-gpu)",
        "do they match": "yes",
        "CPU": "AMD EPYC 7B13, 2 threads, 16.00 GiB",
        "GPUs": "8 x NVIDIA H200, 150.00 GiB each",
        "FBGEMM on a CPU": WORKS,
        "FBGEMM on a GPU": WORKS,
    }
    assert out.endswith("\n\nPlacements can be measured here, on CPU processes and on CUDA GPUs.\n")
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize(("fails", "works"), [("cuda", "CPU processes"), ("cpu", "CUDA GPUs")])
def test_one_kind_of_device_is_enough(run, find: Find, fails: str, works: str) -> None:
    find(CUDA_PAIR, CUDA_TORCH, **{fails: FAILED})
    out = run.ok("doctor").out
    assert f"can be measured here, on {works}.\n\nThe CPU lacks instructions" in out


REAL = "`pip install -e '.[real]'` in a clone of ShardGym"
MISSING = missing_extra("torch", "real", "Measuring placements")
PREVENTED = [
    (
        CPU_PAIR,
        CPU_TORCH,
        FAILED,
        "FBGEMM on a GPU this torch is built without CUDA",
        "yet. The CPU lacks instructions",
    ),
    (Installed("", {}), MISSING, "", "torch - FBGEMM -", f"{REAL} for CPUs, or `pip install 'torch==2.13.*' 'fbgemm-"),
    (
        CPU_PAIR,
        OSError("lib.so: no"),
        "",
        "torch cannot be imported: lib.so: no",
        f"in a new virtual environment: {REAL}",
    ),
    (MISMATCH, CPU_TORCH, "Could not load", "do they match no", "`pip install 'fbgemm-gpu-cpu==1.8.*'`"),
]


@pytest.mark.parametrize(("have", "torch", "failure", "said", "advice"), PREVENTED)
def test_what_prevents_measurements_is_shown_with_one_remedy(
    run, find: Find, have: Installed, torch: Any, failure: str, said: str, advice: str
) -> None:
    find(have, torch, cpu=failure)
    code, out, _ = run("doctor", columns=120)
    text = " ".join(out.split())
    assert code == 1
    assert said in text
    assert failure in text
    assert text.count(advice) == 1


def test_gpus_that_cannot_be_used_are_explained(run, find: Find, monkeypatch: pytest.MonkeyPatch) -> None:
    def this_machine(device: str) -> Machine:
        if device == "cuda":
            raise InvalidOptionError("The GPUs differ.")
        return CPUS

    find(CUDA_PAIR, CUDA_TORCH)
    monkeypatch.setattr(diagnosis, "this_machine", this_machine)
    assert run("doctor").out.endswith("\n\nThe GPUs differ.\n")


@pytest.mark.parametrize("columns", [40, 100])
def test_two_distributions_are_told_of_even_where_they_work(run, find: Find, columns: int) -> None:
    find(BOTH, CPU_TORCH)
    out = run.ok("doctor", columns=columns).out
    assert out.count("are both") == 1
    for command in ("`pip uninstall -y fbgemm-gpu-cpu fbgemm-gpu`", "`pip install 'fbgemm-gpu-cpu==1.8.*'`"):
        assert command in out  # on one line


def test_a_driver_without_cuda_in_torch_is_pointed_out(run, find: Find, monkeypatch, tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version")
    monkeypatch.setattr(diagnosis, "NVIDIA_DRIVER", driver)
    find(CPU_PAIR, CPU_TORCH)
    out = run.ok("doctor").out
    assert "This machine has an NVIDIA driver. To measure on its GPUs" in out


def test_a_system_without_wheels_is_named(run, find: Find, monkeypatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    find(Installed("2.13.0", {}), CPU_TORCH, cpu="No module named 'fbgemm_gpu'")
    assert "FBGEMM has no wheels for Darwin x86_64" in run("doctor").out


def test_an_fbgemm_that_works_unknown_to_pip_needs_no_advice(run, find: Find) -> None:
    find(Installed("", {}), CPU_TORCH)
    out = run.ok("doctor").out
    assert (cells(out)["torch"], cells(out)["do they match"]) == ("2.13.0+cpu", "not known")
    assert out.endswith("\n\nPlacements can be measured here, on CPU processes.\n")


def test_json_holds_everything(run, find: Find) -> None:
    find(CUDA_PAIR, CUDA_TORCH, cuda=FAILED)
    out = run.ok("doctor", "--json").out
    record = json.loads(out)
    assert record["works_on"] == ["cpu"]
    assert Installed(**record["installed"]) == CUDA_PAIR
    assert TorchBuild(**record["torch"]) == CUDA_TORCH
    assert Machine(**record["machines"]["cuda"]) == GPUS
    assert record["failures"] == {"cpu": "", "cuda": FAILED}
    assert len(record["advice"]) == 1


def test_this_machine(run) -> None:
    code, out, _ = run("doctor", "--json")
    record = json.loads(out)
    assert code == (0 if record["works_on"] else 1)
    if installed().matches:
        assert "cpu" in record["works_on"], record["failures"]["cpu"]
    else:
        assert record["advice"]


BLOCKED = """
import importlib.metadata as metadata
from importlib.machinery import PathFinder
find, version = PathFinder.find_spec, metadata.version
def find_unless_blocked(name, path=None, target=None):
    return None if name.startswith(("torch", "fbgemm")) else find(name, path, target)
def version_unless_blocked(name):
    if name.startswith(("torch", "fbgemm")):
        raise metadata.PackageNotFoundError(name)
    return version(name)
PathFinder.find_spec, metadata.version = find_unless_blocked, version_unless_blocked
"""


def test_without_torch_and_fbgemm_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)  # run in every process that is started
    command = [sys.executable, "-m", "shard_gym", "doctor"]
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (1, "")
    assert "torch cannot be imported: " in result.stdout
    assert "Neither torch nor FBGEMM is installed." in result.stdout
    assert "`pip install -e '.[real]'`" in result.stdout
