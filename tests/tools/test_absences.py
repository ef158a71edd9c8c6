"""Every agent of the package that plans has an entry on every suite of plans, or a reason why it has none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from shard_gym.leaderboard.absences import ABSENCES, reason_of_absence
from shard_gym.tasks import TaskSuite, load_suite, suite_names
from shard_gym.tasks.suites.info import SHARDING


@pytest.fixture(scope="module")
def suites() -> list[TaskSuite]:
    return [load_suite(name) for name in suite_names(SHARDING)]


def test_an_entry_is_made_or_there_is_a_reason_why_not(
    suites: list[TaskSuite], tool: Callable[[str], ModuleType]
) -> None:
    pytest.importorskip("pydantic")
    entries = tool("entries")
    made = {(folder.slug, folder.suite) for folder in entries.places()}
    slugs = {entrant.slug for entrant in entries.ENTRANTS if SHARDING in entrant.tracks}
    assert {"lane-greedy", "plan-search", "dreamshard", "torchrec", "attention"} <= slugs
    for suite in suites:
        for slug in slugs:
            has, reason = (slug, suite.name) in made, bool(reason_of_absence(slug, suite))
            assert has + reason == 1, (slug, suite.name)


def test_reasons_hold_somewhere_and_are_clauses(suites: list[TaskSuite]) -> None:
    for absence in ABSENCES:
        assert 0 < sum(absence.holds_on(suite) for suite in suites) < len(suites)
        assert absence.reason
        assert absence.reason[-1] != "."
