"""The fuzz command damages files, restores them, and tells the ways in which reading them ends."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.replanning.drift import levels
from shard_gym.replanning.drift.load_grid import LoadGrid
from tools import fuzz, fuzz_episodes, fuzz_subjects
from tools.fuzz_subjects import Subject


def a_file(path: Path, read: Any) -> Subject:
    path.write_text('{"a": [1, 2], "b": "text"}\n')
    return Subject("a file", path, read)


def test_the_ends_of_a_case_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    subject = a_file(path, path.read_bytes)
    assert fuzz.outcome(subject, True)[0] == fuzz.SAME
    path.write_text("{}")
    assert fuzz.outcome(subject, True)[0] == fuzz.SILENT
    assert fuzz.outcome(a_file(path, path.read_bytes), False)[0] == fuzz.SAME
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 1)
    ends = [(DamagedFileError("x"), fuzz.REFUSED), (DamagedFileError(), fuzz.FOREIGN), (KeyError(1), fuzz.FOREIGN)]
    for error, end in ends:

        def read(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(subject, "read", read)
        assert fuzz.outcome(subject, True)[0] == end
    monkeypatch.setattr(subject, "read", lambda: time.sleep(5))
    assert fuzz.outcome(subject, True)[0] == fuzz.SLOW


def test_every_way_changes_a_file_and_repeats_for_a_seed() -> None:
    text, data = b'{"a": [1, 2], "b": "text"}\nc = 1\n', bytes(range(256))
    for way in fuzz.DAMAGES:
        for content in (text, data):
            found = [way(random.Random(seed), content) for seed in range(20)]
            assert found == [way(random.Random(seed), content) for seed in range(20)]
            assert any(each != content for each in found)


def test_damaged_files_of_many_kinds_end_well(tmp_path: Path) -> None:
    kinds = (fuzz_subjects.cache, fuzz_subjects.documents, fuzz_subjects.plans, fuzz_subjects.sequences)
    found = [each for kind in kinds for each in kind(tmp_path)]
    for case in range(120):
        subject = found[case % len(found)]
        _, has_checksum = fuzz.damage(subject, random.Random(f"test-{case}"))
        end, detail = fuzz.outcome(subject, has_checksum)
        assert end not in fuzz.BAD, detail
        for leftover in tmp_path.glob(f"{subject.path.name}[.-]*"):
            leftover.unlink()
        subject.path.write_bytes(subject.content)


EPISODES = {each.name: each for each in fuzz_episodes.made()}


@pytest.fixture(autouse=True)
def _short_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_episodes, "MOST_STEPS", 30)


def wrong(name: str, cases: int = 12) -> list[str]:
    """What is wrong with some cases of a kind; ShardGym may refuse a few."""
    found, refused = [], 0
    for seed in range(cases):
        EPISODES[name].make(seed)
        end, detail = fuzz.outcome(EPISODES[name], True)
        assert end in (fuzz.REFUSED, fuzz.SAME, fuzz.SILENT), detail
        refused += end == fuzz.REFUSED
        found += [detail] * (end == fuzz.SILENT)
    assert refused < cases / 2
    return found


@pytest.mark.parametrize("name", EPISODES)
def test_made_cases_end_well(name: str) -> None:
    assert wrong(name, 6) == []


def test_wrong_costs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = AnalyticalShardingModel.iteration_cost
    monkeypatch.setattr(
        AnalyticalShardingModel, "iteration_cost", lambda *args: costs(*args) * (1.0 + 1e-6 * (args[1].ndim == 2))
    )
    assert "the episode cost" in wrong("sharding episode")[0]


def test_a_difference_between_one_environment_and_several_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = EmbeddingPlacementVectorEnv._infos
    monkeypatch.setattr(
        EmbeddingPlacementVectorEnv, "_infos", lambda *args: {**masks(*args), "cost_ms": np.array([0.0, 1e-9])}
    )
    assert "scalar and vector differ in cost_ms" in wrong("placement episode")[0]


def test_an_hour_that_costs_another_time_than_its_tables_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    at = LoadGrid.at
    monkeypatch.setattr(LoadGrid, "at", lambda *args: at(*args) * 1.1)
    assert "and its tables" in wrong("replanning episode", 1)[0]


def test_a_bound_that_a_level_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "is_number", lambda value: True)
    monkeypatch.setattr(levels, "_LIMITS", {})
    assert any("may be" in each for each in wrong("drift level"))
