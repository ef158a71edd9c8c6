"""The programs of examples/ run as they are and print what they promise."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_gym.pools import load_pool

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


def test_an_agent_of_ones_own_is_scored(run_example) -> None:
    assert re.fullmatch(r"distinct-greedy: \d+\.\d\d ms, failed on \d+ of 50 tasks\n", run_example("custom_agent.py"))


def test_the_tables_of_ones_own_are_a_pool(run_example, tmp_path: Path) -> None:
    assert "shard-gym place --tables my_tables.json" in run_example("make_tables.py")
    assert load_pool(tmp_path / "my_tables.json").tables.names == ("user", "item", "history", "shop", "hour")


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
