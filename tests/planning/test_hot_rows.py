"""Tables of hot rows: the threshold against a scan of all, row by row, and the statistics of both parts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.base.model import BACKWARD_COMM, FORWARD_COMM
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.planning import deduplicated, with_hot_tables
from shard_gym.planning.hot_rows import least_hot_reads
from shard_gym.plans import ShardingPlan, data_parallel, row_wise
from shard_gym.tables import RowPopularity, RowSteps, Tables, Workload


def topology_of(devices: int, per_host: int, ratio: float = 1.0) -> Topology:
    whole = hardware_profile("a100-dgx").topology(devices)
    return replace(whole, devices_per_host=per_host, cross_host_ratio=ratio)


def plain_ms(reads: np.ndarray, hot: int, topology: Topology, dedup: bool) -> float:
    """Ms of 1e6 bytes a row: the rows below `hot` are copied, the others sent, one by one."""
    devices, per_host, links = topology.num_devices, topology.devices_per_host, topology.links
    sent = {"near": 0.0, "far": 0.0}
    for number, expected in enumerate(reads.tolist()):
        if number < hot:
            continue
        asked = devices * (1 - math.exp(-expected / devices)) if dedup else expected
        for target in range(1, devices):  # from device 0, which has a part of each row; to the others
            sent["near" if target < per_host else "far"] += asked / devices / devices
    to_and_fro = 2 * max(
        sent["near"] / links.intra_host_gb_per_s,
        sent["far"] * topology.cross_host_ratio / links.inter_host_gb_per_s,
    )
    hosts = devices // per_host
    ring = max(
        2 * hot * (per_host - 1) / per_host / links.intra_host_gb_per_s,
        2 * hot * (hosts - 1) / hosts / per_host / links.inter_host_gb_per_s,
    )
    return to_and_fro + ring + 9.22 * hot / topology.device.dram_gb_per_s


@pytest.mark.parametrize("dedup", [False, True])
@settings(max_examples=40)
@given(
    shape=st.sampled_from([(2, 2), (8, 8), (8, 4), (16, 8), (12, 2)]),
    exponent=st.floats(0.2, 1.6),
    lookups=st.floats(10, 5000),
    ratio=st.sampled_from([1.0, 0.5]),
)
def test_a_scan_over_all_numbers_of_hot_rows_finds_nothing_better(
    shape: tuple[int, int], exponent: float, lookups: float, ratio: float, dedup: bool
) -> None:
    topology = topology_of(*shape, ratio)
    reads = np.arange(1.0, 121.0) ** -exponent
    reads *= lookups / reads.sum()
    chosen = int((reads >= least_hot_reads(topology, dedup)).sum())
    costs = [plain_ms(reads, hot, topology, dedup) for hot in range(len(reads) + 1)]
    assert costs[chosen] <= min(costs) * (1 + 1e-9)
    tables = Tables.from_popularity(
        num_embeddings=[len(reads)],
        embedding_dim=[16],
        pooling_factor=[lookups / 64],
        popularity=RowPopularity.zipf([exponent]),
        workload=Workload(64, "fp32", "sgd"),
        pooled=[False],
    )
    found = with_hot_tables(tables, topology, dedup)
    assert found.num_embeddings[0] == (chosen if 0 < chosen < len(reads) else len(reads))


def test_the_thresholds_of_the_page() -> None:
    """Those of docs/cost-model.md: two hosts of eight A100."""
    assert [round(least_hot_reads(topology_of(16, 8), dedup), 1) for dedup in (False, True)] == [3.3, 3.7]


def test_rows_that_are_never_read_are_cold() -> None:
    tables = Tables.from_zipf([1000], 16, 50.0, 1.0, Workload(4096, "fp32", "sgd"), pooled=False)
    unread = replace(tables, popularity=RowSteps(np.array([[10.0, 990.0]]), np.array([[1.0, 0.0]])))
    parts = with_hot_tables(unread, topology_of(16, 8))
    assert parts.num_embeddings.tolist() == [10, 990]
    assert parts.lookups_per_batch.tolist() == [50 * 4096, 0]


@pytest.mark.parametrize("least", [0, -1, math.nan, math.inf, "3"])
def test_what_is_no_number_of_reads_is_refused(least: object) -> None:
    tables = Tables.from_zipf([1000], 16, 50.0, 1.0, Workload(4096, "fp32", "sgd"), pooled=False)
    with pytest.raises(InvalidOptionError, match="least_reads must be a positive number"):
        with_hot_tables(tables, topology_of(16, 8), least_reads=least)  # type: ignore[arg-type]


def test_on_one_device_no_row_is_hot() -> None:
    assert least_hot_reads(topology_of(1, 8)) == math.inf
    tables = Tables.from_zipf([100], 16, 5.0, 1.0, Workload(64, "fp32", "sgd"), pooled=False)
    assert with_hot_tables(tables, topology_of(1, 8)) is tables
    bags = replace(tables, pooled=np.ones(1, bool))
    assert with_hot_tables(bags, topology_of(16, 8)) is bags


@pytest.mark.parametrize("dedup", [False, True])
def test_both_parts_have_the_statistics_of_drawn_batches(dedup: bool) -> None:
    workload, topology = Workload(4096, "fp32", "sgd"), topology_of(16, 8)
    tables = Tables.from_zipf([20_000, 50], [16, 32], [6.0, 2.0], [1.0, 0.0], workload, pooled=[False, True])
    parts = with_hot_tables(tables, topology, dedup)
    assert parts.names == ("table_0:hot", "table_0:cold", "table_1")
    assert parts.pooled.tolist() == [False, False, True]
    assert int(parts.num_embeddings[:2].sum()) == 20_000
    assert isinstance(parts.popularity, RowSteps)
    weights = np.arange(1.0, 20_001) ** -1.0
    rng, hot = np.random.default_rng(0), int(parts.num_embeddings[0])
    draws = [rng.choice(20_000, 6 * 4096, p=weights / weights.sum()) for _ in range(10)]
    for part, inside in ((0, lambda rows: rows < hot), (1, lambda rows: rows >= hot)):
        own = [rows[inside(rows)] for rows in draws]
        assert parts.lookups_per_batch[part] == pytest.approx(np.mean([len(rows) for rows in own]), rel=0.01)
        assert parts.distinct_rows[part] == pytest.approx(np.mean([len(np.unique(rows)) for rows in own]), rel=0.01)
        once = np.mean([(np.unique(rows, return_counts=True)[1] == 1).mean() for rows in own])
        assert parts.reuse_histogram[part, 0] == pytest.approx(once, abs=0.01)
    for name in ("num_embeddings", "pooling_factor", "distinct_rows", "reuse_histogram", "access_histogram"):
        assert (getattr(parts, name)[2] == getattr(tables, name)[1]).all()


@pytest.mark.parametrize("dedup", [False, True])
def test_the_cost_model_finds_no_threshold_that_exchanges_faster(dedup: bool) -> None:
    """Of the exchange and the dense update, of a table that is large enough for latency not to matter."""
    topology, model = topology_of(16, 8), AnalyticalShardingModel()
    tables = Tables.from_zipf([3_000_000], 128, 40.0, 0.9, Workload(65536, "fp32", "sgd"), pooled=False)

    def cost_ms(least: float) -> float:
        parts = with_hot_tables(tables, topology, least_reads=least)
        parts = deduplicated(parts, 16) if dedup else parts
        shardings = [data_parallel(parts, 0, topology)] if len(parts) > 1 else []
        plan = ShardingPlan((*shardings, row_wise(parts, len(parts) - 1, topology)))
        phases = model.estimate(plan, parts, topology).phases_ms.max(axis=0)
        update = 9.22 * parts.num_embeddings[0] * 512 / (topology.device.dram_gb_per_s * 1e6) if shardings else 0.0
        return float(phases[FORWARD_COMM] + phases[BACKWARD_COMM] + update)

    chosen = least_hot_reads(topology, dedup)
    best = min(cost_ms(chosen * factor) for factor in np.geomspace(0.1, 10, 41))
    assert cost_ms(chosen) <= 1.01 * best
    assert cost_ms(chosen) < 0.95 * cost_ms(1e18)
