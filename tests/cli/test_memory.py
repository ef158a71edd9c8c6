"""Memory caps on the command line: one number, or one for each device; what plans may take, what is shown and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.cost_models import make_cost_model
from shard_gym.hardware import Topology, hardware_profile
from shard_gym.interop.plan_files import plan_of_file
from shard_gym.planning import explain_plan
from shard_gym.plans import plan_of_placement
from shard_gym.plans.memory import training_memory
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool
from shard_gym.tasks import Task

MIB, GIB = 2**20, 2**30
A100 = hardware_profile("a100-dgx")
UNLIKE = (19, 10)  # MiB of two devices: by bytes and with buffers, four tables of 4 MiB fit the first, two the second


def tables_of(*mib: int) -> Tables:
    """Tables of so many MiB, each with buffers of 0.28 MiB."""
    names = [f"table{table}" for table in range(len(mib))]
    rows = np.array(mib) * 4096
    return Tables.from_zipf(rows, 64, 1.0, 0.0, Workload(1024, "fp32", "sgd"), names=names)


def gib(*mib: float) -> str:
    return ",".join(str(each / 1024) for each in mib)


@pytest.fixture
def tables() -> Tables:
    return tables_of(*[4] * 6)


@pytest.fixture
def command(tables: Tables, tmp_path: Path) -> Callable[..., list[object]]:
    path = tmp_path / "mine.json"
    save_pool(Pool("mine", tables, load_pool("dlrm-2021").card), path)

    def words(name: str, *more: object, devices: int = 2) -> list[object]:
        return [name, "--tables", path, "--hardware", "a100-dgx", "--num-devices", devices, *more]

    return words


def placement_file(path: Path, tables: Tables, placement: list[int]) -> Path:
    path.write_text(json.dumps({"placement": dict(zip(tables.names, placement, strict=True))}))
    return path


@pytest.mark.parametrize(
    ("more", "caps"),
    [
        (["--option", "max_queries=300"], UNLIKE),
        (["--option", "max_queries=300"], UNLIKE[::-1]),
        (["--whole", "--agent", "local-search", "--option", "max_queries=300"], UNLIKE),
        (["--agent", "size-greedy"], UNLIKE[::-1]),
        (["--agent", "torchrec"], UNLIKE[::-1]),
    ],
)
def test_plans_are_within_the_cap_of_each_device(
    run: Any, command: Any, tables: Tables, tmp_path: Path, more: list[str], caps: tuple[int, int]
) -> None:
    """The tables with their buffers take 25.7 of 29 MiB; no placement fits two devices of less than 17.1 MiB."""
    if "torchrec" in more:
        pytest.importorskip("torchrec")
    plan = tmp_path / "plan.json"
    out = run.ok(*command("place", *more, "--memory-cap-gib", gib(*caps), "--out", plan)).out
    found = plan_of_file(plan, tables, A100.topology(2))
    assert (training_memory(found, tables, 2).total <= np.array(caps) * MIB).all()
    assert (training_memory(found, tables, 2).total > 8 * MIB).all()
    row = next(line.split() for line in out.splitlines() if line.startswith("device 0"))
    assert row[2] == f"{caps[0] / 1024:.2f}"


@pytest.mark.parametrize("agent", ["size-greedy", "local-search", "plan-search"])
def test_the_caps_are_those_of_a_topology_in_python(run: Any, command: Any, tables: Tables, agent: str) -> None:
    searches = ["--option", "max_queries=300"] * (agent == "plan-search")
    caps = (40, 6.9) if searches else UNLIKE  # by bytes alone, which Python has, buffers fit, too
    options = ["--agent", agent, *searches, "--balance", "no"]
    content = json.loads(run.ok(*command("place", *options, "--memory-cap-gib", gib(*caps))).out)
    topology = A100.topology(2, memory_cap_bytes=np.array([int(each / 1024 * GIB) for each in caps]))
    task = Task("mine", tables, topology, splittable=agent == "plan-search")
    if agent == "plan-search":
        answer: Any = make_agent(agent, max_queries=300).plan(task)  # type: ignore[attr-defined]
        cost = make_agent(agent).cost_model.estimate(answer, tables, topology)  # type: ignore[attr-defined]
    else:
        answer = make_agent(agent).place(task)
        cost = make_cost_model("analytical").estimate(answer, tables, topology)
        assert list(content["placement"].values()) == np.asarray(answer).tolist()
    assert content["cost_ms"] == cost.total_ms


def test_a_device_over_its_own_cap_alone_is_named(run: Any, command: Any, tables: Tables, tmp_path: Path) -> None:
    plan = placement_file(tmp_path / "old.json", tables, [0, 0, 0, 0, 1, 1])
    show = ["--plan", plan, "--memory-cap-gib"]
    fits = run.ok(*command("show", *show, gib(*UNLIKE), "--devices", 2))
    assert "exceeds" not in fits.err
    assert "Device 0 is nearly full: tables and buffers take 17.12 MiB of 19.00 MiB, " in fits.err
    assert " 19.03 MiB for both on each device that has less would, or another plan for 2 devices with" in fits.err
    over = run.ok(*command("show", *show, gib(*UNLIKE[::-1])), columns=200)
    assert (
        "old.json exceeds the memory: device 0 would hold 16.00 MiB of tables and 1.12 MiB of buffers, 7.12 MiB more "
        "than the 10.00 MiB for both.\n"
    ) in over.err
    other = run.ok(*command("show", *show, gib(19, 8)), columns=200)
    assert "device 1 would hold 8.00 MiB of tables" in other.err
    compared = run.ok(*command("place", "--whole", "--compare", plan, "--memory-cap-gib", gib(*UNLIKE[::-1])))
    assert "old.json exceeds the memory: device 0 would hold 16.00 MiB" in " ".join(compared.err.split())
    assert json.loads(compared.out)["compared"]["fullest_device"]["device"] == 0


def test_devices_with_different_caps_have_them_in_the_tables(run: Any, command: Any, tmp_path: Path) -> None:
    tables = tables_of(*[4] * 6)
    plan = placement_file(tmp_path / "old.json", tables, [0, 0, 1, 1, 2, 2])
    shown = run.ok(*command("show", "--plan", plan, "--memory-cap-gib", "40,20,0.5", devices=3), columns=200).out
    costs, _, memory = shown.partition("Memory of a training step, GiB\n")
    assert [f"0.01/{cap}" for cap in ("40.00", "20.00", "0.50")] == [
        word for word in costs.split() if word.startswith("0.01/")
    ]
    assert "cap" in memory.split("device 0")[0]
    rows = [line.split()[1:] for line in memory.splitlines() if line.startswith("device")]
    assert rows == [
        ["0", "40.00", "0.01", "0.00", "39.99"],
        ["1", "20.00", "0.01", "0.00", "19.99"],
        ["2", "0.50", "0.01", "0.00", "0.49"],
    ]
    few = run.ok(*command("show", "--plan", plan, "--memory-cap-gib", "40,20,0.5", "--devices", 1, devices=3)).out
    assert "device 2" in few.partition("Memory of a training step")[2]  # the one with least room left


@pytest.mark.parametrize(
    ("caps", "devices", "says"),
    [
        ("40,40,20", 4, "--memory-cap-gib has 3 numbers, '40,40,20', for 4 devices. Give one number for all devices,"),
        ("40,20", 1, "--memory-cap-gib has 2 numbers, '40,20', for 1 device."),
        ("40,0", 2, "--memory-cap-gib must be a positive number, or one for each device, not '0' in '40,0'."),
        ("40,nan", 2, "not 'nan' in '40,nan'."),
        ("40,-3", 2, "not '-3' in '40,-3'."),
        ("40,", 2, "not '' in '40,'."),
        ("forty", 2, "with commas between them, not 'forty'."),
        ("nan", 2, "not 'nan'."),
        ("20,81", 2, "--memory-cap-gib is 81, but a device (A100-SXM4-80GB) has 80.00 GiB of memory."),
        ("40,20", 0, "--num-devices must be an integer from 1 to 4096, not 0."),
    ],
)
@pytest.mark.parametrize("name", ["place", "show"])
def test_caps_that_are_none_are_sentences(
    run: Any, command: Any, tmp_path: Path, tables: Tables, name: str, caps: str, devices: int, says: str
) -> None:
    plan = ["--plan", placement_file(tmp_path / "old.json", tables, [0] * 6)] if name == "show" else []
    run.refused(says, *command(name, *plan, "--memory-cap-gib", caps, devices=devices))


def test_one_number_and_equal_numbers_are_the_same_caps(tables: Tables) -> None:
    def devices(caps: float | list[float], **options: Any) -> Topology:
        return explain_plan(
            tables, plan_of_placement([0] * 6, tables), A100, 3, memory_cap_gib=caps, **options
        ).topology

    one, equal = devices(2.5), devices([2.5] * 3)
    assert one.memory_cap_bytes.tolist() == equal.memory_cap_bytes.tolist()
    assert one.host is not None
    assert one.host.hbm_bytes == 5 * GIB // 2
    given = devices([2.5] * 3, host_memory=10).host
    assert given is not None
    assert given.total_bytes == 10 * GIB


def test_host_memory_needs_one_cap(run: Any, command: Any) -> None:
    caps = ["--memory-cap-gib", gib(9, 5)]
    says = "with host memory all devices have one memory cap, that of their HBM. Give one number to --memory-cap-gib,"
    run.refused(says, *command("place", *caps, "--host-memory", 1))
    says = "are missing. 3 devices with 9.00 MiB each would hold them."
    err = run.refused(says, *command("place", *caps)).err
    assert "Host memory could hold rows of them, but with it all devices have one memory cap:" in " ".join(err.split())
    assert run(*command("place", "--memory-cap-gib", gib(9, 9), "--option", "max_queries=100")).code == 0
