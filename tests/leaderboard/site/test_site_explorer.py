"""The page in a browser: placements side by side, device by device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.explain import explain
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.leaderboard.site import write_site
from shard_gym.suites import load_suite

Browser = Any
"""The fixture `browser` of conftest.py."""

Digits = Callable[[str], float]


def test_picking_a_task_shows_its_placements(browser: Browser, site: Path, digits: Digits, example: Any) -> None:
    browser.open(site)
    assert browser.one("#previous").get_property("disabled")
    for task in range(4):
        for panel, agent in zip(browser.texts("#panels .cost strong"), ("cost-greedy", "lookup-greedy"), strict=True):
            assert digits(panel) == pytest.approx(example.evaluation("dlrm-20x4", agent).costs_ms[task], rel=5e-4)
        assert browser.chosen("task") == str(task)
        if task < 3:
            before = browser.all("#panels .panel")
            browser.one("#next").click()
            browser.until(lambda before=before: browser.all("#panels .panel") != before)
    assert browser.one("#next").get_property("disabled")
    browser.pick("task", "1")
    panel = browser.texts("#panels .cost strong")[0]
    assert digits(panel) == pytest.approx(example.evaluation("dlrm-20x4", "cost-greedy").costs_ms[1], rel=5e-4)


def test_the_best_known_placement_is_compared_like_an_entry(
    browser: Browser, site: Path, digits: Digits, example: Any
) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=2&left=random")
    browser.pick("right", "best known")
    best = min(each.costs_ms[2] for each in example.evaluations["dlrm-20x4"])
    assert digits(browser.texts("#panels .cost strong")[1]) == pytest.approx(best, rel=5e-4)
    assert browser.texts("#panels h3")[1].endswith("Best known")
    assert browser.texts("#panels .panel > .quiet") == ["Best of three agents."]
    browser.open(site, "#suite=simulated/dlrm-20x4&task=2&left=best+known&right=random")
    assert (browser.chosen("left"), browser.chosen("right")) == ("best known", "random")


def test_phases_memory_and_critical_devices_are_those_of_the_cost_model(
    browser: Browser, site: Path, digits: Digits, example: Any
) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=3&left=random")
    task = example.suite("dlrm-20x4")[3]
    placement = example.evaluation("dlrm-20x4", "random").tasks[3].placement
    exact = explain(task, placement, make_cost_model("analytical"))
    rows = browser.run(
        "return [...document.querySelector('#panels .devices').tBodies[0].rows]"
        ".map(r => [...r.cells].slice(1).map(c => c.textContent))"
    )
    assert len(rows) == 4
    for device, row in enumerate(rows):
        assert [digits(cell) for cell in row[:4]] == pytest.approx(exact.phases_ms[device].tolist(), rel=5e-4)
        assert ["slowest" in cell for cell in row[:4]] == exact.critical[device].tolist()
        unit = 2**30 if "GiB" in row[4] else 2**20
        assert digits(row[4]) * unit == pytest.approx(float(exact.memory_used[device]), rel=5e-3)
        assert int(row[6]) == exact.tables_per_device[device]


def test_a_device_lists_its_tables_the_costliest_first(
    browser: Browser, site: Path, digits: Digits, example: Any
) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=0&left=random")
    task = example.suite("dlrm-20x4")[0]
    exact = explain(task, example.evaluation("dlrm-20x4", "random").tasks[0].placement, make_cost_model("analytical"))
    panel = "#panels .panel:first-child"
    for device, button in enumerate(browser.all(f"{panel} .device")):
        button.send_keys("\ue007")
        assert button.get_attribute("aria-pressed") == "true"
        assert len(browser.all(f"{panel} .device[aria-pressed='true']")) == 1
        names = browser.texts(f"{panel} .scroller:last-child tbody th")
        assert names == [task.tables.names[table] for table in exact.tables_on(device)]
        costs = [digits(text) for text in browser.texts(f"{panel} .scroller:last-child tbody td:nth-child(2)")]
        assert costs == pytest.approx(exact.single_table_ms[exact.tables_on(device)].tolist(), rel=5e-4)


def test_of_many_devices_the_chosen_one_is_in_sight(browser: Browser, example: Any, tmp_path: Path) -> None:
    suite = load_suite("merlin-medium-x128")
    first = example.leaderboards[0].entries[0]
    verified = replace(first.verified, answers=[[suite[0].known_placement]], costs_ms=np.ones((1, 1)))
    leaderboard = replace(example.leaderboards[0], scorer=Scorer(suite), best=None)
    write_site([replace(leaderboard, entries=(replace(first, verified=verified),))], tmp_path)
    browser.open(tmp_path)
    seen = (
        "const row = document.querySelector('#panels [aria-pressed=true]').getBoundingClientRect();"
        "const list = document.querySelector('#panels .devices').parentElement.getBoundingClientRect();"
        "return list.top <= row.top && row.bottom <= list.bottom"
    )
    assert browser.run(seen)
    assert len(browser.all("#panels .panel:first-child .device")) == 128


@pytest.mark.parametrize("agents", [["random", "cost-greedy"], ["cost-greedy", "random"]])
def test_two_entries_stand_side_by_side_on_one_scale(
    browser: Browser, site: Path, digits: Digits, example: Any, agents: list[str]
) -> None:
    browser.open(site)
    for side, agent in zip(("left", "right"), agents, strict=True):
        if browser.chosen(side) != agent:
            browser.pick(side, agent)
    assert browser.texts("#panels h3 bdi") == agents
    costs = [example.evaluation("dlrm-20x4", agent).costs_ms[0] for agent in agents]
    lines = "return [...document.querySelectorAll('.timeline .end')].map(l => l.x1.baseVal.value)"
    starts = "return [...document.querySelectorAll('.timeline .rule')].map(l => l.x1.baseVal.value)"
    zero = min(browser.run(starts))
    widths = [end - zero for end in browser.run(lines)]
    assert widths[0] / widths[1] == pytest.approx(costs[0] / costs[1], rel=1e-3)
    ends = {text for text in browser.texts(".timeline text") if text.endswith(" ms")}
    assert len(ends) == 1
    assert digits(ends.pop()) == pytest.approx(max(costs), rel=5e-3)


def test_an_entry_of_the_ranking_comes_to_the_left(browser: Browser, site: Path) -> None:
    browser.open(site)
    before = browser.all("#panels .panel")
    browser.one("tr[data-entry='random'] .explore").click()
    browser.until(lambda: browser.all("#panels .panel") != before)
    assert browser.texts("#panels h3 bdi") == ["random", "cost-greedy"]
    assert browser.driver.switch_to.active_element.get_attribute("id") == "explorer"


def test_a_failed_task_says_so(browser: Browser, site: Path) -> None:
    browser.open(site, "#suite=measured/dlrm-20x4/races/nvidia-h200&task=1")
    (notice,) = browser.texts("#panels .notice")
    assert "no valid placement" in notice
    assert "Best known" not in browser.texts("#right option")
    browser.pick("task", "0")
    assert browser.texts("#panels .notice") == []
    assert "(estimate)" in browser.texts("#panels .cost")[0]


def test_a_missing_file_is_said_in_the_page(
    browser: Browser, example: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.node.expected_complaint = "ERR_FILE_NOT_FOUND"
    write_site(example.leaderboards, tmp_path)
    (tmp_path / "data/simulated/dlrm-20x4/entries/random.js").unlink()
    browser.open(tmp_path)
    browser.select("left", "random")
    browser.until(lambda: browser.one("#problem").is_displayed())
    assert "entries/random.js could not be loaded" in browser.one("#problem").text
