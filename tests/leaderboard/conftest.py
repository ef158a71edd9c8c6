"""Valid entries, made once and copied for every test that changes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.common.errors import WorkerDiedError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.cost_models.measured import MeasuredCostModel, Measurement
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard import (
    EntryFolder,
    EntryInfo,
    EvaluatedAgent,
    VerifiedEntry,
    submit,
    verify_all,
    verify_entry,
)
from shard_gym.leaderboard.entry import ONE_SEED, SEEDS
from shard_gym.leaderboard.store import Finding
from shard_gym.leaderboard.submission import format_rows

SUITE = "dlrm-20x4"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def submit_agent(
    folder: EntryFolder,
    agent: str,
    evaluations: Sequence[Evaluation],
    name: str = "",
    authors: Sequence[str] = ("Ada Example",),
    **facts: Any,
) -> list[Finding]:
    """Submit evaluations under the name `agent`, with further facts about the agent."""
    info = EntryInfo(name or f"The {agent} agent", authors, "MIT", "https://example.org/code", "a laptop", COMMIT)
    facts = {"stochastic": agent == "random", "evaluations": tuple(evaluations), **facts}
    return submit(folder, EvaluatedAgent(agent, **facts), info)


def make_entry(
    root: Path,
    agent: str,
    /,
    suite: str = SUITE,
    slug: str = "",
    as_agent: str = "",
    track: str = "simulated",
    **changes: Any,
) -> None:
    """An entry of an agent of ShardGym, submitted under the name `as_agent`."""
    seeds = SEEDS if agent == "random" else ONE_SEED
    evaluations = [evaluate(make_agent(agent, seed=seed), suite) for seed in seeds]
    folder = EntryFolder(root, track, suite, slug or agent)
    assert submit_agent(folder, as_agent or agent, evaluations, **changes) == []


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of leaderboards with three entries; tests must not change it."""
    root = tmp_path_factory.mktemp("leaderboards")
    make_entry(root, "random")
    make_entry(root, "size-greedy")
    make_entry(root, "size-greedy", track="measured", slug="measured-greedy")
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it that tests may change."""
    return Path(shutil.copytree(made, tmp_path / "leaderboards"))


class ChangedEntry:
    """An entry with methods that change its files."""

    def __init__(self, root: Path, track: str = "simulated", slug: str = "random") -> None:
        self.folder = EntryFolder(root, track, SUITE, slug)
        self.path = self.folder.path

    def findings(self) -> list[str]:
        """What verification says about the entry alone."""
        verified, findings = verify_entry(self.folder)
        assert (verified is None) == bool(findings)
        return [str(finding) for finding in findings]

    def text(self, change: Callable[[str], str], file: str = "entry.toml") -> None:
        path = self.path / file
        old = path.read_text()
        new = change(old)
        assert new != old
        path.write_text(new)

    def toml(self, old: str, new: str) -> None:
        """Replace the only occurrence of `old`."""
        assert (self.path / "entry.toml").read_text().count(old) == 1, old
        self.text(lambda text: text.replace(old, new))

    def rows(self, change: Callable[[list[dict[str, Any]]], Any], file: str = "placements.json") -> None:
        path = self.path / file
        record = json.loads(path.read_text())
        change(record["rows"])
        path.write_bytes(format_rows(record["rows"]))


@pytest.fixture
def random_entry(root: Path) -> ChangedEntry:
    return ChangedEntry(root)


@pytest.fixture
def entry_named(root: Path) -> Callable[[str], ChangedEntry]:
    return lambda slug: ChangedEntry(root, slug=slug)


@pytest.fixture
def greedy_entry(root: Path) -> ChangedEntry:
    return ChangedEntry(root, slug="size-greedy")


@pytest.fixture
def measured_entry(root: Path) -> ChangedEntry:
    return ChangedEntry(root, "measured", "measured-greedy")


@pytest.fixture(scope="session")
def add_entry() -> Callable[..., None]:
    return make_entry


@pytest.fixture(scope="session")
def submit_as() -> Callable[..., list[Finding]]:
    return submit_agent


def verified_entry(root: Path, slug: str) -> VerifiedEntry:
    return next(each for each in verify_all(root)[0] if each.folder.slug == slug)


@pytest.fixture(scope="session")
def verified() -> Callable[[Path, str], VerifiedEntry]:
    """The verified entry of a folder name under a root."""
    return verified_entry


class Machine(MeasuredCostModel):
    """Measures by estimating, times noise; `slow(number)` says how slow it is at its number-th measurement.

    It cannot measure the placements of which `fails(tables, placement)` is true; of other plans the latter is None.
    """

    def __init__(
        self,
        *,
        iterations: int = 4,
        slow: Callable[[int], float] = lambda number: 1.0,
        resolved: str = "parallel",
        fails: Callable[[Any, list[int] | None], bool] = lambda tables, placement: False,
        **options: Any,
    ) -> None:
        super().__init__("cpu", iterations=iterations, **options)
        self.slow, self.resolved, self.fails, self.count, self.refused = slow, resolved, fails, 0, 0

    def _measured(self, plan: Any, tables: Any, topology: Any, *, again: bool) -> Measurement:
        assert again
        if self.fails(tables, None if plan.placement is None else plan.placement.tolist()):
            self.refused += 1
            raise WorkerDiedError("The worker of device 1\ndied.")
        rng = np.random.default_rng(self.count)
        self.count += 1
        phases = AnalyticalShardingModel().estimate(plan, tables, topology).phases_ms * self.slow(self.count)
        ms = phases * rng.lognormal(0, 0.02, (self.repeats.iterations, *phases.shape))
        return Measurement(phases, float(phases.max(axis=0).sum()), ms, 0.0, 1.0)

    def layout_of(self, num_devices: int) -> str:
        return self.resolved


@pytest.fixture(scope="session")
def new_machine() -> type[Machine]:
    return Machine
