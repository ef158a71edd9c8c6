"""How far to trust a cost: evidence against the published rows, and ratios of costs worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidPlanError, UnknownNameError
from shard_gym.common.io.files import INDEX
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical.assumptions import ASSUMED
from shard_gym.cost_models.analytical.model import SORT_BYTES
from shard_gym.hardware import PROFILES, Topology, hardware_profile
from shard_gym.planning import Robustness, evidence_on, robustness, trust
from shard_gym.planning.trust import (
    PHASES,
    evidence,
    evidence_sentence,
    hardware_of,
    is_analytical,
    robustness_sentence,
)
from shard_gym.plans import ShardingPlan, column_wise, plan_of_placement
from shard_gym.tables import Tables, Workload

DOCS = Path(__file__).parents[2] / "docs"

_RECSYS = (
    *("TBE unpooled, 10 tables, H100", "TBE unpooled, one table of 16 Mi rows, H100"),
    *("TBE unpooled, one table of 24 Mi rows, H100", "TBE unpooled, chart of October 2025, H100"),
    "TBE unpooled, chart of January 2026, H100",
)
_H200 = ("TBE unpooled, chart of December 2025, H200",)
_B200 = ("TBE tiny, B200",)
MEASURED = {
    ("rtx2080ti-pcie", "inside hosts"): ("All-to-all on 2 RTX 2080 Ti over PCIe",),
    ("v100-nvlink", "forward"): ("Small forward, V100",),
    ("v100-nvlink", "across hosts"): ("All-to-all on 2 hosts of 2 V100",),
    ("a100-dgx", "forward"): (
        "SplitTBE, large batch, 16 tables",
        "SplitTBE, large batch, 4 tables, launches hidden",
    ),
    ("a100-dgx", "across hosts"): ("All-to-all on 2 hosts of 8 A100",),
    ("h100-dgx", "forward"): _RECSYS,
    ("h100-dgx", "backward"): _RECSYS,
    ("h100-dgx", "inside hosts"): ("All-to-all on 4 H100",),
    ("h200-dgx", "forward"): _H200,
    ("h200-dgx", "backward"): _H200,
    ("h20-hgx", "inside hosts"): (
        "All-to-all on 8 H20 of one host, small messages",
        "All-to-all on 8 H20-3e of one host",
    ),
    ("h20-hgx", "across hosts"): ("All-to-all on 2 hosts of 2 H20",),
    ("b200-dgx", "forward"): _B200,
    ("b200-dgx", "backward"): _B200,
    ("b200-dgx", "inside hosts"): ("All-to-all on 8 B200 of one host",),
    ("b200-dgx", "across hosts"): (
        "All-to-all on 2 hosts of 8 B200, default settings",
        "All-to-all on 2 hosts of 8 B200, tuned ('alltoall_v2')",
    ),
}
"""Groups of docs/results/measurements.md on the hardware of each profile. The V100's backward is another kernel's."""


def ratios(phase: str, titles: tuple[str, ...]) -> tuple[list[float], list[float]]:
    """Held out, and of the constants in the package: predicted / measured of the fitted rows on the page."""
    page, outside, fitted = (DOCS / "results" / "measurements.md").read_text(encoding="utf-8"), [], []
    for title in titles:
        section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != 6 or cells[4] in ("-", "held out", "---:"):
                continue
            if titles not in (_RECSYS, _H200, _B200) or ("backward" in cells[0]) == (phase == "backward"):
                outside.append(float(cells[4]))
                fitted.append(float(cells[3]))
    return outside, fitted


def mean_error(found: list[float]) -> float:
    return float(np.exp(np.abs(np.log(found)).mean()) - 1)


@pytest.mark.parametrize(
    ("hardware", "phase"), [(name, phase) for name in PROFILES if name != "cpu" for phase in PHASES]
)
def test_the_evidence_is_that_of_the_rows_on_the_page(hardware: str, phase: str) -> None:
    found, titles = evidence(hardware, phase), MEASURED.get((hardware, phase))
    if titles is None:
        assert found is None
        return
    outside, fitted = ratios(phase, titles)
    assert found is not None
    assert found.measurements == len(outside) > 0
    assert found.held_out_error == pytest.approx(mean_error(outside), abs=0.01)
    assert found.fitted_error == pytest.approx(mean_error(fitted), abs=0.01)
    assert found.worst_factor == pytest.approx(max(max(each, 1 / each) for each in outside), abs=0.015)


def test_the_model_says_a_third_of_torchrecs_iterations_on_8_b200() -> None:
    page = (DOCS / "results" / "measurements.md").read_text(encoding="utf-8")
    section = page.partition("## TorchRec's benchmark of a training pipeline on 8 B200\n")[2]
    shares = [float(line.split("|")[4]) for line in section.splitlines() if " ms | " in line]
    assert len(shares) == 2
    assert all(0.3 < share < 0.37 for share in shares)
    text = " ".join((DOCS / "tutorials" / "own-tables.md").read_text(encoding="utf-8").split())
    assert "them times whole iterations, of which the model's figure is a third" in text


def test_the_evidence_on_a_cpu_is_that_of_its_report(markdown_rows: Any) -> None:
    page = (DOCS / "results" / "cost-model-cpu-amd-epyc-2-threads.md").read_text(encoding="utf-8")
    cells = markdown_rows(page, "### Errors")["analytical, CPU process, calibrated"]
    _, forward, there, back, backward = (float(cell.split("(")[1].split("%")[0]) / 100 for cell in cells)
    exchange = float(np.sqrt((1 + there) * (1 + back)) - 1)
    for phase, expected in (("forward", forward), ("backward", backward), ("inside hosts", exchange)):
        found = evidence("cpu", phase)
        assert found is not None
        assert found.held_out_error == pytest.approx(expected, abs=0.01)
        assert "221 placements" in found.note
    assert evidence("cpu", "across hosts") is None


def test_the_page_has_the_numbers_of_the_data(markdown_rows: Any) -> None:
    rows = markdown_rows((DOCS / "results" / "cost-model-errors.md").read_text(encoding="utf-8"), "## By hardware")
    assert list(rows) == [f"`{name}`" for name in PROFILES]
    for name, cells in rows.items():
        for phase, cell in zip(PHASES, cells, strict=False):
            found = evidence(name.strip("`"), phase)
            if found is None:
                assert cell == "not measured"
            else:
                assert cell.startswith(f"{found.held_out_error:.0%}, {found.worst_factor:.2f} held out; ")
                assert f"{found.fitted_error:.0%} fitted; {found.measurements:,} of " in cell
                assert cell.endswith(found.note)


def test_unknown_hardware_and_phases_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="no hardware profile named 'tpu'"):
        evidence("tpu", "forward")
    with pytest.raises(UnknownNameError, match="no phase named 'dense'"):
        evidence("cpu", "dense")


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (trust.EVIDENCE / INDEX, trust.EVIDENCE / "analytical-v2.json"):
        (tmp_path / path.name).write_text(path.read_text().replace('"measurements": 16', '"measurements": 17'))
    monkeypatch.setattr(trust, "EVIDENCE", tmp_path)
    trust._evidence.cache_clear()
    with pytest.raises(DamagedFileError, match="was published with"):
        evidence("a100-dgx", "forward")
    trust._evidence.cache_clear()


def test_evidence_is_about_the_links_that_a_topology_has() -> None:
    profile = hardware_profile("v100-nvlink")
    assert list(evidence_on(profile.topology(1))) == ["forward", "backward"]
    assert list(evidence_on(profile.topology(8))) == ["forward", "backward", "inside hosts"]
    assert evidence_on(profile.topology(16))["across hosts"] == evidence("v100-nvlink", "across hosts")
    slower = replace(profile, links=replace(profile.links, inter_host_gb_per_s=1.0)).topology(16)
    assert evidence_on(slower)["across hosts"] is None
    assert evidence_on(slower)["forward"] == evidence("v100-nvlink", "forward")
    assert hardware_of(slower) == "v100-nvlink"


def test_devices_of_no_profile_have_no_evidence() -> None:
    profile = hardware_profile("h100-dgx")
    other = replace(profile, device=replace(profile.device, clock_ghz=1.5)).topology(2)
    assert hardware_of(other) is None
    assert set(evidence_on(other).values()) == {None}


def test_evidence_is_about_the_analytical_model_with_its_own_constants() -> None:
    assert [is_analytical(name) for name in ("analytical-v2", "analytical-v2-fp16", "analytical-v1", "pooled")] == [
        *(True, True),
        *(False, False),
    ]


def test_evidence_is_about_the_model_that_waits_for_indices_too() -> None:
    assert is_analytical("analytical-exposed-indices-v2")
    assert is_analytical("analytical-exposed-indices-v2-bf16")
    assert not is_analytical("analytical-lru-exposed-indices-v2")


# The ratio of two costs

PROFILE = hardware_profile("a100-dgx")
TWO = PROFILE.topology(2)
EXPONENTS = np.array([1.0, 0.1])


def zipf(change: float = 0.0, chosen: tuple[bool, bool] = (True, True)) -> Tables:
    exponents = np.maximum(np.where(chosen, EXPONENTS + change, EXPONENTS), 0.0)
    return Tables.from_zipf([10_000_000, 50_000], [128, 32], [20, 4], exponents, Workload(65536, "fp32", "sgd"))


TABLES = zipf()
TOGETHER, APART = (plan_of_placement(placement, TABLES) for placement in ([0, 0], [0, 1]))


def cost_ms(placement: list[int], tables: Tables = TABLES, topology: Topology = TWO) -> float:
    return AnalyticalCostModel().estimate(placement, tables, topology).total_ms


def test_equal_plans_have_a_ratio_of_exactly_1(random_plan: Any) -> None:
    topology = PROFILE.topology(4, devices_per_host=2)
    tables = Tables.from_zipf([4000] * 6, [64] * 6, 5, 0.9, Workload(4096, "fp16", "adam"))
    plan = random_plan(np.random.default_rng(1), tables, topology)
    assert isinstance(plan, ShardingPlan)
    found = robustness(plan, plan, tables, topology, "fp16")
    assert (found.ratio, found.together, found.lookups) == (1.0, (1.0, 1.0), (1.0, 1.0))
    assert set(found.terms.values()) == {(1.0, 1.0)}
    assert (found.most, found.is_certain) == (None, False)


def test_two_tables_by_hand() -> None:
    found = robustness(TOGETHER, APART, replace(TABLES, popularity=None), TWO)
    one, two = cost_ms([0, 0]), cost_ms([0, 1])
    assert found.ratio == pytest.approx(one / two)
    sort = SORT_BYTES / (0.570 * 1825e6) * 65536  # of one lookup a sample; table 0 is on the slowest device of both
    assert found.terms["sort"] == pytest.approx([(one + s * 24 * sort) / (two + s * 20 * sort) for s in (-1, 1)])
    exchanges = 2 * 0.0111  # forward and back
    assert found.terms["latency"] == pytest.approx([(one + s * exchanges) / (two + s * exchanges) for s in (-1, 1)])
    of_neither = {"dense_update", "reduce_scatter", "all_reduce", "codec", "host_memory"}
    assert set(ASSUMED) - set(found.terms) == of_neither
    assert found.lookups is None
    low, high = found.term_range
    assert low == min(found.ratio, *found.together, *np.ravel(list(found.terms.values())))
    assert low < found.ratio < high
    assert found.is_certain == (low > 1)


def test_swapped_plans_have_the_inverse_ratios() -> None:
    there, back = (robustness(*plans, TABLES, TWO) for plans in ((TOGETHER, APART), (APART, TOGETHER)))
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.together == pytest.approx([1 / each for each in there.together])
    assert back.term_range == pytest.approx([1 / each for each in there.term_range[::-1]])
    assert there.most == back.most
    assert back.lookups == pytest.approx([1 / each for each in there.lookups or ()])


def test_lookups_are_those_of_tables_made_with_other_exponents() -> None:
    found = robustness(TOGETHER, APART, TABLES, TWO)
    expected = [cost_ms([0, 0], tables) / cost_ms([0, 1], tables) for tables in (zipf(-0.2), zipf(0.2))]
    assert found.lookups == pytest.approx(expected)
    assert found.lookup_range == (min(found.ratio, *expected), max(found.ratio, *expected))
    assert found.remade == 2


def test_of_many_tables_the_costliest_are_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "MAX_REMADE", 1)
    found = robustness(TOGETHER, APART, TABLES, TWO)
    tables = zipf(0.2, (True, False))
    assert (found.lookups or ())[1] == pytest.approx(cost_ms([0, 0], tables) / cost_ms([0, 1], tables))
    assert found.remade == 1


def test_a_choice_is_uncertain_where_a_range_contains_1() -> None:
    found = robustness(TOGETHER, APART, replace(TABLES, popularity=None), TWO)
    found = replace(found, other_exchange=None)
    assert replace(found, ratio=1.2, terms={"sort": (1.1, 1.3)}, together=(1.1, 1.3)).is_certain
    assert replace(found, ratio=0.8, terms={"sort": (0.7, 0.9)}, together=(0.7, 0.9)).is_certain
    assert not replace(found, ratio=1.2, terms={"sort": (0.9, 1.3)}, together=(1.1, 1.3)).is_certain
    assert not replace(
        found, ratio=1.2, terms={"sort": (1.1, 1.3)}, together=(1.1, 1.3), lookups=(0.99, 1.3)
    ).is_certain


def test_a_choice_is_uncertain_where_the_exchange_of_the_indices_turns_it() -> None:
    """Halves balance the devices, and their lookups are sent twice."""
    tables = Tables.from_zipf([200_000] * 24, 64, 60.0, 1.0, Workload(65_536, "fp32", "adam"))
    topology = hardware_profile("a100-dgx").topology(16)
    halves = [column_wise(tables, table, [2 * table % 16, (2 * table + 1) % 16]) for table in range(24)]
    plans = plan_of_placement(np.arange(24) % 16, tables), ShardingPlan(tuple(halves))
    hidden = robustness(*plans, tables, topology)
    exposed = robustness(*plans, tables, topology, index_exchange="exposed")
    assert hidden.ratio == exposed.other_exchange == pytest.approx(5.334 / 4.868, rel=1e-3)
    assert exposed.ratio == hidden.other_exchange == pytest.approx(7.458 / 7.984, rel=1e-3)
    assert not hidden.is_certain
    assert replace(hidden, terms={}, together=(1.1, 1.1), lookups=None, other_exchange=None).is_certain
    assert not replace(hidden, terms={}, together=(1.1, 1.1), lookups=None).is_certain


def test_plans_may_exceed_the_memory_but_must_be_of_the_tables() -> None:
    small = PROFILE.topology(2, memory_cap_bytes=1)
    assert robustness(TOGETHER, APART, TABLES, small).ratio == robustness(TOGETHER, APART, TABLES, TWO).ratio
    with pytest.raises(InvalidPlanError):
        robustness(TOGETHER, APART, TABLES.select([0]), TWO)


def test_the_sentence_of_each_hardware_names_what_is_measured() -> None:
    topology = hardware_profile("a100-dgx").topology(4)
    found = evidence("a100-dgx", "forward")
    assert found is not None
    assert evidence_sentence(topology, "analytical-v2") == (
        "Mean error of the cost model on held-out measurements, a100-dgx: "
        f"forward {found.held_out_error:.0%} of {found.measurements} (the GPU is inferred); backward not measured; "
        "links inside hosts not measured."
    )
    assert "links across hosts 29% of 11" in evidence_sentence(
        hardware_profile("v100-nvlink").topology(16), "analytical-v2-fp16"
    )


def test_nothing_is_claimed_of_optimizers_and_weights_that_were_not_measured() -> None:
    topology = hardware_profile("h100-dgx").topology(4)
    said = evidence_sentence(topology, "analytical-v2", Workload(8, "fp32", "adam"))
    assert "h100-dgx, fp32, adam: forward 14% of 10" in said
    assert "backward not measured" in said
    said = evidence_sentence(topology, "analytical-v2", Workload(8, "bf16", "sgd"))
    assert "h100-dgx, bf16, sgd: forward not measured; backward not measured; links inside hosts 3%" in said
    own = evidence_sentence(topology, "analytical-v2", Workload(8, "fp16", "sgd"))
    assert own == evidence_sentence(topology, "analytical-v2")


def test_equal_plans_are_told_in_few_words() -> None:
    found = Robustness(1.001, {"sort": (0.999, 1.002)}, (1.0, 1.001), (1.0, 1.002), 3)
    assert robustness_sentence(found, "old.json", 3) == (
        "old.json costs as much as this plan, within 0.5%, whatever nobody measured."
    )


def test_other_costs_have_other_evidence() -> None:
    profile = hardware_profile("a100-dgx")
    assert evidence_sentence(profile.topology(4), "measured-v2-parallel-12") == "This cost is measured, not estimated."
    assert "cost model pooled-v1-12: see its card" in evidence_sentence(profile.topology(4), "pooled-v1-12")
    mine = replace(profile, device=replace(profile.device, name="my GPU", num_sms=10)).topology(4)
    assert evidence_sentence(mine, "analytical-v2").startswith("Cost model on my GPU: not measured, ")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ["A costs 1.20 times as much as this plan: 1.10 to 1.40 if what nobody measured", "most by the sort"]),
        ({"lookups": None}, ["lookups are not varied"]),
        ({"remade": 5}, ["exponents of the lookups of the 5 costliest tables were 0.2 lower, or 0.2 higher"]),
        ({"lookups": (0.98, 1.5)}, ["0.98 to 1.50", "the model does not tell for certain which"]),
        ({"other_exchange": 1.25}, ["It is 1.25 without a pipeline that hides the exchange of the indices."]),
        (
            {"other_exchange": 0.9, "index_exchange": "exposed"},
            ["It is 0.90 if a pipeline hides the exchange of the indices.", "for certain which"],
        ),
        ({"terms": {"sort": (1.2, 1.2)}, "together": (1.2, 1.2)}, ["1.20 to 1.20", "or twice as long;"]),
    ],
)
def test_the_sentence_of_a_ratio(changes: dict[str, Any], says: list[str]) -> None:
    given: dict[str, Any] = {
        **{"ratio": 1.2, "terms": {"sort": (1.1, 1.3), "latency": (1.2, 1.2)}, "together": (1.15, 1.4)},
        **{"lookups": (1.1, 1.3), "remade": 12},
        **changes,
    }
    text = robustness_sentence(Robustness(**given), "A", 12)
    assert [part for part in says if part not in text] == []
    assert ("for certain" in text) == any("for certain" in part for part in says)


@pytest.mark.parametrize(("dedup", "which", "other"), [(True, "dedup", "recorded"), (False, "recorded", "dedup")])
def test_one_reason_is_given_why_lookups_are_not_varied(dedup: bool, which: str, other: str) -> None:
    found = Robustness(1.2, {"sort": (1.1, 1.3)}, (1.15, 1.4), None, 0)
    text = robustness_sentence(found, "A", 12, dedup)
    assert which in text
    assert other not in text
