from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shard_gym.common.errors import InvalidOptionError, MissingExtraError, UnknownNameError
from shard_gym.cost_models.measured import Machine, machine, profile_of, this_machine
from shard_gym.cost_models.measured.diagnostics.versions import Installed
from shard_gym.cost_models.measured.machine import torch_build

CPU = Machine("cpu", "AMD EPYC 7B13 64-Core Processor", 2, 2**34, "2.13.0+cpu", "1.8.0", "", "")
GPU = Machine("cuda", "NVIDIA H200", 8, 150 * 10**9, "2.13.0+cu130", "1.8.0", "13.0", "2.28.3")


def fake_torch(
    gpus: tuple[tuple[str, int], ...] = (), *, cuda: str | None = "13.0", nccl: bool = True, usable: bool = True
) -> SimpleNamespace:
    """As much of torch as is asked."""
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        distributed=SimpleNamespace(is_available=lambda: True, is_nccl_available=lambda: nccl),
        cuda=SimpleNamespace(
            nccl=SimpleNamespace(version=lambda: (2, 28, 3)),
            device_count=lambda: len(gpus),
            is_available=lambda: usable and bool(gpus),
            get_device_properties=lambda index: SimpleNamespace(name=gpus[index][0], total_memory=gpus[index][1]),
        ),
    )


@pytest.mark.parametrize(
    ("machine", "model", "name"),
    [
        (CPU, "AMD EPYC 7B13 64-Core Processor", "cpu-amd-epyc-7b13-2-threads"),
        (CPU, "Intel(R) Xeon(R) CPU @ 2.20GHz", "cpu-intel-xeon-2.20ghz-2-threads"),
        (CPU, "../../etc", "cpu-etc-2-threads"),
        (CPU, "", "cpu-unknown-2-threads"),
        (replace(CPU, num_devices=1), "aarch64", "cpu-aarch64-1-thread"),
        (GPU, "NVIDIA GeForce RTX 2080 Ti", "nvidia-geforce-rtx-2080-ti"),
    ],
)
def test_cpus_are_named_by_model_and_threads_and_gpus_by_model(machine: Machine, model: str, name: str) -> None:
    assert replace(machine, device_name=model).name == name


def test_the_fingerprint_changes_with_every_version_and_is_a_file_name() -> None:
    assert CPU.fingerprint == "cpu-amd-epyc-7b13-2-threads_torch-2.13.0+cpu_fbgemm-1.8.0"
    assert GPU.fingerprint == "nvidia-h200_torch-2.13.0+cu130_fbgemm-1.8.0_cuda-13.0_nccl-2.28.3"
    changed = {replace(GPU, **{what: "9.9"}).fingerprint for what in ("torch", "fbgemm", "cuda", "nccl")}
    assert len(changed | {GPU.fingerprint}) == 5
    assert re.fullmatch(r"[a-z0-9.+_-]+", GPU.fingerprint)


def test_this_machine_as_cpus_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would fail
    monkeypatch.setattr(machine, "installed", lambda: Installed("2.13.0", {"fbgemm-gpu-cpu": "1.8.0"}))
    found = this_machine("cpu")
    assert (found.kind, found.torch, found.fbgemm, found.cuda, found.nccl) == ("cpu", "2.13.0", "1.8.0", "", "")
    assert 1 <= found.num_devices <= (os.cpu_count() or 1)
    assert found.device_name
    with pytest.raises(MissingExtraError, match=r"shard-gym\[real\]"):
        this_machine("cuda")
    with pytest.raises(UnknownNameError, match=r"There is no kind of device named 'gpu'.*Known: cpu, cuda"):
        this_machine("gpu")
    assert found.memory_bytes > 2**28 or sys.platform == "win32"


def test_gpus_are_described_by_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch((("NVIDIA H200", 150), ("NVIDIA H200", 149))))
    monkeypatch.setattr(machine, "installed", lambda: Installed("2.13.0", {"fbgemm-gpu": "1.8.0"}))
    assert this_machine("cuda") == Machine("cuda", "NVIDIA H200", 2, 149, "2.13.0", "1.8.0", "13.0", "2.28.3")


def test_a_build_without_cuda_or_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch((("NVIDIA H200", 1),), cuda=None, nccl=False))
    build = torch_build()
    assert (build.cuda, build.nccl, build.num_gpus) == ("", "", 0)
    with pytest.raises(InvalidOptionError, match=r"torch 2\.13\.0 is built without CUDA\. Measure on CPUs, or install"):
        this_machine("cuda")


def test_no_gpu_an_old_driver_and_mixed_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch in (fake_torch(), fake_torch((("NVIDIA H200", 1),), usable=False)):
        monkeypatch.setitem(sys.modules, "torch", torch)
        with pytest.raises(InvalidOptionError, match="can use no CUDA GPU: none is visible"):
            this_machine("cuda")
    monkeypatch.setitem(sys.modules, "torch", fake_torch((("NVIDIA H200", 1), ("Tesla T4", 1))))
    with pytest.raises(InvalidOptionError, match=r"differ \(NVIDIA H200, Tesla T4\).*CUDA_VISIBLE_DEVICES"):
        this_machine("cuda")


@pytest.mark.parametrize(
    ("hardware", "profile"),
    [
        ("nvidia-h200", "h200-dgx"),
        ("nvidia-gh200-480gb", "gh200-quad"),
        ("nvidia-gb200", "gb200-nvl72"),
        ("nvidia-b200", "b200-dgx"),
        ("nvidia-h20", "h20-hgx"),
        ("tesla-v100-sxm2-32gb", "v100-nvlink"),
        ("cpu-intel-xeon-2-threads", "cpu"),
        ("nvidia-l4", None),
    ],
)
def test_profiles_are_found_by_the_device(hardware: str, profile: str | None) -> None:
    assert profile_of(hardware) == profile
