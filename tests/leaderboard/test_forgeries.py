"""Forged entries, made of others: each is found to be a near copy, or costs no less than what it was made from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.common.errors import InvalidPlacementError
from shard_gym.leaderboard import EntryFolder, VerifiedEntry, entry, verify, verify_entry
from shard_gym.leaderboard.scorer import Scorer, load_scorer
from shard_gym.leaderboard.verify import near_sources
from shard_gym.replanning import DriftSuite, DriftTask
from shard_gym.replanning.agents.rules import EveryHours
from shard_gym.replanning.drift.levels import SPOT, STRONG
from shard_gym.replanning.env.episode_data import DECISIONS
from shard_gym.replanning.env.play import history_of, play
from shard_gym.tasks import PROBLEMS
from shard_gym.tasks.problems.placement import alone_ms
from shard_gym.tasks.suites.best_known import best_known

ROOT = Path(__file__).parents[2] / "leaderboards"
SOURCES = {
    "dlrm-20x4": ("dim-greedy", "dreamshard-search", "lookup-greedy"),
    "mixdim-4": ("lane-greedy", "dreamshard-search", "attention"),
    "dlrm-50x4": ("dim-greedy", "dreamshard-search", "lane-greedy"),
    "shard-4": ("hugectr", "dreamshard-search", "attention"),
}

Rows = Sequence[Any]
"""An answer to each task."""


@lru_cache
def board(suite: str) -> tuple[VerifiedEntry, ...]:
    """Committed entries of a suite."""
    track = "sharding" if suite.startswith("shard-") else "simulated"
    found = [verify_entry(EntryFolder(ROOT, track, suite, slug))[0] for slug in SOURCES[suite]]
    assert all(found)
    return tuple(each for each in found if each)


@lru_cache
def known(suite: str) -> Rows:
    scorer = load_scorer(suite)
    found = best_known(scorer.suite, scorer.model)
    return [found[task.name].answer for task in scorer.suite]


def entry_of(template: VerifiedEntry, answers: Sequence[Rows]) -> VerifiedEntry:
    """An entry that asks nothing, of an agent that is none of ShardGym's; its costs are 0, as none are compared."""
    costs = np.zeros((len(answers), len(answers[0])))
    declared = template.entry
    agent = declared.agent.model_copy(update={"name": "mine"})
    planning = declared.planning.model_copy(update={"league": None, "queries": 0.0, "search_budget": 0})
    entry = declared.model_copy(update={"agent": agent, "planning": planning})
    folder = replace(template.folder, slug="forged")
    return VerifiedEntry(folder, entry, [list(rows) for rows in answers], costs, "0" * 64)


# Placements


def swap(row: Any, task: Any, rng: Any, alike: bool = False) -> Any:
    """Two tables on different devices exchanged; with `alike` those of which it changes the costs least."""
    costs = alone_ms(task, load_scorer(task.name.split("/")[0]).model)
    pairs = [(a, b) for a in range(len(row)) for b in range(a) if row[a] != row[b]]
    a, b = pairs[rng.integers(len(pairs))]
    if alike:
        a, b = min(pairs, key=lambda pair: abs(costs[pair[0]] - costs[pair[1]]))
    changed = row.copy()
    changed[a], changed[b] = row[b], row[a]
    return changed


def move(row: Any, task: Any, rng: Any, count: int = 1, lightest: bool = False) -> Any:
    """So many tables on other devices."""
    costs = alone_ms(task, load_scorer(task.name.split("/")[0]).model)
    tables = np.argsort(costs)[:count] if lightest else rng.choice(len(row), count, replace=False)
    changed = row.copy()
    changed[tables] = (row[tables] + 1 + rng.integers(task.num_devices - 1, size=len(tables))) % task.num_devices
    return changed


def relabelled(row: Any, task: Any, rng: Any) -> Any:
    return rng.permutation(task.num_devices)[row]


def better_move(row: Any, task: Any, rng: Any) -> Any:
    """The move of one table that makes the placement cheapest."""
    scorer = load_scorer(task.name.split("/")[0])
    moved = np.repeat(row[None], len(row) * task.num_devices, axis=0)
    moved[np.arange(len(moved)), np.arange(len(moved)) // task.num_devices] = np.arange(len(moved)) % task.num_devices
    return moved[int(scorer.problem.costs_ms(list(moved), task, scorer.model).argmin())]


PLACED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a table moved": move,
    "two tables exchanged": swap,
    "two alike tables exchanged": lambda row, task, rng: swap(row, task, rng, alike=True),
    "the two lightest tables moved": lambda row, task, rng: move(row, task, rng, 2, lightest=True),
    "the third that is lightest moved": lambda row, task, rng: move(row, task, rng, len(row) // 3, lightest=True),
    "the best move of a table": better_move,
    "devices renumbered, and a table moved": lambda row, task, rng: move(relabelled(row, task, rng), task, rng),
}


def rows_of(suite: str, source: str) -> Rows:
    return known(suite) if source == "best known" else members_of(suite)[source].answers[0]


def forged_rows(suite: str, source: str, change: Callable[[Any, Any, Any], Any]) -> list[Any]:
    """The changed answers of a source."""
    scorer, rng = load_scorer(suite), np.random.default_rng(7)
    return [change(row, task, rng) for row, task in zip(rows_of(suite, source), scorer.suite, strict=True)]


def mean_cost(suite: str, rows: Rows) -> float:
    """Ms, of the answers to the tasks of a suite."""
    scorer = load_scorer(suite)
    return float(np.mean([scorer.costs(number, [row])[0] for number, row in enumerate(rows)]))


def members_of(suite: str) -> dict[str, VerifiedEntry]:
    return {each.folder.slug: each for each in board(suite)}


CASES = [
    (suite, SOURCES[suite][number % 2] if number % 3 else "best known", kind)
    for suite in ("dlrm-20x4", "mixdim-4", "dlrm-50x4")
    for number, kind in enumerate(PLACED)
]


@pytest.mark.parametrize(("suite", "source", "kind"), CASES)
def test_a_placement_made_of_another_is_marked_or_no_better(suite: str, source: str, kind: str) -> None:
    rows = forged_rows(suite, source, PLACED[kind])
    marked = near_sources(entry_of(board(suite)[0], [rows]), board(suite))
    assert marked or mean_cost(suite, rows) >= mean_cost(suite, rows_of(suite, source))
    if "third" not in kind:
        assert source == marked[0].rpartition("/")[2]


def best_of(suite: str) -> list[Any]:
    """For each task the cheapest answer of all sources, but for the best known ones."""
    costs = [each.costs_ms[0] for each in board(suite)]
    winners = np.argmin(costs, axis=0).tolist()
    return [board(suite)[winner].answers[0][number] for number, winner in enumerate(winners)]


def changed(rows: Rows, suite: str) -> list[Any]:
    """Two tables of each answer exchanged."""
    scorer, rng = load_scorer(suite), np.random.default_rng(3)
    exchange: Callable[..., Any] = swap if scorer.problem.name == "placement" else plan_swap
    return [exchange(row, task, rng) for row, task in zip(rows, scorer.suite, strict=True)]


def own_answers(suite: str) -> list[Any]:
    """Placements that are nobody's."""
    problem, rng = load_scorer(suite).problem, np.random.default_rng(5)

    def answer(task: Any) -> Any:
        while True:
            with suppress(InvalidPlacementError):
                return problem.checked(rng.integers(task.num_devices, size=task.num_tables), task)

    return [answer(task) for task in load_scorer(suite).suite]


def in_turn(suite: str, of: int, *sources: Rows) -> list[Any]:
    """Of every `of` tasks the answers of one source after the other."""
    return [sources[number % of % len(sources)][number] for number in range(len(load_scorer(suite).suite))]


def mixture(suite: str, kind: str) -> list[Rows]:
    first, second, third = (each.answers[0] for each in board(suite))
    best = known(suite)
    if kind == "seeds in another order, changed":
        return [changed(rows, suite) for rows in reversed(board(suite)[1].answers)]
    if kind == "six tenths copied":
        return [in_turn(suite, 5, best, best, best, *[own_answers(suite)] * 2)]
    return [
        {
            "88% copied, 12% changed": in_turn(suite, 8, changed(best, suite), *[best] * 7),
            "two sources in turn": changed(in_turn(suite, 2, best, second), suite),
            "three sources in turn": in_turn(suite, 3, best, first, third),
            "the best of all sources": best_of(suite),
            "the best of all sources, changed": changed(best_of(suite), suite),
        }[kind]
    ]


MIXTURES = (
    *("88% copied, 12% changed", "two sources in turn", "three sources in turn", "the best of all sources"),
    *("the best of all sources, changed", "seeds in another order, changed", "six tenths copied"),
)


@pytest.mark.parametrize(
    ("suite", "kind"),
    [("dlrm-20x4", kind) for kind in MIXTURES] + [("shard-4", kind) for kind in MIXTURES[:-1]],
)
def test_a_mixture_of_sources_is_marked(suite: str, kind: str) -> None:
    forged = entry_of(board(suite)[0], mixture(suite, kind))
    assert near_sources(forged, board(suite))


# Plans


def edited(plan: Any, task: Any, edit: Callable[[list[Any]], object]) -> Any:
    """The plan after an edit of its JSON; as it was if that is not valid."""
    problem: Any = PROBLEMS["sharding"]
    value = copy.deepcopy(problem.to_json(plan))
    edit(value)
    try:
        return problem.from_json(value, task)
    except InvalidPlacementError:
        return plan


def whole(value: list[Any]) -> list[int]:
    return [table for table, (_, shards) in enumerate(value) if len(shards) == 1]


def plan_swap(plan: Any, task: Any, rng: Any) -> Any:
    def edit(value: list[Any]) -> None:
        a, b = rng.choice(whole(value), 2, replace=False)
        value[a][1][0][0], value[b][1][0][0] = value[b][1][0][0], value[a][1][0][0]

    return edited(plan, task, edit)


def plan_move(plan: Any, task: Any, rng: Any) -> Any:
    def edit(value: list[Any]) -> None:
        value[rng.choice(whole(value))][1][0][0] = int(rng.integers(task.num_devices))

    return edited(plan, task, edit)


def plan_halved(plan: Any, task: Any, rng: Any) -> Any:
    """Whole tables as two halves of their columns on the same device."""

    def edit(value: list[Any]) -> None:
        for table in whole(value):
            device, row, rows, column, columns = value[table][1][0]
            if columns % 8 == 0:
                half = columns // 2
                shards = [[device, row, rows, column, half], [device, row, rows, column + half, half]]
                value[table] = ["column_wise", shards]

    return edited(plan, task, edit)


def plan_split(plan: Any, task: Any, rng: Any) -> Any:
    """One table as two halves of its columns on two devices."""

    def edit(value: list[Any]) -> None:
        table = rng.choice([each for each in whole(value) if value[each][1][0][4] % 8 == 0])
        device, row, rows, column, columns = value[table][1][0]
        half, other = columns // 2, (device + 1) % task.num_devices
        value[table] = ["column_wise", [[device, row, rows, column, half], [other, row, rows, column + half, half]]]

    return edited(plan, task, edit)


def plan_renumbered(plan: Any, task: Any, rng: Any) -> Any:
    """Whole and column-wise tables on renumbered devices."""
    order = rng.permutation(task.num_devices).tolist()

    def edit(value: list[Any]) -> None:
        for kind, shards in value:
            for shard in shards if kind in ("table_wise", "column_wise") else ():
                shard[0] = order[shard[0]]

    return edited(plan, task, edit)


PLANNED = {
    "a table moved": plan_move,
    "two tables exchanged": plan_swap,
    "halves without effect": plan_halved,
    "a table split": plan_split,
    "devices renumbered": plan_renumbered,
}


@pytest.mark.parametrize("kind", PLANNED)
@pytest.mark.parametrize("source", ["best known", "attention", "dreamshard-search"])
def test_a_plan_made_of_another_is_marked(source: str, kind: str) -> None:
    suite = "shard-4"
    forged = entry_of(board(suite)[0], [forged_rows(suite, source, PLANNED[kind])])
    assert source == near_sources(forged, board(suite))[0].rpartition("/")[2]


# Replanning


class Episodes(NamedTuple):
    """Two agents that played small tasks."""

    scorer: Scorer
    entries: dict[str, VerifiedEntry]


@pytest.fixture(scope="module")
def episodes(drift_task: Callable[..., DriftTask]) -> Iterator[Episodes]:
    """For these tests the tasks of the suite that their entries name."""
    tasks = [drift_task(5, 4, seed, (SPOT, STRONG)[seed % 2], 20.0) for seed in range(4)]
    suite = DriftSuite("drift-strong-600", tuple(replace(each, name=f"tiny/test/{n}") for n, each in enumerate(tasks)))
    model: Any = PROBLEMS["replanning"].model("analytical")
    committed = verify_entry(EntryFolder(ROOT, "replanning", "drift-strong-600", "ridge"), recompute=False)[0]
    assert committed
    scorer = Scorer(suite)
    entries: dict[str, VerifiedEntry] = {}
    for name, rule in (("daily", EveryHours(24, 1)), ("weekly", EveryHours(100, 2))):
        made = entry_of(committed, [[each.actions for each in play(rule, suite, model)]])
        entries[name] = replace(made, folder=replace(committed.folder, slug=name))
    with pytest.MonkeyPatch.context() as patch:
        for module in (verify, entry):
            patch.setattr(module, "load_scorer", lambda _: scorer)
        yield Episodes(scorer, entries)


def voluntary(row: Any) -> Any:
    return np.flatnonzero(row)


def at_repairs(row: Any, task: Any, scorer: Scorer) -> Any:
    """0 for 1 and 1 for 0 where a plan has to be made."""
    repairs = history_of(task, row, scorer.model).repairs
    return np.where(repairs & (row < 2), 1 - row, row)


def shifted(row: Any, task: Any, scorer: Scorer) -> Any:
    changed = np.zeros_like(row)
    changed[np.minimum(voluntary(row) + 1, DECISIONS - 1)] = row[voluntary(row)]
    return changed


def one_set(hour: int, action: int) -> Callable[[Any, Any, Scorer], Any]:
    def change(row: Any, task: Any, scorer: Scorer) -> Any:
        changed = row.copy()
        changed[hour] = action
        return changed

    return change


def last_left_out(row: Any, task: Any, scorer: Scorer) -> Any:
    changed = row.copy()
    changed[voluntary(row)[-1]] = 0
    return changed


def other_kind(row: Any, task: Any, scorer: Scorer) -> Any:
    changed = row.copy()
    changed[voluntary(row)[0]] = 4
    return changed


ACTED = {
    "an action that changes nothing": at_repairs,
    "all plans an hour later": shifted,
    "a plan more": one_set(333, 2),
    "an early plan more": one_set(5, 2),
    "the last plan left out": last_left_out,
    "a plan of another kind": other_kind,
}


@pytest.mark.parametrize("kind", [*ACTED, "two sources in turn"])
@pytest.mark.parametrize("source", ["daily", "weekly"])
def test_a_sequence_made_of_another_is_marked(episodes: Episodes, source: str, kind: str) -> None:
    scorer, members = episodes.scorer, list(episodes.entries.values())
    if kind in ACTED:
        rows = zip(episodes.entries[source].answers[0], scorer.suite, strict=True)
        answers = [ACTED[kind](row, task, scorer) for row, task in rows]
    else:
        answers = [members[number % 2].answers[0][number] for number in range(4)]
    marked = near_sources(entry_of(members[0], [answers]), members)
    assert source in {each.rpartition("/")[2] for each in marked}


def test_sequences_of_ones_own_are_not_marked(episodes: Episodes) -> None:
    daily, weekly = episodes.entries.values()
    assert not near_sources(daily, [weekly])
