"""The effects a cost model must show (launches, overlap, lanes), and single numbers against their sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical import (
    FITTED,
    FORWARD_DRAM_MS,
    FORWARD_L2_MS,
    FORWARD_LANE_MS,
    LANE_SHARE,
    Constants,
)
from shard_gym.cost_models.base import BACKWARD, FORWARD
from shard_gym.errors import InvalidOptionError
from shard_gym.hardware import hardware_profile
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import Tables
from shard_gym.workload import Workload

MODEL = AnalyticalCostModel()
FULL_OVERLAP = AnalyticalCostModel(FITTED._replace(overlap_loss=0.0))
A100 = hardware_profile("a100-dgx")
H100 = hardware_profile("h100-dgx")


def on_one_device(tables: Tables, profile: Any = A100, model: AnalyticalCostModel = MODEL) -> tuple[float, float]:
    """Ms of forward and backward with all tables on a single device."""
    large = profile.topology(1, memory_cap_bytes=2**50)
    phases = model.estimate(np.zeros(len(tables), np.int64), tables, large).phases_ms[0]
    return float(phases[FORWARD]), float(phases[BACKWARD])


def test_other_constants_have_another_fingerprint() -> None:
    other = AnalyticalCostModel(FITTED._replace(cycles_per_row=1.0))
    assert MODEL.fingerprint == AnalyticalCostModel(Constants(*FITTED)).fingerprint == "analytical-v2"
    assert other.fingerprint.startswith("analytical-v2-")
    assert other.fingerprint != AnalyticalCostModel(FITTED._replace(cycles_per_row=2.0)).fingerprint


def test_an_operator_without_work_costs_its_launches(zipf_tables: Any) -> None:
    forward, backward = on_one_device(zipf_tables([10], 4, 0.0, batch_size=1))
    assert forward == pytest.approx(5.67 * 0.005, rel=1e-2)
    assert backward == pytest.approx(22.2 * 0.005, rel=1e-2)


def test_the_slowest_limit_counts_in_full_and_the_others_in_part(zipf_tables: Any) -> None:
    tables = zipf_tables([10**6], 64, 10.0)
    parts = []
    for name in ("overlap_loss", "cycles_per_row", "cycles_per_bag"):
        without = AnalyticalCostModel(FITTED._replace(**{name: 0.0}))
        parts.append(on_one_device(tables, model=without)[0])
    assert max(parts) < on_one_device(tables)[0]
    no_loss = AnalyticalCostModel(FITTED._replace(overlap_loss=0.0, forward_launches=0.0))
    all_loss = AnalyticalCostModel(FITTED._replace(overlap_loss=1.0, forward_launches=0.0))
    loads = no_loss.table_loads(tables, A100.topology(1))[0]
    limits = [loads[FORWARD_DRAM_MS], loads[FORWARD_L2_MS], loads[FORWARD_LANE_MS] * loads[LANE_SHARE]]
    assert on_one_device(tables, model=no_loss)[0] == pytest.approx(max(limits))
    assert on_one_device(tables, model=all_loss)[0] == pytest.approx(sum(limits))


@pytest.mark.parametrize(("narrow", "dearer"), [(16, 4.0), (32, 4.0), (64, 2.0), (128, 1.0)])
def test_a_wide_table_makes_narrow_ones_in_its_operator_dearer(zipf_tables: Any, narrow: int, dearer: float) -> None:
    """What the same eight tables add to the forward of a companion, a wide one or one as narrow as they are.

    The companion has next to no lookups, so it only decides how many lanes a lookup gets. The eight tables fit the
    cache in FP16, so lanes are what limits them.
    """

    def added(companion_dim: int) -> NDArray[np.float64]:
        tables = zipf_tables(
            [1_000] * 9,
            [companion_dim, *[narrow] * 8],
            [0.001, *[50.0] * 8],
            batch_size=65_536,
            weight_dtype="fp16",
        )
        alone = on_one_device(tables.select([0]), H100, FULL_OVERLAP)
        return np.subtract(on_one_device(tables, H100, FULL_OVERLAP), alone)

    beside_wide, beside_equal = added(256), added(narrow)
    assert beside_wide[0] == pytest.approx(dearer * beside_equal[0], rel=0.05)
    if narrow <= 32:  # the backward sorts and reads gradients too, so it feels the lanes less
        assert beside_equal[1] * 1.1 < beside_wide[1] < beside_equal[1] * 4


def test_a_table_alone_pays_for_its_own_lanes_only(zipf_tables: Any) -> None:
    """Cached FP16 rows: 32 columns cost what 16 cost, 64 twice and 128 four times as much; 256 take two passes."""
    lanes_only = AnalyticalCostModel(FITTED._replace(overlap_loss=0.0, cycles_per_bag=0.0, forward_launches=0.0))
    took = [
        on_one_device(zipf_tables([100], dim, 500.0, batch_size=65_536, weight_dtype="fp16"), H100, lanes_only)[0]
        for dim in (16, 32, 64, 128, 256)
    ]
    assert np.array(took) / took[0] == pytest.approx([1, 1, 2, 4, 8], rel=0.01)
    assert took[3] == pytest.approx(500 * 65_536 * FITTED.cycles_per_row / (132 * 1.755e6))


def test_one_table_by_hand() -> None:
    """1000 rows of 40 FP16 columns (80 bytes: 3 sectors of 32), each read 131.072 times; half of them fit the L2."""
    bins = np.zeros((1, NUM_BINS))
    bins[0, 8] = 1.0  # (128, 256]
    tables = Tables(
        num_embeddings=np.array([5_000]),
        embedding_dim=np.array([40]),
        pooling_factor=np.array([2.0]),
        distinct_rows=np.array([1_000.0]),
        reuse_histogram=bins,
        access_histogram=bins,
        workload=Workload(65_536, "fp16", "rowwise_adagrad"),
    )
    device = replace(A100.device, dram_gb_per_s=1.0, l2_gb_per_s=2.0, l2_bytes=53_334, num_sms=100, clock_ghz=1.3)
    lookups, outputs, l2 = 131_072, 4 * 40 * 65_536, 0.9 * 53_334
    misses = lookups * (1 - l2 / 96_000) + l2 / 96
    forward = 8 * lookups + 8 * 65_536 + misses * 96 + outputs
    sort = lookups * (20 + 8 + 4 * 24 + 16) / 0.57
    gradients = outputs + 65_536 * 160 * (1 - l2 / outputs)
    updates = 1_000 * (2 * 96 + 64) / 0.534
    loads = MODEL.table_loads(tables, replace(A100, device=device).topology(1))[0]
    assert loads == pytest.approx(
        [
            forward / 1e6,
            (gradients + updates) / 1e6,
            (lookups * 96 + outputs) / 2e6,
            lookups * 160 / 2e6,
            (lookups * 26.1 + 65_536 * 32.5) / 130e6,
            (lookups * 26.7 + 1_000 * 103) / 130e6,
            sort / 1e6,
            outputs,
            0.5,
            0.005,
        ],
        rel=1e-9,
    )
    nothing_but_launches = MODEL.device_phases(np.append(np.zeros(9), 0.005))
    assert nothing_but_launches == pytest.approx([5.67 * 0.005, 0.0, 0.0, 22.2 * 0.005])


@pytest.mark.parametrize(
    ("name", "value"), [("sort_efficiency", 0.0), ("cycles_per_row", -1.0), ("cycles_per_bag", float("nan"))]
)
def test_constants_that_cost_nothing_sensible_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidOptionError, match=f"The constant {name} must be"):
        AnalyticalCostModel(FITTED._replace(**{name: value}))
