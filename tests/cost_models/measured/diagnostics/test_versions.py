from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest

from shard_gym.cost_models.measured.diagnostics.versions import (
    FBGEMM_OF_TORCH,
    PINNED,
    TORCH_OF_FBGEMM,
    Installed,
    installed,
    no_wheel,
)

PYPROJECT = Path(__file__).resolve().parents[4] / "pyproject.toml"


def have(torch: str, fbgemm: str, distribution: str = "fbgemm-gpu-cpu") -> Installed:
    return Installed(torch, {distribution: fbgemm} if fbgemm else {})


def test_the_table_pairs_each_release_with_one_of_torch() -> None:
    assert len(FBGEMM_OF_TORCH) == len(TORCH_OF_FBGEMM)
    (oldest,) = re.findall(r'"torch>=2\.(\d+)"', PYPROJECT.read_text())
    minors = [int(torch.partition(".")[2]) for torch in TORCH_OF_FBGEMM.values()]
    assert minors == list(range(14, int(oldest) - 1, -1))  # no supported release is left out


def test_the_extra_pins_a_pair_of_the_table() -> None:
    wanted = r'^real = \["shard-gym\[torch\]", "torch==([\d.]+)\.\*", "fbgemm-gpu-cpu==([\d.]+)\.\*'
    (extra,) = re.findall(wanted, PYPROJECT.read_text(), re.M)
    assert extra == (TORCH_OF_FBGEMM[PINNED], PINNED)


def test_each_pair_of_the_table_matches_and_no_other() -> None:
    for fbgemm, wanted in TORCH_OF_FBGEMM.items():
        for torch in FBGEMM_OF_TORCH:
            found = have(f"{torch}.1+cu130", f"{fbgemm}.0")
            assert found.matches is (wanted == torch)
            assert bool(found.advice) is (wanted != torch)


@pytest.mark.parametrize(
    ("torch", "fbgemm"),
    [
        ("2.99.0", "1.99.0"),
        ("2.13.0", "2026.8.31+cu130"),
        ("2.13.0", "1.8.0+git1a2b"),
        ("2.14.0.dev20260801+cpu", "1.9.0"),
    ],
)
def test_versions_that_are_no_known_release_neither_match_nor_differ(torch: str, fbgemm: str) -> None:
    assert (have(torch, fbgemm).matches, have(torch, fbgemm).advice) == (None, "")


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (have("", ""), "Neither torch nor FBGEMM is installed. Install a pair: `pip install -e '.[real]'"),
        (have("", "1.5.0"), "torch is not installed. FBGEMM 1.5.0 needs torch 2.10: `pip install 'torch==2.10.*'`."),
        (have("", "2026.8.31"), "torch is not installed. Install a pair: `pip install -e '.[real]'"),
        (have("2.9.1", ""), "FBGEMM is not installed. For torch 2.9.1: `pip install 'fbgemm-gpu-cpu==1.4.*'` for CPUs"),
        (have("2.99.0", ""), "FBGEMM is not installed. No release is known for torch 2.99.0. Install a pair: `pip"),
        (
            have("2.13.0", "1.5.0", "fbgemm-gpu"),
            "FBGEMM 1.5.0 and torch 2.13.0 do not go together. Install FBGEMM for this torch: `pip install "
            "'fbgemm-gpu==1.8.*'`; or torch for this FBGEMM: `pip install 'torch==2.10.*'`.",
        ),
        (have("2.99.0", "1.9.0"), "do not go together. Install torch for this FBGEMM: `pip install 'torch==2.14.*'`."),
        (have("2.13.0", "1.1.0"), "Install FBGEMM for this torch: `pip install 'fbgemm-gpu-cpu==1.8.*'`."),
        (
            Installed("2.12.0", {"fbgemm-gpu-cpu": "1.7.0", "fbgemm-gpu": "1.8.0"}),
            "Remove both: `pip uninstall -y fbgemm-gpu-cpu fbgemm-gpu`. Then install the one you need: `pip install "
            "'fbgemm-gpu-cpu==1.7.*'` for CPUs, or `pip install 'fbgemm-gpu==1.7.*'` for CUDA GPUs.",
        ),
    ],
)
def test_advice_names_what_fits(found: Installed, advice: str) -> None:
    assert advice in found.advice


def test_versions_come_from_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed() == Installed("", {})
    for name, version in (("torch", "2.12.0"), ("fbgemm-gpu", "1.8.0"), ("fbgemm_gpu-cpu", "1.7.0")):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    found = installed()
    assert found == Installed("2.12.0", {"fbgemm-gpu-cpu": "1.7.0", "fbgemm-gpu": "1.8.0"})
    assert (found.fbgemm_version, found.distribution) == ("1.7.0 or 1.8.0", "")
    assert (have("", "1.8.0").fbgemm_version, have("", "1.8.0").distribution) == ("1.8.0", "fbgemm-gpu-cpu")


@pytest.mark.parametrize(
    ("system", "architecture", "library", "here"),
    [
        ("Darwin", "arm64", ("", ""), "Darwin arm64"),
        ("Linux", "riscv64", ("glibc", "2.36"), "Linux riscv64 with glibc 2.36"),
        ("Linux", "x86_64", ("glibc", "2.17"), "Linux x86_64 with glibc 2.17"),
        ("Linux", "x86_64", ("", ""), "Linux x86_64"),
        ("Linux", "x86_64", ("glibc", "2.28"), ""),
        ("Linux", "aarch64", ("glibc", "3.0"), ""),
    ],
)
def test_machines_with_and_without_wheels(
    system: str, architecture: str, library: tuple[str, str], here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: architecture)
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    assert no_wheel().startswith(f"FBGEMM has no wheels for {here}, only for Linux" if here else "")
    assert bool(no_wheel()) is bool(here)
