"""Building the suites again gives the files that are shipped, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shard_gym.common.io.files import INDEX, read_json
from shard_gym.tables import load_pool
from shard_gym.tasks import load_suite, suite_info, suite_names
from shard_gym.tasks.suites import build, drawing
from shard_gym.tasks.suites.info import DATA

RECIPES = {recipe.name: recipe for recipe in build.RECIPES}


def test_there_is_a_recipe_for_every_suite_and_a_file_for_every_recipe() -> None:
    assert (
        set(RECIPES)
        == set(suite_names()) - set(suite_names("replanning"))
        == {path.stem for path in DATA.glob("*.json")} - {"index"}
    )
    assert len(RECIPES) == len(build.RECIPES)
    fours = [name for name in suite_names("simulated") if name.endswith("x4")]  # in the order of their numbers
    assert fours == [f"dlrm-{tables}x4" for tables in (20, 40, 50, 60, 80, 100)]
    placed = ["cpu-20x2", "cpu-40x4", "gpu-40x4", "gpu-80x8"]
    assert suite_names("measured") == [*placed, "shard-cpu-20x2", "shard-cpu-40x4", "shard-gpu-40x4"]
    problems = {name: suite_info(name).problem for name in suite_names()}
    assert {problems[name] for name in (*placed, *suite_names("simulated"))} == {"placement"}
    assert {problems[name] for name in (*suite_names("measured")[4:], *suite_names("sharding"))} == {"sharding"}
    assert {problems[name] for name in suite_names("replanning")} == {"replanning"}
    assert all(load_suite(name)[0].problem == problem for name, problem in problems.items() if problem != "replanning")


def test_building_again_writes_the_shipped_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["dlrm-20x4", "mixdim-4", "generalize", "merlin-medium-x8", "mlperf-x8", "cpu-20x2", "shard-cpu-20x2"]
    names += ["shard-kuairand-x8", "inference-dlrm-v3-x8", "constrained-8", "shard-constrained-8"]
    monkeypatch.setattr(build, "DATA", tmp_path)
    monkeypatch.setattr(build, "RECIPES", tuple(RECIPES[name] for name in names))
    build.main()
    for name in names:
        assert (tmp_path / f"{name}.json").read_bytes() == (DATA / f"{name}.json").read_bytes()
    assert read_json(tmp_path / INDEX) == {name: read_json(DATA / INDEX)[name] for name in names}


def test_tables_above_the_limit_are_split_into_column_shards_that_fit() -> None:
    pool = load_pool("dlrm-2021").tables.select([0, 1, 2])
    tables = pool.with_dims([16, 64, 64])
    limit = int(tables.memory_bytes[1]) // 3
    shards, positions = drawing.split_columns(tables, limit)
    parts = np.bincount(positions)
    assert parts[1] == 4
    assert (shards.embedding_dim == tables.embedding_dim[positions] // parts[positions]).all()
    assert shards.memory_bytes.max() <= limit
    assert (tables.memory_bytes[parts > 1] * 2 / parts[parts > 1] > limit).all()  # half as many would not fit
    assert [tables.names[p] for p in positions] == list(shards.names)
