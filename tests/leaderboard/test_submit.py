from __future__ import annotations

from pathlib import Path

import pytest

from shard_gym.agents import make_agent
from shard_gym.errors import DamagedFileError, InvalidOptionError, UnknownNameError
from shard_gym.evaluation import Evaluation, evaluate
from shard_gym.io.files import write_json
from shard_gym.leaderboard.schema import parse_entry
from shard_gym.leaderboard.sources import from_agents, from_files, known_training, read_evaluation
from shard_gym.leaderboard.store import Place, place_of
from shard_gym.leaderboard.submit import Timed, submit
from shard_gym.leaderboard.verify import verify_entry
from shard_gym.leaderboard.write import toml

SUITE = "dlrm-20x4"


@pytest.fixture(scope="module")
def greedy() -> Evaluation:
    return evaluate(make_agent("size-greedy"), SUITE)


def test_what_is_written_is_what_was_declared(tmp_path: Path, greedy: Evaluation, declare) -> None:
    said = declare(
        "mine",
        name='A "quoted" näme \\ with all',
        options={"a": 1, "b": True, "c": 0.5, "d": 'x"y'},
        training_data=["dlrm-50x4/train", "other: my own logs"],
        training_queries=12,
        search_budget=7,
    )
    place = Place(tmp_path, "simulated", SUITE, "mine")
    assert submit(place, [greedy], said) == []
    verified, _ = verify_entry(place)
    assert verified is not None
    entry = verified.entry
    assert entry.name == said.name
    assert entry.agent.options == said.options
    assert entry.training.data == said.training_data
    assert (entry.training.queries, entry.planning.search_budget) == (12, 7)
    assert entry.scores.mean_cost_ms == pytest.approx(greedy.mean_cost_ms)


def test_an_entry_that_does_not_hold_leaves_nothing(tmp_path: Path, greedy: Evaluation, declare) -> None:
    said = declare("mine", training_data=["dlrm-20x4/test"])
    findings = submit(Place(tmp_path, "simulated", SUITE, "mine"), [greedy], said)
    assert "test tables" in str(findings[0]) or "tables of the test tasks" in str(findings[0])
    assert list(tmp_path.iterdir()) == []


def test_no_entry_is_overwritten(root: Path, greedy: Evaluation, declare) -> None:
    with pytest.raises(InvalidOptionError, match="There is an entry simulated/dlrm-20x4/random already"):
        submit(Place(root, "simulated", SUITE, "random"), [greedy], declare("mine"))


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"uses_chance": True}, 1, r"An agent that uses chance needs 5 evaluations.* got 1"),
        ({}, 2, r"An agent that uses none needs 1 evaluations.* got 2"),
    ],
)
def test_evaluations_are_as_many_as_seeds(
    tmp_path: Path, greedy: Evaluation, declare, changes, count: int, message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        submit(Place(tmp_path, "simulated", SUITE, "mine"), [greedy] * count, declare("mine", **changes))


def test_evaluations_are_of_the_suite_and_its_test_tasks(tmp_path: Path, greedy: Evaluation, declare) -> None:
    with pytest.raises(InvalidOptionError, match="an evaluation is of 'dlrm-20x4' \\('test'\\)"):
        submit(Place(tmp_path, "simulated", "dlrm-40x4", "mine"), [greedy], declare("mine"))
    trained = evaluate(make_agent("size-greedy"), SUITE, split="train")
    with pytest.raises(InvalidOptionError, match="\\('train'\\)"):
        submit(Place(tmp_path, "simulated", SUITE, "mine"), [trained], declare("mine"))


def test_timings_and_the_measured_track_belong_together(tmp_path: Path, greedy: Evaluation, declare) -> None:
    for track, timed in (("measured", None), ("simulated", Timed("NVIDIA H200", "each", b"{}"))):
        with pytest.raises(InvalidOptionError, match="Timings belong to entries of the measured track"):
            submit(Place(tmp_path, track, SUITE, "mine"), [greedy], declare("mine"), timed)
    with pytest.raises(InvalidOptionError, match="The timings cannot be used"):
        submit(
            Place(tmp_path, "measured", SUITE, "mine"), [greedy], declare("mine"), Timed("NVIDIA H200", "each", b"{}")
        )


@pytest.mark.parametrize(
    "name", ["x", "simulated/dlrm-20x4", "simulated/dlrm-20x4/../x", "other/dlrm-20x4/x", "/a/b/c", ""]
)
def test_what_names_no_entry_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOptionError, match="An entry is named TRACK/SUITE/ENTRY"):
        place_of(tmp_path, name)


def test_evaluations_survive_their_files(tmp_path: Path, greedy: Evaluation) -> None:
    write_json(tmp_path / "0.json", greedy.to_json())
    assert read_evaluation(tmp_path / "0.json") == greedy
    assert from_files([tmp_path / "0.json"], False, {}).agent == "size-greedy"


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda record: [record, record], InvalidOptionError),
        (lambda record: {}, DamagedFileError),
        (lambda record: {**record, "tasks": []}, DamagedFileError),
        (lambda record: {**record, "more": 1}, DamagedFileError),
        (lambda record: {**record, "suite": 5}, DamagedFileError),
        (lambda record: {**record, "tasks": [{**record["tasks"][0], "seconds": "1"}]}, DamagedFileError),
    ],
)
def test_files_that_are_no_evaluation_are_refused(tmp_path: Path, greedy: Evaluation, spoil, error) -> None:
    write_json(tmp_path / "0.json", spoil(greedy.to_json()))
    with pytest.raises(error, match=r"0\.json"):
        read_evaluation(tmp_path / "0.json")


def test_agents_of_shard_gym_know_their_seeds_and_their_search() -> None:
    search = from_agents(["local-search"], "mlperf-x8", {"max_queries": 50})
    assert (search.agent, search.uses_chance, len(search.evaluations), search.search_budget) == (
        "local-search",
        True,
        5,
        50,
    )
    plain = from_agents(["cost-greedy"], "mlperf-x8", {})
    assert (plain.uses_chance, len(plain.evaluations), plain.training) == (False, 1, None)


def test_an_agent_that_comes_trained_says_what_on() -> None:
    training = known_training("dreamshard")
    assert training is not None
    assert training.data == ("dlrm-50x4/train", "generalize/train")
    assert training.queries > 0


def test_a_trained_agents_file_says_what_on() -> None:
    from shard_gym.agents.dreamshard.pretrained import PRETRAINED

    training = known_training(str(PRETRAINED["a100-dgx"].path))
    assert training is not None
    assert (training.agent, training.data, training.queries) == ("dreamshard", ("generalize/train",), 500)
    assert training.options == PRETRAINED["a100-dgx"].options


def test_trained_agents_are_one_or_five_of_a_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="Name one agent, or the folders of 5 training runs"):
        from_agents(["random", "size-greedy"], SUITE, {})
    with pytest.raises(InvalidOptionError, match="Name one agent"):
        from_agents(["random", "random"], SUITE, {})
    with pytest.raises(UnknownNameError, match="no agent named 'rondom'"):
        known_training("rondom")


def test_toml_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    place = Place(tmp_path, "simulated", SUITE, "x")
    entry, findings = parse_entry(toml({"schema": 1, "name": "del\x7f"}), place)
    assert entry is None
    assert any("name is refused: it must be printable" in str(finding) for finding in findings)
