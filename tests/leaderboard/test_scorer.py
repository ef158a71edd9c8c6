from __future__ import annotations

import numpy as np
import pytest

from shard_gym.leaderboard import scorer as scoring
from shard_gym.leaderboard.scorer import Scorer, hashes, scorer_of
from shard_gym.suites import load_suite


@pytest.mark.parametrize("suite", ["dlrm-20x4", "mlperf-x8", "generalize"])
def test_many_at_once_cost_what_each_costs_alone(suite: str) -> None:
    judge = scorer_of(suite, "simulated")
    rng = np.random.default_rng(0)
    for number in (0, len(judge.suite) - 1):
        task = judge.suite[number]
        placements = rng.integers(task.num_devices, size=(7, task.num_tables))
        alone = [judge.model.estimate(placement, task.tables, task.topology).total_ms for placement in placements]
        assert judge.costs(number, placements).tolist() == alone
        assert judge.lower_bound(number) <= min(alone)


def test_parts_of_a_batch_are_put_together_in_order(monkeypatch) -> None:
    judge = Scorer(load_suite("dlrm-20x4"))
    placements = np.random.default_rng(0).integers(4, size=(9, 20))
    whole = judge.costs(0, placements)
    monkeypatch.setattr(scoring, "MOST_AT_ONCE", 1)
    assert judge.costs(0, placements).tolist() == whole.tolist()
    assert judge.costs(0, placements[:0]).shape == (0,)


def test_hashes_differ_by_suite_and_track() -> None:
    all_of_them = {
        hashes(suite, track)["cost_model"] for suite in ("dlrm-20x4", "dlrm-40x4") for track in scoring.SCORED_BY
    }
    assert len(all_of_them) == 4
    assert hashes("dlrm-20x4")["suite"] == load_suite("dlrm-20x4").sha256


def test_measured_penalties_are_those_of_the_measuring_model() -> None:
    from shard_gym.cost_models.measured.model import PENALTY_MARGIN

    simulated, measured = (scorer_of("dlrm-20x4", track).penalties for track in ("simulated", "measured"))
    assert measured == pytest.approx(PENALTY_MARGIN * simulated)
