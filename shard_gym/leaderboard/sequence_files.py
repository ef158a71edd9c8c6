"""The files of an entry of the track "replanning", `entry.toml` and `sequences.json`, read, held against the suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from shard_gym.agents.replanning.base import ReplanningAgent
from shard_gym.agents.replanning.detectors import DETECTORS
from shard_gym.agents.replanning.tuning import MAKERS, make_agent
from shard_gym.cost_models import AdditiveCostModel, make_sharding_cost_model
from shard_gym.drift.oracle_seconds import oracle_command, oracle_path, oracle_seconds
from shard_gym.drift.suites import DriftSuite, drift_suite_names, load_drift_suite
from shard_gym.envs.replanning.episode_data import DECISIONS
from shard_gym.envs.replanning.play import PlayedEpisode
from shard_gym.envs.replanning.windows import KINDS
from shard_gym.errors import (
    DamagedFileError,
    InvalidOptionError,
    ShardGymError,
    UnknownNameError,
    short_repr,
    unknown_name,
)
from shard_gym.leaderboard import schema
from shard_gym.leaderboard.schema import ONE_SEED, SEEDS, Count, Strict, parse
from shard_gym.leaderboard.store import (
    ENTRY,
    REPLANNING,
    SEQUENCES,
    EntryFolder,
    Finding,
    read_files,
    truncated,
)
from shard_gym.leaderboard.training_data import OTHER

COST_MODEL = "analytical"
"""The cost model of the track."""

ACTIONS = "".join(map(str, range(1 + len(KINDS))))
"""The digits of a sequence: 0 keeps the plan, the others make one of a kind."""

LEARNED = "neural"
"""The agent of ShardGym that chance trains; its weights are settings."""

Floats = NDArray[np.float64]

SHIPPED = {name: make for name, make in MAKERS.items() if name not in DETECTORS}
"""The agents of ShardGym that play again, by name; the settings of an entry are arguments of their makers.

Detectors do not: whether an entry is replayed must not depend on a package that may be missing."""

REFUSED = (ShardGymError, TypeError, ValueError, LookupError, ArithmeticError)
"""What settings that are none raise when an agent is made of them, or plays."""


def shipped_agent(name: str, settings: Mapping[str, Any]) -> ReplanningAgent:
    """The agent of ShardGym of a name, with settings.

    Raises:
        UnknownNameError: no agent has that name.
        InvalidOptionError: it has no such settings.
    """
    if name not in SHIPPED:
        raise unknown_name("agent that plays again", name, SHIPPED)
    try:
        return make_agent(name, dict(settings))
    except (UnknownNameError, InvalidOptionError):
        raise
    except REFUSED as error:
        raise InvalidOptionError(f"Agent {name!r} cannot be made with {short_repr(dict(settings))}: {error}") from error


def checked_sequence(text: str) -> str:
    """`text`, if it is a digit of an action for each decision of an episode.

    Raises:
        ValueError: it is not; the message is a clause.
    """
    if len(text) != DECISIONS:
        raise ValueError(f"it has {len(text):,} characters, but must have {DECISIONS}, a digit for each decision")
    for decision, digit in enumerate(text):
        if digit not in ACTIONS:
            raise ValueError(
                f"decision {decision} is {digit!r}, but must be a digit from {ACTIONS[0]} to {ACTIONS[-1]}"
            )
    return text


_Numbers = Annotated[list[schema.Number], Field(max_length=1_000)]
Setting = schema.Option | _Numbers | Annotated[list[_Numbers], Field(max_length=100)]


class SequenceAgentPart(Strict):
    """`[agent]`: its name, and whether chance decides its actions or trained it."""

    name: schema.Name
    stochastic: bool


class LearntFromPart(Strict):
    """`[training]`: the data that its numbers were tuned or trained on."""

    data: schema.TrainingData


class SequenceEntry(Strict):
    """`entry.toml` in the track "replanning"; `cost_model` is the fingerprint of that model."""

    schema_: schema.Schema
    name: schema.Name
    authors: schema.Authors
    link: schema.Link
    licence: schema.Licence
    track: Literal["replanning"]
    seeds: Annotated[list[Count], Field(min_length=1, max_length=100)]
    cost_model: schema.Line
    agent: SequenceAgentPart
    made_with: schema.MadeWithPart
    suite: schema.MadeForPart
    training: LearntFromPart


class SequenceRow(Strict):
    """A row of `sequences.json`: the actions in a task, and what follows: seconds (running, pauses, moves), counts."""

    task: schema.Task
    seed: Count
    actions: Annotated[str, AfterValidator(checked_sequence)]
    seconds: Annotated[list[schema.Amount], Field(min_length=3, max_length=3)]
    plans: Count
    repairs: Count


class SequenceTable(Strict):
    """`sequences.json`; of an agent of ShardGym with its settings, one for each seed."""

    schema_: schema.Schema
    settings: Annotated[list[Annotated[dict[schema.Line, Setting], Field(max_length=40)]], Field(max_length=5)]
    rows: list[SequenceRow]


@dataclass(frozen=True, eq=False)
class Sequences:
    """An entry without findings.

    Attributes:
        folder: where it is.
        entry: the content of `entry.toml`.
        settings: of an agent of ShardGym, by seed; empty otherwise.
        rows: by seed and task.
        oracle_s: (N,) least seconds of the tasks.
    """

    folder: EntryFolder
    entry: SequenceEntry
    settings: Sequence[Mapping[str, Any]]
    rows: tuple[tuple[SequenceRow, ...], ...]
    oracle_s: Floats

    @property
    def is_replayed(self) -> bool:
        """Whether it is of an agent of ShardGym, which plays again when the entry is verified."""
        return self.entry.agent.name in SHIPPED

    @property
    def seconds(self) -> Floats:
        """(S, N, 3) of iterations, pauses and migrations, by seed and task."""
        return np.array([[row.seconds for row in own] for own in self.rows])

    @property
    def plans(self) -> float:
        """Plans in an episode, mean."""
        return float(np.mean([[row.plans for row in own] for own in self.rows]))

    @property
    def repairs(self) -> float:
        """Those of them that had to be made, mean."""
        return float(np.mean([[row.repairs for row in own] for own in self.rows]))

    @property
    def excess(self) -> Floats:
        """(S, N) seconds beyond the oracle's, as a share of these."""
        return np.asarray(self.seconds.sum(axis=2) / self.oracle_s - 1.0)


def scoring_model() -> AdditiveCostModel:
    """The cost model of the track."""
    return make_sharding_cost_model(COST_MODEL)


@lru_cache(maxsize=64)
def scored_suite(name: str) -> tuple[DriftSuite, Floats]:
    """The test tasks of the suite of that name, and the oracle's seconds of each.

    Raises:
        UnknownNameError: there is no such suite.
        DamagedFileError: the oracle's seconds are missing, or damaged.
    """
    suite = load_drift_suite(name)
    found = oracle_seconds(suite, scoring_model())
    if not found:
        raise DamagedFileError(f"There is no {oracle_path(name)}. Maintainers make it with: {oracle_command(name)}.")
    return suite, np.array([found[task.name] for task in suite])


def row_of(played: PlayedEpisode, seed: int) -> dict[str, Any]:
    """The row of an episode, as JSON."""
    history = played.history
    return {
        "task": played.task.name,
        "seed": seed,
        "actions": "".join(map(str, played.actions.tolist())),
        "seconds": history.seconds.sum(axis=0).tolist(),
        "plans": int((history.kinds >= 0).sum()),
        "repairs": int(history.repairs.sum()),
    }


def read_sequences(folder: EntryFolder) -> tuple[Sequences | None, list[Finding]]:
    """The entry, if its files are complete and fit the suite. Nothing is played, so its seconds may be wrong.

    Returns:
        The entry, or None; and everything that is wrong with it.
    """
    files, findings = read_files(folder)
    parsed: dict[str, Any] = {}
    for name, content in files.items():
        model: type[Strict] = SequenceEntry if name == ENTRY else SequenceTable
        parsed[name], wrong = parse(content, folder.file(name), model)
        findings += wrong
    try:
        suite, oracle_s = scored_suite(folder.suite)
    except (UnknownNameError, DamagedFileError) as error:
        reason = f"Its suite {folder.suite!r} cannot be loaded: {error}"
        return None, truncated([*findings, Finding(folder.id, reason)])
    entry, table = parsed.get(ENTRY), parsed.get(SEQUENCES)
    if entry is not None:
        findings += [Finding(folder.file(ENTRY), reason) for reason in _check_declarations(entry, folder, suite)]
    if entry is None or table is None or findings:
        return None, truncated(findings)
    file = folder.file(SEQUENCES)
    if wrong_settings := _check_settings(entry, table.settings):
        return None, [Finding(file, wrong_settings)]
    rows, findings = _arrange(table.rows, suite, entry.seeds, file)
    if findings:
        return None, truncated(findings)
    return Sequences(folder, entry, table.settings, rows, oracle_s), []


def _check_declarations(entry: SequenceEntry, folder: EntryFolder, suite: DriftSuite) -> list[str]:
    """Everything in `entry.toml` that contradicts its folder, the suite or the rules."""
    wrong, agent = [], entry.agent
    again = " Play the tasks as they are now, and submit again."
    for key, value, required, hint in (
        ("suite.name", entry.suite.name, folder.suite, ""),
        ("suite.sha256", entry.suite.sha256, suite.sha256, again),
        ("cost_model", entry.cost_model, scoring_model().fingerprint, again),
    ):
        if value != required:
            wrong.append(f"{key} is {value!r}, but in {REPLANNING}/{folder.suite} it must be {required!r}.{hint}")
    seeds = list(SEEDS if agent.stochastic else ONE_SEED)
    if entry.seeds != seeds:
        kind = "uses chance" if agent.stochastic else "uses no chance"
        wrong.append(f"seeds are {short_repr(entry.seeds)}, but an agent that {kind} has exactly the seeds {seeds}.")
    if agent.name in SHIPPED and agent.stochastic != (agent.name == LEARNED):
        must = f"must be {str(agent.name == LEARNED).lower()} for ShardGym's agent {agent.name!r}"
        wrong.append(f"agent.stochastic is {str(agent.stochastic).lower()}, but {must}.")
    if agent.name == LEARNED and not entry.training.data:
        wrong.append(f"training.data is empty, but agent {agent.name!r} learns. Name its data.")
    allowed = {f"{each}/train" for each in drift_suite_names()}
    for data in entry.training.data:
        if data not in allowed and not (data.startswith(OTHER) and data.removeprefix(OTHER).strip()):
            wrong.append(
                f"training.data names {short_repr(data)}, but must be SUITE/train of a suite of drifting tasks, such "
                f"as {folder.suite}/train, or {OTHER}TEXT. No agent learns from test tasks."
            )
    return wrong


def _check_settings(entry: SequenceEntry, settings: Sequence[Mapping[str, Any]]) -> str:
    """Why settings cannot be those of the entry's agent, or nothing."""
    name = entry.agent.name
    if name not in SHIPPED:
        there = f"Leave them empty; agents of ShardGym are {', '.join(SHIPPED)}."
        return f"settings are of agents of ShardGym, and {name!r} is none. {there}" if settings else ""
    if len(settings) == len(entry.seeds):
        try:
            for each in settings:
                shipped_agent(name, each)
        except InvalidOptionError as error:
            return str(error)
        return ""
    return (
        f"settings has {len(settings)} elements, but ShardGym's agent {name!r} needs one for each of the seeds "
        f"{entry.seeds}. Another agent has another name."
    )


def _arrange(
    rows: Sequence[SequenceRow], suite: DriftSuite, seeds: Sequence[int], file: str
) -> tuple[tuple[tuple[SequenceRow, ...], ...], list[Finding]]:
    """The rows by seed and task, and a finding for each that is missing, there twice or unknown."""
    names = {task.name for task in suite}
    cells: dict[tuple[int, str], SequenceRow] = {}
    findings = []
    for row in rows:
        if row.task not in names:
            reason = f"Suite {suite.name!r} has no such test task; remove it."
        elif row.seed not in seeds:
            reason = f"The seed is none of {list(seeds)}; remove it."
        elif (row.seed, row.task) in cells:
            reason = "The task occurs twice for this seed; keep one."
        else:
            cells[row.seed, row.task] = row
            continue
        findings.append(Finding(file, reason, row.task, row.seed))
    wanted = [(seed, task.name) for seed in seeds for task in suite]
    findings += [
        Finding(file, "The task is missing for this seed; an entry plays all of them.", task, seed)
        for seed, task in wanted
        if (seed, task) not in cells
    ]
    if findings:
        return (), findings
    return tuple(tuple(cells[seed, task.name] for task in suite) for seed in seeds), []
