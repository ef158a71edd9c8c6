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

from shard_gym.cost_models import ShardingCostModel
from shard_gym.errors import UnwritablePathError
from shard_gym.explain import critical_devices
from shard_gym.io.files import write_atomically
from shard_gym.leaderboard.markdown import MS_PER_HOUR
from shard_gym.leaderboard.ranking import Leaderboard, RankedEntry, competitors
from shard_gym.leaderboard.scorer import COST_MODEL, Scorer
from shard_gym.leaderboard.statistics import TAUS, performance_profile
from shard_gym.leaderboard.store import MIB
from shard_gym.placement import memory_used, placement_to_json
from shard_gym.problems import Answer
from shard_gym.problems.placement import table_loads
from shard_gym.sharding import plan_memory_used
from shard_gym.suites import suite_info
from shard_gym.suites.info import MEASURED, SIMULATED
from shard_gym.text import counted

STATIC = Path(__file__).parent / "static"

DATA = "data"

COST_DIGITS = 5
"""Significant digits of costs; the page shows four."""

SCORE_DIGITS = 9
"""Significant digits of scores. The tables round them again, and both must show the same last digit."""

TABLE_DIGITS = 4
"""Significant digits of the numbers of single tables, which are most of what a page loads."""


def write_site(leaderboards: Sequence[Leaderboard], out: Path) -> list[Path]:
    """Write the page into the folder `out` and return the paths of its files, sorted.

    Each file is written atomically. Files of an earlier page in the folder `data`, such as those of an entry that was
    removed, are deleted afterwards; nothing else in `out` is touched.

    Raises:
        UnwritablePathError: the folder cannot be written to.
    """
    files = site_files(leaderboards)
    for name, content in files.items():
        write_atomically(out / name, content)
    for path in sorted((out / DATA).rglob("*.js")):
        if path.relative_to(out).as_posix() not in files:
            try:
                path.unlink()
            except OSError as error:
                raise UnwritablePathError(f"{path} is out of date and cannot be removed: {error.strerror}.") from error
    return [out / name for name in files]


def site_files(leaderboards: Sequence[Leaderboard]) -> dict[str, bytes]:
    """The content of each file of the page by its path, sorted; nothing is written."""
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}
    for key, value in _values(leaderboards):
        # A page opened from a disk may load scripts, but may not fetch JSON. The literal is ASCII and runs no code.
        literal = json.dumps(value, allow_nan=False, separators=(",", ":"))
        script = f"(window.ShardGymData ??= {{}})[{json.dumps(key)}] = {literal};\n"
        files[f"{DATA}/{key}.js"] = script.encode("ascii")
    return dict(sorted(files.items()))


def _values(every: Sequence[Leaderboard]) -> Iterator[tuple[str, Any]]:
    """The values of the page by their keys: one index, and the data of each leaderboard.

    Each entry has a file of its own, so a new entry adds one file, and a reader loads only the two compared.
    """
    leaderboards = [each for each in every if not each.rules.looks_ahead]
    entries = {ranked.verified.folder.slug for each in leaderboards for ranked in each.entries}
    summaries = [_summary(each) for each in leaderboards]
    sequences = [_sequence_board(each) for each in every if each.rules.looks_ahead]
    index = {"competitors": sorted(entries), "suites": summaries, "profiles": _profiles(leaderboards)}
    yield "index", {**index, "replanning": sequences}
    for each in leaderboards:
        key, tasks = _leaderboard_key(each), range(len(each.scorer.suite))
        yield f"{key}/ranking", [_entry_line(ranked) for ranked in each.entries]
        yield f"{key}/tasks", [_task_sheet(each, number) for number in tasks]
        if each.best is not None:
            yield f"{key}/best", _answer_sheets(each.scorer, each.best.costs_ms, each.best.answers)
        for ranked in each.entries:
            costs, answers = ranked.verified.costs_ms.mean(axis=0), ranked.verified.answers[0]
            yield f"{key}/entries/{ranked.verified.folder.slug}", _answer_sheets(each.scorer, costs, answers)


def _leaderboard_key(leaderboard: Leaderboard) -> str:
    """The folder of a leaderboard's data: "simulated/dlrm-20x4", or "measured/gpu-40x4/races/nvidia-h200" of a race."""
    return leaderboard.race.folder.id if leaderboard.race else f"{leaderboard.track}/{leaderboard.suite}"


def _summary(leaderboard: Leaderboard) -> dict[str, Any]:
    """A leaderboard as the page offers it for selection; `cost_model` is the one of the placement sheets."""
    suite, race = leaderboard.scorer.suite, leaderboard.race
    tables, devices = [task.num_tables for task in suite], [task.num_devices for task in suite]
    return {
        "key": _leaderboard_key(leaderboard),
        "name": suite.name,
        "track": leaderboard.track,
        "hardware": leaderboard.hardware,
        "description": suite_info(suite.name).description,
        "cost_model": COST_MODEL,
        "tasks": len(suite),
        "tables": [min(tables), max(tables)],
        "devices": [min(devices), max(devices)],
        "entries": len(leaderboard.entries),
        "best_effort": leaderboard.best.effort if leaderboard.best else None,
        "how_solved": leaderboard.how_solved.replace("*", "") if leaderboard.track != MEASURED else None,
        "race": race and {"name": race.name, "about": race.about},
        "not_raced": [each.entry.name for each in leaderboard.not_raced],
    }


def _sequence_board(board: Leaderboard) -> dict[str, Any]:
    """The entries of replanning on a suite, in their order, and the oracle's hours."""
    return {
        "name": board.suite,
        "description": suite_info(board.suite).description,
        "oracle_hours": None if board.best is None else _number(float(board.best.costs_ms.mean() / MS_PER_HOUR)),
        "entries": [
            {
                "name": each.verified.entry.name,
                "authors": list(each.verified.entry.authors),
                "link": each.verified.entry.link,
                "excess": _number(each.gap),
                "hours": _number(each.mean_cost_ms / MS_PER_HOUR),
                "plans": _number(each.verified.facts.get("plans", 0.0)),
                "replayed": each.replayed_seconds is not None,
            }
            for each in board.entries
        ],
    }


def _profiles(leaderboards: Sequence[Leaderboard]) -> list[dict[str, Any]]:
    """The performance profile of the simulated track; measured costs have no best known costs to compare with."""
    suites, ranked = competitors(leaderboards)
    if not ranked:
        return []
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
    return [{"track": SIMULATED, "about": about, "taus": TAUS.tolist(), "lines": lines}]


def _entry_line(ranked: RankedEntry) -> dict[str, Any]:
    """An entry's row of the ranking."""
    verified, replayed = ranked.verified, ranked.replayed_seconds
    entry = verified.entry
    return {
        "id": verified.folder.slug,
        "name": entry.name,
        "league": ranked.league,
        "authors": list(entry.authors),
        "link": entry.link,
        "licence": entry.licence,
        "agent": entry.agent.name,
        "hardware": entry.hardware.machine,
        "seeds": len(verified.answers),
        "failures": verified.failures,
        "planning_replayed": replayed is not None,
        "training_queries": entry.training.queries,
        "training_data": ", ".join(entry.training.data),
        "shard_gym": entry.made_with.shard_gym,
        "mean_cost_ms": _number(ranked.mean_cost_ms),
        "gap": _number(ranked.gap),
        "improvement_over_next": _number(ranked.improvement_over_next),
        "ratio": _number(ranked.ratio),
        "ratio_interval": None if ranked.ratio_interval is None else rounded(ranked.ratio_interval, SCORE_DIGITS),
        "planning_ms": _number(1e3 * (entry.planning.seconds if replayed is None else replayed)),
        "planning_queries": _number(entry.planning.queries),
        "interval_ms": rounded(ranked.interval_ms, SCORE_DIGITS),
    }


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
    """The costs of all tasks, and a sheet of each placement or plan."""
    sheets = [_answer_sheet(scorer, number, answer) for number, answer in enumerate(answers)]
    return {"task_costs_ms": rounded(costs_ms), "placements": sheets}


def _answer_sheet(scorer: Scorer, number: int, answer: Answer | None) -> dict[str, Any] | None:
    """The cost, the phases (D, 4), the memory (D) and the critical devices of each phase, by the cost model.

    A placement has a device for each table. A plan has shards: each a table, a device, rows, columns, the cost alone in
    ms and MiB; and the sharding type of each table.
    """
    if answer is None:
        return None
    task, model = scorer.suite[number], scorer.model
    loads, cluster = table_loads(task, model)
    if isinstance(model, ShardingCostModel):
        loads, shards = model.each_shard(answer, task.tables, task.topology)
        device, memory = shards[:, 1], plan_memory_used(answer, task.tables, task.num_devices)
        workload = task.tables.workload
        shard_bytes = shards[:, 3] * (shards[:, 5] * workload.weight_bytes + workload.optimizer_bytes_per_row)
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
    else:
        device, memory = answer, memory_used(answer, task.tables, task.num_devices)
        own = {"placement": placement_to_json(answer)}
    phases, cost = model.costs(model.reduce(loads, device, task.num_devices), cluster)
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
