"""What is shipped: the tuned agents can be made, and the page of results shows the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym.agents.replanning.tuned import DATA, tuned_agent
from shard_gym.cost_models import make_sharding_cost_model
from shard_gym.drift.oracle_seconds import oracle_seconds
from shard_gym.drift.suites import drift_suite_names, load_drift_suite
from shard_gym.io.files import read_json

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "replanning.json"
TUNED = [
    (suite, name, seed)
    for suite, agents in read_json(DATA).items()
    for name in agents
    for seed in range(len(agents[name]))
]


@pytest.mark.parametrize(("suite", "name", "seed"), TUNED)
def test_tuned_agents_can_be_made(suite: str, name: str, seed: int) -> None:
    if name in ("page-hinkley", "adwin", "kswin"):
        pytest.importorskip("river")
    assert suite in drift_suite_names()
    tuned_agent(name, suite, seed).begin(2)


def test_results_are_of_the_suites_as_they_are() -> None:
    results = read_json(RESULTS)["suites"]
    assert results
    for name, found in results.items():
        suite = load_drift_suite(name)
        assert found["sha256"] == suite.sha256
        assert oracle_seconds(suite, make_sharding_cost_model("analytical"))
        for runs in found["agents"].values():
            for each in runs:
                assert len(each["excess"]) == len(suite)
                assert min(each["excess"]) >= 0.0  # no agent is better than the oracle
