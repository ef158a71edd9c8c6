from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import make_agent
from shard_gym.agents.training import TrainingRun, make_learner
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnwritablePathError
from shard_gym.common.io.files import write_json
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.leaderboard import EntryFolder, evaluate_agent, verify_entry
from shard_gym.leaderboard.entry import parse
from shard_gym.leaderboard.evaluations import _require_one_training, read_evaluation, read_evaluations
from shard_gym.leaderboard.store import entry_folder
from shard_gym.leaderboard.submission import format_toml
from shard_gym.leaderboard.training_data import Training

SUITE = "dlrm-20x4"


@pytest.fixture(scope="module")
def greedy() -> Evaluation:
    return evaluate(make_agent("size-greedy"), SUITE)


@pytest.fixture
def folder(root: Path) -> EntryFolder:
    """A free folder beside the entries."""
    return EntryFolder(root, "simulated", SUITE, "mine")


def test_an_entry_holds_what_was_declared(tmp_path: Path, greedy: Evaluation, submit_as) -> None:
    declared = {
        "name": 'A "quoted" näme \\ with all',
        "options": {"a": 1, "b": True, "c": 0.5, "d": 'x"y'},
        "training_data": ["dlrm-50x4/train", "other: my own logs"],
        "training_queries": 12,
        "search_budget": 7,
    }
    folder = EntryFolder(tmp_path, "simulated", SUITE, "mine")
    assert submit_as(folder, "mine", [greedy], **declared) == []
    verified, _ = verify_entry(folder)
    assert verified is not None
    entry = verified.entry
    assert (entry.name, entry.agent.options) == (declared["name"], declared["options"])
    assert (entry.training.data, entry.training.queries) == (declared["training_data"], 12)
    assert entry.planning.search_budget == 7
    assert entry.scores.mean_cost_ms == pytest.approx(greedy.mean_cost_ms)


def test_an_invalid_entry_is_not_written(tmp_path: Path, greedy: Evaluation, submit_as) -> None:
    folder = EntryFolder(tmp_path, "simulated", SUITE, "mine")
    (finding,) = submit_as(folder, "mine", [greedy], training_data=["dlrm-20x4/test"])
    assert "tables of the test tasks" in str(finding)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["write", "move"])
def test_a_full_disk_names_the_entry(root: Path, greedy: Evaluation, submit_as, monkeypatch, step: str) -> None:
    """And not the scratch folder."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root / ".shard-gym-abc"))

    monkeypatch.setattr(*((os, "fsync") if step == "write" else (shutil, "move")), fail)
    folder = EntryFolder(root, "simulated", SUITE, "mine")
    with pytest.raises(UnwritablePathError) as raised:
        submit_as(folder, "mine", [evaluate(make_agent("dim-greedy"), SUITE)])
    assert str(raised.value) == f"{folder.path} cannot be written: No space left on device."
    assert not folder.path.exists()
    assert not list(root.glob(".shard-gym-*"))


@pytest.mark.parametrize(
    "author", ["The ShardGym authors", "the shardgym-authors", "ShardGyrn", "The Sh\u00e1rdGym team"]
)
def test_only_agents_of_the_project_have_its_author(folder: EntryFolder, submit_as, author: str) -> None:
    agent = [evaluate(make_agent("dim-greedy"), SUITE)]
    (finding,) = submit_as(folder, "mine", agent, authors=[author])
    assert f"authors names {author!r}, but the agent 'mine' is none of ShardGym's. Name its own authors." in str(
        finding
    )
    assert not folder.path.exists()
    assert submit_as(folder, "dim-greedy", agent, authors=[author]) == []


def test_no_entry_is_overwritten(root: Path, greedy: Evaluation, submit_as) -> None:
    with pytest.raises(InvalidOptionError, match="There is an entry simulated/dlrm-20x4/random already"):
        submit_as(EntryFolder(root, "simulated", SUITE, "random"), "mine", [greedy])


def test_a_name_that_is_taken_is_refused(folder: EntryFolder, submit_as) -> None:
    (finding,) = submit_as(folder, "mine", [evaluate(make_agent("dim-greedy"), SUITE)], name="THE random-agent")
    assert "is that of simulated/dlrm-20x4/random, 'The random agent'. Choose another." in str(finding)
    assert not folder.path.exists()


def test_half_a_character_is_no_name(folder: EntryFolder, greedy: Evaluation, submit_as) -> None:
    with pytest.raises(InvalidOptionError, match="which is no text"):
        submit_as(folder, "mine", [greedy], authors=["\ud800"])


def test_there_is_one_evaluation_for_each_seed(folder: EntryFolder, greedy: Evaluation, submit_as) -> None:
    with pytest.raises(InvalidOptionError, match=r"A stochastic agent needs 5 evaluations.* got 1"):
        submit_as(folder, "mine", [greedy], stochastic=True)
    with pytest.raises(InvalidOptionError, match=r"A deterministic agent needs 1 evaluation,.* got 2"):
        submit_as(folder, "mine", [greedy] * 2)


def test_evaluations_are_of_the_suite_and_its_test_tasks(root: Path, greedy: Evaluation, submit_as) -> None:
    with pytest.raises(InvalidOptionError, match=r"of 'dlrm-40x4' .* has 50 tasks of 'dlrm-20x4' \('test'\)"):
        submit_as(EntryFolder(root, "simulated", "dlrm-40x4", "mine"), "mine", [greedy])
    trained = evaluate(make_agent("size-greedy"), SUITE, split="train")
    with pytest.raises(InvalidOptionError, match="\\('train'\\)"):
        submit_as(EntryFolder(root, "simulated", SUITE, "mine"), "mine", [trained])


@pytest.mark.parametrize(
    "name", ["x", "simulated/dlrm-20x4", "simulated/dlrm-20x4/../x", "other/dlrm-20x4/x", "/a/b/c", ""]
)
def test_other_names_of_entries_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOptionError, match="An entry is named TRACK/SUITE/ENTRY"):
        entry_folder(tmp_path, name)


def test_toml_escapes_control_characters() -> None:
    entry, findings = parse(format_toml({"schema": 1, "name": "del\x7f"}), "entry.toml")
    assert entry is None
    assert any("name is refused: it must be printable" in str(finding) for finding in findings)


# Evaluations


def test_evaluations_are_read_as_they_were_written(tmp_path: Path, greedy: Evaluation) -> None:
    write_json(tmp_path / "0.json", greedy.to_json())
    assert read_evaluation(tmp_path / "0.json") == greedy
    assert read_evaluations([tmp_path / "0.json"], False, {}).name == "size-greedy"
    write_json(tmp_path / "1.json", {**greedy.to_json(), "agent": "mine"})
    with pytest.raises(InvalidOptionError, match="but these are of mine, size-greedy"):
        read_evaluations([tmp_path / "0.json", tmp_path / "1.json"], True, {})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda record: [record, record], InvalidOptionError),
        (lambda record: {}, DamagedFileError),
        (lambda record: {**record, "suite": 5}, DamagedFileError),
        (lambda record: {**record, "surprise": 5}, DamagedFileError),
        (lambda record: {**record, "failures": True}, DamagedFileError),
        (lambda record: {**record, "mean_cost_ms": "9.5"}, DamagedFileError),
        (lambda record: {**record, "interval_ms": [1, "2"]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "surprise": 1}]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "valid": "yes"}]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "placement": ["0"]}]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "seconds": -1}]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "seconds": "x"}]}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "true_cost_queries": 10**400}]}, DamagedFileError),
    ],
)
def test_files_that_are_no_evaluation_are_refused(tmp_path: Path, greedy: Evaluation, change, error) -> None:
    write_json(tmp_path / "0.json", change(greedy.to_json()))
    with pytest.raises(error, match=r"0\.json"):
        read_evaluation(tmp_path / "0.json")


def test_agents_are_evaluated_with_their_seeds() -> None:
    search = evaluate_agent(["local-search"], "mlperf-x8", {"max_queries": 50})
    assert (search.name, search.stochastic, len(search.evaluations)) == ("local-search", True, 5)
    assert (search.search_budget, search.options) == (50, {"max_queries": 50})
    greedy = evaluate_agent(["cost-greedy"], "mlperf-x8", {})
    assert (greedy.stochastic, len(greedy.evaluations), greedy.training_data) == (False, 1, ())


@pytest.mark.parametrize("agents", [["random", "size-greedy"], ["random", "random"]])
def test_agents_are_one_or_five_of_a_kind(agents: list[str]) -> None:
    with pytest.raises(InvalidOptionError, match="Name one agent, or the folders of 5 training runs"):
        evaluate_agent(agents, SUITE, {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"finished": False}, "second is the agent of an unfinished run"),
        ({"options": {"preset": "paper"}}, "the options of second are {'preset': 'paper'}"),
        ({"data": ("mixdim-4/train",)}, "the training data of second are"),
        ({"cost_model": "other"}, "the cost model of second are 'other'"),
        ({"seed": 0}, "have seeds of their own"),
    ],
)
def test_the_runs_of_an_entry_differ_in_their_seed_alone(change: dict[str, Any], says: str) -> None:
    first = Training("rnn", ("dlrm-20x4/train",), 5, 1.0, {}, "analytical-v2", 0)
    _require_one_training(["first", "second"], [first, replace(first, seed=1)])
    with pytest.raises(InvalidOptionError, match=says):
        _require_one_training(["first", "second"], [first, replace(replace(first, seed=1), **change)])


def test_one_run_of_an_agent_that_no_seed_changes_is_not_enough(tmp_path: Path) -> None:
    learner = make_learner("autoshard", "dlrm-20x4", iterations=1, episodes=2, cost_updates=1)
    TrainingRun(learner, tmp_path / "run", {}).run()
    with pytest.raises(InvalidOptionError, match="answers alike with every seed"):
        evaluate_agent([str(tmp_path / "run")], SUITE, {})
