"""The web page of the leaderboards: a folder of static files that works from a disk and from any web server.

`static/` holds the files that are the same for all entries, and the folder `data` of a built page the numbers, as
scripts. Equal leaderboards give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shard_gym.common.errors import UnwritablePathError
from shard_gym.common.io.files import write_atomically
from shard_gym.common.text import counted
from shard_gym.cost_models.base import critical_devices
from shard_gym.leaderboard.entry import VerifiedEntry, near_copy_of
from shard_gym.leaderboard.ranking import MS_PER_HOUR, Leaderboard, RankedEntry, competitors
from shard_gym.leaderboard.scorer import Scorer
from shard_gym.leaderboard.statistics import TAUS, performance_profile
from shard_gym.leaderboard.store import MIB
from shard_gym.plans import plan_memory_used
from shard_gym.plans.needs import SPLITS
from shard_gym.plans.placement import memory_used, placement_to_json
from shard_gym.plans.plan import ONE_GROUP
from shard_gym.replanning.env.windows import KINDS
from shard_gym.tasks import Answer, Suite, suite_info
from shard_gym.tasks.groups import task_of_plan
from shard_gym.tasks.problems.placement import table_loads
from shard_gym.tasks.problems.sharding import part_loads
from shard_gym.tasks.suites.info import MEASURED, SIMULATED

STATIC = Path(__file__).parent / "static"

DATA = "data"

DOCS_PAGE = "leaderboards.html"
"""The page of the documentation site that stands beside the folder of this page."""

NEAR = "near copies"
"""The group of entries without a rank."""

COST_DIGITS = 5
"""Significant digits of costs; the page shows four."""

SCORE_DIGITS = 9
"""Significant digits of scores. The tables round them again, and both must show the same last digit."""

TABLE_DIGITS = 4
"""Significant digits of the numbers of single tables, which are most of what a page loads."""


def write_site(leaderboards: Sequence[Leaderboard], out: Path) -> list[Path]:
    """Write the page into the folder `out` and return the paths of its files, sorted.

    Each file is written atomically. Files of an earlier page in the folder `data`, such as those of an entry that was
    removed, are deleted afterwards; nothing else in `out` is touched. A page in a folder of the documentation site
    links to it.

    Raises:
        UnwritablePathError: the folder cannot be written to.
    """
    files = site_files(leaderboards, docs="../" if (out.parent / DOCS_PAGE).is_file() else None)
    for name, content in files.items():
        write_atomically(out / name, content)
    for path in sorted((out / DATA).rglob("*.js")):
        if path.relative_to(out).as_posix() not in files:
            try:
                path.unlink()
            except OSError as error:
                raise UnwritablePathError(f"{path} is out of date and cannot be removed: {error.strerror}.") from error
    return [out / name for name in files]


def site_files(leaderboards: Sequence[Leaderboard], docs: str | None = None) -> dict[str, bytes]:
    """The content of each file of the page by its path, sorted; nothing is written.

    Args:
        leaderboards: of all tracks.
        docs: the documentation site, relative to the page, such as "../"; None if it is not there.
    """
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    for key, value in _values(leaderboards, docs):
        # A page opened from a disk may load scripts, but may not fetch JSON. The literal is ASCII and runs no code.
        literal = json.dumps(value, allow_nan=False, separators=(",", ":"))
        script = f"(window.ShardGymData ??= {{}})[{json.dumps(key)}] = {literal};\n"
        files[f"{DATA}/{key}.js"] = script.encode("ascii")
    return dict(sorted(files.items()))


def _values(leaderboards: Sequence[Leaderboard], docs: str | None) -> Iterator[tuple[str, Any]]:
    """The values of the page by their keys: one index, and the data of each leaderboard.

    Each entry has a file of its own, so a new entry adds one file, and a reader loads only the two compared.
    """
    competing = {ranked.verified.folder.slug for each in leaderboards for ranked in each.listed}
    summaries = [_replanning_summary(each) if each.rules.looks_ahead else _summary(each) for each in leaderboards]
    profile = _profile(leaderboards)
    yield "index", {"competitors": sorted(competing), "suites": summaries, "profile": profile, "docs": docs}
    for each in leaderboards:
        key, tasks = _leaderboard_key(each), range(len(each.scorer.suite))
        if each.rules.looks_ahead:
            yield from _replanning_values(key, each)
            continue
        yield f"{key}/ranking", [_entry_row(ranked) for ranked in each.listed]
        yield f"{key}/tasks", [_task_sheet(each, number) for number in tasks]
        if each.best is not None:
            yield f"{key}/best", _answer_sheets(each.scorer, each.best.costs_ms, each.best.answers)
        for ranked in each.listed:
            costs, answers = ranked.verified.costs_ms.mean(axis=0), ranked.verified.answers[0]
            yield f"{key}/entries/{ranked.verified.folder.slug}", _answer_sheets(each.scorer, costs, answers)


def _replanning_values(key: str, board: Leaderboard) -> Iterator[tuple[str, Any]]:
    """The data of a leaderboard of replanning."""
    names = [task.name for task in board.scorer.suite]
    best = board.best.costs_ms.tolist() if board.best else [None] * len(names)
    yield f"{key}/ranking", [_replanning_row(each) for each in board.listed]
    tasks = [{"name": name, "oracle_hours": _hours(least)} for name, least in zip(names, best, strict=True)]
    yield f"{key}/tasks", tasks
    for ranked in board.listed:
        yield f"{key}/entries/{ranked.verified.folder.slug}", _sequence_sheets(ranked, board)


def _leaderboard_key(leaderboard: Leaderboard) -> str:
    """The folder of a leaderboard's data: "simulated/dlrm-20x4", or "measured/gpu-40x4/races/nvidia-h200" of a race."""
    return leaderboard.race.folder.id if leaderboard.race else f"{leaderboard.track}/{leaderboard.suite}"


def _suite_facts(key: str, suite: Suite[Any]) -> dict[str, Any]:
    """What the page shows of every suite."""
    tables, devices = [task.num_tables for task in suite], [task.num_devices for task in suite]
    return {
        "key": key,
        "name": suite.name,
        "track": key.partition("/")[0],
        "tasks": len(suite),
        "tables": [min(tables), max(tables)],
        "devices": [min(devices), max(devices)],
        "cost_model": suite.cost_model,
    }


def _summary(leaderboard: Leaderboard) -> dict[str, Any]:
    """A leaderboard as the page offers it for selection; `cost_model` is the one of the placement sheets."""
    suite, race = leaderboard.scorer.suite, leaderboard.race
    is_measured = leaderboard.track == MEASURED
    return {
        **_suite_facts(_leaderboard_key(leaderboard), suite),
        "description": suite_info(suite.name).description,
        "answers": f"{leaderboard.scorer.problem.noun}s".capitalize(),
        "hardware": leaderboard.hardware,
        "entries": len(leaderboard.listed),
        "best_effort": leaderboard.best.effort if leaderboard.best else None,
        "status": None if is_measured else leaderboard.status,
        "how_solved": None if is_measured else leaderboard.how_solved.removeprefix("**Solved.** "),
        "race": race and {"name": race.name, "about": race.about},
        "not_raced": [each.entry.name for each in leaderboard.not_raced],
    }


def _replanning_summary(board: Leaderboard) -> dict[str, Any]:
    """A suite of drifting tasks as the page offers it for selection."""
    suite = board.scorer.suite
    return {
        **_suite_facts(_leaderboard_key(board), suite),
        "description": suite.description,
        "answers": "Decisions",
        "entries": len(board.listed),
        "pause_s": suite[0].pause_s,
        "oracle_hours": _hours(board.best.costs_ms.mean() if board.best else None),
        "plans": [kind.name for kind in KINDS if not kind.headroom or any(task.grows for task in suite)],
    }


def _profile(leaderboards: Sequence[Leaderboard]) -> dict[str, Any] | None:
    """The performance profile of the simulated track; measured costs have no best known costs to compare with."""
    suites, ranked = competitors(leaderboards)
    if not ranked:
        return None
    about = (
        f"{counted(ranked[0].tasks, 'test task')} of {counted(len(suites), 'core suite')}; competitors with an entry "
        "on every one of them."
    )
    lines = [
        {
            "id": each.slug,
            "name": each.name,
            "league": each.league,
            "tasks": each.tasks,
            "shares": rounded(performance_profile(each.ratios)),
            "iqm": _number(each.iqm),
            "iqm_interval": rounded(each.interval, SCORE_DIGITS),
        }
        for each in ranked
    ]
    return {"track": SIMULATED, "about": about, "taus": TAUS.tolist(), "lines": lines}


def _declared(verified: VerifiedEntry) -> dict[str, Any]:
    """What the entries of all tracks declare."""
    entry = verified.entry
    return {
        "id": verified.folder.slug,
        "name": f"{entry.name} ({near_copy_of(verified)})" if entry.near else entry.name,
        "authors": list(entry.authors),
        "link": entry.link,
        "licence": entry.licence,
        "agent": entry.agent.name,
        "training_data": ", ".join(entry.training.data),
        "shard_gym": entry.made_with.shard_gym,
    }


def _entry_row(ranked: RankedEntry) -> dict[str, Any]:
    """A row of the ranking of a track with placements or plans: `score` is the mean cost in ms, `group` the league."""
    verified, replayed = ranked.verified, ranked.replayed_seconds
    entry = verified.entry
    return {
        **_declared(verified),
        "seeds": len(verified.answers),
        "group": NEAR if entry.near else ranked.league,
        "score": _number(ranked.mean_cost_ms),
        "interval": rounded(ranked.interval_ms, SCORE_DIGITS),
        "gap": None if verified.failures else _number(ranked.gap),
        "fresh": None if ranked.fresh is None else _number(ranked.fresh.mean),
        "falls": ranked.falls,
        "ratio": _number(ranked.ratio),
        "ratio_interval": None if ranked.ratio_interval is None else rounded(ranked.ratio_interval, SCORE_DIGITS),
        "improvement_over_next": _number(ranked.improvement_over_next),
        "failures": verified.failures,
        "planning_ms": _number(1e3 * (entry.planning.seconds if replayed is None else replayed)),
        "planning_replayed": replayed is not None,
        "planning_queries": _number(entry.planning.queries),
        "training_queries": entry.training.queries,
        "hardware": entry.hardware.machine,
    }


def _replanning_row(ranked: RankedEntry) -> dict[str, Any]:
    """A row of the ranking of replanning: `score` is the share of the oracle's time that an episode takes beyond it."""
    verified = ranked.verified
    facts = {heading: float(np.nanmean(values)) for heading, values in verified.facts.items()}
    return {
        **_declared(verified),
        "seeds": len(verified.answers),
        "group": NEAR if verified.entry.near else "not replayed" if ranked.replayed_seconds is None else "replayed",
        "score": _number(ranked.gap),
        "interval": rounded(ranked.gap_interval or (), SCORE_DIGITS),
        "hours": _hours(ranked.mean_cost_ms),
        "pauses_s": _number(facts["pauses, s"]),
        "migrations_s": _number(facts["migrations, s"]),
        "plans": _number(facts["plans"]),
        "repairs": _number(facts["repairs"]),
    }


def _sequence_sheets(ranked: RankedEntry, board: Leaderboard) -> dict[str, list[Any]]:
    """The scores of all tasks, and the first seed's actions and time of each: a digit for each decision, 0 keeps."""
    verified, problem = ranked.verified, board.scorer.problem
    sheets: list[dict[str, Any] | None] = [None] * len(board.scorer.suite)
    for number, answer in enumerate(verified.answers[0]):
        if answer is None:
            continue
        cost_ms = float(verified.costs_ms[0, number])
        paused, moved, plans, repairs = (float(verified.facts[heading][0, number]) for heading in problem.headings)
        sheets[number] = {
            "actions": problem.to_json(answer),
            "hours": _hours(cost_ms),
            "seconds": rounded([cost_ms / 1e3 - paused - moved, paused, moved]),
            "plans": int(plans),
            "repairs": int(repairs),
        }
    lowest = board.best.costs_ms if board.best else np.full(len(sheets), np.nan)
    return {"scores": rounded((verified.costs_ms / lowest - 1.0).mean(axis=0)), "sheets": sheets}


def _task_sheet(leaderboard: Leaderboard, number: int) -> dict[str, Any]:
    """A task as the page shows it, without any placement: lists of T tables or D devices, memory in MiB.

    Device d is on host d // devices_per_host; `costs_ms` are those of each table alone on a device.
    """
    scorer, best = leaderboard.scorer, leaderboard.best
    bound = scorer.lower_bound(number) if leaderboard.track != MEASURED else None
    task = scorer.suite[number]
    tables, topology = task.tables, task.topology
    loads, _ = table_loads(task, scorer.model)
    return {
        "name": task.name,
        "devices_per_host": topology.devices_per_host,
        "caps_mib": rounded(topology.memory_cap_bytes / MIB),
        "best_known_ms": None if best is None else _number(float(best.costs_ms[number]), COST_DIGITS),
        "lower_bound_ms": _number(bound, COST_DIGITS),
        "tables": list(tables.names),
        "costs_ms": rounded(scorer.model.single_table_costs(loads, topology), TABLE_DIGITS),
        "memory_mib": rounded(tables.memory_bytes / MIB, TABLE_DIGITS),
        "dims": tables.embedding_dim.tolist(),
        "rows": tables.num_embeddings.tolist(),
        "pooling": rounded(tables.pooling_factor, TABLE_DIGITS),
    }


def _answer_sheets(scorer: Scorer, costs_ms: ArrayLike, answers: Sequence[Answer | None]) -> dict[str, list[Any]]:
    """The costs of all tasks in ms, and a sheet of each placement or plan."""
    sheets = [_answer_sheet(scorer, number, answer) for number, answer in enumerate(answers)]
    return {"scores": rounded(costs_ms), "sheets": sheets}


def _answer_sheet(scorer: Scorer, number: int, answer: Answer | None) -> dict[str, Any] | None:
    """The cost, the phases (D, 4), the memory (D) and the critical devices of each phase, by the cost model.

    A placement has a device for each table. A plan has shards: each a table, a device, rows, columns, the cost alone in
    ms and MiB; and the sharding type of each table. Of a plan with groups, devices are those of one, of the host
    d // `devices_per_host`.
    """
    if answer is None:
        return None
    task, model = scorer.suite[number], scorer.model
    own: dict[str, Any]
    if SPLITS in model.supports:
        parts = part_loads(task_of_plan(answer, task), model)
        task, model = parts.task, parts.model
        loads, shards = parts.each_shard(answer)
        device, memory = shards[:, 1], plan_memory_used(answer, task.tables, task.num_devices)
        shard_bytes = shards[:, 3] * task.tables.workload.select(shards[:, 0]).row_bytes(shards[:, 5])
        numbers = zip(
            shards[:, [0, 1, 3, 5]].tolist(),
            rounded(model.single_table_costs(loads, task.topology), TABLE_DIGITS),
            rounded(shard_bytes / MIB, TABLE_DIGITS),
            strict=True,
        )
        own = {
            "shards": [[*places, cost, mib] for places, cost, mib in numbers],
            "types": [sharding.sharding_type for sharding in answer.tables],
        }
        if answer.groups != ONE_GROUP:
            own |= {"groups": answer.groups.count, "devices_per_host": task.topology.devices_per_host}
    else:
        loads, _ = table_loads(task, model)
        device, memory = answer, memory_used(answer, task.tables, task.num_devices)
        own = {"placement": placement_to_json(answer)}
    phases, cost = model.costs(model.reduce(loads, device, task.num_devices), task.topology.cluster())
    return {
        "cost_ms": _number(float(cost), COST_DIGITS),
        "phases_ms": [rounded(each) for each in phases],
        "critical": [np.flatnonzero(phase).tolist() for phase in critical_devices(phases).T],
        "memory_mib": rounded(memory / MIB),
        **own,
    }


def rounded(values: ArrayLike, digits: int = COST_DIGITS) -> list[float]:
    """(K,) `values` to `digits` significant digits; whole numbers have no ".0", which makes the files smaller."""
    numbers = [float(f"{value:.{digits}g}") for value in np.asarray(values, np.float64).tolist()]
    return [int(number) if number.is_integer() else number for number in numbers]


def _number(value: float | None, digits: int = SCORE_DIGITS) -> float | None:
    """One rounded number; None stays None."""
    return None if value is None else rounded([value], digits)[0]


def _hours(cost_ms: float | None) -> float | None:
    """Ms as rounded hours."""
    return None if cost_ms is None else _number(float(cost_ms) / MS_PER_HOUR)
