"""The boards as plain data: what the page is made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shard_gym.errors import DamagedFileError
from shard_gym.leaderboard import scores
from shard_gym.leaderboard.boards import Best, Board, Scored, boards, contestants
from shard_gym.leaderboard.replays import read_replays
from shard_gym.leaderboard.scorer import SCORED_BY
from shard_gym.leaderboard.site.data import BestData, EntryData, ProfileData, SiteData, SuiteData, TaskData, Track
from shard_gym.leaderboard.store import MEASURED, SIMULATED
from shard_gym.leaderboard.verify import verify_all
from shard_gym.placement import placement_to_json
from shard_gym.suites import suite_info
from shard_gym.text import counted


def leaderboard_data(root: Path) -> SiteData:
    """Everything the leaderboards under `root` say, verified: see `SiteData` for the layout.

    Raises:
        InvalidOptionError: there is no such folder.
        DamagedFileError: an entry does not hold; the message has the first reason.
    """
    return site_data(verified_boards(root))


def verified_boards(root: Path) -> list[Board]:
    """The boards of the entries under `root`; see `leaderboard_data` for errors."""
    entries, findings = verify_all(root)
    replays, wrong = read_replays(root, entries)
    findings += wrong
    if findings:
        raise DamagedFileError(
            f"{counted(len(findings), 'finding')}, the first: {findings[0]} "
            "All of them: shard-gym leaderboard verify --all."
        )
    return boards(entries, replays)


def site_data(of: Sequence[Board]) -> SiteData:
    """The boards as the page wants them."""
    return {"suites": [_suite(board) for board in of], "profiles": _profiles(of)}


def _suite(board: Board) -> SuiteData:
    track: Track = "measured" if board.track == MEASURED else "simulated"
    bounds = board.lower_bounds_ms
    tasks: list[TaskData] = [
        {
            "name": task.name,
            "best_known_ms": None if board.best is None else float(board.best.ms[number]),
            "lower_bound_ms": None if bounds is None else bounds[number],
        }
        for number, task in enumerate(board.judge.suite)
    ]
    return {
        "name": board.suite,
        "track": track,
        "hardware": board.hardware,
        "description": suite_info(board.suite).description,
        "cost_model": SCORED_BY[SIMULATED],
        "tasks": tasks,
        "best": None if board.best is None else _best(board.best),
        "entries": [_entry(scored) for scored in board.entries],
    }


def _best(best: Best) -> BestData:
    return {"effort": best.effort, "placements": [placement_to_json(placement) for placement in best.placements]}


def _entry(scored: Scored) -> EntryData:
    verified = scored.verified
    entry, replayed = verified.entry, scored.replayed_seconds
    return {
        "id": verified.place.slug,
        "name": entry.name,
        "authors": list(entry.authors),
        "link": entry.link,
        "licence": entry.licence,
        "agent": entry.agent.name,
        "hardware": entry.hardware.machine,
        "seeds": len(entry.seeds),
        "mean_cost_ms": scored.mean_cost_ms,
        "interval_ms": list(scored.interval_ms),
        "failures": verified.grid.failures,
        "gap": scored.gap,
        "improvement_over_next": scored.improvement_over_next,
        "planning_ms": 1e3 * (entry.planning.seconds if replayed is None else replayed),
        "planning_replayed": replayed is not None,
        "training_queries": entry.training.queries,
        "planning_queries": entry.planning.queries,
        "training_data": ", ".join(entry.training.data),
        "shard_gym": entry.made_with.shard_gym,
        "task_costs_ms": verified.costs_ms.mean(axis=0).tolist(),
        "placements": [
            None if placement is None else placement_to_json(placement) for placement in verified.grid.placements[0]
        ],
    }


def _profiles(of: Sequence[Board]) -> list[ProfileData]:
    """That of the simulated track; measured costs have no best known ones to be held against."""
    suites, ranked = contestants(of)
    if not ranked:
        return []
    about = (
        f"{counted(ranked[0].tasks, 'test task')} of {counted(len(suites), 'suite')}; contestants with an entry on "
        "every one of them."
    )
    return [
        {
            "track": "simulated",
            "hardware": None,
            "about": about,
            "taus": scores.TAUS.tolist(),
            "lines": [
                {
                    "id": each.slug,
                    "name": each.name,
                    "tasks": each.tasks,
                    "shares": each.shares.tolist(),
                    "iqm": each.iqm,
                    "iqm_interval": list(each.interval),
                }
                for each in ranked
            ],
        }
    ]
