"""Agents whose numbers are tuned on training episodes: the grids, and the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shard_gym.agents.replanning.base import ReplanningAgent
from shard_gym.agents.replanning.detectors import DETECTORS, ChangeDetector
from shard_gym.agents.replanning.forecasters import SEASONAL, Forecast, Forecaster
from shard_gym.agents.replanning.neural_forecast import NUM_WEIGHTS, NeuralForecast
from shard_gym.agents.replanning.rules import EveryHours, Never, RegretThreshold, SkiRental
from shard_gym.agents.replanning.table_episodes import TableEpisodes
from shard_gym.checks import is_integer, is_not_negative, is_number, is_positive
from shard_gym.envs.replanning.windows import KINDS, LAST_DAYS, WINDOWS
from shard_gym.errors import InvalidOptionError, short_repr, unknown_name

Floats = NDArray[np.float64]

Settings = dict[str, Any]
"""Arguments of `make_agent` besides the name, as JSON has them."""

PERIODS = (1, 6, 12, 24, 48, 72, 96, 168)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
HORIZONS = (0.1, 0.2, 0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 14.0)
VALUES = {
    "page-hinkley": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    "adwin": (1e-1, 1e-2, 1e-3, 1e-5, 1e-8, 1e-12),
    "kswin": (1e-3, 1e-5, 1e-8, 1e-12, 1e-16),
}

SHORT = ("last-hour", "last-day", "three-days", "next-half-day")
"""Of the windows, in names of agents."""


def make_agent(name: str, settings: Settings) -> ReplanningAgent:
    """The agent of a name with these settings.

    Raises:
        UnknownNameError: no agent has that name.
        InvalidOptionError: a setting is missing, unknown or out of range.
        MissingExtraError: it is a detector, and the package `river` is not installed.
    """
    if name not in MAKERS:
        raise unknown_name("agent of replanning", name, MAKERS)
    known = signature(MAKERS[name]).parameters
    needed = [key for key, each in known.items() if each.default is each.empty]
    if not set(needed) <= set(settings) <= set(known):
        raise InvalidOptionError(
            f"Agent {name!r} of replanning has the settings {', '.join(known) or 'none'}"
            f"{' and needs ' + ', '.join(needed) if needed else ''}, but got {', '.join(settings) or 'none'}."
        )
    for key, value in settings.items():
        is_valid, kind = _VALID[key]
        if not is_valid(value):
            raise InvalidOptionError(f"{key} of agent {name!r} must be {kind}, not {short_repr(value)}.")
    return MAKERS[name](**settings)


def _is_kind(value: Any) -> bool:
    return is_integer(value) and 0 <= value < len(KINDS)


def _is_matrix(value: Any, *shape: int) -> bool:
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != shape[0]:
        return False
    return all(_is_matrix(each, *shape[1:]) if shape[1:] else is_number(each) for each in value)


_POSITIVE = is_positive, "a positive number"

_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (_is_kind, f"an integer from 0 to {len(KINDS) - 1}"),
    "kinds": (
        lambda value: isinstance(value, (list, tuple, range)) and len(value) > 0 and all(map(_is_kind, value)),
        f"a list of integers from 0 to {len(KINDS) - 1}",
    ),
    "headroom": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("hours", "factor", "days", "value"), _POSITIVE),
    "share": (is_not_negative, "a number of at least 0"),
    "weights": (lambda value: _is_matrix(value, 2, len(WINDOWS)), f"two lists of {len(WINDOWS)} numbers"),
    "network": (lambda value: _is_matrix(value, NUM_WEIGHTS), f"a list of {NUM_WEIGHTS} numbers"),
}
"""What settings must be, by their names."""


def _ski_rental(window: int) -> Callable[..., ReplanningAgent]:
    def make(factor: float = 1.0, headroom: bool = False) -> ReplanningAgent:
        return SkiRental(factor, KINDS.index((window, headroom)))

    return make


def _detector(name: str) -> Callable[..., ReplanningAgent]:
    def make(value: float, kind: int) -> ReplanningAgent:
        return ChangeDetector(DETECTORS[name], value, kind)

    return make


def _forecaster(days: float, kinds: Sequence[int], weights: Sequence[Sequence[float]] = SEASONAL) -> ReplanningAgent:
    return Forecaster(Forecast(weights, days), kinds)


def _neural(
    days: float, kinds: Sequence[int], weights: Sequence[Sequence[float]], network: Sequence[float]
) -> ReplanningAgent:
    return Forecaster(NeuralForecast(weights, network, days), kinds)


MAKERS: dict[str, Callable[..., ReplanningAgent]] = {
    "never": Never,
    "every": EveryHours,
    "threshold": RegretThreshold,
    **{f"ski-{short}": _ski_rental(window) for window, short in enumerate(SHORT)},
    **{name: _detector(name) for name in DETECTORS},
    "seasonal": _forecaster,
    "ridge": _forecaster,
    "neural": _neural,
}
"""Makers of the agents by their names. Each has a `grid`."""


def grid(name: str, grows: bool, fitted: Settings) -> Iterator[Settings]:
    """The settings that are tried.

    Args:
        name: of the agent.
        grows: whether plans may leave headroom.
        fitted: settings that are not tuned, such as the weights of a forecast.
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
        yield from ({"days": days, "kinds": some, **fitted} for days, some in product(HORIZONS, chosen))


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
    fitted: Settings | None = None,
) -> Tuned:
    """The settings with the least mean share on the training episodes.

    Args:
        name: of an agent that needs no measured costs.
        episodes: to tune on.
        pause_s: of a plan.
        grows: whether plans may leave headroom.
        fitted: settings that are not tuned, such as the weights of a forecast.
    """
    never = episodes.play(Never(LAST_DAYS), pause_s)
    tried = [
        Tuned(settings, float((episodes.play(make_agent(name, settings), pause_s) / never).mean()))
        for settings in grid(name, grows, fitted or {})
    ]
    return min(tried, key=lambda each: each.share)
