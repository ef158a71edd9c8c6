"""Agents whose numbers are tuned on training episodes: the grids, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replacement.base import ReplacementAgent
from shard_gym.agents.replacement.detectors import DETECTORS, ChangeDetector
from shard_gym.agents.replacement.forecasters import SEASONAL, Forecaster
from shard_gym.agents.replacement.rules import EveryHours, Never, RegretThreshold, SkiRental
from shard_gym.agents.replacement.score_policy import ScorePolicy
from shard_gym.agents.replacement.table_episodes import TableEpisodes
from shard_gym.envs.replacement.windows import KINDS, LAST_DAYS, WINDOWS
from shard_gym.errors import unknown_name

Floats = NDArray[np.float64]

Settings = dict[str, Any]
"""Arguments of `make_agent` besides the name, as JSON has them."""

PERIODS = (1, 6, 12, 24, 48, 72, 96, 168)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
HORIZONS = (1.0, 2.0, 3.0, 5.0, 7.0, 14.0)
VALUES = {
    "page-hinkley": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    "adwin": (1e-1, 1e-2, 1e-3, 1e-5, 1e-8, 1e-12),
    "kswin": (1e-3, 1e-5, 1e-8, 1e-12, 1e-16),
}

SHORT = ("last-hour", "last-day", "three-days", "next-half-day")
"""Of the windows, in names of agents."""


def make_agent(name: str, settings: Settings) -> ReplacementAgent:
    """The agent of a name with these settings.

    Raises:
        UnknownNameError: no agent has that name.
    """
    if name not in MAKERS:
        raise unknown_name("agent of re-placement", name, MAKERS)
    return MAKERS[name](**settings)


def _ski_rental(window: int) -> Callable[..., ReplacementAgent]:
    def make(factor: float = 1.0, headroom: bool = False) -> ReplacementAgent:
        return SkiRental(factor, KINDS.index((window, headroom)))

    return make


def _detector(name: str) -> Callable[..., ReplacementAgent]:
    def make(value: float, kind: int) -> ReplacementAgent:
        return ChangeDetector(DETECTORS[name], value, kind)

    return make


def _forecaster(
    days: float, factor: float, kinds: Sequence[int], weights: Sequence[Sequence[float]] = SEASONAL
) -> ReplacementAgent:
    return Forecaster(weights, days, factor, kinds)


def _score_policy(weights: Sequence[float]) -> ReplacementAgent:
    return ScorePolicy(np.asarray(weights, np.float64))


MAKERS: dict[str, Callable[..., ReplacementAgent]] = {
    "never": Never,
    "every": EveryHours,
    "threshold": RegretThreshold,
    **{f"ski-{short}": _ski_rental(window) for window, short in enumerate(SHORT)},
    **{name: _detector(name) for name in DETECTORS},
    "seasonal": _forecaster,
    "ridge": _forecaster,
    "learned": _score_policy,
}
"""Makers of the agents by their names. All but `learned`, which is trained, have a `grid`."""


def grid(name: str, grows: bool, weights: Sequence[Sequence[float]]) -> Iterator[Settings]:
    """The settings that are tried.

    Args:
        name: of the agent.
        grows: whether plans may leave headroom.
        weights: of the ridge forecaster.
    """
    kinds = range(len(KINDS) if grows else len(WINDOWS))
    rooms = (False, True) if grows else (False,)
    chosen = [[index for index in kinds if KINDS[index].headroom == room] for room in rooms]
    if name == "never":
        yield from ({"kind": kind} for kind in kinds)
    elif name == "every":
        yield from ({"hours": hours, "kind": kind} for hours, kind in product(PERIODS, kinds))
    elif name == "threshold":
        yield from ({"share": share, "kind": kind} for share, kind in product(SHARES, kinds))
    elif name.startswith("ski-"):
        yield from ({"factor": factor, "headroom": room} for factor, room in product(FACTORS, rooms))
    elif name in VALUES:
        yield from ({"value": value, "kind": kind} for value, kind in product(VALUES[name], kinds))
    else:
        more = {"weights": weights} if name == "ridge" else {}
        for days, factor, some in product(HORIZONS, FACTORS[:7], chosen):
            yield {"days": days, "factor": factor, "kinds": some, **more}


class Tuned(NamedTuple):
    """What was chosen.

    Attributes:
        settings: the best of the grid.
        share: mean seconds on the training episodes, in multiples of those of the agent that makes no plan.
    """

    settings: Settings
    share: float


def tune(
    name: str,
    episodes: TableEpisodes,
    pause_s: float,
    grows: bool,
    weights: Sequence[Sequence[float]],
) -> Tuned:
    """The settings with the least mean share on the training episodes.

    Args:
        name: of an agent that needs no measured costs.
        episodes: to tune on.
        pause_s: of a plan.
        grows: whether plans may leave headroom.
        weights: of the ridge forecaster.
    """
    never = episodes.play(Never(LAST_DAYS), pause_s)
    tried = [
        Tuned(settings, float((episodes.play(make_agent(name, settings), pause_s) / never).mean()))
        for settings in grid(name, grows, weights)
    ]
    return min(tried, key=lambda each: each.share)
