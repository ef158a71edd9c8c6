"""Submission: an agent's evaluations and what their author declares become an entry, verified before it is written."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import shard_gym
from shard_gym.common.errors import InvalidOptionError, InvalidPlacementError, UnwritablePathError, short_repr
from shard_gym.common.io.files import write_atomically
from shard_gym.common.system import instruction_set
from shard_gym.common.text import counted
from shard_gym.evaluation import TaskResult
from shard_gym.leaderboard.entry import SCHEMA
from shard_gym.leaderboard.evaluations import EvaluatedAgent
from shard_gym.leaderboard.leagues import league_of
from shard_gym.leaderboard.scorer import Scorer, claims_of, load_scorer
from shard_gym.leaderboard.store import ENTRY, EntryFolder, Finding, find_entries, require_root
from shard_gym.leaderboard.verify import check_entries_differ, near_sources, verify_entry
from shard_gym.tasks import load_suite, suite_info


@dataclass(frozen=True)
class EntryInfo:
    """The part of an entry that does not follow from the agent; docs/leaderboards.md describes each key."""

    name: str
    authors: Sequence[str]
    licence: str
    link: str
    machine: str
    commit: str
    instructions: str = field(default_factory=instruction_set)


def submit(folder: EntryFolder, agent: EvaluatedAgent, info: EntryInfo, replace: bool = False) -> list[Finding]:
    """Write an entry if it is valid; otherwise nothing is written, and the findings are returned.

    Args:
        folder: where to write it.
        agent: the agent and its evaluations of the test tasks of the suite.
        info: who submits what.
        replace: write it in place of an entry that is there.

    Raises:
        InvalidOptionError: the entry exists already and is not to be replaced, there is no folder of leaderboards, or
            the evaluations do not match the suite and the seeds.
        UnwritablePathError: it cannot be written.
    """
    require_free(folder, replace)
    _check_evaluations(folder, agent)
    scorer = load_scorer(folder.suite)
    rows = [
        {"task": result.task, "seed": seed, scorer.problem.noun: result.answer}
        | (_claims(result, number, scorer) if folder.rules.claims else {})
        for seed, evaluation in zip(agent.seeds, agent.evaluations, strict=True)
        for number, result in enumerate(evaluation.tasks)
    ]
    return _write_if_valid(folder, format_rows(rows), entry_record(folder, agent, info))


def _claims(result: TaskResult, number: int, scorer: Scorer) -> dict[str, Any]:
    """What the row of a result claims; nothing of an answer that is not valid, which verification rejects."""
    if result.answer is not None:
        with suppress(InvalidPlacementError):
            return claims_of(scorer.problem.from_json(result.answer, scorer.suite[number]), number, scorer)
    return {}


def require_free(folder: EntryFolder, replace: bool = False) -> None:
    """Check that an entry can be written to `folder`, or in place of the one that is there.

    Raises:
        InvalidOptionError: the entry exists already, or is to be replaced and does not exist, there is no folder of
            leaderboards, or the suite is not one of the track.
        UnknownNameError: there is no such suite.
    """
    require_root(folder.root)
    if folder.path.exists() and not replace:
        raise InvalidOptionError(f"There is an entry {folder.id} already. Choose another name, or give --replace.")
    if replace and not folder.path.exists():
        raise InvalidOptionError(f"There is no entry {folder.id} to replace. Leave out --replace, or name another.")
    info = suite_info(folder.suite)
    if info.problem not in folder.rules.problems:
        raise InvalidOptionError(
            f"The problem of {folder.suite!r} is {info.problem}, so its entries are in the track {info.track!r}: "
            f"submit to {info.track}/{folder.suite}/{folder.slug}."
        )


def _check_evaluations(folder: EntryFolder, agent: EvaluatedAgent) -> None:
    """Check that there is one evaluation of all test tasks for each seed."""
    if len(agent.evaluations) != len(agent.seeds):
        kind = "stochastic" if agent.stochastic else "deterministic"
        raise InvalidOptionError(
            f"A {kind} agent needs {counted(len(agent.seeds), 'evaluation')}, one for each of the seeds "
            f"{list(agent.seeds)}, in their order; got {len(agent.evaluations)}."
        )
    names = [task.name for task in load_suite(folder.suite)]
    for evaluation in agent.evaluations:
        if (evaluation.suite, [result.task for result in evaluation.tasks]) != (folder.suite, names):
            found = f"{counted(len(evaluation.tasks), 'task')} of {short_repr(evaluation.suite)}"
            raise InvalidOptionError(
                f"The entry is for the {counted(len(names), 'test task')} of {folder.suite!r} in order, but an "
                f"evaluation has {found} ({short_repr(evaluation.split)})."
            )


def entry_record(folder: EntryFolder, agent: EvaluatedAgent, info: EntryInfo) -> dict[str, Any]:
    """The content of `entry.toml`."""
    scorer = load_scorer(folder.suite)
    results = [result for evaluation in agent.evaluations for result in evaluation.tasks]
    cost_model = {"name": scorer.suite.cost_model, "sha256": scorer.cost_model_sha256}
    scores = {
        "mean_cost_ms": float(np.mean([result.cost_ms for result in results])),
        "failures": sum(result.answer is None for result in results),
    }
    scored, leagues = folder.rules.scored, folder.rules.leagues
    counted_queries = float(np.mean([result.true_cost_queries for result in results]))
    queries = counted_queries if agent.planning_queries is None else agent.planning_queries
    return {
        "schema": SCHEMA,
        "name": info.name,
        "authors": list(info.authors),
        "link": info.link,
        "licence": info.licence,
        "track": folder.track,
        "seeds": list(agent.seeds),
        "agent": {
            "name": agent.name,
            "stochastic": agent.stochastic,
            "learns": bool(agent.training_data),
            "options": {key: value for key, value in agent.options.items() if value is not None},  # TOML has no null
        },
        "made_with": {"shard_gym": shard_gym.__version__, "commit": info.commit},
        "suite": {"name": folder.suite, "sha256": scorer.suite.sha256},
        **({"cost_model": cost_model} if scored else {}),
        "training": {
            "data": list(agent.training_data),
            "queries": agent.training_queries,
            **({} if agent.training_seconds is None else {"seconds": agent.training_seconds}),
        },
        "planning": {
            **({"league": league_of(queries, agent.search_budget, scorer.suite)} if leagues else {}),
            "queries": queries,
            "search_budget": agent.search_budget,
            "seconds": float(np.median([result.seconds for result in results])),
        },
        "hardware": {"machine": info.machine, "instructions": info.instructions},
        **({"scores": scores} if scored else {}),
    }


def _write_if_valid(folder: EntryFolder, answers: bytes, record: dict[str, Any]) -> list[Finding]:
    """Write the entry to a scratch folder, verify it there, compare it with the others of the suite, and move it to its
    place if there are no findings. A near copy names its sources.

    Raises:
        UnwritablePathError: it cannot be written.
    """
    entries = [each for each in find_entries(folder.root)[0] if each.board == folder.board]
    others = [each for each in (verify_entry(each)[0] for each in entries if each.id != folder.id) if each]
    try:
        with tempfile.TemporaryDirectory(dir=folder.root, prefix=".shard-gym-") as scratch:
            trial = EntryFolder(Path(scratch), folder.track, folder.suite, folder.slug)
            write_atomically(trial.path / folder.answers, answers)
            write_atomically(trial.path / ENTRY, format_toml(record))
            verified, findings = verify_entry(trial)
            if verified is not None:
                near = near_sources(verified, others)
                if near:
                    marked = {**record, "near": near}
                    write_atomically(trial.path / ENTRY, format_toml(marked))
                    verified = replace(verified, entry=verified.entry.model_copy(update={"near": near}))
                differences = check_entries_differ([*others, verified], new={folder.id})
                findings += [each for each in differences if each.file.startswith(f"{folder.id}/")]
            if not findings:
                folder.path.parent.mkdir(parents=True, exist_ok=True)
                replaced = Path(scratch) / "replaced"
                if folder.path.exists():
                    shutil.move(folder.path, replaced)
                try:
                    shutil.move(trial.path, folder.path)
                except OSError:
                    if replaced.exists():
                        shutil.move(replaced, folder.path)
                    raise
    except (OSError, UnwritablePathError) as error:  # of the scratch folder, whose name says nothing
        reason = error.__cause__ if isinstance(error, UnwritablePathError) else error
        raise UnwritablePathError(
            f"{folder.path} cannot be written: {getattr(reason, 'strerror', None) or reason}."
        ) from error
    return findings


def format_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A file of rows as JSON, one row on each line, so that a change of a row changes one line."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
    return f'{{"schema":{SCHEMA},"rows":[\n{lines}\n]}}\n'.encode()


def format_toml(record: Mapping[str, Any]) -> bytes:
    """`record` as TOML: plain values first, then a section for each mapping; a mapping inside becomes an inline table.

    Raises:
        InvalidOptionError: a text is no valid Unicode.
    """
    plain = [f"{key} = {_toml(value)}" for key, value in record.items() if not isinstance(value, Mapping)]
    sections = [
        "\n".join(["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in section.items())])
        for key, section in record.items()
        if isinstance(section, Mapping)
    ]
    try:
        return ("\n".join([*plain, *sections]) + "\n").encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(
            f"The declaration holds {short_repr(error.object[error.start])}, which is no text."
        ) from error


def _toml(value: Any) -> str:
    """A mapping as an inline table; all else is written as in JSON, where only DEL need not be escaped."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, float):
        return repr(value)  # also nan and inf, which the schema then refuses by their key
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
