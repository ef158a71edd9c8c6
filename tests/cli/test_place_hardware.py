"""`place` with several hardware or numbers of devices: what `what_if` says, printed and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.cli.console import as_options
from shard_gym.common.text import format_ms
from shard_gym.planning import what_if

SEVERAL = {"hardware": "rtx2080ti-pcie,h100-dgx", "num-devices": "1,4", "agent": "cost-greedy"}


def arguments(**options: object) -> list[object]:
    given = {"tables": "merlin-tiny", **SEVERAL, **options}
    return ["place", *(part for key, value in given.items() for part in (f"--{key}", value))]


def words(text: str) -> list[str]:
    return text.replace("─", " ").split()


@pytest.mark.parametrize("columns", [80, 120])
def test_it_prints_what_the_function_says(run: Any, columns: int) -> None:
    price = {"rtx2080ti-pcie": 0.25, "h100-dgx": 4}
    given = ",".join(f"{name}={each}" for name, each in price.items())
    outcome = run.ok(*arguments(price=given), columns=columns)
    found = what_if("merlin-tiny", ["rtx2080ti-pcie", "h100-dgx"], [1, 4], price=price, agent="cost-greedy")
    assert words(outcome.out) == words(as_options(str(found)))
    assert max(map(len, outcome.out.splitlines())) <= columns
    assert outcome.err.count("Lookup statistics are assumed") == 1
    table = [line.split() for line in outcome.out.splitlines() if line.startswith(("rtx", "h100"))]
    assert [row[:2] for row in table] == [[each.hardware, str(each.num_devices)] for each in found.setups]
    assert [row[2] for row in table] == [format_ms(each.cost_ms or 0.0) for each in found.setups]


def test_plans_and_a_picture_are_written(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "plans.json", tmp_path / "setups.png"
    printed = run.ok(*arguments(out=out, plot=plot, price=2)).out
    assert f"Planswrittento{out}.Picturewrittento{plot}." in "".join(printed.split())  # lines break in paths, too
    record = json.loads(out.read_text())
    assert [(each["hardware"], each["num_devices"]) for each in record["setups"]] == [
        *(("rtx2080ti-pcie", 1), ("rtx2080ti-pcie", 4), ("h100-dgx", 1), ("h100-dgx", 4))
    ]
    alone = json.loads(run.ok(*arguments(**{"hardware": "h100-dgx", "num-devices": 4})).out)
    assert record["setups"][3]["planned"] == alone
    assert record["setups"][3]["price_of_device_hour"] == 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compare": "torchrec"}, "--compare is of one plan; name one --hardware and one --num-devices."),
        ({"format": "torchrec"}, "--format torchrec is of one plan"),
        ({"hardware": "a100-dgx,a100"}, "There is no hardware profile named 'a100'."),
        ({"num-devices": "8,x"}, "--num-devices must be an integer, or several with commas between them, not 'x' in"),
        ({"num-devices": "x"}, "--num-devices must be an integer, or several with commas between them, not 'x'."),
        ({"num-devices": "8,0"}, "--num-devices must be an integer from 1 to 4096, not 0."),
        ({"memory-cap-gib": "8,9"}, "Give one number for all, or --reserve."),
        ({"price": "cheap"}, "--price must be a number, or one for each hardware, such as a100-dgx=2.1,h100-dgx=3.9"),
        ({"price": "1,2"}, "--price must be a number, or one for each hardware"),
        ({"price": "h100-dgx="}, "--price must be a number, or one for each hardware"),
        ({"price": "h100-dgx=1"}, "--price has no number for rtx2080ti-pcie; give one for each hardware"),
        ({"plot": "setups.jpg"}, "setups.jpg cannot be a picture"),
        ({"hardware": "h100-dgx", "num-devices": 8, "price": 2}, "--price is for several hardware or numbers of"),
        ({"hardware": "h100-dgx", "num-devices": 8, "plot": "a.png"}, "--plot is for several hardware or numbers of"),
    ],
)
def test_options_that_do_not_suit_are_refused(run: Any, options: dict[str, object], says: str) -> None:
    if "plot" in options:
        pytest.importorskip("matplotlib")
    run.refused(says, *arguments(**options))


def test_a_folder_may_have_commas_in_its_path(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "one,two"
    folder.mkdir()
    run.refused("There is no hardware profile named", *arguments(hardware=folder))
    assert "one,two" in run(*arguments(hardware=folder)).err
