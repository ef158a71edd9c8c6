"""Plans of a user's model on the command line: which agent answers, what a reserve leaves, and devices nearly full."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models import make_cost_model
from shard_gym.hardware import hardware_profile
from shard_gym.interop.plan_files import plan_of_file
from shard_gym.plans import plan_from_json
from shard_gym.plans.memory import training_memory, whole_table_bytes
from shard_gym.tables import Pool, Tables, Workload, load_pool
from shard_gym.tables.pools import save_pool
from shard_gym.tasks import load_suite

MIB, GIB = 2**20, 2**30
BUFFERS = 16 * 2048 + 4 * 1024 * 64  # of a table: indices and offsets, twice; outputs. 0.28 MiB


def tables_of(*mib: int) -> Tables:
    """Tables of so many MiB, in batches of 1,024 samples with a lookup each."""
    rows = np.array(mib) * 4096
    names = [f"table{table}" for table in range(len(mib))]
    return Tables.from_zipf(rows, 64, 1.0, 0.0, Workload(1024, "fp32", "sgd"), names=names)


@pytest.mark.parametrize(
    ("dims", "devices", "columns", "widths"),
    [
        ([100] * 3, 15, 20, [20] * 5),
        ([124, 36], 6, 32, [32, 32, 32, 28]),  # four devices for the first table, two for the second
    ],
)
def test_columns_that_cannot_be_halved_are_planned_written_and_shown(
    run: Any, tmp_path: Path, dims: list[int], devices: int, columns: int, widths: list[int]
) -> None:
    """Room on each device for so many columns of a table and the buffers of one shard; whole tables do not fit."""
    tables = tables_of(*[4] * len(dims)).with_dims(dims)
    room = int(whole_table_bytes(tables.select([0]).with_dims(columns))[0])
    save_pool(Pool("odd", tables, load_pool("dlrm-2021").card), tmp_path / "odd.json")
    options = {
        **{"tables": tmp_path / "odd.json", "hardware": "a100-dgx", "num-devices": devices},
        **{"memory-cap-gib": room / GIB, "host-memory": 0, "agent": "plan-search"},
    }
    command = ["place", *(part for name, value in options.items() for part in (f"--{name}", value))]
    command += ["--option", "sharding_types=table_wise,column_wise", "--option", "max_queries=300"]
    run.ok(*command, "--format", "torchrec", "--module", "ebc", "--out", tmp_path / "theirs.json")
    run.ok(*command, "--out", tmp_path / "ours.json")
    plans = []
    for name in ("theirs.json", "ours.json"):
        topology = hardware_profile("a100-dgx").topology(devices, memory_cap_bytes=room)
        plans.append(plan_of_file(tmp_path / name, tables, topology))
        cost = make_cost_model(additive=True, splits=True).estimate(plans[-1], tables, topology)
        show = [part for name in ("tables", "hardware", "num-devices") for part in (f"--{name}", options[name])]
        shown = run.ok("show", *show, "--plan", tmp_path / name)
        assert f"{cost.total_ms:.4f}" in shown.out
    assert plans[0] == plans[1]
    assert [shard.num_columns for shard in plans[0].tables[0].shards] == widths


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(*mib: int) -> Path:
        path = tmp_path / "mine.json"
        save_pool(Pool("mine", tables_of(*mib), load_pool("dlrm-2021").card), path)
        return path

    return write


def place(file: Path, **options: Any) -> list[object]:
    given = {"hardware": "a100-dgx", "num-devices": 2} | {
        name.replace("_", "-"): each for name, each in options.items()
    }
    return ["place", "--tables", file, *(part for key, value in given.items() for part in (f"--{key}", value))]


def test_the_agent_that_answers_is_named_in_the_plan(run: Any, file: Callable[..., Path]) -> None:
    path = file(4, 1, 1)
    whole = json.loads(run.ok(*place(path), "--whole").out)
    assert whole["agent"] == "local-search"
    assert list(whole["placement"]) == ["table0", "table1", "table2"]
    options = {"memory_cap_gib": 4 / 1024, "option": "max_queries=300"}
    content = json.loads(run.ok(*place(path, **options)).out)
    assert content["agent"] == "plan-search"
    says = "Agent 'local-search' places whole tables, but table table0 needs 4.28 MiB with its buffers, and a device"
    run.refused(says, *place(path, **options, host_memory=0), "--whole")
    tables, topology = tables_of(4, 1, 1), hardware_profile("a100-dgx").topology(2, memory_cap_bytes=4 * MIB)
    memory = training_memory(plan_from_json(content["plan"], tables, topology), tables, 2)
    assert memory.total.max() <= 4 * MIB


def test_a_reserve_lowers_what_tables_may_take(run: Any, file: Callable[..., Path], tmp_path: Path) -> None:
    path = file(1000, 500)

    def memory(**options: Any) -> str:
        out = run.ok(*place(path, agent="size-greedy", out=tmp_path / "plan.json", **options)).out
        return str(out[out.index("Memory of a training step") : out.index("Sent in")])

    kept = memory()
    assert "GiB of 80.00" in kept
    assert [line.split() for line in kept.splitlines() if line.startswith("device")] == [
        ["device", "0", "0.98", "0.00", "12.00", "67.02"],
        ["device", "1", "0.49", "0.00", "12.00", "67.51"],
    ]
    assert "reserve: dense parameters, activations, allocator" in " ".join(kept.split())
    assert ["device", "0", "0.98", "0.00", "40.00", "39.02"] in [
        line.split() for line in memory(reserve=0.5).splitlines()
    ]
    for options, of in (({"reserve": 0}, "80.00"), ({"memory_cap_gib": 80}, "80.00"), ({"memory_cap_gib": 2}, "2.00")):
        capped = memory(**options)
        assert "reserve" not in capped
        assert f"GiB of {of}" in capped
    run.refused("have 1.60 GiB for both", *place(file(1000, 1000), reserve=0.99, host_memory=0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"reserve": 1},
            "--reserve must be a share of a device's memory of at least 0 and below 1, such as 0.15, not 1.0",
        ),
        ({"reserve": "nan"}, "--reserve must be a share of a device's memory"),
        ({"reserve": "1e300"}, "--reserve must be a share of a device's memory"),
        ({"reserve": "-0.1"}, "--reserve must be a share of a device's memory"),
        ({"reserve": 0.2, "memory_cap_gib": 3}, "Give one of them."),
    ],
)
def test_an_impossible_reserve_is_a_sentence(
    run: Any, file: Callable[..., Path], options: dict[str, object], says: str
) -> None:
    run.refused(says, *place(file(1, 1), **options))


# Devices that are nearly full


def test_the_fullest_device_is_named_with_the_table_to_move(run: Any, file: Callable[..., Path]) -> None:
    """In turn: 4 + 1 + 1 MiB and 1 MiB. Without one of 1 MiB, the first has 5.56 of 6.9 MiB."""
    path = file(4, 1, 1, 1)
    (path.parent / "mine.py").write_text("def mine(task):\n    return [0, 0, 0, 1]\n")
    options = {"agent": f"{path.parent}/mine.py:mine", "memory_cap_gib": 6.9 / 1024}
    err = run.ok(*place(path, **options), columns=400).err
    assert (
        "Device 0 is nearly full: tables and buffers take 6.84 MiB of 6.90 MiB, 99.2 %. To bring it to 90%, move "
        "table1 (1.28 MiB) to device 1, which stays below that." in err
    )
    assert "nearly full" not in run.ok(*place(path, **options | {"memory_cap_gib": 7.7 / 1024}), columns=400).err


def test_what_is_advised_where_no_move_is_enough_is_enough(run: Any, file: Callable[..., Path]) -> None:
    """In turn: on three devices one table each; and two on the first, with a small one whose move is not enough."""
    path, fraction, quick = file(4, 4, 4), 4.4 / 1024, {"option": "max_queries=300"}
    err = run.ok(*place(path, num_devices=3, memory_cap_gib=fraction, **quick), columns=400).err
    assert (
        "Device 0 is nearly full: tables and buffers take 4.28 MiB of 4.40 MiB, 97.3 %. So are 2 other devices. No "
        "move of one table brings it to 90%. 4.76 MiB for both on each device would, or another plan for" in err
    )
    roomy = place(path, num_devices=3, memory_cap_gib=4.76 / 1024, **quick)
    assert "nearly full" not in run.ok(*roomy, columns=400).err
    found = re.search(r"another plan for (\d+) devices", err)
    assert found is not None
    assert "nearly full" not in run.ok(*place(path, num_devices=int(found[1]), memory_cap_gib=fraction)).err
    path = file(16, 1, 4)
    (path.parent / "mine.py").write_text("def mine(task):\n    return [0, 0, 1]\n")
    options = {"agent": f"{path.parent}/mine.py:mine", "memory_cap_gib": 17.7 / 1024}
    err = run.ok(*place(path, **options), columns=400).err
    assert "Device 0 is nearly full" in err
    assert "No move of one table brings it to 90%." in err


def test_show_lists_the_fullest_devices_of_a_suite(run: Any) -> None:
    out = run.ok("show", "--suite", "dlrm-40x8", "--agent", "size-greedy", "--devices", 3, "--moves", 0).out
    listed = out[out.index("Memory of a training step, GiB of 11.00") : out.index("Sent in")]
    rows = [line.split() for line in listed.splitlines() if line.startswith("device")]
    assert len(rows) == 3
    assert all(
        float(held) + float(buffers) + float(free) == pytest.approx(11, abs=0.02) for _, _, held, buffers, free in rows
    )
    assert "3 devices shown, the fullest; 5 left out." in listed


def test_on_a_machine_with_less_memory_than_the_caps_of_a_suite_the_caps_count(run: Any, machine: type) -> None:
    """Measured on CPUs, whose processes have 8 GiB by assumption."""
    cap = int(load_suite("gpu-40x4")[0].topology.memory_cap_bytes[0])
    assert cap > hardware_profile("cpu").device.memory_bytes
    command = ["show", "--suite", "gpu-40x4", "--agent", "size-greedy", "--cost-model", "measured", "--moves", 0]
    assert f"Memory of a training step, GiB of {cap / GIB:.2f}" in run.ok(*command).out
