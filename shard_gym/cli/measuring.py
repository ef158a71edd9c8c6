"""Commands that measure: on which machine, until SIGTERM, how busy it is, and how far times of the same work differ."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from shard_gym.cli.console import errors, output, sentence, warn
from shard_gym.common.system import load_average, usable_cpus
from shard_gym.common.text import counted
from shard_gym.cost_models.measured import Machine, machine_for

QUIET = 0.3  # load average for each CPU above which the machine is not idle
WIDE = 0.2  # share of a cost above which differences between measurements of the same placement get a warning


def machine_of(hardware: str) -> Machine:
    """The machine to measure on: cpu, cuda, or auto, which says why if it takes the CPUs."""
    machine, why = machine_for(hardware)
    if why:
        warn(f"Measuring on CPUs. {why}", "dim")
    return machine


@contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """SIGTERM, by which schedulers and containers end programs, is handled like Ctrl-C: what was measured is kept."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def warn_of_load() -> None:
    """Warn on standard error if other programs keep the CPUs busy."""
    load, cpus = load_average(), usable_cpus()
    if load > QUIET * cpus:
        errors().print(
            sentence(
                f"The load average is {load:.1f} on {counted(cpus, 'CPU')}: other programs are measured, too. Stop "
                "them for results that can be repeated.",
                "yellow",
            )
        )


def print_spread(what: str, spread: float, more: str) -> None:
    """Print that `what` differ by `spread`, a share of their cost; if that is much, warn, and say what there should
    be `more` of."""
    output().print(sentence(f"\n{what} differ by {spread:.1%} of its cost (median).", "dim"))
    if spread > WIDE:
        errors().print(sentence(f"That is much: measure on an idle machine, or with more {more}.", "yellow"))
