"""A race: the placements of several entries are measured in turn, in several rounds, on one machine.

In each round, every task is measured with the placement of each entry, one after the other, in an order that is drawn
anew. So what slows the machine for a while slows all entries, and differences within a round and task are fair. The
cost of a task is the median over the rounds. Intervals are paired: a bootstrap sample draws tasks, the same for all
entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.cost_models.base import FloatArray
from shard_gym.leaderboard.statistics import NUM_SAMPLES, percentile_interval
from shard_gym.placement import Placement
from shard_gym.tasks import TaskSuite

Placements = Mapping[str, Sequence[Placement | None]]
"""For each entry its placements of all tasks, in the order of the suite; None where it found none."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a race.

    Attributes:
        round: its round, from 0 up.
        task: the task's number in the suite.
        entry: the entry's name.
        load: the machine's load average over the last minute, before the measurement; 0 where it is unknown.
        phases_ms: (iterations, D, 4) float64, ms of each device in each phase of each iteration.
    """

    round: int
    task: int
    entry: str
    load: float
    phases_ms: FloatArray


@dataclass(frozen=True)
class Unmeasured:
    """A placement that could not be measured, twice. It is not measured again, and its task costs its penalty.

    Attributes:
        round: the round in which that was found.
        task: the task's number in the suite.
        entry: the entry's name.
        reason: why.
    """

    round: int
    task: int
    entry: str
    reason: str


@dataclass(frozen=True)
class Result:
    """An entry's result in a race.

    Attributes:
        entry: its name.
        mean_ms: mean over the tasks of the median over the rounds; a task that failed costs its penalty.
        interval_ms: its 95% interval, over tasks.
        ratio: mean cost divided by that of the cheapest entry.
        ratio_interval: its 95% interval; paired, so it is narrower than the intervals of the means.
        beats_next: share of the tasks and rounds in which it costs less than the next entry; None for the last.
        failures: tasks without a placement, or whose placement could not be measured.
    """

    entry: str
    mean_ms: float
    interval_ms: tuple[float, float]
    ratio: float
    ratio_interval: tuple[float, float]
    beats_next: float | None
    failures: int


@dataclass(frozen=True, eq=False)
class Race:
    """A race and its raw rounds.

    Attributes:
        suite: the tasks.
        hardware: name of the machine.
        cost_model: fingerprint of the model that measured.
        settings: how it measured, by name of the setting.
        placements: of each entry.
        measurements: in the order in which they were made.
        penalties_ms: (N,) ms of a task that failed.
        unmeasured: placements that could not be measured, in the order in which that was found.
    """

    suite: TaskSuite
    hardware: str
    cost_model: str
    settings: Mapping[str, Any]
    placements: Placements
    measurements: tuple[Measured, ...]
    penalties_ms: FloatArray
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def num_rounds(self) -> int:
        """Rounds that are complete; others are not kept."""
        return len({each.round for each in self.measurements})

    def measured_placements(self, entry: str) -> list[Placement | None]:
        """An entry's placements of all tasks; None also where one could not be measured."""
        failed = {each.task for each in self.unmeasured if each.entry == entry}
        return [None if task in failed else each for task, each in enumerate(self.placements[entry])]

    def costs_ms(self) -> FloatArray:
        """(E, N, R) ms of each entry, task and complete round: the sum over the phases of the slowest median.

        A task that failed costs its penalty in all rounds.
        """
        names = list(self.placements)
        costs = np.repeat(np.tile(self.penalties_ms, (len(names), 1))[..., None], self.num_rounds, axis=2)
        for each in self.measurements:
            costs[names.index(each.entry), each.task, each.round] = cost_of(each.phases_ms)
        for failed in self.unmeasured:
            costs[names.index(failed.entry), failed.task] = self.penalties_ms[failed.task]
        return costs

    def results(self) -> list[Result]:
        """The entries' results, the cheapest first; none before the first round is complete."""
        if not self.num_rounds:
            return []
        names, costs = np.array(list(self.placements)), self.costs_ms()
        medians = np.median(costs, axis=2)
        order = np.argsort(medians.mean(axis=1), kind="stable")
        names, costs, medians = names[order], costs[order], medians[order]
        means, sampled = medians.mean(axis=1), _bootstrapped_means(medians)
        results = []
        for place, name in enumerate(names.tolist()):
            own = costs[place]
            following = costs[place + 1] if place + 1 < len(names) else None
            beats = None if following is None else float(((own < following) + 0.5 * (own == following)).mean())
            results.append(
                Result(
                    name,
                    float(means[place]),
                    percentile_interval(sampled[place]),
                    float(means[place] / means[0]),
                    percentile_interval(sampled[place] / sampled[0]),
                    beats,
                    sum(each is None for each in self.measured_placements(name)),
                )
            )
        return results


def cost_of(phases_ms: FloatArray) -> float:
    """Ms of a placement from the (iterations, D, 4) ms of its devices: the sum over the phases of the slowest median.

    A collective starts when the last device is ready, so each phase takes as long as its slowest device.
    """
    return float(np.median(phases_ms, axis=0).max(axis=0).sum())


def _bootstrapped_means(medians: FloatArray) -> FloatArray:
    """(E, B) mean costs of bootstrap samples of (E, N) costs: tasks are drawn, the same for all entries.

    The median of a task's rounds has the noise of its measurements, so drawing tasks covers that noise, too.
    """
    tasks = medians.shape[1]
    drawn = np.random.default_rng(0).integers(tasks, size=(NUM_SAMPLES, tasks))
    return np.asarray(medians[:, drawn].mean(axis=2))
