"""`shard-gym doctor`: whether placements can be measured on this machine, and what to install if not."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from shard_gym.cli.console import FAILED, NONE, new_progress, new_table, output, print_table, sentence
from shard_gym.common.text import counted, format_bytes
from shard_gym.cost_models.measured import Diagnosis, Machine, diagnose

DEVICE = {"cpu": "a CPU", "cuda": "a GPU"}
DEVICES = {"cpu": "CPU processes", "cuda": "CUDA GPUs"}
MATCH = {True: "yes", False: "no", None: "not known"}


def doctor(as_json: Annotated[bool, tyro.conf.arg(name="json")] = False) -> int:
    """Say whether placements can be measured here, and what to install if not.

    FBGEMM's embedding operator is tried on CPUs and on CUDA GPUs.

    The exit code is 0 if it works on one of them, and 1 if on neither.

    Args:
        as_json: print everything that was found as JSON.
    """
    with new_progress() as progress:
        bar = progress.add_task("", total=None)
        diagnosis = diagnose(lambda device: progress.update(bar, description=f"Trying FBGEMM on {DEVICE[device]}"))
    console = output()
    if as_json:
        console.out(json.dumps(diagnosis.to_json(), indent=1, allow_nan=False), highlight=False)
    else:
        _print(console, diagnosis)
    return 0 if diagnosis.works_on else 1


def _print(console: Console, diagnosis: Diagnosis) -> None:
    table = new_table(header=False)
    table.add_column(no_wrap=True)
    table.add_column(min_width=40, overflow="fold")
    for name, found in _rows(diagnosis).items():
        table.add_row(Text(name, "bold"), found)
    print_table(console, table)
    console.print()
    if diagnosis.works_on:
        where = " and on ".join(DEVICES[device] for device in diagnosis.works_on)
        console.print(sentence(f"Placements can be measured here, on {where}.", "green"))
    else:
        console.print(sentence("Placements cannot be measured here yet.", FAILED))
    style = "yellow" if diagnosis.works_on else ""
    for advice in diagnosis.advice:
        console.print(sentence(f"\n{_wrapped(advice, console.width)}", style), soft_wrap=True)


def _wrapped(text: str, width: int) -> str:
    """`text` in lines that do not break within a command, so that commands can be copied."""
    unbreakable = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    lines = textwrap.fill(unbreakable, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def _rows(diagnosis: Diagnosis) -> dict[str, Text]:
    have, build = diagnosis.installed, diagnosis.torch
    torch = have.torch
    if build is not None:
        parts = {"CUDA": build.cuda, "NCCL": build.nccl}
        torch = ", ".join([build.version, *(f"{name} {version}" for name, version in parts.items() if version)])
    fbgemm = " and ".join(f"{version} ({name})" for name, version in have.fbgemm.items())
    return {
        "Python": Text(diagnosis.python),
        "system": sentence(diagnosis.system),
        "torch": sentence(torch or NONE),
        "FBGEMM": sentence(fbgemm or NONE),
        "do they match": Text(MATCH[have.matches], FAILED if have.matches is False else ""),
        "CPU": _devices(diagnosis.machines["cpu"]),
        "GPUs": _devices(diagnosis.machines.get("cuda")),
        **{f"FBGEMM on {where}": _outcome(diagnosis.failures[device]) for device, where in DEVICE.items()},
    }


def _devices(machine: Machine | None) -> Text:
    if machine is None:
        return Text(NONE)
    memory = format_bytes(machine.memory_bytes)
    if machine.kind == "cpu":
        return sentence(f"{machine.device_name}, {counted(machine.num_devices, 'thread')}, {memory}")
    return sentence(f"{machine.num_devices} x {machine.device_name}, {memory}{' each' * (machine.num_devices > 1)}")


def _outcome(failure: str) -> Text:
    works = "works: forward and backward compute the right numbers"
    return sentence(failure, FAILED) if failure else Text(works, "green")
