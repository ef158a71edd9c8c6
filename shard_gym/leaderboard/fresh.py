"""Fresh tasks: what the agents of ShardGym cost on tasks that were drawn after they were trained.

Whoever chooses among agents by their test tasks fits these tasks, without training on one. New tasks of the same
distribution, from the same tables, show it: `load_suite("mixdim-8@101")`. The file `fresh.json` holds their costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shard_gym.common.arrays import FloatArray
from shard_gym.common.errors import DamagedFileError, InvalidOptionError, UnknownNameError, short_repr
from shard_gym.common.io.files import write_json
from shard_gym.leaderboard.entry import SCHEMA, FreshEntry, FreshTable, FreshTasks, VerifiedEntry, parse
from shard_gym.leaderboard.scorer import TOLERANCE
from shard_gym.leaderboard.statistics import bootstrap_samples, percentile_interval
from shard_gym.leaderboard.store import FRESH, Finding, find_entries, read_limited
from shard_gym.tasks import suite_info
from shard_gym.tasks.suites.fresh import fresh_name

SEEDS = (101, 102)
"""The seeds of the fresh tasks of a suite, 50 each."""

UPDATE = "Make it again with: python tools/fresh.py."

SMALLEST_GAP = 1e-4
"""A gap below counts as this one when gaps are divided by each other."""


@dataclass(frozen=True, eq=False)
class Gaps:
    """Cost / best known cost of an agent, less 1: (N,) of the test tasks and (M,) of the fresh tasks.

    NaN for a task without an answer: a penalty is no cost.
    """

    test: FloatArray
    fresh: FloatArray


@dataclass(frozen=True)
class FreshGap:
    """How far an agent is from the best answers known to fresh tasks.

    Attributes:
        mean: mean of cost / best known cost, less 1, over the tasks that the agent answered.
        test: the same mean of the test tasks.
        failures: fresh tasks without an answer.
        rise: `mean` divided by `test`, and by the geometric mean of this quotient of agents that cannot fit the test
            tasks, because they need no training: the fresh tasks may be harder ones.
        rise_interval: 95% interval of the rise.
    """

    mean: float
    test: float
    failures: int
    rise: float
    rise_interval: tuple[float, float]

    @property
    def falls(self) -> bool:
        """Whether the gap rises from the test tasks to the fresh ones by more than chance."""
        return self.rise_interval[0] > 1.0


def fresh_gap(agent: Gaps, controls: Sequence[Gaps]) -> FreshGap | None:
    """The gap of an agent on fresh tasks, compared with those of `controls`; all were given the same tasks.

    None for an agent that answers fewer than half of them; and such ones are no controls.
    """
    if not _answers_enough(agent):
        return None
    own = _log_quotient(agent)
    chance = [_log_quotient(each) for each in controls if _answers_enough(each)] or [np.zeros_like(own)]
    rises = np.exp(own - np.mean(chance, axis=0))
    return FreshGap(
        mean=float(np.nanmean(agent.fresh)),
        test=float(np.nanmean(agent.test)),
        failures=int(np.isnan(agent.fresh).sum()),
        rise=float(rises[0]),
        rise_interval=percentile_interval(rises[1:]),
    )


def _answers_enough(gaps: Gaps) -> bool:
    return all(2 * np.isnan(each).sum() <= len(each) for each in (gaps.test, gaps.fresh))


def _log_quotient(gaps: Gaps) -> FloatArray:
    """(1 + B,) log of the mean gap on fresh tasks divided by that on test tasks: of all tasks, then of B samples.

    The samples have the same tasks for all agents.
    """
    fresh, test = (np.maximum(_means(values), SMALLEST_GAP) for values in (gaps.fresh, gaps.test))
    return np.asarray(np.log(fresh / test))


def _means(values: FloatArray) -> FloatArray:
    """(1 + B,) mean over (N,) values that are no NaN: of all of them, then of B samples."""
    samples = bootstrap_samples(values[None], np.random.default_rng(len(values)))
    return np.concatenate([[np.nanmean(values)], np.nanmean(samples, axis=1)])


def gaps_of(table: FreshTable, entry_id: str, suite: str, best_ms: FloatArray) -> Gaps:
    """The gaps of the agent of an entry; `best_ms` are the (N,) best known costs of the test tasks."""
    row = table.entries[entry_id]
    test, fresh = (np.array(costs, np.float64) for costs in (row.test_ms, row.fresh_ms))
    return Gaps(test / best_ms - 1.0, fresh / np.array(table.suites[suite].best_ms) - 1.0)


def fresh_table(suites: Mapping[str, FreshTasks], entries: Mapping[str, FreshEntry]) -> FreshTable:
    """The content of `fresh.json`."""
    return FreshTable.model_validate({"schema": SCHEMA, "suites": dict(suites), "entries": dict(entries)})


def read_fresh(root: Path, entries: Iterable[VerifiedEntry]) -> tuple[FreshTable, list[Finding]]:
    """The content of `fresh.json` under `root`, empty if there is no such file, and the findings.

    Costs hold for the agent of an entry as it was: a changed or missing entry is a finding.
    """
    path, empty = root / FRESH, fresh_table({}, {})
    if not path.exists() and not path.is_symlink():
        return empty, []
    try:
        table, findings = parse(read_limited(path), FRESH)
    except DamagedFileError as error:
        return empty, [Finding(FRESH, str(error))]
    if table is None:
        return empty, findings
    verified = {each.folder.id: each for each in entries}
    folders = {folder.id for folder in find_entries(root)[0]}
    for suite, tasks in table.suites.items():
        if reason := _wrong_tasks(suite, tasks):
            findings.append(Finding(FRESH, f"The fresh tasks of {short_repr(suite)} {reason} {UPDATE}"))
    kept = {}
    for entry_id, row in table.entries.items():
        if entry_id in folders and entry_id not in verified:
            continue  # an entry that is not valid has findings of its own
        if reason := _wrong_costs(row, verified.get(entry_id), table.suites):
            findings.append(Finding(FRESH, f"It has costs of {short_repr(entry_id)}, {reason} {UPDATE}"))
        else:
            kept[entry_id] = row
    return fresh_table(table.suites, kept), findings


def _wrong_tasks(suite: str, tasks: FreshTasks) -> str:
    if tasks.seeds != list(SEEDS):
        return f"have other seeds than {' and '.join(map(str, SEEDS))}."
    try:
        infos = [suite_info(fresh_name(suite, seed)) for seed in SEEDS]
    except (UnknownNameError, InvalidOptionError):
        return "are of no suite that has any."
    if [info.sha256 for info in infos] != tasks.sha256:
        return "are others now."
    count = sum(info.tasks["test"] for info in infos)
    return "" if len(tasks.best_ms) == count else f"are {count}, but it has {len(tasks.best_ms)} costs."


def _wrong_costs(row: FreshEntry, entry: VerifiedEntry | None, suites: Mapping[str, FreshTasks]) -> str:
    if entry is None:
        return "which does not exist."
    if row.answers != entry.sha256:
        return "but they were taken with other answers."
    tasks = suites.get(entry.folder.suite)
    if tasks is None or len(row.fresh_ms) != len(tasks.best_ms):
        return "but not as many as there are best known ones."
    if len(row.test_ms) != entry.costs_ms.shape[1]:
        return "but not as many as there are test tasks."
    agent, test = entry.entry.agent, np.array(row.test_ms, np.float64)
    answered, is_fixed = ~np.isnan(test), not (agent.learns or agent.stochastic)
    if is_fixed and not np.allclose(test[answered], entry.costs_ms[0][answered], rtol=1e-5):
        return "but those of the test tasks are not its own."
    if (np.array(row.fresh_ms, np.float64) < np.array(tasks.best_ms) * (1 - TOLERANCE)).any():
        return "and some are below the best known ones."
    return ""


def write_fresh(root: Path, table: FreshTable) -> Path:
    """Write `fresh.json`, sorted by name; returns its path.

    Raises:
        UnwritablePathError: it cannot be written.
    """
    record = {
        "schema": SCHEMA,
        "suites": {name: each.model_dump() for name, each in sorted(table.suites.items())},
        "entries": {name: each.model_dump() for name, each in sorted(table.entries.items())},
    }
    write_json(root / FRESH, record, indent=None)
    return root / FRESH
