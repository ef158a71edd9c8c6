"""Submission: evaluations and what their author declares become an entry, which is verified before it is there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shard_gym
from shard_gym.errors import InvalidOptionError, short_repr
from shard_gym.evaluation import Evaluation, TaskResult
from shard_gym.leaderboard.findings import Finding
from shard_gym.leaderboard.grid import timed_cost
from shard_gym.leaderboard.schema import ONE_SEED, SCHEMA, SEEDS, parse_timings
from shard_gym.leaderboard.scorer import SCORED_BY, scorer_of
from shard_gym.leaderboard.store import ENTRY, MEASURED, PLACEMENTS, TIMINGS, Place
from shard_gym.leaderboard.write import require_free, rows_json, toml, write_entry

TEST = "test"


@dataclass(frozen=True)
class Declared:
    """What nobody can recompute and the submitter has to say.

    Attributes:
        name: of the entry, as the tables show it.
        authors: at least one.
        licence: of the agent's code, an SPDX identifier; empty if it is not public.
        link: https address of code or paper; empty for none.
        agent: name of the agent; one of ShardGym's keeps the name it has there.
        uses_chance: whether another seed may lead to another placement; then there are five.
        options: of the agent.
        training_data: what it learnt from (see `overlap`); empty if it does not learn.
        training_queries: true costs asked in training, in all; of the costliest seed.
        search_budget: placements it may try for one task, under whatever cost; 0 if it does not search.
        machine: what it planned on.
        commit: of ShardGym, 40 hexadecimal digits.
    """

    name: str
    authors: Sequence[str]
    licence: str
    link: str
    agent: str
    uses_chance: bool
    machine: str
    commit: str
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    training_data: Sequence[str] = ()
    training_queries: int = 0
    search_budget: int = 0

    @property
    def seeds(self) -> tuple[int, ...]:
        """How often it places the tasks."""
        return SEEDS if self.uses_chance else ONE_SEED


@dataclass(frozen=True)
class Timed:
    """What the measured track asks besides.

    Attributes:
        gpu: as the driver names it, such as "NVIDIA H200".
        layout: "each" or "in-turn"; see `shard_gym.cost_models.measured.model.LAYOUTS`.
        timings: the content of `timings.json`.
    """

    gpu: str
    layout: str
    timings: bytes


def submit(
    place: Place, evaluations: Sequence[Evaluation], declared: Declared, timed: Timed | None = None
) -> list[Finding]:
    """Write an entry and verify it; if it does not hold, nothing is left, and what is wrong is returned.

    Args:
        place: where to.
        evaluations: one for each of `declared.seeds`, in their order, of the test tasks of the suite.
        declared: what the submitter says.
        timed: in the measured track only.

    Raises:
        InvalidOptionError: there is such an entry already, or the evaluations are not of the suite and the seeds.
        UnwritablePathError: it cannot be written.
    """
    require_free(place)
    _require_fitting(place, evaluations, declared, timed)
    files = {
        PLACEMENTS: rows_json(
            [
                {"task": result.task, "seed": seed, "placement": result.placement}
                for seed, evaluation in zip(declared.seeds, evaluations, strict=True)
                for result in evaluation.tasks
            ]
        )
    }
    if timed is not None:
        files[TIMINGS] = timed.timings
    files[ENTRY] = toml(entry_record(place, evaluations, declared, timed))
    return write_entry(place, files)


def entry_record(
    place: Place, evaluations: Sequence[Evaluation], declared: Declared, timed: Timed | None = None
) -> dict[str, Any]:
    """The content of `entry.toml`."""
    judge = scorer_of(place.suite, place.track)
    results = [result for evaluation in evaluations for result in evaluation.tasks]
    return {
        "schema": SCHEMA,
        "name": declared.name,
        "authors": list(declared.authors),
        "link": declared.link,
        "licence": declared.licence,
        "track": place.track,
        "seeds": list(declared.seeds),
        "agent": {
            "name": declared.agent,
            "uses_chance": declared.uses_chance,
            "learns": bool(declared.training_data),
            "options": dict(declared.options),
        },
        "made_with": {"shard_gym": shard_gym.__version__, "commit": declared.commit},
        "suite": {"name": place.suite, "sha256": judge.suite.sha256},
        "cost_model": {"name": SCORED_BY[place.track], "sha256": judge.cost_model_sha256},
        "training": {"data": list(declared.training_data), "queries": declared.training_queries},
        "planning": {
            "queries": float(np.mean([result.true_cost_queries for result in results])),
            "search_budget": declared.search_budget,
            "seconds": float(np.median([result.seconds for result in results])),
        },
        "hardware": {
            "machine": declared.machine,
            **({} if timed is None else {"gpu": timed.gpu, "layout": timed.layout}),
        },
        "scores": _scores(place, results, timed),
    }


def _scores(place: Place, results: Sequence[TaskResult], timed: Timed | None) -> dict[str, Any]:
    """The mean cost is recomputed by the verifier, from the timings in the measured track."""
    failures = sum(result.placement is None for result in results)
    if timed is None:
        return {"mean_cost_ms": float(np.mean([result.cost_ms for result in results])), "failures": failures}
    rows, findings = parse_timings(timed.timings, place)
    if rows is None:
        raise InvalidOptionError(f"The timings cannot be used. {findings[0]}")
    judge = scorer_of(place.suite, MEASURED)
    penalties = dict(zip((task.name for task in judge.suite), judge.penalties.tolist(), strict=True))
    # A task that does not exist has no penalty; verification names it.
    costs = [penalties.get(row.task, 0.0) if row.phases_ms is None else timed_cost(row) for row in rows]
    return {"mean_cost_ms": float(np.mean(costs)), "failures": failures}


def _require_fitting(place: Place, evaluations: Sequence[Evaluation], declared: Declared, timed: Timed | None) -> None:
    if (place.track == MEASURED) != (timed is not None):
        raise InvalidOptionError("Timings belong to entries of the measured track, and each of those needs them.")
    if len(evaluations) != len(declared.seeds):
        kind = "uses chance" if declared.uses_chance else "uses none"
        raise InvalidOptionError(
            f"An agent that {kind} needs {len(declared.seeds)} evaluations, one for each of the seeds "
            f"{list(declared.seeds)}, in their order; got {len(evaluations)}."
        )
    for evaluation in evaluations:
        if (evaluation.suite, evaluation.split) != (place.suite, TEST):
            raise InvalidOptionError(
                f"The entry is of the test tasks of {place.suite!r}, but an evaluation is of "
                f"{short_repr(evaluation.suite)} ({short_repr(evaluation.split)})."
            )


def commit_here() -> str:
    """The commit of the checkout that ShardGym runs from; empty if it runs from none."""
    folder = Path(shard_gym.__file__).resolve().parent
    try:
        asked = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit = asked.stdout.strip()
    return commit if asked.returncode == 0 and len(commit) == 40 else ""
