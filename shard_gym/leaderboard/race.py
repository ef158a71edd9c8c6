"""A race: the placements or plans of several entries are measured in turn, in several rounds, on one machine.

In each round, every task is measured with the answer of each entry, one after the other, in an order that is drawn
anew. So what slows the machine for a while slows all entries, and differences within a round and task are fair. The
cost of a task is the median over the rounds; a task that an entry fails costs it more than it costs any entry that does
not. Intervals come from bootstraps over tasks, the same for all entries: the median of a task's rounds has the noise of
its measurements, so drawing tasks covers that noise, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.statistics import MIN_TASKS, intervals_to_first, mean_interval
from shard_gym.plans import ShardingPlan
from shard_gym.tasks.problems import Answer, Problem, problem_of
from shard_gym.tasks.task import TaskSuite

Answers = Mapping[str, Sequence[Answer | None]]
"""For each entry its placements or plans of all tasks, in the order of the suite; None where it found none."""

FAILURE_MARGIN = 2.0
"""A failed task costs at least this many times the largest cost that was measured in it."""

MAX_NAME = 64
"""Characters of the name of an entry, and of a folder of the leaderboards."""


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
    """An answer that could not be measured, twice, in the first round. It is not measured again; its task failed.

    Attributes:
        round: 0; an answer that was measured once is never given up.
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
        mean_ms: mean over the tasks of the median over the rounds; `Race.costs_ms` says what a failed task costs.
        interval_ms: its 95% interval, over tasks; the mean twice below `MIN_TASKS` tasks.
        ratio: mean cost divided by that of the cheapest entry.
        ratio_interval: its 95% interval, see `intervals_to_first`; the ratio twice below `MIN_TASKS` tasks.
        beats_next: share of the tasks and rounds in which it costs less than the next entry; None for the last.
        failures: tasks without an answer, or whose answer could not be measured.
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
        answers: of each entry.
        measurements: in the order in which they were made.
        penalties_ms: (N,) ms that a task that failed costs at least.
        unmeasured: answers that could not be measured, in the order in which that was found.
    """

    suite: TaskSuite
    hardware: str
    cost_model: str
    settings: Mapping[str, Any]
    answers: Answers
    measurements: tuple[Measured, ...]
    penalties_ms: FloatArray
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def problem(self) -> Problem[Any]:
        """That of the tasks."""
        return raced_problem(self.suite)

    @property
    def num_rounds(self) -> int:
        """Rounds that are complete; others are not kept."""
        return len({each.round for each in self.measurements})

    def measured_answers(self, entry: str) -> list[Answer | None]:
        """An entry's answers to all tasks; None also where one could not be measured."""
        failed = self.failed[list(self.answers).index(entry)]
        return [None if lost else each for lost, each in zip(failed, self.answers[entry], strict=True)]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """(E, N) bool, the tasks without an answer of an entry, or whose answer could not be measured."""
        names = list(self.answers)
        failed = np.zeros((len(names), len(self.suite)), bool)
        for own, answers in zip(failed, self.answers.values(), strict=True):
            own[:] = [each is None for each in answers]
        for each in self.unmeasured:
            failed[names.index(each.entry), each.task] = True
        return failed

    def costs_ms(self, apart: Set[str] = frozenset()) -> FloatArray:
        """(E, N, R) ms of each entry, task and complete round: the sum over the phases of the slowest median.

        A task that failed costs the same in all rounds: its penalty, or `FAILURE_MARGIN` times the largest cost that
        any entry but those `apart` had in that task in any round, whichever is greater. The penalty is a multiple of an
        estimate, and measured costs have no bound.
        """
        names, failed = list(self.answers), self.failed
        costs = np.zeros((*failed.shape, self.num_rounds))
        for each in self.measurements:
            costs[names.index(each.entry), each.task, each.round] = cost_of(each.phases_ms)
        others = costs[[name not in apart for name in names]]
        charges = np.maximum(self.penalties_ms, FAILURE_MARGIN * others.max(axis=(0, 2), initial=0.0))
        return np.where(failed[..., None], charges[:, None], costs)

    def noise(self) -> float:
        """Standard deviation of the measurements of an answer, as a share of its cost: root mean square over all.

        NaN if nothing was measured in two rounds.
        """
        measured = self.costs_ms()[~self.failed]
        if self.num_rounds < 2 or not len(measured):
            return float("nan")
        return float(np.sqrt(np.mean((measured.std(axis=1, ddof=1) / measured.mean(axis=1)) ** 2)))

    def results(self, apart: Set[str] = frozenset()) -> list[Result]:
        """The entries' results, the cheapest first; none before the first round is complete.

        Those `apart`, by name, come last, and the others are not compared with them.
        """
        if not self.num_rounds:
            return []
        names, costs = np.array(list(self.answers)), self.costs_ms(apart)
        medians = np.median(costs, axis=2)
        last = np.isin(names, list(apart))
        order, ranked = np.lexsort((medians.mean(axis=1), last)), np.count_nonzero(~last)
        names, costs, medians, failed = names[order], costs[order], medians[order], self.failed[order]
        means, ratios = medians.mean(axis=1), intervals_to_first(medians)
        if ratios is not None and 0 < ranked < len(names):
            ratios[:ranked] = intervals_to_first(medians[:ranked])
        known = medians.shape[1] >= MIN_TASKS
        results = []
        for place, name in enumerate(names.tolist()):
            own = costs[place]
            following = costs[place + 1] if place + 1 not in (ranked, len(names)) else None
            beats = None if following is None else float(((own < following) + 0.5 * (own == following)).mean())
            results.append(
                Result(
                    name,
                    float(means[place]),
                    mean_interval(medians[place][None]) if known else (float(means[place]),) * 2,
                    float(means[place] / means[0]),
                    (float(means[place] / means[0]),) * 2 if ratios is None else tuple(ratios[place].tolist()),
                    beats,
                    int(failed[place].sum()),
                )
            )
        return results


def check_names(names: Iterable[str]) -> None:
    """Check that the names of entries are printable text on one line, and differ in more than the case of letters.

    Raises:
        InvalidOptionError: a name is not, or two do not.
    """
    seen: set[str] = set()
    for name in names:
        if not name.isprintable() or name != name.strip() or not 0 < len(name) <= MAX_NAME:
            raise InvalidOptionError(
                f"An entry is named with 1 to {MAX_NAME} printable characters on one line, without blanks around them, "
                f"not {short_repr(name)} ({len(name)} characters). Give it another name."
            )
        if name.casefold() in seen:
            raise InvalidOptionError(
                f"Two entries are named {name!r}, in capitals or not. Give one of them another name."
            )
        seen.add(name.casefold())


def raced_problem(suite: TaskSuite) -> Problem[Any]:
    """The problem of the tasks; sharding if the tables of some may be split."""
    return problem_of(next((task for task in suite if task.splittable), suite[0]))


def devices_of(answer: Answer) -> NDArray[np.int64]:
    """The devices that a placement or a plan gives tables or shards, each once, ascending."""
    return np.unique(answer.shard_arrays()[:, 1] if isinstance(answer, ShardingPlan) else answer)


def cost_of(phases_ms: FloatArray) -> float:
    """Ms of an answer from the (iterations, D, 4) ms of its devices: the sum over the phases of the slowest median.

    A collective starts when the last device is ready, so each phase takes as long as its slowest device.
    """
    return float(np.median(phases_ms, axis=0).max(axis=0).sum())
