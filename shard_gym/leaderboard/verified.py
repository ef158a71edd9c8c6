"""`VerifiedEntry`: an entry without findings, and what is known of its agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shard_gym.agents import AGENTS
from shard_gym.agents.registry.options import placing_options
from shard_gym.cost_models.base.model import FloatArray
from shard_gym.leaderboard.leagues import entered_league
from shard_gym.leaderboard.rows import AnswerGrid, canonical
from shard_gym.leaderboard.schema import Entry
from shard_gym.leaderboard.scorer import load_scorer
from shard_gym.leaderboard.store import EntryFolder
from shard_gym.leaderboard.training_data import recorded_training

MACHINE_DEPENDENT = "max_seconds"
"""An option of searches with which a seed gives other answers on another machine."""


@dataclass(frozen=True, eq=False)
class VerifiedEntry:
    """An entry without findings.

    Attributes:
        folder: where it is.
        entry: the content of `entry.toml`.
        answers: by seed and task, all checked.
        costs_ms: (S, N) float64, ms of each seed and task by the cost model, in all tracks; the penalty where there is
            no answer.
        sha256: of the file of answers.
        facts: further numbers that tables show, by heading: (S, N) float64, NaN where there is no answer.
    """

    folder: EntryFolder
    entry: Entry
    answers: AnswerGrid
    costs_ms: FloatArray
    sha256: str
    facts: Mapping[str, FloatArray] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        """Number of seeds and tasks without an answer."""
        return count_failures(self.answers)

    @property
    def league(self) -> str | None:
        """The league that it is entered in; None in tracks without leagues."""
        if not self.folder.rules.leagues:
            return None
        return entered_league(self.entry.planning, load_scorer(self.folder.suite).suite)

    @cached_property
    def cells(self) -> list[list[bytes]]:
        """For each task the answers of all seeds in canonical form, but those that say nothing about who copied."""
        by_seed = canonical(self.answers, load_scorer(self.folder.suite))
        return [[each for each in answers if each] for answers in zip(*by_seed, strict=True)]

    @cached_property
    def traits(self) -> list[list[Any]]:
        """By seed and task what is compared to find near copies; None where there is no answer."""
        scorer = load_scorer(self.folder.suite)
        traits = scorer.problem.traits
        return [
            [None if each is None else traits(each, task) for each, task in zip(row, scorer.suite, strict=True)]
            for row in self.answers
        ]


def can_replay(verified: VerifiedEntry) -> bool:
    """Whether the agent ships with ShardGym, trained as the entry declares, and its seed decides its answers."""
    agent, training = verified.entry.agent, verified.entry.training
    if not verified.folder.rules.scored or agent.name not in AGENTS or MACHINE_DEPENDENT in agent.options:
        return False
    recorded = recorded_training(agent.name, verified.folder.suite, agent.options)
    if recorded and not set(agent.options) <= {option.name for option in placing_options(agent.name)}:
        return False  # options of a training: it is another one
    shipped = (list(recorded.data), recorded.queries) if recorded else ([], 0)
    return (training.data, training.queries) == shipped


def is_stochastic(agent: str) -> bool:
    """Whether the answers of an agent depend on the seed; of one that is none of ShardGym's, True."""
    return AGENTS[agent].stochastic if agent in AGENTS else True


def count_failures(answers: AnswerGrid) -> int:
    """Number of seeds and tasks without an answer."""
    return sum(answer is None for row in answers for answer in row)
