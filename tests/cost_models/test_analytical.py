"""The three effects a cost model must show (launches, ramp, lanes), and single numbers against their sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical import CYCLES_PER_WARP_ROW, fixed_ms
from shard_gym.cost_models.base import BACKWARD, FORWARD
from shard_gym.hardware import hardware_profile
from shard_gym.lookup_statistics import NUM_BINS
from shard_gym.tables import Tables, Workload

MODEL = AnalyticalCostModel()
A100 = hardware_profile("a100-dgx")
H100 = hardware_profile("h100-dgx")


def on_one_device(tables: Tables, profile: Any = A100) -> tuple[float, float]:
    """Ms of forward and backward with all tables on a single device."""
    phases = MODEL.estimate(np.zeros(len(tables), np.int64), tables, profile.topology(1)).phases_ms[0]
    return float(phases[FORWARD]), float(phases[BACKWARD])


def test_an_operator_without_work_costs_its_launches_and_the_ramp(zipf_tables: Any) -> None:
    forward, backward = on_one_device(zipf_tables([10], 4, 0.0, batch_size=1))
    ramp = A100.device.ramp_bytes / (A100.device.dram_gb_per_s * 1e6)
    assert forward == pytest.approx(2 * 0.005 + ramp, rel=1e-3)
    assert backward == pytest.approx(12 * 0.005 + ramp, rel=1e-3)


def test_small_tables_are_far_cheaper_fused_than_one_by_one(zipf_tables: Any) -> None:
    """Measured: 10 times for 100 tables (pytorch/torchrec, benchmarks/README.md)."""
    tables = zipf_tables([1_000] * 100, 64, 32.0, batch_size=64)
    alone = on_one_device(zipf_tables([1_000], 64, 32.0, batch_size=64))
    assert 100 * sum(alone) > 10 * sum(on_one_device(tables))


def test_large_tables_gain_little_from_fusing(zipf_tables: Any) -> None:
    tables = zipf_tables([10**8] * 4, 128, 50.0, batch_size=65_536)
    alone = on_one_device(zipf_tables([10**8], 128, 50.0, batch_size=65_536))
    assert 4 * sum(alone) == pytest.approx(sum(on_one_device(tables)), rel=0.02)


@pytest.mark.parametrize(
    ("dram", "ramp", "curve"),
    [
        (1391.1, 11e6, {22: 364, 24: 865, 26: 1200, 28: 1329}),  # A100 40 GB
        (816.95, 9e6, {20: 95, 22: 286, 24: 536, 26: 695, 28: 762}),  # V100
    ],
)
def test_the_ramp_meets_the_measured_bandwidth_curves(dram: float, ramp: float, curve: dict[int, float]) -> None:
    """GB/s by log2 of the bytes (ml_perf_model, analysis/memory_bw_utils.py), within 6% and 10%."""
    device = replace(A100.device, dram_gb_per_s=dram, ramp_bytes=ramp)
    assert {A100.device.ramp_bytes, hardware_profile("v100-nvlink").device.ramp_bytes} == {11e6, 9e6}
    for log_bytes, measured in curve.items():
        took = 2**log_bytes / (dram * 1e6) + fixed_ms(device, kernels=0)
        assert 2**log_bytes / took / 1e6 == pytest.approx(measured, rel=0.06 if dram > 1000 else 0.11)


def test_the_bandwidth_reached_grows_with_the_bytes_and_nears_the_peak(zipf_tables: Any) -> None:
    batches = [2**k for k in range(6, 18)]
    reached = []
    for batch_size in batches:
        tables = zipf_tables([10**9], 128, 10.0, batch_size=batch_size)
        reached.append(float((tables.lookups_per_batch * tables.row_bytes)[0]) / on_one_device(tables)[0] / 1e6)
    assert (np.diff(reached) > 0).all()
    assert reached[0] < 0.02 * A100.device.dram_gb_per_s
    assert 0.85 * A100.device.dram_gb_per_s < reached[-1] < A100.device.dram_gb_per_s


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
        return np.subtract(on_one_device(tables, H100), on_one_device(tables.select([0]), H100))

    beside_wide, beside_equal = added(256), added(narrow)
    assert beside_wide[0] == pytest.approx(dearer * beside_equal[0], rel=0.05)
    if narrow <= 32:  # the backward sorts and reads gradients too, so it feels the lanes less
        assert beside_equal[1] * 1.1 < beside_wide[1] < beside_equal[1] * 4


def test_a_table_alone_pays_for_its_own_lanes_only(zipf_tables: Any) -> None:
    """Cached FP16 rows: 32 columns cost what 16 cost, 64 twice and 128 four times as much; 256 take two passes."""
    took = [
        on_one_device(zipf_tables([100], dim, 500.0, batch_size=65_536, weight_dtype="fp16"), H100)[0]
        for dim in (16, 32, 64, 128, 256)
    ]
    times = (np.array(took) - fixed_ms(H100.device, 2)) / (took[0] - fixed_ms(H100.device, 2))
    assert times == pytest.approx([1, 1, 2, 4, 8], rel=0.01)
    warp_rows = 500 * 65_536
    assert took[3] - fixed_ms(H100.device, 2) == pytest.approx(warp_rows * CYCLES_PER_WARP_ROW / (132 * 1.755e6))


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
    sort = lookups * (20 + 128 / 0.57 + 16)
    gradients = outputs + 65_536 * 160 * (1 - l2 / outputs)
    updates = 1_000 * (2 * 96 + 64) / 0.55
    loads = MODEL.table_loads(tables, replace(A100, device=device).topology(1))[0]
    assert loads[:8] == pytest.approx(
        [
            forward / 1e6,
            lookups * 96 / 2e6,
            lookups * 26 / 130e6,
            sort / 1e6,
            (gradients + updates) / 1e6,
            lookups * 160 / 2e6,
            outputs,
            0.5,
        ],
        rel=1e-9,
    )
