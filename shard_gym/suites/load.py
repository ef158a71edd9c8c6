"""Loading of the named suites of all problems, and of suites in files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from shard_gym.errors import unknown_name, wrong_kind
from shard_gym.suites import drifting, placing
from shard_gym.suites.info import SPLITS, SuiteInfo
from shard_gym.suites.own import SUFFIX, read_suite
from shard_gym.tasks import Suite


class Format(Protocol):
    """A kind of files of suites; its modules are `placing` and `drifting`."""

    def names(self) -> list[str]:
        """The names of the suites in these files."""

    def info(self, name: str) -> SuiteInfo:
        """Summary of a suite."""

    def load(self, name: str, split: str) -> Suite[Any]:
        """One split of a suite."""


FORMATS: tuple[Format, ...] = (placing, drifting)


def suite_names(track: str | None = None) -> list[str]:
    """The names of all suites, or of those of a track, with the numbers in them sorted by value (20 before 100)."""
    names = [name for each in FORMATS for name in sorted(each.names(), key=_by_value)]
    return [name for name in names if track is None or suite_info(name).track == track]


def suite_info(name: str) -> SuiteInfo:
    """Summary of the suite named `name`; raises the errors of `load_suite`."""
    return _format_of(name).info(name)


def load_suite(name: str | Path, split: str = "test") -> Any:
    """One split of the suite named `name`, or in a file; its `max_tables` and `max_devices` cover all splits.

    It is a `DriftSuite` if its tables drift, such as those of "drift-strong-600", else a `TaskSuite`.

    Args:
        name: of a suite, or the path of a file that `save_suite` wrote: a Path, or a text that ends in .json.
        split: "train" or "test"; for a file, one of its own, and ignored if it has only one.

    Raises:
        UnknownNameError: no suite has that name.
        InvalidOptionError: the suite has no such split; a suite of a whole model has only "test".
        DamagedFileError: the file of the suite or of its pool was changed, or the file at a path holds no suite.
    """
    if not isinstance(split, str):
        raise wrong_kind("split", split, f"the name of a split, one of {list(SPLITS)}")
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(SUFFIX)):
        return read_suite(Path(name), split)
    return _format_of(name).load(name, split)


def _format_of(name: Any) -> Format:
    for each in FORMATS:
        if isinstance(name, str) and name in each.names():
            return each
    raise unknown_name("suite", name, suite_names())


def _by_value(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
