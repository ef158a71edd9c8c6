"""`shard-gym doctor`: can placements be measured on this machine, and if not, what is to be installed?"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from shard_gym.cli.console import FAILED, NONE, new_progress, new_table, output, print_table, sentence
from shard_gym.cost_models.measured.diagnostics.probe import Probe, probe
from shard_gym.cost_models.measured.diagnostics.versions import DISTRIBUTION, Installed, Pair, installed, no_wheel, pair
from shard_gym.cost_models.measured.machine import Machine, TorchBuild, this_machine
from shard_gym.text import counted

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""There where the driver of NVIDIA's GPUs is loaded, whatever torch makes of it."""

LINK = {"cpu": "Gloo", "cuda": "NCCL"}
"""What the processes exchange embeddings through, for each kind of device."""

ON = {"cpu": "CPU processes", "cuda": "CUDA GPUs"}


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        python: version.
        system: such as "Linux x86_64, glibc 2.36".
        installed: versions of torch and FBGEMM that pip knows of.
        pair: whether they are built for each other.
        torch: what torch was built with; None if it cannot be imported.
        cpu: this machine as a device of CPUs.
        probes: what came out where the operator was tried: on "cpu" always, on "cuda" if torch counts a GPU.
        no_cuda: why it was not tried on "cuda", or "".
        advice: what to install or mend, sentences; one at least where nothing works.
    """

    python: str
    system: str
    installed: Installed
    pair: Pair
    torch: TorchBuild | None
    cpu: Machine
    probes: dict[str, Probe]
    no_cuda: str
    advice: tuple[str, ...]

    @property
    def works_on(self) -> tuple[str, ...]:
        """The kinds of devices on which the real variant works."""
        return tuple(device for device, tried in self.probes.items() if tried.ok and linked(device, self.torch))

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        return {"works_on": list(self.works_on), **asdict(self)}


def doctor(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> int:
    """Say whether placements can be measured here, and what to install if not.

    FBGEMM's embedding operator is tried on CPUs and on CUDA GPUs.

    The exit code is 0 if it works on one of them, and 1 if on neither.

    Args:
        as_json: print everything that was found as JSON.
    """
    diagnosis = diagnose()
    console = output()
    if as_json:
        console.out(json.dumps(diagnosis.to_json(), indent=1, allow_nan=False), highlight=False)
    else:
        _print(console, diagnosis)
    return 0 if diagnosis.works_on else 1


def diagnose() -> Diagnosis:
    """Look at everything and try the operator; takes a few seconds, a first import of torch more."""
    with new_progress() as progress:
        bar = progress.add_task("Trying FBGEMM on a CPU", total=None)
        probes = {"cpu": probe("cpu")}
        torch = probes["cpu"].torch
        no_cuda = _no_cuda(torch)
        if not no_cuda:
            progress.update(bar, description="Trying FBGEMM on a GPU")
            probes["cuda"] = probe("cuda")
    have = installed()
    versions = (have.torch or (torch.version if torch else ""), have.fbgemm_version or probes["cpu"].fbgemm)
    found = pair(*versions, have.distribution)
    return Diagnosis(
        python=platform.python_version(),
        system=_system(),
        installed=have,
        pair=found,
        torch=torch,
        cpu=this_machine("cpu"),
        probes=probes,
        no_cuda=no_cuda,
        advice=_advice(have, found, torch, probes),
    )


def linked(device: str, torch: TorchBuild | None) -> bool:
    """Whether processes on that kind of device can exchange embeddings."""
    return torch is not None and (torch.gloo if device == "cpu" else bool(torch.nccl))


def _system() -> str:
    library, version = platform.libc_ver()
    return f"{platform.system()} {platform.machine()}" + f", {library} {version}" * bool(library)


def _no_cuda(torch: TorchBuild | None) -> str:
    """Why there is no point in trying a GPU, or ""."""
    if torch is None:
        return "torch cannot be imported"
    if not torch.cuda:
        return "this torch is built without CUDA"
    return "" if torch.num_gpus else "torch finds no GPU"


def _no_wheel() -> str:
    """Why pip finds no FBGEMM for this machine, or ""."""
    library, version = platform.libc_ver()
    return no_wheel(platform.system(), platform.machine(), version if library == "glibc" else "")


def _advice(have: Installed, found: Pair, torch: TorchBuild | None, probes: dict[str, Probe]) -> tuple[str, ...]:
    """What to install or mend, each thing once."""
    advice = [have.clash, found.sentence if found.matches is False else ""]
    for device, tried in probes.items():
        if not tried.ok:
            advice += [tried.way_out or tried.failure]
        elif not linked(device, torch):
            advice += [f"This torch is built without {LINK[device]}; install one from https://pytorch.org/get-started."]
    if not probes["cpu"].ok and not probes["cpu"].fbgemm:
        advice += [_no_wheel()]
    if torch is not None and not torch.num_gpus and NVIDIA_DRIVER.exists():
        advice += [
            "This machine has an NVIDIA driver. To measure on its GPUs, install a torch with CUDA "
            f"(https://pytorch.org/get-started), and {DISTRIBUTION['cuda']} in place of {DISTRIBUTION['cpu']}."
        ]
    return tuple(dict.fromkeys(filter(None, advice)))


def _print(console: Console, diagnosis: Diagnosis) -> None:
    table = new_table(header=False)
    table.add_column(no_wrap=True)
    table.add_column(min_width=40, overflow="fold")
    for name, found in _rows(diagnosis).items():
        table.add_row(Text(name, "bold"), found)
    print_table(console, table)
    console.print()
    if diagnosis.works_on:
        where = " and on ".join(f"{ON[device]} with {LINK[device]}" for device in diagnosis.works_on)
        console.print(sentence(f"Placements can be measured here, on {where}.", "green"))
    else:
        console.print(sentence("Placements cannot be measured here yet.", FAILED))
    for advice in diagnosis.advice:
        console.print(
            sentence(f"\n{_wrapped(advice, console.width)}", "yellow" * bool(diagnosis.works_on)), soft_wrap=True
        )


def _wrapped(text: str, width: int) -> str:
    """`text` in lines that break between words, but never within a command, so that it can be copied."""
    lines = [""]
    for part in re.findall(r"`[^`]*`\S*|\S+", text):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {part}".lstrip()
    return "\n".join(lines)


def _rows(diagnosis: Diagnosis) -> dict[str, Text]:
    """The table: names and what was found."""
    torch, have, probes = diagnosis.torch, diagnosis.installed, diagnosis.probes
    tried = probes.get("cuda")
    return {
        "Python": Text(diagnosis.python),
        "system": _system_cell(diagnosis.system),
        "torch": _torch(have, torch),
        "FBGEMM": _fbgemm(have, probes["cpu"]),
        "do they match": _matches(diagnosis.pair),
        "CUDA": _part(torch, torch.cuda if torch else ""),
        "NCCL": _part(torch, torch.nccl if torch else ""),
        "Gloo": _part(torch, "yes" if torch and torch.gloo else ""),
        "CPU": _devices(diagnosis.cpu),
        "GPUs": _devices(tried.machine if tried else None),
        "FBGEMM on a CPU": _outcome(probes["cpu"]),
        "FBGEMM on a GPU": _outcome(tried) if tried else Text(f"not tried: {diagnosis.no_cuda}", "dim"),
    }


def _system_cell(system: str) -> Text:
    return sentence(f"{system}; FBGEMM has no wheels for it", FAILED) if _no_wheel() else sentence(system)


def _torch(have: Installed, build: TorchBuild | None) -> Text:
    if build is None and have.torch:
        return sentence(f"{have.torch}, but it cannot be imported", FAILED)
    return sentence(build.version) if build else Text(NONE, "dim")


def _fbgemm(have: Installed, tried: Probe) -> Text:
    if have.fbgemm:
        named = [f"{version} ({name})" for name, version in have.fbgemm.items()]
        return sentence(" and ".join(named), FAILED if have.clash else "")
    return sentence(f"{tried.fbgemm} (unknown to pip)") if tried.fbgemm else Text(NONE, "dim")


def _matches(found: Pair) -> Text:
    if found.matches is None:
        return Text("not known" if found.torch and found.fbgemm else NONE, "dim")
    return sentence(f"yes: {found.sentence.rstrip('.')}") if found.matches else Text("no", FAILED)


def _part(torch: TorchBuild | None, found: str) -> Text:
    """Something that torch was built with, or not."""
    return sentence(found) if found else Text("torch is built without it" if torch else NONE, "dim")


def _devices(machine: Machine | None) -> Text:
    if machine is None:
        return Text(NONE, "dim")
    memory = f"{machine.memory_bytes / 2**30:.1f} GiB"
    if machine.kind == "cpu":
        return sentence(f"{machine.device_name}, {counted(machine.num_devices, 'thread')}, {memory}")
    return sentence(f"{machine.num_devices} x {machine.device_name}, {memory}{' each' * (machine.num_devices > 1)}")


def _outcome(tried: Probe) -> Text:
    if tried.ok:
        return Text("works: forward and backward compute the right numbers", "green")
    return sentence(tried.failure, FAILED)
