"""The numbers of the tables and the figure, computed from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.cost_models.base import FloatArray
from shard_gym.errors import missing_extra
from shard_gym.experiments.runs import Record, read_record
from shard_gym.experiments.study import LOCAL_SEARCH, Setting

CONFIDENCE = 0.95


class MeanInterval(NamedTuple):
    """A mean over seeds, and half the width of Student's 95% interval of it; None for a single seed."""

    mean: float
    half_width: float | None


def mean_interval(values: Sequence[float] | FloatArray) -> MeanInterval:
    """From one value for each seed.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    if len(values) < 2:
        return MeanInterval(float(np.mean(values)), None)
    try:
        from scipy.stats import sem, t
    except ImportError as error:
        raise missing_extra("scipy", "torch", "A confidence interval over seeds") from error
    standard_errors = t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)
    return MeanInterval(float(np.mean(values)), float(standard_errors * sem(values)))


@dataclass(frozen=True)
class Result:
    """A setting with at least one record.

    Attributes:
        setting: the setting.
        records: those that exist, in the order of the seeds.
    """

    setting: Setting
    records: tuple[Record, ...]

    @property
    def costs_ms(self) -> FloatArray:
        """(seeds,) float64, ms: mean over the tasks; a failed task is charged its penalty."""
        return np.array([record["test"]["mean_cost_ms"] for record in self.records])

    def change(self, reference: Result) -> FloatArray:
        """(seeds,) float64, cost / mean cost of `reference` - 1."""
        return self.costs_ms / float(reference.costs_ms.mean()) - 1.0

    @property
    def failures(self) -> int:
        """Failed tasks of all seeds."""
        return sum(record["test"]["failures"] for record in self.records)

    @property
    def tasks(self) -> int:
        """Tasks of all seeds."""
        return sum(len(record["test"]["costs_ms"]) for record in self.records)

    @property
    def trained(self) -> bool:
        """Whether the agent learns."""
        return self.records[0]["training"] is not None

    @property
    def training_seconds(self) -> float:
        """Training time of the fastest seed, because background load only adds time."""
        return min(float(record["training"]["seconds"]) for record in self.records)

    @property
    def placing_seconds(self) -> float:
        """Median over the tasks of the time to place one, of the fastest seed."""
        return min(float(record["test"]["placing_seconds"]) for record in self.records)

    @property
    def evaluations(self) -> tuple[float, float]:
        """Cost-model evaluations in training and to place a task, means over seeds; 0 without training."""
        training = [record["training"]["queries"] if self.trained else 0 for record in self.records]
        return float(np.mean(training)), float(np.mean([record["test"]["queries"] for record in self.records]))

    def surrogate_errors(self, kind: str) -> list[float]:
        """The surrogate's relative error, by seed, on placements of `kind` (see `ERROR_KINDS`); empty without one."""
        errors = [record["estimate_errors"] or {} for record in self.records]
        return [each[kind] for each in errors if kind in each]


class Results:
    """All results of a study whose records exist.

    Args:
        settings: of each section.
        folder: of the runs.

    Attributes:
        sections: the results of each section, in the order of its settings.
        missing: the runs without a record, each once.
        records: all that were found, each once.

    Raises:
        DamagedFileError: a file is not the record it should be.
    """

    def __init__(self, settings: Mapping[str, Sequence[Setting]], folder: Path) -> None:
        runs = dict.fromkeys(run for section in settings.values() for setting in section for run in setting.runs)
        found = {run: record for run in runs if (record := read_record(run, folder)) is not None}
        self.missing = [run for run in runs if run not in found]
        self.records = list(found.values())
        self.sections: dict[str, list[Result]] = {}
        for name, section in settings.items():
            results = (Result(each, tuple(found[run] for run in each.runs if run in found)) for each in section)
            self.sections[name] = [result for result in results if result.records]
        self._untrained = {
            (result.setting.method, result.setting.test): result
            for section in self.sections.values()
            for result in section
            if not result.trained
        }

    def strongest_heuristic(self, suite: str) -> Result | None:
        """The cheapest of the paper's four on that suite; None unless all four have a record."""
        found = [self._untrained[name, suite] for name in PAPER_HEURISTICS if (name, suite) in self._untrained]
        if len(found) < len(PAPER_HEURISTICS):
            return None
        return min(found, key=lambda result: float(result.costs_ms.mean()))

    def local_search(self, suite: str) -> Result | None:
        """Local search under the cost model itself on that suite."""
        return self._untrained.get((LOCAL_SEARCH, suite))
