"""Entries of the track "replanning" are made: an agent plays all test tasks, or files have the actions it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shard_gym
from shard_gym.drift.suites import DriftSuite, load_drift_suite
from shard_gym.envs.replanning.play import PlayedEpisode, Player, Recorded, play
from shard_gym.errors import DamagedFileError, InvalidOptionError, short_repr
from shard_gym.io.files import read_json, write_json
from shard_gym.io.parsing import parse_json, require_fields, require_schema
from shard_gym.leaderboard.schema import ONE_SEED, SCHEMA, SEEDS, format_rows, format_toml
from shard_gym.leaderboard.sequence_files import (
    LEARNED,
    SequenceEntry,
    Sequences,
    checked_sequence,
    read_sequences,
    row_of,
    scored_suite,
    scoring_model,
    shipped_agent,
)
from shard_gym.leaderboard.sequences import copy_finding, verify_sequences
from shard_gym.leaderboard.store import ENTRY, SEQUENCES, EntryFolder, Finding, find_sequences
from shard_gym.leaderboard.submit import EntryInfo, require_new, write_if_valid
from shard_gym.text import counted

Settings = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class SequenceAgent:
    """An agent whose entry is made.

    Attributes:
        name: of the agent.
        stochastic: whether chance decides its actions, or trained it.
        settings: of an agent of ShardGym, one for each seed; empty otherwise.
        players: one for each seed.
        training_data: what its numbers were tuned or trained on.
    """

    name: str
    stochastic: bool
    settings: Sequence[Settings]
    players: Sequence[Player]
    training_data: Sequence[str] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that the entry has."""
        return SEEDS if self.stochastic else ONE_SEED


def agent_of_shard_gym(name: str, settings: Sequence[Settings], training_data: Sequence[str] = ()) -> SequenceAgent:
    """An agent that ships with ShardGym.

    Args:
        name: one of `SHIPPED`.
        settings: for each seed.
        training_data: what they were tuned or trained on.

    Raises:
        UnknownNameError, InvalidOptionError: see `shipped_agent`.
    """
    players = [shipped_agent(name, each) for each in settings]
    return SequenceAgent(name, name == LEARNED, settings, players, training_data)


def write_actions(path: Path, agent: str, suite: DriftSuite, played: Sequence[PlayedEpisode]) -> None:
    """Write what an agent did in all tasks of a suite, for `shard-gym leaderboard submit --evaluation`.

    Raises:
        UnwritablePathError: the file cannot be written.
    """
    actions = {each.task.name: "".join(map(str, each.actions.tolist())) for each in played}
    write_json(path, {"schema": SCHEMA, "agent": agent, "suite": suite.name, "actions": actions})


def read_actions(
    paths: Sequence[Path], suite_name: str, stochastic: bool, training_data: Sequence[str]
) -> SequenceAgent:
    """The agent of files of `write_actions`, one for each seed.

    Raises:
        DamagedFileError: a file is none, or its actions are not those of all test tasks of the suite.
        InvalidOptionError: the files are of several agents.
        UnknownNameError: there is no such suite.
    """
    suite = load_drift_suite(suite_name)
    found = [_read_actions(path, suite) for path in paths]
    names = {name for name, _ in found}
    if len(names) != 1:
        raise InvalidOptionError(f"The files are of several agents, {', '.join(sorted(names))}. Name those of one.")
    return SequenceAgent(names.pop(), stochastic, (), [Recorded(actions) for _, actions in found], training_data)


def read_settings(text: str) -> Settings:
    """The settings of an agent in JSON, or in a file that holds it.

    Raises:
        InvalidOptionError: they are no object.
        DamagedFileError: it is no JSON, or the file cannot be read.
    """
    record = parse_json(text.encode(), "--settings") if text.lstrip().startswith("{") else read_json(Path(text))
    if not isinstance(record, dict):
        raise InvalidOptionError(f'--settings must be an object such as {{"hours": 24}}, not {short_repr(record)}.')
    return record


def _read_actions(path: Path, suite: DriftSuite) -> tuple[str, NDArray[np.int64]]:
    record = require_schema(read_json(path), SCHEMA, str(path))
    require_fields(record, {"schema": int, "agent": str, "suite": str, "actions": dict}, str(path))
    actions, names = record["actions"], [task.name for task in suite]
    if record["suite"] != suite.name:
        raise DamagedFileError(
            f"{path} has actions for suite {short_repr(record['suite'])}, but the entry is for {suite.name!r}."
        )
    for name in actions:
        if name not in names:
            raise DamagedFileError(
                f"{path} has task {short_repr(name)}, which {suite.name!r} does not have. Remove it."
            )
    for name in names:
        if not isinstance(actions.get(name), str):
            raise DamagedFileError(f"{path} has no actions for task {name!r}. An entry plays all test tasks.")
        try:
            checked_sequence(actions[name])
        except ValueError as error:
            raise DamagedFileError(f"The actions for task {name!r} in {path} are refused: {error}.") from error
    return record["agent"], np.array([[int(digit) for digit in actions[name]] for name in names])


def submit_sequences(folder: EntryFolder, agent: SequenceAgent, info: EntryInfo) -> list[Finding]:
    """Write an entry if it is valid; otherwise nothing is written, and the findings are returned.

    Args:
        folder: where to write it.
        agent: who plays. Takes about a minute.
        info: who submits what.

    Raises:
        InvalidOptionError: the entry exists already, there is no folder of leaderboards, an action is illegal, or there
            is not one player for each seed.
        UnknownNameError, DamagedFileError: see `scored_suite`.
        MissingExtraError: the agent needs a package that is not installed.
        UnwritablePathError: it cannot be written.
    """
    require_new(folder)
    if len(agent.players) != len(agent.seeds):
        kind = "uses chance" if agent.stochastic else "uses none"
        raise InvalidOptionError(
            f"An agent that {kind} needs {counted(len(agent.seeds), 'run')}, one for each of the seeds "
            f"{list(agent.seeds)}; got {len(agent.players)}."
        )
    suite, model = scored_suite(folder.suite)[0], scoring_model()
    rows = [
        row_of(played, seed)
        for seed, player in zip(agent.seeds, agent.players, strict=True)
        for played in play(player, list(suite), model)
    ]
    record = {
        "schema": SCHEMA,
        "name": info.name,
        "authors": list(info.authors),
        "link": info.link,
        "licence": info.licence,
        "track": folder.track,
        "seeds": list(agent.seeds),
        "cost_model": model.fingerprint,
        "agent": {"name": agent.name, "stochastic": agent.stochastic},
        "made_with": {"shard_gym": shard_gym.__version__, "commit": info.commit},
        "suite": {"name": suite.name, "sha256": suite.sha256},
        "training": {"data": list(agent.training_data)},
    }
    files = {SEQUENCES: format_rows(rows, settings=list(map(dict, agent.settings))), ENTRY: format_toml(record)}

    def verify(trial: EntryFolder) -> tuple[Sequences | None, list[Finding]]:
        found, findings = verify_sequences(trial)
        there = [] if found is None else [read_sequences(each)[0] for each in find_sequences(folder.root)[0]]
        copied = found and copy_finding(found, [each for each in there if each])
        return found, [*findings, *([copied] if copied else [])]

    return write_if_valid(folder, files, verify, SequenceEntry)
