"""What commands say of how well a machine measures: its load, and how far times of the same work differ."""

from __future__ import annotations

from shard_gym.cli.console import errors, output, sentence
from shard_gym.common.system import load_average, usable_cpus
from shard_gym.common.text import counted

QUIET = 0.3  # load average for each CPU above which the machine is not idle
WIDE = 0.2  # share of a cost above which differences between measurements of the same placement get a warning


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
