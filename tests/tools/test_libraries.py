"""The examples of RL libraries, and the page of what ran.

Those whose library is in the test environment are trained for a few seconds; `make check-libraries` runs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from shard_gym import Evaluation, TaskSuite, evaluate, load_suite
from shard_gym.agents import make_agent
from shard_gym.common.io.files import read_json, write_json

ROOT = Path(__file__).parents[2]
PINS = {path.stem: path.read_text() for path in ROOT.glob("examples/requirements/*.txt")}


@pytest.fixture
def libraries(tool: Callable[[str], ModuleType]) -> Any:
    return tool("libraries")


def of_ten_tasks(agent: Any, suite: str, split: str = "test") -> Evaluation:
    return evaluate(agent, TaskSuite(suite, load_suite(suite, split).tasks[:10], split))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cleanrl_ppo", {"timesteps": 2_560, "num_envs": 128}),
        ("sb3_ppo", {"timesteps": 6_000}),
        ("train_maskable_ppo", {"timesteps": 20_480}),
    ],
)
def test_a_short_training_is_better_than_random(
    libraries: Any,
    tool: Any,
    name: str,
    options: dict[str, int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On ten tasks."""
    module = tool(name, "examples")
    monkeypatch.setattr(module, "evaluate", of_ten_tasks)
    module.main(module.Args(**options))
    costs = libraries.scores(capsys.readouterr().out)
    (library,) = (each for each in libraries.LIBRARIES.values() if each.example == name)
    assert costs.keys() == {library.agent, "random", "lookup-greedy"}
    libraries.require_better_than_random(costs, library.agent)


def test_the_network_of_one_file_obeys_masks_and_no_order_of_devices(tool: Any) -> None:
    module = tool("cleanrl_ppo", "examples")
    torch.manual_seed(0)
    network = module.Agent()
    torch.nn.init.normal_(network.actor.weight)
    envs = gymnasium.make_vec(
        "shard_gym:EmbeddingPlacement-v0", num_envs=64, suite="dlrm-20x4", observation="compact", illegal="redirect"
    )
    obs, _ = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(17):
        obs, *_ = envs.step(rng.integers(0, 4, 64))
    legal = obs["action_mask"] == 1
    assert not legal.all()
    distribution, values = network(module.tensors(obs))
    assert (distribution.probs.detach().numpy()[~legal] == 0.0).all()
    assert (distribution.probs.detach().numpy()[legal] > 0.0).all()
    order = rng.permutation(4)
    shuffled = dict(obs)
    for key in ("device_mask", "action_mask", "device_costs", "device_memory"):
        shuffled[key] = obs[key].reshape(64, 4, -1)[:, order].reshape(64, -1)
    other, other_values = network(module.tensors(shuffled))
    torch.testing.assert_close(other.probs, distribution.probs[:, torch.as_tensor(order)])
    torch.testing.assert_close(other_values, values)


def test_an_agent_that_is_not_better_than_random_fails_the_check(libraries: Any) -> None:
    libraries.require_better_than_random({"mine": 8.99, "random": 10.0}, "mine")
    for cost in (9.01, 30.0, float("nan")):
        with pytest.raises(libraries.CheckFailedError, match="mine costs"):
            libraries.require_better_than_random({"mine": cost, "random": 10.0}, "mine")


@pytest.mark.parametrize(
    "output", ["", "mine: 8.000 ms\n", "mine 1.0 ms\nrandom: 2.0 ms\n", "mine: 1 s\nrandom: 2.0 ms"]
)
def test_an_example_that_prints_no_scores_fails_the_check(libraries: Any, output: str) -> None:
    with pytest.raises(libraries.CheckFailedError, match="must print the costs"):
        libraries.require_better_than_random(libraries.scores(output), "mine")


def test_an_example_that_ends_with_an_error_fails_the_check(
    libraries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "tools").mkdir()
    path, replanning = tmp_path / "examples" / "mine.py", tmp_path / "tools" / "replanning_runs.py"
    scores = "print('mine: 8.0 ms\\nrandom: 10.0 ms\\nlookup-greedy: 7.0 ms')"
    monkeypatch.setattr(libraries, "ROOT", tmp_path)
    monkeypatch.setattr(libraries, "CHECKED", tmp_path / "found")
    monkeypatch.setitem(libraries.LIBRARIES, "mine", libraries.Library("Mine", "numpy", "mine", "mine", 10, "PPO"))
    path.write_text(f"import sys\n{scores}\nsys.exit(3)")
    replanning.write_text("raise SystemExit(4)")
    with pytest.raises(libraries.CheckFailedError, match=r"replanning_runs\.py mine ended with the exit status 4"):
        libraries.check("mine")
    assert not (tmp_path / "found").exists()
    replanning.write_text("""print('a word before'); print('{"steps": 600, "seconds": 2}')""")
    with pytest.raises(libraries.CheckFailedError, match="exit status 3"):
        libraries.check("mine")
    assert read_json(tmp_path / "found" / "replanning-mine.json")["steps"] == 600
    assert not (tmp_path / "found" / "mine.json").exists()
    path.write_text(f"import sys\nassert sys.argv[1:] == ['--timesteps', '10']\n{scores}")
    libraries.check("mine")
    found = read_json(tmp_path / "found" / "mine.json")
    assert found["costs_ms"] == {"mine": 8.0, "random": 10.0, "lookup-greedy": 7.0}
    assert found["version"] == f"numpy {np.__version__}"


def test_the_page_shows_what_was_published(libraries: Any, markdown_rows: Any) -> None:
    records = read_json(libraries.PUBLISHED)
    page = libraries.PAGE.read_text()
    assert libraries.with_block(libraries.PAGE, "libraries", libraries.content(records)) == page
    checked = {name for name, library in libraries.LIBRARIES.items() if (ROOT / library.command[0]).exists()}
    gymnasium_versions = re.search(r"^GYMNASIUM_VERSIONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert gymnasium_versions
    releases = {f"gymnasium-{version}" for version in gymnasium_versions.group(1).split()}
    assert checked | releases <= records.keys()
    for name in checked:
        libraries.require_better_than_random(records[name]["costs_ms"], libraries.LIBRARIES[name].agent)


def test_replanning_runs_in_every_library(libraries: Any, tool: Any) -> None:
    runs, records = tool("replanning_runs").RUNS, read_json(libraries.PUBLISHED)
    assert runs.keys() == {name for name, library in libraries.LIBRARIES.items() if library.replanning}
    for name in runs:
        record = records[f"{libraries.REPLANNING}-{name}"]
        assert record["steps"] > 500
        assert record["version"] == records[name]["version"]


def test_costs_to_compare_with_are_named_once(libraries: Any) -> None:
    record = {
        **{"library": "Lib", "version": "l 1", "gymnasium": "1.4.0", "what": "python mine.py", "agent": "mine"},
        **{"costs_ms": {"mine": 8.0, "random": 10.0}, "cost_model": "analytical-v7", "seconds": 1234},
        **{"date": "2026-01-02", "python": "3.12"},
    }
    text = libraries.content({"one": record, "two": {**record, "costs_ms": {"mine": 7.5, "random": 10.0}}})
    assert "| Lib | `python mine.py` | 7.50 | 0.75 | 1,234 |" in text
    assert "| Lib | l 1 | 1.4.0 | 3.12 | 2026-01-02 |" in text
    assert "On the same test tasks: `random` 10.00 ms. Costs are of the cost model `analytical-v7`." in text
    other = {**record, "costs_ms": {"mine": 7.5, "random": 10.2}}
    assert "`random` 10.00 or 10.20 ms" in libraries.content({"one": record, "two": other})


def test_the_text_compares_with_what_the_agents_cost(libraries: Any) -> None:
    text = " ".join(libraries.PAGE.read_text().split())
    (sentence,) = re.findall(r"On the same tasks (`random` reaches .*?\d)\. ", text)
    found = dict(re.findall(r"`([\w-]+)`[a-z ]* (\d+\.\d\d)", sentence))
    assert list(found) == ["random", "lookup-greedy", "dim-greedy", "cost-greedy", "local-search"]
    del found["local-search"]  # which takes seconds
    assert found == {name: f"{evaluate(make_agent(name), 'dlrm-20x4').mean_cost_ms:.2f}" for name in found}


def test_what_was_published_ran_with_the_versions_that_are_pinned(libraries: Any) -> None:
    records = read_json(libraries.PUBLISHED)
    assert PINS.keys() == {"torchrl", "rl4co", "rllib", "tianshou"}
    for name, pins in PINS.items():
        pinned = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==([\w.]+)", pins, re.MULTILINE))
        distribution = libraries.LIBRARIES[name].distribution
        assert records[name]["version"] == f"{distribution} {pinned[distribution]}"
        assert records[name]["gymnasium"] == pinned["gymnasium"]
        assert f"torch=={pinned['torch']}\n" in (ROOT / "constraints.txt").read_text()


def test_the_outcome_of_the_contract_tests_is_read_from_their_report(
    libraries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "CHECKED", tmp_path)
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite errors="1" failures="2" skipped="3" tests="10" time="4.6"/></testsuites>')
    libraries.contract("1.1.0", report)
    found = read_json(tmp_path / "gymnasium-1.1.0.json")
    assert found["result"] == "4 passed, 3 failed, 3 skipped"
    write_json(tmp_path / "page.json", {"gymnasium-1.1.0": found})
    assert "4 passed, 3 failed, 3 skipped" in libraries.content({"gymnasium-1.1.0": found})
