"""The suites that a learner learns from at once."""

from __future__ import annotations

from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.tasks import Task, TaskSuite, load_suite


def suites_to_learn(suite: TaskSuite, also: str) -> list[TaskSuite]:
    """`suite`, and the training tasks of those that `also` names, with commas between the names.

    Raises:
        InvalidOptionError: a suite is named twice, or is one of replanning, or `also` is no text.
        UnknownNameError: there is no such suite.
    """
    if not isinstance(also, str):
        raise InvalidOptionError(f"also must be names of suites with commas between them, not {short_repr(also)}.")
    names = [each.strip() for each in also.split(",") if each.strip()]
    twice = next((each for number, each in enumerate(names) if each in (suite.name, *names[:number])), None)
    if twice is not None:
        raise InvalidOptionError(f"The suite {twice!r} is named twice; name each suite once.")
    more = [load_suite(each, "train") for each in names]
    for each in more:
        if not all(isinstance(task, Task) for task in each):
            raise InvalidOptionError(
                f"The tasks of {each.name!r} are of replanning, and others are learned from here. Name suites of "
                "placement or sharding, which `shard-gym suites` lists."
            )
    return [suite, *more]
