from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym import Tables, TaskSuite, evaluate, load_suite, save_suite
from shard_gym.agents import make_agent
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnwritablePathError
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.hardware import hardware_profile
from shard_gym.tables import RowSteps
from shard_gym.tasks.suites.best_known import best_known


def test_what_is_saved_is_loaded(random_task: Any, tmp_path: Path) -> None:
    """All numbers and names are equal, so costs are equal bit for bit; padding covers both splits."""
    rng = np.random.default_rng(0)
    test = TaskSuite("mine", tuple(random_task(rng, 6, 3, name=f"t{k}") for k in range(3)), "test", 4, "", "Words.")
    train = TaskSuite("mine", (random_task(rng, 9, 2, name="large"),), "train", 4, "", "Words.")
    path = tmp_path / "mine.json"
    save_suite(path, train, test)
    loaded = load_suite(path)
    assert (loaded.name, loaded.split, loaded.version, loaded.description) == ("mine", "test", 4, "Words.")
    assert (loaded.max_tables, loaded.max_devices) == (9, 3)
    save_suite(tmp_path / "padded.json", replace(test, padding=(70, 2)))
    assert load_suite(tmp_path / "padded.json").padding == (70, 3)
    assert len(loaded.sha256) == 64
    for one, other in zip(loaded, test, strict=True):
        for field in fields(Tables):
            assert np.array_equal(getattr(one.tables, field.name), getattr(other.tables, field.name)), field.name
        assert one.topology.device == other.topology.device
        assert one.topology.device.sources == other.topology.device.sources
        assert one.topology.links == other.topology.links
        assert one.topology.memory_cap_bytes.tolist() == other.topology.memory_cap_bytes.tolist()
        assert np.array_equal(one.known_placement, other.known_placement)
    agent = make_agent("lookup-greedy")
    assert evaluate(agent, path).costs_ms.tolist() == evaluate(agent, test).costs_ms.tolist()
    assert load_suite(str(path), "train")[0].num_tables == 9
    with pytest.raises(InvalidOptionError, match=r"has the splits \['test', 'train'\], not 'dev'"):
        load_suite(path, "dev")


@pytest.mark.parametrize("steps", [False, True])
def test_host_memory_compression_and_the_popularity_of_rows_are_kept(tmp_path: Path, steps: bool) -> None:
    """Costs are equal bit for bit; a file without them is as it was, and is read."""
    task = load_suite("tier-4")[0]
    tables = task.tables
    if steps:
        rows = np.stack([tables.num_embeddings // 4, tables.num_embeddings - tables.num_embeddings // 4], axis=1)
        tables = replace(tables, popularity=RowSteps(rows, np.tile([0.75, 0.25], (len(tables), 1))))
    topology, path = replace(task.topology, cross_host_ratio=0.5), tmp_path / "mine.json"
    task = replace(task, tables=tables, topology=topology)
    save_suite(path, TaskSuite("mine", (task,)))
    loaded = load_suite(path)[0]
    assert loaded.topology.host == task.topology.host
    assert loaded.topology.cross_host_ratio == 0.5
    assert task.topology.host is not None
    assert loaded.topology.host.sources == task.topology.host.sources
    assert isinstance(loaded.tables.popularity, type(tables.popularity))
    model = AnalyticalCostModel()
    loads = [model.loads(each.tables, each.topology).tolist() for each in (loaded, task)]
    assert loads[0] == loads[1]
    plain = replace(tables, popularity=None)
    bare = replace(task, tables=plain, topology=replace(task.topology, host=None, cross_host_ratio=1.0))
    save_suite(path, TaskSuite("mine", (bare,)))
    record = json.loads(path.read_text())["splits"]["custom"][0]
    assert "popularity" not in record["tables"]
    assert not {"host", "cross_host_ratio"} & set(record["topology"])
    assert load_suite(path)[0].topology.host is None


def test_domains_and_shared_host_memory_are_in_the_file_where_there_are_some(random_task: Any, tmp_path: Path) -> None:
    path, task = tmp_path / "mine.json", random_task(np.random.default_rng(0), 4, 4)
    profile = hardware_profile("a100-dgx")
    topology = profile.topology(4, devices_per_host=2, devices_per_domain=4, host_memory_bytes=2**30)
    save_suite(path, TaskSuite("mine", (replace(task, topology=topology), replace(task, name="plain"))))
    domain, plain = (each.topology for each in load_suite(path))
    assert (domain.domains.tolist(), domain.host) == ([0] * 4, topology.host)
    assert plain.devices_per_domain is None
    records = json.loads(path.read_text())["splits"]["custom"]
    assert [sorted({"devices_per_domain", "host"} & set(each["topology"])) for each in records] == [
        ["devices_per_domain", "host"],
        [],
    ]


def test_measured_rates_of_a_device_are_kept(random_task: Any, tmp_path: Path) -> None:
    """Those of the profile "cpu" are; files of earlier versions, which have no rates, are read."""
    task = random_task(np.random.default_rng(0), 4, 2)
    path, cpu = tmp_path / "mine.json", replace(task, topology=hardware_profile("cpu").topology(2))
    save_suite(path, TaskSuite("mine", (task, replace(cpu, name="cpu"))))
    loaded = load_suite(path)
    assert [each.topology.device.rates for each in loaded] == [None, cpu.topology.device.rates]
    assert cpu.topology.device.rates is not None
    loads = [AnalyticalCostModel().loads(each.tables, each.topology).tolist() for each in (loaded[1], cpu)]
    assert loads[0] == loads[1]
    record = json.loads(path.read_text())
    del record["splits"]["custom"][0]["topology"]["device"]["rates"]
    path.write_text(json.dumps(record))
    assert load_suite(path)[0].topology.device == task.topology.device


def test_an_environment_takes_the_file(random_task: Any, tmp_path: Path) -> None:
    save_suite(tmp_path / "one.json", TaskSuite("one", (random_task(np.random.default_rng(0), 6, 3),), "custom"))
    env = gymnasium.make("shard_gym:EmbeddingPlacement-v0", suite=str(tmp_path / "one.json"))
    env.reset(seed=0)
    assert env.unwrapped.task.num_tables == 6


def test_a_task_whose_tables_may_be_split_is_loaded_as_one(random_task: Any, tmp_path: Path) -> None:
    task = replace(random_task(np.random.default_rng(0), 1, 2), known_placement=None)
    half = replace(task.topology, memory_cap_bytes=-(-int(task.tables.memory_bytes[0]) // 2))
    tight = replace(task, topology=half, splittable=True, name="tight")
    save_suite(tmp_path / "two.json", TaskSuite("two", (task, tight)))
    assert [one.splittable for one in load_suite(tmp_path / "two.json")] == [False, True]
    assert (tmp_path / "two.json").read_text().count("splittable") == 1


def test_what_is_no_suite_of_one_name_is_not_saved(random_task: Any, tmp_path: Path) -> None:
    task = random_task(np.random.default_rng(0), 4, 2)
    one, same, other = (TaskSuite(*each) for each in (("a", (task,)), ("a", (task,)), ("b", (task,), "train")))
    for suites in ((), (one, same), (one, other)):
        with pytest.raises(InvalidOptionError, match="wants the splits of one suite"):
            save_suite(tmp_path / "x.json", *suites)
    with pytest.raises(InvalidOptionError, match=r"ends in \.json"):
        save_suite(tmp_path / "x.txt", one)
    with pytest.raises(InvalidOptionError, match="must be a TaskSuite"):
        save_suite(tmp_path / "x.json", [task])  # type: ignore[arg-type]
    with pytest.raises(UnwritablePathError):
        save_suite("/proc/x.json", one)
    with pytest.raises(UnwritablePathError, match="embedded null"):
        save_suite(str(tmp_path / "a\0.json"), one)
    with pytest.raises(InvalidOptionError, match=r"path must be the path of a file, which ends in \.json, not 5"):
        save_suite(5, one)  # type: ignore[arg-type]


def _set(path: str, value: Any) -> Any:
    def change(record: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for key in parents:
            record = record[int(key) if key.isdigit() else key]
        if value is KeyError:
            del record[last]
        else:
            record[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_set("schema", 7), "is not a suite"),
        (_set("more", 1), "is not a suite"),
        (_set("splits", {}), "splits must map"),
        (_set("splits/custom", []), "splits must map"),
        (_set("problem", "packing"), "Its problem must be one of placement, replanning, not 'packing'"),
        (_set("padding", [0, 3]), "Its padding must be two integers from 1 to"),
        (_set("version", 1.5), "is not a suite, .*It has version 1.5, but it must be int"),
        (_set("schema", "shard-gym suite 2"), "is not a suite, .*update shard-gym"),
        (_set("splits/custom/0/more", 1), "task 'random' is not valid: It has the unknown key 'more'"),
        (_set("splits/custom/0/topology/device/speed", 1), "task 'random' is not valid: Its device must be"),
        (_set("splits/custom/0/tables/num_embeddings", [0, 1, 2, 3]), "task 'random' is not valid: num_embeddings"),
        (_set("splits/custom/0/tables/workload", KeyError), "task 'random' is not valid: Its tables must be an object"),
        (_set("name", "a\nb"), "The name of a suite is printable text on one line"),
        (_set("version", -1), "version of suite 'mine' must be an integer from 0"),
        (_set("version", 10**4000), "version of suite 'mine' must be an integer from 0"),
        (_set("description", "\x1b[2J"), "description of suite 'mine' must be printable"),
        (
            lambda record: record["splits"].update({"": record["splits"].pop("custom")}),
            "The name of a split is printable",
        ),
        (_set("splits/custom/0/splittable", 1), "It has splittable 1, but it must be bool"),
        (_set("splits/custom/0/name", ""), "task '' is not valid: The name of a task is printable"),
        (_set("splits/custom/0/topology/devices_per_host", 10**30), "devices_per_host must be an integer"),
        (_set("splits/custom/0/topology/host", {}), "task 'random' is not valid: Its host must be an object"),
        (_set("splits/custom/0/topology/host", None), "task 'random' is not valid: Its host must be an object"),
        (_set("splits/custom/0/tables/popularity", None), "task 'random' is not valid: Its popularity must be"),
        (_set("splits/custom/0/tables/popularity", {"zipf": {}}), "Its popularity must be an object with one of law"),
        (_set("splits/custom/0/tables/popularity", {"law": {"q": [0], "s": [1]}}), "but row popularities of 1"),
        (_set("splits/custom/0/tables/workload/workload", 1), "Its workload has the unknown key 'workload'"),
        (_set("splits/custom", [5]), "task without a name is not valid: It must be an object, not 5"),
    ],
)
def test_a_damaged_file_is_named(random_task: Any, tmp_path: Path, change: Any, says: str) -> None:
    path = tmp_path / "mine.json"
    save_suite(path, TaskSuite("mine", (random_task(np.random.default_rng(0), 4, 2),)))
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(DamagedFileError, match=says) as raised:
        load_suite(path)
    assert str(path) in str(raised.value)
    with pytest.raises(DamagedFileError, match="cannot be read"):
        load_suite(tmp_path / "none.json")


def test_a_suite_with_the_name_of_a_shipped_one_has_no_best_known_placements(tmp_path: Path) -> None:
    shipped = load_suite("mixdim-4")
    save_suite(tmp_path / "own.json", TaskSuite(shipped.name, shipped.tasks[:2], shipped.split))
    own = load_suite(tmp_path / "own.json")
    assert own.name == shipped.name
    assert best_known(own, AnalyticalCostModel()) == {}
    assert len(best_known(shipped, AnalyticalCostModel())) == len(shipped)
