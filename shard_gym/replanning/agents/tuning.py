"""Rules, detectors and forecasters of replanning by name: their settings, tuned ones, and the grids of the tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.arrays import FloatArray, IntArray
from shard_gym.common.checks import is_integer, is_not_negative, is_number, is_positive
from shard_gym.common.errors import InvalidOptionError, short_repr, unknown_name
from shard_gym.common.io.files import read_json
from shard_gym.replanning.agents.base import ReplanningAgent, View
from shard_gym.replanning.agents.rules import (
    DETECTORS,
    ChangeDetector,
    EveryHours,
    Forecaster,
    Never,
    RegretThreshold,
    SkiRental,
)
from shard_gym.replanning.env.plan_table import NO_PLAN, PlanTable
from shard_gym.replanning.env.windows import HOURS, KINDS, LAST_DAYS, LAST_HOUR, WINDOWS


@dataclass(frozen=True, eq=False)
class TableEpisodes:
    """N episodes with up to n plans."""

    replayed: NDArray[np.float32]  #: (N, n, T, W) float32, as `PlanTable.replayed`; 0 where that is NaN
    seconds: FloatArray  #: (N, n, T) float64, as `PlanTable.seconds`
    number: IntArray  #: (N, T, Z) int64, as `PlanTable.number`
    newest: IntArray  #: (N, T, W) int64, the plan for each window: that with headroom, where there is one
    used: FloatArray  #: (N, n) float64, share of the devices that each plan is made for
    available: FloatArray  #: (N, T) float64, share of the devices that are there
    clock: FloatArray  #: (N, T, 4) float64, as `PlanTable.clock`
    day_s: FloatArray  #: (N,) float64, as `PlanTable.day_s`

    @staticmethod
    def of(tables: Sequence[PlanTable]) -> TableEpisodes:
        """The episodes of tables with the same number of decisions."""
        count, most, (decisions, kinds) = len(tables), max(len(each.where) for each in tables), tables[0].number.shape
        replayed = np.zeros((count, most, decisions, len(WINDOWS)), np.float32)
        seconds, used = np.full((count, most, decisions), np.nan), np.zeros((count, most))
        number = np.stack([each.number for each in tables])
        for row, table in enumerate(tables):
            plans = len(table.where)
            replayed[row, :plans], seconds[row, :plans] = np.nan_to_num(table.replayed), table.seconds
            used[row, :plans] = table.used / table.used[0]  # the first plan is made for all
        without, newest = number[..., : len(WINDOWS)], number[..., kinds - len(WINDOWS) :]
        return TableEpisodes(
            replayed,
            seconds,
            number,
            np.where(newest == NO_PLAN, without, newest),
            used,
            np.stack([each.available / each.used[0] for each in tables]),
            np.stack([each.clock for each in tables]),
            np.stack([each.day_s for each in tables]),
        )

    def play(self, agent: ReplanningAgent, pause_s: float) -> FloatArray:
        """(N,) seconds that an agent takes, without migrations. It sees no measured costs."""
        count, decisions = self.number.shape[:2]
        each, plan, since, total = np.arange(count), np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
        agent.begin(count)
        for decision in range(decisions):
            offered = self.number[:, decision]
            candidates = self.replayed[each[:, None], np.maximum(offered, 0), decision]
            current = self.replayed[each, plan, decision][:, None]
            must_plan = np.isnan(self.seconds[each, plan, decision])
            view = View(
                np.concatenate([current, candidates], axis=1).astype(np.float64),
                np.concatenate([np.ones((count, 1), np.bool_), offered != NO_PLAN], axis=1),
                since,
                pause_s / self.day_s,
                must_plan,
                self.clock[:, decision],
                np.full(count, (decisions - decision) / HOURS),
                self.available[:, decision],
                self.used[each, plan],
                np.zeros((count, 0)),
            )
            actions = agent.choose(view)
            makes = (actions > 0) | must_plan
            plan = np.where(makes, offered[each, np.maximum(actions - 1, LAST_HOUR)], plan)
            total += makes * pause_s + self.seconds[each, plan, decision]
            since = np.where(makes, 0.0, since) + 1.0 / HOURS
        return total


DATA = Path(__file__).parent / "tuned.json"
"""Suite -> agent -> settings that are best on the suite's training tasks; tools/replanning.py writes it."""

Settings = dict[str, Any]  # arguments of an agent, as JSON has them

Grid = Callable[[bool], list[Settings]]
"""The kinds of plans that are tried, as settings; called with whether plans may leave headroom."""


def _each_kind(grows: bool) -> list[Settings]:
    return [{"kind": kind} for kind in _kinds(grows)]


def _each_headroom(grows: bool) -> list[Settings]:
    return [{"headroom": headroom} for headroom in ((False, True) if grows else (False,))]


def _each_set(grows: bool) -> list[Settings]:
    rooms = [each["headroom"] for each in _each_headroom(grows)]
    return [{"kinds": [kind for kind in _kinds(grows) if KINDS[kind].headroom == room]} for room in rooms]


def _kinds(grows: bool) -> range:
    return range(len(KINDS) if grows else len(WINDOWS))


@dataclass(frozen=True)
class Tunable:
    """An agent whose settings are tuned."""

    make: Callable[..., ReplanningAgent]  #: makes the agent from settings
    plans: Grid  #: the kinds of plans that are tried
    values: Mapping[str, Sequence[float]]  #: the numbers that are tried for its other setting, under its name; or empty
    about: str = ""  #: what tells it from agents of the same class

    def grid(self, grows: bool, fitted: Settings) -> Iterator[Settings]:
        """The settings that are tried; `grows`: plans may leave headroom; `fitted`: settings that are not tuned."""
        numbers = ({name: value} for name, values in self.values.items() for value in values)
        for number, plans in product(numbers if self.values else ({},), self.plans(grows)):
            yield {**number, **plans, **fitted}


_HORIZONS = {"days": (0.1, 0.2, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 14.0)}
_FACTORS = {"factor": (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)}
_SENSITIVITIES = {
    "page-hinkley": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    "adwin": (1e-1, 1e-2, 1e-3, 1e-5, 1e-8, 1e-12),
    "kswin": (1e-3, 1e-5, 1e-8, 1e-12, 1e-16),
}

TUNABLE: dict[str, Tunable] = {
    "never": Tunable(Never, _each_kind, {}),
    "every": Tunable(EveryHours, _each_kind, {"hours": (1, 6, 12, 24, 48, 72, 96, 168)}),
    "threshold": Tunable(RegretThreshold, _each_kind, {"share": (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)}),
    **{
        f"ski-{name}": Tunable(partial(SkiRental, number), _each_headroom, _FACTORS, f"plans are for the {window.name}")
        for number, (name, window) in enumerate(
            zip(("last-hour", "last-day", "three-days", "next-half-day"), WINDOWS, strict=True)
        )
    },
    **{
        name: Tunable(partial(ChangeDetector, make), _each_kind, {"value": _SENSITIVITIES[name]}, f"by {make.__doc__}")
        for name, make in DETECTORS.items()
    },
    "seasonal": Tunable(Forecaster, _each_set, _HORIZONS, "soon is as yesterday, later as the last three days"),
    "ridge": Tunable(Forecaster, _each_set, _HORIZONS, "the weights are fitted to training episodes"),
}
"""By name of the agent."""


def _is_kind(value: Any) -> bool:
    return is_integer(value) and 0 <= value < len(KINDS)


def _are_weights(value: Any) -> bool:
    def listed(each: Any, length: int) -> bool:
        return isinstance(each, (list, tuple, np.ndarray)) and len(each) == length

    return listed(value, 2) and all(listed(row, len(WINDOWS)) and all(map(is_number, row)) for row in value)


_POSITIVE = is_positive, "a positive number"
_SHARE = lambda value: is_positive(value) and value <= 1, "a probability: a number above 0, and at most 1"

_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (_is_kind, f"an integer from 0 to {len(KINDS) - 1}"),
    "kinds": (
        lambda value: isinstance(value, (list, tuple, range)) and len(value) > 0 and all(map(_is_kind, value)),
        f"a list of integers from 0 to {len(KINDS) - 1}",
    ),
    "headroom": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("hours", "factor", "days", "value"), _POSITIVE),
    "share": (is_not_negative, "a number of at least 0"),
    "weights": (_are_weights, f"two lists of {len(WINDOWS)} numbers"),
}
"""What settings must be, by their names."""


def replanner(name: str, suite: str | None = None, **settings: Any) -> ReplanningAgent:
    """The agent of a name with settings; those that are not given are the tuned ones of the suite, or defaults.

    Args:
        name: one of `TUNABLE`.
        suite: name of the suite that it will answer, or None.
        settings: arguments of the agent.

    Raises:
        UnknownNameError: no agent has that name.
        InvalidOptionError: a setting is missing, unknown or out of range.
        DamagedFileError: the file with the tuned settings is missing or damaged.
        MissingExtraError: it is a detector, and the package `river` is not installed.
    """
    if name not in TUNABLE:
        raise unknown_name("agent of replanning", name, TUNABLE)
    make = TUNABLE[name].make
    settings = {**tuned_settings(name, suite), **settings}
    known = signature(make).parameters
    needed = [key for key, each in known.items() if each.default is each.empty]
    if not set(settings) <= set(known):
        raise InvalidOptionError(
            f"Agent {name!r} has the settings {', '.join(known) or 'none'}, but got {', '.join(settings)}."
        )
    if not set(needed) <= set(settings):
        raise InvalidOptionError(_needs(name, suite, needed))
    for key, value in settings.items():
        is_valid, kind = _SHARE if key == "value" and name in ("adwin", "kswin") else _VALID[key]
        if not is_valid(value):
            raise InvalidOptionError(f"{key} of agent {name!r} must be {kind}, not {short_repr(value)}.")
    agent = make(**settings)
    agent.name = name
    return agent


def _needs(name: str, suite: str | None, needed: Sequence[str]) -> str:
    """What is said of an agent without all of its settings."""
    wanted, suites = f"needs the settings {' and '.join(needed)}", tuned_suites(name)
    if not suites:
        example = ", ".join(f"{key}={value}" for key, value in next(TUNABLE[name].grid(False, {})).items())
        return f"Agent {name!r} is tuned on no suite, so it {wanted}, for example {example}."
    if suite is None:
        return f"Agent {name!r} {wanted}, or the suite that it will answer: make_agent({name!r}, suite={suites[0]!r})."
    return f"Agent {name!r} is not tuned on {suite!r}, so it {wanted}. It is tuned on {', '.join(suites)}."


def tuned_suites(name: str) -> list[str]:
    """The names of the suites on which an agent is tuned."""
    return [suite for suite, agents in _tuned().items() if name in agents]


def tuned_settings(name: str, suite: str | None) -> Settings:
    """The settings of an agent that were tuned on the train split of a named suite; empty if there are none."""
    return _tuned().get(suite or "", {}).get(name, {})


@cache
def _tuned() -> dict[str, dict[str, Settings]]:
    found: dict[str, dict[str, Settings]] = read_json(DATA)
    return found


class Tuned(NamedTuple):
    """What was chosen."""

    settings: Settings  #: the best of the grid
    share: float  #: mean seconds on the training episodes, in multiples of those of the agent that makes no plan


def tune(name: str, episodes: TableEpisodes, pause_s: float, grows: bool, fitted: Settings | None = None) -> Tuned:
    """The settings of an agent without measured costs that have the least mean share on the training episodes.

    Args:
        name, episodes: the agent, and what it is tuned on.
        pause_s: of a plan.
        grows, fitted: see `Tunable.grid`.
    """
    never: NDArray[np.float64] = episodes.play(Never(LAST_DAYS), pause_s)
    tried = [
        Tuned(settings, float((episodes.play(replanner(name, **settings), pause_s) / never).mean()))
        for settings in TUNABLE[name].grid(grows, fitted or {})
    ]
    return min(tried, key=lambda each: each.share)
