"""The analytical cost model with assumed terms at other values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError, UnknownNameError
from shard_gym.common.io.files import read_json
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.analytical.assumptions import ASSUMED, VariedShardingModel, assumed_scales
from shard_gym.cost_models.analytical.collectives import reduce_scatter_ms
from shard_gym.cost_models.analytical.model import SORT_BYTES
from shard_gym.cost_models.base import COMPUTE
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD_COMM
from shard_gym.hardware import Topology, fitted_links, hardware_profile
from shard_gym.plans import ShardingPlan, data_parallel, row_wise, table_wise
from shard_gym.tables import Tables, Workload

DOCS = Path(__file__).parents[3] / "docs"
ERRORS = DOCS / "results" / "cost-model-errors.md"
PUBLISHED = DOCS / "published_measurements.json"
TERMS = {
    "cycles_per_gradient": "gradient_lanes",
    "cycles_per_update": "update_lanes",
    "sort_efficiency": "sort",
    "pcie_knee_bytes": "small_messages",
}
TOPOLOGY = hardware_profile("a100-dgx").topology(2)
HOSTED = hardware_profile("a100-dgx").topology(2, memory_cap_bytes=4096, host_memory_bytes=2**30)
TABLES = Tables.from_zipf([1000, 4000, 200], [64, 128, 16], [10, 5, 1], 0.8, Workload(4096, "fp32", "adam"))
PLAN = ShardingPlan((table_wise(TABLES, 0, 1), row_wise(TABLES, 1, TOPOLOGY), data_parallel(TABLES, 2, TOPOLOGY)))


def phases_ms(
    scales: dict[str, float], dtype: str = "fp32", topology: Topology = TOPOLOGY
) -> np.ndarray[Any, np.dtype[np.float64]]:
    model = VariedShardingModel(scales, dtype)
    return model.estimate(PLAN, TABLES, model.varied_topology(topology)).phases_ms


@pytest.mark.parametrize("scales", [{}, dict.fromkeys(ASSUMED, 1.0)], ids=["none", "all at 1"])
def test_without_a_change_costs_and_fingerprint_are_those_of_the_model(scales: dict[str, float]) -> None:
    plain = AnalyticalShardingModel("fp16")
    assert VariedShardingModel(scales, "fp16").fingerprint == plain.fingerprint
    assert (phases_ms(scales, "fp16") == plain.estimate(PLAN, TABLES, TOPOLOGY).phases_ms).all()


def test_another_scale_is_another_model() -> None:
    fingerprints = {VariedShardingModel({name: scale}).fingerprint for name in ASSUMED for scale in (0, 1, 2)}
    assert len(fingerprints) == 2 * len(ASSUMED) + 1


@pytest.mark.parametrize("name", list(ASSUMED))
def test_a_term_is_part_of_the_cost_and_grows_with_its_scale(name: str) -> None:
    none, own, double = (phases_ms({name: scale}, "bf16", HOSTED).max(axis=0).sum() for scale in (0, 1, 2))
    assert none < own < double


def test_the_sort_takes_what_its_formula_says() -> None:
    lookups = np.array(
        [4096 * 5 / 2 + 2048, 4096 * 10 + 4096 * 5 / 2 + 2048]
    )  # blocks of rows, and half of the samples
    sort = lookups * SORT_BYTES / (0.57 * 1825e6)
    for scale in (0, 2):
        change = (phases_ms({"sort": scale}) - phases_ms({}))[:, BACKWARD]
        assert change == pytest.approx((scale - 1) * sort, rel=1e-6)


def test_the_update_of_a_replica_passes_the_dram_13_times_with_adam() -> None:
    passes = (9.22 + 4) * 4 * 200 * 16 / 1825e6
    assert (phases_ms({}) - phases_ms({"dense_update": 0}))[:, BACKWARD] == pytest.approx([passes] * 2, rel=1e-6)


def test_collectives_and_latencies_are_scaled() -> None:
    latency = 0.0111
    all_reduce = (phases_ms({}) - phases_ms({"all_reduce": 0}))[:, BACKWARD_COMM]
    sent = 4 * 200 * 16  # 2 (n - 1)/n of the bytes, all below the knee
    assert all_reduce == pytest.approx([latency + sent * (1 + 3.38) / (0.735 * 300e6)] * 2, rel=1e-6)
    change = (phases_ms({"latency": 2}) - phases_ms({})).max(axis=0)
    assert change[FORWARD_COMM] == pytest.approx(2 * latency)  # all-to-all and reduce-scatter
    assert change[BACKWARD_COMM] == pytest.approx(3 * latency)


def test_every_constant_that_the_rows_of_the_card_leave_open_is_a_term(markdown_rows: Any) -> None:
    spreads = {
        re.sub("`", "", name): float(cells[2])
        for name, cells in markdown_rows(ERRORS.read_text(), "### Constants").items()
    }
    assert {name for name, spread in spreads.items() if spread > 1} == set(TERMS)
    assert set(TERMS.values()) < set(ASSUMED)


def test_a_term_is_varied_if_a_plan_may_have_it() -> None:
    one, two = hardware_profile("a100-dgx").topology(2), hardware_profile("a100-dgx").topology(2, devices_per_host=1)
    whole = ShardingPlan(tuple(table_wise(TABLES, table, 0) for table in range(3)))
    compute = {"gradient_lanes", "update_lanes", "sort"}
    assert set(assumed_scales([whole], hardware_profile("a100-dgx").topology(1), "fp16")) == compute
    assert set(assumed_scales([whole], one, "fp32")) == compute | {"latency", "small_messages"}
    assert set(assumed_scales([whole, PLAN], one, "fp16")) == set(ASSUMED) - {"reduce_scatter", "host_memory"}
    assert set(assumed_scales([whole, PLAN], two, "fp16")) == set(ASSUMED) - {"host_memory"}
    assert assumed_scales([whole], HOSTED, "fp32")["host_memory"] == (0.5, 2.0)


def test_rows_in_host_memory_are_scaled() -> None:
    in_hbm, own, slower = phases_ms({}), phases_ms({}, topology=HOSTED), phases_ms({"host_memory": 2}, topology=HOSTED)
    assert (own > in_hbm)[:, COMPUTE].all()
    assert slower - in_hbm == pytest.approx(2 * (own - in_hbm))


def test_reduce_scatters_across_hosts_send_at_least_what_rings_do() -> None:
    """Every device of G sends (G - W)/G of its partial sums to other hosts; in rings the W cards of a host share it."""
    topology = hardware_profile("a100-dgx").topology(16)
    tables = Tables.from_zipf([100_000], [128], [10], 0.0, Workload(65536, "fp32", "sgd"))
    plan = ShardingPlan((row_wise(tables, 0, topology),))
    scales = assumed_scales([plan], topology, "fp32")
    assert scales["reduce_scatter"] == (1 / 8, 2)
    least = VariedShardingModel({"reduce_scatter": 1 / 8}).estimate(plan, tables, topology)
    sent = 4 * 128 * 65536 / 8 * 8 / 16
    card_ms = 0.0341 + (sent + 0.612 * min(sent, 0.938e6)) / (0.639 * 25e6)
    assert least.phases_ms[:, FORWARD_COMM] == pytest.approx(np.full(16, card_ms))


def test_inside_a_host_a_measured_reduce_scatter_agrees() -> None:
    """No constant was fitted to these rows: 8 B200, bytes of the whole input."""
    [group] = [
        group for group in read_json(PUBLISHED)["groups"] if group["title"].startswith("Reduce-scatter on 8 B200")
    ]
    links = fitted_links("nvlink", 900.0, 50.0)
    cluster = replace(hardware_profile("h100-dgx"), links=links).topology(8).cluster()
    found = []
    for row in group["rows"]:
        size, unit = row["label"].split()
        num_bytes = float(size) * {"B": 1, "MiB": 2**20}[unit]
        predicted = reduce_scatter_ms(np.full(8, num_bytes), cluster).max()
        found.append(1000 * predicted / float(row["measured"].removesuffix(" us")))
    assert len(found) == 7
    assert np.exp(np.abs(np.log(found)).mean()) - 1 == pytest.approx(0.17, abs=0.005)
    assert min(found) == pytest.approx(0.68, abs=0.005)
    assert 0.85 < min(found[3:]) < max(found) < 1.06  # from 64 MiB on


def test_unknown_terms_and_impossible_scales_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no assumed term named 'lanes'"):
        VariedShardingModel({"lanes": 2})
    for scale in (-1, float("nan"), "two"):
        with pytest.raises(InvalidOptionError, match="The scale of sort must be a number of at least 0"):
            VariedShardingModel({"sort": scale})  # type: ignore[dict-item]
