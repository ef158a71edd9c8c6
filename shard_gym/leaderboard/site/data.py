"""What the page is made from: plain dicts of the scores, and their check before anything is written."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal, TypedDict, get_args

from shard_gym.errors import InvalidOptionError, short_repr
from shard_gym.text import slug

Track = Literal["simulated", "measured"]

TRACKS: tuple[str, ...] = get_args(Track)

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class TaskData(TypedDict):
    """One test task of a suite; its tables and devices come from the suite itself.

    Attributes:
        name: as the suite calls it, such as "dlrm-20x4/test/3".
        best_known_ms: cost of the best placement known, ms; None if none is.
        lower_bound_ms: no placement costs less, ms; None where no bound is known (measured costs).
    """

    name: str
    best_known_ms: float | None
    lower_bound_ms: float | None


class EntryData(TypedDict):
    """One entry of a suite.

    Attributes:
        id: its folder's name: lower-case letters, digits, ".", "_" and "-". The same id on several suites is the same
            contestant: it keeps its colour, and a line of the performance profile.
        name: as it is shown.
        authors: as they are shown, in this order.
        link: a web page (https or http); empty for none.
        licence: of the entry's code, an SPDX identifier; empty if it has not been declared.
        agent: what kind of agent it is, a few words.
        hardware: what it planned on.
        seeds: how many seeds.
        mean_cost_ms: mean over tasks and seeds, ms, failures charged.
        interval_ms: 95% interval of that mean, low and high.
        failures: (task, seed) pairs without a valid placement.
        gap: mean over tasks and seeds of cost / best known cost, less 1; None if a task has no best known cost.
        improvement_over_next: probability that it is better than the entry of the next rank, 0 to 1; None for the last.
        planning_ms: time of planning one task, ms, median over tasks and seeds; None if it has not been declared.
        planning_replayed: whether that time was taken by replaying the agent; otherwise the entry declares it.
        training_queries: true costs asked in training, in all.
        planning_queries: true costs asked for one task while planning, mean over tasks and seeds.
        training_data: what it was trained on, as declared; empty if it was not trained.
        shard_gym: version it was made with.
        task_costs_ms: for each task the mean over seeds, ms, failures charged.
        placements: for each task the first seed's placement, T device numbers; None where that one failed.
    """

    id: str
    name: str
    authors: list[str]
    link: str
    licence: str
    agent: str
    hardware: str
    seeds: int
    mean_cost_ms: float
    interval_ms: tuple[float, float] | list[float]
    failures: int
    gap: float | None
    improvement_over_next: float | None
    planning_ms: float | None
    planning_replayed: bool
    training_queries: int
    planning_queries: float
    training_data: str
    shard_gym: str
    task_costs_ms: list[float]
    placements: list[list[int] | None]


class BestData(TypedDict):
    """The best placements known of a suite's tasks, which the explorer offers beside the entries.

    Attributes:
        effort: how they were found, words.
        placements: for each task T device numbers.
    """

    effort: str
    placements: list[list[int]]


class SuiteData(TypedDict):
    """The leaderboard of one suite; in the measured track, on one kind of hardware.

    Attributes:
        name: of a suite that `load_suite` knows (its test tasks).
        track: "simulated" or "measured".
        hardware: what the tasks are placed on; in the measured track, what was measured on.
        description: one sentence.
        cost_model: name of the cost model that takes placements apart for the explorer; the same as scores in the
            simulated track. In the measured track the page calls its numbers estimates.
        tasks: all test tasks, in the suite's order.
        best: the best placements known; None if there is none for every task, and of measured costs.
        entries: in order of rank, the best first.
    """

    name: str
    track: Track
    hardware: str
    description: str
    cost_model: str
    tasks: list[TaskData]
    best: BestData | None
    entries: list[EntryData]


class _Summary(TypedDict, total=False):
    iqm: float
    iqm_interval: tuple[float, float] | list[float]


class ProfileLine(_Summary):
    """One contestant's line of a performance profile.

    Attributes:
        id: of the entries.
        name: as it is shown.
        tasks: how many tasks stand behind it.
        shares: for each tau the share of these tasks, 0 to 1, never falling, whose cost is at most tau times the best
            known.
        iqm: may be left out: interquartile mean over tasks and seeds of cost / best known cost.
        iqm_interval: may be left out: 95% interval of it, low and high.
    """

    id: str
    name: str
    tasks: int
    shares: list[float]


class ProfileData(TypedDict):
    """A performance profile over the suites of a track.

    Attributes:
        track: "simulated" or "measured".
        hardware: measured costs of different hardware are not put together: what was measured on; None means all.
        about: one sentence: which suites and tasks stand behind it.
        taus: ascending, multiples of the best known cost, from 1.
        lines: one for each contestant.
    """

    track: Track
    hardware: str | None
    about: str
    taus: list[float]
    lines: list[ProfileLine]


class SiteData(TypedDict):
    """All the page shows.

    Attributes:
        suites: the leaderboards, in the order in which they are offered.
        profiles: at most one for each track and hardware.
    """

    suites: list[SuiteData]
    profiles: list[ProfileData]


def suite_key(suite: SuiteData) -> str:
    """Names a leaderboard, and is its folder: "simulated/dlrm-20x4", or "measured/nvidia-h200/dlrm-20x4"."""
    where = (suite["track"],) if suite["track"] == "simulated" else (suite["track"], slug(suite["hardware"]))
    return "/".join((*where, suite["name"]))


def check_site_data(data: SiteData) -> None:
    """Refuse what would make a page that is wrong or breaks; costs and placements are checked where they are used.

    Raises:
        InvalidOptionError: a name that is no safe path, one that stands twice, lists of different lengths, a track that
            does not exist, a number that is NaN or infinite, or text that is no Unicode.
    """
    _check_values(data)
    for suite in data["suites"]:
        _check_track(suite["track"], suite["name"])
        _check_path(suite["name"], "suite")
        _check_suite(suite)
    _unique([suite_key(suite) for suite in data["suites"]], "suite of a track and hardware")
    for profile in data["profiles"]:
        _check_track(profile["track"], "a profile")
        for line in profile["lines"]:
            _same_length(line["shares"], profile["taus"], f"shares of {line['id']!r} in a profile", "taus")
    _unique([f"{each['track']} {each['hardware']}" for each in data["profiles"]], "profile of a track and hardware")


def _check_suite(suite: SuiteData) -> None:
    if suite["best"] is not None:
        what = f"The best placements of suite {suite['name']!r}"
        _same_length(suite["best"]["placements"], suite["tasks"], what, "tasks")
    for entry in suite["entries"]:
        _check_path(entry["id"], "entry")
        for field in ("task_costs_ms", "placements"):
            values = entry["placements"] if field == "placements" else entry["task_costs_ms"]
            _same_length(values, suite["tasks"], f"{field} of {entry['id']!r} in suite {suite['name']!r}", "tasks")
    _unique([entry["id"] for entry in suite["entries"]], f"entry of suite {suite['name']!r}")


def _check_values(data: SiteData) -> None:
    try:
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError, for half of a surrogate pair, is a ValueError
        raise InvalidOptionError(f"The data of the leaderboards cannot be written as JSON: {error}.") from error


def _check_track(track: str, where: str) -> None:
    if track not in TRACKS:
        raise InvalidOptionError(f"The track of {where} must be one of {list(TRACKS)}, not {short_repr(track)}.")


def _check_path(name: str, kind: str) -> None:
    if not _SAFE.fullmatch(name):
        raise InvalidOptionError(
            f"The name of a folder of the page comes from the {kind} {short_repr(name)}, which is not safe for one. "
            "Use at most 100 lower-case letters, digits, '.', '_' and '-', the first a letter or a digit."
        )


def _same_length(values: Sequence[object], wanted: Sequence[object], what: str, other: str) -> None:
    if len(values) != len(wanted):
        raise InvalidOptionError(f"{what} has {len(values)} values for {len(wanted)} {other}; give one for each.")


def _unique(names: list[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidOptionError(f"Every {what} stands once in the data, but {twice[0]!r} stands twice; drop one.")
