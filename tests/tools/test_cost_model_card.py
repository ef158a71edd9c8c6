"""The card of the analytical cost model shows every published measurement, with what the model computes today."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("scipy")

from shard_gym.common.io.files import read_json
from shard_gym.common.io.markdown import with_block
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.hardware import PROFILES, hardware_profile
from shard_gym.planning.trust import evidence
from shard_gym.tables import load_pool
from shard_gym.tables.pools.pool import DATA

MODEL = AnalyticalCostModel()
SPECIAL = {"thread_group", "launch", "updates", "bag_lookups"}
"""Settings that only the fit knows."""


@pytest.fixture(scope="module")
def card(tool: Any) -> Any:
    return tool("cost_model_card")


@pytest.fixture(scope="module")
def problem(card: Any) -> Any:
    return card.Problem(card.read_rows())


@pytest.fixture(scope="module")
def groups(card: Any) -> Any:
    return card.compare(MODEL)


@pytest.fixture(scope="module")
def rows(groups: Any) -> Callable[[str], dict[str, Any]]:
    """The rows of the group whose title starts so, by label."""

    def of(title: str) -> dict[str, Any]:
        (group,) = [group for group in groups if group.title.startswith(title)]
        return {row.label: row for row in group.rows}

    return of


def without_held_out(page: str) -> tuple[list[str], list[float]]:
    """The lines without the cells that depend on a fit, and the numbers in them."""
    lines, numbers, column = [], [], False
    for line in page.splitlines():
        cells = line.split(" | ")
        column = cells[0] == "| setting" or (column and line.startswith("|"))
        if column and cells[4] not in ("-", "held out", "---:"):
            numbers.append(float(cells.pop(4)))
        lines.append(" | ".join(cells))
    return lines, numbers


def test_the_page_shows_all_measurements_with_current_predictions(card: Any, groups: Any, problem: Any) -> None:
    page = card.ROWS_PAGE.read_text(encoding="utf-8")
    computed = card.render_rows(card.with_fit(groups, problem), MODEL)
    (lines, held), (expected, expected_held) = map(
        without_held_out, (page, with_block(card.ROWS_PAGE, card.ROWS_BLOCK, computed))
    )
    assert lines == expected, "Run tools/cost_model_card.py."
    assert held == pytest.approx(expected_held, abs=0.02)
    assert len(held) > problem.fitted.sum() - 1
    for group in read_json(card.MEASUREMENTS)["groups"]:
        section = page.partition(f"## {group['title']}\n")[2].partition("\n## ")[0]
        assert all(f"| {row['label']} | " in section for row in group["rows"])


def test_the_fit_predicts_what_the_model_does(card: Any, groups: Any, problem: Any) -> None:
    """Every row but those of which the fit knows more than that they are operators of tables."""
    fitted = {(group.title, row.label): row for group in card.with_fit(groups, problem) for row in group.rows}
    plain = {(group.title, row.label): row for group in groups for row in group.rows}
    compared = [
        (row.settings["title"], row.settings["label"]) for row in problem.rows if not SPECIAL & set(row.settings)
    ]
    assert len(compared) > 200
    for key in compared:
        assert fitted[key].predicted == pytest.approx(plain[key].predicted, rel=1e-9), key


def test_every_row_has_a_prediction_or_a_reason(groups: Any) -> None:
    for group in groups:
        for row in group.rows:
            assert (row.predicted is None) == row.note.startswith("not comparable: ")
            assert row.predicted is None or (row.predicted > 0 and math.isfinite(row.ratio))
            assert not group.is_share or not row.ratio >= 1


def test_the_summary_at_the_top_agrees_with_the_tables_of_errors(card: Any, markdown_rows: Any) -> None:
    page = card.PAGE.read_text(encoding="utf-8")

    def means(title: str) -> dict[str, list[float]]:
        """The mean errors of the table under a heading, in percent, by its first column."""
        rows = markdown_rows(page, f"### {title}")
        return {name: [float(cell.split("%")[0]) for cell in cells if "%" in cell] for name, cells in rows.items()}

    ours = means("Errors")["all but small operators"]
    assert max(ours[2::2]) <= 20  # the held-out halves
    _, backward, _, nvlink, *_, large = zip(*means("Other start values").values(), strict=True)
    assert 20 < max(large) <= 25
    assert (max(backward), max(nvlink)) == (37, 45)
    user_page = (card.PAGE.parents[1] / "cost-model.md").read_text(encoding="utf-8")
    top = " ".join(user_page.partition("## What it computes")[0].split())
    assert "it is a quarter, up to 37% for the backward pass and up to 45% for NVLink" in top


def test_the_evidence_of_each_profile_is_what_the_tool_finds(
    card: Any, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the errors of a fit to the other half, which tests/planning/test_trust.py computes from the page."""
    monkeypatch.setattr(card.evidence, "held_out", lambda problem, _: (None, problem.measured * 0))
    found = card.evidence.evidence(problem)
    assert list(found) == list(PROFILES)
    for name, phases in found.items():
        for phase, computed in phases.items():
            stored = evidence(name, phase)
            assert (stored is None) == (computed is None), (name, phase)
            if stored and computed:
                for key in ("measurements", "sources", "note"):
                    assert getattr(stored, key) == getattr(computed, key), (name, phase)
                assert stored.fitted_error == pytest.approx(computed.fitted_error, abs=0.002)
                if name == "cpu":
                    assert stored.worst_factor == pytest.approx(computed.worst_factor, abs=0.002)
    page = card.PAGE.read_text(encoding="utf-8")
    block = page.partition("<!-- generated: evidence -->")[2].partition("<!-- end -->")[0].strip()
    stored_rows = {name: {phase: evidence(name, phase) for phase in phases} for name, phases in found.items()}
    assert block == card.evidence.render(problem, stored_rows), "Run tools/cost_model_card.py."
    files = card.evidence.data_files(stored_rows)
    assert {path: path.read_text(encoding="utf-8") for path in files} == files


def test_every_published_merlin_timing_is_on_the_card(rows: Any) -> None:
    published = read_json(DATA / "facts" / "merlin_synthetic_models.json")["dgx_a100_iteration_ms"]
    del published["conditions"]
    expected = {(model, int(gpus)): ms for model, times in published.items() for gpus, ms in times.items()}
    found = {
        (label.split(",")[0], int(label.split()[1])): row.measured for label, row in rows("Merlin's synthetic").items()
    }
    assert found == expected


def test_rates_are_turned_into_times_by_the_bytes_their_source_counts(rows: Any) -> None:
    assert rows("Ramp of the DRAM bandwidth, A100")["n = 2^24"].measured == pytest.approx(2**24 / 865e6)
    nccl = rows("All-to-all on 4 H100")["500 MiB on 4 H100, 335 GB/s of bus bandwidth"]
    assert nccl.measured == pytest.approx(1.17414, rel=1e-4)  # the time in the log of NVIDIA/nccl, issue 2169


def test_tables_are_built_as_the_row_says(card: Any) -> None:
    one = hardware_profile("v100-nvlink").topology(1)
    spec = {"embedding_dim": 64, "pooling_factor": 32, "batch_size": 64, "weight_dtype": "fp32", "optimizer": "sgd"}
    tables = card.tables_of({**spec, "num_tables": 3, "num_embeddings": 1024}, one)
    assert tables.num_embeddings.tolist() == [1024] * 3
    assert tables.distinct_rows == pytest.approx([1024 * (1 - math.exp(-2))] * 3, rel=1e-3)  # 2048 reads of 1024 rows
    pool = card.tables_of({"pool": "merlin-large"}, hardware_profile("a100-dgx").topology(32))
    assert len(pool) > len(load_pool("merlin-large"))  # tables larger than a device are split
    criteo = card.tables_of({**spec, "criteo_divided_by": 32}, one)
    assert len(criteo) == 26
    assert sorted(criteo.num_embeddings)[-1] == 1_572_176  # the largest table that was not divided
    assert 48_937_457 // 32 in criteo.num_embeddings
