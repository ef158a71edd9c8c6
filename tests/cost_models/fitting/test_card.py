"""The card of a network: training data, errors and rankings, and their page."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import PHASES, AnalyticalCostModel
from shard_gym.cost_models.fitting.card import card_page, make_card
from shard_gym.cost_models.fitting.data.splits import SplitCosts
from shard_gym.cost_models.fitting.linear import fit_linear
from shard_gym.cost_models.fitting.metrics import errors, ranking

MODEL = AnalyticalCostModel()


@pytest.fixture(scope="module")
def card(fitted: Any, costs: SplitCosts, ranked_tasks: Any) -> dict[str, Any]:
    return make_card(fitted("pooled"), costs, ranked_tasks, "fake-device")


def test_the_numbers_are_those_of_the_model(
    card: dict[str, Any], fitted: Any, costs: SplitCosts, ranked_tasks: Any
) -> None:
    for name, model in (("network", fitted("pooled")), ("linear", fit_linear(costs.part("train")))):
        for split in ("train", "test"):
            found, stored = errors(model, costs.part(split)), card["errors"][name][split]
            for row, error in {"cost": found.cost, **found.phases}.items():
                assert stored[row] == pytest.approx({"mape": error.mape, "ratio": error.ratio}, rel=1e-3)
        ranked, stored = ranking(model, ranked_tasks), card["ranking"][name]
        assert stored["kendall_tau"] == pytest.approx(ranked.kendall_tau, rel=1e-3)
        assert stored["regret"]["5"] == pytest.approx(ranked.regret[5], rel=1e-3)
        assert (stored["tasks"], stored["placements"]) == (4, 100)
    assert card["errors"]["network"]["test"]["cost"]["mape"] < card["errors"]["linear"]["test"]["cost"]["mape"]


def test_it_describes_the_training_data(card: dict[str, Any], costs: SplitCosts, fitted: Any) -> None:
    data = card["data"]
    assert (data["source"], data["hardware"]) == (MODEL.fingerprint, "fake-device")
    assert data["placements"] == {"train": 400, "validation": 60, "test": 120}
    assert sum(data["tables"].values()) == len(costs.data.tables)
    assert (data["num_devices"], data["num_tables"], data["embedding_dims"]) == ([1, 4], [3, 30], [16, 64])
    assert card["model"] == fitted("pooled").fingerprint
    assert 10_000 < card["parameters"] < sum(array.size for array in fitted("pooled").weights.values())
    assert card["fit"] == fitted("pooled").card["fit"]


def test_the_page_shows_everything(card: dict[str, Any], markdown_rows: Any) -> None:
    page = card_page(card)
    assert page.startswith(f"# Neural cost model `{card['model']}`\n")
    assert f"fitted to measurements on `fake-device` (`{MODEL.fingerprint}`)" in page
    assert "1 to 4 x A100-SXM4-80GB" in page
    assert list(markdown_rows(page, "## Errors")) == ["cost", *PHASES]
    assert list(markdown_rows(page, "## Ranking")) == ["network", "linear"]
    assert "- seed: 0\n" in page
    assert "torch" in page


def test_phases_without_time_leave_a_gap(fitted: Any, costs: SplitCosts) -> None:
    alone = costs.data.take(np.flatnonzero(costs.data.num_devices == 1))
    card = make_card(fitted("pooled"), SplitCosts(alone, costs.table_split), [], "fake-device")
    assert card["errors"]["network"]["test"]["forward_comm"] is None
    assert "| forward_comm | - | - | - |" in card_page(card)
    assert "Ranking" not in card_page(card)
    assert json.dumps(card, allow_nan=False)
