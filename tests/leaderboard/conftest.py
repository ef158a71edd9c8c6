"""Entries that hold, made once and copied for every test that spoils them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.evaluation import evaluate
from shard_gym.leaderboard.store import Place
from shard_gym.leaderboard.submit import Declared, Timed, submit
from shard_gym.leaderboard.write import rows_json
from shard_gym.suites import load_suite

SUITE = "dlrm-20x4"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def declared(agent: str, /, **changes: Any) -> Declared:
    facts: dict[str, Any] = {
        "name": f"The {agent} agent",
        "authors": ["Ada Example"],
        "licence": "MIT",
        "link": "https://example.org/code",
        "agent": agent,
        "uses_chance": agent == "random",
        "machine": "a laptop",
        "commit": COMMIT,
    }
    return Declared(**{**facts, **changes})


def make_entry(root: Path, agent: str, /, suite: str = SUITE, slug: str = "", **changes: Any) -> Place:
    """An entry of an agent of ShardGym."""
    said = declared(agent, **changes)
    place = Place(root, "simulated", suite, slug or agent)
    evaluations = [evaluate(make_agent(agent, seed=seed), suite) for seed in said.seeds]
    assert submit(place, evaluations, said) == []
    return place


def raw_timings(suite: str, seeds: tuple[int, ...] = (0,), scale: float = 1.0) -> bytes:
    """Ten iterations for every placement of an agent that never fails."""
    rng = np.random.default_rng(0)
    return rows_json(
        [
            {
                "task": task.name,
                "seed": seed,
                "phases_ms": np.round(scale * rng.uniform(1.0, 2.0, (10, task.num_devices, 4)), 3).tolist(),
            }
            for seed in seeds
            for task in load_suite(suite)
        ]
    )


def make_measured(root: Path, gpu: str = "NVIDIA H200", slug: str = "measured-greedy", scale: float = 1.0) -> Place:
    place = Place(root, "measured", SUITE, slug)
    timed = Timed(gpu, "each", raw_timings(SUITE, scale=scale))
    said = declared("size-greedy", name=slug)
    assert submit(place, [evaluate(make_agent("size-greedy"), SUITE)], said, timed) == []
    return place


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of leaderboards with three entries; not to be changed."""
    root = tmp_path_factory.mktemp("leaderboards")
    make_entry(root, "random")
    make_entry(root, "size-greedy")
    make_measured(root)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(made, tmp_path / "leaderboards"))


class Spoiled:
    """An entry with ways to change its files."""

    def __init__(self, root: Path, track: str = "simulated", slug: str = "random") -> None:
        self.place = Place(root, track, SUITE, slug)
        self.folder = self.place.folder

    def toml(self, old: str, new: str) -> None:
        path = self.folder / "entry.toml"
        text = path.read_text()
        assert text.count(old) == 1, (old, text.count(old))
        path.write_text(text.replace(old, new))

    def rows(self, change: Callable[[list[dict[str, Any]]], Any], file: str = "placements.json") -> None:
        path = self.folder / file
        record = json.loads(path.read_text())
        change(record["rows"])
        path.write_bytes(rows_json(record["rows"]))

    def text(self, change: Callable[[str], str], file: str = "placements.json") -> None:
        path = self.folder / file
        path.write_text(change(path.read_text()))


@pytest.fixture
def random_entry(root: Path) -> Spoiled:
    return Spoiled(root)


@pytest.fixture
def greedy_entry(root: Path) -> Spoiled:
    return Spoiled(root, slug="size-greedy")


@pytest.fixture
def measured_entry(root: Path) -> Spoiled:
    return Spoiled(root, "measured", "measured-greedy")


@pytest.fixture(scope="session")
def add_entry() -> Callable[..., Place]:
    return make_entry


@pytest.fixture(scope="session")
def add_measured() -> Callable[..., Place]:
    return make_measured


@pytest.fixture(scope="session")
def declare() -> Callable[..., Declared]:
    return declared
