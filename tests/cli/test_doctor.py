"""What the doctor says: of this machine, of one without torch and FBGEMM, and of all that a probe can find."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shard_gym.cli import doctor
from shard_gym.cost_models.measured.diagnostics.probe import Probe
from shard_gym.cost_models.measured.diagnostics.versions import Installed, installed, pair
from shard_gym.cost_models.measured.machine import Machine, TorchBuild

CPU_TORCH = TorchBuild("2.13.0+cpu", cuda="", nccl="", gloo=True, num_gpus=0)
CUDA_TORCH = TorchBuild("2.13.0+cu130", cuda="13.0", nccl="2.28.3", gloo=True, num_gpus=8)
CPUS = Machine("cpu", "AMD EPYC 7B13", 2, 2**34, "2.13.0", "1.8.0", "", "")
GPUS = Machine("cuda", "NVIDIA H200", 8, 150 * 2**30, "2.13.0+cu130", "1.8.0", "13.0", "2.28.3")
WORKS = Probe("cpu", True, "", "", CPU_TORCH, CPUS, "1.8.0", "cpu", 2.0, "")
GPU_WORKS = replace(WORKS, device="cuda", torch=CUDA_TORCH, machine=GPUS, variant="cuda")
FAILS = replace(WORKS, ok=False, failure="Importing fbgemm_gpu failed.", way_out="Mend [it].", fbgemm="", variant="")
ABSENT = replace(
    FAILS, failure="Importing torch failed.", way_out=pair("", "").sentence, torch=None, machine=None, output=""
)
ONE = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0"})
BOTH = Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0", "fbgemm-gpu": "1.8.0"})


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets the doctor find what is given, on a Linux machine with the glibc that FBGEMM wants."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path / "none")

    def find(have: Installed, *probes: Probe) -> None:
        monkeypatch.setattr(doctor, "installed", lambda: have)
        monkeypatch.setattr(doctor, "probe", {tried.device: tried for tried in probes}.__getitem__)

    return find


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
def test_all_is_well_on_cpus_and_gpus(run, found, columns: int) -> None:
    found(Installed("2.13.0", {"fbgemm-gpu": "1.8.0"}), replace(WORKS, torch=CUDA_TORCH), GPU_WORKS)
    code, out, err = run("doctor", columns=columns)
    assert (code, err) == (0, "")
    assert cells(out) == {
        "Python": platform.python_version(),
        "system": "Linux x86_64, glibc 2.36",
        "torch": "2.13.0+cu130",
        "FBGEMM": "1.8.0 (fbgemm-gpu)",
        "do they match": "yes: FBGEMM 1.8 is built for torch 2.13",
        "CUDA": "13.0",
        "NCCL": "2.28.3",
        "Gloo": "yes",
        "CPU": cells(out)["CPU"],
        "GPUs": "8 x NVIDIA H200, 150.0 GiB each",
        "FBGEMM on a CPU": "works: forward and backward compute the right numbers",
        "FBGEMM on a GPU": "works: forward and backward compute the right numbers",
    }
    said = " ".join(out.partition("\n\n")[2].split())
    assert said == "Placements can be measured here, on CPU processes with Gloo and on CUDA GPUs with NCCL."
    assert max(map(len, out.splitlines())) <= columns


def test_one_kind_of_device_is_enough(run, found) -> None:
    found(ONE, replace(WORKS, torch=CUDA_TORCH), replace(GPU_WORKS, ok=False, failure="No.", way_out="Do this."))
    code, out, _ = run("doctor")
    assert code == 0
    assert "here, on CPU processes with Gloo.\n\nDo this.\n" in out
    found(ONE, replace(FAILS, torch=CUDA_TORCH), GPU_WORKS)
    code, out, _ = run("doctor")
    assert code == 0
    assert "here, on CUDA GPUs with NCCL.\n\nMend [it].\n" in out


def test_a_failure_is_shown_with_its_way_out(run, found) -> None:
    found(ONE, FAILS)
    code, out, _ = run("doctor")
    assert code == 1
    assert cells(out)["FBGEMM on a CPU"] == "Importing fbgemm_gpu failed."
    assert cells(out)["FBGEMM on a GPU"] == "not tried: this torch is built without CUDA"
    assert cells(out)["CUDA"] == "torch is built without it"
    assert out.endswith("Placements cannot be measured here yet.\n\nMend [it].\n")


def test_a_failure_without_a_way_out_is_its_own_advice(run, found) -> None:
    found(ONE, replace(WORKS, torch=CUDA_TORCH), replace(GPU_WORKS, ok=False, failure="GPUs differ.", way_out=""))
    assert run("doctor").out.endswith("\n\nGPUs differ.\n")


def test_nothing_installed(run, found) -> None:
    found(Installed("", {}), ABSENT)
    code, out, _ = run("doctor")
    assert code == 1
    table = cells(out)
    assert {table[name] for name in ("torch", "FBGEMM", "do they match", "CUDA", "NCCL", "Gloo", "GPUs")} == {"-"}
    assert table["FBGEMM on a GPU"] == "not tried: torch cannot be imported"
    assert "\n`pip install 'shard-gym[real]'` for CPUs, or\n`pip install 'torch==2.13.*' 'fbgemm-gpu==1.8.*'`" in out


def test_a_mismatch_is_advised_once(run, found) -> None:
    told = pair("2.13.0+cpu", "1.5.0").sentence
    found(Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.5.0"}), replace(FAILS, way_out=told))
    code, out, _ = run("doctor")
    assert (code, cells(out)["do they match"]) == (1, "no")
    assert out.count("`pip install 'fbgemm-gpu-cpu==1.8.*'`") == 1


def test_two_distributions_are_told_of_even_where_they_work(run, found) -> None:
    found(BOTH, WORKS)
    code, out, _ = run("doctor")
    assert code == 0
    assert cells(out)["FBGEMM"] == "1.8.0 (fbgemm-gpu-cpu) and 1.8.0 (fbgemm-gpu)"
    assert out.count("are both") == 1


def test_no_command_is_broken_across_lines(run, found) -> None:
    found(BOTH, replace(FAILS, way_out=BOTH.clash))
    for columns in (40, 60, 80, 100):
        out = run("doctor", columns=columns).out
        for command in ("`pip uninstall -y fbgemm-gpu-cpu fbgemm-gpu`", "`pip install 'fbgemm-gpu-cpu==1.8.*'`"):
            assert command in out


def test_torch_without_gloo_or_nccl_cannot_exchange(run, found) -> None:
    torch = replace(CUDA_TORCH, gloo=False, nccl="")
    found(ONE, replace(WORKS, torch=torch), replace(GPU_WORKS, torch=torch))
    code, out, _ = run("doctor")
    assert code == 1
    assert "This torch is built without Gloo;" in out
    assert "This torch is built without NCCL;" in out


def test_a_driver_without_cuda_in_torch_is_pointed_out(run, found, monkeypatch, tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", driver)
    found(ONE, WORKS)
    code, out, _ = run("doctor")
    assert code == 0
    assert "This machine has an NVIDIA driver. To measure on its GPUs" in out


def test_a_system_without_wheels_is_named(run, found, monkeypatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    found(Installed("", {}), ABSENT)
    out = run("doctor").out
    assert "Darwin x86_64; FBGEMM has no wheels for it" in out
    assert "FBGEMM has no wheels for Darwin x86_64, only for Linux" in out


def test_an_fbgemm_that_pip_does_not_know(run, found) -> None:
    found(Installed("2.13.0", {}), replace(WORKS, fbgemm="2026.8.31"))
    code, out, _ = run("doctor")
    assert code == 0
    assert cells(out)["FBGEMM"] == "2026.8.31 (unknown to pip)"
    assert cells(out)["do they match"] == "not known"


def test_json_holds_everything(run, found) -> None:
    found(ONE, replace(WORKS, torch=CUDA_TORCH), replace(GPU_WORKS, ok=False, failure="No.", way_out="Do this."))
    code, out, _ = run("doctor", "--json")
    assert code == 0
    record = json.loads(out)
    assert record["works_on"] == ["cpu"]
    assert record["installed"] == {"torch": "2.13.0+cpu", "fbgemm": {"fbgemm-gpu-cpu": "1.8.0"}}
    assert record["pair"]["matches"] is True
    assert Machine(**record["probes"]["cuda"]["machine"]) == GPUS
    assert TorchBuild(**record["torch"]) == CUDA_TORCH
    assert record["advice"] == ["Do this."]


def test_this_machine(run) -> None:
    have = installed()
    code, out, _ = run("doctor", "--json")
    record = json.loads(out)
    assert code == (0 if record["works_on"] else 1)
    if pair(have.torch, have.fbgemm_version).matches:
        assert "cpu" in record["works_on"], record["probes"]["cpu"]
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
    assert "Importing torch failed: there is no module named 'torch'." in result.stdout
    assert "Neither torch nor FBGEMM is installed." in result.stdout
    assert "`pip install 'shard-gym[real]'`" in result.stdout
