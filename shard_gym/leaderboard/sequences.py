"""The track "replanning": entries are sequences of actions, and all that follows from them is played again.

An action sequence does not tell whether its agent looked ahead. So the agents of ShardGym play again when their entries
are verified, and must act alike; other entries are listed as not replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.drift.oracle_seconds import oracle_command
from shard_gym.envs.replanning.play import Player, Recorded, play
from shard_gym.errors import short_repr
from shard_gym.leaderboard.names import skeleton
from shard_gym.leaderboard.sequence_files import (
    REFUSED,
    SequenceRow,
    Sequences,
    read_sequences,
    row_of,
    scored_suite,
    scoring_model,
    shipped_agent,
)
from shard_gym.leaderboard.store import SEQUENCES, EntryFolder, Finding, find_sequences, truncated
from shard_gym.leaderboard.verify import COPY, MANY_TASKS, TOLERANCE, name_taken


def verify_sequences(folder: EntryFolder, only: Sequence[int] | None = None) -> tuple[Sequences | None, list[Finding]]:
    """The entry if it is valid, and otherwise everything that is wrong with it. Takes about a minute.

    Args:
        folder: of the entry.
        only: numbers of the tasks that are played; all by default.
    """
    found, findings = read_sequences(folder)
    if found is None:
        return None, findings
    suite, file = scored_suite(folder.suite)[0], folder.file(SEQUENCES)
    tasks = list(range(len(suite)) if only is None else only)
    for position, seed in enumerate(found.entry.seeds):
        rows = [found.rows[position][number] for number in tasks]
        recorded = Recorded(np.array([[int(digit) for digit in row.actions] for row in rows]))
        some = [suite[number] for number in tasks]
        try:
            played = play(_player(found, position, recorded), some, scoring_model())
        except REFUSED as error:
            reason = f"It cannot be played: {error}"
            if found.is_replayed:
                settings = short_repr(dict(found.settings[position]))
                reason = f"ShardGym's agent {found.entry.agent.name!r} cannot play with {settings}: {error}"
            findings.append(Finding(file, reason, seed=seed))
            continue
        for row, episode, least in zip(rows, played, found.oracle_s[tasks].tolist(), strict=True):
            reason = _difference(row, row_of(episode, seed), found.entry.agent.name, least, folder)
            findings += [Finding(file, reason, row.task, seed)] if reason else []
    if findings:
        return None, truncated(findings)
    return found, []


def _player(found: Sequences, position: int, recorded: Recorded) -> Player:
    """The agent with the settings of a seed, if it ships with ShardGym."""
    agent = found.entry.agent
    return shipped_agent(agent.name, found.settings[position]) if found.is_replayed else recorded


def _difference(row: SequenceRow, played: Mapping[str, Any], agent: str, least: float, folder: EntryFolder) -> str:
    """How a row differs from what was played, or why it cannot be; empty if neither."""
    if row.actions != played["actions"]:
        pairs = enumerate(zip(row.actions, played["actions"], strict=True))
        decision, (said, done) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        return (
            f"Replayed, ShardGym's agent {agent!r} takes action {done} at decision {decision}, but the entry has "
            f"{said}. Submit the entry with --agent {agent} and its settings; another agent has another name."
        )
    total = sum(played["seconds"])
    for key in ("plans", "repairs"):
        if (said := getattr(row, key)) != played[key]:
            return f"{key} is {said}, but its actions give {played[key]}. Submit the entry again."
    if any(abs(said - true) > TOLERANCE * total for said, true in zip(row.seconds, played["seconds"], strict=True)):
        return f"seconds are {row.seconds}, but its actions take {played['seconds']}. Submit the entry again."
    if total < least * (1 - TOLERANCE):
        return (
            f"It takes {total} s, but no sequence of actions takes less than the {least} s of the oracle. So the "
            "oracle is wrong, not the entry: please report it. Maintainers make its data with: "
            f"{oracle_command(folder.suite)}."
        )
    return ""


def verify_all_sequences(
    root: Path,
    verify: Callable[[EntryFolder], tuple[Sequences | None, list[Finding]]] = verify_sequences,
    track: Callable[[list[EntryFolder]], Iterable[EntryFolder]] = list,
) -> tuple[list[Sequences], list[Finding]]:
    """Every valid entry of the track under `root`, sorted by folder, and everything that is wrong with the others.

    Args:
        root: the folder of the leaderboards.
        verify: `verify_sequences`, or `read_sequences`, which plays nothing.
        track: iterates over the entries; a progress bar, for example.

    Raises:
        InvalidOptionError: there is no such folder.
    """
    folders, findings = find_sequences(root)
    entries = []
    for folder in track(folders):
        found, wrong = verify(folder)
        findings += wrong
        entries += [found] if found else []
    return entries, [*findings, *_check_entries_differ(entries)]


def _check_entries_differ(entries: Sequence[Sequences]) -> list[Finding]:
    """A finding for each entry with a name like another's, or whose actions are another's and that is not replayed."""
    findings = []
    for position, each in enumerate(entries):
        for other in entries[:position]:
            if other.folder.suite == each.folder.suite and skeleton(other.entry.name) == skeleton(each.entry.name):
                findings.append(name_taken(each.folder, each.entry.name, other.folder, other.entry.name))
        copied = copy_finding(each, entries)
        findings += [copied] if copied else []
    return findings


def copy_finding(entry: Sequences, others: Iterable[Sequences]) -> Finding | None:
    """A finding for an entry that is not replayed, and of whose sequences most are those of another entry.

    Sequences without a plan but those that must be are not compared: agents that do nothing are alike.
    """
    if entry.is_replayed:
        return None
    shares = [
        (_share(entry, other), other.folder.id)
        for other in others
        if other.folder.id != entry.folder.id and other.folder.suite == entry.folder.suite
    ]
    share, first = max(shares, default=(0.0, ""))
    if share < COPY:
        return None
    reason = (
        f"{share:.0%} of the sequences with plans of one's own choice are those of {first}. An entry needs its own."
    )
    return Finding(entry.folder.file(SEQUENCES), reason)


def _share(own: Sequences, other: Sequences) -> float:
    """Share of one entry's sequences with plans of its own choice that another one has for the same task.

    It is 0 where these are fewer than `MANY_TASKS`.
    """
    equal = [
        row.actions in {others[task].actions for others in other.rows}
        for rows in own.rows
        for task, row in enumerate(rows)
        if row.plans > row.repairs
    ]
    return float(np.mean(equal)) if len(equal) >= MANY_TASKS else 0.0
