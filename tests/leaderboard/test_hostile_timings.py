"""Raw timings of the measured track that cannot be what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shard_gym.leaderboard.verify import verify_entry

TASK3 = "dlrm-20x4/test/3"


def toml(old: str, new: str) -> Callable[[Any], object]:
    return lambda entry: entry.toml(old, new)


TIMED: dict[str, tuple[Callable[[Any], object], str]] = {
    "too few iterations": (
        lambda e: e.rows(lambda rows: rows[3]["phases_ms"].pop(), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: It was timed 9 times; at least 10",
    ),
    "iterations that are copies": (
        lambda e: e.rows(lambda rows: rows[3].update(phases_ms=rows[3]["phases_ms"][:1] * 10), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: Every iteration took exactly as long as the first",
    ),
    "a device missing": (
        lambda e: e.rows(lambda rows: rows[3]["phases_ms"][0].pop(), "timings.json"),
        rf"timings.json, task {TASK3}, seed 0: Every iteration has times of 4 devices; these have \[3, 4\]",
    ),
    "a phase missing": (
        lambda e: e.rows(lambda rows: rows[3]["phases_ms"][0][0].pop(), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: rows.3.phases_ms.0.0 is refused",
    ),
    "negative times": (
        lambda e: e.rows(lambda rows: rows[3]["phases_ms"][0][0].__setitem__(0, -1.0), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: rows.3.phases_ms.0.0.0 is refused",
    ),
    "no time at all": (
        lambda e: e.rows(lambda rows: rows[3].update(phases_ms=np.zeros((10, 4, 4)).tolist()), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: A device with tables took 0.0 ms",
    ),
    "hardly any time": (
        lambda e: e.rows(
            lambda rows: rows[3].update(phases_ms=(1e-300 * np.array(rows[3]["phases_ms"])).tolist()), "timings.json"
        ),
        f"timings.json, task {TASK3}, seed 0: A device with tables took",
    ),
    "more time than a failure costs": (
        lambda e: e.rows(
            lambda rows: rows[3].update(phases_ms=(1e8 * np.array(rows[3]["phases_ms"])).tolist()), "timings.json"
        ),
        f"timings.json, task {TASK3}, seed 0: It took .* ms, more than the penalty",
    ),
    "another task's times": (
        lambda e: e.rows(lambda rows: rows[3].update(phases_ms=rows[2]["phases_ms"]), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: Its timings are those of task dlrm-20x4/test/2",
    ),
    "a GPU that says how it was measured": (
        toml("NVIDIA H200", "NVIDIA H200 in turn"),
        "entry.toml: hardware.gpu is refused: it must not say how",
    ),
    "a task not timed": (
        lambda e: e.rows(lambda rows: rows.pop(3), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: The task is missing",
    ),
    "no timings of a placement": (
        lambda e: e.rows(lambda rows: rows[3].update(phases_ms=None), "timings.json"),
        f"timings.json, task {TASK3}, seed 0: Timings stand where a placement is",
    ),
    "shortened times": (
        lambda e: e.rows(
            lambda rows: rows[3].update(phases_ms=(np.array(rows[3]["phases_ms"]) / 2).tolist()), "timings.json"
        ),
        "entry.toml: scores.mean_cost_ms is",
    ),
    "no raw timings": (lambda e: (e.folder / "timings.json").unlink(), "timings.json: The file is missing"),
    "the simulated cost model": (toml('name = "measured"', 'name = "analytical"'), "entry.toml: cost_model.name is"),
    "no GPU": (toml('gpu = "NVIDIA H200"\n', ""), "entry.toml: hardware.gpu and hardware.layout belong"),
    "a GPU that is no name": (toml("NVIDIA H200", "../../x"), "entry.toml: hardware.gpu is refused"),
}


@pytest.mark.parametrize("cheat", TIMED)
def test_a_cheat_with_timings_is_refused_at_its_place(measured_entry, cheat: str) -> None:
    assert verify_entry(measured_entry.place)[1] == []
    spoil, expected = TIMED[cheat]
    spoil(measured_entry)
    found = [str(finding) for finding in verify_entry(measured_entry.place)[1]]
    assert any(re.match(f"measured/dlrm-20x4/measured-greedy/{expected}", each) for each in found), found
