"""Text for messages, tables and pages: numbers with units, counts of things, and commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

MAX_LISTED = 8  # names that a sentence lists


def counted(count: int, noun: str) -> str:
    """`count` and `noun` with its plural s: 1 device, 2 devices, 1,036 tables."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, of many the first `MAX_LISTED`: user, item, ... and 3 more."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + f" and {more:,} more" * (more > 0)


def format_ms(value: float) -> str:
    """Milliseconds with at least four significant digits: 0.1234, 12.34, 1234."""
    if value == 0:
        return "0"
    for limit, digits in ((1.0, 4), (10.0, 3), (100.0, 2), (1000.0, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def format_seconds(value: float) -> str:
    """A duration with its unit: 0 s, <0.1 ms, 0.3 ms, 12 ms, 1.2 s, 310 s."""
    if value == 0:
        return "0 s"
    if value < 1.0:
        short = "<0.1 ms" if value < 1e-4 else f"{value * 1e3:.2g} ms"
        return short if value < 0.01 else f"{value * 1e3:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def format_change(share: float) -> str:
    """A share as a signed percentage: +12.3% for 0.123; never -0.0%."""
    return f"{round(100 * share, 1) + 0.0:+.1f}%"


def format_percent(share: float) -> str:
    """A share as a percentage with about three significant digits: 1.23 %, 12.3 %, 1,234 %."""
    for limit, digits in ((0.1, 2), (10.0, 1)):
        if abs(share) < limit:
            return f"{100 * share:.{digits}f} %"
    return f"{100 * share:,.0f} %"


def format_range(low: int, high: int) -> str:
    """A range of integers: 10-1,200, or 20 if both ends are equal."""
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def format_bytes(count: float) -> str:
    """`count` bytes in GiB from 1 GiB on, in MiB from a tenth of one on, otherwise as they are."""
    if abs(count) < 0.1 * 2**20:
        return f"{count:,.0f} bytes"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"


def format_gib(count: int) -> str:
    """Bytes as GiB in at most five characters, up to 1 TiB."""
    return f"{count / 2**30:.2f}" if count < 100 * 2**30 else f"{count / 2**30:.1f}"


def format_mib(count: float) -> str:
    """Bytes as MiB with a decimal, of large numbers without: 0.3, 58.1, 1,204."""
    mib = count / 2**20
    return f"{mib:,.1f}" if mib < 1000 else f"{mib:,.0f}"


def command_line(*words: object, **options: object) -> str:
    """`shard-gym` with words and options, to copy. A list repeats its option; no value, () and False leave it out."""
    parts: list[object] = ["shard-gym", *words]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            parts.append(flag)
        elif isinstance(value, list):
            parts += [part for each in value for part in (flag, each)]
        elif isinstance(value, tuple):
            parts += [flag, *value] if value else []
        elif value is not None and value is not False:
            parts += [flag, value]
    return shlex.join(map(str, parts))
