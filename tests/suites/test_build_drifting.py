"""Building the suites of replanning again gives what is shipped."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from shard_gym.drift.tasks import DriftTask
from shard_gym.errors import InvalidTaskError
from shard_gym.io.files import INDEX, read_json
from shard_gym.suites import build_drifting as build
from shard_gym.suites import load_suite
from shard_gym.suites.drifting import DRIFTING
from shard_gym.tasks import MIB

RECIPES = {recipe.name: recipe for recipe in build.RECIPES}


def test_there_is_a_recipe_for_every_file_and_a_file_for_every_recipe() -> None:
    assert (
        set(RECIPES) == set(read_json(DRIFTING / INDEX)) == {path.stem for path in DRIFTING.glob("*.json")} - {"index"}
    )
    for name, recipe in RECIPES.items():
        record = json.loads((DRIFTING / f"{name}.json").read_text())
        assert record["level"] == json.loads(json.dumps(asdict(recipe.level)))
        assert (record["pauses_s"], record["version"]) == (list(recipe.pauses_s), recipe.version)


@pytest.mark.parametrize(("name", "split"), [("growth", "test"), ("spot", "test")])
def test_building_again_gives_the_shipped_tasks(name: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are drawn first; all of them take long."""
    shipped = json.loads((DRIFTING / f"{name}.json").read_text())["splits"][split]
    monkeypatch.setattr(build, "_cap", lambda recipe, task, seed: None)
    drawn = build.entries(RECIPES[name], split)
    assert [entry | {"memory_cap_bytes": None} for entry in shipped] == drawn
    monkeypatch.undo()
    for entry in shipped[:4]:
        suite = entry["task"].split("/")[0]
        task = load_suite(suite, split)[entry["task"]]
        assert build._cap(RECIPES[name], task, entry["seed"]) == entry["memory_cap_bytes"]


def test_caps_have_something_to_spare_over_the_smallest_that_were_tried() -> None:
    """Caps a step smaller than those have no room; where tables do not grow, there is nothing to spare."""
    searched = 0
    for task in load_suite("growth-600").tasks[:6]:
        cap = int(task.task.topology.memory_cap_bytes[0])
        least = float((task.task.tables.memory_bytes * task.drift.rows.max(axis=0)).sum()) / task.task.num_devices
        smallest = cap / build.SPARE
        assert smallest >= least
        build._require_room(with_cap(task, smallest))
        if smallest > least * build.STEP:
            searched += 1
            with pytest.raises(InvalidTaskError):  # too small for the tables at the beginning, or later
                build._require_room(with_cap(task, smallest / build.STEP - 2 * MIB))
    assert searched
    for task in load_suite("drift-strong-600").tasks:
        suite, split, _ = task.task.name.split("/")
        origin = load_suite(suite, split)[task.task.name]
        assert task.task.topology.memory_cap_bytes.tolist() == origin.topology.memory_cap_bytes.tolist()


def with_cap(task: DriftTask, cap: float) -> DriftTask:
    """The task with memory caps of so many bytes."""
    topology = replace(task.task.topology, memory_cap_bytes=np.full(task.task.num_devices, int(cap)))
    return replace(task, task=replace(task.task, topology=topology, known_placement=None))
