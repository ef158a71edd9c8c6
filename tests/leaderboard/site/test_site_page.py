"""The page in a real browser, opened from the disk."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.explain import explain
from shard_gym.leaderboard.site import write_site

Browser = Any
"""The fixture `browser` of conftest.py."""

HOSTILE = (
    '<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>',
    "</script></title><svg onload='window.broken = 1'>",
    "\u202etxet desrever \u0000 &lt;b&gt; " + "W" * 300,
)


@pytest.fixture(scope="module")
def site(boards: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two suites as they are, and a measured one with a failure and missing numbers."""
    out = tmp_path_factory.mktemp("site")
    data = copy.deepcopy(boards.data)
    measured = copy.deepcopy(data["suites"][0])
    measured |= {"track": "measured", "hardware": "NVIDIA H200"}
    measured["entries"][0] |= {"gap": None, "planning_ms": None, "failures": 1, "improvement_over_next": None}
    measured["entries"][0]["placements"][1] = None
    data["suites"].append(measured)
    write_site(data, out, boards.load)
    return out


@pytest.fixture(autouse=True)
def _nothing_is_complained_of_or_asked_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        browser = request.getfixturevalue("browser")
        expected = getattr(request.node, "expected_complaint", None)
        complaints = [each for each in browser.complaints() if not (expected and expected in each)]
        assert complaints == []
        assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "about:"))] == []


def column(browser: Browser, key: str) -> list[str]:
    return browser.texts(f"#table tbody .{key}")


def order(browser: Browser) -> list[str]:
    return list(browser.run("return [...document.querySelectorAll('#table tbody tr')].map(r => r.dataset.entry)"))


def sorts(browser: Browser) -> dict[str, str]:
    heads = browser.all("#table thead th[aria-sort]")
    return {str(head.get_attribute("data-key")): str(head.get_attribute("aria-sort")) for head in heads}


def digits(text: str) -> float:
    match = re.search(r"-?[\d,]+(\.\d+)?", text)
    assert match is not None, text
    return float(match[0].replace(",", ""))


def evaluation(boards: Any, suite: str, agent: str) -> Any:
    (found,) = [each for each in boards.evaluations[suite] if each.agent == agent]
    return found


def test_the_ranking_shows_what_was_evaluated(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site)
    entries = boards.data["suites"][0]["entries"]
    assert order(browser) == [entry["id"] for entry in entries]
    for entry, cost, interval, gap in zip(
        entries, column(browser, "cost"), column(browser, "interval"), column(browser, "gap"), strict=True
    ):
        assert digits(cost) == pytest.approx(entry["mean_cost_ms"], rel=5e-4)
        low, high = map(digits, interval.split("\u2013"))
        assert (low, high) == pytest.approx(tuple(entry["interval_ms"]), rel=5e-4)
        assert digits(gap.replace("+", "")) == pytest.approx(100 * entry["gap"], abs=0.06)
    assert column(browser, "failures") == ["0", "0", "0"]
    assert [text.endswith("*") for text in column(browser, "planning")] == [False, True, False]


def test_a_click_sorts_and_a_second_one_turns_the_order(browser: Browser, site: Path) -> None:
    browser.open(site)
    assert sorts(browser) == {"rank": "ascending"}
    ranked = order(browser)
    button = browser.one("#table [data-key='planning'] button")
    button.click()
    assert (sorts(browser), order(browser)) == ({"planning": "ascending"}, ranked)
    button.click()
    assert (sorts(browser), order(browser)) == ({"planning": "descending"}, ranked[::-1])
    assert browser.one("#announcement").text == "Sorted by Planning, per task, descending."
    browser.one("#table [data-key='name'] button").click()
    assert (sorts(browser), order(browser)) == ({"name": "ascending"}, sorted(ranked))


@pytest.mark.parametrize("key", ["\ue007", " "], ids=["enter", "space"])
def test_the_keyboard_sorts_and_keeps_its_place(browser: Browser, site: Path, key: str) -> None:
    browser.open(site)
    ranked = order(browser)
    heads = browser.all("#table thead button")
    heads[0].send_keys("\ue004")  # Tab
    active = browser.driver.switch_to.active_element
    assert active == heads[1]
    heads[2].send_keys(key)
    heads[2].send_keys(key)
    assert (sorts(browser), order(browser)) == ({"cost": "descending"}, ranked[::-1])
    assert browser.driver.switch_to.active_element == heads[2]
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.parametrize("name", ["gap", "planning"])
def test_what_is_missing_stands_last_in_both_orders(browser: Browser, site: Path, name: str) -> None:
    browser.open(site, "#suite=measured/nvidia-h200/dlrm-20x4")
    missing = order(browser)[0]
    button = browser.one(f"#table [data-key='{name}'] button")
    for _ in range(2):
        button.click()
        assert order(browser)[-1] == missing
        assert column(browser, name)[-1] == "\u2013"


def test_picking_a_suite_and_a_track(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site)
    browser.pick("suite", "simulated/merlin-tiny-x16")
    assert order(browser) == [entry["id"] for entry in boards.data["suites"][1]["entries"]]
    assert "suite=simulated/merlin-tiny-x16" in browser.driver.current_url
    browser.pick("track", "measured")
    assert browser.texts("#suite option") == ["dlrm-20x4 on NVIDIA H200"]
    assert browser.texts("#profile > p") == ["There is no profile for this track yet."]
    assert column(browser, "failures")[0] == "1 of 4, charged with a penalty"


def test_the_address_brings_a_choice_back(browser: Browser, site: Path) -> None:
    browser.open(site)
    browser.pick("task", "2")
    browser.pick("left", "random")
    address = browser.driver.current_url
    browser.open(site, address[address.index("#") :])
    assert [browser.chosen(name) for name in ("task", "left", "right")] == ["2", "random", "lookup-greedy"]
    browser.open(site, "#suite=none&task=99&left=<b>&right=constructor")
    assert [browser.chosen(name) for name in ("suite", "task", "left")] == ["simulated/dlrm-20x4", "0", "cost-greedy"]


def test_picking_a_task_shows_its_placements(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site)
    assert browser.one("#previous").get_property("disabled")
    for task in range(4):
        for panel, agent in zip(browser.texts("#panels .cost strong"), ("cost-greedy", "lookup-greedy"), strict=True):
            assert digits(panel) == pytest.approx(evaluation(boards, "dlrm-20x4", agent).costs_ms[task], rel=5e-4)
        assert browser.chosen("task") == str(task)
        if task < 3:
            before = browser.all("#panels .panel")
            browser.one("#next").click()
            browser.until(lambda before=before: browser.all("#panels .panel") != before)
    assert browser.one("#next").get_property("disabled")
    browser.pick("task", "1")
    panel = browser.texts("#panels .cost strong")[0]
    assert digits(panel) == pytest.approx(evaluation(boards, "dlrm-20x4", "cost-greedy").costs_ms[1], rel=5e-4)


def test_phases_memory_and_critical_devices_are_those_of_the_cost_model(
    browser: Browser, site: Path, boards: Any
) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=3&left=random")
    task = boards.load("dlrm-20x4")[3]
    placement = evaluation(boards, "dlrm-20x4", "random").tasks[3].placement
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


def test_a_device_lists_its_tables_the_costliest_first(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site, "#suite=simulated/dlrm-20x4&task=0&left=random")
    task = boards.load("dlrm-20x4")[0]
    exact = explain(task, evaluation(boards, "dlrm-20x4", "random").tasks[0].placement, make_cost_model("analytical"))
    panel = "#panels .panel:first-child"
    for device, button in enumerate(browser.all(f"{panel} .device")):
        button.send_keys("\ue007")
        assert button.get_attribute("aria-pressed") == "true"
        assert len(browser.all(f"{panel} .device[aria-pressed='true']")) == 1
        names = browser.texts(f"{panel} .scroller:last-child tbody th")
        assert names == [task.tables.names[table] for table in exact.tables_on(device)]
        costs = [digits(text) for text in browser.texts(f"{panel} .scroller:last-child tbody td:nth-child(2)")]
        assert costs == pytest.approx(exact.single_table_ms[exact.tables_on(device)].tolist(), rel=5e-4)


def test_two_entries_stand_side_by_side_on_one_scale(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site)
    browser.pick("left", "random")
    browser.pick("right", "cost-greedy")
    assert browser.texts("#panels h3 bdi") == ["random", "cost-greedy"]
    costs = [evaluation(boards, "dlrm-20x4", agent).costs_ms[0] for agent in ("random", "cost-greedy")]
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
    browser.open(site, "#suite=measured/nvidia-h200/dlrm-20x4&task=1")
    (notice,) = browser.texts("#panels .notice")
    assert "no valid placement" in notice
    browser.pick("task", "0")
    assert browser.texts("#panels .notice") == []
    assert "(estimate)" in browser.texts("#panels .cost")[0]


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("suite", ["simulated/dlrm-20x4", "simulated/merlin-tiny-x16"])
def test_the_page_never_scrolls_sideways(browser: Browser, site: Path, suite: str, width: int) -> None:
    browser.open(site, f"#suite={suite}", width=width)
    assert browser.run("return document.documentElement.scrollWidth") == width
    wide = (
        "return document.querySelector('#table .scroller').scrollWidth > document.querySelector('#table').clientWidth"
    )
    assert browser.run(wide) or width > 800
    beyond = (
        "return [...document.querySelectorAll('main *')].filter(e => !e.closest('.scroller, .hidden, select') "
        "&& e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert browser.run(beyond) == []


LUMINANCE = """
const channels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const luminance = (color) => { const [r, g, b] = channels(color); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = (e) => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; } };
return [...document.querySelectorAll('h1, p, dt, dd, th, td, a, small, button:enabled, select, svg text')]
  .filter(e => e.getClientRects().length && e.textContent.trim()).map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [luminance(e.namespaceURI.endsWith('svg') ? style.fill : style.color), luminance(paper(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 90)]; });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(browser: Browser, site: Path, scheme: str) -> None:
    browser.open(site, scheme=scheme)
    background = browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    contrasts = browser.run(LUMINANCE)
    assert len(contrasts) > 100
    assert [each for each in contrasts if each[0] < 4.5] == []


def test_the_button_turns_dark_on_and_off_and_is_remembered(browser: Browser, site: Path) -> None:
    browser.open(site, scheme="light")
    theme = "return document.documentElement.dataset.theme"
    assert browser.run(theme) == "light"
    browser.one("#theme").click()
    assert (browser.run(theme), browser.one("#theme").get_attribute("aria-pressed")) == ("dark", "true")
    browser.driver.refresh()
    browser.until(lambda: browser.all("#panels .panel"))
    assert browser.run(theme) == "dark"
    browser.one("#theme").click()
    assert browser.run(theme) == "light"
    browser.run("localStorage.clear()")


def test_every_control_has_a_name(browser: Browser, site: Path) -> None:
    browser.open(site)
    controls = browser.all("select, button, a[href], form, [role=region], [role=img], section")
    assert len(controls) > 30
    assert [each.get_attribute("outerHTML")[:90] for each in controls if not each.accessible_name.strip()] == []
    assert len({heading.tag_name for heading in browser.all("h1")}) == 1


def test_motion_only_where_it_is_wanted(browser: Browser, site: Path) -> None:
    behaviour = "return getComputedStyle(document.documentElement).scrollBehavior"
    browser.open(site, prefers_reduced_motion="reduce")
    assert browser.run(behaviour) == "auto"
    browser.open(site, prefers_reduced_motion="no-preference")
    assert browser.run(behaviour) == "smooth"


def test_paper_shows_no_buttons_and_cuts_nothing_off(browser: Browser, site: Path) -> None:
    browser.open(site, scheme="dark")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = (
        "return [...document.querySelectorAll('#theme, .explore, #next')].filter(e => e.getClientRects().length).length"
    )
    assert browser.run(shown) == 0
    assert browser.run("return getComputedStyle(document.querySelector('#table .scroller')).overflowX") == "visible"
    assert browser.run("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_hostile_names_are_shown_and_nothing_else(browser: Browser, boards: Any, tmp_path: Path) -> None:
    data = copy.deepcopy(boards.data)
    fields = ("name", "licence", "agent", "hardware", "training_data", "shard_gym")
    for entry, name in zip(data["suites"][0]["entries"], HOSTILE, strict=True):
        entry.update(dict.fromkeys(fields, name), authors=[name], link="javascript:window.broken = 1")
    data["suites"][0] |= {"description": HOSTILE[0], "hardware": HOSTILE[1]}
    data["profiles"][0]["lines"][0]["name"] = HOSTILE[0]
    data["profiles"][0]["about"] = HOSTILE[1]
    write_site(data, tmp_path, boards.load)
    browser.open(tmp_path, width=360)
    assert browser.texts("#table tbody th bdi:first-child")[::2] == list(HOSTILE)
    assert browser.texts("#panels h3 bdi") == list(HOSTILE[:2])
    assert browser.all("main img, main script, main a[href^='javascript']") == []
    assert browser.run("return window.broken === undefined")
    assert browser.run("return document.documentElement.scrollWidth") == 360
    for button in browser.all("#table thead button"):
        browser.run("arguments[0].click()", button)
    assert len(order(browser)) == 3


@pytest.mark.parametrize(
    "attempt",
    [
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').src = 'data/index.js'",
        "trustedTypes.createPolicy('another', {})",
    ],
)
def test_the_policy_lets_no_text_become_html_or_script(
    browser: Browser, site: Path, attempt: str, request: pytest.FixtureRequest
) -> None:
    browser.open(site)
    refused = "try { %s; return false; } catch (error) { return error instanceof TypeError; }"
    assert browser.run(refused % attempt)
    request.node.expected_complaint = "Content Security Policy" if "create" in attempt else "TrustedHTML"


def test_a_missing_file_is_said_in_the_page(
    browser: Browser, boards: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.node.expected_complaint = "ERR_FILE_NOT_FOUND"
    write_site(boards.data, tmp_path, boards.load)
    (tmp_path / "data/simulated/dlrm-20x4/entries/random.js").unlink()
    browser.open(tmp_path)
    browser.select("left", "random")
    browser.until(lambda: browser.one("#problem").is_displayed())
    assert "entries/random.js could not be loaded" in browser.one("#problem").text


def test_leaderboards_without_entries_say_so(browser: Browser, boards: Any, tmp_path: Path) -> None:
    data = copy.deepcopy(boards.data)
    data["suites"][0]["entries"] = []
    write_site(data, tmp_path / "one", boards.load)
    browser.open(tmp_path / "one")
    assert browser.texts("#table") == ["There is no entry for this suite yet."]
    assert not browser.one("#explorer").is_displayed()
    write_site({"suites": [], "profiles": []}, tmp_path / "none")
    browser.open(tmp_path / "none")
    assert browser.texts("#about") == ["There are no leaderboards yet."]


def test_the_charts_show_every_entry(browser: Browser, site: Path, boards: Any) -> None:
    browser.open(site)
    entries = boards.data["suites"][0]["entries"]
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
    for row, line in zip(rows, boards.data["profiles"][0]["lines"], strict=True):
        assert row[0] == line["name"]
        assert row[-1] == str(line["tasks"]) == "8"
        assert digits(row[1]) == pytest.approx(100 * line["shares"][0], abs=0.5)
        assert digits(row[-2]) == pytest.approx(100 * line["shares"][-1], abs=0.5)
