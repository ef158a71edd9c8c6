"""Why agents of the package have no entry on suites of plans: one sentence for each, shown below the table of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shard_gym.plans.needs import HOST_MEMORY, SEQUENCES
from shard_gym.tasks import TaskSuite, suite_info, suite_names


class Absence(NamedTuple):
    """Suites on which agents have no entry."""

    slugs: tuple[str, ...]  # names of their folders of entries
    holds_on: Callable[[TaskSuite], bool]
    reason: str  # a sentence without its point, after "Greedy by lanes: "


def reason_of_absence(slug: str, suite: TaskSuite) -> str:
    """Why the agent has no entry on a suite of plans; empty if it has one, or should."""
    return next((each.reason for each in ABSENCES if slug in each.slugs and each.holds_on(suite)), "")


def _need(*names: str) -> Callable[[TaskSuite], bool]:
    return lambda suite: any(not task.needs.isdisjoint(names) for task in suite)


def _need_apart(name: str, suite_apart: str) -> Callable[[TaskSuite], bool]:
    return lambda suite: suite.name != suite_apart and _need(name)(suite)


def _lack(name: str) -> Callable[[TaskSuite], bool]:
    return lambda suite: not any(name in task.needs for task in suite)


def _are_constrained(suite: TaskSuite) -> bool:
    return any(task.constraints is not None for task in suite)


def _have_more_devices_than(most: int) -> Callable[[TaskSuite], bool]:
    return lambda suite: suite.max_devices > most


def _have_no_training_tasks(suite: TaskSuite) -> bool:
    return suite.name in suite_names() and not suite_info(suite.name).tasks.get("train")


def _are(*names: str) -> Callable[[TaskSuite], bool]:
    return lambda suite: suite.name in names


def _are_not(*names: str) -> Callable[[TaskSuite], bool]:
    return lambda suite: suite.name not in names


_SCALES = "entries with host memory are those of the one that scales up caches"
_MANY_DEVICES = ("sequence-128", "groups-256", "shard-128", "shard-512")
_ONE_ANSWER = ("sequence-128", "groups-256", "shard-512", "shard-kuairand-x8", "inference-dlrm-v3-x8")
_NO_MOVE = "no move of a whole table or two lowers the cost, so its five seeds give one answer"
_SMALL = ("shard-kuairand-x8", "inference-dlrm-v3-x8")
_TUNED = "its settings were chosen on pooled tables and up to 16 devices"
_SLOW = "it takes minutes to plan a task of so many devices"
_HOURS = "it is trained for hours with each of five seeds, so it has entries where its training is shortest"
_LONG = "each of its five trainings takes many minutes there; see the one that ships"
_FIVE_SUITES = "it was trained for hours on five suites, and has entries on these"

ABSENCES: Sequence[Absence] = (
    Absence(("hugectr",), _are_constrained, "it knows no constraints"),
    Absence(("hugectr",), _are("shard-512"), "its plans have more shards together than an entry may hold"),
    Absence(("torchrec", "torchrec-tuned"), _are_constrained, "it knows no devices of constraints, and breaks them"),
    Absence(("torchrec",), _need_apart(HOST_MEMORY, "inference-dlrm-v3-x8"), _SCALES),
    Absence(("torchrec-tuned",), _need(HOST_MEMORY), _SCALES),
    Absence(("torchrec-tuned",), _need(SEQUENCES), _TUNED),
    Absence(("torchrec", "torchrec-tuned"), _are(*_MANY_DEVICES), _SLOW),
    Absence(("torchrec-tuned",), _have_more_devices_than(32), _SLOW),
    Absence(("torchrec-offload",), _lack(HOST_MEMORY), "without host memory it is TorchRec's planner as it ships"),
    Absence(("blind-search",), _lack(HOST_MEMORY), "without host memory it is the local search over plans"),
    Absence(("dreamshard",), _are("shard-512"), "it learned up to 256 devices, and answers as moldable tables do"),
    Absence(("dreamshard",), _are(*_SMALL), "it learned larger batches, and answers as moldable tables do"),
    Absence(("stepwise",), _are("shard-512"), _SLOW),
    Absence(("local-search",), _are(*_ONE_ANSWER), _NO_MOVE),
    Absence(
        ("dreamshard-search", "neuroshard-paper", "maskable-ppo-splits"),
        _have_no_training_tasks,
        "the suite has no training tasks",
    ),
    Absence(("dreamshard-search",), _are(*_MANY_DEVICES), _LONG),
    Absence(("attention", "attention-greedy"), _are_not("shard-4", "shard-8"), _FIVE_SUITES),
    Absence(("neuroshard-paper", "maskable-ppo-splits"), _are_not("shard-4"), _HOURS),
)
"""The first that holds counts."""
