"""A study: methods to compare, the sections of the page, and the runs that each needs.

A run that two sections need is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.agents.dreamshard.options import PRESETS
from shard_gym.agents.presets import preset_options
from shard_gym.checks import checked_count
from shard_gym.errors import InvalidOptionError, unknown_name
from shard_gym.experiments.runs import Option, Run, as_options
from shard_gym.suites import suite_info
from shard_gym.suites.core import CORE_SUITES

LOCAL_SEARCH = "local-search"
DREAM_SEARCH, PAPER = "dream-search", "paper"
"""The presets of DreamShard, which are also the names of these two methods."""

MEASUREMENTS = (2, 5, 10, 20, 50)
"""Placements measured in each training iteration, in the section "budget"."""


@dataclass(frozen=True)
class Method:
    """An agent with options: a row of a table.

    Attributes:
        name: shown in the tables.
        agent: name of the agent.
        learns: whether it is trained.
        options: its options in training; for an agent that does not learn, those it is made with.
        placing: options that the trained agent is loaded with.
        seeded: whether its result depends on the seed.
    """

    name: str
    agent: str
    learns: bool = True
    options: Mapping[str, Option] = field(default_factory=dict)
    placing: Mapping[str, Option] = field(default_factory=dict)
    seeded: bool = True

    def runs(self, test: str, trained_on: str, seeds: int, iterations: int | None = None) -> tuple[Run, ...]:
        """One run for each seed; `iterations` replaces the number of training iterations."""
        options = dict(self.options)
        if self.learns and iterations is not None:
            options["iterations"] = iterations
        return tuple(
            Run(self.agent, test, trained_on * self.learns, seed, as_options(options), as_options(self.placing))
            for seed in range(seeds if self.seeded else 1)
        )


def dreamshard(name: str, preset: str, placing: Mapping[str, Option] | None = None, **changes: Option) -> Method:
    """DreamShard with `preset` and `changes`. The run lists every option, so a changed preset makes another run."""
    options: dict[str, Option] = {"preset": preset, **asdict(preset_options(PRESETS, preset, **changes))}
    return Method(name, "dreamshard", options=options, placing=placing or {})


def _by_name(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


REFERENCES = _by_name(
    *(Method(name, name, learns=False, seeded=False) for name in PAPER_HEURISTICS),
    Method(LOCAL_SEARCH, LOCAL_SEARCH, learns=False),
)
"""Part of every comparison: the four heuristics of the paper, and local search under the cost model itself."""

DREAMSHARD = _by_name(dreamshard(DREAM_SEARCH, DREAM_SEARCH), dreamshard(PAPER, PAPER))

LEARNED = DREAMSHARD | _by_name(Method("rnn", "rnn"))

METHODS = _by_name(
    Method("random", "random", learns=False),
    *REFERENCES.values(),
    Method("lane-greedy", "lane-greedy", learns=False, seeded=False),
    Method("cost-greedy", "cost-greedy", learns=False, seeded=False),
    *LEARNED.values(),
)
"""The methods compared on every core suite."""

STABLE_BASELINES = _by_name(
    *(Method(name, name) for name in ("maskable-ppo", "ppo", "a2c", "dqn")), DREAMSHARD[DREAM_SEARCH]
)
"""The agents of Stable-Baselines3, and DreamShard for comparison."""

ABLATIONS = _by_name(
    DREAMSHARD[DREAM_SEARCH],
    # A search with a budget of 1 returns the best of its starting placements, which are those of the greedy agents.
    dreamshard("dream-search, greedy under the surrogate", DREAM_SEARCH, {"queries": 1}),
    dreamshard("dream-search, random loads alone", DREAM_SEARCH, iterations=1, measurements=100, cost_updates=3_000),
    dreamshard("dream-search, network neuroshard", DREAM_SEARCH, network="neuroshard"),
    dreamshard("dream-search, network dreamshard", DREAM_SEARCH, network="dreamshard"),
    DREAMSHARD[PAPER],
    dreamshard("paper, no sum over tables", PAPER, network="dreamshard-mean-tables"),
    dreamshard("paper, no maximum over devices", PAPER, network="dreamshard-mean-devices"),
    dreamshard("paper, no cost features", PAPER, cost_features=False),
    dreamshard("paper, policy not trained", PAPER, policy_updates=0),
    dreamshard("paper, no entropy bonus", PAPER, entropy=0.0),
)
"""The two presets with one part removed or replaced."""


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
            if value is not None:
                checked_count(name, value)
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

    def each_suite(self, suites: Iterable[str], methods: Mapping[str, Method]) -> Iterable[Setting]:
        """Those of `methods` that are chosen and the references, each trained and tested on the same suite."""
        chosen = {*(self.methods or methods), *REFERENCES}
        compared = {name: method for name, method in methods.items() if name in chosen} | REFERENCES
        return (self.setting(method, suite) for suite in suites for method in compared.values())

    def presets(self) -> list[Method]:
        """The presets of DreamShard that are chosen."""
        return [method for name, method in DREAMSHARD.items() if not self.methods or name in self.methods]


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
    settings: Callable[[Study, tuple[str, ...]], Iterable[Setting]]


def _transfer(study: Study, suites: tuple[str, ...]) -> Iterable[Setting]:
    yield from study.each_suite(suites, {})
    yield from (
        study.setting(method, test, source) for method in study.presets() for source in suites for test in suites
    )


def _budget(study: Study, suites: tuple[str, ...]) -> Iterable[Setting]:
    yield from study.each_suite(suites, {})
    for suite in suites:
        for preset in study.presets():
            for count in MEASUREMENTS:
                varied = dreamshard(preset.name, preset.name, measurements=count)
                yield study.setting(varied, suite, measurements=count)


SECTIONS: dict[str, Section] = {
    "suites": Section(
        "Every method on every core suite",
        "Each method is trained on the training tasks of a suite and places its test tasks.",
        CORE_SUITES,
        partial(Study.each_suite, methods=METHODS),
    ),
    "sb3": Section(
        "Agents of Stable-Baselines3",
        "They evaluate the cost model at every step of training, eight hundred times as often as DreamShard and more, "
        "and their training time grows with the number of tables; so only the smallest suite is used.",
        ("dlrm-20x4",),
        partial(Study.each_suite, methods=STABLE_BASELINES),
    ),
    "transfer": Section(
        "Transfer to tasks of other sizes",
        "An agent trained on one suite (rows) places the test tasks of another (columns) without further training.",
        ("dlrm-20x4", "dlrm-50x4", "dlrm-80x8", "mixdim-4", "mixdim-8", "generalize"),
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
        partial(Study.each_suite, methods=ABLATIONS),
    ),
}
"""The sections of the page, in its order."""
