"""A study: the sections of the page, and the runs that each needs. A run that two sections need is made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from shard_gym.errors import InvalidOptionError, unknown_name
from shard_gym.experiments.methods import (
    ABLATIONS,
    DREAMSHARD,
    METHODS,
    REFERENCES,
    STABLE_BASELINES,
    Method,
    dreamshard,
)
from shard_gym.experiments.runs import Run
from shard_gym.suites import suite_info, suite_names

MEASUREMENTS = (2, 5, 10, 20, 50)
"""Placements measured in each training iteration, in the section "budget"."""


@dataclass(frozen=True)
class Setting:
    """A method, the suite it is trained on and the suite it is tested on: the runs that differ only in their seed.

    Attributes:
        method: its name.
        trained_on: name of a suite; that of the test for a method that does not learn.
        test: name of a suite.
        runs: one for each seed.
        measurements: placements measured in each training iteration where a section varies them, else 0.
    """

    method: str
    trained_on: str
    test: str
    runs: tuple[Run, ...]
    measurements: int = 0


@dataclass(frozen=True)
class Study:
    """The choice of sections, suites, methods and seeds.

    Attributes:
        seeds: number of seeds of everything random: 0, 1, ...
        sections: names in `SECTIONS`; empty for all.
        suites: in place of each section's own; empty for those.
        methods: the only ones to compare beside the references; empty for all.
        iterations: training iterations of everything that learns, in place of its own number.
    """

    seeds: int = 5
    sections: tuple[str, ...] = ()
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
        for section in self.sections:
            if section not in SECTIONS:
                raise unknown_name("section", section, SECTIONS)
        for suite in self.suites:
            if not suite_info(suite).tasks.get("train"):
                raise InvalidOptionError(f"Suite {suite!r} has no training tasks; name one that has.")

    def settings(self) -> dict[str, list[Setting]]:
        """The settings of each section chosen, in the order of `SECTIONS`."""
        return {
            name: list(section.settings(self, self.suites or section.suites))
            for name, section in SECTIONS.items()
            if not self.sections or name in self.sections
        }

    def runs(self) -> list[Run]:
        """All runs, each once."""
        settings = [setting for section in self.settings().values() for setting in section]
        return list(dict.fromkeys(run for setting in settings for run in setting.runs))

    def setting(self, method: Method, test: str, trained_on: str = "", measurements: int = 0) -> Setting:
        """One setting; trained on the suite of the test unless `trained_on` names another."""
        source = trained_on or test
        return Setting(method.name, source, test, method.runs(test, source, self.seeds, self.iterations), measurements)

    def compared(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """Those of `methods` that are chosen, and the references."""
        chosen = {*(self.methods or methods), *REFERENCES}
        return {name: method for name, method in methods.items() if name in chosen} | REFERENCES


Settings = Callable[[Study, tuple[str, ...]], Iterable[Setting]]


@dataclass(frozen=True)
class Section:
    """A question, and the runs that answer it.

    Attributes:
        title: heading of the section.
        description: of its tables, in a sentence or two.
        suites: the suites used unless others are chosen.
        settings: a function of the study and the suites.
    """

    title: str
    description: str
    suites: tuple[str, ...]
    settings: Settings


def _each_suite(study: Study, suites: tuple[str, ...], methods: Mapping[str, Method]) -> Iterable[Setting]:
    """Every method trained and tested on the same suite."""
    return (study.setting(method, suite) for suite in suites for method in study.compared(methods).values())


def _transfer(study: Study, suites: tuple[str, ...]) -> Iterable[Setting]:
    yield from _each_suite(study, suites, {})
    presets = [method for method in study.compared(DREAMSHARD).values() if method.learns]
    yield from (study.setting(method, test, source) for method in presets for source in suites for test in suites)


def _budget(study: Study, suites: tuple[str, ...]) -> Iterable[Setting]:
    yield from _each_suite(study, suites, {})
    presets = [method.name for method in study.compared(DREAMSHARD).values() if method.learns]
    for suite in suites:
        for preset in presets:
            for count in MEASUREMENTS:
                yield study.setting(dreamshard(preset, preset, measurements=count), suite, measurements=count)


SECTIONS: dict[str, Section] = {
    "suites": Section(
        "Every method on every suite",
        "Each method is trained on the training tasks of a suite and places its test tasks.",
        (*(name for name in suite_names() if name.startswith("dlrm-")), "mixdim-4", "mixdim-8", "generalize"),
        partial(_each_suite, methods=METHODS),
    ),
    "sb3": Section(
        "Agents of Stable-Baselines3",
        "They evaluate the cost model at every step of training, eight hundred times as often as DreamShard and more, "
        "and their training time grows with the number of tables; so only the smallest suite is used.",
        ("dlrm-20x4",),
        partial(_each_suite, methods=STABLE_BASELINES),
    ),
    "transfer": Section(
        "Transfer to tasks of other sizes",
        "An agent trained on one suite (rows) places the test tasks of another (columns) without further training.",
        ("dlrm-20x4", "dlrm-50x4", "dlrm-100x4", "dlrm-40x8", "dlrm-80x8", "dlrm-200x8"),
        _transfer,
    ),
    "budget": Section(
        "Evaluation budget of training",
        "The number of placements measured in each training iteration is varied, on the suite whose costs are hardest "
        "to learn: tables of mixed dims.",
        ("mixdim-4",),
        _budget,
    ),
    "ablations": Section(
        "Ablations",
        "Both presets of DreamShard with one part removed or replaced; on mixed dims, where it makes most difference.",
        ("mixdim-4",),
        partial(_each_suite, methods=ABLATIONS),
    ),
}
"""The sections of the page, in its order."""
