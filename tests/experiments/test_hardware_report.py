from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.experiments.hardware import Facts
from shard_gym.experiments.hardware_report import Method, change, methods_of, page, read_results
from shard_gym.leaderboard.race import Measured, Race
from shard_gym.tasks import TaskSuite

pytest.importorskip("pyarrow")

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def race_of(costs: dict[str, list[list[float]]], random_task: Any) -> Race:
    """A race of two tasks on one device; `costs` are the (rounds, tasks) ms of each entry, all of them forward."""
    suite = TaskSuite("two", tuple(random_task(np.random.default_rng(k), 3, 1, name=f"t{k}") for k in range(2)))
    measurements = tuple(
        Measured(number, task, entry, 0.0, np.array([[[ms, 0.0, 0.0, 0.0]]]))
        for entry, rounds in costs.items()
        for number, of_round in enumerate(rounds)
        for task, ms in enumerate(of_round)
    )
    placements = {entry: [np.zeros(3, np.int64)] * 2 for entry in costs}
    settings = {"threads": 1, "iterations": 1, "warmup": 0}
    return Race(suite, "an abacus", "measured-v2", settings, placements, measurements, np.array([99.0, 99.0]))


OPTIONS = {"suite": "two", "budgets": [100], "seeds": 2, "policy_iterations": None}

COSTS = {
    "random": [[20.0, 40.0], [22.0, 40.0]],
    **dict.fromkeys(("size-greedy", "dim-greedy", "size-lookup-greedy"), [[16.0, 32.0]] * 2),
    "lookup-greedy": [[10.0, 30.0]] * 2,
    "local-search": [[12.0, 28.0]] * 2,
    "dream-search-100-seed0": [[8.0, 24.0]] * 2,
    "dream-search-100-seed1": [[8.0, 28.0]] * 2,
}


def test_methods_are_the_entries_without_their_seeds(random_task: Any) -> None:
    methods = methods_of(race_of(COSTS, random_task))
    assert list(methods) == [*list(COSTS)[:6], "dream-search-100"]
    assert methods["random"].costs_ms.tolist() == [[21.0, 40.0]]
    assert methods["dream-search-100"].costs_ms.tolist() == [[8.0, 24.0], [8.0, 28.0]]
    assert methods["dream-search-100"].phases_ms.tolist() == [17.0, 0.0, 0.0, 0.0]


def test_intervals_are_paired_over_tasks() -> None:
    """Tasks differ much and methods always by a tenth: the ratio is known exactly, the means are not."""
    costs = np.array([[1.0, 10.0, 100.0]])
    first, second = Method("a", 0.9 * costs, np.zeros(4)), Method("b", costs, np.zeros(4))
    mean, interval = change(first, second)
    assert (mean, *interval) == pytest.approx((-0.1, -0.1, -0.1))
    noisy = Method("c", np.array([[1.0, 9.0, 110.0], [1.1, 8.0, 90.0]]), np.zeros(4))
    mean, (low, high) = change(noisy, second)
    assert low < mean < high


def test_the_page_has_the_numbers_of_the_race_and_of_the_facts(random_task: Any, markdown_rows: Any) -> None:
    race = race_of(COSTS, random_task)
    own = ("dream-search-100-seed0", "dream-search-100-seed1")
    estimates = {
        name: {
            "random": [10.5, 20.0],  # half of what they cost
            **{each: [16.0, 32.0] for each in ("size-greedy", "dim-greedy", "size-lookup-greedy")},
            "lookup-greedy": [15.0, 45.0],  # half more, a quarter of the greedy placements
            name: [4.0, None],
        }
        for name in own
    }
    measured = dict.fromkeys(own, 100)
    text = page([race], Facts(OPTIONS, "analytical-v7", measured, estimates), "folder")
    assert "the analytical model (`analytical-v7`)" in text
    rows = markdown_rows(text, "## Costs")
    assert rows["dream-search-100"][:3] == ["100", "17.00", "-15.0%"]
    assert rows["dream-search-100"][4] == "-15.0%", "local search costs 20 ms, as lookup-greedy does"
    assert rows["dream-search-100"][6:] == ["100%"]
    assert rows["lookup-greedy"][1:4] == ["20.00", "", ""]
    assert markdown_rows(text, "Mean ms of each seed:") == {"dream-search-100": ["16.00", "18.00"]}
    errors = markdown_rows(text, "## Does the search exploit the model?")
    assert errors["dream-search-100"] == ["50.0% (-50.0%)", "12.5% (+12.5%)", "50.0% (-50.0%)"]
    assert "- `dream-search-100`: -15.0% against `lookup-greedy` (" in text
    # Of 16 pairs of measurements one differs, by 2 of 21 ms.
    assert f"have a standard deviation of {np.sqrt((2 / np.sqrt(2) / 21) ** 2 / 16):.1%}" in text
    assert "shard-gym experiment hardware --suite two --budgets 100 --seeds 2\n" in text


def test_a_repeated_race_confirms_orders_or_names_the_pairs_that_turned(random_task: Any, markdown_rows: Any) -> None:
    first = race_of(COSTS, random_task)
    turned = race_of({**COSTS, "random": [[5.0, 7.0]] * 2}, random_task)
    text = page([first, first], Facts(OPTIONS, "analytical-v7", {}, {}), "folder")
    found = re.search(r"holds for (\d+) of 21 pairs", text)
    assert found is not None
    assert f"{found[1]} of these {found[1]} pairs have the same order in race 2." in text
    text = page([first, turned], Facts(OPTIONS, "analytical-v7", {}, {}), "folder")
    assert f"{int(found[1]) - 6} of these {found[1]} pairs have the same order in race 2; not" in text
    assert "`lookup-greedy` and `random`" in text
    assert markdown_rows(text, "## The race again")["random"] == ["30.50", "6.000"]


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("hardware-*.md")))
def test_the_published_page_follows_from_its_raw_rounds(name: str) -> None:
    races, facts = read_results(RESULTS / name)
    assert page(races, facts, name) == (RESULTS / f"{name}.md").read_text()
