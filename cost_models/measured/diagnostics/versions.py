"""Which versions of torch and FBGEMM are installed, and whether they belong together; imports neither of them."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

TORCH_OF_FBGEMM = {
    "1.9": "2.14",
    "1.8": "2.13",
    "1.7": "2.12",
    "1.6": "2.11",
    "1.5": "2.10",
    "1.4": "2.9",
    "1.3": "2.8",
}
"""The torch minor version that each FBGEMM minor version is built for, and loads with; ShardGym needs torch 2.8.

Source: pytorch/FBGEMM, docs/general/Releases.rst (1.3 to 1.6) and `_fbgemm_torch_compat_table` in
fbgemm_gpu/fbgemm_gpu/__init__.py (1.7 to 1.9).
"""

FBGEMM_OF_TORCH = {torch: fbgemm for fbgemm, torch in TORCH_OF_FBGEMM.items()}
PINNED = "1.8"  # the FBGEMM that the extra `real` installs

DISTRIBUTION = {"cpu": "fbgemm-gpu-cpu", "cuda": "fbgemm-gpu"}
"""The FBGEMM to install for each kind of device; the one for CUDA computes on CPUs too, if torch has CUDA."""

ALL_DISTRIBUTIONS = (*DISTRIBUTION.values(), "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
"""Distributions that all install the package `fbgemm_gpu`, each over the files of the others."""


@dataclass(frozen=True)
class Installed:
    """The versions that pip knows."""

    torch: str  # version, such as "2.13.0+cpu"; "" if torch is not installed
    fbgemm: dict[str, str]  # version of each distribution of FBGEMM

    @property
    def fbgemm_version(self) -> str:
        """The version of FBGEMM, "" if there is none; "1.7.0 or 1.8.0" if two distributions differ."""
        return " or ".join(sorted(set(self.fbgemm.values())))

    @property
    def distribution(self) -> str:
        """The distribution of FBGEMM; "" if there is none, or more than one."""
        return next(iter(self.fbgemm)) if len(self.fbgemm) == 1 else ""

    @property
    def matches(self) -> bool | None:
        """Whether torch and FBGEMM are built for each other; None if one is missing or is not a known release."""
        torch, fbgemm = minor(self.torch), minor(self.fbgemm_version)
        known = fbgemm in TORCH_OF_FBGEMM or torch in FBGEMM_OF_TORCH
        return TORCH_OF_FBGEMM.get(fbgemm) == torch if torch and fbgemm and known else None

    @property
    def advice(self) -> str:
        """What to install or remove, as sentences; "" if the versions match or are not known releases."""
        torch, fbgemm = minor(self.torch), minor(self.fbgemm_version)
        wanted_torch, wanted_fbgemm = TORCH_OF_FBGEMM.get(fbgemm), FBGEMM_OF_TORCH.get(torch)
        pair = f"Install a pair: {install_pair()}."
        if len(self.fbgemm) > 1:
            listed = " and ".join(f"{name} {number}" for name, number in self.fbgemm.items())
            return (
                f"{listed} are both installed; both bring the package fbgemm_gpu, so the later one has overwritten "
                f"files of the earlier one. Remove both: `pip uninstall -y {' '.join(self.fbgemm)}`. Then install the "
                f"one you need: {_install_fbgemm(wanted_fbgemm or PINNED)}."
            )
        if not self.torch and not self.fbgemm:
            return f"Neither torch nor FBGEMM is installed. {pair}"
        if not self.torch:
            fitting = (
                f"FBGEMM {self.fbgemm_version} needs torch {wanted_torch}: `pip install 'torch=={wanted_torch}.*'`."
            )
            return f"torch is not installed. {fitting if wanted_torch else pair}"
        if not self.fbgemm:
            fitting = f"For torch {self.torch}: {_install_fbgemm(wanted_fbgemm)}." if wanted_fbgemm else ""
            return f"FBGEMM is not installed. {fitting or f'No release is known for torch {self.torch}. {pair}'}"
        if self.matches is not False:
            return ""
        commands = []
        if wanted_fbgemm:
            commands.append(f"FBGEMM for this torch: `pip install '{self.distribution}=={wanted_fbgemm}.*'`")
        if wanted_torch:
            commands.append(f"torch for this FBGEMM: `pip install 'torch=={wanted_torch}.*'`")
        both = f"FBGEMM {self.fbgemm_version} and torch {self.torch}"
        return f"{both} do not go together. Install {'; or '.join(commands)}."


def installed() -> Installed:
    """The versions in the metadata of the installed distributions; nothing is imported."""
    found = {name: _version(name) for name in ALL_DISTRIBUTIONS}
    return Installed(_version("torch"), {name: number for name, number in found.items() if number})


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"; "" for a nightly, a build from source, and what is no version."""
    found = re.fullmatch(r"(\d{1,3}\.\d+)(\.\d+)*(\.post\d+)?(\+(?!git).*)?", version)
    return found[1] if found else ""


def install_pair() -> str:
    """The commands that install the pair that the extra `real` pins, for either kind of device."""
    torch = TORCH_OF_FBGEMM[PINNED]
    cuda = f"`pip install 'torch=={torch}.*' '{DISTRIBUTION['cuda']}=={PINNED}.*'`"
    return f"`pip install -e '.[real]'` in a clone of ShardGym for CPUs, or {cuda} for CUDA GPUs"


def _install_fbgemm(fbgemm: str) -> str:
    cpu, cuda = (f"`pip install '{name}=={fbgemm}.*'`" for name in DISTRIBUTION.values())
    return f"{cpu} for CPUs, or {cuda} for CUDA GPUs"


def no_wheel() -> str:
    """A sentence about why pip finds no FBGEMM for this machine, or "" if it does.

    Wheels of FBGEMM 1.5 and newer are tagged manylinux_2_28 for x86_64, and those of fbgemm-gpu-cpu for aarch64 too
    (PyPI's lists of files).
    """
    system, architecture, (library, version) = platform.system(), platform.machine(), platform.libc_ver()
    known = system == "Linux" and architecture in ("x86_64", "aarch64") and library == "glibc"
    if known and tuple(map(int, version.split(".")[:2])) >= (2, 28):
        return ""
    here = f"{system} {architecture}" + f" with {library} {version}" * bool(library)
    return (
        f"FBGEMM has no wheels for {here}, only for Linux on x86_64 or aarch64 with glibc 2.28 or newer; use such a "
        "machine or a container of one."
    )
