"""The agents of replanning with the numbers that were tuned, or trained, on the named suites."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from shard_gym.agents.replanning.base import ReplanningAgent
from shard_gym.agents.replanning.tuning import MAKERS, Settings, make_agent
from shard_gym.checks import checked_seed
from shard_gym.drift.suites import drift_suite_names
from shard_gym.errors import InvalidOptionError, short_repr, unknown_name
from shard_gym.io.files import read_json

DATA = Path(__file__).parent / "tuned.json"
"""Suite -> agent -> list of settings, one for each seed; tools/replanning.py writes it."""


def tuned_agent(name: str, suite: str, seed: int = 0, **settings: Any) -> ReplanningAgent:
    """The agent of a name as it was tuned on the train split of a named suite.

    Args:
        name: of the agent; see `tuning.MAKERS`.
        suite: name of the suite.
        seed: which of several trainings.
        settings: used in place of those that were tuned.

    Raises:
        UnknownNameError: no agent has that name.
        InvalidOptionError: it was not tuned on this suite and has no settings, a setting is missing, unknown or out of
            range, or there is no training with that seed.
        DamagedFileError: the file with the settings is missing or damaged.
    """
    if name not in MAKERS:
        raise unknown_name("agent of replanning", name, MAKERS)
    trained: list[Settings] = _data().get(suite, {}).get(name, [])
    if trained and not 0 <= checked_seed(seed) < len(trained):
        raise InvalidOptionError(
            f"Agent {name!r} was trained on {suite!r} with the seeds 0 to {len(trained) - 1}, not {seed}."
        )
    if not trained and not settings:
        raise InvalidOptionError(
            f"Agent {name!r} of replanning is not tuned on {short_repr(suite)}, and has no settings here. Give it "
            f"some, or take a suite on which it is tuned: {', '.join(tuned_suites(name)) or 'there is none'}."
        )
    return make_agent(name, {**(trained[seed] if trained else {}), **settings})


def tuned_suites(name: str) -> list[str]:
    """The names of the suites on which an agent is tuned."""
    return [suite for suite in drift_suite_names() if name in _data().get(suite, {})]


def tuned_settings(name: str, suite: str) -> list[Settings]:
    """The settings of an agent that were tuned, or trained, on the train split of a named suite, one for each seed.

    Raises:
        InvalidOptionError: there are none.
    """
    found = _data().get(suite, {}).get(name, [])
    if not found:
        raise InvalidOptionError(f"Agent {name!r} of replanning is not tuned on {suite!r}. Give it settings.")
    return found


@cache
def _data() -> dict[str, dict[str, list[Settings]]]:
    found: dict[str, dict[str, list[Settings]]] = read_json(DATA)
    return found
