"""Building the suites of replanning again gives what is shipped."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from shard_gym.common.io.files import INDEX, read_json
from shard_gym.replanning import drawing as build
from shard_gym.tasks import load_suite
from shard_gym.tasks.suites.info import DRIFTING

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
    for entry in shipped[:2]:
        suite = entry["task"].split("/")[0]
        task = load_suite(suite, split)[entry["task"]]
        assert build._cap(RECIPES[name], task, entry["seed"]) == entry["memory_cap_bytes"]
