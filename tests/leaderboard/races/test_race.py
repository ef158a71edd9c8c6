"""Races on a machine that is made up: costs are the analytical ones, times noise, times how slow the moment is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.common.attempts import MAX_FAILURES
from shard_gym.common.errors import (
    DamagedFileError,
    InvalidOptionError,
    InvalidPlacementError,
    MeasurementError,
    UnwritablePathError,
)
from shard_gym.common.io.files import sha256_of
from shard_gym.common.io.lock import exclusive_access
from shard_gym.leaderboard import race as module
from shard_gym.leaderboard.race import FAILURE_MARGIN, Measured, Race, write_race
from shard_gym.leaderboard.racing import run_race
from shard_gym.leaderboard.store import RACE, ROUNDS
from shard_gym.tasks import TaskSuite


def test_the_better_placements_win_on_a_machine_that_is_slow_now_and_then(course: Any) -> None:
    """Slow for whole rounds, which slows all entries."""
    steady = course.run(into="steady", rounds=5).results()
    per_round = len(course.suite) * len(course.placements)
    machine = course.machine(slow=lambda number: 1 + 2 * ((number - 1) // per_round % 2))
    shaken = course.run(machine, into="shaken").results()
    for results in (steady, shaken):
        assert [each.entry for each in results] == ["local-search", "lookup-greedy", "random"]
        assert [each.ratio for each in results] == sorted(each.ratio for each in results)
        assert results[0].ratio == 1
        assert results[0].ratio_interval == (1, 1)
        assert results[2].ratio > 1.02
        assert results[2].ratio_interval[0] > 0.98
        assert all(each.ratio_interval[0] < each.ratio < each.ratio_interval[1] for each in results[1:])
        assert all(each.interval_ms[0] <= each.mean_ms <= each.interval_ms[1] for each in results)
        assert [each.beats_next is None for each in results] == [False, False, True]
        assert results[0].beats_next is not None
        assert results[0].beats_next > 0.9
    assert shaken[1].ratio == pytest.approx(steady[1].ratio, rel=0.1)


def test_more_measurements_than_a_file_holds_are_refused(course: Any) -> None:
    with pytest.raises(InvalidOptionError, match="30,000 rounds of 3 entries and 6 tasks are too many"):
        course.run(rounds=30_000)
    assert not any(course.folder.iterdir())


def test_equal_placements_tie(course: Any) -> None:
    twins = {"one": course.placements["random"], "two": course.placements["random"]}
    first, second = course.run(placements=twins).results()
    assert second.ratio_interval[0] <= 1 <= second.ratio_interval[1] or second.ratio < 1.01
    assert first.beats_next is not None
    assert 0.2 < first.beats_next < 0.8


def test_what_stands_apart_changes_nothing_of_the_others(course: Any) -> None:
    own = {**course.placements, "holed": [None, *course.placements["local-search"][1:]]}
    with_copy = {"copy": course.placements["random"], **own}
    slow = course.machine(slow=lambda number: 1000.0)  # so that failing costs more than a penalty
    race = course.run(slow, placements=with_copy, rounds=3)
    race = replace(race, measurements=[_slowed(each) if each.entry == "copy" else each for each in race.measurements])
    *others, last = race.results({"copy"})
    assert last.entry == "copy"
    assert last.beats_next is None
    alone = replace(
        race,
        answers=own,
        measurements=[each for each in race.measurements if each.entry != "copy"],
    )
    assert others == alone.results()
    assert race.results({"copy", "random"})[2].beats_next is None
    assert [each.entry for each in race.results(set(with_copy))][-1] == "copy"


def _slowed(each: Measured) -> Measured:
    return replace(each, phases_ms=50 * each.phases_ms)


def test_the_results_are_those_of_plain_arithmetic(course: Any) -> None:
    race = course.run(rounds=3)
    for result in race.results():
        costs: dict[int, list[float]] = {}
        for each in race.measurements:
            if each.entry == result.entry:
                costs.setdefault(each.task, []).append(float(np.median(each.phases_ms, axis=0).max(axis=0).sum()))
        assert all(len(own) == 3 for own in costs.values())
        assert result.mean_ms == pytest.approx(np.mean([np.median(own) for own in costs.values()]))


def test_entries_of_a_task_are_measured_in_a_row_and_in_changing_order(course: Any) -> None:
    race = course.run(rounds=4)
    order = [(each.round, each.task, each.entry) for each in race.measurements]
    assert len(set(order)) == len(order) == 4 * len(course.suite) * 3
    blocks = [order[start : start + 3] for start in range(0, len(order), 3)]
    assert all(len({key[:2] for key in block}) == 1 for block in blocks)
    assert len({tuple(key[2] for key in block) for block in blocks}) == 6


def test_a_task_without_a_placement_costs_its_penalty(course: Any) -> None:
    holed = {**course.placements, "holed": [None, *course.placements["local-search"][1:]]}
    machine = course.machine()
    last = course.run(machine, placements=holed).results()[-1]
    assert (last.entry, last.failures) == ("holed", 1)
    assert last.mean_ms > machine.penalty_ms(course.suite[0].tables, course.suite[0].topology) / len(course.suite)
    assert course.load().results()[-1] == last


def test_failing_never_pays(course: Any) -> None:
    """Not even on a machine so slow that measured costs exceed the penalties."""
    null = {"random": course.placements["random"], "null": [None] * len(course.suite)}
    race = course.run(course.machine(slow=lambda number: 1000.0), placements=null, rounds=2)
    assert race.failed.tolist() == [[False] * 6, [True] * 6]
    measured, charged = race.costs_ms()
    assert (measured.max(axis=1) > race.penalties_ms).all()
    assert charged.tolist() == [[FAILURE_MARGIN * worst] * 2 for worst in measured.max(axis=1)]
    assert [each.entry for each in race.results()] == ["random", "null"]
    assert course.load().results() == race.results()


def test_a_race_that_was_stopped_measures_finished_rounds_once(course: Any) -> None:
    per_round = len(course.suite) * len(course.placements)

    def stop(number: int) -> float:
        if number > 2 * per_round + 5:
            raise MeasurementError("The machine was switched off.")
        return 1.0

    with pytest.raises(MeasurementError):
        course.run(course.machine(slow=stop), rounds=3)
    assert course.load().num_rounds == 2
    machine, told = course.machine(), []
    race = course.run(machine, rounds=3, progress=lambda *numbers: told.append(numbers))
    assert machine.count == per_round
    assert told[0] == (2 * per_round, 3 * per_round)
    assert told[-1] == (3 * per_round, 3 * per_round)
    assert race.num_rounds == 3
    assert course.run(machine, rounds=2).num_rounds == 3
    assert machine.count == per_round  # it was over


def test_a_placement_that_cannot_be_measured_costs_its_penalty_and_the_race_goes_on(course: Any) -> None:
    bad = course.placements["local-search"][2].tolist()
    machine = course.failing(lambda task, placement: task == 2 and placement == bad)
    race = course.run(machine, rounds=2)
    assert machine.refused == 2  # in the first round, twice
    assert [(each.round, each.task, each.entry) for each in race.unmeasured] == [(0, 2, "local-search")]
    assert race.unmeasured[0].reason == "The worker of device 1 died."
    assert len(race.measurements) == 2 * (len(course.suite) * 3 - 1)
    costs, names = race.costs_ms(), list(race.answers)
    assert costs[names.index("local-search"), 2].tolist() == [race.penalties_ms[2]] * 2
    failures = {each.entry: each.failures for each in race.results()}
    assert failures == {"local-search": 1, "lookup-greedy": 0, "random": 0}
    again = course.load()
    assert (again.results(), again.unmeasured) == (race.results(), race.unmeasured)
    more = course.run(rounds=4)  # it is not measured again, even where it could
    assert (more.num_rounds, more.unmeasured) == (4, race.unmeasured)
    assert len(more.measurements) == 4 * (len(course.suite) * 3 - 1)


def test_a_placement_that_was_measured_is_not_given_up_in_a_later_round(course: Any) -> None:
    course.run(rounds=2)
    before = (course.folder / RACE).read_bytes()
    bad = course.placements["random"][5].tolist()
    failing = course.failing(lambda task, placement: placement == bad)
    with pytest.raises(MeasurementError, match=r"'random' for .* was measured in earlier rounds and cannot .* round 3"):
        course.run(failing, rounds=3)
    assert failing.refused == 2
    assert (course.folder / RACE).read_bytes() == before
    race = course.run(rounds=3)
    assert (race.num_rounds, race.unmeasured) == (3, ())


def test_a_machine_on_which_everything_fails_ends_the_race_and_nothing_is_noted(course: Any) -> None:
    machine = course.failing(lambda task, placement: task > 0)
    with pytest.raises(MeasurementError):
        course.run(machine, rounds=2)
    assert machine.refused == 2 * MAX_FAILURES
    assert not (course.folder / RACE).exists()
    one = TaskSuite(course.suite.name, course.suite.tasks[:1], course.suite.split)
    failing, first = course.failing(lambda *_: True), {name: own[:1] for name, own in course.placements.items()}
    with pytest.raises(MeasurementError):
        run_race(course.folder / "one", one, first, failing)
    assert not (course.folder / "one" / RACE).exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("round", value) for value in (3, 1, -1, True)),
        *(("task", 6), ("entry", "other"), ("reason", None), ("more", 1)),
    ],
)
def test_edited_failures_are_refused(course: Any, key: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = course.placements["random"][0].tolist()
    race = course.run(course.failing(lambda task, placement: placement == bad), rounds=3)
    record = module._unmeasured_to_json(race)
    record[module.UNMEASURED][0][key] = value
    monkeypatch.setattr(module, "_unmeasured_to_json", lambda race: record)
    monkeypatch.setattr(module, "_rows_sha256", lambda *_: "")
    rounds = module._to_parquet(race)
    (course.folder / ROUNDS).write_bytes(rounds)
    (course.folder / RACE).write_text(json.dumps(module._record(race, sha256_of(rounds))))
    with pytest.raises(DamagedFileError, match=r"what could not be measured|that was not raced"):
        course.load()


def test_a_failure_that_is_named_twice_is_refused(course: Any) -> None:
    bad = course.placements["random"][0].tolist()
    race = course.run(course.failing(lambda task, placement: placement == bad), rounds=1)
    write_race(course.folder, replace(race, unmeasured=race.unmeasured * 2))
    with pytest.raises(DamagedFileError, match="not raced, twice"):
        course.load()


def test_one_program_at_a_time_races_into_a_folder(raced: Any) -> None:
    machine = raced.machine()
    with exclusive_access(raced.folder), pytest.raises(InvalidOptionError, match="Another program is adding to"):
        raced.run(machine, rounds=4)
    assert machine.count == 0
    assert raced.run(machine, rounds=4).num_rounds == 4


def test_other_races_in_the_folder_and_bad_entries_are_refused(raced: Any) -> None:
    others = {name: list(reversed(own)) for name, own in raced.placements.items()}
    with pytest.raises((InvalidOptionError, InvalidPlacementError)):
        raced.run(placements=others)
    fewer = dict(list(raced.placements.items())[:2])
    with pytest.raises(InvalidOptionError, match="a race of other placements, with other settings"):
        raced.run(placements=fewer)
    with pytest.raises(InvalidOptionError, match="a race of other placements, with other settings"):
        raced.run(raced.machine(resolved="sequential"))
    with pytest.raises(InvalidOptionError, match="at least two entries"):
        raced.run(placements=dict(list(raced.placements.items())[:1]))
    for name in ("", " random ", "two\nlines", "\x1b[31mred", "x" * 65):
        with pytest.raises(InvalidOptionError, match="1 to 64 printable characters"):
            raced.run(into="new", placements={**raced.placements, name: raced.placements["random"]})
    with pytest.raises(InvalidOptionError, match="Two entries are named 'Random'"):
        raced.run(into="new", placements={**raced.placements, "Random": raced.placements["random"]})
    with pytest.raises(InvalidOptionError, match="rounds must be"):
        raced.run(rounds=0)
    with pytest.raises(InvalidPlacementError, match="has 5 placements for the 6 tasks"):
        raced.run(into="new", placements={**raced.placements, "short": raced.placements["random"][1:]})


@pytest.mark.parametrize(
    ("function", "calls", "measured"), [("write_json", 0, 18), ("write_atomically", 0, 18), ("write_json", 1, 0)]
)
def test_a_kill_while_the_files_are_written_loses_no_round_that_is(
    raced: Any, monkeypatch: pytest.MonkeyPatch, function: str, calls: int, measured: int
) -> None:
    """`race.json` says which rounds may follow, they are written, and then `race.json` again."""
    write, left = getattr(module, function), [None] * calls

    def killed(*arguments: Any, **options: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(*arguments, **options)

    monkeypatch.setattr(module, function, killed)
    with pytest.raises(KeyboardInterrupt):
        raced.run(rounds=4)
    monkeypatch.undo()
    if (function, calls) != ("write_json", 0):
        with pytest.raises(DamagedFileError, match="is not finished, because a program was killed"):
            raced.load()
    machine = raced.machine()
    assert raced.run(machine, rounds=4).num_rounds == 4
    assert machine.count == measured
    assert raced.load().num_rounds == 4  # also if it was the last round, and no other one writes the file


def _halved(rows: tuple[Measured, ...]) -> tuple[Measured, ...]:
    return (replace(rows[0], phases_ms=rows[0].phases_ms / 2), *rows[1:])


@pytest.mark.parametrize("newer", [False, True])
def test_edited_rounds_are_not_continued(raced: Any, newer: bool) -> None:
    """Neither where all seems complete, nor where `race.json` is a round older, as a kill leaves it."""
    machine, record = raced.machine(), (raced.folder / RACE).read_bytes()
    race = raced.run(rounds=4) if newer else raced.load()
    (raced.folder / RACE).write_bytes(record)
    (raced.folder / ROUNDS).write_bytes(module._to_parquet(replace(race, measurements=_halved(race.measurements))))
    with pytest.raises(DamagedFileError, match="does not hold the rounds that"):
        raced.run(machine, rounds=5)
    assert machine.count == 0
    assert (raced.folder / RACE).read_bytes() == record


def test_rows_that_are_not_those_of_their_own_hash_are_refused(raced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    race = raced.load()
    written = module._rows_sha256(race.measurements, race.unmeasured)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_rows_sha256", lambda *_: written)
        write_race(raced.folder, replace(race, measurements=_halved(race.measurements)))
    with pytest.raises(DamagedFileError, match="were edited or damaged"):
        raced.run(rounds=4)
    with pytest.raises(DamagedFileError, match="were edited or damaged"):
        raced.load()


def test_a_race_of_before_rows_had_a_hash_is_read_and_continued(raced: Any) -> None:
    from pyarrow import parquet

    race = raced.load()
    table = parquet.read_table(raced.folder / ROUNDS)
    table = table.replace_schema_metadata({module.DIGEST: table.schema.metadata[module.DIGEST.encode()]})
    parquet.write_table(table, raced.folder / ROUNDS)
    rounds = (raced.folder / ROUNDS).read_bytes()
    (raced.folder / RACE).write_text(json.dumps(module._record(race, sha256_of(rounds))))
    assert raced.load().results() == race.results()
    assert raced.run(rounds=4).num_rounds == 4


def test_damaged_rounds_never_reach_arrow_which_can_end_the_program(
    raced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray((raced.folder / ROUNDS).read_bytes())
    content[len(content) // 2] ^= 1
    (raced.folder / ROUNDS).write_bytes(content)
    monkeypatch.setattr(module, "read_table", lambda *_, **__: pytest.fail("Arrow reads it"))
    with pytest.raises(DamagedFileError, match=r"rounds_sha256 in .* is not that of rounds"):
        raced.load()
    with pytest.raises(DamagedFileError, match="does not hold the rounds that"):
        raced.run(rounds=4)
    (raced.folder / RACE).unlink()
    with pytest.raises(DamagedFileError, match=r"race\.json cannot be read"):
        raced.run(rounds=4)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(course: Any) -> None:
    (course.folder / "file").write_text("")
    machine = course.machine()
    with pytest.raises(UnwritablePathError):
        course.run(machine, into="file")
    assert machine.count == 0


def test_a_race_without_rounds_has_no_results(course: Any) -> None:
    race = Race(course.suite, "a machine", "measured", {}, course.placements, (), np.ones(len(course.suite)))
    assert race.results() == []
