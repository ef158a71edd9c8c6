"""`--cost-model measured` and `shard-gym race`, on a machine whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.agents import LocalSearchAgent
from shard_gym.cli import measuring
from shard_gym.cli.race import _named
from shard_gym.common.errors import InvalidOptionError, WorkerDiedError
from shard_gym.common.text import format_ms
from shard_gym.leaderboard.race import load_race
from shard_gym.tasks import TaskSuite, load_suite

pytest.importorskip("torch")

SUITE = "cpu-20x2"
TRAIN = ("train", "--agent", "dreamshard", "--suite", SUITE, "--cost-model", "measured", "--iterations", 3)
OPTIONS = ("--option", "iterations=3", "--option", "measurements=4", "--option", "cost_updates=5")


def test_training_measures_and_says_how_to_race(run, machine, tmp_path: Path) -> None:
    outcome = run.ok(*TRAIN, *OPTIONS, "--out", tmp_path / "mine")
    assert "Trained dreamshard: 3 iterations, 12 measurements, 0 failures" in outcome.out
    assert f"Next: shard-gym race --suite {SUITE} --entry {tmp_path / 'mine'} --entry random" in outcome.out
    assert len(machine.jobs) == 12
    assert (tmp_path / "mine" / "measurements.sqlite").exists()


def test_a_run_that_was_stopped_measures_nothing_twice(run, machine, tmp_path: Path) -> None:
    """Twice in the second iteration, which begins again: its first placements come from the run's file."""
    assert run(*TRAIN, *OPTIONS, "--out", tmp_path / "whole").code == 0
    whole, machine.jobs = machine.jobs, []
    machine.stop = staticmethod(lambda count: KeyboardInterrupt() if count == 6 else None)
    outcome = run(*TRAIN, *OPTIONS, "--out", tmp_path / "cut")
    assert outcome.code == 130
    assert "--cost-model measured --iterations 3" in outcome.err.replace("\n", " ")
    machine.stop = staticmethod(lambda count: OSError("killed") if count == 7 else None)
    with pytest.raises(OSError, match="killed"):
        run(*TRAIN, *OPTIONS, "--out", tmp_path / "cut", "--resume")
    assert machine.jobs == whole[:7]
    machine.stop = staticmethod(lambda count: None)
    outcome = run.ok(*TRAIN, *OPTIONS, "--out", tmp_path / "cut", "--resume")
    assert machine.jobs == whole
    assert "12 measurements, 0 failures" in outcome.out


def test_training_names_the_layout_and_tells_how_well_the_machine_measures(
    run, machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "load_average", lambda: 100.0)
    outcome = run.ok(*TRAIN, *OPTIONS, "--out", tmp_path / "busy")
    assert outcome.err.count("The load average is 100.0") == 1
    assert "The iterations of a measurement differ by 0." in outcome.out  # the machine's noise is 1%
    assert "That is much" not in outcome.err
    config = json.loads((tmp_path / "busy" / "config.json").read_text())
    assert config["cost_model"].startswith("measured-v2-parallel-")
    monkeypatch.setattr(measuring, "load_average", lambda: 0.0)
    monkeypatch.setattr(measuring, "WIDE", 0.001)
    outcome = run(*TRAIN, *OPTIONS, "--out", tmp_path / "wide")
    assert "load average" not in outcome.err
    assert "That is much: measure on an idle machine, or with more --iterations." in outcome.err


def test_measurements_that_fail_are_told(run, machine, tmp_path: Path) -> None:
    failing = iter([None] * 5 + [WorkerDiedError("The worker of device 1 died.")] * 2)
    machine.stop = staticmethod(lambda count: next(failing, None))
    outcome = run.ok(*TRAIN, *OPTIONS, "--out", tmp_path)
    assert "13 measurements, 1 failure" in outcome.out


EVALUATE = ("evaluate", "--agent", "dim-greedy", "--suite", SUITE, "--cost-model", "measured", "--iterations", 3)


def test_an_evaluation_keeps_its_measurements_beside_its_results(run, machine, tmp_path: Path) -> None:
    first = run.ok(*EVALUATE, "--out", tmp_path / "new" / "dims.json")
    assert "failed" in first.out
    assert "gap to" not in first.out  # no best known placements, and no agent asks while it plans
    assert "queries" not in first.out
    measured = len(machine.jobs)
    assert (tmp_path / "new" / "dims.measurements.sqlite").exists()
    assert run(*EVALUATE, "--out", tmp_path / "new" / "dims.json").code == 0
    assert len(machine.jobs) == measured
    assert run(*EVALUATE, "--out", tmp_path / "dims.json", "--cache", tmp_path / "mine.sqlite").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dims.json", "mine.sqlite", "new"]


def test_a_task_that_cannot_be_measured_fails_alone(run, machine, tmp_path: Path) -> None:
    """The third of the second agent."""
    tasks = len(load_suite(SUITE))
    failing = iter([None] * (tasks + 2) + [WorkerDiedError("The worker of device 1 died.")] * 2)
    machine.stop = staticmethod(lambda count: next(failing, None))
    outcome = run.ok(*EVALUATE, "--out", tmp_path / "dims.json", columns=100)
    assert "dim-greedy failed on 1 of 20 tasks, each charged with its penalty:" in outcome.out
    assert f"{SUITE}/test/2: The worker of device 1 died." in " ".join(outcome.out.split())
    results = json.loads((tmp_path / "dims.json").read_text())["tasks"]
    assert [each["valid"] for each in results] == [number != 2 for number in range(tasks)]
    assert results[2]["placement"] is not None  # a race may try it
    assert results[2]["cost_ms"] > 10 * results[1]["cost_ms"]


def test_an_evaluation_on_a_machine_that_fails_says_what_is_kept(run, machine, tmp_path: Path) -> None:
    machine.stop = staticmethod(lambda count: WorkerDiedError("A worker died.") if count == 8 else None)
    outcome = run(*EVALUATE, "--out", tmp_path / "dims.json")
    kept = f"All measurements are kept in {tmp_path / 'dims.measurements.sqlite'}; repeat the command"
    assert outcome.code == 2
    assert f"A worker died. {kept}" in " ".join(outcome.err.split())
    machine.stop = staticmethod(lambda count: KeyboardInterrupt() if count == 12 else None)
    outcome = run(*EVALUATE, "--out", tmp_path / "dims.json")
    assert outcome.code == 130
    assert kept in " ".join(outcome.err.split())
    machine.stop = staticmethod(lambda count: None)
    assert run(*EVALUATE, "--out", tmp_path / "dims.json").code == 0
    assert len(machine.jobs) == 40
    machine.stop = staticmethod(lambda count: WorkerDiedError("A worker died."))
    assert "No measurement is kept" in run(*EVALUATE).err


def test_a_placement_that_cannot_be_measured_fails_in_the_race(run, machine, tmp_path: Path) -> None:
    failing = iter([None] + [WorkerDiedError("The worker of device 1 died.")] * 2)
    machine.stop = staticmethod(lambda count: next(failing, None))
    entries = ("--entry", "random", "--entry", "lookup-greedy")
    outcome = run.ok("race", "--suite", SUITE, "--tasks", 2, "--rounds", 2, *entries, "--out", tmp_path, columns=100)
    race = load_race(tmp_path, TaskSuite(SUITE, load_suite(SUITE).tasks[:2], "test"))
    charged = format_ms(race.costs_ms()[race.failed][0, 0])
    assert f"failed on {SUITE}/test/0, charged with {charged} ms: The worker of device 1 died." in outcome.out


def test_agents_are_raced_and_the_race_is_kept(run, machine, tmp_path: Path) -> None:
    run.ok("evaluate", "--agent", "dim-greedy", "--suite", SUITE, "--out", tmp_path / "dims.json")
    entries = ("--entry", "random", "--entry", "lookup-greedy", "--entry", f"dims={tmp_path / 'dims.json'}")
    given = ("race", "--suite", SUITE, "--tasks", 4, "--rounds", 2, *entries, "--out", tmp_path / "race")
    outcome = run.ok(*given)
    assert f"{SUITE} test, 4 tasks, 2 rounds, measured on" in outcome.out
    whole = load_suite(SUITE)
    race = load_race(tmp_path / "race", TaskSuite(whole.name, whole.tasks[:4], whole.split))
    rows = [line.split() for line in outcome.out.splitlines() if line.split()[:1] and line.split()[0] in race.answers]
    assert [row[0] for row in rows] == [each.entry for each in race.results()]
    assert [row[1] for row in rows] == [format_ms(each.mean_ms) for each in race.results()]
    assert list(race.answers) == ["random", "lookup-greedy", "dims"]
    assert len(race.measurements) == 2 * 4 * 3
    measured = len(machine.jobs)
    for rounds in (2, 1):
        again = run(*given, "--rounds", rounds).out
        assert again.startswith(outcome.out.partition("\nWritten to")[0])
        assert "Written to" not in again
        had = f"Nothing was measured: {tmp_path / 'race'} has 2 rounds of this race already"
        assert had in " ".join(again.split())
    assert len(machine.jobs) == measured


def test_plans_are_raced_of_agents_that_plan_or_place_of_files_and_of_training_runs(
    run, machine, tmp_path: Path
) -> None:
    suite = "shard-cpu-20x2"
    run.ok("evaluate", "--agent", "hugectr", "--suite", suite, "--out", tmp_path / "file.json")
    run.ok(*TRAIN, *OPTIONS, "--out", tmp_path / "trained")
    sources = ("hugectr", "lookup-greedy", tmp_path / "file.json", tmp_path / "trained")
    given = ("race", "--suite", suite, "--tasks", 2, "--rounds", 2, "--out", tmp_path / "race")
    outcome = run.ok(*given, *(word for each in sources for word in ("--entry", each)))
    assert "The rounds of a plan differ by" in outcome.out
    race = load_race(tmp_path / "race", TaskSuite(suite, load_suite(suite).tasks[:2], "test"))
    assert list(race.answers) == ["hugectr", "lookup-greedy", "file", "trained"]
    assert race.answers["file"] == race.answers["hugectr"]
    split = {name: any(plan.split_tables for plan in own) for name, own in race.answers.items()}
    assert split == {"hugectr": True, "lookup-greedy": False, "file": True, "trained": False}
    run.refused(
        "no evaluation of one agent on cpu-20x2",
        "race",
        "--suite",
        SUITE,
        "--entry",
        tmp_path / "file.json",
        "--out",
        tmp_path / "other",
    )


def test_an_entry_that_cannot_race_is_refused_before_the_others_plan(
    run, machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalSearchAgent, "place", lambda *_: pytest.fail("it plans"))
    entries = ("--entry", "local-search", "--entry", "lokup-greedy")
    run.refused("Did you mean 'lookup-greedy'?", "race", "--suite", SUITE, *entries, "--out", tmp_path)


def test_entries_are_named_after_whole_folders_and_files_without_suffix(tmp_path: Path) -> None:
    for name in ("lr0.1", "lr0.2"):
        (tmp_path / name).mkdir()
    (tmp_path / "plans.v2.json").write_text("{}")
    given = [str(tmp_path / "lr0.1"), f"{tmp_path / 'lr0.2'}/", str(tmp_path / "plans.v2.json"), "x=random", "random"]
    given.append(str(tmp_path / "lr0.1" / ".."))
    names = [_named(each)[0] for each in given]
    assert names == ["lr0.1", "lr0.2", "plans.v2", "x", "random", tmp_path.name]
    with pytest.raises(InvalidOptionError, match="wants NAME=AGENT"):
        _named("=random")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("evaluate", "--agent", "random", "--suite", SUITE, "--layout", "parallel"), "--layout says how costs are"),
        (("race", "--suite", SUITE, "--entry", "random", "--out", "x"), "at least two entries"),
        (("race", "--suite", SUITE, *("--entry", "random") * 2, "--out", "x"), "Two entries are named 'random'"),
        (
            ("race", "--suite", SUITE, *("--entry", "Random=random", "--entry", "random"), "--out", "x"),
            "Two entries are",
        ),
        (("race", "--suite", SUITE, "--entry", "n" * 300, "--out", "x"), "1 to 64 printable characters"),
        (("race", "--suite", SUITE, "--entry", "n" * 300 + "=random", "--out", "x"), "1 to 64 printable characters"),
        (("race", "--suite", SUITE, "--entry", "x=" + "n" * 300, "--out", "x"), "There is no agent named"),
        (("race", "--suite", SUITE, "--entry", "random", "--layout", "ring", "--out", "x"), "ring"),
        (("race", "--suite", SUITE, "--entry", "random", "--tasks", 21, "--out", "x"), "--tasks must be from 1 to 20"),
        (("race", "--suite", SUITE, "--entry", "x.json", "--out", "x"), "x.json"),
    ],
)
def test_what_cannot_be_is_refused(run, machine, arguments: Any, says: str) -> None:
    run.refused(says, *arguments)


def test_a_file_of_another_suite_is_refused(run, machine, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"tasks": [{"task": "dlrm-20x4/test/0", "placement": [0]}]}))
    given = ("race", "--suite", SUITE, "--entry", tmp_path / "other.json", "--out", tmp_path / "race")
    run.refused("is no evaluation of one agent on cpu-20x2", *given)


def test_an_agent_can_ask_a_measured_cost_model(run, machine) -> None:
    outcome = run.ok("show", "--suite", SUITE, "--agent", "lookup-greedy", "--cost-model", "measured", columns=100)
    assert "costed by measured-v2-" in outcome.out
    assert "lower bound" not in outcome.out  # nobody knows one of measured costs


PLANS = "plans under the cost model analytical, not under measured costs"


def test_agents_that_ask_a_cost_model_do_not_measure_while_they_place(run, machine, tmp_path: Path) -> None:
    shown = run.ok("show", "--suite", SUITE, "--agent", "local-search", "--cost-model", "measured", columns=100)
    assert len(machine.jobs) == 1
    assert f"local-search {PLANS}" in shown.err
    machine.jobs.clear()
    tables = ("--tables", "merlin-tiny", "--hardware", "cpu", "--num-devices", 2, "--agent", "cost-greedy")
    placed = run.ok("place", *tables, "--cost-model", "measured")
    assert json.loads(placed.out)["cost_model"].startswith("measured")
    assert len(machine.jobs) == 1
    assert f"cost-greedy {PLANS}" in placed.err
    machine.jobs.clear()
    scored = run.ok("evaluate", "--agent", "cost-greedy", "--suite", SUITE, "--cost-model", "measured")
    assert len(machine.jobs) <= 2 * len(load_suite(SUITE))  # one for each placement, also of the reference
    assert scored.err.count(PLANS) == 1
    assert PLANS not in run("show", "--suite", SUITE, "--agent", "local-search").err
    for command in ("show", "place", "evaluate"):
        assert "agents that ask a cost model plan under analytical" in " ".join(run(command, "--help").out.split())


def test_no_moves_are_shown_with_measured_costs(run, machine) -> None:
    arguments = ("show", "--suite", SUITE, "--agent", "size-greedy")
    measured = run(*arguments, "--cost-model", "measured", columns=100).out
    assert "Moves are not listed: what they gain is not measured." in measured
    assert "estimated ms alone of" in measured
    assert "on starred devices" not in measured
    estimated = run(*arguments, columns=100).out
    assert "Moves are not listed" not in estimated
    assert "estimated ms" not in estimated
