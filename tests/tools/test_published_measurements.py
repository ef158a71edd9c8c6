"""docs/published_measurements.json: every number has a unit in range, a source, a GPU and what was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.io.files import read_json
from shard_gym.hardware import PROFILES

GROUPS = read_json(Path(__file__).parents[2] / "docs" / "published_measurements.json")["groups"]
each_group = pytest.mark.parametrize("group", GROUPS, ids=[group["title"] for group in GROUPS])

QUANTITIES = {"dram", "forward", "backward", "forward+backward", "unfused/fused", "all-to-all", "iteration"}
GROUP_KEYS = {
    *("title", "source", "origin", "gpu", "inferred", "checked", "setting", "quantity", "hardware", "device"),
    *("line_rates", "link", "num_devices", "devices_per_host", "launch", "updates", "bag_lookups", "tables"),
    "rows",
}
ROW_KEYS = {
    *("label", "measured", "gb_per_s", "num_bytes", "num_devices", "devices_per_host", "quantity", "tables", "device"),
    *("launch", "thread_group", "host_bound", "not_comparable"),
}


def comparable(group: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows with a number, and each with the settings of its group."""
    settings = {name: setting for name, setting in group.items() if name != "rows"}
    for row in group["rows"]:
        if "not_comparable" not in row:
            yield row, {**settings, **row, "tables": {**group.get("tables", {}), **row.get("tables", {})}}


def test_titles_are_unique_and_labels_are_within_a_group() -> None:
    assert max(Counter(group["title"] for group in GROUPS).values()) == 1
    for group in GROUPS:
        assert max(Counter(row["label"] for row in group["rows"]).values()) == 1, group["title"]


@each_group
def test_every_group_names_its_source_its_gpu_and_what_was_checked(group: dict[str, Any]) -> None:
    assert set(group) <= GROUP_KEYS
    for name in ("title", "source", "origin", "gpu", "checked", "setting"):
        assert isinstance(group[name], str)
        assert len(group[name]) >= 2, name
    assert isinstance(group["inferred"], list)
    assert all(isinstance(text, str) and len(text) > 5 for text in group["inferred"])
    if group["gpu"] in ("not published", "contradictory"):  # then a guess is named as one
        assert group["inferred"] or not list(comparable(group))
    assert "/work" not in str(group)


@each_group
def test_every_comparable_row_has_a_time_in_range(group: dict[str, Any]) -> None:
    for own, row in comparable(group):
        assert set(own) <= ROW_KEYS
        assert row["quantity"] in QUANTITIES
        assert row["hardware"] in PROFILES
        assert ("measured" in own) != ("gb_per_s" in own)
        if "measured" in own:
            low, high = (1.0, 100.0) if row["quantity"] == "unfused/fused" else (1e-3, 1e3)  # a ratio; 1 us to 1 s
            assert low <= own["measured"] <= high
        else:
            assert 1.0 <= own["gb_per_s"] <= 10_000
        if row["quantity"] in ("dram", "all-to-all"):
            assert 64 <= own["num_bytes"] <= 2**40


@each_group
def test_no_message_is_faster_than_the_links(group: dict[str, Any]) -> None:
    """With the rates of the data sheets, which say how many bytes a GPU can send in one direction."""
    for own, row in comparable(group):
        if row["quantity"] != "all-to-all":
            continue
        size, on_host = row["num_devices"], min(row["num_devices"], row.get("devices_per_host", 8))
        rates = row["line_rates"]
        assert set(rates) == ({"intra_host", "inter_host"} if size > on_host else {"intra_host"})
        assert 10 <= rates["intra_host"] <= 1000
        sent = own["num_bytes"] / size / 1e6  # MB, to each of the others
        fastest = max(sent * (on_host - 1) / rates["intra_host"], sent * (size - on_host) / rates.get("inter_host", 1))
        spent = own["measured"] if "measured" in own else sent * (size - 1) / own["gb_per_s"]
        assert spent >= fastest, own["label"]


@each_group
def test_a_row_that_cannot_be_compared_says_why(group: dict[str, Any]) -> None:
    for row in group["rows"]:
        if "not_comparable" in row:
            assert len(row["not_comparable"]) >= 3
            assert isinstance(row["measured"], str)
        assert row.get("host_bound", "a reason") != ""


@each_group
def test_tables_are_complete_and_possible(group: dict[str, Any]) -> None:
    for _, row in comparable(group):
        tables = row["tables"]
        if not tables or "pool" in tables:
            continue
        assert tables["embedding_dim"] % 4 == 0
        assert 4 <= tables["embedding_dim"] <= 2048
        assert 1 <= tables["batch_size"] <= 2**21
        assert 0 < tables["pooling_factor"] <= 1000
        assert tables["weight_dtype"] in ("fp16", "fp32")
        assert tables["optimizer"] in ("sgd", "rowwise_adagrad", "adam")
        assert "criteo_divided_by" in tables or 1 <= tables["num_tables"] <= 1000
