"""What is wrong with an entry, and exactly where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_SHOWN = 200
"""Findings kept of one entry: a file of a million wrong numbers is one mistake."""


@dataclass(frozen=True)
class Finding:
    """One reason why an entry is refused.

    Attributes:
        file: path under the folder of the leaderboards.
        reason: a sentence.
        task: name of the task; empty if it is not about one.
        seed: the seed; None if it is not about one.
    """

    file: str
    reason: str
    task: str = ""
    seed: int | None = None

    def __str__(self) -> str:
        """As lists show it."""
        where = [self.file]
        where += [f"task {self.task}"] if self.task else []
        where += [f"seed {self.seed}"] if self.seed is not None else []
        # Names in it are a stranger's: none may begin a line of its own, which a CI could read as a command.
        text = f"{', '.join(where)}: {self.reason}"
        return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shortened(findings: Iterable[Finding]) -> list[Finding]:
    """The first `MOST_SHOWN` findings, and one that says how many more there are."""
    listed = list(findings)
    if len(listed) <= MOST_SHOWN:
        return listed
    more = len(listed) - MOST_SHOWN
    return [*listed[:MOST_SHOWN], Finding(listed[0].file.rpartition("/")[0], f"There are {more} findings more.")]
