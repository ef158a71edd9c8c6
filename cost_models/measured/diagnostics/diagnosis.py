"""Whether placements can be measured on this machine, and what to install if not.

A torch and an FBGEMM that do not belong together may raise an error at import, hang or kill the interpreter. So FBGEMM
is tried in a worker process, the same that measures placements.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import MeasurementError, ShardGymError
from shard_gym.cost_models.measured.diagnostics.versions import (
    DISTRIBUTION,
    PINNED,
    Installed,
    install_pair,
    installed,
    minor,
    no_wheel,
)
from shard_gym.cost_models.measured.job import Job, Part, Repeats, Widths
from shard_gym.cost_models.measured.machine import Machine, TorchBuild, this_machine, torch_build
from shard_gym.cost_models.measured.session import DOCTOR, Session
from shard_gym.cost_models.measured.streams import HistogramStream
from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.tables import NUM_BINS, Tables, Workload

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""Present if the driver of NVIDIA's GPUs is loaded, whether torch can use it or not."""

NEW_ENVIRONMENT = f"Install torch and FBGEMM in a new virtual environment: {install_pair()}."
TIMEOUT_S = 60.0
TOLERANCE = 1e-5  # relative; the numbers are FP32 and of size 1 to 10
_DEVICE = {"cpu": "CPU", "cuda": "CUDA GPU"}


@dataclass(frozen=True)
class Diagnosis:
    """What is installed on this machine and what works."""

    python: str  # version
    system: str  # such as "Linux x86_64, glibc 2.36"
    installed: Installed  # versions of torch and FBGEMM that pip knows
    torch: TorchBuild | None  # what torch was built with; None if it cannot be imported
    machines: dict[str, Machine]  # the devices by kind: "cpu" always, "cuda" if torch can use GPUs
    failures: dict[str, str]  # why FBGEMM's operator does not work on "cpu" and "cuda", or was not tried; or ""
    advice: tuple[str, ...]  # what to install or repair, sentences; at least one if nothing works

    @property
    def works_on(self) -> tuple[str, ...]:
        """The kinds of devices on which placements can be measured."""
        return tuple(device for device, failure in self.failures.items() if not failure)

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {"works_on": list(self.works_on), **asdict(self)}


def diagnose(on_trial: Callable[[str], None] = lambda device: None) -> Diagnosis:
    """Look at the versions and try the operator; takes a few seconds, a first import of torch more.

    `on_trial` is called with the kind of device before the operator is tried on it.
    """
    have, torch, machines = installed(), None, {"cpu": this_machine("cpu")}
    failures: dict[str, str] = {}
    advice: list[str] = []
    try:
        torch = torch_build()
    except Exception as error:  # a broken installation raises anything
        failures = dict.fromkeys(DISTRIBUTION, f"torch cannot be imported: {error}")
        advice.append(have.advice or NEW_ENVIRONMENT)
    else:
        have = replace(have, torch=have.torch or torch.version)
        for device in DISTRIBUTION:
            if device == "cuda" and not torch.num_gpus:
                failures[device] = "torch finds no GPU" if torch.cuda else "this torch is built without CUDA"
                continue
            on_trial(device)
            try:
                machines[device] = this_machine(device)
            except ShardGymError as error:
                failures[device] = str(error)
                advice.append(str(error))
            else:
                failures[device] = operator_failure(device)
                advice.append(remedy(device, failures[device], have, torch) if failures[device] else "")
    works = not all(failures.values())
    if have.fbgemm:
        advice.insert(0, have.advice)  # two distributions may work, but should not both be there
    elif not works:
        advice.append(no_wheel())
    if torch is not None and not torch.num_gpus and NVIDIA_DRIVER.exists():
        advice.append(
            "This machine has an NVIDIA driver. To measure on its GPUs, install a torch with CUDA "
            f"(https://pytorch.org/get-started), and {DISTRIBUTION['cuda']} in place of {DISTRIBUTION['cpu']}."
        )
    library, version = platform.libc_ver()
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}" + f", {library} {version}" * bool(library),
        installed=have,
        torch=torch,
        machines=machines,
        failures=failures,
        advice=tuple(dict.fromkeys(filter(None, advice))),
    )


def operator_failure(device: str, timeout_s: float = TIMEOUT_S) -> str:
    """Execute an iteration of a table of 10 rows x 4 columns in a worker process, and compare it with NumPy.

    What went wrong, as a sentence; "" if the numbers are right. `timeout_s` does not limit the start of the worker.
    """
    reuse = np.eye(NUM_BINS)[[1]]
    tables = Tables(
        num_embeddings=np.array([10]),
        embedding_dim=np.array([4]),
        pooling_factor=np.array([2.0]),
        distinct_rows=np.array([4.0]),
        reuse_histogram=reuse,
        access_histogram=reuse,
        workload=Workload(4, "fp32", "rowwise_adagrad"),
    )
    weights = 1.0 + np.arange(40.0).reshape(10, 4) / 10
    job = Job((Part.whole(tables),), 1, 4, Widths((4,)), Repeats(iterations=1, warmup=0, batches=1, seed=0), False)
    session = Session(device, 1, threads=1, timeout_s=timeout_s)
    command = ("run_iteration", {"job": job, "weights": [[weights]]})
    try:
        (((outputs,), ((updated,),)),) = session.ask([command], [f"FBGEMM's operator on a {_DEVICE[device]}"])
    except MeasurementError as error:
        return str(error).removesuffix(f" {DOCTOR}")
    finally:
        session.close()
    for name, found, expected in zip(
        ("outputs", "updated weights"),
        (np.reshape(outputs, (4, 4)), np.array(updated)),
        expected_iteration(tables, weights),
        strict=True,
    ):
        wrong = np.argwhere(~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE))
        if len(wrong):
            row, column = wrong[0]
            return (
                f"FBGEMM's operator computes wrong {name} on a {_DEVICE[device]}: {found[row, column]:g} instead of "
                f"{expected[row, column]:g} in row {row}, column {column}."
            )
    return ""


def expected_iteration(tables: Tables, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The pooled outputs of one table's batch, (B, dim), and its (rows, dim) weights after the update.

    The loss is half the sum of the squared outputs. The optimizer is row-wise Adagrad: a row's state grows by the mean
    of its squared gradients, and the row moves by learning rate x gradient / sqrt(state) (pytorch/FBGEMM,
    `OptimType.EXACT_ROWWISE_ADAGRAD`).
    """
    lookups = HistogramStream(tables, 0, seed=0).lookups(0, tables.workload.batch_size)
    bags = np.split(lookups.indices, np.cumsum(lookups.lengths[0])[:-1])
    outputs = np.stack([weights[bag].sum(axis=0) for bag in bags])
    gradients = np.zeros_like(weights)
    for bag, output in zip(bags, outputs, strict=True):
        np.add.at(gradients, bag, output)
    state = np.maximum((gradients**2).mean(axis=1, keepdims=True), np.finfo(float).tiny)
    return outputs, weights - LEARNING_RATE * gradients / np.sqrt(state)


def remedy(device: str, failure: str, have: Installed, torch: TorchBuild) -> str:
    """What to do about a failure of the operator: first what the versions say, then known signs in `failure`."""
    if have.advice:
        return have.advice
    fbgemm = minor(have.fbgemm_version) or PINNED
    cpu, cuda = (f"`pip install '{DISTRIBUTION[kind]}=={fbgemm}.*'`" for kind in ("cpu", "cuda"))
    remove = f"`pip uninstall -y {have.distribution}`, then"
    if not torch.cuda and have.distribution == DISTRIBUTION["cuda"]:
        return f"{have.distribution} needs a torch with CUDA, and torch {torch.version} has none. {remove} {cpu}."
    if device == "cuda" and have.distribution == DISTRIBUTION["cpu"]:
        return f"{have.distribution} has no code for GPUs. {remove} {cuda}."
    index = f" --index-url https://download.pytorch.org/whl/cu{torch.cuda.replace('.', '')}" if torch.cuda else ""
    signs = {
        r"lib(cudart|cuda|nvrtc|nvidia|cublas|c10_cuda|torch_cuda)[\w.-]*: cannot open|CUDA driver version is insuff": (
            "FBGEMM is built for another CUDA than torch or the driver. Install both from one index: "
            f"`pip install 'torch=={minor(have.torch)}.*' '{DISTRIBUTION['cuda']}=={fbgemm}.*'{index}`."
        ),
        "no kernel image is available": (
            "FBGEMM's wheels have no code for a GPU of this generation (the table of releases in FBGEMM's "
            "documentation lists them); use another GPU or build FBGEMM from source."
        ),
        "not enough memory": "Other programs use the memory; end them, or take another device.",
        # Without "OSError", it is what a build without some of its libraries prints at every import.
        "OSError: Could not load this library|undefined symbol|_OpNamespace|No module named 'fbgemm_gpu'": (
            "The versions match, but FBGEMM's libraries do not load into this torch: files are missing, damaged or of "
            f"another build. Reinstall it: `pip install --force-reinstall --no-deps '{have.distribution}=={fbgemm}.*'`."
        ),
        "SIGILL": "The CPU lacks instructions that FBGEMM's wheels use (AVX2 on x86_64); use another machine.",
        "SIGKILL": "Most likely the system had no memory left; end other programs, or raise the container's limit.",
        "No answer within": "Try again, because a first import from a slow disk takes long; or free the machine.",
    }
    found = [advice for sign, advice in signs.items() if re.search(sign, failure)]
    return found[0] if found else NEW_ENVIRONMENT
