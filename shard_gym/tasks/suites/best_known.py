"""The best known placements, or plans, of the named suites, the reference for the gaps of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shard_gym.common.checks import is_positive
from shard_gym.common.errors import DamagedFileError, InvalidPlacementError, short_repr
from shard_gym.cost_models import AdditiveCostModel, CostModel
from shard_gym.tasks.problems import Answer, problem_of
from shard_gym.tasks.suites.info import DATA
from shard_gym.tasks.suites.records import check_names, read_bounds, read_entries, read_record, write_entries
from shard_gym.tasks.task import Suite, SuiteTask

BEST_KNOWN = DATA / "best_known"  # folder with one JSON file per suite

IMPROVED_BY = "improved by entries of the leaderboards: "
"""Begins the part of a suite's sentence about the search effort that names the entries."""

TOLERANCE = 1e-9  # relative difference of two costs that differ by rounding only


@dataclass(frozen=True, eq=False)
class BestKnown:
    """The best known answer to one task, a checked placement or plan, and its cost."""

    cost_ms: float
    answer: Answer


def best_known_path(suite: str) -> Path:
    """The file of the best known placements of the suite named `suite`, which may not exist."""
    return BEST_KNOWN / f"{suite}.json"


def best_known_costs(suite: Suite[Any], cost_model: CostModel) -> dict[str, float]:
    """Cost in ms of the best known answer, by name of the task: the proven bounds, where the problem reaches them."""
    if problem_of(suite[0]).bounds_are_reached:
        return {name: float(bound) for name, bound in read_bounds(suite, cost_model).items()}
    return {name: best.cost_ms for name, best in best_known(suite, cost_model).items()}


def stated_costs(suite: Suite[Any], cost_model: CostModel) -> dict[str, float]:
    """Cost in ms that the file states of the best known placement, by name of the task, which nobody computed again."""
    path = best_known_path(suite.name)
    tasks = {task.name: task for task in suite}
    return {name: _cost(entry, tasks[name], path) for name, entry in read_entries(path, suite, cost_model).items()}


def best_known(suite: Suite[Any], cost_model: CostModel) -> dict[str, BestKnown]:
    """The best known placements, by name of the task; their costs are computed again, about a millisecond for each.

    Empty for a suite without a file of best known placements, or with one for another cost model.
    """
    path = best_known_path(suite.name)
    tasks = {task.name: task for task in suite}
    entries = read_entries(path, suite, cost_model)
    return {name: _entry(entry, tasks[name], cost_model, path) for name, entry in entries.items()}


def _cost(entry: Any, task: SuiteTask, path: Path) -> float:
    noun = problem_of(task).noun
    if not isinstance(entry, dict) or set(entry) != {"cost_ms", noun}:
        raise DamagedFileError(f"Task {task.name!r} in {path} must have the keys cost_ms and {noun}.")
    if not is_positive(entry["cost_ms"]):
        wrong = short_repr(entry["cost_ms"])
        raise DamagedFileError(f"cost_ms of task {task.name!r} in {path} must be a positive number, not {wrong}.")
    return float(entry["cost_ms"])


def _entry(entry: Any, task: SuiteTask, cost_model: CostModel, path: Path) -> BestKnown:
    cost, problem = _cost(entry, task, path), problem_of(task)
    try:
        answer = problem.from_json(entry[problem.noun], task)
    except InvalidPlacementError as error:
        raise DamagedFileError(f"The {problem.noun} of task {task.name!r} in {path} is not valid: {error}") from error
    model = problem.model(cost_model)
    assert isinstance(model, AdditiveCostModel)  # files are for no others
    now = float(problem.costs_ms([answer], task, model)[0])
    if abs(now - cost) > TOLERANCE * cost:
        raise DamagedFileError(
            f"The {problem.noun} of task {task.name!r} in {path} costs {now} ms, and not {cost}. Reinstall shard-gym, "
            "or make the file again."
        )
    return BestKnown(cost, answer)


def best_known_effort(suite: str) -> str:
    """How the best known placements of the suite named `suite` were found, a sentence; empty without a file."""
    return str(read_record(best_known_path(suite)).get("how", ""))


def improved_by(suite: str) -> set[str]:
    """The ids of the leaderboards' entries that improved the best known placements of the suite named `suite`."""
    clauses = best_known_effort(suite).split("; ")
    named = [each.removeprefix(IMPROVED_BY) for each in clauses if each.startswith(IMPROVED_BY)]
    return {name for each in named for name in each.split(", ")}


def write_best_known(
    splits: Sequence[Suite[Any]], answers: Mapping[str, Answer], cost_model: CostModel, how: str
) -> Path:
    """Check and cost the best answers to tasks of one named suite, by name, and write them to its file, which is
    returned.
    """
    check_names(splits, answers)
    entries = {
        task.name: _record(task, answers[task.name], cost_model)
        for suite in splits
        for task in suite
        if task.name in answers
    }
    path = best_known_path(splits[0].name)
    write_entries(path, splits, entries, cost_model, how)
    return path


def _record(task: SuiteTask, answer: Answer, cost_model: CostModel) -> dict[str, Any]:
    problem = problem_of(task)
    checked = problem.checked(answer, task)
    cost = problem.cost_ms(checked, task, problem.model(cost_model))
    return {"cost_ms": cost, problem.noun: problem.to_json(checked)}
