"""Words that several messages share."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`count` and `noun` in the number that goes with it: 1 device, 2 devices, 1,036 tables."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
