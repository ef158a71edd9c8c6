"""The page in a browser: the ranking, the selection, and the charts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.leaderboard.site import write_site

Browser = Any
"""The fixture `browser` of conftest.py."""

Digits = Callable[[str], float]


def sorts(browser: Browser) -> dict[str, str]:
    heads = browser.all("#table thead th[aria-sort]")
    return {str(head.get_attribute("data-key")): str(head.get_attribute("aria-sort")) for head in heads}


def test_the_ranking_shows_what_was_evaluated(browser: Browser, site: Path, digits: Digits, example: Any) -> None:
    browser.open(site)
    entries = example.ranking("dlrm-20x4")
    assert browser.order() == [entry["id"] for entry in entries]
    for entry, cost, interval, gap in zip(
        entries, browser.column("cost"), browser.column("interval"), browser.column("gap"), strict=True
    ):
        assert digits(cost) == pytest.approx(entry["mean_cost_ms"], rel=5e-4)
        low, high = map(digits, interval.split("\u2013"))
        assert (low, high) == pytest.approx(tuple(entry["interval_ms"]), rel=5e-4)
        assert digits(gap.replace("+", "")) == pytest.approx(100 * entry["gap"], abs=0.06)
    assert browser.column("failures") == ["0", "0", "0"]
    assert [text.endswith("*") for text in browser.column("planning")] == [False, True, False]


def test_ranks_are_those_of_a_league(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    assert browser.column("league") == [entry["league"] for entry in example.ranking("dlrm-20x4")]
    assert browser.column("rank") == ["1", "1", "2"]
    assert browser.texts("#left option")[:3] == [
        "1. cost-greedy (zero-query)",
        "1. lookup-greedy (guided)",
        "2. random (guided)",
    ]
    assert (
        "How solvedNo proven bounds of all its tasks are stored yet. The best zero-query entry costs "
        in browser.texts("#about dl")[0]
    )
    browser.one("#table [data-key='league'] button").click()
    browser.one("#table [data-key='league'] button").click()
    assert browser.column("league")[0] == "guided"


def test_a_click_sorts_and_a_second_one_turns_the_order(browser: Browser, site: Path) -> None:
    browser.open(site)
    assert sorts(browser) == {"rank": "ascending"}
    ranked = browser.order()
    button = browser.one("#table [data-key='planning'] button")
    button.click()
    assert (sorts(browser), browser.order()) == ({"planning": "ascending"}, ranked)
    button.click()
    assert (sorts(browser), browser.order()) == ({"planning": "descending"}, ranked[::-1])
    assert browser.one("#announcement").text == "Sorted by Planning, per task, descending."
    browser.one("#table [data-key='name'] button").click()
    assert (sorts(browser), browser.order()) == ({"name": "ascending"}, sorted(ranked))


@pytest.mark.parametrize("key", ["\ue007", " "], ids=["enter", "space"])
def test_the_keyboard_sorts_and_keeps_its_place(browser: Browser, site: Path, key: str) -> None:
    browser.open(site)
    ranked = browser.order()
    heads = browser.all("#table thead button")
    heads[0].send_keys("\ue004")  # Tab
    active = browser.driver.switch_to.active_element
    assert active == heads[1]
    heads[3].send_keys(key)
    heads[3].send_keys(key)
    assert (sorts(browser), browser.order()) == ({"cost": "descending"}, ranked[::-1])
    assert browser.driver.switch_to.active_element == heads[3]
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_missing_numbers_are_last_in_both_orders(browser: Browser, site: Path) -> None:
    browser.open(site, "#suite=measured/dlrm-20x4/races/nvidia-h200")
    button = browser.one("#table [data-key='improvement'] button")
    for _ in range(2):
        button.click()
        number, *missing = browser.column("improvement")
        assert (number[-1], missing) == ("%", ["\u2013", "\u2013"])


def test_picking_a_suite_and_a_track(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    browser.pick("suite", "simulated/mixdim-8")
    assert browser.order() == [entry["id"] for entry in example.ranking("mixdim-8")]
    assert "suite=simulated/mixdim-8" in browser.driver.current_url
    browser.pick("track", "measured")
    assert browser.texts("#suite option") == ["dlrm-20x4 on nvidia-h200"]
    assert browser.column("ratio")[0] == "1.250 (1.125\u20131.500)"
    assert browser.column("gap") == []
    facts = browser.texts("#about dl")[0]
    assert "Race0 rounds of 10 iterations on nvidia-h200, layout parallel" in facts
    assert "Not raced yetcost-greedy" in facts
    assert browser.texts("#profile > p") == ["There is no profile for this track yet."]
    assert browser.column("failures")[0] == "1 of 4, charged with a penalty"


def test_the_address_brings_a_choice_back(browser: Browser, site: Path) -> None:
    browser.open(site)
    browser.pick("task", "2")
    browser.pick("left", "random")
    address = browser.driver.current_url
    browser.open(site, address[address.index("#") :])
    assert [browser.chosen(name) for name in ("task", "left", "right")] == ["2", "random", "lookup-greedy"]
    browser.open(site, "#suite=none&task=99&left=<b>&right=constructor")
    assert [browser.chosen(name) for name in ("suite", "task", "left")] == ["simulated/dlrm-20x4", "0", "cost-greedy"]


def test_the_charts_show_every_entry(browser: Browser, site: Path, digits: Digits, example: Any) -> None:
    browser.open(site)
    entries = example.ranking("dlrm-20x4")
    points = "return [...document.querySelectorAll('#time .shape')].map(s => s.dataset.entry)"
    assert sorted(browser.run(points)) == sorted(entry["id"] for entry in entries)
    assert browser.texts("#time .title")[1].startswith("planning time per task, log scale")
    places = browser.run(
        "return Object.fromEntries([...document.querySelectorAll('#time .shape')]"
        ".map(s => [s.dataset.entry, s.transform.baseVal[0].matrix.e]))"
    )
    across = [places[entry["id"]] for entry in entries]
    steps = np.diff(across) / np.diff(np.log([entry["planning_ms"] for entry in entries]))
    assert steps == pytest.approx(steps[0], rel=1e-6)
    assert len(browser.all("#profile .line")) == 3
    browser.one("#profile summary").click()
    rows = browser.run(
        "return [...document.querySelectorAll('#profile tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    heads, profile = browser.texts("#profile thead th"), example.values["index"]["profiles"][0]
    for row, line in zip(rows, profile["lines"], strict=True):
        assert row[0] == line["name"]
        assert row[-1] == str(line["tasks"]) == "8"
        assert digits(row[1]) == pytest.approx(line["iqm"], rel=5e-4)
        shown = {digits(head): digits(cell) for head, cell in zip(heads[2:-1], row[2:-1], strict=True)}
        exact = dict(zip(profile["taus"], line["shares"], strict=True))
        assert shown == pytest.approx({tau: 100 * exact[tau] for tau in shown}, abs=0.5)
        assert len(shown) > 4


def test_leaderboards_without_entries_say_so(browser: Browser, example: Any, tmp_path: Path) -> None:
    write_site([replace(example.leaderboards[0], entries=())], tmp_path / "one")
    browser.open(tmp_path / "one")
    assert browser.texts("#table") == ["No entry of this suite is ranked yet."]
    assert not browser.one("#explorer").is_displayed()
    write_site([], tmp_path / "none")
    browser.open(tmp_path / "none")
    assert browser.texts("#about") == ["There are no leaderboards yet."]
