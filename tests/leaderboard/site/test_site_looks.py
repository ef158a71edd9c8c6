"""The page in a browser: narrow and wide, dark and light; its controls, and hostile text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shard_gym.leaderboard import RankedEntry, write_site

Browser = Any
"""The fixture `browser` of conftest.py."""

SIDEWAYS = "const e = document.documentElement; return e.scrollWidth > e.clientWidth"


@pytest.mark.parametrize("suite", ["simulated/mixdim-8", "measured/dlrm-20x4/races/nvidia-h200", "replanning/spot-600"])
def test_the_page_never_scrolls_sideways(browser: Browser, site: Path, suite: str) -> None:
    """In a narrow window, and when it is made wider."""
    browser.open(site, f"#suite={suite}", width=390)
    for width in (390, 800, 1300):
        browser.resize(width)
        is_within(browser, width)


def is_within(browser: Browser, width: int) -> None:
    assert not browser.run(SIDEWAYS)
    cut_off = "const e = document.querySelector('#table .scroller'); return e.scrollWidth > e.clientWidth"
    assert browser.run(cut_off) == (width < 1300)
    beyond = (
        "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroller, .hidden, .skip, select') "
        "&& e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert browser.run(beyond) == []
    score = browser.one("#table tbody tr[data-entry]:nth-child(2) .score, #table tbody tr:first-child .score").rect
    assert score["x"] + score["width"] < width, "The score is in sight without scrolling."


LUMINANCE = """
const channels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const luminance = (color) => { const [r, g, b] = channels(color); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = (e) => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; } };
return [...document.querySelectorAll('h1, p, dt, dd, th, td, a, small, .badge, button:enabled, select, svg text')]
  .filter(e => e.getClientRects().length && e.textContent.trim()).map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [luminance(e.namespaceURI.endsWith('svg') ? style.fill : style.color), luminance(paper(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 90)]; });
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(browser: Browser, site: Path, scheme: str) -> None:
    browser.open(site, scheme=scheme)
    assert browser.each("html", "getComputedStyle(e).colorScheme") == [scheme]
    contrasts = browser.run(LUMINANCE)
    assert len(contrasts) > 100
    assert [each for each in contrasts if each[0] < 4.5] == []


def test_the_button_turns_dark_on_and_off_and_is_remembered(browser: Browser, site: Path) -> None:
    browser.open(site, scheme="light")
    for theme, pressed in (("dark", "true"), ("light", "false")):
        browser.one("#theme").click()
        browser.driver.refresh()
        browser.until(lambda: browser.all("#panels .panel"))
        assert browser.each("html", "e.dataset.theme") == [theme]
        assert browser.one("#theme").get_attribute("aria-pressed") == pressed
    browser.run("localStorage.clear()")


def test_every_control_has_a_name(browser: Browser, site: Path) -> None:
    browser.open(site)
    controls = browser.all("select, button, input, a[href], form, [role=region], [role=img], section, nav")
    shown = [each for each in controls if each.is_displayed()]
    assert len(shown) > 30
    assert [each.get_attribute("outerHTML")[:90] for each in shown if not each.accessible_name.strip()] == []


HOSTILE = (
    '<img src=x onerror="window.broken = 1"><script>window.broken = 1</script>',
    "</script></title><svg onload='window.broken = 1'>",
    "\u2028\u202etxet desrever \u0000 &lt;b&gt; " + "W" * 300,
)


def with_text(ranked: RankedEntry, text: str) -> RankedEntry:
    """The entry with `text` in fields that may hold one."""
    entry = ranked.verified.entry
    fields = {"name": text, "licence": text, "authors": [text], "link": "javascript:window.broken = 1"}
    changed = entry.model_copy(update={**fields, "agent": entry.agent.model_copy(update={"name": text})})
    return replace(ranked, verified=replace(ranked.verified, entry=changed))


def test_hostile_names_are_shown_and_nothing_else(browser: Browser, example: Any, tmp_path: Path) -> None:
    board = example.leaderboards[0]
    entries = tuple(map(with_text, board.entries, HOSTILE))
    write_site([replace(board, hardware=HOSTILE[1], entries=entries)], tmp_path)
    browser.open(tmp_path, width=390)
    assert browser.texts("#table .who > div > bdi") == list(HOSTILE)
    assert browser.texts("#panels h3 bdi") == list(HOSTILE[:2])
    browser.one("#all-columns").click()
    assert browser.all("main img, main script, main a[href^='javascript']") == []
    assert browser.run("return window.broken === undefined")
    assert not browser.run(SIDEWAYS)
