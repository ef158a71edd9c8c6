from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from shard_gym.cost_models.measured.diagnostics import versions
from shard_gym.cost_models.measured.diagnostics.versions import (
    FBGEMM_OF_TORCH,
    PINNED,
    TORCH_OF_FBGEMM,
    Installed,
    installed,
    minor,
    no_wheel,
    pair,
)

PYPROJECT = Path(__file__).resolve().parents[4] / "pyproject.toml"


def test_the_table_pairs_each_release_with_one_of_torch() -> None:
    assert len(FBGEMM_OF_TORCH) == len(TORCH_OF_FBGEMM)
    minors = [int(torch.partition(".")[2]) for torch in TORCH_OF_FBGEMM.values()]
    assert minors == list(range(14, -1, -1))  # no release of torch 2 is left out


def test_the_extra_pins_a_pair_of_the_table() -> None:
    wanted = r'^real = \["shard-gym\[torch\]", "torch==([\d.]+)\.\*", "fbgemm-gpu-cpu==([\d.]+)\.\*'
    (extra,) = re.findall(wanted, PYPROJECT.read_text(), re.M)
    assert extra == (TORCH_OF_FBGEMM[PINNED], PINNED)


@pytest.mark.parametrize("fbgemm", TORCH_OF_FBGEMM)
@pytest.mark.parametrize("local", ["", "+cpu", "+cu130"])
def test_each_pair_of_the_table_matches_and_no_other(fbgemm: str, local: str) -> None:
    for torch in FBGEMM_OF_TORCH:
        found = pair(f"{torch}.1{local}", f"{fbgemm}.0")
        assert found.matches is (TORCH_OF_FBGEMM[fbgemm] == torch)


def test_a_mismatch_names_both_ways_out() -> None:
    found = pair("2.13.0+cpu", "1.5.0", "fbgemm-gpu")
    assert found.matches is False
    assert "FBGEMM 1.5.0 and torch 2.13.0+cpu do not go together." in found.sentence
    assert "pip install 'fbgemm-gpu==1.8.*'" in found.sentence
    assert "pip install 'torch==2.10.*'" in found.sentence


def test_a_torch_without_fbgemm_and_an_fbgemm_without_torch_have_one_way_out() -> None:
    newer_torch, newer_fbgemm = pair("2.99.0", "1.9.0"), pair("2.13.0", "1.99.0")
    assert newer_torch.matches is newer_fbgemm.matches is False
    assert newer_torch.sentence.endswith("Install torch for this FBGEMM: `pip install 'torch==2.14.*'`.")
    assert newer_fbgemm.sentence.endswith("Install FBGEMM for this torch: `pip install 'fbgemm-gpu-cpu==1.8.*'`.")


@pytest.mark.parametrize(
    ("torch", "fbgemm"),
    [
        ("2.99.0", "1.99.0"),
        ("2.13.0", "2026.8.31+cu130"),
        ("2.13.0", "1.8.0+git1a2b"),
        ("2.13.0", "INTERNAL"),
        ("2.14.0.dev20260801+cpu", "1.9.0"),
        ("2.13.0a0+gitabc", "1.8.0"),
        ("2.13.0", "1.7.0 or 1.8.0"),
    ],
)
def test_what_is_no_known_release_is_not_judged(torch: str, fbgemm: str) -> None:
    found = pair(torch, fbgemm)
    assert found.matches is None
    assert torch in found.sentence
    assert fbgemm in found.sentence


@pytest.mark.parametrize(
    ("torch", "fbgemm", "said"),
    [
        ("", "", "Neither torch nor FBGEMM is installed. Install a pair: `pip install 'shard-gym[real]'"),
        ("", "1.5.0", "torch is not installed. FBGEMM 1.5.0 needs torch 2.10: `pip install 'torch==2.10.*'`."),
        ("", "2026.8.31", "torch is not installed. Install a pair: `pip install 'shard-gym[real]'"),
        ("2.9.1", "", "FBGEMM is not installed. For torch 2.9.1: `pip install 'fbgemm-gpu-cpu==1.4.*'` for CPUs"),
        ("2.99.0", "", "FBGEMM is not installed. No release of it is known for torch 2.99.0; install a pair: `pip"),
    ],
)
def test_what_is_missing_is_named_with_what_fits(torch: str, fbgemm: str, said: str) -> None:
    found = pair(torch, fbgemm)
    assert found.matches is None
    assert found.sentence.startswith(said)


def test_minor_versions() -> None:
    assert [minor(each) for each in ("2.13.0", "2.13", "2.13.0+cu130", "1.8.0.post1")] == [
        "2.13",
        "2.13",
        "2.13",
        "1.8",
    ]
    assert [minor(each) for each in ("", "2.13.0rc1", "2026.8.31", "master")] == [""] * 4


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes distributions that pip knows of, and nothing else but those."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name: str, version: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return install


def test_nothing_installed(metadata) -> None:
    assert installed() == Installed("", {})
    assert (installed().fbgemm_version, installed().distribution, installed().clash) == ("", "", "")


def test_one_distribution(metadata) -> None:
    metadata("torch", "2.13.0+cpu")
    metadata("fbgemm-gpu-cpu", "1.8.0")
    found = installed()
    assert found == Installed("2.13.0+cpu", {"fbgemm-gpu-cpu": "1.8.0"})
    assert (found.fbgemm_version, found.distribution, found.clash) == ("1.8.0", "fbgemm-gpu-cpu", "")


def test_two_distributions_in_one_place_are_told_of(metadata) -> None:
    metadata("torch", "2.12.0")
    metadata("fbgemm-gpu", "1.8.0")
    metadata("fbgemm_gpu-cpu", "1.7.0")
    found = installed()
    assert (found.fbgemm_version, found.distribution) == ("1.7.0 or 1.8.0", "")
    assert found.clash.startswith("fbgemm-gpu-cpu 1.7.0 and fbgemm-gpu 1.8.0 are both installed;")
    assert "`pip uninstall -y fbgemm-gpu-cpu fbgemm-gpu`." in found.clash
    assert "`pip install 'fbgemm-gpu-cpu==1.7.*'` for CPUs, or `pip install 'fbgemm-gpu==1.7.*'`" in found.clash


def test_the_metadata_are_read_not_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            return "2.13.0"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert installed() == Installed("2.13.0", {})


@pytest.mark.parametrize(
    ("system", "architecture", "glibc", "where"),
    [
        ("Darwin", "arm64", "", "Darwin arm64"),
        ("Windows", "AMD64", "", "Windows AMD64"),
        ("Linux", "riscv64", "2.36", "Linux riscv64"),
        ("Linux", "x86_64", "2.17", "Linux with glibc 2.17"),
        ("Linux", "x86_64", "", "Linux without glibc"),
    ],
)
def test_machines_without_wheels(system: str, architecture: str, glibc: str, where: str) -> None:
    assert f"no wheels for {where}, only for Linux" in no_wheel(system, architecture, glibc)


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
@pytest.mark.parametrize("glibc", ["2.28", "2.36", "3.0"])
def test_machines_with_wheels(architecture: str, glibc: str) -> None:
    assert no_wheel("Linux", architecture, glibc) == ""
