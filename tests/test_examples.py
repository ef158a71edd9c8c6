"""The programs of examples/ and its notebook run as they are and print what they promise."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shard_gym import Evaluation, Task, TaskSuite
from shard_gym.hardware import hardware_profile
from shard_gym.planning import plan
from shard_gym.plans.placement import check_placement
from shard_gym.tables import load_pool

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Runs one in an empty folder and returns what it printed."""

    def run(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_custom_agent_is_scored_as_its_page_says(run_example) -> None:
    page = (EXAMPLES.parent / "docs" / "tutorials" / "own-agent.md").read_text(encoding="utf-8")
    printed = run_example("custom_agent.py")
    assert re.fullmatch(r"distinct-greedy: \d+\.\d\d ms, failed on \d+ of 50 tasks\n", printed)
    assert f"```text\n{printed}```\n" in page


def test_the_custom_tables_are_a_pool(run_example, tmp_path: Path) -> None:
    assert "shard-gym place --tables my_tables.json" in run_example("make_tables.py")
    assert load_pool(tmp_path / "my_tables.json").tables.names == ("user", "item", "history", "shop", "hour")


def test_generative_recommenders_are_planned_for_8_and_64_devices(run_example, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shorter search. The largest tables are in blocks of rows on all devices, and lie in their memory."""
    monkeypatch.setattr("shard_gym.planning.plan", partial(plan, agent_options={"max_queries": 2_000}))
    printed = run_example("generative_recommenders.py")
    plans = re.findall(r"^(\S+) on (\d+) devices of h200-dgx, ([\d,]+) samples\n  (.*)\n((?:  \w.*\n)+)", printed, re.M)
    assert [each[:3] for each in plans] == [
        ("mlperf-dlrm-v3", "8", "80"),
        ("mlperf-dlrm-v3", "64", "640"),
        ("hstu-kuairand", "8", "128"),
        ("hstu-kuairand", "64", "1,024"),
    ]
    for name, devices, _, found, lines in plans:
        assert re.search(rf"^  (item|video)_id +row_wise +{devices} shards$", lines, re.MULTILINE)
        assert lines.count("\n") == len(load_pool(name))
        numbers = re.fullmatch(
            r"([\d.]+) ms; the fullest device has ([\d.]+) GiB in HBM and ([\d.]+) in host .*", found
        )
        assert numbers is not None
        assert float(numbers[2]) < 0.86 * 140.4


def test_a_clone_of_a_heuristic_is_between_it_and_random(
    run_example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari")
    pytest.importorskip("torch")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    out = run_example("minari_dataset.py")
    assert "dlrm-20x4/example-v0: 50 episodes, 1000 steps of cost-greedy" in out
    costs = {name: float(cost) for name, cost in re.findall(r"^([\w-]+): ([\d.]+) ms", out, re.MULTILINE)}
    assert costs["cost-greedy"] < costs["clone"] < costs["random"]


QUICKSTART, MODEL = (
    json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")) for name in ("quickstart", "bring_your_model")
)


@pytest.mark.parametrize("notebook", [QUICKSTART, MODEL], ids=["quickstart", "bring_your_model"])
def test_notebooks_are_stored_without_outputs(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def shown(cell: dict[str, Any], names: dict[str, Any]) -> Any:
    """Runs a cell and returns the value of its last expression, as a notebook does."""
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, cell["id"], "exec"), names)
    return eval(compile(ast.Expression(last.value), cell["id"], "eval"), names) if isinstance(last, ast.Expr) else None


def values_of(notebook: dict[str, Any], names: dict[str, Any]) -> list[Any]:
    return [shown(cell, names) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "sb3_contrib", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    values = values_of(QUICKSTART, names)
    pictures = [value._repr_png_() for value in values if hasattr(value, "_repr_png_")]
    assert len(pictures) == 5
    pages = [value._repr_html_() for value in values if isinstance(value, (TaskSuite, Task, Evaluation))]
    assert len(pages) == 3
    assert all(page.startswith("<") for page in pages)
    costs = {name: result.mean_cost_ms for name, result in names["results"].items()}
    assert costs["cost-greedy"] < costs["lookup-greedy"] < costs["random"]
    assert costs["maskable-ppo"] < costs["random"]
    placed = [names["ranks"][name] for name in names["mine"].tables.names]
    check_placement(placed, names["mine"].tables, names["mine"].topology)


def test_a_model_of_torchrec_becomes_a_plan_that_trains(
    forks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a table larger than a device, recorded lookups, two hosts, and two processes on Gloo.

    The program that trains runs in this process, and its processes are forks of one that has imported TorchRec.
    """
    pytest.importorskip("torchrec")
    log = tmp_path / "printed.txt"

    def run(command: list[Any], *, capture_output: bool, text: bool, check: bool) -> subprocess.CompletedProcess[str]:
        assert (command, capture_output, text, check) == (
            [sys.executable, Path("train_with_plan.py")],
            True,
            True,
            True,
        )
        before = capsys.readouterr().out
        runpy.run_module("train_with_plan", run_name="__main__", alter_sys=True)
        trained = subprocess.CompletedProcess(command, 0, capsys.readouterr().out + log.read_text())
        print(before)
        return trained

    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("torch.multiprocessing.spawn", partial(forks.spawn, log=str(log)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, Any] = {}
    values_of(MODEL, names)
    printed = capsys.readouterr().out
    assert names["status"] == 0
    assert int(names["tables"].memory_bytes.max()) > hardware_profile("a100-dgx").device.memory_bytes
    shards = [len(each.sharding_spec.shards) for module in names["plan"].plan.values() for each in module.values()]
    assert len(shards) == 8
    assert max(shards) > 1
    ratio = re.search(r"^cost, ms +([\d.]+) +([\d.]+) +([\d.]+)$", printed, re.MULTILINE)
    assert ratio is not None
    assert float(ratio[2]) < float(ratio[1])
    assert "Memory of a training step" in printed
    assert len(re.findall(r"^step \d: loss 0\.\d+$", printed, re.MULTILINE)) == 3
    assert "data_parallel on devices [0, 1]" in printed  # tests/interop/test_replicas.py trains with its optimizer


def test_learning_to_plan_prints_a_curve(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLES / "learn_to_plan.py"))
    args = example["Args"](minutes=0.02, every=10.0, tasks=2)
    curve = example["main"](args)
    printed = capsys.readouterr().out
    assert len(curve) == 2
    assert [float(each) for each in re.findall(r"([\d.-]+)% below moldable", printed)] == pytest.approx(
        curve, abs=0.006
    )
    assert re.search(r"^\d+ ms for a task", printed, re.MULTILINE)
