"""A card says what was measured, and against what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.base import PHASES
from shard_gym.cost_models.data.splits import SplitCosts
from shard_gym.cost_models.metrics import errors, ranking
from shard_gym.cost_models.neural import load_cost_model, save_cost_model
from shard_gym.cost_models.neural.card import card_page, make_card
from shard_gym.cost_models.neural.linear import fit_linear
from shard_gym.cost_models.neural.test_task_rows import RivalCounts, rival_tasks

MODEL = AnalyticalCostModel()


@pytest.fixture(scope="module")
def rivals(sampler: Any, groups: Any) -> Any:
    return rival_tasks(MODEL, sampler, groups["test"], 3, 0, RivalCounts(random=20, greedy=3, proposals=30))


@pytest.fixture(scope="module")
def card(fitted: Any, costs: SplitCosts, rivals: Any) -> dict[str, Any]:
    return make_card(fitted("pooled"), costs, rivals)


def test_the_numbers_are_those_of_the_model(card: dict[str, Any], fitted: Any, costs: SplitCosts, rivals: Any) -> None:
    model, linear = fitted("pooled"), fit_linear(costs.part("train"))
    for name, each in (("network", model), ("linear", linear)):
        for split in ("train", "test"):
            found, said = errors(each, costs.part(split)), card["errors"][name][split]
            assert said["cost"]["mape"] == pytest.approx(found.cost.mape, rel=1e-3)
            assert said["cost"]["ratio"] == pytest.approx(found.cost.ratio, rel=1e-3)
            for phase in PHASES:
                assert said[phase]["mape"] == pytest.approx(found.phases[phase].mape, rel=1e-3)
        ranked, said = ranking(each, rivals), card["ranking"][name]
        assert said["kendall_tau"] == pytest.approx(ranked.kendall_tau, rel=1e-3)
        assert said["regret"]["5"] == pytest.approx(ranked.regret[5], rel=1e-3)
        assert (said["tasks"], said["placements"]) == (3, sum(map(len, rivals)))
    assert card["errors"]["network"]["test"]["cost"]["mape"] < card["errors"]["linear"]["test"]["cost"]["mape"]


def test_it_says_what_was_learnt_from(card: dict[str, Any], costs: SplitCosts, fitted: Any) -> None:
    data = card["data"]
    assert data["source"] == MODEL.fingerprint
    assert data["placements"] == {"train": 400, "validation": 60, "test": 120}
    assert sum(data["tables"].values()) == len(costs.data.tables)
    assert (data["num_devices"], data["num_tables"], data["embedding_dims"]) == ([1, 4], [3, 30], [16, 64])
    assert card["model"] == fitted("pooled").fingerprint
    assert 10_000 < card["parameters"] < sum(array.size for array in fitted("pooled").weights.values())
    assert card["fit"] == fitted("pooled").card["fit"]


def test_it_travels_with_the_model(card: dict[str, Any], fitted: Any, tmp_path: Path) -> None:
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    model = fitted("pooled")
    save_cost_model(type(model)(model.weights, card), tmp_path / "model.safetensors")
    assert load_cost_model(tmp_path / "model.safetensors").card == card


def test_the_page_says_that_nothing_was_measured(card: dict[str, Any]) -> None:
    page = card_page(card)
    assert page.startswith(f"# Neural cost model `{card['model']}`\n")
    assert "Nothing was measured: **every error below is the distance to that cost model, not to hardware.**" in page
    assert f"what the cost model `{MODEL.fingerprint}` says" in page
    for row in ("cost", *PHASES):
        assert page.count(f"\n| {row} | ") == 1
    assert "1 to 4 x A100-SXM4-80GB" in page
    assert "| network | " in page
    assert "| linear | " in page
    assert "- seed: 0\n" in page
    assert "torch" in page
    assert max(map(len, page.splitlines())) < 400


def test_phases_that_never_were_leave_a_gap(fitted: Any, costs: SplitCosts, rivals: Any) -> None:
    alone = costs.data.take(np.flatnonzero(costs.data.num_devices == 1))
    card = make_card(fitted("pooled"), SplitCosts(alone, costs.table_split), rivals)
    assert card["errors"]["network"]["test"]["forward_comm"] is None
    assert "| forward_comm | - | - | - |" in card_page(card)
    assert json.dumps(card, allow_nan=False)
