"""Arguments of environments and of their resets: where tasks come from, paddings, options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shard_gym.checks import is_integer
from shard_gym.drift.suite import DriftSource
from shard_gym.errors import InvalidOptionError, wrong_kind
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSource


def checked_options(options: Any, *known: str) -> dict[str, Any]:
    """A copy of the options of a reset; empty for None.

    Raises:
        InvalidOptionError: they are not a mapping, or one of them is not known.
    """
    if options is None:
        return {}
    quoted = [repr(name) for name in known]
    if not isinstance(options, Mapping):
        raise wrong_kind("options", options, f"None or a dict with the keys {', '.join(quoted)}, such as {{'task': 0}}")
    unknown = sorted(str(name) for name in options if name not in known)
    if unknown:
        listed = f"option {quoted[0]}" if len(quoted) == 1 else f"options {', '.join(quoted[:-1])} and {quoted[-1]}"
        raise InvalidOptionError(f"reset() knows the {listed}, not {unknown}.")
    return dict(options)


def task_source(suite: Any, split: str) -> TaskSource:
    """The suite of this name and split; a source of tasks is returned as it is.

    Raises:
        UnknownNameError: no suite has that name, or it has no such split.
        InvalidOptionError: `suite` is neither a name nor a source of tasks.
    """
    found: Any = load_suite(suite, split) if isinstance(suite, (str, Path)) else suite
    if isinstance(found, type) or not isinstance(found, TaskSource):
        wanted = "the name of a suite of placement or sharding, a TaskSuite or a TaskSampler"
        raise wrong_kind("suite", suite, wanted, "Wrap custom tasks in a suite: TaskSuite('mine', [task]).")
    return found


def drift_source(suite: Any, split: str) -> DriftSource:
    """The suite of replanning of this name and split; a source of drifting tasks is returned as it is.

    Raises:
        UnknownNameError: no suite has that name, or it has no such split.
        InvalidOptionError: `suite` is neither the name of a suite of replanning nor a source of drifting tasks.
    """
    found: Any = load_suite(suite, split) if isinstance(suite, str) else suite
    if isinstance(found, type) or not isinstance(found, DriftSource):
        wanted = "the name of a suite of replanning, such as 'drift-strong-600', or a DriftSuite"
        raise wrong_kind("suite", suite, wanted, "Wrap custom tasks in a suite: DriftSuite('mine', [task]).")
    return found


def padding(name: str, given: int | None, needed: int) -> int:
    """The padding that was given, or what is needed.

    Raises:
        InvalidOptionError: it is no integer, or less than what is needed.
    """
    if given is None:
        return int(needed)
    if not is_integer(given) or given < needed:
        raise InvalidOptionError(f"{name} must be an integer of at least {needed}, the suite's own; got {given!r}.")
    return int(given)
