"""The page in a browser: the ranking, the selection, the charts, and answers side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.leaderboard import write_site
from shard_gym.leaderboard.fresh import FreshGap

Browser = Any
"""The fixture `browser` of conftest.py."""


def sorts(browser: Browser) -> dict[str, str]:
    return dict(browser.each("#table thead th[aria-sort]", "[e.dataset.key, e.ariaSort]"))


def test_the_ranking_shows_what_was_evaluated(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    entries = example.values["simulated/dlrm-20x4/ranking"]
    assert browser.order() == [entry["id"] for entry in entries]
    assert browser.numbers("#table td.score") == pytest.approx([entry["score"] for entry in entries], rel=5e-4)
    assert browser.numbers("#table td.gap") == pytest.approx([100 * entry["gap"] for entry in entries], abs=0.06)
    intervals = [list(map(browser.number, each.split("\u2013"))) for each in browser.column("interval")]
    assert np.allclose(intervals, [entry["interval"] for entry in entries], rtol=5e-4)
    assert browser.column("failures") == ["0", "0", "0"]
    assert [text.endswith("*") for text in browser.column("planning")] == [False, True, False]


def test_ranks_are_those_of_a_league(browser: Browser, site: Path) -> None:
    browser.open(site)
    lines = browser.each("#table tbody tr", "e.dataset.entry ?? e.textContent.split(' ')[0]")
    assert lines == ["zero-query", "cost-greedy", "guided", "lookup-greedy", "random"]
    assert browser.column("rank") == ["1", "1", "2"]
    names = ["1. cost-greedy (zero-query)", "1. lookup-greedy (guided)", "2. random (guided)"]
    assert browser.texts("#left option")[:3] == names
    browser.one("#table [data-key='score'] button").click()
    assert len(browser.all("#table tbody tr")) == 3, "Leagues are apart only in the order of the ranks."
    assert [text.split()[0] for text in browser.texts("#table .who small")] == ["zero-query", "guided", "guided"]


@pytest.mark.parametrize("key", ["\ue007", None], ids=["enter", "click"])
def test_a_column_sorts_the_second_time_in_the_other_order(browser: Browser, site: Path, key: str | None) -> None:
    browser.open(site)
    ranked = browser.order()
    assert sorts(browser) == {"rank": "ascending"}
    button = browser.one("#table [data-key='planning'] button")
    for direction, order in (("ascending", ranked), ("descending", ranked[::-1])):
        button.send_keys(key) if key else button.click()
        assert (sorts(browser), browser.order()) == ({"planning": direction}, order)
    assert browser.one("#announcement").text == "Sorted by Planning, per task, descending."
    assert browser.driver.switch_to.active_element == button


def test_all_columns_are_a_choice_and_missing_numbers_are_last(browser: Browser, site: Path) -> None:
    browser.open(site)
    shown = "return [...document.querySelectorAll('#table thead th')].filter(e => e.getClientRects().length).length"
    few = browser.run(shown)
    browser.one("#all-columns").click()
    assert browser.run(shown) == few + 7
    assert browser.column("licence") == ["MIT"] * 3
    browser.pick("suite", "simulated/mixdim-8")
    assert browser.run(shown) == few + 7, "The choice stays."
    browser.redrawn(browser.all("#tracks a")[1].click)
    for _ in range(2):
        browser.one("#table [data-key='improvement'] button").click()
        number, *missing = browser.column("improvement")
        assert (number[-1], missing) == ("%", ["\u2013", "\u2013"])


def test_gaps_on_fresh_tasks_are_a_column_where_there_are_some(browser: Browser, example: Any, tmp_path: Path) -> None:
    board, *others = example.leaderboards
    stays = FreshGap(0.0123, 0.01, 0, 1.0, (0.9, 1.1))
    gaps = (stays, replace(stays, mean=0.5, rise_interval=(1.5, 3.0)), None)
    entries = [replace(each, fresh=gap) for each, gap in zip(board.entries, gaps, strict=True)]
    agent = entries[1].verified.entry.agent.model_copy(update={"learns": True})
    learned = entries[1].verified.entry.model_copy(update={"agent": agent})
    entries[1] = replace(entries[1], verified=replace(entries[1].verified, entry=learned))
    write_site([replace(board, entries=tuple(entries)), *others], tmp_path)
    browser.open(tmp_path, "#suite=simulated/dlrm-20x4")
    assert browser.column("fresh") == ["+1.23%", "+50.0% falls", "\u2013"]
    browser.pick("suite", "simulated/mixdim-8")
    assert browser.column("fresh") == []


def test_picking_a_suite_and_a_track(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    assert browser.texts("#tracks a") == ["Placement", "Measured", "Replanning"]
    browser.pick("suite", "simulated/mixdim-8")
    assert browser.order() == [entry["id"] for entry in example.values["simulated/mixdim-8/ranking"]]
    assert "suite=simulated/mixdim-8" in browser.driver.current_url
    browser.redrawn(browser.all("#tracks a")[1].click)
    assert browser.texts("#tracks [aria-current]") == ["Measured"]
    assert browser.texts("#suite option") == ["dlrm-20x4 on nvidia-h200", "dlrm-20x4"]
    assert (browser.column("ratio")[0], browser.column("gap")) == ("1.250 (1.125\u20131.500)", [])
    facts = browser.texts("#about dl")[0]
    assert "Race0 rounds of 10 iterations on nvidia-h200, layout parallel" in facts
    assert "Not raced yetcost-greedy" in facts
    assert not browser.one("#profiles").is_displayed()
    assert browser.column("failures")[0] == "1 of 4, charged with a penalty"
    assert browser.all("#docs a")[0].get_attribute("href") == (site.parent / "index.html").as_uri()


def test_the_page_opens_on_an_open_suite_and_marks_solved_ones(browser: Browser, example: Any, tmp_path: Path) -> None:
    other, board = example.leaderboards
    first, *others = board.entries
    write_site([other, replace(board, entries=(replace(first, gap=0.5), *others))], tmp_path)
    index = tmp_path / "data/index.js"
    text = index.read_text()
    assert re.findall('"status":"([a-z]+)"', text) == ["undecided", "open"]
    index.write_text(text.replace("undecided", "solved"))
    browser.open(tmp_path)
    assert (browser.chosen("suite"), browser.texts("#about .badge")) == (["simulated/mixdim-8"], ["open"])
    assert browser.each("#suite optgroup", "e.label") == ["Open suites", "Solved suites"]
    browser.pick("suite", "simulated/dlrm-20x4")
    assert browser.texts("#about .badge") == ["solved"]


def test_the_page_opens_on_the_first_open_suite_of_any_track(browser: Browser, example: Any, tmp_path: Path) -> None:
    """A track without one opens on one that is undecided."""
    solved, board = example.leaderboards
    first, *others = board.entries
    far = replace(board, track="sharding", entries=(replace(first, gap=0.5), *others))
    write_site([solved, board, far], tmp_path)
    index = tmp_path / "data/index.js"
    text = index.read_text()
    assert re.findall('"status":"([a-z]+)"', text) == ["undecided", "undecided", "open"]
    index.write_text(text.replace("undecided", "solved", 1))
    browser.open(tmp_path)
    assert (browser.chosen("suite"), browser.texts("#about .badge")) == (["sharding/mixdim-8"], ["open"])
    assert browser.each("#tracks a", "e.getAttribute('href')")[0] == "#suite=simulated/mixdim-8"


def test_the_address_brings_a_choice_back(browser: Browser, site: Path) -> None:
    browser.open(site)
    browser.pick("task", "2")
    browser.pick("left", "random")
    address = browser.driver.current_url
    browser.open(site, address[address.index("#") :])
    assert browser.chosen("task", "left", "right") == ["2", "random", "lookup-greedy"]
    browser.open(site, "#suite=none&task=99&left=<b>&right=constructor")
    assert browser.chosen("suite", "task", "left") == ["simulated/dlrm-20x4", "0", "cost-greedy"]


def test_the_charts_show_every_entry(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    places = dict(browser.each("#scores .shape", "[e.dataset.entry, e.transform.baseVal[0].matrix.e]"))
    entries = example.values["simulated/dlrm-20x4/ranking"]
    assert set(places) == {entry["id"] for entry in entries}
    across = [places[entry["id"]] for entry in entries]
    steps = np.diff(across) / np.diff(np.log([entry["planning_ms"] for entry in entries]))
    assert steps == pytest.approx(steps[0], rel=1e-6)
    profile = example.values["index"]["profile"]
    assert len(browser.all("#profile .line")) == len(profile["lines"]) == 3
    means = [line["iqm"] for line in profile["lines"]]
    assert browser.numbers("#profile tbody td:nth-child(2)") == pytest.approx(means, rel=5e-4)


def test_leaderboards_without_entries_say_so(browser: Browser, example: Any, tmp_path: Path) -> None:
    write_site([replace(example.leaderboards[0], entries=())], tmp_path / "one")
    browser.open(tmp_path / "one")
    assert browser.texts("#table") == ["No entry of this suite is ranked yet."]
    assert not browser.one("#explorer").is_displayed()
    write_site([], tmp_path / "none")
    browser.open(tmp_path / "none")
    assert browser.texts("#about") == ["There are no leaderboards yet."]


def costs(example: Any, agent: str) -> list[float]:
    """Of the tasks of the first suite."""
    return list(example.values[f"simulated/dlrm-20x4/entries/{agent}"]["scores"])


def test_steps_through_the_tasks(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    assert browser.one("#previous").get_property("disabled")
    for task in range(4):
        if task:
            browser.redrawn(browser.one("#next").click)
        expected = [costs(example, agent)[task] for agent in ("cost-greedy", "lookup-greedy")]
        assert browser.numbers("#panels .cost strong") == pytest.approx(expected, rel=5e-4)
        assert browser.chosen("task") == [str(task)]
    assert browser.one("#next").get_property("disabled")
    browser.pick("right", "best known")
    best = example.values["simulated/dlrm-20x4/best"]["scores"][3]
    assert browser.numbers("#panels .cost strong")[1] == pytest.approx(best, rel=5e-4)
    assert browser.texts("#panels .panel > .quiet") == ["Best of three agents."]


def test_devices_have_their_phases_memory_and_tables(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=3&left=random")
    task = example.values["simulated/dlrm-20x4/tasks"][3]
    sheet = example.values["simulated/dlrm-20x4/entries/random"]["sheets"][3]
    panel = "#panels .panel:first-child"
    rows = browser.each(f"{panel} .devices tbody tr", "[...e.cells].slice(1).map(c => c.textContent)")
    for device, (row, button) in enumerate(zip(rows, browser.all(f"{panel} .device"), strict=True)):
        assert [browser.number(cell) for cell in row[:4]] == pytest.approx(sheet["phases_ms"][device], rel=5e-4)
        assert ["slowest" in cell for cell in row[:4]] == [device in critical for critical in sheet["critical"]]
        mib = browser.number(row[4]) * (1024 if "GiB" in row[4] else 1)
        assert mib == pytest.approx(sheet["memory_mib"][device], rel=5e-3)
        button.send_keys("\ue007")
        assert browser.texts(f"{panel} .device[aria-pressed='true']") == [f"Tables of device {device}"]
        tables = [table for table, where in enumerate(sheet["placement"]) if where == device]
        tables.sort(key=lambda table: (-task["costs_ms"][table], table))
        assert browser.texts(f"{panel} .scroller:last-child tbody th") == [task["tables"][table] for table in tables]
        assert int(row[6]) == len(tables)


def test_two_entries_stand_side_by_side_on_one_scale(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    browser.redrawn(browser.one("tr[data-entry='random'] .explore").click)
    agents = ["random", "cost-greedy"]  # the entry of the ranking comes to the left
    assert browser.texts("#panels h3 bdi") == agents
    assert browser.driver.switch_to.active_element.get_attribute("id") == "explorer"
    zero = min(browser.each(".timeline .rule", "e.x1.baseVal.value"))
    widths = [end - zero for end in browser.each(".timeline .end", "e.x1.baseVal.value")]
    first = [costs(example, agent)[0] for agent in agents]
    assert widths[0] / widths[1] == pytest.approx(first[0] / first[1], rel=1e-3)
    (end,) = {text for text in browser.texts(".timeline text") if text.endswith(" ms")}
    assert browser.number(end) == pytest.approx(max(first), rel=5e-3)


def test_a_failed_task_says_so(browser: Browser, site: Path) -> None:
    browser.open(site, "#suite=measured/dlrm-20x4/races/nvidia-h200&task=1")
    (notice,) = browser.texts("#panels .notice")
    assert "no valid placement" in notice
    assert "Best known" not in browser.texts("#right option")
    browser.pick("task", "0")
    assert browser.texts("#panels .notice") == []
    assert "(estimate)" in browser.texts("#panels .cost")[0]


def test_a_missing_file_is_said_in_the_page(browser: Browser, example: Any, tmp_path: Path, request: Any) -> None:
    request.node.expected_complaint = "ERR_FILE_NOT_FOUND"
    write_site(example.leaderboards, tmp_path)
    browser.open(tmp_path)
    (tmp_path / "data/simulated/dlrm-20x4/entries/random.js").unlink()
    browser.one("tr[data-entry='random'] .explore").click()
    browser.until(lambda: browser.one("#problem").is_displayed())
    assert "entries/random.js could not be loaded" in browser.one("#problem").text


def test_replanning_is_a_track_like_the_others(browser: Browser, site: Path, example: Any) -> None:
    browser.open(site)
    browser.redrawn(browser.all("#tracks a")[2].click)
    assert browser.texts("#suite option") == [board.suite for board in example.boards]
    board = example.boards[0]
    entries = [each.verified for each in board.entries]
    assert browser.order() == [entry.folder.slug for entry in entries]
    excess = [100 * each.gap for each in board.entries]
    assert browser.numbers("#table td.score") == pytest.approx(excess, abs=5e-3)
    assert browser.texts("#table .group strong") == ["replayed"]
    browser.pick("task", "7")
    first, second = entries[:2]
    for entry, panel in ((first, "#panels .panel:first-child"), (second, "#panels .panel:last-child")):
        answer, hours = "".join(map(str, entry.answers[0][7])), entry.costs_ms[0, 7] / 3.6e6
        plans, repairs = (int(entry.facts[key][0, 7]) for key in ("plans", "repairs"))
        kinds = browser.each(f"{panel} .calendar rect", "(e.getAttribute('class').match(/p(\\d)/) ?? [0, -1])[1]")
        assert "".join(str(int(kind) + 1) for kind in kinds) == answer
        assert browser.number(browser.texts(f"{panel} strong")[0]) == pytest.approx(hours, abs=5e-4)
        assert f"Plans{plans}of which repairs{repairs}" in browser.texts(f"{panel} .facts")[0]
    assert browser.number(browser.texts("#task-facts dd")[0]) == pytest.approx(board.best.costs_ms[7] / 3.6e6, abs=5e-4)
