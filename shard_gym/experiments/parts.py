"""The questions, and the runs that answer each. Runs that two questions need are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from shard_gym.errors import InvalidOptionError, unknown_name
from shard_gym.experiments.methods import (
    ABLATIONS,
    LEARNED,
    METHODS,
    PAPER,
    REFERENCES,
    SEARCHED,
    STABLE_BASELINES,
    Method,
    measured,
)
from shard_gym.experiments.runs import Run
from shard_gym.suites import suite_info, suite_names

DLRM = tuple(name for name in suite_names() if name.startswith("dlrm-"))
MEASUREMENTS = (2, 5, 10, 20, 50)
"""True costs asked for in each iteration."""


@dataclass(frozen=True)
class Plan:
    """How much is asked.

    Attributes:
        seeds: runs of everything random, with the seeds 0, 1, ...
        parts: names of the questions, in the order of `PARTS`.
        suites: in place of the parts' own; empty for those.
        methods: the only ones to compare, beside the references; empty for all.
        iterations: of everything that learns, in place of its own number.
    """

    seeds: int = 5
    parts: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    iterations: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("iterations", self.iterations)):
            if value is not None and value < 1:
                raise InvalidOptionError(f"{name} must be at least 1, not {value}.")
        known = METHODS | STABLE_BASELINES | ABLATIONS
        for method in self.methods:
            if method not in known:
                raise unknown_name("method", method, known, "; ".join(map(repr, known)))
        for part in self.parts:
            if part not in PARTS:
                raise unknown_name("part", part, PARTS)
        for suite in self.suites:
            if not suite_info(suite).tasks.get("train"):
                raise InvalidOptionError(f"Suite {suite!r} has no training tasks; name one that has.")

    def cells(self) -> dict[str, list[Cell]]:
        """Of every part asked for."""
        return {name: list(part.cells(self, self.suites or part.suites)) for name, part in self._asked().items()}

    def runs(self) -> list[Run]:
        """All runs, each once."""
        cells = [cell for part in self.cells().values() for cell in part]
        return list(dict.fromkeys(run for cell in cells for run in cell.runs))

    def _asked(self) -> dict[str, Part]:
        return {name: part for name, part in PARTS.items() if not self.parts or name in self.parts}

    def wanted(self, methods: Mapping[str, Method]) -> list[Method]:
        """Those of `methods` that are to be compared."""
        return [method for name, method in methods.items() if not self.methods or name in self.methods]


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seed only: what a row of a table is made of.

    Attributes:
        method: its name.
        trained_on: suite; that of the test for what does not learn.
        test: suite.
        runs: one for each seed.
        measurements: per iteration where that is what is varied, else 0.
    """

    method: str
    trained_on: str
    test: str
    runs: tuple[Run, ...]
    measurements: int = 0


@dataclass(frozen=True)
class Part:
    """A question.

    Attributes:
        title: of its section.
        says: what its tables show, in a sentence or two.
        suites: those it is asked of.
        cells: called with the plan and the suites.
    """

    title: str
    says: str
    suites: tuple[str, ...]
    cells: Callable[[Plan, tuple[str, ...]], Iterable[Cell]]


def _cell(plan: Plan, method: Method, test: str, trained_on: str = "", measurements: int = 0) -> Cell:
    source = trained_on or test
    return Cell(method.name, source, test, method.runs(test, source, plan.seeds, plan.iterations), measurements)


def _each(plan: Plan, suites: tuple[str, ...], methods: Mapping[str, Method]) -> Iterable[Cell]:
    """The references and `methods`, trained and tested on the same suite."""
    wanted = {method.name: method for method in [*REFERENCES.values(), *plan.wanted(methods)]}
    order = [*(name for name in methods if name in wanted), *(name for name in wanted if name not in methods)]
    return (_cell(plan, wanted[name], suite) for suite in suites for name in order)


def _compared(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    named = {name: method for name, method in STABLE_BASELINES.items() if name in plan.methods}
    return _each(plan, suites, METHODS | named)


def _stable_baselines(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    return _each(plan, suites, STABLE_BASELINES)


def _ablated(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    return _each(plan, suites, ABLATIONS)


def _timed(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    return _each(plan, suites, LEARNED)


def _transferred(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    presets = plan.wanted({name: LEARNED[name] for name in (SEARCHED, PAPER)})
    yield from (_cell(plan, method, suite) for suite in suites for method in REFERENCES.values())
    yield from (_cell(plan, method, test, source) for method in presets for source in suites for test in suites)


def _budgeted(plan: Plan, suites: tuple[str, ...]) -> Iterable[Cell]:
    presets = plan.wanted({name: LEARNED[name] for name in (SEARCHED, PAPER)})
    yield from (_cell(plan, method, suite) for suite in suites for method in REFERENCES.values())
    for suite in suites:
        for preset in presets:
            yield from (_cell(plan, measured(preset.name, count), suite, measurements=count) for count in MEASUREMENTS)


PARTS: dict[str, Part] = {
    "suites": Part(
        "Every method on every suite",
        "Each method is trained on the training tasks of a suite and places its test tasks.",
        (*DLRM, "mixdim-4", "mixdim-8", "generalize"),
        _compared,
    ),
    "sb3": Part(
        "Agents of Stable-Baselines3",
        "They ask the true cost of every placement they try, eight hundred times as often as DreamShard and more, and "
        "train the longer the more tables there are; hence the smallest suite.",
        ("dlrm-20x4",),
        _stable_baselines,
    ),
    "transfer": Part(
        "Transfer to tasks of other sizes",
        "An agent that was trained on one suite (rows) places the test tasks of another (columns) as it is.",
        ("dlrm-20x4", "dlrm-50x4", "dlrm-100x4", "dlrm-40x8", "dlrm-80x8", "dlrm-200x8"),
        _transferred,
    ),
    "budget": Part(
        "How many measurements it takes",
        "The number of true costs asked for in each iteration is varied, on the suite where estimates are hardest: "
        "tables of mixed dims.",
        ("mixdim-4",),
        _budgeted,
    ),
    "ablations": Part(
        "What each part contributes",
        "Both presets of DreamShard with one part taken away, and the paper's with one part of the other put in; on "
        "mixed dims, where most is to be gained.",
        ("mixdim-4",),
        _ablated,
    ),
    "time": Part(
        "Time",
        "How long training takes, and placing one task after it, by the number of tables and devices.",
        DLRM,
        _timed,
    ),
}
"""The one table of questions."""
