"""Which FBGEMM goes with which torch, and what of both is installed here; imports neither of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

TORCH_OF_FBGEMM: dict[str, str] = {
    "1.9": "2.14",
    "1.8": "2.13",
    "1.7": "2.12",
    "1.6": "2.11",
    "1.5": "2.10",
    "1.4": "2.9",
    "1.3": "2.8",
    "1.2": "2.7",
    "1.1": "2.6",
    "1.0": "2.5",
    "0.8": "2.4",
    "0.7": "2.3",
    "0.6": "2.2",
    "0.5": "2.1",
    "0.4": "2.0",
}
"""The torch minor version that each FBGEMM minor version is built for, and loads with.

Source: pytorch/FBGEMM, docs/general/Releases.rst (0.4 to 1.6) and `_fbgemm_torch_compat_table` in
fbgemm_gpu/fbgemm_gpu/__init__.py (1.7 to 1.9).
"""

FBGEMM_OF_TORCH: dict[str, str] = {torch: fbgemm for fbgemm, torch in TORCH_OF_FBGEMM.items()}

PINNED = "1.8"
"""The FBGEMM that the extra `real` brings."""

DISTRIBUTION: dict[str, str] = {"cpu": "fbgemm-gpu-cpu", "cuda": "fbgemm-gpu"}
"""The FBGEMM to install for each kind of device; the one for CUDA computes on CPUs too, if torch has CUDA."""

RIVALS = (*DISTRIBUTION.values(), "fbgemm-gpu-nightly", "fbgemm-gpu-nightly-cpu")
"""Distributions that all install the package `fbgemm_gpu`, each over the files of the others."""


@dataclass(frozen=True)
class Installed:
    """What pip knows of.

    Attributes:
        torch: version, such as "2.13.0+cpu"; "" where torch is not installed.
        fbgemm: version of each distribution of FBGEMM.
    """

    torch: str
    fbgemm: dict[str, str]

    @property
    def fbgemm_version(self) -> str:
        """The version of FBGEMM, "" where there is none; "1.7.0 or 1.8.0" where two distributions disagree."""
        return " or ".join(sorted(set(self.fbgemm.values())))

    @property
    def distribution(self) -> str:
        """The distribution of FBGEMM; "" where there is none, or more than one."""
        return next(iter(self.fbgemm)) if len(self.fbgemm) == 1 else ""

    @property
    def clash(self) -> str:
        """A sentence about two distributions in one place and the way out, or "" where there is one at most."""
        if len(self.fbgemm) < 2:
            return ""
        listed = " and ".join(f"{name} {number}" for name, number in self.fbgemm.items())
        return (
            f"{listed} are both installed; both bring the package fbgemm_gpu, so the later one has overwritten files "
            f"of the earlier one. Remove both: `pip uninstall -y {' '.join(self.fbgemm)}`. "
            f"Then install the one you need: {_either(FBGEMM_OF_TORCH.get(minor(self.torch), PINNED))}."
        )


def installed() -> Installed:
    """What the metadata of the installed distributions say; nothing is imported."""
    found = {name: _version(name) for name in RIVALS}
    return Installed(_version("torch"), {name: number for name, number in found.items() if number})


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Pair:
    """A version of torch and one of FBGEMM.

    Attributes:
        torch: version; "" where it is not installed.
        fbgemm: version; "" where it is not installed.
        matches: whether they are built for each other; None where one is missing or is no release of the table's.
        sentence: the same in words, with what to install if they do not match.
    """

    torch: str
    fbgemm: str
    matches: bool | None
    sentence: str


def pair(torch_version: str, fbgemm_version: str, distribution: str = DISTRIBUTION["cpu"]) -> Pair:
    """Whether a torch and an FBGEMM are built for each other, and what to install otherwise.

    Args:
        torch_version: such as "2.13.0+cpu"; "" where torch is not installed.
        fbgemm_version: such as "1.8.0"; "" where FBGEMM is not installed.
        distribution: the FBGEMM that is installed, or "" where that is not known; advice keeps to it.
    """
    matches, sentence = None, _missing(torch_version, fbgemm_version)
    if not sentence:
        matches, sentence = _compared(torch_version, fbgemm_version, distribution or DISTRIBUTION["cpu"])
    return Pair(torch_version, fbgemm_version, matches, sentence)


def _missing(torch_version: str, fbgemm_version: str) -> str:
    """A sentence about what is not installed, or "" where both are."""
    fbgemm, torch = FBGEMM_OF_TORCH.get(minor(torch_version)), TORCH_OF_FBGEMM.get(minor(fbgemm_version))
    if not torch_version and not fbgemm_version:
        return f"Neither torch nor FBGEMM is installed. Install a pair: {install_pair()}."
    if not torch_version:
        way_out = f"FBGEMM {fbgemm_version} needs torch {torch}: `pip install 'torch=={torch}.*'`" if torch else ""
        return f"torch is not installed. {way_out or f'Install a pair: {install_pair()}'}."
    if not fbgemm_version:
        way_out = f"For torch {torch_version}: {_either(fbgemm)}" if fbgemm else ""
        unknown = f"No release of it is known for torch {torch_version}; install a pair: {install_pair()}"
        return f"FBGEMM is not installed. {way_out or unknown}."
    return ""


def _compared(torch_version: str, fbgemm_version: str, distribution: str) -> tuple[bool | None, str]:
    """`matches` and `sentence` of two versions."""
    torch, fbgemm = minor(torch_version), minor(fbgemm_version)
    wanted_torch, wanted_fbgemm = TORCH_OF_FBGEMM.get(fbgemm), FBGEMM_OF_TORCH.get(torch)
    if torch and wanted_torch == torch:
        return True, f"FBGEMM {fbgemm} is built for torch {torch}."
    both = f"FBGEMM {fbgemm_version} and torch {torch_version}"
    if not torch or not fbgemm or (wanted_torch is None and wanted_fbgemm is None):
        return None, f"Whether {both} go together is not known: at least one is no release that ShardGym knows."
    ways_out = []
    if wanted_fbgemm:
        ways_out.append(f"FBGEMM for this torch: `pip install '{distribution}=={wanted_fbgemm}.*'`")
    if wanted_torch:
        ways_out.append(f"torch for this FBGEMM: `pip install 'torch=={wanted_torch}.*'`")
    return False, f"{both} do not go together. Install {'; or '.join(ways_out)}."


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"; "" of a nightly, of a build from source, and of what is no version."""
    found = re.fullmatch(r"(\d{1,3}\.\d+)(\.\d+)*(\.post\d+)?(\+(?!git).*)?", version)
    return found[1] if found else ""


def install_pair() -> str:
    """How to install the pair that the extra `real` pins, for either kind of device."""
    torch = TORCH_OF_FBGEMM[PINNED]
    cuda = f"`pip install 'torch=={torch}.*' '{DISTRIBUTION['cuda']}=={PINNED}.*'`"
    return f"`pip install 'shard-gym[real]'` for CPUs, or {cuda} for CUDA GPUs"


def _either(fbgemm: str) -> str:
    """How to install an FBGEMM of that minor version, for either kind of device."""
    cpu, cuda = (f"`pip install '{name}=={fbgemm}.*'`" for name in DISTRIBUTION.values())
    return f"{cpu} for CPUs, or {cuda} for CUDA GPUs"


def no_wheel(system: str, architecture: str, glibc: str) -> str:
    """A sentence about why pip finds no FBGEMM for this machine, or "" where it does.

    Wheels of FBGEMM 1.5 and newer are tagged manylinux_2_28 for x86_64, and those of fbgemm-gpu-cpu for aarch64 too
    (PyPI's lists of files).

    Args:
        system: as `platform.system` gives it.
        architecture: as `platform.machine` gives it.
        glibc: the version of GNU's C library, "" where there is another.
    """
    where = f"{system} {architecture}"
    if system == "Linux" and architecture in ("x86_64", "aarch64"):
        if glibc and tuple(map(int, glibc.split(".")[:2])) >= (2, 28):
            return ""
        where = f"Linux with glibc {glibc}" if glibc else "Linux without glibc"
    return (
        f"FBGEMM has no wheels for {where}, only for Linux on x86_64 or aarch64 with glibc 2.28 or newer; "
        "use such a machine or a container of one."
    )
