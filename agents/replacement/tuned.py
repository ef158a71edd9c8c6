"""The agents of re-placement with the numbers that were tuned, or trained, on the named suites."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from shard_gym.agents.replacement.base import ReplacementAgent
from shard_gym.agents.replacement.tuning import MAKERS, Settings, make_agent
from shard_gym.errors import InvalidOptionError, unknown_name
from shard_gym.io.files import read_json

DATA = Path(__file__).parent / "tuned.json"
"""Suite -> agent -> list of settings, one for each seed; tools/replacement.py writes it."""


def tuned_agent(name: str, suite: str, seed: int = 0, **settings: Any) -> ReplacementAgent:
    """The agent of a name as it was tuned on the train split of a named suite.

    Args:
        name: of the agent; see `tuning.MAKERS`.
        suite: name of the suite.
        seed: which of several trainings.
        settings: used in place of those that were tuned.

    Raises:
        UnknownNameError: no agent has that name.
        InvalidOptionError: it was not tuned on this suite and lacks settings, a setting is unknown, or there is no
            training with that seed.
    """
    if name not in MAKERS:
        raise unknown_name("agent of re-placement", name, MAKERS)
    trained: list[Settings] = _data().get(suite, {}).get(name, [])
    if trained and not 0 <= seed < len(trained):
        raise InvalidOptionError(
            f"Agent {name!r} was trained on {suite!r} with the seeds 0 to {len(trained) - 1}, not {seed}."
        )
    given = {**(trained[seed] if trained else {}), **settings}
    try:
        return make_agent(name, given)
    except TypeError as error:
        raise InvalidOptionError(
            f"Agent {name!r} of re-placement cannot be made with the settings {sorted(given)}: {error}. It is tuned on "
            f"{', '.join(sorted(suite for suite, agents in _data().items() if name in agents)) or 'no suite'}."
        ) from error


def tuned_settings(name: str, suite: str) -> list[Settings]:
    """The settings of an agent that were tuned, or trained, on the train split of a named suite, one for each seed.

    Raises:
        InvalidOptionError: there are none.
    """
    found = _data().get(suite, {}).get(name, [])
    if not found:
        raise InvalidOptionError(f"Agent {name!r} of re-placement is not tuned on {suite!r}. Give it settings.")
    return found


@cache
def _data() -> dict[str, dict[str, list[Settings]]]:
    found: dict[str, dict[str, list[Settings]]] = read_json(DATA) if DATA.exists() else {}
    return found
