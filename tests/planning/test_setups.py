"""`what_if`, through its public door: what it returns is what `shard-gym place` prints of several hardware."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import (
    InvalidConstraintsError,
    InvalidOptionError,
    InvalidTablesError,
    InvalidTopologyError,
    NoPlacementFoundError,
    UnknownNameError,
)
from shard_gym.common.report import Note
from shard_gym.hardware import hardware_profile
from shard_gym.planning import plan, reading, what_if
from shard_gym.tables import Tables, Workload
from shard_gym.tasks import Task

GIB = 2**30
QUICK: dict[str, Any] = {"agent": "cost-greedy"}


def tables_of(*rows: int, **more: Any) -> Tables:
    """Tables of so many rows x 64, FP16."""
    of_all = {"names": [f"table{each}" for each in range(len(rows))], **more}
    return Tables.from_zipf(rows, 64, np.full(len(rows), 5.0), np.full(len(rows), 1.05), Workload(65_536), **of_all)


FOUR = tables_of(2_000_000, 1_000_000, 500_000, 40_000)
LARGE = tables_of(400_000_000, 400_000_000, 400_000_000, 400_000_000)  # 49.2 GiB each, with rowwise Adagrad
TWO = ["a100-dgx", "h100-dgx"]


def test_each_setup_has_the_plan_that_plan_makes() -> None:
    found = what_if(FOUR, TWO, [2, 4], agent_options={"max_queries": 200})
    of = [(each.hardware, each.num_devices) for each in found.setups]
    assert of == [("a100-dgx", 2), ("a100-dgx", 4), ("h100-dgx", 2), ("h100-dgx", 4)]
    for each in found.setups:
        alone = plan(FOUR, each.hardware, each.num_devices, agent_options={"max_queries": 200})
        assert each.planned is not None
        assert each.planned.plan == alone.plan
        assert each.cost_ms == alone.cost_ms
        device, used, cap = each.fullest or (0, 0, 0)
        assert (used, cap) == (alone.memory.total.max(), alone.room[device])
        assert (alone.memory.total[device], cap) == (used, int(0.85 * 80 * GIB))


def test_hours_and_prices_by_hand() -> None:
    """An iteration of ms on D devices takes ms x D device-ms, and 1e9 samples take 1e9 / 65,536 iterations."""
    found = what_if(FOUR, TWO, 4, price={"h100-dgx": 3.0, "a100-dgx": 0.5}, **QUICK)
    for each, price in zip(found.setups, (0.5, 3.0), strict=True):
        assert each.cost_ms is not None
        hours = each.cost_ms / 1000 * 4 / 3600 * 1e9 / 65_536
        assert each.device_hours == pytest.approx(hours, rel=1e-12)
        assert each.price_of_samples == pytest.approx(price * hours, rel=1e-12)
    assert found.fastest is found.setups[1]
    assert found.cheapest is found.setups[0]
    text = str(found)
    assert "Fastest that fits: 4 x h100-dgx" in text
    assert "Cheapest that fits: 4 x a100-dgx" in text
    assert "price" in text.splitlines()[3]
    same = what_if(FOUR, TWO, 4, price=2, **QUICK)
    assert same.cheapest is same.setups[1]
    without = what_if(FOUR, TWO, 4, **QUICK)
    assert "Fewest device-hours: 4 x h100-dgx" in str(without)
    assert "price_of_1e9_samples" not in without.to_json()["setups"][0]


def test_of_setups_that_are_as_fast_the_smaller_one_is_the_fastest() -> None:
    """One table on one of the devices, whatever their number."""
    found = what_if(tables_of(1_000), "a100-dgx", [1, 1], **QUICK)
    assert len(found.setups) == 1  # named twice
    found = what_if(tables_of(1_000, 1_000), "a100-dgx", [2, 1], **QUICK)
    costs = {each.num_devices: each.cost_ms for each in found.setups}
    assert found.fastest is not None
    assert costs[found.fastest.num_devices] == min(costs.values())


def test_what_does_not_fit_is_told_and_loses_none_of_the_others() -> None:
    """Four tables of 49.2 GiB: whole on two B200, on four A100, and not on two A100."""
    seen: list[str] = []
    options: dict[str, Any] = {"host_memory": 0, "on_setup": lambda setup: seen.append(setup.label), **QUICK}
    found = what_if(LARGE, ["a100-dgx", "b200-dgx"], [2, 4], **options)
    assert seen == [each.label for each in found.setups]
    assert [each.planned is not None for each in found.setups] == [False, True, True, True]
    misfit, text = found.setups[0], str(found)
    assert misfit.fullest is misfit.cost_ms is misfit.price_of_samples is None
    needed = LARGE.memory_bytes.sum() - 2 * int(0.85 * 80 * GIB)
    assert needed < misfit.missing_bytes < needed + GIB  # buffers
    assert f"{misfit.missing_bytes / GIB:.2f} GiB missing" in text
    assert f"2 x a100-dgx: The tables of the model need {misfit.why_not.split('need ')[1]}" in text
    assert "devices of this kind" in misfit.why_not
    with pytest.raises(NoPlacementFoundError, match="GiB are missing") as alone:
        plan(LARGE, "a100-dgx", 2, host_memory=0, **QUICK)
    assert str(alone.value) == misfit.why_not
    nothing = what_if(LARGE, "a100-dgx", [1, 2], host_memory=0, **QUICK)
    assert nothing.fastest is nothing.cheapest is None
    assert "None of these fits." in str(nothing)
    assert nothing.to_json()["fastest"] is None
    assert str(nothing).count("GiB are missing") == 1  # the larger one says it for both


def test_how_many_devices_would_hold_the_tables_is_said_of_each_hardware() -> None:
    found = what_if(LARGE, ["h100-dgx", "b200-dgx", "a100-dgx"], 1, host_memory=0, **QUICK)
    text, enough = str(found), [each.enough for each in found.setups]
    for each, number in zip(found.setups, enough, strict=True):
        assert number is not None
        assert f"{number} devices of this kind" in each.why_not
    assert text.count("GiB are missing") == 1
    assert f"\n1 x h100-dgx: {found.setups[0].why_not}\n" in text
    assert f"\nOf the others, {enough[1]} x b200-dgx, {enough[2]} x a100-dgx would hold them." in text
    assert [each["devices_that_hold"] for each in found.to_json()["setups"]] == enough


def test_options_that_suit_some_setups_alone_lose_none_of_the_others() -> None:
    found = what_if(FOUR, ["a100-dgx", "h200-dgx"], [4, 16], whole=True, memory_cap_gib=100)
    assert [each.planned is not None for each in found.setups] == [False, False, True, False]
    assert "a device (A100-SXM4-80GB) has 80.00 GiB of memory" in found.setups[0].why_not
    assert "the model has 4 tables: the other devices would stay empty" in found.setups[3].why_not
    assert str(found).count("no plan") == 3
    with pytest.raises(InvalidOptionError, match=r"`memory_cap_gib` is 100, but a device .* has 80\.00 GiB"):
        what_if(FOUR, TWO, [2, 4], memory_cap_gib=100)
    with pytest.raises(InvalidTopologyError, match="multiple of the 4 devices of a host, not 6"):
        what_if(FOUR, "gb200-nvl72", [2, 4], devices_per_domain=6)


def test_constraints_hold_in_each_plan_and_a_device_that_is_not_there_loses_none_of_the_others() -> None:
    pinned = {"tables": {"table0": {"devices": [3]}}}
    found = what_if(FOUR, "a100-dgx", [2, 4, 8], constraints=pinned, agent_options={"max_queries": 200})
    assert [each.planned is not None for each in found.setups] == [False, True, True]
    for each in found.setups[1:]:
        assert each.planned is not None
        assert [shard.device for shard in each.planned.plan.tables[0].shards] == [3]
    with pytest.raises(InvalidConstraintsError, match="device") as alone:
        plan(FOUR, "a100-dgx", 2, constraints=pinned)
    assert found.setups[0].why_not == str(alone.value)
    with pytest.raises(InvalidConstraintsError, match="device"):
        what_if(FOUR, TWO, 2, constraints=pinned)


def test_the_same_reason_is_said_once() -> None:
    text = str(what_if(FOUR, [*TWO, "h200-dgx"], [2, 16], whole=True))
    assert "16 x a100-dgx, 16 x h100-dgx, 16 x h200-dgx: `num_devices` is 16, but the model has 4 tables" in text


def test_rows_in_host_memory_have_a_column() -> None:
    found = what_if(LARGE, ["a100-dgx", "b200-dgx"], 2, **QUICK)
    assert [each.host_bytes > 0 for each in found.setups] == [True, False]
    first = found.setups[0]
    assert first.planned is not None
    assert first.host_bytes == first.planned.memory.host.sum()
    _, used, cap = first.fullest or (0, 0, 0)
    assert used <= cap == int(0.85 * 80 * GIB)
    assert "in hosts" in str(found)
    assert "in hosts" not in str(what_if(FOUR, TWO, 2, **QUICK))


def test_what_a_longer_search_may_improve_is_said() -> None:
    many = tables_of(*range(900_000, 1_500_000, 30_000))
    found = what_if(many, "h100-dgx", [8, 16], agent_options={"max_queries": 100})
    ended = [each.planned.to_json()["search"]["ended_by"] for each in found.setups if each.planned]
    assert ended == ["budget", "budget"]
    longer = "`agent_options={'max_queries': 500}` searches longer."
    assert f"\nOf 8 x h100-dgx, 16 x h100-dgx the budget ended the search; {longer}\n" in str(found)
    assert "the budget ended" not in str(what_if(FOUR, TWO, 2, **QUICK))


def test_errors_of_the_cost_model_stand_below() -> None:
    lines = [line for line in str(what_if(FOUR, TWO, 2, **QUICK)).splitlines() if line.startswith("Mean error")]
    assert [line.split(": ")[0].split(", ")[-1] for line in lines] == TWO
    assert "forward 10% of 16" in lines[0]


def test_the_json_has_every_number_and_every_plan() -> None:
    found = what_if(LARGE, ["b200-dgx", "a100-dgx"], [2, 4], price=2.5, host_memory=0, **QUICK)
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["samples"] == 65_536
    assert [each["fits"] for each in record["setups"]] == [True, True, False, True]
    for number, name in ((record["fastest"], "fastest"), (record["cheapest"], "cheapest")):
        assert found.setups[number] is getattr(found, name)
    first, misfit = record["setups"][0], record["setups"][2]
    assert first["price_of_1e9_samples"] == found.setups[0].price_of_samples
    assert first["planned"] == json.loads(json.dumps(plan(LARGE, "b200-dgx", 2, host_memory=0, **QUICK).to_json()))
    assert first["fullest_device"]["bytes"] <= first["fullest_device"]["cap_bytes"]
    assert misfit["why_not"] == found.setups[2].why_not
    assert misfit["missing_bytes"] > 0


def test_lookups_are_counted_once_for_all_setups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, columns = np.random.default_rng(0), {}
    for table in range(2):
        columns |= {f"table{table}.lengths": np.full(512, 2), f"table{table}.values": rng.integers(0, 1_000, 1024)}
    np.savez(tmp_path / "log.npz", **columns)
    told: list[Note] = []
    read = []
    real = reading.lookups_of_file
    monkeypatch.setattr(reading, "lookups_of_file", lambda *args: read.append(args[0]) or real(*args))
    options: dict[str, Any] = {"lookups": tmp_path / "log.npz", "batch_size": 256, "weight_dtype": "fp32", **QUICK}
    found = what_if(tables_of(1_000, 1_000), TWO, [1, 2], on_note=told.append, **options)
    assert len(read) == 1
    (alone, *_) = found.setups
    assert alone.planned is not None
    assert alone.cost_ms == plan(tables_of(1_000, 1_000), "a100-dgx", 1, **options).cost_ms
    assert alone.samples == 256
    assert alone.planned.model.tables.workload.weight_dtype == "fp32"


def test_what_holds_for_all_is_said_once_and_warnings_name_their_setup() -> None:
    """Of what a reserve of 40% leaves, the tables fill 97% of two A100, and less of two H200."""
    nearly = tables_of(*[190_000_000] * 4)
    found = what_if("merlin-tiny", TWO, [1, 2], **QUICK)
    assert sum("Lookup statistics are assumed" in note.text for note in found.notes) == 1
    found = what_if(nearly, ["a100-dgx", "h200-dgx"], 2, reserve=0.4, host_memory=0, **QUICK)
    (warning,) = [note for note in found.notes if note.is_warning]
    assert warning.text.startswith("2 x a100-dgx: Device ")
    assert "nearly full" in warning.text


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"hardware": ["a100-dgx", "a100"]}, UnknownNameError, "no hardware profile named 'a100'"),
        ({"hardware": []}, InvalidOptionError, "`hardware` is empty"),
        ({"num_devices": []}, InvalidOptionError, "`num_devices` is empty"),
        ({"num_devices": [2, 0]}, InvalidOptionError, "`num_devices` must be an integer from 1 to 4096, not 0"),
        ({"price": -1}, InvalidOptionError, "`price` must be a positive number, not -1"),
        ({"price": "2.1"}, InvalidOptionError, "`price` must be a number, or a mapping"),
        ({"price": {"a100-dgx": 2.0}}, InvalidOptionError, "`price` has no number for h100-dgx"),
        ({"price": {"a100-dgx": 2, "h100-dgx": 0}}, InvalidOptionError, "`price` of 'h100-dgx' must be a positive"),
        ({"price": {"a100-dgx": 2, "b200": 1}}, InvalidOptionError, "a number for 'b200', which is not planned"),
        ({"memory_cap_gib": [40, 20]}, InvalidOptionError, "Give one number for all, or `reserve`"),
        ({"hardware": hardware_profile("cpu").topology(2)}, InvalidOptionError, "`hardware` is a Topology"),
        ({"agent": "nobody"}, UnknownNameError, "no agent named 'nobody'"),
        ({"agent_options": {"name": "x"}}, InvalidOptionError, "`agent_options` has 'name'"),
        ({"lookups": 3}, InvalidOptionError, "`lookups` must be paths"),
        ({"model_or_tables": "nothing"}, UnknownNameError, "nothing"),
        ({"compare": "torchrec"}, TypeError, r"what_if\(\) got an unexpected keyword argument 'compare'"),
        ({"options": {}}, TypeError, "argument 'options'. Did you mean 'agent_options'?"),
        ({"model_or_tables": tables_of(9, 9, names=["a", "a"])}, InvalidTablesError, "are named 'a'"),
    ],
)
def test_what_suits_no_setup_is_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        what_if(**{"model_or_tables": FOUR, "hardware": TWO, "num_devices": [1, 2], **arguments})


def test_a_task_has_devices_of_its_own() -> None:
    task = Task("mine", FOUR, hardware_profile("a100-dgx").topology(2))
    with pytest.raises(InvalidOptionError, match="A task has devices of its own"):
        what_if(task, "a100-dgx", [1, 2])


def test_profiles_may_be_given_themselves() -> None:
    profile = hardware_profile("a100-dgx")
    by_name, given = (what_if(FOUR, each, 2, price={"a100-dgx": 1.0}, **QUICK) for each in ("a100-dgx", [profile]))
    assert str(by_name) == str(given)
    assert repr(given) == "Setups('model', 1 plan for 1 setup)"


def test_the_figure_has_a_line_for_each_hardware_and_a_cross_for_what_does_not_fit() -> None:
    pytest.importorskip("matplotlib")
    found = what_if(LARGE, ["a100-dgx", "b200-dgx"], [2, 4], price=2.5, host_memory=0, **QUICK)
    figure = found.figure()
    assert [axes.get_ylabel() for axes in figure.axes] == [
        *("cost, ms", "memory of the fullest device, %", "price of 1e9 samples")
    ]
    for axes, name in zip(figure.axes, ("cost_ms", "percent_full", "price_of_samples"), strict=True):
        drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
        for hardware in ("a100-dgx", "b200-dgx"):
            own = [each for each in found.setups if each.hardware == hardware and each.planned is not None]
            assert drawn[hardware] == [[each.num_devices, getattr(each, name)] for each in own]
        crosses = [line for line in axes.get_lines() if line.get_marker() == "x" and len(line.get_xdata())]
        assert [float(line.get_xdata()[0]) for line in crosses] == [pytest.approx(2, rel=0.1)]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "4"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a100-dgx", "b200-dgx", "does not fit"]
    hours = what_if(FOUR, "a100-dgx", 2, **QUICK).figure()
    assert hours.axes[2].get_ylabel() == "device-hours of 1e9 samples"
