"""Rows of a file of answers: each is checked, and what it claims is computed again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import isclose
from typing import Any, TypeVar

import numpy as np

from shard_gym.common.errors import InvalidPlacementError, short_repr
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.schema import Row, SequenceRow
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.leaderboard.store import EntryFolder, Finding
from shard_gym.tasks.problems import Answer
from shard_gym.tasks.task import Suite

TOLERANCE = 1e-9
"""Relative difference of two costs that differ by rounding only."""

MANY_TASKS = 10
"""On suites with at least so many tasks, two equal sets of answers are copies and not a coincidence."""

AnswerGrid = list[list[Answer | None]]
"""Answers by seed and task: S lists of N; None where the agent found none."""


def _arrange(
    rows: Sequence[Row], suite: Suite[Any], seeds: Sequence[int], file: str
) -> tuple[dict[tuple[int, int], Any], list[Finding]]:
    """The rows by positions of seed and task, and a finding for every pair that is missing, duplicate or unknown."""
    tasks = {task.name: number for number, task in enumerate(suite)}
    positions = {seed: position for position, seed in enumerate(seeds)}
    cells: dict[tuple[int, int], Any] = {}
    findings = []
    for row in rows:
        if row.task not in tasks:
            findings.append(Finding(file, f"Suite {suite.name!r} has no such test task.", row.task, row.seed))
        elif row.seed not in positions:
            findings.append(Finding(file, f"The seed is none of {list(seeds)}.", row.task, row.seed))
        elif (cell := (positions[row.seed], tasks[row.task])) in cells:
            findings.append(Finding(file, "The task occurs twice for this seed.", row.task, row.seed))
        else:
            cells[cell] = row
    findings += [
        Finding(file, "The task is missing for this seed; a task without an answer is null.", task, seed)
        for task, number in tasks.items()
        for seed, position in positions.items()
        if (position, number) not in cells
    ]
    return cells, findings


class CheckedRows:
    """The rows of a file of answers, each checked: its memory is recomputed from the tables.

    Attributes:
        answers: by seed and task.
        costs_ms: (S, N) ms of them, penalties included.
        facts: see `VerifiedEntry`.
        findings: everything that is wrong.
    """

    def __init__(
        self, rows: Sequence[Row], folder: EntryFolder, scorer: Scorer, seeds: Sequence[int], recompute: bool
    ) -> None:
        suite, file = scorer.suite, folder.file(folder.answers)
        cells, self.findings = _arrange(rows, suite, seeds, file)
        self.answers: AnswerGrid = [[None] * len(suite) for _ in seeds]
        recompute = recompute or not folder.rules.claims
        for (position, number), row in cells.items():
            if row.answer is None:
                continue
            try:
                answer = scorer.problem.from_json(row.answer, suite[number])
                if folder.rules.claims and (reason := _wrong_claim(row, answer, number, scorer, recompute)):
                    self.findings.append(Finding(file, reason, row.task, row.seed))
                else:
                    self.answers[position][number] = answer
            except InvalidPlacementError as error:
                self.findings.append(Finding(file, str(error), row.task, row.seed))
        self.facts = {heading: np.full((len(seeds), len(suite)), np.nan) for heading in scorer.problem.headings}
        for (position, number), row in cells.items() if folder.rules.claims else ():
            if row.answer is None and (row.cost_ms is not None or row.facts):
                reason = "It has no answer, so it claims no cost_ms and no facts."
                self.findings.append(Finding(file, reason, row.task, row.seed))
            for heading in self.facts.keys() & row.facts.keys():
                self.facts[heading][position, number] = row.facts[heading]
        if not recompute:
            self.costs_ms = self._claimed_costs(cells, scorer)
            return
        self.costs_ms = _costs(self.answers, scorer)
        if len(suite) >= MANY_TASKS:
            by_seed = map(tuple, canonical(self.answers, scorer))
            for first, seed in repeated(zip(by_seed, seeds, strict=True)):
                reason = (
                    f"The {scorer.problem.noun}s of seed {seed} are those of seed {first} on every task. Run each seed "
                    "separately; an agent that another seed does not change declares agent.stochastic = false, "
                    "and has one."
                )
                self.findings.append(Finding(file, reason, seed=seed))

    def _claimed_costs(self, cells: Mapping[tuple[int, int], SequenceRow], scorer: Scorer) -> FloatArray:
        costs = np.zeros((len(self.answers), len(scorer.suite)))
        for (position, number), row in cells.items():
            claimed = None if self.answers[position][number] is None else row.cost_ms
            costs[position, number] = scorer.penalty_ms(number) if claimed is None else claimed
        return costs


def _wrong_claim(row: SequenceRow, answer: Answer, number: int, scorer: Scorer, recompute: bool) -> str:
    """How the claims of a row differ from what is computed, or nothing.

    Raises:
        InvalidPlacementError: the answer cannot be played.
    """
    said, noun, again = row.facts, scorer.problem.noun, "Submit the entry again."
    true = claims_of(answer, number, scorer) if recompute else {}
    if row.cost_ms is None or said.keys() != set(scorer.problem.headings):
        return f"It must claim cost_ms, and facts with {list(scorer.problem.headings)}. {again}"
    if not recompute:
        return ""
    cost, facts = true.values()
    if not isclose(row.cost_ms, cost, rel_tol=TOLERANCE):
        return f"cost_ms is {row.cost_ms}, but the {noun} costs {cost}. {again}"
    if not all(isclose(said[key], facts[key], rel_tol=TOLERANCE) for key in facts):
        return f"facts are {short_repr(said)}, but the {noun} gives {facts}. {again}"
    return ""


def claims_of(answer: Answer, number: int, scorer: Scorer) -> dict[str, Any]:
    """What the row of an answer to the task at index `number` claims: "cost_ms" and "facts"."""
    facts = scorer.problem.facts(answer, scorer.suite[number], scorer.model)
    return {"cost_ms": float(scorer.costs(number, [answer])[0]), "facts": facts}


Item = TypeVar("Item")


def repeated(items: Iterable[tuple[Hashable, Item]]) -> Iterator[tuple[Item, Item]]:
    """From keys and items: each item whose key occurred before, after the first item with that key."""
    seen: dict[Hashable, Item] = {}
    for key, item in items:
        first = seen.setdefault(key, item)
        if first != item:
            yield first, item


def canonical(answers: AnswerGrid, scorer: Scorer) -> list[list[bytes | None]]:
    """The answers by seed and task, equal for those that do the same; None where there is none, or it says nothing."""
    return [
        [
            None if answer is None else scorer.problem.canonical(answer, task)
            for answer, task in zip(row, scorer.suite, strict=True)
        ]
        for row in answers
    ]


def _costs(answers: AnswerGrid, scorer: Scorer) -> FloatArray:
    """(S, N) ms by the cost model, the penalty where there is no answer."""
    costs = np.zeros((len(answers), len(scorer.suite)))
    for number in range(costs.shape[1]):
        valid = {seed: each for seed, row in enumerate(answers) if (each := row[number]) is not None}
        if len(valid) < len(answers):
            costs[:, number] = scorer.penalty_ms(number)
        if valid:
            costs[list(valid), number] = scorer.costs(number, list(valid.values()))
    return costs
