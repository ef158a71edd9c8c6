from __future__ import annotations

import numpy as np
import pytest

from shard_gym.cost_models.measured.model import PENALTY_MARGIN
from shard_gym.leaderboard.scorer import TRACK_COST_MODELS, load_scorer


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mlperf-x8", "generalize"])
def test_many_placements_at_once_cost_the_same_as_one_alone(suite: str) -> None:
    scorer = load_scorer(suite, "simulated")
    rng = np.random.default_rng(0)
    for number in (0, len(scorer.suite) - 1):
        task = scorer.suite[number]
        placements = rng.integers(task.num_devices, size=(7, task.num_tables))
        alone = [scorer.model.estimate(placement, task.tables, task.topology).total_ms for placement in placements]
        assert scorer.costs(number, placements).tolist() == alone
        assert scorer.lower_bound(number) <= min(alone)


def test_cost_model_hashes_differ_by_suite_and_track() -> None:
    hashes = {
        load_scorer(suite, track).cost_model_sha256
        for suite in ("dlrm-20x4", "dlrm-40x4")
        for track in TRACK_COST_MODELS
    }
    assert len(hashes) == 4


def test_measured_penalties_are_those_of_the_measured_cost_model() -> None:
    simulated, measured = (load_scorer("dlrm-20x4", track).penalties for track in ("simulated", "measured"))
    assert measured == pytest.approx(PENALTY_MARGIN * simulated)
