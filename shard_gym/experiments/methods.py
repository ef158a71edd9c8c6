"""What the experiments compare: agents with options, by the names the tables use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.agents.dreamshard.options import dreamshard_options
from shard_gym.experiments.runs import Option, Run, as_options

LOCAL_SEARCH = "local-search"
SEARCHED, PAPER = "dream-search", "paper"
"""The presets of DreamShard, which are the names of these two methods."""


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name: as the tables call it.
        agent: name of the agent.
        learns: whether it is trained.
        options: in training, or of an agent that does not learn.
        placing: options of the trained agent.
        seeded: whether another seed may lead to another result.
    """

    name: str
    agent: str
    learns: bool = True
    options: Mapping[str, Option] = field(default_factory=dict)
    placing: Mapping[str, Option] = field(default_factory=dict)
    seeded: bool = True

    def runs(self, test: str, trained_on: str, seeds: int, iterations: int | None) -> tuple[Run, ...]:
        """One run for each seed; `iterations` shortens training."""
        options = dict(self.options)
        if self.learns and iterations is not None:
            options["iterations"] = iterations
        return tuple(
            Run(
                self.agent,
                test,
                trained_on if self.learns else "",
                seed,
                as_options(options),
                as_options(self.placing),
            )
            for seed in range(seeds if self.seeded else 1)
        )


def dreamshard(name: str, preset: str, **changes: Option) -> Method:
    """DreamShard with `preset` and `changes`. Every option is written out, so a changed preset makes other runs."""
    options: dict[str, Option] = {"preset": preset, **asdict(dreamshard_options(preset, **changes))}
    return Method(name, "dreamshard", options=options)


def by_name(*methods: Method) -> dict[str, Method]:
    """A table of methods."""
    return {method.name: method for method in methods}


REFERENCES = by_name(
    *(Method(name, name, learns=False, seeded=False) for name in PAPER_HEURISTICS),
    Method(LOCAL_SEARCH, LOCAL_SEARCH, learns=False),
)
"""Everything is compared with these: the four heuristics of the paper, and a search that asks the true cost."""

LEARNED = by_name(dreamshard(SEARCHED, SEARCHED), dreamshard(PAPER, PAPER), Method("rnn", "rnn"))

METHODS = by_name(
    Method("random", "random", learns=False),
    *REFERENCES.values(),
    Method("cost-greedy", "cost-greedy", learns=False, seeded=False),
    *LEARNED.values(),
)
"""All that are compared on every suite."""

STABLE_BASELINES = by_name(*(Method(name, name) for name in ("maskable-ppo", "ppo", "a2c", "dqn")), LEARNED[SEARCHED])
"""The agents of Stable-Baselines3, which learn from the true cost, and what they have to beat."""

ABLATIONS = by_name(
    LEARNED[SEARCHED],
    dreamshard("dream-search, random loads alone", SEARCHED, iterations=1, measurements=100, cost_updates=3_000),
    dreamshard("dream-search, network neuroshard", SEARCHED, network="neuroshard"),
    LEARNED[PAPER],
    dreamshard("paper, no sum over tables", PAPER, network="dreamshard-mean-tables"),
    dreamshard("paper, no maximum over devices", PAPER, network="dreamshard-mean-devices"),
    dreamshard("paper, no cost features", PAPER, cost_features=False),
    dreamshard("paper, policy not trained", PAPER, policy_updates=0),
    dreamshard("paper, no entropy bonus", PAPER, entropy=0.0),
)
"""The two presets with one part taken away or replaced."""


def measured(preset: str, measurements: int) -> Method:
    """The preset with another number of measurements per iteration."""
    return dreamshard(preset, preset, measurements=measurements)
