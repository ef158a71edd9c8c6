"""Leaderboards of two small suites, made from placements that were really evaluated; and a headless Chromium."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import AdditiveCostModel, make_cost_model
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard.site import EntryData, ProfileData, SiteData, SuiteData, write_site
from shard_gym.suites import load_suite
from shard_gym.tasks import TaskSuite

SUITES = ("dlrm-20x4", "merlin-tiny-x16")
AGENTS = ("cost-greedy", "lookup-greedy", "random")
TASKS = 4
"""Of each suite, so that the tests stay quick."""


def first_tasks(name: str) -> TaskSuite:
    """The first test tasks of a named suite, as a suite of their own."""
    return TaskSuite(name, load_suite(name).tasks[:TASKS], split="test")


def _entry(evaluation: Evaluation, best: np.ndarray, place: int) -> EntryData:
    return {
        "id": evaluation.agent,
        "name": evaluation.agent,
        "authors": ["The ShardGym authors"],
        "link": "https://example.org/agent",
        "licence": "MIT",
        "agent": "heuristic",
        "hardware": "one CPU core",
        "seeds": 1,
        "mean_cost_ms": evaluation.mean_cost_ms,
        "interval_ms": list(evaluation.interval_ms),
        "failures": evaluation.failures,
        "gap": float((evaluation.costs_ms / best).mean() - 1.0),
        "improvement_over_next": None if place == len(AGENTS) - 1 else 0.9,
        "planning_ms": 0.25 * 10**place,  # a time that was taken would differ from run to run
        "planning_replayed": place != 1,
        "training_queries": 0,
        "planning_queries": float(place),
        "training_data": "",
        "shard_gym": "0.1.0",
        "task_costs_ms": evaluation.costs_ms.tolist(),
        "placements": [result.placement for result in evaluation.tasks],
    }


def _suite(name: str, evaluations: list[Evaluation], model: AdditiveCostModel) -> SuiteData:
    tasks = first_tasks(name)
    best = np.min([evaluation.costs_ms for evaluation in evaluations], axis=0)
    bounds = [model.cost_bounds(model.table_loads(task.tables, task.topology), task.topology) for task in tasks]
    winners = np.argmin([evaluation.costs_ms for evaluation in evaluations], axis=0)
    placements = [evaluations[winner].tasks[place].placement for place, winner in enumerate(winners)]
    ranked = sorted(evaluations, key=lambda evaluation: evaluation.mean_cost_ms)
    return {
        "name": name,
        "track": "simulated",
        "hardware": "rtx2080ti" if name.startswith("dlrm") else "a100-dgx",
        "description": f"The first tasks of {name}.",
        "cost_model": "analytical",
        "tasks": [
            {"name": task.name, "best_known_ms": float(best[place]), "lower_bound_ms": bounds[place][0]}
            for place, task in enumerate(tasks)
        ],
        "best": {"effort": "best of three agents", "placements": [placed for placed in placements if placed]},
        "entries": [_entry(evaluation, best, place) for place, evaluation in enumerate(ranked)],
    }


def _profile(evaluations: dict[str, list[Evaluation]]) -> ProfileData:
    taus = np.round(np.geomspace(1.0, 4.0, 61), 4)
    best = {suite: np.min([each.costs_ms for each in found], axis=0) for suite, found in evaluations.items()}
    lines = []
    for place, agent in enumerate(AGENTS):
        ratios = np.concatenate([found[place].costs_ms / best[suite] for suite, found in evaluations.items()])
        shares = [float((ratios <= tau).mean()) for tau in taus]
        middle = float(np.sort(ratios)[1:-1].mean())
        lines.append(
            {
                "id": agent,
                "name": agent,
                "tasks": len(ratios),
                "shares": shares,
                "iqm": middle,
                "iqm_interval": [middle - 0.01, middle + 0.01],
            }
        )
    return {"track": "simulated", "hardware": None, "about": "All tasks.", "taus": taus.tolist(), "lines": lines}


@dataclass(frozen=True)
class Boards:
    """Data of a site, and the evaluations that they stand for: by suite, in the order of AGENTS."""

    data: SiteData
    evaluations: dict[str, list[Evaluation]]
    load: Callable[[str], TaskSuite]

    def evaluation(self, suite: str, agent: str) -> Evaluation:
        """That of the agent on the suite."""
        return self.evaluations[suite][AGENTS.index(agent)]


@pytest.fixture(scope="session")
def boards() -> Boards:
    model = make_cost_model("analytical")
    evaluations = {
        name: [evaluate(make_agent(agent, seed=0), first_tasks(name), model) for agent in AGENTS] for name in SUITES
    }
    suites = [_suite(name, found, model) for name, found in evaluations.items()]
    data: Any = {"suites": suites, "profiles": [_profile(evaluations)]}
    return Boards(data, evaluations, first_tasks)


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
    """One window, and what the tests do with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, site: Path, fragment: str = "", *, width: int = 1200, scheme: str = "light", **media: str) -> None:
        """The page of the folder `site`, freshly loaded, in a window of that width in CSS pixels."""
        self.driver.get("about:blank")
        self.logs("browser"), self.logs("performance")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        # Without motion, for what is under way cannot be clicked.
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
        """The ids of the entries as the ranking stands."""
        return list(self.run("return [...document.querySelectorAll('#table tbody tr')].map(r => r.dataset.entry)"))

    def column(self, key: str) -> list[str]:
        """The cells of a column of the ranking."""
        return self.texts(f"#table tbody tr > .{key}")

    def pick(self, name: str, value: str) -> None:
        """Choose in the select with that id, and wait until the panels have been drawn anew."""
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
        """What stands in the console since the page was opened."""
        return [entry["message"] for entry in self.logs("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with an empty profile, ended with the tests."""
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


@pytest.fixture(scope="module")
def site(boards: Boards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two suites as they are, and a measured one with a failure and missing numbers."""
    out = tmp_path_factory.mktemp("site")
    data = copy.deepcopy(boards.data)
    measured = copy.deepcopy(data["suites"][0])
    measured |= {"track": "measured", "hardware": "NVIDIA H200", "best": None}
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


@pytest.fixture(scope="session")
def digits() -> Callable[[str], float]:
    """Reads the first number of a text."""

    def read(text: str) -> float:
        match = re.search(r"-?[\d,]+(\.\d+)?", text)
        assert match is not None, text
        return float(match[0].replace(",", ""))

    return read
