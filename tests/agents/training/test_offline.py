from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym import Evaluation, TaskSuite, evaluate, load_suite, save_suite
from shard_gym.agents import make_agent
from shard_gym.agents.training import offline
from shard_gym.agents.training.offline import recover_environment, write_dataset
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidOptionError,
    MissingExtraError,
    UnknownNameError,
    UnwritablePathError,
)
from shard_gym.cost_models import make_cost_model
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.tasks.suites import best_known

minari = pytest.importorskip("minari")

MODEL = make_cost_model("analytical")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari keeps its data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture
def suite(tmp_path: Path, random_task: Any) -> Path:
    """The file of a suite with three training tasks and a test task, of 4 to 7 tables on 2 or 3 devices."""
    rng = np.random.default_rng(0)
    tasks = [random_task(rng, 4 + number, 2 + number % 2, slack=1.5, name=f"t{number}") for number in range(4)]
    path = tmp_path / "own.json"
    save_suite(path, TaskSuite("own", tuple(tasks[:3]), "train"), TaskSuite("own", tuple(tasks[3:]), "test"))
    return path


def placements(suite: Path | str, *agents: str, split: str = "train", seed: int = 0) -> list[Evaluation]:
    return [evaluate(make_agent(name, seed=seed), load_suite(suite, split)) for name in agents]


@pytest.mark.parametrize(
    ("observation", "reward"), [("compact", "terminal"), ("features", "dense"), ("full", "normalized")]
)
def test_the_recovered_environment_repeats_every_episode(suite: Path, observation: str, reward: str) -> None:
    made = placements(suite, "random", "lookup-greedy")
    write_dataset("own/all-v0", made, suite, reward=reward, observation=observation)
    dataset = minari.load_dataset("own/all-v0")
    env = dataset.recover_environment()
    assert (env.observation_space, env.action_space) == (dataset.observation_space, dataset.action_space)
    assert len(dataset) == 6
    for episode, about in zip(dataset, dataset.storage.get_episode_metadata(range(6)), strict=True):
        observation_now, info = env.reset(options={"task": int(about["options"]["task"])})
        steps = [(observation_now, 0.0, False, False, info), *(env.step(action) for action in episode.actions)]
        assert len(episode.rewards) == env.unwrapped.task.num_tables
        for number, (seen, gained, terminated, truncated, told) in enumerate(steps):
            for key, array in seen.items():
                np.testing.assert_array_equal(episode.observations[key][number], array)
            assert set(episode.infos) == set(told)
            for key, value in told.items():
                np.testing.assert_array_equal(episode.infos[key][number], value)
            if number:
                now = (episode.rewards[number - 1], episode.terminations[number - 1], episode.truncations[number - 1])
                assert now == (gained, terminated, truncated)
        assert (terminated, told["failure"]) == (True, 0)


def test_the_episodes_are_the_placements_of_the_agents(suite: Path) -> None:
    made = placements(suite, "random", "cost-greedy")
    dataset = write_dataset("own-v3", (each for each in made), suite)
    abouts = list(dataset.storage.get_episode_metadata(range(len(dataset))))
    results = [(evaluation.agent, result) for evaluation in made for result in evaluation.tasks]
    for episode, about, (agent, result) in zip(dataset, abouts, results, strict=True):
        placed = episode.infos["placement"][-1]
        assert placed[placed >= 0].tolist() == result.placement
        assert (about["agent"], about["task"]) == (agent, result.task)
        assert about["cost_ms"] == pytest.approx(result.cost_ms) == -episode.rewards.sum()
    assert dataset.storage.metadata["algorithm_name"] == "random, cost-greedy"


def test_the_suite_and_the_cost_model_are_compared_with_those_recorded(suite: Path) -> None:
    dataset = write_dataset("own-v0", placements(suite, "random"), suite)
    recorded = dataset.storage.metadata["shard_gym"]
    assert recorded["suite_sha256"] == load_suite(suite, "train").sha256
    assert recorded["cost_model"] == MODEL.fingerprint
    assert recover_environment(dataset).unwrapped.tasks.split == "train"
    assert recover_environment(dataset, eval_env=True).unwrapped.tasks.split == "test"
    tasks = [replace(load_suite(suite, split), version=2) for split in ("train", "test")]
    save_suite(suite, *tasks)
    with pytest.raises(DamagedFileError, match=r"was recorded with suite sha256 '.*', but here it is '.*'\. Install"):
        recover_environment(minari.load_dataset("own-v0"))


def test_a_named_suite_is_recovered_where_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_suite("mixdim-4", "train")
    few = replace(tasks, tasks=tasks.tasks[2:4])
    dataset = write_dataset("mixdim-4/dim-v0", [evaluate(make_agent("dim-greedy"), few)], "mixdim-4")
    monkeypatch.delitem(gymnasium.registry, "EmbeddingPlacement-v0")
    env: Any = minari.load_dataset("mixdim-4/dim-v0").recover_environment().unwrapped
    assert (env.tasks.sha256, env.tasks.split, len(env.tasks)) == (tasks.sha256, "train", 50)
    assert dataset[0].infos["task_index"].tolist() == [2] * (tasks[2].num_tables + 1)


def test_equal_placements_are_written_once_and_failures_never(suite: Path) -> None:
    def picky(task: Any) -> Any:
        return task.known_placement if task.name == "t1" else [99] * task.num_tables

    tasks = load_suite(suite, "train")
    with pytest.warns(UserWarning, match="picky returns what is no placement"):
        placed = evaluate(picky, tasks)
    dataset = write_dataset("own-v0", [placed, placed, *placements(suite, "random")], suite)
    agents = [about["agent"] for about in dataset.storage.get_episode_metadata(range(len(dataset)))]
    assert agents == ["picky", "random", "random", "random"]


def test_more_episodes_than_are_held_in_memory(suite: Path) -> None:
    made = [each for seed in range(12) for each in placements(suite, "random", seed=seed)]
    expected = {(result.task, *(result.placement or ())) for evaluation in made for result in evaluation.tasks}
    assert len(expected) > offline.BATCH
    seen = []
    dataset = write_dataset("own-v0", made, suite, progress=lambda done, total: seen.append((done, total)))
    assert len(dataset) == len(expected)
    assert seen == [(done, len(expected)) for done in range(1, len(expected) + 1)]
    assert dataset.total_steps == sum(len(episode) for episode in dataset)


def test_random_scores_0_and_the_best_known_placements_1(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, (test,) = placements(suite, "random"), load_suite(suite, "test")
    dataset = write_dataset("own-v0", made, suite)
    assert "ref_max_score" not in dataset.storage.metadata
    monkeypatch.setattr(offline, "best_known_costs", lambda tasks, model: {task.name: 0.5 for task in tasks})
    random = evaluate(make_agent("random"), load_suite(suite, "test")).mean_cost_ms
    dataset = write_dataset("own-v1", made, suite)
    assert minari.get_normalized_score(dataset, np.array([-random, -0.5])) == pytest.approx([0.0, 1.0])
    dataset = write_dataset("own-v2", made, suite, reward="normalized")
    env = EmbeddingPlacementEnv(suite, split="test", reward="normalized")
    env.reset(options={"task": test.name})
    bound = float(env.problem.lower_bound_ms.item())
    scores = minari.get_normalized_score(dataset, np.array([-random / bound, -0.5 / bound]))
    assert scores == pytest.approx([0.0, 1.0])
    assert best_known.best_known_costs(load_suite(suite, "test"), MODEL) == {}


def test_a_data_set_is_not_written_over(suite: Path, root: Path) -> None:
    made = placements(suite, "random")
    write_dataset("own/a-v0", made, suite)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(InvalidOptionError, match=r"There is a data set own/a-v0 in .*minari delete own/a-v0\.$"):
        write_dataset("own/a-v0", made, suite)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["own", "../own-v0", "/tmp/own-v0", "own/../own-v0", "a b-v0", None])
def test_a_name_is_that_of_a_data_set_of_minari(suite: Path, root: Path, name: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"must be a name and a version, such as 'mixdim-4/greedy-v0', in"):
        write_dataset(name, [], suite)
    assert not root.exists() or not any(root.iterdir())
    with pytest.raises(UnwritablePathError, match="cannot be written: File name too long"):
        write_dataset(f"{'a' * 300}-v0", [], suite)


def test_what_cannot_be_written_is_said_and_leaves_nothing(
    suite: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,), (other,) = placements(suite, "lookup-greedy"), placements(suite, "random", split="test")
    first = made.tasks[0]

    def replaced(placement: list[int]) -> list[Evaluation]:
        return [replace(made, tasks=(replace(first, placement=placement), *made.tasks[1:]))]

    prefix, placed = "The evaluation of lookup-greedy holds a placement of t0 that is not valid. ", first.placement
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "No agent placed a task"),
        ([other], {}, r"on own \(test\), but the data set is to be of own \(train\)\. Evaluate it there"),
        (None, {}, "evaluations must be a list of what shard_gym.evaluate returns"),
        (made, {}, "evaluations must be a list of what shard_gym.evaluate returns"),
        ([{"agent": "x"}], {}, "evaluations must be a list of what shard_gym.evaluate returns"),
        (replaced([0] * 4), {}, prefix + "Device 0 is given 4 tables that need"),
        (replaced(placed[:-1]), {}, prefix + r"A placement of 4 tables needs shape \(4,\)"),
        ([made], {"reward": "sparse"}, "There is no reward named 'sparse'"),
        ([made], {"observation": "pixels"}, "There is no observation named 'pixels'"),
        ([made], {"suite": None}, "suite must be a name or the path of a file, not None"),
        ([made], {"cost_model": MODEL}, "cost_model must be a name or the path of a file, not <"),
        ([made], {"reward": len}, "reward must be a name, not <built-in function len>. A data set names it"),
        ([made], {"observation": 5}, "observation must be a name, not 5"),
    ]
    for evaluations, options, says in cases:
        with pytest.raises((InvalidOptionError, UnknownNameError), match=says):
            write_dataset("own-v0", evaluations, **{"suite": suite, **options})

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset("own-v0", [made], suite, progress=stop)
    assert not (root / "own-v0").exists()
    monkeypatch.setattr(offline.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs the package 'minari'"):
        write_dataset("own-v0", [made], suite)


def test_another_data_set_is_not_taken_for_one(suite: Path, root: Path) -> None:
    dataset: Any = write_dataset("own-v0", placements(suite, "random"), suite)
    file = root / "own-v0" / "data" / "metadata.json"
    file.write_text(
        json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "shard_gym"})
    )
    with pytest.raises(InvalidOptionError, match="own-v0 was not written by shard-gym dataset"):
        recover_environment(dataset)
    with pytest.raises(InvalidOptionError, match=r"dataset must be what minari\.load_dataset returns, not"):
        recover_environment("own-v0")
