"""Races on a machine that is made up: costs are the analytical ones, times noise, times how slow the moment is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.attempts import MAX_FAILURES
from shard_gym.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidPlacementError,
    MeasurementError,
    UnwritablePathError,
)
from shard_gym.io.files import sha256_of
from shard_gym.io.lock import exclusive_access
from shard_gym.leaderboard import race_files as module
from shard_gym.leaderboard.race import FAILURE_MARGIN, Measured, Race
from shard_gym.leaderboard.race_files import load_race, write_race
from shard_gym.leaderboard.racing import run_race
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.tasks import TaskSuite


def test_the_better_placements_win_on_a_machine_that_is_slow_now_and_then(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    """Slow for whole rounds, which slows all entries."""
    steady = run_race(tmp_path / "steady", suite, placements, new_machine(), rounds=5).results()
    per_round = len(suite) * len(placements)
    shaken = run_race(
        tmp_path / "shaken", suite, placements, new_machine(slow=lambda number: 1 + 2 * ((number - 1) // per_round % 2))
    ).results()
    for results in (steady, shaken):
        assert [each.entry for each in results] == ["local-search", "lookup-greedy", "random"]
        assert [each.ratio for each in results] == sorted(each.ratio for each in results)
        assert results[0].ratio == 1
        assert results[0].ratio_interval == (1, 1)
        assert results[2].ratio_interval[0] > 1
        assert all(each.ratio_interval[0] < each.ratio < each.ratio_interval[1] for each in results[1:])
        assert all(each.interval_ms[0] <= each.mean_ms <= each.interval_ms[1] for each in results)
        assert [each.beats_next is None for each in results] == [False, False, True]
        assert results[0].beats_next is not None
        assert results[0].beats_next > 0.9
    assert shaken[1].ratio == pytest.approx(steady[1].ratio, rel=0.1)


def test_more_measurements_than_a_file_holds_are_refused(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    with pytest.raises(InvalidOptionError, match="30,000 rounds of 3 entries and 6 tasks are too many"):
        run_race(tmp_path, suite, placements, new_machine(), rounds=30_000)
    assert not any(tmp_path.iterdir())


def test_equal_placements_tie(suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any) -> None:
    twins = {"one": placements["random"], "two": placements["random"]}
    first, second = run_race(tmp_path, suite, twins, new_machine()).results()
    assert second.ratio_interval[0] <= 1 <= second.ratio_interval[1] or second.ratio < 1.01
    assert first.beats_next is not None
    assert 0.2 < first.beats_next < 0.8


def test_the_results_are_those_of_plain_arithmetic(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    race = run_race(tmp_path, suite, placements, new_machine(), rounds=3)
    for result in race.results():
        costs: dict[int, list[float]] = {}
        for each in race.measurements:
            if each.entry == result.entry:
                costs.setdefault(each.task, []).append(float(np.median(each.phases_ms, axis=0).max(axis=0).sum()))
        assert all(len(own) == 3 for own in costs.values())
        assert result.mean_ms == pytest.approx(np.mean([np.median(own) for own in costs.values()]))


def test_entries_of_a_task_are_measured_in_a_row_and_in_changing_order(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    race = run_race(tmp_path, suite, placements, new_machine(), rounds=4)
    order = [(each.round, each.task, each.entry) for each in race.measurements]
    assert len(set(order)) == len(order) == 4 * len(suite) * 3
    blocks = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert all(len({key[:2] for key in block}) == 1 for block in blocks)
    assert len({tuple(key[2] for key in block) for block in blocks}) == 6


def test_a_task_without_a_placement_costs_its_penalty(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    holed = {**placements, "holed": [None, *placements["local-search"][1:]]}
    machine = new_machine()
    last = run_race(tmp_path, suite, holed, machine).results()[-1]
    assert (last.entry, last.failures) == ("holed", 1)
    assert last.mean_ms > machine.penalty_ms(suite[0].tables, suite[0].topology) / len(suite)
    assert load_race(tmp_path, suite).results()[-1] == last


def test_failing_never_pays(suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any) -> None:
    """Not even on a machine so slow that measured costs exceed the penalties."""
    null = {"random": placements["random"], "null": [None] * len(suite)}
    race = run_race(tmp_path, suite, null, new_machine(slow=lambda number: 1000.0), rounds=2)
    assert race.failed.tolist() == [[False] * 6, [True] * 6]
    measured, charged = race.costs_ms()
    assert (measured.max(axis=1) > race.penalties_ms).all()
    assert charged.tolist() == [[FAILURE_MARGIN * worst] * 2 for worst in measured.max(axis=1)]
    assert [each.entry for each in race.results()] == ["random", "null"]
    assert load_race(tmp_path, suite).results() == race.results()


def test_a_race_that_was_stopped_measures_finished_rounds_once(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    per_round = len(suite) * len(placements)

    def stop(number: int) -> float:
        if number > 2 * per_round + 5:
            raise MeasurementError("The machine was switched off.")
        return 1.0

    with pytest.raises(MeasurementError):
        run_race(tmp_path, suite, placements, new_machine(slow=stop), rounds=3)
    assert load_race(tmp_path, suite).num_rounds == 2
    machine, told = new_machine(), []
    race = run_race(tmp_path, suite, placements, machine, rounds=3, progress=lambda *numbers: told.append(numbers))
    assert machine.count == per_round
    assert told[0] == (2 * per_round, 3 * per_round)
    assert told[-1] == (3 * per_round, 3 * per_round)
    assert race.num_rounds == 3
    assert run_race(tmp_path, suite, placements, machine, rounds=2).num_rounds == 3
    assert machine.count == per_round  # it was over


def test_a_placement_that_cannot_be_measured_costs_its_penalty_and_the_race_goes_on(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any, new_failing: Any
) -> None:
    bad = placements["local-search"][2].tolist()
    machine = new_failing(suite, lambda task, placement: task == 2 and placement == bad)
    race = run_race(tmp_path, suite, placements, machine, rounds=2)
    assert machine.refused == 2  # in the first round, twice
    assert [(each.round, each.task, each.entry) for each in race.unmeasured] == [(0, 2, "local-search")]
    assert race.unmeasured[0].reason == "The worker of device 1 died."
    assert len(race.measurements) == 2 * (len(suite) * 3 - 1)
    costs, names = race.costs_ms(), list(race.placements)
    assert costs[names.index("local-search"), 2].tolist() == [race.penalties_ms[2]] * 2
    assert {each.entry: each.failures for each in race.results()} == {
        "local-search": 1,
        "lookup-greedy": 0,
        "random": 0,
    }
    again = load_race(tmp_path, suite)
    assert (again.results(), again.unmeasured) == (race.results(), race.unmeasured)
    more = run_race(
        tmp_path, suite, placements, new_machine(), rounds=4
    )  # it is not measured again, even where it could
    assert (more.num_rounds, more.unmeasured) == (4, race.unmeasured)
    assert len(more.measurements) == 4 * (len(suite) * 3 - 1)


def test_a_placement_that_was_measured_is_not_given_up_in_a_later_round(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any, new_failing: Any
) -> None:
    run_race(tmp_path, suite, placements, new_machine(), rounds=2)
    before = (tmp_path / RACE).read_bytes()
    bad = placements["random"][5].tolist()
    failing = new_failing(suite, lambda task, placement: placement == bad)
    with pytest.raises(MeasurementError, match=r"'random' for .* was measured in earlier rounds and cannot .* round 3"):
        run_race(tmp_path, suite, placements, failing, rounds=3)
    assert failing.refused == 2
    assert (tmp_path / RACE).read_bytes() == before
    race = run_race(tmp_path, suite, placements, new_machine(), rounds=3)
    assert (race.num_rounds, race.unmeasured) == (3, ())


def test_a_machine_on_which_everything_fails_ends_the_race_and_nothing_is_noted(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_failing: Any
) -> None:
    machine = new_failing(suite, lambda task, placement: task > 0)
    with pytest.raises(MeasurementError):
        run_race(tmp_path, suite, placements, machine, rounds=2)
    assert machine.refused == 2 * MAX_FAILURES
    assert not (tmp_path / RACE).exists()
    one = TaskSuite(suite.name, suite.tasks[:1], suite.split)
    with pytest.raises(MeasurementError):
        run_race(
            tmp_path / "one",
            one,
            {name: own[:1] for name, own in placements.items()},
            new_failing(one, lambda *_: True),
        )
    assert not (tmp_path / "one" / RACE).exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("round", 3),
        ("round", 1),
        ("round", -1),
        ("round", True),
        ("task", 6),
        ("entry", "other"),
        ("reason", None),
        ("more", 1),
    ],
)
def test_edited_failures_are_refused(
    suite: TaskSuite,
    placements: Any,
    tmp_path: Path,
    key: str,
    value: Any,
    monkeypatch: pytest.MonkeyPatch,
    new_failing: Any,
) -> None:
    bad = placements["random"][0].tolist()
    race = run_race(tmp_path, suite, placements, new_failing(suite, lambda task, placement: placement == bad), rounds=3)
    record = module._unmeasured_to_json(race)
    record[module.UNMEASURED][0][key] = value
    monkeypatch.setattr(module, "_unmeasured_to_json", lambda race: record)
    monkeypatch.setattr(module, "_rows_sha256", lambda *_: "")
    rounds = module._to_parquet(race)
    (tmp_path / ROUNDS).write_bytes(rounds)
    (tmp_path / RACE).write_text(json.dumps(module._record(race, sha256_of(rounds))))
    with pytest.raises(DamagedFileError, match=r"what could not be measured|that was not raced"):
        load_race(tmp_path, suite)


def test_a_failure_that_is_named_twice_is_refused(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_failing: Any
) -> None:
    bad = placements["random"][0].tolist()
    race = run_race(tmp_path, suite, placements, new_failing(suite, lambda task, placement: placement == bad), rounds=1)
    write_race(tmp_path, replace(race, unmeasured=race.unmeasured * 2))
    with pytest.raises(DamagedFileError, match="not raced, twice"):
        load_race(tmp_path, suite)


def test_one_program_at_a_time_races_into_a_folder(
    raced: Path, suite: TaskSuite, placements: Any, new_machine: Any
) -> None:
    machine = new_machine()
    with exclusive_access(raced), pytest.raises(InvalidOptionError, match="Another program is adding to"):
        run_race(raced, suite, placements, machine, rounds=4)
    assert machine.count == 0
    assert run_race(raced, suite, placements, machine, rounds=4).num_rounds == 4


def test_other_races_in_the_folder_and_bad_entries_are_refused(
    raced: Path, suite: TaskSuite, placements: Any, new_machine: Any
) -> None:
    others = {name: list(reversed(own)) for name, own in placements.items()}
    with pytest.raises((InvalidOptionError, InvalidPlacementError)):
        run_race(raced, suite, others, new_machine())
    fewer = dict(list(placements.items())[:2])
    with pytest.raises(InvalidOptionError, match="a race of other placements, with other settings"):
        run_race(raced, suite, fewer, new_machine())
    with pytest.raises(InvalidOptionError, match="a race of other placements, with other settings"):
        run_race(raced, suite, placements, new_machine(resolved="sequential"))
    with pytest.raises(InvalidOptionError, match="at least two entries"):
        run_race(raced, suite, dict(list(placements.items())[:1]), new_machine())
    for name in ("", " random ", "two\nlines", "\x1b[31mred", "x" * 65):
        with pytest.raises(InvalidOptionError, match="1 to 64 printable characters"):
            run_race(raced / "new", suite, {**placements, name: placements["random"]}, new_machine())
    with pytest.raises(InvalidOptionError, match="Two entries are named 'Random'"):
        run_race(raced / "new", suite, {**placements, "Random": placements["random"]}, new_machine())
    with pytest.raises(InvalidOptionError, match="rounds must be"):
        run_race(raced, suite, placements, new_machine(), rounds=0)
    with pytest.raises(InvalidPlacementError, match="has 5 placements for the 6 tasks"):
        run_race(raced / "new", suite, {**placements, "short": placements["random"][1:]}, new_machine())


@pytest.mark.parametrize(
    ("function", "calls", "measured"), [("write_json", 0, 18), ("write_atomically", 0, 18), ("write_json", 1, 0)]
)
def test_a_kill_while_the_files_are_written_loses_no_round_that_is(
    suite: TaskSuite,
    placements: Any,
    raced: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_machine: Any,
    function: str,
    calls: int,
    measured: int,
) -> None:
    """`race.json` says which rounds may follow, they are written, and then `race.json` again."""
    write, left = getattr(module, function), [None] * calls

    def killed(*arguments: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(*arguments)

    monkeypatch.setattr(module, function, killed)
    with pytest.raises(KeyboardInterrupt):
        run_race(raced, suite, placements, new_machine(), rounds=4)
    monkeypatch.undo()
    if (function, calls) != ("write_json", 0):
        with pytest.raises(DamagedFileError, match="is not finished, because a program was killed"):
            load_race(raced, suite)
    machine = new_machine()
    assert run_race(raced, suite, placements, machine, rounds=4).num_rounds == 4
    assert machine.count == measured
    assert load_race(raced, suite).num_rounds == 4  # also if it was the last round, and no other one writes the file


def _halved(rows: tuple[Measured, ...]) -> tuple[Measured, ...]:
    return (replace(rows[0], phases_ms=rows[0].phases_ms / 2), *rows[1:])


@pytest.mark.parametrize("newer", [False, True])
def test_edited_rounds_are_not_continued(
    suite: TaskSuite, placements: Any, raced: Path, newer: bool, new_machine: Any
) -> None:
    """Neither where all seems complete, nor where `race.json` is a round older, as a kill leaves it."""
    machine, record = new_machine(), (raced / RACE).read_bytes()
    race = run_race(raced, suite, placements, new_machine(), rounds=4) if newer else load_race(raced, suite)
    (raced / RACE).write_bytes(record)
    (raced / ROUNDS).write_bytes(module._to_parquet(replace(race, measurements=_halved(race.measurements))))
    with pytest.raises(DamagedFileError, match="does not hold the rounds that"):
        run_race(raced, suite, placements, machine, rounds=5)
    assert machine.count == 0
    assert (raced / RACE).read_bytes() == record


def test_rows_that_are_not_those_of_their_own_hash_are_refused(
    suite: TaskSuite, placements: Any, raced: Path, monkeypatch: pytest.MonkeyPatch, new_machine: Any
) -> None:
    race = load_race(raced, suite)
    written = module._rows_sha256(race.measurements, race.unmeasured)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_rows_sha256", lambda *_: written)
        write_race(raced, replace(race, measurements=_halved(race.measurements)))
    with pytest.raises(DamagedFileError, match="were edited or damaged"):
        run_race(raced, suite, placements, new_machine(), rounds=4)
    with pytest.raises(DamagedFileError, match="were edited or damaged"):
        load_race(raced, suite)


def test_a_race_of_before_rows_had_a_hash_is_read_and_continued(
    suite: TaskSuite, placements: Any, raced: Path, new_machine: Any
) -> None:
    race = load_race(raced, suite)
    from pyarrow import parquet

    table = parquet.read_table(raced / ROUNDS)
    table = table.replace_schema_metadata({module.DIGEST: table.schema.metadata[module.DIGEST.encode()]})
    parquet.write_table(table, raced / ROUNDS)
    rounds = (raced / ROUNDS).read_bytes()
    (raced / RACE).write_text(json.dumps(module._record(race, sha256_of(rounds))))
    assert load_race(raced, suite).results() == race.results()
    assert run_race(raced, suite, placements, new_machine(), rounds=4).num_rounds == 4


def test_damaged_rounds_never_reach_arrow_which_can_end_the_program(
    suite: TaskSuite, placements: Any, raced: Path, monkeypatch: pytest.MonkeyPatch, new_machine: Any
) -> None:
    content = bytearray((raced / ROUNDS).read_bytes())
    content[len(content) // 2] ^= 1
    (raced / ROUNDS).write_bytes(content)
    monkeypatch.setattr(module, "read_table", lambda *_, **__: pytest.fail("Arrow reads it"))
    with pytest.raises(DamagedFileError, match=r"rounds_sha256 in .* is not that of rounds"):
        load_race(raced, suite)
    with pytest.raises(DamagedFileError, match="does not hold the rounds that"):
        run_race(raced, suite, placements, new_machine(), rounds=4)
    (raced / RACE).unlink()
    with pytest.raises(DamagedFileError, match=r"race\.json cannot be read"):
        run_race(raced, suite, placements, new_machine(), rounds=4)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    suite: TaskSuite, placements: Any, tmp_path: Path, new_machine: Any
) -> None:
    (tmp_path / "file").write_text("")
    machine = new_machine()
    with pytest.raises(UnwritablePathError):
        run_race(tmp_path / "file", suite, placements, machine)
    assert machine.count == 0


def test_a_race_without_rounds_has_no_results(suite: TaskSuite, placements: Any) -> None:
    assert Race(suite, "a machine", "measured", {}, placements, (), np.ones(len(suite))).results() == []
