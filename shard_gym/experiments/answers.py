"""The numbers of the tables and pictures, from records alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.cost_models.base import FloatArray
from shard_gym.experiments.methods import LOCAL_SEARCH
from shard_gym.experiments.parts import Cell
from shard_gym.experiments.runs import Record, Run, read_record

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and how sure it is.

    Attributes:
        mean: of the values.
        half: half of Student's 95% interval of the mean; None of a single value.
    """

    mean: float
    half: float | None

    @staticmethod
    def of(values: Sequence[float] | FloatArray) -> Spread:
        """Of one value for each seed."""
        numbers = np.asarray(values, np.float64)
        if len(numbers) < 2:
            return Spread(float(numbers.mean()), None)
        error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
        return Spread(float(numbers.mean()), student_t(len(numbers) - 1) * error)


@lru_cache
def student_t(degrees: int) -> float:
    """How many standard errors a 95% interval reaches to either side, with that many degrees of freedom."""
    x = np.linspace(0.0, 20.0, 200_001)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    density = scale * (1.0 + x**2 / degrees) ** (-(degrees + 1) / 2)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * (x[1] - x[0])])
    return float(np.interp(CONFIDENCE / 2, below, x))


@dataclass(frozen=True)
class Answer:
    """A cell of which there is at least one record.

    Attributes:
        cell: what was asked.
        records: those there are, in the order of the seeds.
    """

    cell: Cell
    records: tuple[Record, ...]

    @cached_property
    def costs_ms(self) -> FloatArray:
        """(seeds,) float64, ms: mean over the tasks, failed ones charged with their penalty."""
        return np.array([record["test"]["mean_cost_ms"] for record in self.records])

    @property
    def mean_ms(self) -> float:
        """Over seeds and tasks."""
        return float(self.costs_ms.mean())

    def change(self, reference: Answer) -> Spread:
        """What it costs in units of the mean of `reference`, less 1."""
        return Spread.of(self.costs_ms / reference.mean_ms - 1.0)

    @property
    def failures(self) -> int:
        """Of all seeds."""
        return sum(record["test"]["failures"] for record in self.records)

    @property
    def placed(self) -> int:
        """Tasks tried, of all seeds."""
        return sum(len(record["test"]["costs_ms"]) for record in self.records)

    @property
    def trained(self) -> bool:
        """Whether the agent learns."""
        return self.records[0]["training"] is not None

    @property
    def training_seconds(self) -> float:
        """Of the fastest seed: whatever else a machine does only adds."""
        return min(float(record["training"]["seconds"]) for record in self.records)

    @property
    def training_queries(self) -> float:
        """True costs asked for in training, mean over seeds."""
        return float(np.mean([record["training"]["queries"] for record in self.records]))

    @property
    def placing_seconds(self) -> float:
        """Median over tasks, of the fastest seed."""
        return min(float(record["test"]["placing_seconds"]) for record in self.records)

    @property
    def placing_queries(self) -> float:
        """True costs asked for to place a task, mean over tasks and seeds."""
        return float(np.mean([record["test"]["queries"] for record in self.records]))

    def error(self, kind: str) -> Spread | None:
        """The relative error of the estimate on placements of that kind; None where there is no estimate."""
        errors = [record["estimate_errors"] or {} for record in self.records]
        values = [each[kind] for each in errors if kind in each]
        return Spread.of(values) if values else None


class Answers:
    """All there are records for.

    Args:
        cells: what was asked, by part.
        folder: of the runs.

    Attributes:
        parts: the answers of each part, in the order of its cells.
        missing: the runs without a record, each once.
        records: all that were found, each once.

    Raises:
        DamagedFileError: a file is not the record it should be.
    """

    def __init__(self, cells: Mapping[str, Sequence[Cell]], folder: Path) -> None:
        runs = dict.fromkeys(run for part in cells.values() for cell in part for run in cell.runs)
        read: dict[Run, Record | None] = {run: read_record(run, folder) for run in runs}
        found = {run: record for run, record in read.items() if record is not None}
        self.missing = [run for run in runs if run not in found]
        self.records = list(found.values())
        self.parts: dict[str, list[Answer]] = {}
        for name, part in cells.items():
            answers = [Answer(cell, tuple(found[run] for run in cell.runs if run in found)) for cell in part]
            self.parts[name] = [answer for answer in answers if answer.records]
        self._plain = {
            (answer.cell.method, answer.cell.test): answer
            for part in self.parts.values()
            for answer in part
            if not answer.trained
        }

    def strongest_heuristic(self, suite: str) -> Answer | None:
        """The cheapest of the paper's four on that suite; None unless all four were tried."""
        tried = [self._plain.get((name, suite)) for name in PAPER_HEURISTICS]
        found = [answer for answer in tried if answer is not None]
        return min(found, key=lambda answer: answer.mean_ms) if len(found) == len(tried) else None

    def local_search(self, suite: str) -> Answer | None:
        """The search under the true cost on that suite."""
        return self._plain.get((LOCAL_SEARCH, suite))
