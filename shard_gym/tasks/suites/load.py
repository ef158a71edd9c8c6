"""Loading of the named suites of all problems, and of suites in files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from shard_gym.common.checks import is_one_of
from shard_gym.common.errors import unknown_name, wrong_kind
from shard_gym.tasks.suites import placing
from shard_gym.tasks.suites.fresh import parted
from shard_gym.tasks.suites.info import SPLITS, TRACKS, SuiteInfo
from shard_gym.tasks.suites.own import SUFFIX, read_suite

FORMATS: list[ModuleType] = [placing]
"""The kinds of files; each module has the functions `names`, `info` and `load`. `shard_gym.replanning` adds its own."""


def suite_names(track: str | None = None) -> list[str]:
    """The names of all suites, or of those of a track, with the numbers in them sorted by value (20 before 100).

    Raises:
        UnknownNameError: there is no such track.
    """
    if track is not None and not is_one_of(track, TRACKS):
        raise unknown_name("track", track, TRACKS)
    names = [name for each in FORMATS for name in sorted(each.names(), key=_by_value)]
    return [name for name in names if track is None or suite_info(name).track == track]


def suite_info(name: str) -> SuiteInfo:
    """Summary of the suite named `name`; raises the errors of `load_suite`."""
    found: SuiteInfo = _format_of(name).info(name)
    return replace(found, tasks=dict(found.tasks))


def load_suite(name: str | Path, split: str = "test") -> Any:
    """One split of the suite named `name`, or in a file; its `max_tables` and `max_devices` cover all splits.

    It is a `DriftSuite` if its tables drift, such as those of "drift-strong-600", else a `TaskSuite`.

    "mixdim-8@7" has 50 new tasks in each split, drawn with seed 7 from the tables of that split as those of "mixdim-8"
    were: the same tasks on every machine. All suites have such tasks but those of one whole model.

    Args:
        name: of a suite, with a seed after an @ for fresh tasks, or the path of a file that `save_suite` wrote: a Path,
            or a text that ends in .json.
        split: "train" or "test"; for a file, one of its own, and ignored if it has only one.

    Raises:
        UnknownNameError: no suite has that name.
        InvalidOptionError: the suite has no such split; a suite of a whole model has only "test", and no fresh tasks.
        DamagedFileError: the file of the suite or of its pool was changed, or the file at a path holds no suite.
    """
    if not isinstance(split, str):
        raise wrong_kind("split", split, f"the name of a split, one of {list(SPLITS)}")
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(SUFFIX)):
        return read_suite(Path(name), split)
    return _format_of(name).load(name, split)


def _format_of(name: Any) -> ModuleType:
    base = parted(name)[0] if isinstance(name, str) else name
    for each in FORMATS:
        if isinstance(base, str) and base in each.names():
            return each
    raise unknown_name("suite", base, suite_names())


def _by_value(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
