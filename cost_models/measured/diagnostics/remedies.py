"""What to do when FBGEMM's operator does not work: versions first, then known signs in what was printed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shard_gym.cost_models.measured.diagnostics.versions import (
    DISTRIBUTION,
    PINNED,
    install_pair,
    installed,
    minor,
    pair,
)


@dataclass(frozen=True)
class Ended:
    """How the process ended: its exit code (None: time was up), what it reported, what else it printed."""

    code: int | None
    facts: dict[str, Any]
    output: str


def way_out(device: str, ended: Ended) -> str:
    """What to do about a failure: the versions are looked at first, then known signs in what was printed."""
    facts, have = ended.facts, installed()
    if "refused" in facts:
        return ""  # the sentence says it
    if have.clash:
        return have.clash
    torch = facts.get("torch", {})
    versions = (have.torch or torch.get("version", ""), have.fbgemm_version or facts.get("fbgemm", ""))
    told = pair(*versions, have.distribution)
    if told.matches is False or not told.torch or not told.fbgemm:
        return told.sentence
    fbgemm = minor(told.fbgemm) or PINNED
    if "torch" in facts and not torch["cuda"] and have.distribution == DISTRIBUTION["cuda"]:
        return (
            f"{have.distribution} needs a torch with CUDA, and torch {torch['version']} has none. For CPUs: "
            f"`pip uninstall -y {have.distribution}`, then `pip install '{DISTRIBUTION['cpu']}=={fbgemm}.*'`."
        )
    if device == "cuda" and DISTRIBUTION["cpu"] in have.fbgemm:
        return (
            f"{have.distribution} has no code for GPUs: `pip uninstall -y {have.distribution}`, then "
            f"`pip install '{DISTRIBUTION['cuda']}=={fbgemm}.*'`."
        )
    said = f"{facts.get('error', '')}\n{facts.get('absent', '')}\n{ended.output}"
    for sign, advice in _signs(torch.get("cuda", ""), minor(told.torch), fbgemm, have.distribution):
        if re.search(sign, said, re.MULTILINE):
            return advice
    return _by_ending(ended, told.sentence)


def _signs(cuda: str, torch: str, fbgemm: str, distribution: str) -> Iterator[tuple[str, str]]:
    """Known signs of a failure though the versions match, each a pattern and what to do; the first one counts."""
    index = f" --index-url https://download.pytorch.org/whl/cu{cuda.replace('.', '')}" if cuda else ""
    yield (
        r"lib(cudart|cuda|nvrtc|nvidia|cublas|c10_cuda|torch_cuda)[\w.-]*: cannot open|CUDA driver version is insuff",
        "FBGEMM is built for another CUDA than torch or the driver. Take both from one place: "
        f"`pip install 'torch=={torch}.*' '{DISTRIBUTION['cuda']}=={fbgemm}.*'{index}`.",
    )
    yield (
        r"GLIBC(XX)?_[\d.]+' not found",
        "The system's C or C++ library is older than FBGEMM's wheels need (glibc 2.28); use a newer system.",
    )
    yield (  # pytorch/FBGEMM, issue 4334
        "libtbb|_ZN3tbb",
        "FBGEMM finds another TBB library than it was built with, often that of a Conda environment; install both in a "
        f"new virtual environment: {install_pair()}.",
    )
    yield (
        "no kernel image is available",
        "FBGEMM's wheels have no code for a GPU of this generation (the table of releases in FBGEMM's documentation "
        "lists them); use another GPU or build FBGEMM from source.",
    )
    yield "out of memory", "Other programs use the GPU's memory (nvidia-smi names them); end them or take another GPU."
    yield (  # pytorch/FBGEMM, issues 2938, 1148, 2130, 2715, 1923, 3275
        "Could not load this library|undefined symbol|_OpNamespace|^fbgemm_gpu$",
        "The versions match, but FBGEMM's libraries do not load into this torch: its files are missing, damaged or "
        "of another build. Install it anew: "
        f"`pip install --force-reinstall --no-deps '{distribution or DISTRIBUTION['cpu']}=={fbgemm}.*'`.",
    )


def _by_ending(ended: Ended, versions: str) -> str:
    """What to do where there is no sign but the way the process ended."""
    if ended.code is None:
        return "Try once more, for a first import from a slow disk takes long; then look what keeps the machine busy."
    if ended.code == -signal.SIGILL:
        return "The CPU lacks instructions that FBGEMM's wheels use (AVX2 on x86_64); use another machine."
    if ended.code == -9:  # SIGKILL, which Windows has no name for
        return "Most likely the system had no memory left; end other programs, or raise the container's limit."
    return f"{versions} Install both in a new virtual environment: {install_pair()}."
