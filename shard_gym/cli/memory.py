"""The memory of a training step: what options leave for tables and buffers, a table of it, and a warning where it is
nearly full."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console

from shard_gym.cli.console import heading, new_table, print_table, sentence, warn
from shard_gym.errors import InvalidOptionError
from shard_gym.explain import Explanation
from shard_gym.sharding.plan import TABLE_WISE
from shard_gym.text import counted, format_bytes, format_gib, format_percent
from shard_gym.topology import DeviceSpec
from shard_gym.training_memory import RESERVE, TrainingMemory, training_memory, usable_bytes

GIB = 2**30

NEARLY_FULL = 0.9
"""Share of what tables and buffers may take, above which a device is named in a warning."""


def room_bytes(cap_gib: float | None, reserve: float | None, device: DeviceSpec) -> int:
    """Bytes that tables and their buffers may take on each device, by --memory-cap-gib or --reserve."""
    if cap_gib is None:
        return usable_bytes(device.memory_bytes, RESERVE if reserve is None else reserve, "--reserve")
    if reserve is not None:
        raise InvalidOptionError(
            "--memory-cap-gib and --reserve both say how much memory tables and buffers may take. Give one of them."
        )
    if not 1 <= cap_gib * GIB < math.inf:
        raise InvalidOptionError(f"--memory-cap-gib must be a positive number, not {cap_gib!r}.")
    if cap_gib * GIB > device.memory_bytes:
        raise InvalidOptionError(
            f"--memory-cap-gib is {cap_gib:,g}, but a device ({device.name}) has {format_bytes(device.memory_bytes)} "
            "of memory. Give at most that, or leave the option out."
        )
    return int(cap_gib * GIB)


def print_memory(console: Console, explanation: Explanation, room: int, reserve: int = 0, devices: int = 16) -> None:
    """Print what a training step holds on the fullest `devices`, with `room` bytes for it, and `reserve` bytes besides.

    Free memory is negative where there is too little.
    """
    memory = _memory(explanation)
    shown = np.sort(np.argsort(-memory.total, kind="stable")[:devices])
    heading(console, f"\nMemory of a training step, GiB of {format_gib(room + reserve)}\n")
    table = new_table()
    for name in ("", "weights+state", "buffers", *["reserve"] * bool(reserve), "free"):
        table.add_column(name, justify="right", no_wrap=True)
    for device in shown.tolist():
        own, buffers = int(memory.tables[device]), int(memory.buffers[device])
        numbers = (own, buffers, *[reserve] * bool(reserve), room - own - buffers)
        table.add_row(f"device {device}", *map(format_gib, numbers))
    print_table(console, table)
    kept = "; reserve: dense parameters, activations, allocator" * bool(reserve)
    console.print(sentence(f"buffers: inputs, outputs, gradients of replicas{kept}", "dim"))
    left = memory.num_devices - len(shown)
    if left:
        console.print(sentence(f"{counted(len(shown), 'device')} shown, the fullest; {left} left out.", "dim"))


def warn_if_full(explanation: Explanation, room: int) -> None:
    """Warn of the fullest device if it is nearly full, and name the table to move, or the part of one."""
    memory = _memory(explanation)
    full = int((memory.total > NEARLY_FULL * room).sum())
    if not full:
        return
    device = int(memory.total.argmax())
    used = int(memory.total[device])
    others = f" So {'is' if full == 2 else 'are'} {counted(full - 1, 'other device')}." * (full > 1)
    found = memory.shard_to_move(device, np.minimum(int(NEARLY_FULL * room), explanation.memory_cap_bytes))
    if found is None:
        hint = "No table on it fits another device; more devices would relieve it."
    else:
        shard, target = found
        table = int(explanation.shards[shard, 0])
        part = "" if explanation.plan.tables[table].sharding_type == TABLE_WISE else "a part of "
        size = format_bytes(int(memory.of_shards[shard].sum()))
        hint = f"To relieve it, move {part}{explanation.task.tables.names[table]} ({size}) to device {target}."
    warn(
        f"Device {device} is {'nearly' if used <= room else 'more than'} full: tables and buffers take "
        f"{format_bytes(used)} of {format_bytes(room)}, {format_percent(used / room)}.{others} {hint}"
    )


def _memory(explanation: Explanation) -> TrainingMemory:
    return training_memory(explanation.plan, explanation.task.tables, explanation.task.num_devices)
