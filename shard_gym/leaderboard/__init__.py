"""Leaderboards: entries are answers to test tasks; their costs are recomputed, and the valid ones are ranked.

An entry has five forms on its way, and a module makes each of the next from the one before:

1. files in a folder (`store.py` reads them; `submission.py` writes them, from evaluations of `evaluations.py`)
2. `Entry` and the rows of answers, parsed (`entry.py`)
3. `VerifiedEntry`: every claim was recomputed (`verify.py`), and it is no copy (`copies.py`)
4. `RankedEntry`: a row of a `Leaderboard` (`ranking.py`), with times (`replay.py`) and gaps on fresh tasks (`fresh.py`)
5. a table (`markdown.py`) and a web page (`site.py`, `static/`)

Beside the way: `scorer.py` has the costs, `leagues.py` what an agent may ask, `training_data.py` what it learnt from,
`names.py` names that look alike, `statistics.py` intervals; `race.py`, `racing.py` and `measured_track.py` races on a
machine; `check.py` all that the command verifies.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "EntryFolder": "store",
    "find_entries": "store",
    "Entry": "entry",
    "VerifiedEntry": "entry",
    "verify_entry": "verify",
    "verify_all": "verify",
    "RankedEntry": "ranking",
    "Leaderboard": "ranking",
    "load_leaderboards": "ranking",
    "write_pages": "markdown",
    "write_site": "site",
    "EvaluatedAgent": "evaluations",
    "evaluate_agent": "evaluations",
    "EntryInfo": "submission",
    "submit": "submission",
}
"""The public names by their modules, imported when they are asked for: entries need pydantic, races do not."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
