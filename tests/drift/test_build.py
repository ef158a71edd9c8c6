"""Building the suites of drifting tasks again gives what is shipped."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from shard_gym.drift import build
from shard_gym.drift.suites import DATA, load_drift_suite
from shard_gym.errors import InvalidTaskError
from shard_gym.io.files import INDEX, read_json
from shard_gym.tasks import MIB

RECIPES = {recipe.name: recipe for recipe in build.RECIPES}


def test_there_is_a_recipe_for_every_file_and_a_file_for_every_recipe() -> None:
    assert set(RECIPES) == set(read_json(DATA / INDEX)) == {path.stem for path in DATA.glob("*.json")} - {"index"}
    for name, recipe in RECIPES.items():
        record = json.loads((DATA / f"{name}.json").read_text())
        assert record["level"] == json.loads(json.dumps(asdict(recipe.level)))
        assert (record["pauses_s"], record["version"]) == (list(recipe.pauses_s), recipe.version)


@pytest.mark.parametrize(("name", "split"), [("growth", "test"), ("spot", "test")])
def test_building_again_gives_the_shipped_tasks(name: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are drawn first; all of them take long."""
    shipped = json.loads((DATA / f"{name}.json").read_text())["splits"][split]
    monkeypatch.setattr(build, "_cap", lambda recipe, task, seed: None)
    drawn = build.entries(RECIPES[name], split)
    assert [entry | {"memory_cap_bytes": None} for entry in shipped] == drawn
    monkeypatch.undo()
    for entry in shipped[:4]:
        suite = entry["task"].split("/")[0]
        task = build.load_suite(suite, split)[entry["task"]]
        assert build._cap(RECIPES[name], task, entry["seed"]) == entry["memory_cap_bytes"]


def test_caps_are_as_small_as_they_can_be_but_for_a_step() -> None:
    grown = 0
    for task in load_drift_suite("growth-600").tasks[:6]:
        topology, rows = task.task.topology, task.drift.rows.max(axis=0)
        cap = int(topology.memory_cap_bytes[0])
        least = float((task.task.tables.memory_bytes * rows).sum()) / len(topology.memory_cap_bytes)
        assert cap >= least
        build._require_room(task)
        if cap > least * build.STEP:
            grown += 1
            smaller = replace(topology, memory_cap_bytes=np.full(topology.num_devices, int(cap / build.STEP) - MIB))
            with pytest.raises(InvalidTaskError):  # too small for the tables at the beginning, or later
                build._require_room(replace(task, task=replace(task.task, topology=smaller)))
    assert grown
