from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shard_gym import TaskSuite, load_suite, save_suite
from shard_gym.agents.training import offline

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def test_it_writes_the_episodes_of_several_agents(run, agent_rows, tmp_path: Path) -> None:
    options = ("--suite", "dlrm-20x4", "--episodes", 3, "--reward", "dense", "--observation", "features")
    code, out, err = run(
        "dataset", "--agent", "random", "lookup-greedy", "--agent", "cost-greedy", *options, "--out", "dim/x-v1"
    )
    assert (code, err) == (0, "")
    assert {name: (row[0], row[2]) for name, row in agent_rows(out).items()} == dict.fromkeys(
        ("random", "lookup-greedy", "cost-greedy"), ("3", "0")
    )
    assert "9 episodes, 180 steps," in out
    assert f"Written to {tmp_path / 'minari' / 'dim' / 'x-v1'}" in out
    dataset = minari.load_dataset("dim/x-v1")
    env = offline.recover_environment(dataset)
    assert env.unwrapped.tasks is load_suite("dlrm-20x4", "train")
    assert (env.spec.kwargs["reward"], env.spec.kwargs["observation"]) == ("dense", "features")
    costs = [about["cost_ms"] for about in dataset.storage.get_episode_metadata(range(3))]
    assert float(agent_rows(out)["random"][1]) == pytest.approx(sum(costs) / 3, rel=1e-3)
    run.refused("There is a data set dim/x-v1", "dataset", "--agent", "random", *options, "--out", "dim/x-v1")


def test_after_the_last_task_the_next_seed_begins_and_repeats_are_left_out(
    run, agent_rows, tmp_path: Path, random_task
) -> None:
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, 12, 3, name=f"t{number}") for number in range(2)]
    save_suite(tmp_path / "own.json", TaskSuite("own", tuple(tasks), "train"))
    args = ("--agent", "random", "dim-greedy", "--suite", tmp_path / "own.json", "--episodes", 5)
    out = run.ok("dataset", *args, "--out", "x-v0", columns=200).out
    assert {name: row[0] for name, row in agent_rows(out).items()} == {"random": "5", "dim-greedy": "2"}
    dataset = minari.load_dataset("x-v0")
    numbers = [int(about["options"]["task"]) for about in dataset.storage.get_episode_metadata(range(7))]
    assert sorted(numbers) == [0] * 4 + [1] * 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--out": "x"}, "must be a name and a version"),
        ({"--agent": "randm"}, "There is no agent named 'randm'"),
        ({"--episodes": "0"}, "--episodes must be an integer of at least 1, not 0."),
        ({"--cost-model": "measured"}, "not additive"),
        ({"--split": "dev"}, "has the splits ['test', 'train'], not 'dev'."),
    ],
)
def test_what_is_impossible_is_a_sentence(run, tmp_path: Path, change: dict[str, str], says: str) -> None:
    options = {"--agent": "random", "--suite": "dlrm-20x4", "--out": "x-v0"} | change
    run.refused(says, "dataset", *(part for pair in options.items() for part in pair))
    assert not (tmp_path / "minari" / "x-v0").exists()


def test_without_an_agent_it_names_them(run) -> None:
    run.refused(
        "Name agents with --agent NAME. Known: random, size-greedy,", "dataset", "--suite", "dlrm-20x4", "--out", "x-v0"
    )
