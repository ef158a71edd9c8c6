"""Leaderboards of the first tasks of two suites, with real evaluations; and a headless Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard.evaluations import EvaluatedAgent
from shard_gym.leaderboard.measured_track import VerifiedRace
from shard_gym.leaderboard.race import Race
from shard_gym.leaderboard.ranking import Leaderboard, make_leaderboard
from shard_gym.leaderboard.schema import Entry, ReplayRow
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.leaderboard.site import site_files, write_site
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.submit import EntryInfo, entry_record
from shard_gym.leaderboard.verify import VerifiedEntry
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

SUITES = ("dlrm-20x4", "mixdim-8")
AGENTS = ("cost-greedy", "lookup-greedy", "random")
TASKS = 4
"""Of each suite, which keeps the tests fast."""


def first_tasks(name: str) -> TaskSuite:
    """The first test tasks of a named suite, as a suite."""
    return TaskSuite(name, load_suite(name).tasks[:TASKS], split="test")


def verified(evaluation: Evaluation) -> VerifiedEntry:
    """The entry of an evaluation."""
    folder = EntryFolder(Path(), "simulated", evaluation.suite, evaluation.agent)
    info = EntryInfo(evaluation.agent, ["Ada Example"], "MIT", "https://example.org/agent", "one CPU core", "0" * 40)
    record = entry_record(folder, EvaluatedAgent(evaluation.agent, False, (evaluation,)), info)
    # Measured times would differ between runs of the tests.
    record["planning"] |= {"seconds": 2.5e-3, "queries": float(AGENTS.index(evaluation.agent)), "league": None}
    placements = [[np.array(result.placement) for result in evaluation.tasks]]
    return VerifiedEntry(folder, Entry.model_validate(record), placements, evaluation.costs_ms[None], "0" * 64)


def make_example(evaluations: Sequence[Evaluation]) -> Leaderboard:
    """The leaderboard of evaluations; the second rank has a declared planning time, the others replayed ones."""
    suite = first_tasks(evaluations[0].suite)
    ranked = sorted(evaluations, key=lambda evaluation: evaluation.mean_cost_ms)
    replays = {
        verified(each).folder.id: ReplayRow(placements="0" * 64, tasks=1, seconds=seconds, machine="one CPU core")
        for each, seconds in zip(ranked, (0.25e-3, None, 25e-3), strict=True)
        if seconds is not None
    }
    leaderboard = make_leaderboard(Scorer(suite), [verified(each) for each in evaluations], replays)
    assert leaderboard.best is not None
    return replace(leaderboard, best=replace(leaderboard.best, effort="best of three agents"))


def parsed(files: dict[str, bytes]) -> dict[str, Any]:
    """The values of the data files by their keys."""
    values = {}
    for path, content in files.items():
        if path.startswith("data/"):
            match = re.fullmatch(
                r"\(window\.ShardGymData \?\?= \{\}\)\[(\"[^\"]+\")\] = (.*);\n", content.decode("ascii")
            )
            assert match is not None, path
            key = json.loads(match[1])
            assert path == f"data/{key}.js"
            values[key] = json.loads(match[2])
    return values


@dataclass(frozen=True)
class Example:
    """Leaderboards, the evaluations behind them by suite in the order of AGENTS, and the values of their page."""

    leaderboards: tuple[Leaderboard, ...]
    evaluations: dict[str, list[Evaluation]]
    values: dict[str, Any]

    def evaluation(self, suite: str, agent: str) -> Evaluation:
        """That of the agent on the suite."""
        return self.evaluations[suite][AGENTS.index(agent)]

    def suite(self, name: str) -> TaskSuite:
        """The tasks of a suite that were evaluated."""
        return first_tasks(name)

    def ranking(self, suite: str) -> list[dict[str, Any]]:
        """The rows of the ranking of a suite."""
        return list(self.values[f"simulated/{suite}/ranking"])


@pytest.fixture(scope="session")
def values_of() -> Callable[[Sequence[Leaderboard]], dict[str, Any]]:
    """Gives the values of the page of leaderboards."""
    return lambda leaderboards: parsed(site_files(leaderboards))


@pytest.fixture(scope="session")
def example() -> Example:
    evaluations = {
        name: [evaluate(make_agent(agent, seed=0), first_tasks(name)) for agent in AGENTS] for name in SUITES
    }
    leaderboards = tuple(make_example(found) for found in evaluations.values())
    return Example(leaderboards, evaluations, parsed(site_files(leaderboards)))


def with_first(
    leaderboard: Leaderboard, change: Callable[[VerifiedEntry], VerifiedEntry], **scores: Any
) -> Leaderboard:
    """The leaderboard with its first entry changed."""
    first, *others = leaderboard.entries
    return replace(leaderboard, entries=(replace(first, verified=change(first.verified), **scores), *others))


def fail_task(entry: VerifiedEntry) -> VerifiedEntry:
    """The entry without a placement of the task 1."""
    (placements,) = entry.answers
    return replace(entry, answers=[[placements[0], None, *placements[2:]]])


@pytest.fixture(scope="session")
def measured(example: Example) -> Leaderboard:
    """The leaderboard of a race with a failure, and without the numbers that measured costs do not have."""
    simulated = example.leaderboards[0]
    folder = EntryFolder(Path(), "measured", simulated.suite, "races/nvidia-h200")
    settings = {"layout": "parallel", "batch_size": None, "iterations": 10}
    race = Race(simulated.scorer.suite, "nvidia-h200", "measured", settings, {}, (), np.ones(TASKS))
    raced = replace(
        simulated,
        track="measured",
        hardware=race.hardware,
        best=None,
        entries=tuple(replace(each, gap=None, ratio=1.25, ratio_interval=(1.125, 1.5)) for each in simulated.entries),
        race=VerifiedRace(folder, race),
        not_raced=(verified(example.evaluation(SUITES[0], AGENTS[0])),),
    )
    return with_first(raced, fail_task, improvement_over_next=None)


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")

QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Browser:
    """A browser window, with the actions of the tests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, site: Path, fragment: str = "", *, width: int = 1200, scheme: str = "light", **media: str) -> None:
        """The page of the folder `site`, freshly loaded, in a window of that width in CSS pixels."""
        self.driver.get("about:blank")
        self.logs("browser"), self.logs("performance")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # Without motion, because moving elements cannot be clicked.
        still = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = {**still, **{name.replace("_", "-"): value for name, value in media.items()}}
        given = [{"name": name, "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})
        self.driver.get((site / "index.html").as_uri() + fragment)
        self.until(lambda: self.all("#panels .panel") or self.all("#about .quiet") or self.all("#table .quiet"))

    def until(self, condition: Callable[[], Any]) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 10, poll_frequency=0.03).until(lambda _: condition())

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        (element,) = self.all(selector)
        return element

    def texts(self, selector: str) -> list[str]:
        """The text of each element, hidden words included."""
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector))

    def order(self) -> list[str]:
        """The ids of the entries in the order of the ranking."""
        return list(self.run("return [...document.querySelectorAll('#table tbody tr')].map(r => r.dataset.entry)"))

    def column(self, key: str) -> list[str]:
        """The cells of a column of the ranking."""
        return self.texts(f"#table tbody tr > .{key}")

    def pick(self, name: str, value: str) -> None:
        """Choose in the select with that id, and wait until the panels are redrawn."""
        before = self.all("#panels .panel")
        self.select(name, value)
        self.until(lambda: self.all("#panels .panel") and self.all("#panels .panel") != before)

    def select(self, name: str, value: str) -> None:
        """Choose in the select with that id."""
        from selenium.webdriver.support.ui import Select

        Select(self.one(f"#{name}")).select_by_value(value)

    def chosen(self, name: str) -> str:
        """The value chosen in the select with that id."""
        return str(self.one(f"#{name}").get_property("value"))

    def logs(self, kind: str) -> list[dict[str, Any]]:
        return list(self.driver.get_log(kind))

    def complaints(self) -> list[str]:
        """The messages in the console since the page was opened."""
        return [entry["message"] for entry in self.logs("browser")]

    def requests(self) -> list[str]:
        """The addresses requested since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with an empty profile, closed after the tests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="The tests of the page need the package selenium.")
    if not (CHROMIUM and DRIVER):
        pytest.skip("The tests of the page need Chromium and ChromeDriver (Debian: chromium, chromium-driver).")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for argument in (*QUIET, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="session")
def site(example: Example, measured: Leaderboard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two simulated leaderboards and a measured one."""
    out = tmp_path_factory.mktemp("site")
    write_site([*example.leaderboards, measured], out)
    return out


@pytest.fixture(autouse=True)
def _no_errors_and_no_requests_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "browser" in request.fixturenames:
        browser = request.getfixturevalue("browser")
        expected = getattr(request.node, "expected_complaint", None)
        complaints = [each for each in browser.complaints() if not (expected and expected in each)]
        assert complaints == []
        assert [url for url in browser.requests() if not url.startswith(("file:", "data:", "about:"))] == []


@pytest.fixture(scope="session")
def digits() -> Callable[[str], float]:
    """Reads the first number of a text."""

    def read(text: str) -> float:
        match = re.search(r"-?[\d,]+(\.\d+)?", text)
        assert match is not None, text
        return float(match[0].replace(",", ""))

    return read
