from __future__ import annotations

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.leaderboard.scorer import load_scorer


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mlperf-x8", "generalize"])
def test_many_placements_at_once_cost_the_same_as_one_alone(suite: str) -> None:
    scorer = load_scorer(suite)
    for number in (0, len(scorer.suite) - 1):
        task = scorer.suite[number]
        placements = np.array([make_agent("random", seed=seed).place(task) for seed in range(7)])
        alone = [scorer.model.estimate(placement, task.tables, task.topology).total_ms for placement in placements]
        assert scorer.costs(number, placements).tolist() == alone
        assert scorer.lower_bound(number) <= min(alone)


def test_cost_model_hashes_differ_by_suite() -> None:
    assert load_scorer("dlrm-20x4").cost_model_sha256 != load_scorer("dlrm-40x4").cost_model_sha256
