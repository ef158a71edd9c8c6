"""The machine that measures: its devices, and the versions of what runs on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shard_gym.common.errors import InvalidOptionError, MissingExtraError, missing_extra, unknown_name
from shard_gym.common.system import cpu_model, usable_cpus, usable_memory
from shard_gym.cost_models.measured.diagnostics.versions import DISTRIBUTION, installed
from shard_gym.hardware import PROFILES


@dataclass(frozen=True)
class TorchBuild:
    """The version of the installed torch, those of the CUDA and NCCL it was built with ("" if none), and its GPUs."""

    version: str
    cuda: str
    nccl: str
    num_gpus: int


def torch_build() -> TorchBuild:
    """The build of the installed torch, which is imported; raises MissingExtraError if torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise missing_extra("torch", "real", "Measuring placements") from error
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return TorchBuild(
        version=str(torch.__version__),
        cuda=torch.version.cuda or "",
        nccl=".".join(map(str, nccl)),
        num_gpus=torch.cuda.device_count() if torch.version.cuda else 0,
    )


@dataclass(frozen=True)
class Machine:
    """What measurements depend on; caches and data sets are named after it."""

    kind: str  # "cpu" or "cuda"
    device_name: str  # of a GPU, or the model of the CPU
    num_devices: int  # GPUs that torch may use, or CPUs (hardware threads) that this process may use (`usable_cpus`)
    memory_bytes: int  # of one GPU, or what the machine's container may use; 0 where the system does not say
    torch: str  # versions; "" if there is none, and of CUDA and NCCL for a CPU
    fbgemm: str
    cuda: str
    nccl: str

    @property
    def name(self) -> str:
        """The hardware as a name for files: "nvidia-h200", "cpu-amd-epyc-7b13-2-threads".

        GPUs are not counted, because a task says how many of them its placements use.
        """
        model = _slug(self.device_name)
        if self.kind == "cuda":
            return model
        return f"cpu-{model}-{self.num_devices}-thread{'' if self.num_devices == 1 else 's'}"

    @property
    def fingerprint(self) -> str:
        """The name and the versions that change timings: measurements with equal fingerprints can be compared."""
        versions = {"torch": self.torch, "fbgemm": self.fbgemm, "cuda": self.cuda, "nccl": self.nccl}
        return "_".join([self.name, *(f"{what}-{number}" for what, number in versions.items() if number)])


def this_machine(device: str) -> Machine:
    """The machine this process runs on; torch is imported only for "cuda".

    Raises:
        UnknownNameError: `device` is neither "cpu" nor "cuda".
        MissingExtraError, InvalidOptionError: for "cuda", there is no torch, no GPU that it can use, or two models.
    """
    if device not in DISTRIBUTION:
        raise unknown_name("kind of device", device, DISTRIBUTION)
    versions = installed()
    if device == "cuda":
        return _cuda(versions.fbgemm_version)
    return Machine(
        kind="cpu",
        device_name=cpu_model(),
        num_devices=usable_cpus(),
        memory_bytes=usable_memory(),
        torch=versions.torch,
        fbgemm=versions.fbgemm_version,
        cuda="",
        nccl="",
    )


def machine_for(hardware: str) -> tuple[Machine, str]:
    """The machine that "cpu" or "cuda" names, or that "auto" finds, and why "auto" is no GPU; "" where it is.

    Raises:
        UnknownNameError, MissingExtraError, InvalidOptionError: see `this_machine`; "auto" takes the CPUs instead.
    """
    if hardware != "auto":
        return this_machine(hardware), ""
    try:
        return this_machine("cuda"), ""
    except (InvalidOptionError, MissingExtraError) as error:
        return this_machine("cpu"), str(error)


def profile_of(hardware: str) -> str | None:
    """The hardware profile of a machine of that name: "h200-dgx" for "nvidia-h200"; None if there is none."""
    plain = hardware.replace("-", "")
    devices = {name.partition("-")[0]: name for name in PROFILES}
    found = max((device for device in devices if device in plain), key=len, default="")  # "gh200" has "h200" in it
    return devices.get(found)


def _cuda(fbgemm: str) -> Machine:
    build = torch_build()
    import torch

    if not build.cuda:
        raise InvalidOptionError(
            f"torch {build.version} is built without CUDA. Measure on CPUs, or install a torch with CUDA "
            f"(https://pytorch.org/get-started) and {DISTRIBUTION['cuda']}."
        )
    if not torch.cuda.is_available():
        raise InvalidOptionError(
            f"torch {build.version} can use no CUDA GPU: none is visible (nvidia-smi, CUDA_VISIBLE_DEVICES), or the "
            f"driver is too old for CUDA {build.cuda}. Measure on CPUs, or repair that."
        )
    gpus = [torch.cuda.get_device_properties(index) for index in range(build.num_gpus)]
    models = sorted({gpu.name for gpu in gpus})
    if len(models) > 1:
        raise InvalidOptionError(
            f"The GPUs differ ({', '.join(models)}), and a measurement holds for one model; "
            "choose those of one model with CUDA_VISIBLE_DEVICES."
        )
    return Machine(
        kind="cuda",
        device_name=models[0],
        num_devices=len(gpus),
        memory_bytes=min(int(gpu.total_memory) for gpu in gpus),
        torch=build.version,
        fbgemm=fbgemm,
        cuda=build.cuda,
        nccl=build.nccl,
    )


def _slug(model: str) -> str:
    """`model` in lower-case letters, digits, dots and hyphens, without words that most names of CPUs share."""
    plain = re.sub(r"\((r|tm|c)\)|\bcpu\b|\b\d+-core\b|\bprocessor\b", " ", model.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.") or "unknown"
