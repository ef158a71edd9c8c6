"""The methods that the experiments compare: agents with options, by the names that the tables show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from shard_gym.agents import PAPER_HEURISTICS
from shard_gym.agents.dreamshard.options import dreamshard_options
from shard_gym.experiments.runs import Option, Run, as_options

LOCAL_SEARCH = "local-search"
DREAM_SEARCH, PAPER = "dream-search", "paper"
"""The presets of DreamShard, which are also the names of these two methods."""


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
    options: dict[str, Option] = {"preset": preset, **asdict(dreamshard_options(preset, **changes))}
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
    Method("cost-greedy", "cost-greedy", learns=False, seeded=False),
    *LEARNED.values(),
)
"""The methods compared on every suite."""

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
