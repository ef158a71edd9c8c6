"""Leaderboards of the first tasks of two suites, of a race and of replanning; and a headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard import (
    Entry,
    EntryFolder,
    EntryInfo,
    EvaluatedAgent,
    Leaderboard,
    VerifiedEntry,
    find_entries,
    verify_entry,
    write_site,
)
from shard_gym.leaderboard.entry import ReplayRow
from shard_gym.leaderboard.measured_track import VerifiedRace
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.ranking import make_leaderboard
from shard_gym.leaderboard.scorer import Scorer, load_scorer
from shard_gym.leaderboard.site import site_files
from shard_gym.leaderboard.submission import entry_record
from shard_gym.tasks import TaskSuite, load_suite

LEADERBOARDS = Path(__file__).parents[3] / "leaderboards"
SUITES = ("dlrm-20x4", "mixdim-8")
AGENTS = ("cost-greedy", "lookup-greedy", "random")
TASKS = 4  # of each suite, which keeps the tests fast


def verified(evaluation: Evaluation) -> VerifiedEntry:
    """The entry of an evaluation; the agents declare 0, 1 and 2 queries, and so the leagues differ."""
    folder = EntryFolder(Path(), "simulated", evaluation.suite, evaluation.agent)
    info = EntryInfo(evaluation.agent, ["Ada Example"], "MIT", "https://example.org/agent", "one CPU core", "0" * 40)
    record = entry_record(folder, EvaluatedAgent(evaluation.agent, False, (evaluation,)), info)
    # Measured times would differ between runs of the tests.
    record["planning"] |= {"seconds": 2.5e-3, "queries": float(AGENTS.index(evaluation.agent)), "league": None}
    placements: list[list[Any]] = [[np.array(result.placement) for result in evaluation.tasks]]
    return VerifiedEntry(folder, Entry.model_validate(record), placements, evaluation.costs_ms[None], "0" * 64)


def make_example(evaluations: Sequence[Evaluation]) -> Leaderboard:
    """The leaderboard of evaluations; the second rank has a declared planning time, the others replayed ones."""
    suite = TaskSuite(evaluations[0].suite, load_suite(evaluations[0].suite).tasks[:TASKS], split="test")
    first, _, last = sorted(evaluations, key=lambda evaluation: evaluation.mean_cost_ms)
    replays = {
        verified(each).folder.id: ReplayRow(placements="0" * 64, tasks=1, seconds=seconds, machine="one CPU core")
        for each, seconds in ((first, 0.25e-3), (last, 25e-3))
    }
    leaderboard = make_leaderboard(Scorer(suite), [verified(each) for each in evaluations], replays)
    assert leaderboard.best is not None
    return replace(leaderboard, best=replace(leaderboard.best, effort="best of three agents"))


def replanning_boards() -> list[Leaderboard]:
    """The leaderboards of replanning of this repository, as if all entries had been replayed."""
    row = ReplayRow(placements="0" * 64, tasks=1, seconds=0.25, machine="one CPU core")
    folders = [each for each in find_entries(LEADERBOARDS)[0] if each.track == "replanning"]
    entries = [found for each in folders if (found := verify_entry(each, recompute=False)[0])]
    replays = {each.folder.id: row for each in entries}
    suites = dict.fromkeys(each.folder.suite for each in entries)
    members = {suite: [each for each in entries if each.folder.suite == suite] for suite in suites}
    return [make_leaderboard(load_scorer(suite), found, replays) for suite, found in members.items()]


@pytest.fixture(scope="session")
def example() -> SimpleNamespace:
    """Leaderboards, the evaluations behind them by suite in the order of AGENTS, and the page's values by key."""
    evaluations = {}
    for name in SUITES:
        suite = TaskSuite(name, load_suite(name).tasks[:TASKS], split="test")
        evaluations[name] = [evaluate(make_agent(agent, seed=0), suite) for agent in AGENTS]
    leaderboards = tuple(make_example(found) for found in evaluations.values())
    boards = replanning_boards()
    values = {}
    for path, content in site_files([*leaderboards, *boards]).items():
        if path.startswith("data/"):
            form = r"\(window\.ShardGymData \?\?= \{\}\)\[\"([^\"]+)\"\] = (.*);\n"
            match = re.fullmatch(form, content.decode("ascii"))
            assert match is not None, path
            assert path == f"data/{match[1]}.js"
            values[match[1]] = json.loads(match[2])
    return SimpleNamespace(leaderboards=leaderboards, boards=boards, evaluations=evaluations, values=values)


@pytest.fixture(scope="session")
def measured(example: Any) -> Leaderboard:
    """The leaderboard of a race with a failure, and without the numbers that measured costs do not have."""
    simulated = example.leaderboards[0]
    folder = EntryFolder(Path(), "measured", simulated.suite, "races/nvidia-h200")
    settings = {"layout": "parallel", "batch_size": None, "iterations": 10}
    race = Race(simulated.scorer.suite, "nvidia-h200", "measured", settings, {}, (), np.ones(TASKS))
    entries = [replace(each, gap=None, ratio=1.25, ratio_interval=(1.125, 1.5)) for each in simulated.entries]
    (answers,) = entries[0].verified.answers
    failing = replace(entries[0].verified, answers=[[answers[0], None, *answers[2:]]])
    entries[0] = replace(entries[0], verified=failing, improvement_over_next=None)
    not_raced = (verified(example.evaluations[SUITES[0]][0]),)
    raced = VerifiedRace(folder, race)
    return Leaderboard("measured", race.hardware, simulated.scorer, None, tuple(entries), raced, not_raced)


class Browser:
    """A browser window, with the actions of the tests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, site: Path, fragment: str = "", *, width: int = 1200, scheme: str = "light") -> None:
        """The page of the folder `site`, freshly loaded, in a window of that width in CSS pixels."""
        self.driver.get("about:blank")
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.resize(width)
        # Without motion, because moving elements cannot be clicked.
        media = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get((site / "index.html").as_uri() + fragment)
        self.until(lambda: self.all("#panels .panel") or self.all("#about > .quiet:only-child, #table > .quiet"))

    def resize(self, width: int) -> None:
        """Make the window so many CSS pixels wide."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def until(self, condition: Callable[[], Any]) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 10, poll_frequency=0.03).until(lambda _: condition())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def each(self, selector: str, what: str) -> list[Any]:
        """An expression in JavaScript of each element `e`."""
        return list(self.run(f"return [...document.querySelectorAll(arguments[0])].map(e => {what})", selector))

    def texts(self, selector: str) -> list[str]:
        """The text of each element, hidden words included."""
        return self.each(selector, "e.textContent")

    def number(self, text: str) -> float:
        """The first number of a text."""
        match = re.search(r"-?[\d,]+(\.\d+)?", text)
        assert match is not None, text
        return float(match[0].replace(",", ""))

    def numbers(self, selector: str) -> list[float]:
        """The first number of each element."""
        return list(map(self.number, self.texts(selector)))

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        (element,) = self.all(selector)
        return element

    def order(self) -> list[str]:
        """The ids of the entries in the order of the ranking."""
        return self.each("#table tr[data-entry]", "e.dataset.entry")

    def column(self, key: str) -> list[str]:
        """The cells of a column of the ranking."""
        return self.texts(f"#table tbody tr > .{key}")

    def redrawn(self, act: Callable[[], Any]) -> None:
        """Do something, and wait until the panels are redrawn."""
        before = self.all("#panels .panel")
        act()
        self.until(lambda: self.all("#panels .panel") and self.all("#panels .panel") != before)

    def pick(self, name: str, value: str) -> None:
        """Choose in the select with that id, and wait until the panels are redrawn."""
        from selenium.webdriver.support.ui import Select

        self.redrawn(lambda: Select(self.one(f"#{name}")).select_by_value(value))

    def chosen(self, *names: str) -> list[str]:
        """The values chosen in the selects with those ids."""
        return [str(self.one(f"#{name}").get_property("value")) for name in names]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with an empty profile, closed after the tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="The tests of the page need the package selenium.")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    chromedriver = shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("The tests of the page need Chromium and ChromeDriver (Debian: chromium, chromium-driver).")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for argument in ("--headless", "--disable-gpu", "--no-first-run", profile, *sandbox):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="session")
def site(example: Any, measured: Leaderboard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of all leaderboards, in a folder of the documentation."""
    out = tmp_path_factory.mktemp("docs") / "leaderboard"
    (out.parent / "leaderboards.html").touch()
    write_site([*example.leaderboards, measured, replace(measured, entries=(), race=None), *example.boards], out)
    return out


@pytest.fixture(autouse=True)
def _no_errors_and_no_requests_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        driver = request.getfixturevalue("browser").driver
        expected = getattr(request.node, "expected_complaint", None)
        complaints = [entry["message"] for entry in driver.get_log("browser")]
        assert [each for each in complaints if not (expected and expected in each)] == []
        messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        assert [url for url in sent if not url.startswith(("file:", "data:", "about:"))] == []
