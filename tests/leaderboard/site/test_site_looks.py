"""The page in a browser: narrow and wide, dark and light, on paper, for all who read it; and hostile text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cli import main
from shard_gym.leaderboard.ranking import RankedEntry
from shard_gym.leaderboard.site import write_site
from shard_gym.suites import suite_names

Browser = Any
"""The fixture `browser` of conftest.py."""

LEADERBOARDS = Path(__file__).parents[3] / "leaderboards"

SIDEWAYS = "const e = document.documentElement; return e.scrollWidth > e.clientWidth"


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("suite", ["simulated/dlrm-20x4", "simulated/mixdim-8"])
def test_the_page_never_scrolls_sideways(browser: Browser, site: Path, suite: str, width: int) -> None:
    browser.open(site, f"#suite={suite}", width=width)
    assert not browser.run(SIDEWAYS)
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
    shown = [each for each in controls if each.is_displayed()]
    assert len(shown) > 30
    assert [each.get_attribute("outerHTML")[:90] for each in shown if not each.accessible_name.strip()] == []
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


HOSTILE = (
    '<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>',
    "</script></title><svg onload='window.broken = 1'>",
    "\u202etxet desrever \u0000 &lt;b&gt; " + "W" * 300,
)


def with_text(ranked: RankedEntry, text: str) -> RankedEntry:
    """The entry with `text` in all fields that may hold one."""
    entry = ranked.verified.entry
    parts = {
        "agent": entry.agent.model_copy(update={"name": text}),
        "hardware": entry.hardware.model_copy(update={"machine": text}),
        "training": entry.training.model_copy(update={"data": [text]}),
        "made_with": entry.made_with.model_copy(update={"shard_gym": text}),
    }
    link = "javascript:window.broken = 1"
    changed = entry.model_copy(update={**parts, "name": text, "licence": text, "authors": [text], "link": link})
    return replace(ranked, verified=replace(ranked.verified, entry=changed))


def test_hostile_names_are_shown_and_nothing_else(browser: Browser, example: Any, tmp_path: Path) -> None:
    leaderboards = [
        replace(each, hardware=HOSTILE[1], entries=tuple(map(with_text, each.entries, HOSTILE)))
        for each in example.leaderboards[:1]
    ]
    write_site(leaderboards, tmp_path)
    browser.open(tmp_path, width=360)
    assert browser.texts("#table tbody th bdi:first-child")[::2] == list(HOSTILE)
    assert browser.texts("#panels h3 bdi") == list(HOSTILE[:2])
    assert len(browser.all("#profile .line")) == 3
    assert browser.all("main img, main script, main a[href^='javascript']") == []
    assert browser.run("return window.broken === undefined")
    assert not browser.run(SIDEWAYS)
    for button in browser.all("#table thead button"):
        browser.run("arguments[0].click()", button)
    assert len(browser.order()) == 3


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
    request.node.expected_complaint = "blocked"


def test_the_page_of_the_repository_shows_every_suite(browser: Browser, tmp_path: Path) -> None:
    """With two of the entries of each; every fourth suite is opened. test_committed.py verifies all entries."""
    root, out = tmp_path / "leaderboards", tmp_path / "out"
    shutil.copytree(LEADERBOARDS / "measured", root / "measured")
    for suite in (LEADERBOARDS / "simulated").iterdir():
        for entry in ("lookup-greedy", "random"):
            shutil.copytree(suite / entry, root / "simulated" / suite.name / entry)
    assert main(["leaderboard", "site", "--root", str(root), "--out", str(out)]) == 0
    browser.open(out)
    suites = browser.texts("#suite option")
    assert suites == [name for name in suite_names() if (LEADERBOARDS / "simulated" / name).is_dir()]
    for suite in suites[::4]:
        if browser.chosen("suite") != f"simulated/{suite}":
            browser.pick("suite", f"simulated/{suite}")
        folders = {folder.name for folder in (root / "simulated" / suite).iterdir()}
        assert len(folders) == 2
        assert set(browser.order()) == folders
