"""What is shipped: the tuned agents can be made, and the page of results shows the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.replanning.detectors import DETECTORS
from shard_gym.agents.replanning.tuning import DATA, tuned_suites
from shard_gym.io.files import read_json
from shard_gym.suites import load_suite, suite_names

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "replanning.json"
TUNED = read_json(DATA)


@pytest.mark.parametrize("suite", TUNED)
def test_tuned_agents_can_be_made(suite: str) -> None:
    assert suite in suite_names("replanning")
    for name, settings in TUNED[suite].items():
        if name in DETECTORS:
            pytest.importorskip("river")
        agent = make_agent(name, suite=suite)
        assert agent.name == name
        assert suite in tuned_suites(name)
        assert all(getattr(agent, key) == value for key, value in settings.items() if key in ("hours", "factor"))


def test_results_are_of_the_suites_as_they_are() -> None:
    results = read_json(RESULTS)["suites"]
    assert results
    for name, found in results.items():
        suite = load_suite(name)
        assert found["sha256"] == suite.sha256
        for runs in found["agents"].values():
            for each in runs:
                assert len(each["excess"]) == len(suite)
                assert min(each["excess"]) >= 0.0  # no agent is better than the oracle
