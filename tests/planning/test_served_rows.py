"""Rows of tables that are served: their states against a scan of all thresholds, row by row, and the cost model."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.cost_models import InferenceCostModel
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.planning import copied_shares, with_hot_tables
from shard_gym.planning.hot_rows import HOT
from shard_gym.plans import ShardingPlan, data_parallel, row_wise
from shard_gym.tables import RowPopularity, Tables, Workload

WIDTH = 16  # columns of FP32: rows of 64 bytes


def topology_of(devices: int, per_host: int, hbm_rows: float, cap_rows: float = 1e9) -> Topology:
    profile = hardware_profile("a100-dgx")
    whole = replace(profile.topology(devices, memory_cap_bytes=int(64 * cap_rows)), devices_per_host=per_host)
    return replace(whole, host=profile.host_memory(int(64 * hbm_rows)))


def tables_of(rows: int, exponent: float, lookups: float, pooled: bool = False) -> Tables:
    return Tables.from_popularity(
        num_embeddings=[rows],
        embedding_dim=[WIDTH],
        pooling_factor=[lookups / 64],
        popularity=RowPopularity.zipf([exponent]),
        workload=Workload(64, "fp32", training=False),
        pooled=[pooled],
    )


def plain_ms(state: str, reads: float, topology: Topology, dedup: bool) -> float:
    """Ms of a GB of a row that is read so often, of the mean device: the requests of all devices, one by one."""
    devices, per_host, links = topology.num_devices, topology.devices_per_host, topology.links
    assert topology.host is not None
    bandwidth, own_reads = topology.host.read_gb_per_s, reads / devices
    if state == "every":
        return 0.0
    if state == "host of every":
        return sum((1 - math.exp(-own_reads)) / bandwidth for _ in range(devices)) / devices
    near = far = 0.0
    for owner, asking in product(range(devices), repeat=2):  # a block of rows is on each device
        sent = (1 - math.exp(-own_reads) if dedup else own_reads) / devices
        if owner != asking and owner // per_host == asking // per_host:
            near += sent / devices
        elif owner != asking:
            far += sent / devices
    exchange = max(near / links.intra_host_gb_per_s, far / links.inter_host_gb_per_s)
    return exchange + (0.0 if state == "one" else (1 - math.exp(-reads)) / bandwidth / devices)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([(2, 2), (8, 8), (8, 4), (12, 2)]),
    exponent=st.sampled_from([0.0, 0.3, 0.8, 1.2, 1.6]),
    lookups=st.floats(2, 3000),
    hbm=st.floats(0.5, 45.0),
    dedup=st.booleans(),
    roomy=st.booleans(),
)
def test_a_scan_over_both_thresholds_finds_nothing_better(
    shape: tuple[int, int], exponent: float, lookups: float, hbm: float, dedup: bool, roomy: bool
) -> None:
    count = 40
    topology = topology_of(*shape, hbm, 1e9 if roomy else count / shape[0] + hbm)
    devices = topology.num_devices
    reads = np.arange(1.0, count + 1) ** -exponent
    reads *= lookups / reads.sum()
    tables = tables_of(count, exponent, lookups)
    copied = copied_shares(tables, reads[None], np.ones((1, count)), topology, dedup)[0]
    ms = {
        state: np.array([plain_ms(state, each, topology, dedup) for each in reads])
        for state in ("every", "one", "host of every", "host of one")
    }
    on_each = copied.sum() + (count - copied.sum()) / devices
    assert on_each <= (count if roomy else count / devices + hbm) * (1 + 1e-9)

    # What is copied and what is not compete for HBM by what a byte of it saves.
    kept = [
        (gain / size, size * share, gain * share)
        for row, share in enumerate(copied)
        for gain, size, share in (
            (ms["host of every"][row], 1.0, share),
            (ms["host of one"][row] - ms["one"][row], 1.0 / devices, 1.0 - share),
        )
    ]
    cost, room = float((copied * ms["host of every"] + (1 - copied) * ms["host of one"]).sum()), hbm
    for _, size, gain in sorted(kept, reverse=True):
        cost -= gain * min(1.0, room / size) if size else 0.0
        room -= min(room, size)

    hosts = ("host of one", "host of every") if roomy else ("host of one",)
    best = math.inf
    for every, one in product(range(count + 1), repeat=2):
        if every + one > count or every + one / devices > hbm:
            continue
        for host in hosts:
            best = min(best, float(ms["one"][every : every + one].sum() + ms[host][every + one :].sum()))
    assert cost <= best * (1 + 1e-9) + 1e-12


def test_the_ratio_of_the_thresholds_is_that_of_the_page() -> None:
    """(D - 1) (h - x) / x for rows with few reads, which is 1 + D (host - peer) / peer; 8 A100 on a host."""
    topology = topology_of(8, 8, 30.0)
    assert topology.host is not None
    x = 7 / 8 / topology.links.intra_host_gb_per_s / 8
    h = 1 / 8 / topology.host.read_gb_per_s
    reads = np.geomspace(1e-2, 1e-6, 4000)[None]
    tables = tables_of(4000, 1.0, 1.0)
    shares = copied_shares(tables, reads, np.full((1, 4000), 0.05), topology)[0]
    every, on_one = reads[0][: int(shares.argmin())], reads[0][shares < 0.5]
    assert on_one.min() > reads[0].min()  # the rest is in the host of every device
    assert every.min() / on_one.min() == pytest.approx(7 * (h - x) / x, rel=0.02)
    host, peer = 1 / topology.host.read_gb_per_s, 1 / topology.links.intra_host_gb_per_s
    assert 7 * (h - x) / x == pytest.approx(1 + 8 * (host - peer) / peer)


def test_rows_of_one_popularity_fill_the_memory_in_part() -> None:
    topology = topology_of(8, 8, 400.0)
    parts = with_hot_tables(tables_of(1000, 0.0, 1e5), topology)
    assert parts.names == ("table_0:hot", "table_0:cold")
    # h copies and (1,000 - h) / 8 rows of a block fill 400: h = 314.3.
    assert parts.num_embeddings.tolist() == [314, 686]
    assert parts.lookups_per_batch.sum() == pytest.approx(1e5)


def test_what_fits_is_copied_everywhere() -> None:
    tables = tables_of(1000, 1.0, 1e5)
    parts = with_hot_tables(tables, topology_of(8, 8, 1000.0))
    assert (parts.names, parts.num_embeddings.tolist()) == (("table_0:hot",), [1000])
    without = replace(topology_of(8, 8, 1.0, 500.0), host=None)
    split = with_hot_tables(tables, without)
    assert split.num_embeddings[0] + split.num_embeddings[1] / 8 == pytest.approx(500, abs=1)
    bags = tables_of(1000, 1.0, 1e5, pooled=True)
    assert with_hot_tables(bags, topology_of(8, 8, 1000.0)) is bags
    assert with_hot_tables(tables, topology_of(1, 8, 10.0)) is tables  # on one device there are no copies


def test_large_tables_that_fit_are_hot_whole() -> None:
    tables = Tables.from_zipf([123_456_789], 16, [10.0], [1.05], Workload(65536, training=False), pooled=[False])
    parts = with_hot_tables(tables, hardware_profile("a100-dgx").topology(8))
    assert (parts.names, parts.num_embeddings.tolist()) == (("table_0:hot",), [123_456_789])


def test_rows_that_nobody_reads_take_no_copies() -> None:
    """Beside a table without lookups, and alone where nothing is read."""
    tables = tables_of(1000, 1.0, 1e5)
    topology, unread = topology_of(8, 8, 100.0, 2000.0), np.zeros((1, 4))
    assert not copied_shares(tables, unread, np.full((1, 4), 250.0), topology).any()
    assert not copied_shares(tables, unread, np.full((1, 4), 250.0), replace(topology, host=None)).any()
    tight = topology_of(8, 8, 400.0, 300.0)
    parts = with_hot_tables(tables, tight)
    assert parts.num_embeddings[0] + parts.num_embeddings[1] / 8 <= 300


def test_a_part_of_a_row_is_not_copied() -> None:
    tables = tables_of(10, 1.5, 1000.0)
    found = [with_hot_tables(tables, topology_of(4, 4, rows)).lookups_per_batch[0] for rows in (3.4, 3.6, 3.9)]
    assert found == pytest.approx([found[0]] * 3)


def test_the_cost_model_finds_no_number_of_reads_that_serves_faster() -> None:
    """Hot tables on every device, cold ones in blocks; 8 A100 with HBM for 15% of the bytes."""
    tables = Tables.from_zipf(
        [3_000_000, 800_000], [64, 128], [20.0, 5.0], [0.9, 1.1], Workload(65536, "fp32", training=False), pooled=False
    )
    profile, model = hardware_profile("a100-dgx"), InferenceCostModel()
    topology = profile.topology(8, memory_cap_bytes=2**45)
    topology = replace(topology, host=profile.host_memory(int(tables.memory_bytes.sum() * 0.15 / 8)))

    def cost_ms(parts: Tables) -> float:
        plan = [
            (data_parallel if name.endswith(HOT) else row_wise)(parts, number, topology)
            for number, name in enumerate(parts.names)
        ]
        return float(model.estimate(ShardingPlan(tuple(plan)), parts, topology).total_ms)

    chosen = cost_ms(with_hot_tables(tables, topology))
    scanned = [cost_ms(with_hot_tables(tables, topology, least_reads=least)) for least in np.geomspace(1e-4, 1e4, 33)]
    assert chosen <= 1.01 * min(scanned)
    assert chosen < 0.9 * min(cost_ms(tables), scanned[0])
