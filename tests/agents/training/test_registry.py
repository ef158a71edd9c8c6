"""The table of learned agents: made and loaded by name, with named errors for what is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.agents import Agent, AgentEntry, load_agent, make_agent
from shard_gym.agents.training import LEARNERS, LearnerEntry, TrainingRun, make_learner
from shard_gym.common.errors import InvalidCheckpointError, InvalidOptionError, MissingExtraError, UnknownNameError
from shard_gym.common.io.arrays import save_arrays
from shard_gym.tasks import TaskSuite, load_suite


@pytest.fixture
def trained(folder: Path, suite: TaskSuite) -> Path:
    TrainingRun(make_learner("walk", suite), folder, {}).run()
    return folder


def test_a_named_suite_means_its_training_tasks() -> None:
    learner = make_learner("walk", "dlrm-20x4", seed=7, iterations=9)
    assert (learner.suite.split, learner.seed, learner.iterations, learner.name) == ("train", 7, 9, "walk")
    assert learner.true_cost_queries == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "wall"}, UnknownNameError, "no learned agent named 'wall'. Did you mean 'walk'"),
        ({"suite": "dlrm-20x5"}, UnknownNameError, "Did you mean 'dlrm-20x4'"),
        ({"cost_model": "analytic"}, UnknownNameError, "Did you mean 'analytical'"),
        ({"iteration": 3}, UnknownNameError, "no option of agent 'walk' named 'iteration'. Did you mean 'iterations'"),
        ({"seed": -1}, InvalidOptionError, "A seed is an integer of at least 0, not -1"),
    ],
)
def test_what_cannot_be_made_is_a_named_error(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_learner(**{"name": "walk", "suite": "dlrm-20x4", **arguments})


@pytest.mark.parametrize("load", [load_agent, make_agent])
def test_a_folder_and_its_file_are_the_same_agent(trained: Path, load: Any) -> None:
    task = load_suite("dlrm-20x4")[0]
    for place in (trained, str(trained), trained / "agent.safetensors", str(trained / "agent.safetensors")):
        agent = load(place, seed=5, shift=1)
        assert isinstance(agent, Agent)
        assert (agent.name, agent.seed) == ("walk", 5)
        assert not np.array_equal(agent.place(task), load(place).place(task))


def test_an_agent_by_name_comes_before_a_folder_of_that_name(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "mine"):
        trained.rename(tmp_path / name)
        assert make_agent(name).name == ("random" if name == "random" else "walk")
        trained = tmp_path / name


def test_what_is_no_agent_is_told_apart(folder: Path, tmp_path: Path, suite: TaskSuite) -> None:
    with pytest.raises(UnknownNameError, match=r"has to be trained: shard-gym train --agent walk .*cost-greedy"):
        make_agent("walk")
    (tmp_path / "agent.pt").write_bytes(b"\x80\x04.")
    TrainingRun(make_learner("walk", suite), folder, {}).run()
    (tmp_path / "mine.py").touch()
    for number in range(2):
        TrainingRun(make_learner("walk", suite), tmp_path / "seeds" / f"seed-{number}", {}).run()
    for path, says in (
        ("no/such/run", "There is no trained agent in no/such/run; name the folder"),
        ("none.safetensors", "There is no trained agent in none.safetensors;"),
        (tmp_path, r"There is no trained agent in .*/agent.safetensors; .* in it\.$"),
        (tmp_path / "seeds", r"There is no trained agent in .* The folder has the runs seed-0, seed-1\.$"),
        (tmp_path / "mine.py", r"mine\.py has no trained agent\. Name the agent in it: .*mine\.py:NAME\."),
        (tmp_path / "agent.pt", "no safetensors file"),
        (folder / "training.safetensors", "holds 'training', not 'agent'"),
    ):
        with pytest.raises(InvalidCheckpointError, match=says):
            make_agent(path)
    with pytest.raises(InvalidOptionError, match=r"'walk' cannot be made with the options .*jump"):
        make_agent(folder, jump=1)


@pytest.mark.parametrize(
    ("arrays", "about", "says"),
    [
        ({"position": np.zeros(())}, {"agent": "fly"}, "holds an agent 'fly'; known are .*walk"),
        ({"position": np.zeros(())}, {}, "holds an agent None"),
        (
            {"position": np.zeros(3)},
            {"agent": "walk", "legs": 2},
            r"not usable. The walk holds 'position' with shape \(3,\)",
        ),
    ],
)
def test_a_file_of_no_known_agent_is_refused(
    tmp_path: Path, arrays: dict[str, Any], about: dict[str, Any], says: str
) -> None:
    path = tmp_path / "agent.safetensors"
    save_arrays(path, "agent", arrays, about)
    with pytest.raises(InvalidCheckpointError, match=says) as caught:
        load_agent(path)
    assert str(path) in str(caught.value)


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "walk_of_absent.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    walk = LearnerEntry("walk_of_absent:Walk", "walk_of_absent:load_walk", extra="sb3")
    monkeypatch.setitem(LEARNERS, "walk", AgentEntry(learners=(walk,)))
    with pytest.raises(MissingExtraError, match=r"Agent 'walk' needs the package 'no_such_package'.*shard-gym\[sb3\]"):
        make_learner("walk", "dlrm-20x4")


def test_without_tensorboard_the_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, suite: TaskSuite
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtraError, match=r"Training needs the package 'tensorboard'.*shard-gym\[torch\]"):
        TrainingRun(make_learner("walk", suite), folder, {}).run()
