"""Folders of measurements: the same numbers back, parts are added, and what is damaged or foreign is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnwritablePathError
from shard_gym.common.io.files import read_json, sha256_of, write_json
from shard_gym.cost_models.fitting import load_measurements
from shard_gym.cost_models.fitting.data import folder as storage
from shard_gym.cost_models.fitting.data.folder import INDEX, MeasurementIndex, append_part, begin_folder, read_index
from shard_gym.cost_models.fitting.data.parquet import MeasurementInfo, to_parquet
from shard_gym.cost_models.fitting.data.splits import SPLITS, SplitCosts
from shard_gym.tables import Workload

PART_0 = ("tables-0000.parquet", "placements-0000.parquet")


def info_of(costs: SplitCosts) -> MeasurementInfo:
    count = len(costs.data)
    numbers = np.arange(count)
    return MeasurementInfo(numbers, 0 * numbers, numbers / count, clock_ghz=1.0 + numbers / count, late=numbers % 3)


def test_what_a_file_does_not_say_of_tables_is_refused(costs: SplitCosts) -> None:
    tables = costs.data.tables
    own = (tables.workload, replace(tables.workload, weight_dtype="fp32", optimizer="adam"))
    several = replace(tables, workload=Workload.mixed(own, np.arange(len(tables)) % 2))
    sequences = replace(tables, pooled=np.zeros(len(tables), bool))
    for changed, says in ((several, "tables of several workloads"), (sequences, "sequence tables")):
        other = replace(costs, data=replace(costs.data, tables=changed))
        with pytest.raises(InvalidOptionError, match=f"A file of measurements does not support {says}"):
            to_parquet(other, info_of(other))


def index_of(costs: SplitCosts) -> MeasurementIndex:
    return MeasurementIndex(costs.data.source, "fake-device", costs.data.tables.workload, {"seed": 0, "pools": ("a",)})


def begin(folder: Path, costs: SplitCosts) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    begin_folder(folder, index_of(costs))
    return folder


@pytest.fixture(scope="module")
def written(costs: SplitCosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = begin(tmp_path_factory.mktemp("costs") / "new" / "folder", costs)
    append_part(folder, costs, info_of(costs))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "costs"))


def test_what_is_written_is_read(written: Path, costs: SplitCosts, same_data: Any) -> None:
    found, info = load_measurements(written), info_of(costs)
    assert same_data(found.costs.data, costs.data)
    assert np.array_equal(found.costs.table_split, costs.table_split)
    assert all(np.array_equal(getattr(found.info, name), getattr(info, name)) for name in vars(info))
    assert sorted(path.name for path in written.iterdir()) == sorted([INDEX, *PART_0])
    assert begin_folder(written, index_of(costs)).parts == read_index(written).parts


def test_other_programs_can_read_the_files(written: Path, costs: SplitCosts) -> None:
    tables, placements = (pq.read_table(written / name) for name in PART_0)
    assert tables.num_rows == len(costs.data.tables)
    assert set(tables["split"].to_pylist()) == set(SPLITS)
    row = placements.slice(9, 1).to_pylist()[0]
    members = costs.data.members[costs.data.start[9] : costs.data.start[10]]
    assert row["tables"] == members.tolist()
    assert (row["cost_ms"], row["number"]) == (costs.data.cost_ms[9], 9)
    assert row["num_devices"] * 4 == len(row["phases_ms"])
    assert row["phases_ms"] == costs.data.phases_ms[9, : row["num_devices"]].ravel().tolist()
    assert tables["name"].to_pylist() == list(costs.data.tables.names)


def test_parts_are_added(costs: SplitCosts, tmp_path: Path, same_data: Any) -> None:
    thirds = [SplitCosts(costs.data.take(np.arange(k, len(costs.data), 3)), costs.table_split) for k in range(3)]
    before: dict[str, bytes] = {}
    begin(tmp_path, costs)
    for part in thirds:
        append_part(tmp_path, part, info_of(part))
        assert {name: (tmp_path / name).read_bytes() for name in before} == before  # nothing is written again
        before = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    found = load_measurements(tmp_path).costs
    assert same_data(found.data, SplitCosts.joined(thirds).data)
    assert len(found.data.tables) == len(costs.data.tables)
    for split in SPLITS:
        assert sorted(found.part(split).cost_ms) == sorted(costs.part(split).cost_ms)


@pytest.mark.parametrize("fails", ["write_atomically", "write_json"])
def test_a_killed_program_leaves_no_partial_part(
    folder: Path, costs: SplitCosts, same_data: Any, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def killed(path: Path, *content: Any) -> None:
        if fails == "write_json" or path.name.startswith("placements"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, fails, killed)
        with pytest.raises(KeyboardInterrupt):
            append_part(folder, costs, info_of(costs))
    assert same_data(load_measurements(folder).costs.data, costs.data)
    append_part(folder, costs, info_of(costs))
    assert len(load_measurements(folder).costs.data) == 2 * len(costs.data)


# Refusals


def test_parts_without_their_index_are_not_overwritten(folder: Path, costs: SplitCosts) -> None:
    (folder / INDEX).unlink()
    with pytest.raises(InvalidOptionError, match=r"holds placements-0000.parquet and no index.json"):
        begin_folder(folder, index_of(costs))
    assert not (folder / INDEX).exists()


@pytest.mark.parametrize("name", PART_0)
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_damaged_parts_are_refused(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    if damage == "changed":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(DamagedFileError, match=f"Part 0 of .*{name}"):
        load_measurements(folder)


def sign(folder: Path, name: str, content: bytes) -> None:
    """Put `content` into the folder with the right SHA-256."""
    (folder / name).write_bytes(content)
    index = read_json(folder / INDEX)
    index["parts"][0]["sha256"][name.partition("-")[0]] = sha256_of(content)
    sign_index(folder, index)


def sign_index(folder: Path, index: Any) -> None:
    """Write an index with the right SHA-256 of itself."""
    if isinstance(index, dict):
        index = {key: value for key, value in index.items() if key != "sha256"}
        index["sha256"] = storage._digest(index)
    write_json(folder / INDEX, index)


def sign_table(folder: Path, name: str, table: Any) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    sign(folder, name, sink.getvalue().to_pybytes())


def change_columns(folder: Path, name: str, **changes: Any) -> None:
    """Change columns of a file, each by a function of the list of its values, and sign it."""
    table = pq.read_table(folder / name)
    for column, change in changes.items():
        values = pa.array(change(table[column].to_pylist()), table.schema.field(column).type)
        table = table.set_column(table.column_names.index(column), table.schema.field(column), values)
    sign_table(folder, name, table)


@pytest.mark.parametrize("name", PART_0)
def test_files_of_another_form_are_refused_even_if_signed(folder: Path, name: str) -> None:
    table = pq.read_table(folder / name)
    sign(folder, name, b"PAR1 nothing PAR1")
    with pytest.raises(DamagedFileError, match="no Parquet file"):
        load_measurements(folder)
    sign_table(folder, name, table.drop_columns([table.column_names[0]]))
    with pytest.raises(DamagedFileError, match="other columns"):
        load_measurements(folder)


@pytest.mark.parametrize(
    ("name", "column", "change"),
    [
        ("tables", "split", lambda values: ["somewhere", *values[1:]]),
        ("tables", "split", lambda values: ["validation", *values[1:]]),
        ("tables", "embedding_dim", lambda values: [3, *values[1:]]),
        ("placements", "devices", lambda values: [values[0][1:], *values[1:]]),
        ("placements", "phases_ms", lambda values: [values[0] * 2, *values[1:]]),
        ("placements", "cost_ms", lambda values: [-1.0, *values[1:]]),
        ("placements", "num_devices", lambda values: [values[0] + 1, *values[1:]]),
        ("placements", "topology", lambda values: [77, *values[1:]]),
        ("placements", "repeat", lambda values: [-1, *values[1:]]),
    ],
)
def test_impossible_content_is_refused_even_if_signed(folder: Path, name: str, column: str, change: Any) -> None:
    change_columns(folder, f"{name}-0000.parquet", **{column: change})
    with pytest.raises(DamagedFileError, match="Part 0 of"):
        load_measurements(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: {**index, "schema": "shard-gym-costs/1"},
        lambda index: {**index, "surprise": 1},
        lambda index: {**index, "workload": {**index["workload"], "epochs": 3}},
        lambda index: {**index, "skipped": [{"number": 3, "repeat": 0, "reason": None}]},
        lambda index: {**index, "parts": [{**index["parts"][0], "more": 1}]},
        lambda index: {key: value for key, value in index.items() if key != "drawn"},
        lambda index: {**index, "hardware": "../../evil"},
        lambda index: {**index, "parts": [3]},
        lambda index: {**index, "parts": [{**index["parts"][0], "topologies": [{}]}]},
        lambda index: {**index, "parts": [{**index["parts"][0], "sha256": {}}]},
        lambda index: [index],
    ],
)
def test_a_foreign_or_damaged_index_is_refused(folder: Path, change: Any) -> None:
    sign_index(folder, change(read_json(folder / INDEX)))
    with pytest.raises(DamagedFileError) as caught:
        load_measurements(folder)
    for internal in ("__init__", "argument", "object", "KeyError", "attribute"):
        assert internal not in str(caught.value).replace("must be an object", "")


def test_an_index_that_was_edited_is_refused(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    assert '"seed": 0' in text
    (folder / INDEX).write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DamagedFileError, match=r"index.json is damaged: its content is not what its SHA-256 says"):
        load_measurements(folder)


def test_a_folder_without_an_index_is_refused(tmp_path: Path, costs: SplitCosts) -> None:
    with pytest.raises(DamagedFileError, match=r"index\.json cannot be read"):
        load_measurements(tmp_path)
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(DamagedFileError, match="JSON"):
        begin_folder(tmp_path, index_of(costs))
    (tmp_path / "file").touch()
    with pytest.raises(UnwritablePathError):
        begin_folder(tmp_path / "file", index_of(costs))
