"""Constants of the analytical model; what it computes is checked in plain arithmetic by test_collectives.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical import FITTED, Constants
from shard_gym.cost_models.base import COMPUTE
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile

MODEL = AnalyticalCostModel()


def test_other_constants_have_another_fingerprint() -> None:
    other = AnalyticalCostModel(FITTED._replace(cycles_per_row=1.0))
    assert MODEL.fingerprint == AnalyticalCostModel(Constants(*FITTED)).fingerprint == "analytical-v2"
    assert other.fingerprint.startswith("analytical-v2-")
    assert other.fingerprint != AnalyticalCostModel(FITTED._replace(cycles_per_row=2.0)).fingerprint


def test_an_operator_without_work_costs_its_launches(zipf_tables: Any) -> None:
    tables, topology = zipf_tables([10], 4, 0.0, batch_size=1), hardware_profile("a100-dgx").topology(1)
    phases = MODEL.estimate(np.zeros(1, np.int64), tables, topology).phases_ms[0, COMPUTE]
    assert phases == pytest.approx([5.67 * 0.005, 22.2 * 0.005], rel=1e-2)


@pytest.mark.parametrize(
    ("name", "value"), [("sort_efficiency", 0.0), ("cycles_per_row", -1.0), ("cycles_per_bag", float("nan"))]
)
def test_constants_that_cost_nothing_sensible_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidOptionError, match=f"The constant {name} must be"):
        AnalyticalCostModel(FITTED._replace(**{name: value}))
